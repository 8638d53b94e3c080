"""The threads of onnxruntime's sessions."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from codetr.detector.onnxruntime_backend import limit_threads


@pytest.mark.parametrize(
    ("usable", "asked", "threads"),
    [({1, 3}, 0, 2), ({1, 3}, 1, 1), ({0, 1, 2, 3}, 0, 0)],
    ids=["container", "asked", "whole machine"],
)
def test_a_session_stays_on_the_usable_cores(usable, asked, threads, monkeypatch):
    """0 threads: onnxruntime's own choice, a thread for each core."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable, raising=False)
    options = SimpleNamespace(intra_op_num_threads=asked)
    limit_threads(options)
    assert options.intra_op_num_threads == threads
