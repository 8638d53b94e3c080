"""Builds without a CUDA compiler, and messages about missing libraries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import msda

REPOSITORY = Path(__file__).resolve().parents[2]


def test_build_info_names_the_library():
    info = msda.build_info()
    assert info.path.is_file()
    architecture = r"\d{2,3}[af]?(-real|-virtual)?"
    assert re.fullmatch(rf"({architecture}([,;]{architecture})*)?", info.cuda_architectures)
    assert info.has_cuda == (b"forward_kernel" in info.path.read_bytes())


def test_plugin_library_exports_what_its_callers_use():
    """The functions of C that Python and the C++ program look up are not hidden by the linker."""
    folder = REPOSITORY / "trt_plugin"
    exported = re.findall(r"msda_\w+", (folder / "csrc" / "exports.map").read_text(encoding="utf-8"))
    callers = [*folder.glob("*.py"), *(REPOSITORY / "examples" / "cpp").glob("*.h")]
    used = re.findall(
        r"(?:\)\.|dlsym\(\w+, \")(msda_\w+)", "".join(x.read_text(encoding="utf-8") for x in callers)
    )
    defined = re.findall(r"MSDA_EXPORT [\w* ]+?(msda_\w+)\(", (folder / "csrc" / "library.cpp").read_text())
    assert {"msda_has_fast_linear", "msda_image_input"} <= set(used)
    assert set(used) <= set(exported) == set(defined)


def nvcc() -> Path | None:
    """The CUDA compiler on the path or among the Python packages."""
    if found := shutil.which("nvcc"):
        return Path(found)
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    return next(iter(sorted(packages.glob("*/bin/nvcc"))), None)


@pytest.mark.slow
@pytest.mark.skipif(nvcc() is None, reason="no nvcc: pip install 'codetr-tensorrt[nvcc]'")
def test_bfloat16_compiles_for_the_oldest_architecture(tmp_path):
    """The first of the default architectures has no bfloat16 arithmetic, and CI does not build for it."""
    source = tmp_path / "one.cu"
    source.write_text(
        """
        #include "msda/forward_group.cuh"
        template cudaError_t msda::launch_forward_group<
            msda::GroupConfig<__nv_bfloat16, msda::GroupSpec{.samples_in_flight = 4}>>(
            const msda::Problem&, const msda::ForwardArguments&, cudaStream_t);
        """
    )
    include = f"-I{REPOSITORY / 'kernels' / 'include'}"
    command = [nvcc(), "-std=c++20", "-arch=compute_75", include, "-ptx", "-o", tmp_path / "one.ptx", source]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "forward_group_kernel" in (tmp_path / "one.ptx").read_text()


def run_python(code: str, cwd: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess:
    """Runs Python code with more environment variables."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment})


@pytest.mark.parametrize(
    ("content", "words"), [(None, ("the compiled operators {}", "pip install")), (b"x", ("can't be loaded",))]
)
def test_library_that_cannot_be_loaded_is_explained(content, words, tmp_path):
    library = tmp_path / "libmsda_torch.so"
    if content is not None:
        library.write_bytes(content)
    last = run_python("import msda", MSDA_TORCH_LIBRARY=str(library)).stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: msda: ")
    assert all(word.format(library) in last for word in words)


def test_folder_that_hides_the_installed_package_is_explained(tmp_path, monkeypatch):
    """After `pip install .`, `import msda` in the clone finds the clone's folder, which has no library."""
    shutil.copytree(
        REPOSITORY / "msda", tmp_path / "clone/msda", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    site = tmp_path / "site"
    (site / "msda").mkdir(parents=True)
    (site / "msda/libmsda_torch.so").touch()
    (site / "codetr_tensorrt-0.1.0.dist-info").mkdir()
    (site / "codetr_tensorrt-0.1.0.dist-info/METADATA").write_text("Name: codetr-tensorrt\nVersion: 0.1.0\n")
    # An editable installation's finder would find the package before the working directory does.
    code = "import sys; sys.meta_path[:] = [x for x in sys.meta_path if 'Scikit' not in type(x).__name__]"
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    monkeypatch.delenv("MSDA_TORCH_LIBRARY", raising=False)
    result = run_python(f"{code}; import msda", tmp_path / "clone", PYTHONPATH=path)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: msda: Python imported {tmp_path}/clone/msda, ")
    assert f"{site}/msda" in last and f"run Python in another folder than {tmp_path}/clone" in last


@pytest.mark.slow
def test_builds_without_cuda_for_the_cpu(tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake on the PATH")
    build = tmp_path / "build"
    configure = ["cmake", "-S", str(REPOSITORY), "-B", str(build), "-DMSDA_CUDA=OFF"]
    configure.append(f"-DPython_EXECUTABLE={sys.executable}")
    for command in (configure, ["cmake", "--build", str(build), "--target", "msda_torch"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    code = """
import torch, msda
assert not msda.build_info().has_cuda
value, locations, weights = torch.rand(1, 4, 2, 8), torch.rand(1, 3, 2, 1, 4, 2), torch.rand(1, 3, 2, 1, 4)
shapes, starts = torch.tensor([[2, 2]]), torch.tensor([0])
arguments = (value, shapes, starts, locations, weights)
torch.testing.assert_close(msda.attention(*arguments), msda.reference.attention(*arguments))
"""
    result = run_python(code, MSDA_TORCH_LIBRARY=str(next(build.rglob("libmsda_torch.so"))))
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("nvcc") is not None or Path("/usr/local/cuda").exists(),
    reason="no cmake, or the system has a CUDA toolkit",
)
@pytest.mark.parametrize(
    ("wanted", "succeeds", "message"),
    [
        ("AUTO", True, "operators for the CPU only (this machine has no GPU"),
        ("ON", False, "no CUDA compiler was found"),
    ],
)
def test_missing_compiler_is_explained(tmp_path, wanted, succeeds, message):
    # /bin/true stands for a Python that has no nvcc among its packages.
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(p LANGUAGES NONE)\n"
        f"set(Python_EXECUTABLE /bin/true)\ninclude({REPOSITORY}/cmake/MsdaCuda.cmake)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDA")}
    command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), f"-DMSDA_CUDA={wanted}"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (result.returncode == 0) == succeeds
    assert message in result.stderr
