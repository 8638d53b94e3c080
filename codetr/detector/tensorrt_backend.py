"""Runs a TensorRT engine through `trt_plugin`, without Torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from codetr.detector.preprocess import Preprocessor
from codetr.detector.sizes import InputSizes


class TensorRTBackend:
    """Runs an engine through `trt_plugin`, without Torch. What else it needs is in the metadata beside it.

    Args:
        engine: path of the engine; <stem>.json lies beside it.
        device: "auto", "cuda" or "cuda:i".
        max_size, height, width: as `codetr.Detector` has them; for a file with dynamic sizes only.
    """

    def __init__(
        self,
        engine: str | Path,
        device: str = "auto",
        max_size: int | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> None:
        engine = Path(engine)
        metadata_path = engine.with_suffix(".json")
        if not engine.is_file():
            raise FileNotFoundError(f"{engine}: no such file")
        if not metadata_path.is_file():
            raise FileNotFoundError(f"{metadata_path}: no such file; an engine's metadata lies beside it")
        kind, _, index = "cuda".partition(":") if device == "auto" else device.partition(":")
        if kind != "cuda" or not (index == "" or index.isdecimal()):
            raise ValueError(f"device: an engine runs on auto, cuda or cuda:<number>, got {device!r}")
        import trt_plugin

        metadata = trt_plugin.ArtifactMetadata.load(metadata_path)
        self.preprocessor = Preprocessor.of_artifact(metadata, "engine", engine, max_size, height, width)
        self._runner = trt_plugin.EngineRunner(engine, device=int(index or 0))
        try:
            runner = self._runner
            metadata.check_engine(metadata_path, runner.inputs, runner.outputs, runner.profiles)
        except Exception:
            self._runner.close()
            raise
        sizes = InputSizes.of_artifact(metadata)
        self.batch = sizes.batch if sizes.batch.dynamic else sizes.batch.opt
        self.class_names = tuple(metadata.class_names)
        self.nms = None if metadata.nms_in_graph else dict(metadata.nms)
        self.description = (
            f"{metadata.model}, TensorRT {metadata.tensorrt_version}, {metadata.gpu}, {metadata.precision}"
        )

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the engine; see `Backend`."""
        outputs = self._runner({"images": images, "image_shapes": image_shapes})
        return outputs["boxes"], outputs["scores"], outputs["labels"]

    def close(self) -> None:
        """Frees the engine."""
        self._runner.close()
