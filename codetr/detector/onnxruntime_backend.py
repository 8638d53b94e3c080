"""Runs an exported model.onnx with onnxruntime, without Torch and TensorRT, on any machine.

The MSDA nodes of the file carry bodies of standard operators (see `onnx_path.operator`), so that every
execution provider of onnxruntime runs them: an exported file can be checked where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from codetr.detector.preprocess import Preprocessor
from codetr.detector.sizes import InputSizes

_INPUTS = ("images", "image_shapes")
_OUTPUTS = ("boxes", "scores", "labels")
_ERRORS_ONLY = 3  # of onnxruntime's log levels


class OnnxRuntimeBackend:
    """A `codetr.detector.detector.Backend`; `codetr.Detector(backend="onnxruntime", onnx=…)` makes it.

    Args:
        onnx: path of the file; its metadata <stem>.json lies beside it.
        device: "auto" (the GPU if this onnxruntime can use it), "cpu", "cuda" or "cuda:i".
        max_size, height, width: as `codetr.Detector` has them; for a file with dynamic sizes only.

    Raises:
        FileNotFoundError: one of the two files is not there.
        ImportError: onnxruntime is not installed.
        ValueError: the file is no ONNX file that onnxruntime can run, its MSDA nodes have no bodies, the
            metadata is another's, or it cannot follow one of the sizes.
        RuntimeError: the metadata cannot be read (`trt_plugin.EngineError`), or there is no such device for
            onnxruntime.
    """

    def __init__(
        self,
        onnx: str | Path,
        device: str = "auto",
        max_size: int | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> None:
        path = Path(onnx)
        metadata_path = path.with_suffix(".json")
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        if not metadata_path.is_file():
            raise FileNotFoundError(f"{metadata_path}: no such file; an ONNX file's metadata lies beside it")
        import trt_plugin

        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError(
                "onnxruntime is missing: pip install onnxruntime (or onnxruntime-gpu)"
            ) from error
        metadata = trt_plugin.ArtifactMetadata.load(metadata_path)
        self.preprocessor = Preprocessor.of_artifact(metadata, "ONNX file", path, max_size, height, width)
        self._session = _open(onnxruntime, path, device)
        _check_tensors(metadata_path, metadata.inputs, path, self._session.get_inputs())
        _check_tensors(metadata_path, metadata.outputs, path, self._session.get_outputs())
        self.class_names = tuple(metadata.class_names)
        self.nms = None if metadata.nms_in_graph else dict(metadata.nms)
        sizes = InputSizes.of_artifact(metadata)
        self.batch = sizes.batch if sizes.batch.dynamic else sizes.batch.opt
        self.precision = metadata.precision
        self.device = "cuda" if "CUDAExecutionProvider" in self._session.get_providers() else "cpu"
        where = "GPU" if self.device == "cuda" else "CPU"
        self.description = (
            f"{metadata.model}, onnxruntime {onnxruntime.__version__}, {where}, {metadata.precision}"
        )

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the file; see `codetr.detector.detector.Backend`."""
        inputs = dict(zip(_INPUTS, (images, image_shapes), strict=True))
        boxes, scores, labels = self._session.run(list(_OUTPUTS), inputs)
        return boxes, scores, labels

    def close(self) -> None:
        """Frees the session."""
        self._session = None


def _open(onnxruntime: Any, path: Path, device: str) -> Any:
    """A session on the device."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:<number>, got {device!r}")
    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    if kind == "cuda" and not has_cuda:
        raise RuntimeError(
            f"device {device}: this onnxruntime has no CUDA provider; pip install onnxruntime-gpu"
        )
    providers: list[Any] = ["CPUExecutionProvider"]
    if kind != "cpu" and has_cuda:
        # fp32 is fp32, as with the other backends; the provider's own default is TF32.
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": int(index or 0), "use_tf32": 0}))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    try:
        session = onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # onnxruntime's own classes, made of Exception
        raise ValueError(f"{path}: onnxruntime cannot run it ({_first_line(error)})") from error
    if kind == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise RuntimeError(f"device {device}: onnxruntime's CUDA provider does not start here")
    return session


def _check_tensors(
    metadata_path: Path, described: Sequence[dict[str, Any]], path: Path, found: Sequence[Any]
) -> None:
    """Requires the metadata to be the file's, by its tensors' names and shapes."""
    said = {tensor["name"]: list(tensor["shape"]) for tensor in described}
    shapes = {
        tensor.name: [size if isinstance(size, int) else -1 for size in tensor.shape] for tensor in found
    }
    for name in {**said, **shapes}:
        if said.get(name) != shapes.get(name):
            raise ValueError(
                f"{metadata_path}: is the metadata of another file: {name} is {said.get(name, 'missing')} in "
                f"it and {shapes.get(name, 'missing')} in {path}"
            )


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]
