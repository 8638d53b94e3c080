"""Runs a TensorRT engine through `trt_plugin`. Imports no Torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from codetr.detector.backend import split_device
from codetr.detector.file_backend import FileBackend


class TensorRTBackend(FileBackend):
    """Runs an engine on a GPU. Arguments and errors as `FileBackend`."""

    argument, kind = "engine", "engine"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._index = split_device(self.device, cpu=False)[1] or 0
        self._runner: Any = None
        self.description = (
            f"{self.metadata.model}, TensorRT {self.metadata.tensorrt_version}, {self.metadata.gpu}, "
            f"{self.metadata.precision}"
        )

    def load(self) -> TensorRTBackend:
        """Loads the engine; returns the backend.

        Raises:
            RuntimeError: the engine cannot run here, or the metadata are another engine's.
        """
        import trt_plugin

        self._runner = trt_plugin.EngineRunner(self.file, device=self._index)
        try:
            runner = self._runner
            self.metadata.check_engine(self.metadata_file, runner.inputs, runner.outputs, runner.profiles)
        except Exception:
            self.close()
            raise
        return self

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the engine, see `codetr.detector.backend.Backend`."""
        outputs = self._runner({"images": images, "image_shapes": image_shapes})
        return outputs["boxes"], outputs["scores"], outputs["labels"]

    def close(self) -> None:
        """Frees the engine."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
