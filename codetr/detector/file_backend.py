"""Base of the backends that run exported files: the metadata beside a file has sizes, classes and NMS."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from codetr.detector.preprocess import Preprocessor
from codetr.detector.sizes import ChosenSize, InputSizes
from codetr.errors import ArgumentError
from trt_plugin.engine_error import EngineError
from trt_plugin.metadata import ArtifactMetadata


class FileBackend:
    """A `codetr.detector.backend.Backend` of an exported file. The constructor reads the file's metadata
    only.

    Args:
        file: path of the file; its metadata <stem>.json lies beside it.
        device: see `codetr.Detector`.
        size: input size, for a file with dynamic sizes only.

    Raises:
        ArgumentError: the file or its metadata is missing or unusable, or the file cannot take the size.
    """

    argument: ClassVar[str]
    """Argument of `codetr.Detector` that names the file."""
    kind: ClassVar[str]
    """The file in words."""

    def __init__(self, file: str | Path, device: str = "auto", size: ChosenSize | None = None) -> None:
        self.file = Path(file)
        if not self.file.is_file():
            found = "is a folder" if self.file.is_dir() else "no such file"
            raise ArgumentError(self.argument, f"expected an {self.kind}, got {str(file)!r}, {found}")
        self.metadata_file = self.file.with_suffix(".json")
        if not self.metadata_file.is_file():
            problem = f"{self.metadata_file}: expected the metadata, got no such file"
            raise ArgumentError(self.argument, problem)
        try:
            self.metadata = ArtifactMetadata.load(self.metadata_file)
            sizes = InputSizes.of_artifact(self.metadata)
        except (EngineError, ValueError) as error:
            raise ArgumentError(self.argument, str(error)) from error
        self.device = device
        self.preprocessor = Preprocessor.of_artifact(self.metadata, size, f"{self.kind} {file}")
        self.batch = sizes.batch if sizes.batch.dynamic else sizes.batch.opt
        self.class_names = tuple(self.metadata.class_names)
        self.nms = None if self.metadata.nms_in_graph else dict(self.metadata.nms)
