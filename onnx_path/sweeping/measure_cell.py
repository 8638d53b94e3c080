"""`python -m onnx_path.sweeping.measure_cell cell SPEC OUT`: measures one cell in a process of its own.

SPEC is a JSON file with the fields of `onnx_path.sweeping.cells.CellSpec`. OUT gets the cell's part of
results.json. A failure is a result too: only a process that is killed leaves none.

The process loads the network and waits for a line on stdin before it makes files and uses the GPU. It ends
when stdin is closed, as by a sweep that was killed, so that it does not disturb the next one.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from codetr.cli.program import message_of
from codetr.errors import ArgumentError, UsageError, one_line
from onnx_path.sweeping.cells import CellSpec, MissingCell
from onnx_path.sweeping.latency import time_calls
from trt_plugin.atomic_files import atomic_write, write_json


def measure(spec: CellSpec, wait: Callable[[], object] = lambda: None) -> dict:
    """Measures a cell; returns its part of results.json without status.

    Args:
        wait: called when the network is loaded, before files are made and the GPU is used.
    """
    from onnx_path.sweeping import subjects

    subject = subjects.open_subject(spec)
    batch = next(subject.batches(max(8, spec.cell.batch)))  # some pictures may be damaged
    batch = subjects.fill(batch, spec.cell.batch)
    wait()
    runtime = subject.open_runtime()
    started = time.time()
    model_ms = runtime.time_model(batch, spec.iterations, spec.seconds)
    total_ms = time_calls(lambda: runtime(batch), spec.iterations, spec.seconds)
    measured = [[started, time.time()]]
    quicker = min(stats["median"] for stats in model_ms.values() if stats is not None)
    accuracy = subject.accuracy(runtime) if spec.dataset else None
    agreement = _compare(spec, subject, runtime) if spec.compare else None
    runtime.close()
    return {
        "input": list(next(iter(batch.values())).shape[1:]),
        "model_ms": model_ms,
        "total_ms": total_ms,
        "images_per_s": spec.cell.batch / quicker * 1e3,
        "images_per_s_total": spec.cell.batch / total_ms["median"] * 1e3,
        **runtime.facts,
        "accuracy": accuracy,
        "agreement": agreement,
        "measured": measured,
    }


def _compare(spec: CellSpec, subject: Any, runtime: Any) -> dict | None:
    """Compares outputs with those of `make_reference`; None for a network that has no reference."""
    from onnx_path.sweeping.subjects import reference_file

    path = reference_file(spec)
    if not path.is_file():
        return None
    with np.load(path) as content:
        expected = [content[f"output_{i}"] for i in range(len(content.files))]
    differences, done = subject.differences(), 0
    for inputs in subject.batches(spec.compare):
        found = subject.outputs(runtime, inputs)
        count = len(found[0])
        differences.update([x[done : done + count] for x in expected], found)
        done += count
    return {"data": "random" if spec.dataset is None else "dataset", **differences.report()}


def make_reference(spec: CellSpec) -> None:
    """Writes the outputs of the network in fp32."""
    from onnx_path.sweeping.subjects import open_subject, reference_file

    subject = open_subject(spec)
    runtime = subject.open_reference()
    parts = [subject.outputs(runtime, inputs) for inputs in subject.batches(spec.compare)]
    arrays = {f"output_{i}": np.concatenate(x) for i, x in enumerate(zip(*parts, strict=True))}
    with atomic_write(reference_file(spec)) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def _finite(value: Any) -> Any:
    """Replaces non-finite numbers, such as errors of an output that overflowed, by None: JSON lacks them."""
    if isinstance(value, Mapping):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def build(spec: CellSpec) -> None:
    """Makes the files of a cell, its engine among them."""
    from onnx_path.sweeping.subjects import open_subject

    open_subject(spec).open_runtime().close()


def _wait_for_line() -> None:
    if not sys.stdin.readline():
        sys.exit("the sweep has ended")
    threading.Thread(target=_end_with_sweep, daemon=True).start()


def _end_with_sweep() -> None:
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read: its lock would disturb the interpreter's exit
    os._exit(1)


def main(argv: Sequence[str]) -> int:
    """Does a part of the work on the cell of a file: "cell" measures it, see `make_reference` and `build`."""
    what, source, out = argv
    work = {"reference": make_reference, "build": build}.get(what)
    spec = CellSpec.of_dict(json.loads(Path(source).read_text(encoding="utf-8")))
    try:
        if work is None:
            content = measure(spec, _wait_for_line)
        else:
            _wait_for_line()
            content = work(spec) or {}
        result = {"status": "ok", "reason": None, **content}
    except MissingCell as error:
        result = {"status": "missing", "reason": one_line(error)}
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            reason = f"out of GPU memory at batch {spec.cell.batch}"
        else:
            reason = message_of(error)
        if not isinstance(error, (ArgumentError, UsageError)):
            import traceback

            traceback.print_exc()
        result = {"status": "failed", "reason": reason}
    write_json(Path(out), _finite(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
