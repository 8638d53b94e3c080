"""The wheel of `make wheel`, and its use in new environments without a compiler."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tools.wheel_contents import LIBRARIES, kernel_bytes
from trt_plugin.library import OPERATORS

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.13")


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = list((ROOT / "dist").glob("*.whl"))
    if len(found) != 1:
        pytest.skip("no wheel in dist: run make wheel")
    return found[0]


def test_contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (information,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(information).decode())
        licences = [archive.read(name) for name in names if "/licenses/" in name and not name.endswith("/")]
        libraries = [archive.read(name) for name in LIBRARIES]
    assert "-py3-none-manylinux_" in wheel.name
    assert [name for name in names if ".so" in name] == sorted(LIBRARIES)  # none of Torch or CUDA
    assert not any(name.endswith(("codetr_detect", ".cpp", ".cu", "CMakeLists.txt")) for name in names)
    assert metadata["License-Expression"] == "Apache-2.0 AND BSD-3-Clause"
    assert sorted(licences) == sorted(
        (ROOT / name).read_bytes() for name in ("LICENSE", "kernels/LICENSE.CUTLASS")
    )
    for library in libraries:
        kernels = kernel_bytes(library)
        assert "sm_90" in kernels and len(library) / 2 < sum(kernels.values()) < len(library)


@pytest.fixture(scope="module")
def commands(request, wheel, tmp_path_factory) -> Path:
    """Folder of the commands of a new environment with the wheel, for a version of Python."""
    version = request.param
    find = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:
        found = subprocess.run(find, env={**os.environ, "PYENV_VERSION": version}, stdout=subprocess.PIPE)
    except FileNotFoundError:
        pytest.skip(f"no Python {version} on the PATH")
    if found.returncode != 0:
        pytest.skip(f"no Python {version} among those of pyenv")
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([uv(), "venv", "-q", "--python", found.stdout.decode().strip(), folder], check=True)
    install(folder / "bin", wheel)
    return folder / "bin"


def uv() -> str:
    """The program that `make` installs with."""
    return shutil.which("uv") or str(ROOT / ".venv" / "uv" / "bin" / "uv")


def install(commands: Path, package: str | Path) -> None:
    options = ["-q", "--python", commands / "python", "-c", ROOT / "constraints.txt"]
    subprocess.run([uv(), "pip", "install", *options, package], check=True)


def run(commands: Path, folder: Path, name: str, *arguments: str, **variables: str) -> str:
    """Output of a command that finds no other programs, and no compiler."""
    command = [commands / name, *arguments]
    variables |= {"PATH": str(commands), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("commands", PYTHONS, indirect=True)
def test_detects_without_a_compiler(commands, tmp_path):
    run(commands, tmp_path, "codetr", "detect", str(ROOT / "assets" / "scene.jpg"), "--out", "out")
    document = json.loads((tmp_path / "out" / "detections.json").read_text())
    names = {category["id"]: category["name"] for category in document["categories"]}
    found = {names[row["category_id"]] for row in document["annotations"] if row["score"] > 0.8}
    assert {"letter R", "no entry sign", "screwdriver", "warning sign", "wrench"} <= found


@pytest.mark.parametrize("commands", PYTHONS, indirect=True)
def test_every_command_has_its_help(commands, tmp_path):
    """So no command needs an optional package, or a newer Python, before it runs."""
    code = (
        "from codetr.cli import app\nfor _, name, _, _ in app.COMMANDS: assert not app.main([name, '--help'])"
    )
    assert "codetr detect" in run(commands, tmp_path, "python", "-c", code)


@pytest.mark.parametrize("commands", ["3.10"], indirect=True)  # TensorRT 10.6 has no bindings for 3.13
def test_plugin_loads_into_tensorrt(commands, tmp_path):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    bindings = "tensorrt-cu12-bindings"
    install(commands, f"{bindings}=={importlib.metadata.version(bindings)}")
    code = """
import sys, tensorrt_bindings as trt
sys.modules["tensorrt"] = trt
import trt_plugin
print(trt_plugin.load(), *(creator.name for creator in trt.get_plugin_registry().all_creators))
"""
    libraries = os.environ.get("LD_LIBRARY_PATH", "")
    path, *creators = run(commands, tmp_path, "python", "-c", code, LD_LIBRARY_PATH=libraries).split()
    assert Path(path).is_relative_to(commands.parent) and set(OPERATORS) <= set(creators)
