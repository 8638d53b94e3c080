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

_MODULES = {
    "CoDino": "codetr.model",
    "Config": "codetr.config",
    "Detections": "codetr.detector.detector",
    "Detector": "codetr.detector.detector",
    "LoadReport": "codetr.checkpoint",
    "apply_nms": "codetr.detector.postprocess",
    "load_checkpoint": "codetr.checkpoint",
    "load_config": "codetr.config",
    "seeded_state_dict": "codetr.checkpoint",
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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
