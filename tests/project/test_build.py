"""The build without a CUDA compiler, and its messages."""

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


def nvcc() -> Path | None:
    """The CUDA compiler on the path or among the Python packages."""
    if found := shutil.which("nvcc"):
        return Path(found)
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    return next(iter(sorted(packages.glob("*/bin/nvcc"))), None)


@pytest.mark.skipif(nvcc() is None, reason="no nvcc: pip install 'codetr-tensorrt[nvcc]'")
def test_bfloat16_compiles_for_the_oldest_architecture(tmp_path):
    """CI builds for one architecture; the first of the default ones has no bfloat16 arithmetic."""
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


def test_missing_library_is_explained():
    environment = {**os.environ, "MSDA_TORCH_LIBRARY": "/nowhere/libmsda_torch.so"}
    command = [sys.executable, "-c", "import msda"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: msda: the compiled operators /nowhere/libmsda_torch.so")
    assert "pip install" in last


def test_folder_that_hides_the_installed_package_is_explained(tmp_path):
    """`import msda` in a clone after `pip install .`: Python takes the clone's folder, without a library."""
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
    environment = {name: value for name, value in os.environ.items() if name != "MSDA_TORCH_LIBRARY"}
    environment["PYTHONPATH"] = os.pathsep.join([str(site), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", f"{code}; import msda"]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path / "clone", env=environment, check=False
    )
    last = result.stderr.strip().splitlines()[-1]
    assert last == (
        f"ImportError: msda: Python imported {tmp_path}/clone/msda, which has no compiled operators, not the "
        f"installed {site}/msda; run Python in another folder than {tmp_path}/clone, or install that with "
        "pip install --no-build-isolation -e . (or `make build`) in the source tree"
    )


def test_unloadable_library_is_explained(tmp_path):
    broken = tmp_path / "libmsda_torch.so"
    broken.write_bytes(b"not a shared object")
    environment = {**os.environ, "MSDA_TORCH_LIBRARY": str(broken)}
    command = [sys.executable, "-c", "import msda"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
    assert "can't be loaded" in result.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_builds_without_cuda_for_the_cpu(tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake on the PATH")
    build = tmp_path / "build"
    configure = ["cmake", "-S", str(REPOSITORY), "-B", str(build), "-DMSDA_CUDA=OFF"]
    configure.append(f"-DPython_EXECUTABLE={sys.executable}")
    configured = subprocess.run(configure, capture_output=True, text=True)
    assert configured.returncode == 0, configured.stderr
    built = subprocess.run(
        ["cmake", "--build", str(build), "--target", "msda_torch"], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr

    code = """
import torch, msda
assert not msda.build_info().has_cuda
value, locations, weights = torch.rand(1, 4, 2, 8), torch.rand(1, 3, 2, 1, 4, 2), torch.rand(1, 3, 2, 1, 4)
shapes, starts = torch.tensor([[2, 2]]), torch.tensor([0])
arguments = (value, shapes, starts, locations, weights)
torch.testing.assert_close(msda.attention(*arguments), msda.reference.attention(*arguments))
"""
    environment = {**os.environ, "MSDA_TORCH_LIBRARY": str(next(build.rglob("libmsda_torch.so")))}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, env=environment
    )
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
