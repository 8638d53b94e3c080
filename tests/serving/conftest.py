"""Leaves the tests of the server out where its packages are missing."""

from __future__ import annotations

import importlib.util

if not all(importlib.util.find_spec(name) for name in ("ray", "fastapi", "onnx", "onnxruntime")):
    collect_ignore_glob = ["test_*.py"]  # the extra `serve` or `onnx` is not installed
