"""The command `codetr detect`. It imports Torch for the torch backend only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from PIL import Image

from codetr.cli.argument_types import Folder
from codetr.cli.console import print_results, print_times, progress
from codetr.cli.pictures import Picture, find_pictures, output_folder, printable
from codetr.cli.program import complain
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions
from codetr.detector.preprocess import ImageError, check_image, load_image
from codetr.draw import draw_detections
from codetr.errors import UsageError, one_line
from codetr.results import Detections, coco_document
from codetr.weights import DEMO
from trt_plugin.atomic_files import atomic_write, write_json

_PROGRAM = "codetr"
_DETECTIONS = Group("Detections", sort_key=2)
_DEFAULTS = NetworkOptions()
_DEMO_NOTE = f"model: {DEMO}, which knows twenty kinds of drawn objects; for COCO's 80 classes give --model"


def detect(
    images: Annotated[list[str], Parameter(metavar="IMAGE", negative=())],
    /,
    *,
    out: Folder = Path("out"),
    batch: Annotated[int, Parameter(metavar="N")] = 1,
    network: NetworkOptions = _DEFAULTS,
    threshold: Annotated[float, Parameter(alias="--conf", group=_DETECTIONS, metavar="S")] = 0.3,
    classes: Annotated[
        list[str] | None, Parameter(consume_multiple=True, group=_DETECTIONS, metavar="CLASS")
    ] = None,
    top: Annotated[int | None, Parameter(group=_DETECTIONS, metavar="K")] = None,
    nms: Annotated[Literal["soft", "hard", "none"] | None, Parameter(group=_DETECTIONS)] = None,
    nms_iou: Annotated[float | None, Parameter(group=_DETECTIONS, metavar="IOU")] = None,
) -> int:
    """Detect objects in pictures.

    Writes each picture with its boxes drawn, and all detections in detections.json (COCO's form).

    ```
    codetr detect scene.jpg
    codetr detect apple.jpg --model runs/fruit --conf 0.5 --classes apple pear
    codetr detect street.jpg --model co_dino_swin_l --precision fp16 --out found
    codetr detect photos/ 'more/**/*.png' --engine model.engine --batch 4 --out found
    codetr detect photo.jpg --onnx model.onnx --device cpu --out found
    ```

    Exit status: 0, all pictures are done; 1, a failure, or some of many pictures were left out;
    2, wrong options or no readable picture.

    Args:
        images: Files, folders (their pictures without subfolders) or quoted globs.
        out: Folder for the pictures and detections.json.
        batch: Pictures in one run of the network.
        threshold: Least score.
        classes: Detect only these classes, by name or by number from 0.
        top: Largest number of detections in a picture.
        nms: Non-maximum suppression. Default: as the model was published.
        nms_iou: Overlap from which boxes of a class suppress each other.
    """
    detector = Detector(backend=network.make_backend(), labels=network.labels)
    options = {"threshold": threshold, "nms": nms, "nms_iou": nms_iou, "top": top, "classes": classes}
    detector.check_options(**options, batch=batch)
    pictures = find_pictures(images)
    with output_folder(out, pictures), detector:
        run = _Run(detector, options, out, len(pictures))
        readable = [picture for picture, _ in run.read(pictures, check_image)]  # before the network is loaded
        if not readable:
            raise UsageError(f"none of the {len(pictures)} pictures could be read")
        if (network.model, network.engine, network.onnx) == (None, None, None):
            print(_DEMO_NOTE)
        detector.backend.load()
        with progress(len(readable)) as advance:
            for start in range(0, len(readable), batch):
                run.detect(readable[start : start + batch])
                advance(min(batch, len(readable) - start))
        if not run.found:
            raise UsageError(f"none of the {len(pictures)} pictures could be processed")
        info = {"description": "codetr detect", "network": detector.backend.description, **options}
        document = coco_document(run.found, detector.class_names, info)
        write_json(out / "detections.json", document)
    print_results(run.found)
    print_times(run.times_ms)
    if detector.shrunk_note is not None:
        complain("note", detector.shrunk_note, _PROGRAM)
    written = str(run.written[0]) if len(run.written) == 1 else f"{len(run.written)} pictures"
    print(printable(f"wrote {written} and {out / 'detections.json'}"))
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
    found: list[tuple[str, Detections]] = field(default_factory=list)
    times_ms: list[Mapping[str, float]] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)
    failures: int = 0

    def read(self, pictures: Sequence[Picture], reader: Callable[[Path], Any]) -> list[tuple[Picture, Any]]:
        """Returns the pictures that `reader` takes, with its results."""
        taken = []
        for picture in pictures:
            try:
                taken.append((picture, reader(picture.path)))
            except (ImageError, FileNotFoundError) as error:
                self._leave_out(error)
        return taken

    def detect(self, chunk: Sequence[Picture]) -> None:
        """Reads, detects, draws and saves the pictures of one batch."""
        started = time.perf_counter()
        loaded = self.read(chunk, load_image)
        if not loaded:
            return
        read = time.perf_counter()
        try:
            results = self.detector.detect_batch([image for _, image in loaded], **self.options)
        except ValueError as error:  # the network cannot take these sizes, such as a strip of 5000x3 pixels
            if self.total == 1:
                raise
            for picture, _ in loaded:
                self._leave_out(ImageError(f"{picture.path}: {one_line(error)}"))
            return
        detected = time.perf_counter()
        for (picture, image), found in zip(loaded, results, strict=True):
            drawn = draw_detections(image, found.boxes_xyxy_px, found.scores, found.labels, found.class_names)
            self.written.append(self.out / picture.output_name)
            with atomic_write(self.written[-1]) as temporary:
                # Chroma subsampling would smear thin coloured lines.
                Image.fromarray(drawn).save(temporary, format="JPEG", quality=92, subsampling=0)
            self.found.append((picture.name, found))
        share = 1000.0 / len(loaded)
        outer = {"read": (read - started) * share, "draw": (time.perf_counter() - detected) * share}
        self.times_ms.append({**outer, **results[0].times_ms})

    def _leave_out(self, error: Exception) -> None:
        """Warns of a picture that cannot be processed; raises if it is the only one."""
        if self.total == 1:
            raise UsageError(one_line(error)) from error
        complain("warning", f"{one_line(error)}; left out", _PROGRAM)
        self.failures += 1
