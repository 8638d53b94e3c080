"""The dependency direction of the rooms, read off the source, and what an import must not bring along."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = ("msda", "trt_plugin", "codetr", "onnx_path", "dynamo_path", "benchmarks")

# room -> rooms it may import. codetr's `detect --backend tensorrt` runs engines, hence trt_plugin.
ALLOWED = {
    "msda": set(),
    "trt_plugin": set(),
    "codetr": {"msda", "trt_plugin"},
    "onnx_path": {"msda", "trt_plugin", "codetr"},
    "dynamo_path": {"msda", "trt_plugin", "codetr"},
    "benchmarks": set(ROOMS),
}
# package -> rooms that alone may import it
RESERVED = {
    "torch_tensorrt": {"dynamo_path"},
    "tensorrt": {"trt_plugin", "onnx_path", "dynamo_path", "benchmarks"},
    "polygraphy": {"trt_plugin", "onnx_path", "dynamo_path", "benchmarks"},
    "onnx": {"onnx_path", "benchmarks"},
    "onnxscript": {"onnx_path"},
}


def imported_packages(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_downwards(room):
    files = sorted((REPOSITORY / room).rglob("*.py"))
    assert files, f"{room} has no Python files"
    for path in files:
        packages = imported_packages(path)
        others = packages & set(ROOMS) - {room}
        assert others <= ALLOWED[room], f"{path} imports {others - ALLOWED[room]}"
        for package, rooms in RESERVED.items():
            assert package not in packages or room in rooms, f"{path} imports {package}"
        assert "tests" not in packages, f"{path} imports tests"


def test_trt_plugin_needs_no_torch():
    for path in (REPOSITORY / "trt_plugin").rglob("*.py"):
        assert "torch" not in imported_packages(path), path


def test_kernels_include_only_cuda_and_themselves():
    allowed = ("msda/", "cuda", "c")  # ours, CUDA's, and the standard library's, which have no dot or slash
    for path in sorted((REPOSITORY / "kernels").rglob("*")):
        if path.suffix not in (".h", ".cuh", ".cu"):
            continue
        for line in path.read_text().splitlines():
            if not line.startswith("#include"):
                continue
            name = line.split()[1].strip('<>"')
            standard = "." not in name and "/" not in name
            assert standard or name.startswith(allowed), f"{path}: {line}"


@pytest.mark.parametrize("package", ["codetr", "codetr.cli.detect", "codetr.detector.postprocess", "trt_plugin"])
def test_import_stays_light(package):
    heavy = ("torch", "tensorrt", "onnx", "polygraphy")
    code = f"import sys, {package}; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
