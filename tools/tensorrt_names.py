"""Writes the names of a version of TensorRT's Python API for tests/engines/test_tensorrt_names.py.

The script needs the bindings of the version, and no GPU. A library of an older minor version suffices:

    python -m venv names && names/bin/pip install tensorrt-cu13-bindings==11.4.0.106
    LD_LIBRARY_PATH=tensorrt-11/lib names/bin/python tools/tensorrt_names.py

Each line has a class and its own names. The names of the module stand in the first line.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import tensorrt_bindings

FOLDER = Path(__file__).parents[1] / "tests" / "engines" / "tensorrt_names"


def main() -> None:
    """Writes the file of the installed version."""
    found = {"tensorrt": tensorrt_bindings}
    classes = inspect.getmembers(tensorrt_bindings, inspect.isclass)
    found |= {name: value for name, value in classes if value.__module__.startswith("tensorrt")}
    lines = []
    for owner, value in found.items():
        names = (name for name in vars(value) if not name.startswith("_"))
        lines.append(" ".join([f"{owner}:", *sorted(names)]) + "\n")
    path = FOLDER / f"{tensorrt_bindings.__version__}.txt"
    path.write_text("".join(lines), encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
