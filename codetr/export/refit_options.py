"""The options and the check that the refit commands of both paths share. Imports no Torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from codetr.cli.argument_types import InputFile, Parameter
from codetr.errors import UsageError
from trt_plugin import ArtifactMetadata


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Options of a refit from a checkpoint."""

    model: Annotated[str | None, Parameter(metavar="NAME|RUN|JSON")] = None
    """With a checkpoint: its configuration. Default: the one that the metadata names."""
    photo: InputFile | None = None
    """With a checkpoint: photo for the comparison. Default: one in the repository."""
    keep_unequal: bool = False
    """With a checkpoint: keep an engine whose detections differ from PyTorch's."""


def refittable_metadata(engine: Path) -> ArtifactMetadata:
    """Reads the metadata beside an engine.

    Raises:
        UsageError: the engine was not built with --refittable.
        trt_plugin.EngineError: the metadata cannot be read.
    """
    metadata = ArtifactMetadata.load(engine.with_suffix(".json"))
    if not metadata.refittable:
        raise UsageError(f"ENGINE: expected an engine of --refittable, got {engine}, which is not")
    return metadata
