"""The command `codetr evaluate`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from codetr.cli.command import UsageError, check_writable, one_line
from codetr.cli.console import progress
from codetr.cli.network_options import check_network, make_detector, tell_shrunk_images
from codetr.dataset.bad_pictures import LeftOut
from codetr.dataset.coco_files import DatasetError, load_coco
from codetr.evaluation.metrics import Metrics, Rows, coco_metrics, require_pycocotools
from codetr.evaluation.run import Run, detect_all
from trt_plugin.atomic_files import atomic_write

_PACKAGES = ("codetr-tensorrt", "torch", "tensorrt", "onnxruntime", "onnxruntime-gpu", "pycocotools", "numpy")


def run_evaluate(options: argparse.Namespace) -> int:
    """Runs the command with what `add_evaluate`'s parser returned; returns the exit status.

    Raises:
        UsageError: wrong arguments, or data that cannot be used.
    """
    check_network(options)
    require_pycocotools()
    if options.out is not None:
        for name in ("metrics.json", "detections.json"):
            check_writable("--out", options.out / name)
    try:
        dataset = load_coco(
            options.data, options.split, annotations=options.annotations, images=options.images
        )
        left_out = LeftOut(
            dataclasses.replace(dataset, pictures=dataset.pictures[: options.limit]), strict=options.strict
        )
        left_out.tell_supercategories()
        left_out.check()
        dataset = left_out.usable()
        count = len(dataset)
        with make_detector(options) as detector:
            network = detector.backend.description
            print(f"{count} pictures of {dataset.annotation_file}; {network}", flush=True)
            with progress(count) as advance:
                run = detect_all(
                    detector,
                    dataset,
                    batch=options.batch,
                    top=options.top,
                    nms=options.nms,
                    nms_iou=options.nms_iou,
                    advance=advance,
                    left_out=left_out,
                )
    except DatasetError as error:
        raise UsageError(one_line(error)) from error
    if not run.pictures:
        raise UsageError(f"{dataset.annotation_file}: none of the pictures could be read")
    metrics = coco_metrics(dataset, run.rows, run.pictures)
    _print(metrics, run, options.per_class)
    tell_shrunk_images(detector, "codetr")
    if left_out.errors:
        print(f"{left_out.words} left out")
    if options.out is not None:
        write_results(options.out, report(options, left_out, network, metrics, run), run.rows)
        print(f"wrote metrics.json and detections.json in {options.out}")
    return 0


def report(
    options: argparse.Namespace, left_out: LeftOut, network: str, metrics: Metrics, run: Run
) -> dict[str, Any]:
    """The content of metrics.json."""
    numbers = metrics.as_dict()
    per_class = numbers.pop("per_class")
    given = {name: value for name, value in vars(options).items() if name != "run"}
    return {
        "metrics": numbers,
        "network": network,
        "annotation_file": str(left_out.dataset.annotation_file),
        "pictures_left_out": len(left_out.errors),
        "pictures_per_s": round(run.pictures_per_s, 3),
        "times_ms": {stage: round(time, 3) for stage, time in run.times_ms.items()},
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in given.items()},
        "versions": _versions(),
        "per_class": per_class,
    }


def write_results(folder: Path, content: dict[str, Any], rows: Rows) -> None:
    """Writes metrics.json and detections.json, both whole or not at all."""
    with atomic_write(folder / "detections.json") as temporary:
        lines = ",\n".join(json.dumps(row) for row in rows)
        temporary.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    with atomic_write(folder / "metrics.json") as temporary:
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    """Versions of the packages that are installed."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


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
    """Three digits, or a dash where there was nothing to find."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for name, *numbers in rows:
        cells = [name.ljust(widths[0])]
        cells += [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        print("  ".join(cells))
