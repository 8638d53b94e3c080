"""What the two refit commands check alike.

The commands (`onnx_path.refit`, `dynamo_path.refit`) never import each other, so this lies below both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from codetr.cli.command import UsageError, check_writable

if TYPE_CHECKING:
    from trt_plugin import ArtifactMetadata


def check_new_engine(out: Path) -> None:
    """Raises UsageError if no engine can be written there."""
    check_writable("--out", out)
    if out.suffix == ".json":
        raise UsageError(f"--out {out}: expected the name of an engine; its metadata ends in .json")


def require_refittable(engine: Path, metadata: ArtifactMetadata) -> None:
    """Raises UsageError if an engine's weights cannot be exchanged, as its metadata says."""
    if not metadata.refittable:
        beside = engine.with_suffix(".json").name
        raise UsageError(
            f"ENGINE {engine}: was built without --refittable, as {beside} says: its weights cannot be "
            "exchanged"
        )
