"""`python -m benchmarks.batch`: pictures a second of `codetr batch`, on one GPU and on several."""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts.types import NonNegativeInt, PositiveInt

from benchmarks.option_types import OneOrMore
from benchmarks.pipeline import Stages, idle_share, picture_files, trace_events
from benchmarks.result_files import ResultFile
from codetr.batch import job
from codetr.batch.find_objects import FindObjects
from codetr.batch.source import BYTES, PATH, Place, Source
from codetr.cli.argument_types import Folder, OutputFile
from codetr.cli.program import run_program
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions, for_ray
from codetr.detector.pipeline import Span
from codetr.errors import UsageError
from trt_plugin.atomic_files import write_json

_DEFAULTS = NetworkOptions()


def measure_batch(
    *,
    network: NetworkOptions = _DEFAULTS,
    pictures: Folder | None = None,
    count: PositiveInt = 5000,
    batch: PositiveInt = 8,
    alone: Annotated[tuple[PositiveInt, ...], OneOrMore] = (),
    gpus: Annotated[tuple[NonNegativeInt, ...], OneOrMore] = (1,),
    threshold: float = 0.3,
    timeline: OutputFile | None = None,
    out: OutputFile | None = None,
) -> int:
    """Measure pictures a second of `codetr batch`, beside those of the network alone.

    `images_per_second` counts from the first picture in a detect thread to the last result, `steady` from the
    first tenth of the batches to the last. `seconds` is the time of the command without the start of Ray.
    `of_network` compares with the network alone at its best batch, once for each GPU. `idle` is the share of
    time in which no detect thread of a GPU works.

    ```
    python -m benchmarks.batch --engine model.engine --batch 8 --gpus 1 2
    ```

    Args:
        pictures: folder of pictures. Default: pictures of 1080x1920, made of the repository's photographs.
        count: pictures of a run. Fewer files get more names by hard links.
        batch: pictures in one run of the network.
        alone: batches to measure the network alone with. Default: `batch`.
        gpus: numbers of GPUs, a run each; 0 for the CPU.
        threshold: least score.
        timeline: file for the detect threads of the last run, for Perfetto or chrome://tracing.
        out: result file. Default: benchmarks/results/batch_GPU.json.
    """
    result = ResultFile("benchmarks.batch", out, needs_gpu=False)
    network = for_ray(network)
    with tempfile.TemporaryDirectory(dir=pictures and pictures.parent) as scratch:
        files = picture_files(pictures, Path(scratch))
        linked = Path(scratch, "pictures")
        link_pictures(files, linked, count)
        with Detector(backend=network.make_backend()) as detector:
            detector.backend.load()
            description = detector.backend.description
            stages = Stages(detector, {}, files, None, None)
            best = 0.0
            for size in alone or (batch,):
                row = {"stage": "network", "batch": size, **stages.network(size)}
                best = max(best, row["images_per_second"])
                result.add(row, f"network, batch {size}: {row['images_per_second']:.1f} pictures/s")
        for number in gpus:
            options = {"threshold": threshold}
            with _visible(number):
                row, spans = run(network, linked, Path(scratch, f"found{number}"), options, batch)
            row["gpus"] = number
            row["of_network"] = row["images_per_second"] / (max(1, number) * best)
            if number and len(spans) != number:
                raise UsageError(f"--gpus: expected {number} GPUs, Ray found {len(spans)}")
            result.add(row, _line(row))
    if timeline is not None:
        events = [{**event, "pid": int(pid)} for pid, own in spans.items() for event in trace_events(own)]
        write_json(timeline, {"traceEvents": events})
    result.write(network=description, pictures=count, distinct=min(count, len(files)))
    print(f"wrote {result.path}")
    return 0


def run(
    network: NetworkOptions, pictures: Path, out: Path, options: dict[str, Any], batch: int
) -> tuple[dict[str, Any], dict[str, list[Span]]]:
    """Runs a job on all visible GPUs; returns its row, and the spans of each actor."""
    source = Source.find(Place.parse("SOURCE", str(pictures)), PATH, BYTES)
    folder = out.with_name(f"{out.name}_spans")
    began = time.perf_counter()
    with job.ray_session(None):
        started = time.perf_counter() - began
        sizes = {"batch": batch, "part_rows": 1000}
        done = job.run_job(
            source, Place.parse("OUT", str(out)), network, options, **sizes, step=_with_spans(folder)
        )
    if done.errors:
        raise UsageError(f"{done.errors} of {done.rows} pictures have an error")
    spans = {
        file.stem: [Span(*json.loads(line)) for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("*.jsonl"))
    }
    return {"stage": "batch", "batch": batch, "ray_start_s": started, **summary(done, spans)}, spans


def summary(done: job.Summary, spans: dict[str, list[Span]]) -> dict[str, Any]:
    """Returns pictures a second, and the shares of time in which threads wait and GPUs idle."""
    every = list(itertools.chain.from_iterable(spans.values()))
    first, last = min(span.began_s for span in every), max(span.ended_s for span in every)
    ends = np.sort([span.ended_s for span in every])
    low, high = len(ends) // 10, len(ends) - 1 - len(ends) // 10
    threads = len({(actor, span.thread) for actor, own in spans.items() for span in own})
    waited = sum(span.decoded_s - span.began_s for span in every)
    return {
        "images_per_second": done.rows / (last - first),
        "steady": done.rows * (high - low) / len(ends) / (ends[high] - ends[low]),
        "seconds": done.seconds,
        "waits_for_pictures": waited / (threads * (last - first)),
        "idle": float(np.mean([idle_share(own, first, last) for own in spans.values()])),
        "batches": [len(own) for own in spans.values()],
    }


def link_pictures(files: Sequence[Path], folder: Path, count: int) -> None:
    """Makes a folder of `count` names for the content of files on the same file system."""
    folder.mkdir()
    for index, file in zip(range(count), itertools.cycle(files)):
        os.link(file, folder / f"{index:06}{file.suffix}")


def _with_spans(folder: Path) -> type:
    """Returns the step of a job that also writes the spans of its pipeline."""

    class WithSpans(FindObjects):
        def __init__(self, *arguments: Any) -> None:
            FindObjects.__init__(self, *arguments)
            self._write_alone = threading.Lock()
            self._written = 0
            folder.mkdir(parents=True, exist_ok=True)

        def __call__(self, table: Any) -> Any:
            found = FindObjects.__call__(self, table)
            with self._write_alone, (folder / f"{os.getpid()}.jsonl").open("a") as file:
                new = self._pipeline.spans[self._written :]
                file.writelines(f"{json.dumps(span)}\n" for span in new)
                self._written += len(new)
            return found

    return WithSpans


@contextmanager
def _visible(gpus: int) -> Iterator[None]:
    """Limits the GPUs that Ray finds to the first ones of this process."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [*map(str, range(64))]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[:gpus])
    try:
        yield
    finally:
        if given is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = given


def _line(row: dict[str, Any]) -> str:
    return (
        f"batch, {row['gpus']} GPUs: {row['images_per_second']:.1f} pictures/s (steady {row['steady']:.1f}), "
        f"of_network {row['of_network']:.0%}, idle {row['idle']:.0%}, "
        f"waits_for_pictures {row['waits_for_pictures']:.0%}, {row['seconds']:.1f} s in all"
    )


main = partial(run_program, measure_batch, program="python -m benchmarks.batch")

if __name__ == "__main__":
    sys.exit(main())
