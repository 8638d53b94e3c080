"""The arguments of `codetr evaluate`. No Torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from codetr.cli.command import positive, to_path
from codetr.cli.network_options import add_network_arguments, add_nms_arguments
from codetr.dataset.coco_files import LAYOUTS
from codetr.evaluation.metrics import MAX_DETECTIONS


def add_evaluate(commands: Any, run: Callable[[argparse.Namespace], int]) -> None:
    """Adds the command to a parser's commands; `run` is what does it."""
    evaluate = commands.add_parser(
        "evaluate",
        help="average precision on data in COCO's format",
        description="Detects in all pictures of a data set and computes COCO's average precision (AP) and "
        "recall (AR), with pycocotools.",
        epilog=f"""examples:
  codetr evaluate --data coco --model co_dino_swin_l --precision fp16 --batch 4
  codetr evaluate --data scenes --engine model.engine --per-class --out results

{LAYOUTS}
The model's classes are those of the data with the same names.

Pictures that are missing, damaged, or of another size than the annotation file says are named, counted and
left out of pictures and objects.

exit status: 0 done; 1 a failure; 2 wrong arguments or data""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    evaluate.set_defaults(run=run)
    group = evaluate.add_argument_group("data")
    add = group.add_argument
    add("--data", type=to_path, required=True, metavar="DIR", help="folder of the data set, see below")
    add("--split", default="val", metavar="NAME", help="train, val, val2017, …; default: val")
    add("--annotations", type=to_path, metavar="FILE", help="annotation file, if not the split's")
    add("--images", type=to_path, metavar="DIR", help="folder of the pictures, if not the split's")
    add("--limit", type=positive, metavar="N", help="only the first N pictures")
    add("--strict", action="store_true", help="end with status 2 where a picture cannot be used")
    add_network_arguments(evaluate)
    group = evaluate.add_argument_group("detections and results")
    add_nms_arguments(group)
    add = group.add_argument
    add(
        "--top",
        type=positive,
        default=MAX_DETECTIONS,
        metavar="K",
        help=f"the best K detections of a picture count; default: {MAX_DETECTIONS}, COCO's rule",
    )
    add("--per-class", action="store_true", help="also print a table of the classes")
    add(
        "--out",
        type=to_path,
        metavar="DIR",
        help="folder for metrics.json and detections.json (COCO's result form); made if missing",
    )
