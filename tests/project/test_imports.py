"""The direction of imports between rooms and modules, and the packages that an import must not load."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from codetr.cli.app import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = ("msda", "trt_plugin", "codetr", "onnx_path", "dynamo_path", "benchmarks", "tools")
# A room imports these others. `codetr.detector` runs engines through trt_plugin.
ALLOWED = {
    "msda": set(),
    "trt_plugin": set(),
    "codetr": {"msda", "trt_plugin"},
    "onnx_path": {"msda", "trt_plugin", "codetr"},
    "dynamo_path": {"msda", "trt_plugin", "codetr", "onnx_path"},  # the ONNX path calibrates for both
    "benchmarks": set(ROOMS),
    "tools": set(ROOMS),
}
# The front door and the commands of trt_plugin are above all rooms. codetr.scenes is an old name.
ABOVE = {"codetr.cli.export", "codetr.cli.refit", "codetr.scenes", "trt_plugin.inspect", "trt_plugin.run"}
# Only these rooms import the package.
RESERVED = {
    "torch": {"msda", "codetr", "onnx_path", "dynamo_path", "benchmarks"},
    "torch_tensorrt": {"dynamo_path"},
    "tensorrt": {"trt_plugin", "onnx_path", "dynamo_path", "benchmarks"},
    "polygraphy": {"trt_plugin", "onnx_path", "dynamo_path", "benchmarks"},
    "onnx": {"onnx_path", "benchmarks"},
    "onnxscript": {"onnx_path"},
}


@cache
def sources() -> dict[str, Path]:
    """Module names and files of all rooms."""
    files = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
    names = (".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in files)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, files)}


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere, also in functions and under TYPE_CHECKING."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = members & set(sources())
            names |= modules if modules == members else modules | {node.module}
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_downwards(room):
    for module, path in sources().items():
        if module.split(".")[0] != room:
            continue
        packages = {name.split(".")[0] for name in imports(path)}
        others = packages & set(ROOMS) - {room} - ALLOWED[room]
        assert not others or module in ABOVE, f"{path} imports {others}"
        assert "tests" not in packages, f"{path} imports tests"
        for package, rooms in RESERVED.items():
            assert package not in packages or room in rooms, f"{path} imports {package}"


def test_modules_form_no_circle():
    graph = {module: imports(path) & set(sources()) - {module} for module, path in sources().items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_kernels_include_only_cuda_and_themselves():
    allowed = ("msda/", "cutlass/", "cuda", "c")  # this project's, CUTLASS's, CUDA's, and those of C
    paths = [path for ending in ("h", "cuh", "cu") for path in (REPOSITORY / "kernels").rglob(f"*.{ending}")]
    assert paths
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("#include"):
                name = line.split()[1].strip('<>"')
                standard = "." not in name and "/" not in name
                assert standard or name.startswith(allowed), f"{path}: {line}"


def test_no_module_imports_parameter_of_cyclopts():
    """That of `codetr.cli.argument_types` works in Python 3.10 too."""
    importers = [
        module
        for module, path in sources().items()
        if re.search(r"^from cyclopts import .*\bParameter\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert importers == []


@pytest.mark.parametrize(
    "code",
    [
        "import codetr, codetr.detector.postprocess, codetr.evaluation, trt_plugin, codetr.cli.app",
        "import codetr.classify.pictures, codetr.classify.top_k, codetr.classify.imagenet",
        "from codetr.cli import main; main(['--help'])",
        *(f"from codetr.cli import main; main(['{name}', '--help'])" for _, name, _, _ in COMMANDS),
    ],
)
def test_import_and_help_load_no_framework(code):
    heavy = ("torch", "tensorrt", "onnx", "polygraphy")
    code += f"\nimport sys; sys.exit(str([name for name in {heavy} if name in sys.modules] or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stderr.strip() == "", done.stderr
