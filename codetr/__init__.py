"""Co-DETR (Co-DINO, arXiv 2211.12860): the detector.

Importing the package imports no Torch. Each name below is imported on first use, so that an engine runs on a
machine without Torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codetr.checkpoint import LoadReport, load_checkpoint, seeded_state_dict
    from codetr.config import Config, load_config
    from codetr.detector.detector import Detections, Detector
    from codetr.detector.postprocess import apply_nms
    from codetr.model import CoDino

try:
    __version__ = version("codetr-tensorrt")
except PackageNotFoundError:
    __version__ = "unknown"

_NAMES = {
    "codetr.checkpoint": ("LoadReport", "load_checkpoint", "seeded_state_dict"),
    "codetr.config": ("Config", "load_config"),
    "codetr.detector.detector": ("Detections", "Detector"),
    "codetr.detector.postprocess": ("apply_nms",),
    "codetr.model": ("CoDino",),
}

__all__ = [
    "CoDino",
    "Config",
    "Detections",
    "Detector",
    "LoadReport",
    "__version__",
    "apply_nms",
    "load_checkpoint",
    "load_config",
    "seeded_state_dict",
]


def __getattr__(name: str):
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
