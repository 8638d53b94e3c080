"""The command `codetr detect`. It imports Torch for the torch backend only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from codetr.cli.argument_types import Folder, Parameter
from codetr.cli.console import print_results, print_times, progress
from codetr.cli.detect_video import detect_video
from codetr.cli.detection_options import DetectionOptions
from codetr.cli.pictures import Picture, draw_on, find_pictures, output_folder, printable, save_jpeg
from codetr.cli.pictures import save_crops as write_crops
from codetr.cli.program import complain
from codetr.detector.decoding import make_decoder
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions
from codetr.detector.pipeline import CONTEXTS, Pipeline, Processed, Workers
from codetr.detector.preprocess import ImageError, check_image
from codetr.detector.video import is_video
from codetr.errors import ArgumentError, UsageError, one_line
from codetr.results import Detections, coco_document
from codetr.weights import DEMO
from trt_plugin.atomic_files import write_json

_PROGRAM = "codetr"
_NETWORK, _DETECTIONS = NetworkOptions(), DetectionOptions()
_DEMO_NOTE = f"model: {DEMO}, which knows twenty kinds of drawn objects; for COCO's 80 classes give --model"


def detect(
    images: Annotated[list[str], Parameter(metavar="IMAGE", negative=())],
    /,
    *,
    out: Folder = Path("out"),
    batch: Annotated[int, Parameter(metavar="N")] = 1,
    network: NetworkOptions = _NETWORK,
    detections: DetectionOptions = _DETECTIONS,
    no_pictures: bool = False,
    save_crops: bool = False,
    every: Annotated[int, Parameter(metavar="N")] = 1,
) -> int:
    """Detect objects in pictures or in a video.

    Writes each picture with its boxes drawn, and all detections in detections.json (COCO's form). Of a video,
    writes an annotated MP4 file, and a line of JSON for each frame.

    ```
    codetr detect scene.jpg
    codetr detect apple.jpg --model runs/fruit --conf 0.5 --classes apple pear
    codetr detect street.jpg --model co_dino_swin_l --precision fp16 --out found
    codetr detect photos/ 'more/**/*.png' --engine model.engine --batch 4 --out found
    codetr detect photo.jpg --onnx model.onnx --device cpu --out found
    codetr detect clip.mp4 --every 5 --classes person,car --save-crops --out found
    codetr detect rtsp://camera/stream --engine model.engine --out found
    ```

    Exit status: 0, all pictures are done; 1, a failure, or some of many pictures were left out;
    2, wrong options or no readable picture.

    Args:
        images: Files, folders (their pictures without subfolders) or quoted globs. Or one video: a file, a
            URL such as rtsp://…, or the number of a camera.
        out: Folder for the results.
        batch: Pictures or frames in one run of the network.
        no_pictures: Draw no boxes: write the detections alone.
        save_crops: Also write the pixels of each box to the folder crops, by class.
        every: Of a video, every such frame.
    """
    detector = Detector(backend=network.make_backend(), labels=network.labels)
    options = detections.for_detector(detector, batch)
    if every < 1:
        raise ArgumentError("every", f"expected at least 1, got {every}")
    if videos := [source for source in images if is_video(source)]:
        if len(images) > 1:
            raise UsageError(f"IMAGE: expected one video, or pictures, got {videos[0]} and others")
        _note_demo(network)
        outputs = {"draw": not no_pictures, "crops": save_crops}
        return detect_video(detector, images[0], out, options, batch=batch, every=every, **outputs)
    if every > 1:
        raise ArgumentError("every", f"expected a video, got {images[0] if images else 'nothing'}")
    pictures = find_pictures(images)
    with output_folder(out, pictures), detector:
        run = _Run(detector, options, out, len(pictures), draw=not no_pictures, crops=save_crops)
        readable = list(filter(run.is_readable, pictures))  # before the network is loaded
        if not readable:
            raise UsageError(f"none of the {len(pictures)} pictures could be read")
        _note_demo(network)
        detector.backend.load()
        run.detect(readable, batch)
        if not run.found:
            raise UsageError(f"none of the {len(pictures)} pictures could be processed")
        info = {"description": "codetr detect", "network": detector.backend.description, **options}
        document = coco_document(run.found, detector.class_names, info)
        write_json(out / "detections.json", document)
    print_results(run.found)
    print_times(run.times_ms)
    if len(run.found) > 1:
        rate = len(readable) / run.seconds
        print(f"{len(readable)} pictures in {run.seconds:.1f} s, {rate:.1f} a second")
    if detector.shrunk_note is not None:
        complain("note", detector.shrunk_note, _PROGRAM)
    files = [*map(str, run.written)] if len(run.written) < 2 else [f"{len(run.written)} pictures"]
    print(printable(f"wrote {' and '.join([*files, str(out / 'detections.json')])}"))
    if not run.failures:
        return 0
    left_out = f"{run.failures} of {len(pictures)} pictures could not be processed"
    complain("error", f"{left_out}, see the warnings above", _PROGRAM)
    return 1


@dataclass
class _Run:
    """The pictures done so far."""

    detector: Detector
    options: Mapping[str, Any]
    out: Path
    total: int
    draw: bool
    crops: bool
    found: list[tuple[str, Detections]] = field(default_factory=list)
    times_ms: list[dict[str, float]] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)
    failures: int = 0
    seconds: float = 0.0

    def is_readable(self, picture: Picture) -> bool:
        """Reads the header of a picture."""
        try:
            check_image(picture.path)
        except (ImageError, FileNotFoundError) as error:
            self._leave_out(error)
            return False
        return True

    def detect(self, pictures: Sequence[Picture], batch: int) -> None:
        """Reads, detects, draws and saves pictures; these stages overlap."""
        started = time.perf_counter()
        contexts = min(CONTEXTS, -(-len(pictures) // batch))
        with (
            progress(len(pictures)) as advance,
            closing(make_decoder(self.detector.backend)) as decoder,
            Workers() as workers,
            Pipeline(
                self.detector,
                self.options,
                lambda chunk: decoder.start([picture.path for picture in chunk]),
                batch=batch,
                contexts=contexts,
                ahead=decoder.batches_ahead(batch),
            ) as pipeline,
        ):
            for done in pipeline.run(pictures):
                advance(1)
                if done.error is None:
                    self._keep(done, workers)
                elif self.total == 1 and done.image is not None:
                    raise done.error  # the network cannot take this size, such as a strip of 5000x3 pixels
                else:
                    self._leave_out(done.error if done.image is None else _named(done))
        self.seconds = time.perf_counter() - started

    def _keep(self, done: Processed, workers: Workers) -> None:
        times = dict(done.times_ms)
        self.found.append((done.item.name, done.found))
        self.times_ms.append(times)
        if self.crops:
            stem = Path(done.item.output_name).stem
            workers.submit(write_crops, done.image, done.found, self.out / "crops", stem)
        if self.draw:
            self.written.append(self.out / done.item.output_name)
            workers.submit(_draw_and_save, done, self.written[-1], times)

    def _leave_out(self, error: Exception) -> None:
        """Warns of a picture that cannot be processed; raises if it is the only one."""
        if self.total == 1:
            raise UsageError(one_line(error)) from error
        complain("warning", f"{one_line(error)}; left out", _PROGRAM)
        self.failures += 1


def _note_demo(network: NetworkOptions) -> None:
    if (network.model, network.engine, network.onnx) == (None, None, None):
        print(_DEMO_NOTE)


def _named(done: Processed) -> ImageError:
    return ImageError(f"{done.item.path}: {one_line(done.error)}")


def _draw_and_save(done: Processed, path: Path, times_ms: dict[str, float]) -> None:
    """Writes the annotated picture, and sets the time that it took."""
    started = time.perf_counter()
    save_jpeg(draw_on(done.image, done.found), path)
    times_ms["draw"] = 1000 * (time.perf_counter() - started)
