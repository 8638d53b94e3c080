"""`python -m benchmarks.pipeline`: pictures a second from files to results, stage by stage."""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts.types import PositiveInt
from PIL import Image

from benchmarks.option_types import OneOrMore
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import Folder, OutputFile, Parameter
from codetr.cli.pictures import draw_on, find_pictures, save_jpeg
from codetr.cli.program import run_program
from codetr.detector.decoding import Decoder, GpuDecoder, make_decoder, ready
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions
from codetr.detector.pipeline import Pipeline, Span, Workers
from codetr.detector.preprocess import load_image
from codetr.detector.tensorrt_backend import TensorRTBackend
from codetr.errors import UsageError
from trt_plugin.atomic_files import write_json

ROOT = Path(__file__).resolve().parent.parent
PHOTOS = (ROOT / "assets/scene.jpg", ROOT / "codetr/demo/coffee.jpg")
DISTINCT = 64
"""Pictures that `make_pictures` writes; a run repeats them."""

DecoderName = Literal["best", "pillow", "nvimagecodec"]
_DEFAULTS = NetworkOptions()


def measure_pipeline(
    *,
    network: NetworkOptions = _DEFAULTS,
    pictures: Folder | None = None,
    count: PositiveInt = 1000,
    batch: Annotated[tuple[PositiveInt, ...], OneOrMore] = (1, 8),
    contexts: Annotated[tuple[PositiveInt, ...], OneOrMore] = (1, 3),
    decoder: Annotated[tuple[DecoderName, ...], OneOrMore] = ("best", "pillow"),
    threads: Annotated[PositiveInt | None, Parameter(metavar="N")] = None,
    threshold: float = 0.3,
    draw: bool = False,
    timeline: OutputFile | None = None,
    out: OutputFile | None = None,
) -> int:
    """Measure pictures a second of the pipeline, and of each of its stages alone.

    The others wait for the stage with the fewest pictures a second. `waits_for_pictures` is the share of time
    that the detect threads wait for decoded pictures, `idle` the share in which none of them works.

    ```
    python -m benchmarks.pipeline --engine model.engine --batch 1 4 8 16
    ```

    Args:
        pictures: folder of pictures. Default: pictures of 1080x1920, made of the repository's photographs.
        count: pictures of a run. Fewer files are repeated.
        batch: pictures in one run of the network.
        contexts: batches that an engine runs at the same time.
        decoder: best is nvImageCodec where it runs, else Pillow.
        threads: threads that decode, and threads that draw. Default: one for each core, 16 at most.
        threshold: least score of a box that is drawn.
        draw: Draw the boxes and save the pictures, too.
        timeline: file for the detect threads of the last run, for Perfetto or chrome://tracing.
        out: result file. Default: benchmarks/results/pipeline_GPU.json.
    """
    result = ResultFile("benchmarks.pipeline", out, needs_gpu=False)
    detector = Detector(backend=network.make_backend())
    with tempfile.TemporaryDirectory() as scratch, detector:
        files = picture_files(pictures, Path(scratch))
        files = list(itertools.islice(itertools.cycle(files), count))
        detector.backend.load()
        options = {"threshold": threshold}
        stages = Stages(detector, options, files, threads, Path(scratch) if draw else None)
        alone = {size: stages.network(size) for size in batch}
        for size, row in alone.items():
            result.add(*_named("network", size, row))
        for name, size in itertools.product(decoder, batch):
            result.add(*_named("decode", size, stages.decode(name, size)))
        for row in stages.detect(batch, contexts):
            result.add(*_named("detect", row["batch"], row))
        if draw:
            result.add(*_named("draw", 1, stages.draw()))
        for name, size, both in itertools.product(decoder, batch, contexts):
            row = stages.whole(name, size, both)
            row["of_network"] = row["images_per_second"] / alone[size]["images_per_second"]
            result.add(*_named("pipeline", size, row))
    if timeline is not None:
        write_json(timeline, {"traceEvents": trace_events(stages.spans)})
    result.write(network=detector.backend.description, pictures=count, distinct=len(set(files)))
    print(f"wrote {result.path}")
    return 0


class Stages:
    """The stages of the pipeline over the same files.

    Args:
        options: arguments of `Detector.detect_batch`.
        out: folder for annotated pictures; None to draw none.
    """

    def __init__(
        self,
        detector: Detector,
        options: dict[str, Any],
        files: Sequence[Path],
        threads: int | None,
        out: Path | None,
    ) -> None:
        self.detector, self.options, self.files = detector, options, files
        self.threads, self.out = threads, out

    def make(self, name: DecoderName) -> Decoder:
        if name == "pillow":
            return Decoder(self.threads)
        if name == "best":
            return make_decoder(self.detector.backend, self.threads)
        if not isinstance(self.detector.backend, TensorRTBackend):
            raise UsageError("--decoder: expected best or pillow without --engine, got nvimagecodec")
        return GpuDecoder(self.detector.backend.device_index, self.threads)

    def network(self, batch: int) -> dict[str, Any]:
        """The network alone: for an engine, GPU time without copies; for others, calls of the runtime."""
        backend = self.detector.backend
        image = load_image(self.files[0])
        inputs = backend.preprocessor.batch([image] * batch)
        if isinstance(backend, TensorRTBackend):
            samples = backend.time({"images": inputs.images, "image_shapes": inputs.image_shapes})
            seconds = float(np.median(samples)) / 1000
        else:
            backend(inputs.images, inputs.image_shapes)
            seconds = min(_seconds(lambda: backend(inputs.images, inputs.image_shapes)) for _ in range(3))
        return {"images_per_second": batch / seconds, "input": list(inputs.images.shape)}

    def decode(self, name: DecoderName, batch: int) -> dict[str, Any]:
        """Decoding alone, in all threads."""
        with closing(self.make(name)) as decoder:
            _decode(decoder, self.files[:batch])
            seconds = _seconds(lambda: _drain(decoder, self.files, batch))
            return {"decoder": decoder.description, "images_per_second": len(self.files) / seconds}

    def detect(self, batches: Sequence[int], contexts: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Copy, resizing, inference and NMS of pictures that are in the host's memory."""
        with closing(Decoder(self.threads)) as decoder:
            images = _decode(decoder, list(dict.fromkeys(self.files))[:DISTINCT])
        for batch, both in itertools.product(batches, contexts):
            items = list(itertools.islice(itertools.cycle(images), len(self.files)))
            yield {"batch": batch, **self._run(items, ready, 2, batch, both)}

    def draw(self) -> dict[str, Any]:
        """Drawing and saving alone, in all threads."""
        with closing(Decoder(self.threads)) as decoder:
            images = _decode(decoder, self.files[:4])
        found = self.detector.detect_batch(images, **self.options)
        pairs = list(itertools.islice(itertools.cycle(zip(images, found)), min(len(self.files), 200)))

        def run() -> None:
            with Workers(self.threads) as workers:
                for index, (image, one) in enumerate(pairs):
                    workers.submit(self._save, index, image, one)

        boxes = [len(one) for one in found]
        return {"images_per_second": len(pairs) / _seconds(run), "boxes": boxes}

    def whole(self, name: DecoderName, batch: int, contexts: int) -> dict[str, Any]:
        """All stages at the same time."""
        with closing(self.make(name)) as decoder:
            return {
                "decoder": decoder.description,
                **self._run(
                    self.files,
                    decoder.start,
                    decoder.batches_ahead(batch),
                    batch,
                    contexts,
                    draw=self.out is not None,
                ),
            }

    def _run(
        self,
        items: Sequence[Any],
        start: Callable,
        ahead: int,
        batch: int,
        contexts: int,
        draw: bool = False,
    ) -> dict[str, Any]:
        sizes = {"batch": batch, "contexts": contexts, "ahead": ahead}
        with (
            Workers(self.threads) as workers,
            Pipeline(self.detector, self.options, start, **sizes) as pipeline,
        ):
            for _ in pipeline.run(items[: 2 * contexts * batch]):  # warm-up: contexts, graphs, memory
                pass
            pipeline.spans.clear()
            began = time.perf_counter()
            for index, done in enumerate(pipeline.run(items)):
                if done.error is not None:
                    raise UsageError(f"{done.item}: {done.error}")
                if draw:
                    workers.submit(self._save, index % DISTINCT, done.image, done.found)
            ended = time.perf_counter()
        self.spans = pipeline.spans
        waited = sum(span.decoded_s - span.began_s for span in pipeline.spans)
        return {
            "contexts": pipeline.contexts,
            "images_per_second": len(items) / (ended - began),
            "waits_for_pictures": waited / (pipeline.contexts * (ended - began)),
            "idle": idle_share(pipeline.spans, began, ended),
            "waits_for_writers_s": workers.waited_s,
            "drawn": draw,
        }

    def _save(self, index: int, image: Any, found: Any) -> None:
        save_jpeg(draw_on(image, found), self.out / f"{index}.jpg")


def idle_share(spans: Sequence[Span], began_s: float, ended_s: float) -> float:
    """Returns the share of a time in which no batch was worked on."""
    busy, reached = 0.0, began_s
    for _, _, start, end in sorted(spans, key=lambda span: span.decoded_s):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return 1 - busy / (ended_s - began_s)


def trace_events(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Returns the spans in Chrome's format of traces: a row for each thread, microseconds."""
    events = []
    for thread, *times in spans:
        for name, start, end in zip(("wait for pictures", "detect"), times, times[1:]):
            row = {"pid": 0, "tid": thread.rpartition("_")[2], "ph": "X", "name": name}
            events.append({**row, "ts": 1e6 * start, "dur": 1e6 * (end - start)})
    return events


def picture_files(folder: Path | None, scratch: Path) -> list[Path]:
    """Returns the pictures of a folder; without one, those that `make_pictures` writes into `scratch`."""
    if folder is None:
        folder = scratch / "made"
        make_pictures(folder)
    return [picture.path for picture in find_pictures([str(folder)])]


def make_pictures(folder: Path, height: int = 1080, width: int = 1920, count: int = DISTINCT) -> None:
    """Writes JPEG files: the repository's photographs, enlarged and shifted by some pixels each."""
    folder.mkdir()
    side = math.isqrt(count - 1) + 1  # shifts in each direction
    photos = []
    for path in PHOTOS:
        with Image.open(path) as photo:
            photos.append(
                photo.convert("RGB").resize((width + side, height + side), Image.Resampling.BICUBIC)
            )

    def write(index: int) -> None:
        top, left = divmod(index, side)
        picture = photos[index % len(photos)].crop((left, top, left + width, top + height))
        picture.save(folder / f"{index}.jpg", quality=90)

    with Workers() as workers:
        for index in range(count):
            workers.submit(write, index)


def _decode(decoder: Decoder, files: Sequence[Path]) -> list[Any]:
    return [future.result().image for future in decoder.start(files)]


def _drain(decoder: Decoder, files: Sequence[Path], batch: int) -> None:
    """Decodes files as the pipeline does, some batches ahead."""
    ahead: list[list] = []
    for start in range(0, len(files), batch):
        ahead.append(decoder.start(files[start : start + batch]))
        if len(ahead) > 2 * decoder.batches_ahead(batch):
            for future in ahead.pop(0):
                future.result()
    for futures in ahead:
        for future in futures:
            future.result()


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _named(stage: str, batch: int, row: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the row, and a line about it."""
    row = {"stage": stage, "batch": batch, **row}
    line = f"{stage}, batch {batch}: {row['images_per_second']:.1f} pictures/s"
    shown = ("decoder", "contexts", "waits_for_pictures", "idle", "of_network")
    return row, ", ".join([line, *(f"{name} {_text(row[name])}" for name in shown if name in row)])


def _text(value: Any) -> str:
    return f"{value:.0%}" if isinstance(value, float) else str(value)


main = partial(run_program, measure_pipeline, program="python -m benchmarks.pipeline")

if __name__ == "__main__":
    sys.exit(main())
