"""The command `codetr evaluate`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, types

from codetr.cli.argument_types import Folder, InputFile, InputFolder, Parameter
from codetr.cli.console import progress
from codetr.cli.pictures import output_folder
from codetr.cli.program import complain
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions
from codetr.errors import UsageError
from trt_plugin.atomic_files import atomic_write, write_json

if TYPE_CHECKING:
    from codetr.evaluation import Metrics, Run

_DATASET = Group("Dataset", sort_key=0)
_RESULTS = Group("Detections and results", sort_key=2)
_PACKAGES = ("codetr-tensorrt", "torch", "tensorrt", "onnxruntime", "onnxruntime-gpu", "pycocotools", "numpy")


@Parameter(name="*", group=_DATASET)
@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """The dataset to evaluate on."""

    data: InputFolder
    """Folder of the dataset, see above."""
    split: str = "val"
    """Split: train, val, val2017, …"""
    annotations: Annotated[InputFile | None, Parameter(metavar="FILE")] = None
    """Annotation file. Default: the split's."""
    images: InputFolder | None = None
    """Folder of the pictures. Default: the split's."""
    limit: types.PositiveInt | None = None
    """Use only this number of pictures, the first ones."""
    strict: bool = False
    """Exit with status 2 if a picture cannot be used."""


@Parameter(name="*", group=_RESULTS)
@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Detections that count, and files for the results."""

    batch: Annotated[types.PositiveInt, Parameter(metavar="N")] = 1
    """Pictures in one run of the network."""
    nms: Literal["soft", "hard", "none"] | None = None
    """Non-maximum suppression. Default: as the model was published."""
    nms_iou: Annotated[types.NormFloat | None, Parameter(metavar="IOU")] = None
    """Overlap from which boxes of a class suppress each other."""
    top: types.PositiveInt = 100
    """Number of detections of a picture that count, the best. COCO's rule is 100."""
    per_class: bool = False
    """Also print a table of the classes."""
    out: Folder | None = None
    """Folder for metrics.json and detections.json (COCO's result format)."""


def evaluate(
    *,
    dataset: DatasetOptions,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008
    results: ResultOptions = ResultOptions(),  # noqa: B008
) -> int:
    """Compute COCO's average precision (AP) and recall (AR) on a dataset, with pycocotools.

    ```
    codetr evaluate --data coco --model co_dino_swin_l --precision fp16 --batch 4
    codetr evaluate --data scenes --engine model.engine --per-class --out results
    ```

    The folder --data has one of the layouts that `codetr train --help` lists. The classes of the model are
    those of the dataset with the same names. Pictures that are missing, damaged, of another size than the
    annotation file states, or that the network cannot take are named and left out, with their objects.

    Exit status: 0, done; 1, a failure; 2, wrong options or dataset.
    """
    from codetr.dataset.bad_pictures import BadPictures
    from codetr.dataset.coco_files import load_coco
    from codetr.evaluation import coco_metrics, detect_all
    from codetr.evaluation.detect_dataset import categories_of_labels

    detector = Detector(backend=network.make_backend(), labels=network.labels)
    detector.check_options(nms=results.nms, nms_iou=results.nms_iou, batch=results.batch)
    data = load_coco(dataset.data, dataset.split, annotations=dataset.annotations, images=dataset.images)
    categories_of_labels(detector.class_names, data)  # lacking classes are an error before a download
    bad = BadPictures(
        dataclasses.replace(data, pictures=data.pictures[: dataset.limit]), strict=dataset.strict
    )
    bad.check()
    data = bad.usable()
    with nullcontext() if results.out is None else output_folder(results.out), detector:
        detector.backend.load()
        description = detector.backend.description
        print(f"{len(data)} pictures of {data.annotation_file}; {description}", flush=True)
        with progress(len(data)) as advance:
            run = detect_all(
                detector,
                data,
                batch=results.batch,
                top=results.top,
                nms=results.nms,
                nms_iou=results.nms_iou,
                advance=advance,
                bad_pictures=bad,
            )
        if not run.pictures:
            raise UsageError(f"{data.annotation_file}: none of the pictures could be used")
        metrics = coco_metrics(data, run.rows, run.pictures)
        _print(metrics, run, results.per_class)
        if detector.shrunk_note is not None:
            complain("note", detector.shrunk_note, "codetr")
        if bad.errors:
            print(f"{bad} left out")
        if results.out is not None:
            installed = {item.name: item.version for item in metadata.distributions()}
            options = {
                name: str(value) if isinstance(value, Path) else value
                for group in (dataset, network, results)
                for name, value in vars(group).items()
            }
            numbers = metrics.as_dict()
            per_class = numbers.pop("per_class")
            content = {
                "metrics": numbers,
                "network": description,
                "annotation_file": str(data.annotation_file),
                "pictures_left_out": len(bad.errors),
                "options": options,
                "pictures_per_s": round(run.pictures_per_s, 3),
                "times_ms": {stage: round(time, 3) for stage, time in run.times_ms.items()},
                "versions": {name: installed[name] for name in _PACKAGES if name in installed},
                "per_class": per_class,
            }
            with atomic_write(results.out / "detections.json") as temporary:
                lines = ",\n".join(json.dumps(row) for row in run.rows)
                temporary.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
            write_json(results.out / "metrics.json", content, allow_nan=False)
            print(f"wrote metrics.json and detections.json in {results.out}")
    return 0


def _print(metrics: Metrics, run: Run, per_class: bool) -> None:
    if per_class:
        rows = [
            (item.name, str(item.objects), *map(_number, (item.ap, item.ap50, item.ap75)))
            for item in metrics.per_class
        ]
        _print_table([("class", "objects", "AP", "AP50", "AP75"), *rows])
    groups = (
        (("AP", "ap"), ("AP50", "ap50"), ("AP75", "ap75")),
        (("small", "ap_small"), ("medium", "ap_medium"), ("large", "ap_large")),
        (("AR1", "ar1"), ("AR10", "ar10"), ("AR100", "ar100")),
    )
    lines = ["  ".join(f"{head} {_number(getattr(metrics, name))}" for head, name in row) for row in groups]
    print(" | ".join(lines))
    stages = ", ".join(f"{stage} {time:.1f}" for stage, time in run.times_ms.items())
    print(
        f"{metrics.objects} objects in {metrics.pictures} pictures; {run.pictures_per_s:.1f} pictures/s"
        + (f"; ms per picture: {stages}" if stages else "")
    )


def _number(value: float) -> str:
    """Formats three digits, or a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for name, *numbers in rows:
        cells = [name.ljust(widths[0])]
        cells += [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        print("  ".join(cells))
