"""Export requests for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from codetr.export.request import ExportRequest


def make_request(**options: Any) -> ExportRequest:
    """Makes a request for Co-DINO R50 with other options than the defaults."""
    return ExportRequest(**{"model": "co_dino_r50", "out": Path("out"), **options})
