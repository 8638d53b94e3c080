"""Runs a TensorRT engine through `trt_plugin`. Imports no Torch."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from codetr.detector.backend import split_device
from codetr.detector.file_backend import FileBackend
from trt_plugin.engine_error import EngineError

_log = logging.getLogger(__name__)


class TensorRTBackend(FileBackend):
    """Runs an engine on a GPU. Arguments and errors as `FileBackend`."""

    argument, kind = "engine", "engine"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.device_index = split_device(self.device, cpu=False)[1] or 0
        self._runner: Any = None
        self._writer: Any = None
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

        self._runner = trt_plugin.EngineRunner(self.file, device=self.device_index)
        try:
            runner = self._runner
            self.metadata.check_engine(self.metadata_file, runner.inputs, runner.outputs, runner.profiles)
            self._writer = self._make_writer()
        except Exception:
            self.close()
            raise
        return self

    def fork(self) -> TensorRTBackend:
        """Makes a backend of the same engine for another thread, with contexts of its own. Closed alone."""
        other = copy.copy(self)
        other._runner = self._runner.fork()
        other._writer = self._make_writer()
        return other

    @property
    def takes_images(self) -> bool:
        """Whether `run_images` can run: the plugin library has the kernel for the engine's input."""
        return self._writer is not None

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the engine, see `codetr.detector.backend.Backend`."""
        outputs = self._runner({"images": images, "image_shapes": image_shapes})
        return outputs["boxes"], outputs["scores"], outputs["labels"]

    def run_images(
        self, images: Sequence[Any], image_shapes: np.ndarray, padded: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the engine on pictures, which the GPU resizes, normalises and pads.

        Args:
            images: uint8 [H_i, W_i, 3], RGB, or `trt_plugin.image_input.DeviceImage`.
            image_shapes: [N, 2], (h, w) of each resized image.
            padded: (H, W) of the network's input.
        """
        inputs = {
            "images": self._writer.input(images, image_shapes, padded),
            "image_shapes": image_shapes,
        }
        outputs = self._runner(inputs)
        return outputs["boxes"], outputs["scores"], outputs["labels"]

    def time(self, inputs: Mapping[str, np.ndarray]) -> list[float]:
        """Measures the engine's GPU time in milliseconds, see `trt_plugin.EngineRunner.time`."""
        return self._runner.time(inputs)

    def _make_writer(self) -> Any:
        from trt_plugin import image_input

        if self._runner.inputs["images"].dtype not in image_input.TYPES:
            return None
        try:
            return image_input.ImageWriter(self.preprocessor.mean, self.preprocessor.std)
        except EngineError as error:
            _log.info("the CPU resizes pictures: %s", error)
            return None

    def close(self) -> None:
        """Frees the engine."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._runner is not None:
            self._runner.close()
            self._runner = None
