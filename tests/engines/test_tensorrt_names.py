"""Names of TensorRT's Python API that this repository uses exist in versions 10.6 and 11.

`python tools/tensorrt_names.py` writes the lists of names from the bindings of a version.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("codetr", "trt_plugin", "onnx_path", "dynamo_path", "benchmarks", "examples", "tools", "tests")
LISTS = sorted((ROOT / "tests" / "engines" / "tensorrt_names").glob("*.txt"))
# Weakly typed networks, which TensorRT 11 lacks. A test of the plugin in TensorRT 10 builds one.
ONLY_IN_10 = {"BuilderFlag.FP16"}
# Names in one of the versions, which files, arrays and classes of this repository have too.
OTHERS = {"attention", "mask", "precision", "seek", "strides", "tactic", "update", "write"}


def read(path: Path) -> dict[str, set[str]]:
    """The names of a version by class, and those of the module under "tensorrt"."""
    rows = (line.split(":") for line in path.read_text(encoding="utf-8").splitlines())
    return {owner: set(names.split()) for owner, names in rows}


def attributes() -> Iterator[tuple[str, list[str]]]:
    """Place and names of every a.b.c in the sources that use TensorRT, as ["a", "b", "c"].

    The first name is "" for the value of a call or of another expression.
    """
    for path in sorted(chain.from_iterable((ROOT / room).rglob("*.py") for room in ROOMS)):
        text = path.read_text(encoding="utf-8")
        if "tensorrt" not in text.replace("onnx_path.tensorrt", ""):  # a package of ours
            continue
        for node in ast.walk(ast.parse(text)):
            place, names = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", []
            while isinstance(node, ast.Attribute):
                names.insert(0, node.attr)
                node = node.value
            if names:
                yield place, [node.id if isinstance(node, ast.Name) else "", *names]


def test_lists_of_both_versions():
    assert [path.name.split(".")[0] for path in LISTS] == ["10", "11"]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_names_of_the_module(path):
    """Such as `trt.TensorIOMode.INPUT`."""
    known, used = read(path), set()
    for place, (root, first, *more) in attributes():
        if root not in ("trt", "tensorrt") or first.startswith("_"):
            continue
        used.add(first)
        assert first in known["tensorrt"], f"{place}: TensorRT {path.stem} has no {first}"
        if first in known and more and not more[0].startswith("_"):
            name = f"{first}.{more[0]}"
            assert more[0] in known[first] or name in ONLY_IN_10, f"{place}: TensorRT {path.stem}: no {name}"
    assert {"Builder", "Runtime", "ILogger", "float16"} <= used


def test_members_of_objects():
    """No attribute has a name that some class has in one version, and no class in the other."""
    old, new = (set().union(*read(path).values()) for path in LISTS)
    changed = (old ^ new) - OTHERS - {name.split(".")[1] for name in ONLY_IN_10}
    assert {"device_memory_size", "int8_calibrator"} <= changed
    for place, names in attributes():
        assert names[-1] not in changed, f"{place}: not in every version of TensorRT: {names[-1]}"
