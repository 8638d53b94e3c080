"""Average precision of a detector on data in COCO's format, by pycocotools.

    dataset = codetr.dataset.coco_files.load_coco("coco", "val")
    with codetr.Detector("co_dino_swin_l", device="cuda", precision="fp16") as detector:
        print(evaluate(detector, dataset, batch=4).ap)

Importing the package imports neither Torch nor pycocotools.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codetr.evaluation.live import LiveModel
    from codetr.evaluation.metrics import ClassMetrics, Metrics, coco_metrics
    from codetr.evaluation.run import Run, detect_all, evaluate

_MODULES = {
    "ClassMetrics": "metrics",
    "LiveModel": "live",
    "Metrics": "metrics",
    "Run": "run",
    "coco_metrics": "metrics",
    "detect_all": "run",
    "evaluate": "run",
}

__all__ = [
    "ClassMetrics",
    "LiveModel",
    "Metrics",
    "Run",
    "coco_metrics",
    "detect_all",
    "evaluate",
]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
