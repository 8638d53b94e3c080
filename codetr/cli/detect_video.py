"""`codetr detect` for a video: an annotated video, and its detections as JSON lines."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from codetr.cli.console import print_times, progress
from codetr.cli.pictures import draw_on, output_folder, printable, save_crops
from codetr.cli.program import complain
from codetr.detector.decoding import ready
from codetr.detector.detector import Detector
from codetr.detector.pipeline import Pipeline, Processed, Workers
from codetr.detector.video import Frame, VideoReader, VideoWriter
from codetr.errors import ArgumentError
from trt_plugin.atomic_files import atomic_write


def detect_video(
    detector: Detector,
    source: str,
    out: Path,
    options: Mapping[str, Any],
    *,
    batch: int,
    every: int,
    draw: bool,
    crops: bool,
) -> int:
    """Detects objects in a video; returns the exit status.

    Writes <name>.jsonl, and <name>.mp4 if wanted. Files appear whole at the end, but the lines of a stream at
    once. A stream goes on until it ends or the user interrupts, which is no error.

    Args:
        detector: its network is not loaded yet.
        source: see `VideoReader`.
        options: arguments of `Detector.detect_batch`, checked.
        every: detect in every such frame; the other frames are in no output.
        crops: write the pixels of each detection to the folder crops.
    """
    name = output_stem(source)
    video, lines = out / f"{name}.mp4", out / f"{name}.jsonl"
    if any(path.exists() and Path(source).exists() and path.samefile(source) for path in (video, lines)):
        raise ArgumentError("out", f"expected another folder, {source} would be replaced")
    with output_folder(out), VideoReader(source, every) as reader, detector, ExitStack() as files:
        detector.backend.load()
        writer = None
        path = lines if reader.live else files.enter_context(atomic_write(lines))
        text = files.enter_context(open(path, "w", encoding="utf-8", buffering=1 if reader.live else -1))
        if draw:
            writer = VideoWriter(files.enter_context(atomic_write(video)), reader.rate / every)
            files.callback(writer.close)
        run = _Run(writer, text, out / "crops" / name if crops else None)
        with (
            progress(-(-reader.frames // every) if reader.frames else 0) as advance,
            Workers() as workers,
            Pipeline(
                detector,
                options,
                lambda chunk: ready([frame.image for frame in chunk]),
                batch=batch,
                ahead=0 if reader.live else 2,  # a frame of a stream should not wait
            ) as pipeline,
        ):
            try:
                for done in pipeline.run(reader):
                    if done.error is not None:
                        raise done.error
                    run.add(done, workers)
                    advance(1)
            except KeyboardInterrupt:
                if not reader.live:
                    raise
            run.finish()
    run.print(reader)
    if detector.shrunk_note is not None:
        complain("note", detector.shrunk_note, "codetr")
    written = [video] if draw else []
    print(printable(f"wrote {' and '.join(map(str, [*written, lines]))}"))
    return 0


def output_stem(source: str) -> str:
    """Returns the name of a source's outputs: a file's stem, the last part of a URL, or camera_0."""
    if source.isdecimal() and not Path(source).exists():
        return f"camera_{source}"
    stem = Path(re.sub(r"^[a-z0-9+.-]+://[^/]*|[?#].*$", "", source) if "://" in source else source).stem
    return re.sub(r"[^\w.-]", "_", stem) or "stream"


class _Run:
    """The frames done so far. Frames are drawn in threads, and encoded in order."""

    def __init__(self, writer: VideoWriter | None, lines: IO[str], crops: Path | None) -> None:
        self._writer, self._lines, self._crops = writer, lines, crops
        self._drawn: deque[tuple[Frame, Future]] = deque()
        self._times_ms: list[dict[str, float]] = []
        self._counts: Counter[str] = Counter()
        self._started = time.perf_counter()

    def add(self, done: Processed, workers: Workers) -> None:
        """Writes the line of a frame, begins to draw it, and encodes those before it that are drawn."""
        frame: Frame = done.item
        row = {"frame": frame.index, "time_s": round(frame.time_s, 4), "detections": done.found.as_dicts()}
        self._lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._counts.update(done.found.names())
        times = dict(done.times_ms)
        del times["read"]  # the reader's thread decodes
        self._times_ms.append(times)
        if self._crops is not None:
            workers.submit(save_crops, frame.image, done.found, self._crops, f"{frame.index:06d}")
        if self._writer is not None:
            self._drawn.append((frame, workers.submit(_draw, done, times)))
            while self._drawn and self._drawn[0][1].done():
                self._encode()

    def finish(self) -> None:
        """Encodes the remaining frames."""
        while self._drawn:
            self._encode()

    def _encode(self) -> None:
        frame, drawn = self._drawn.popleft()
        self._writer.write(drawn.result(), frame.time_s)

    def print(self, reader: VideoReader) -> None:
        """Prints counts, times and notes."""
        frames, seconds = len(self._times_ms), time.perf_counter() - self._started
        counts = ", ".join(f"{count} {name}" for name, count in self._counts.most_common())
        print(f"{frames} frames, {self._counts.total()} detections{f': {counts}' if counts else ''}")
        if frames:
            print_times(self._times_ms)
            print(f"{frames} frames in {seconds:.1f} s, {frames / seconds:.1f} a second")
        if reader.dropped:
            complain("note", f"{reader.dropped} frames came too fast and were dropped", "codetr")
        if reader.broken:
            complain("warning", reader.broken, "codetr")
        if reader.damaged:
            complain("warning", f"{reader.damaged} packets of {reader.source} are damaged", "codetr")


def _draw(done: Processed, times_ms: dict[str, float]) -> np.ndarray:
    started = time.perf_counter()
    pixels = draw_on(done.image, done.found)
    times_ms["draw"] = 1000 * (time.perf_counter() - started)
    return pixels
