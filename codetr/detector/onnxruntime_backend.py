"""Runs an exported ONNX file with onnxruntime, on any machine. Imports neither Torch nor TensorRT.

The MSDA nodes of the file have bodies of standard operators (see `onnx_path.nodes.attention`), so every
execution provider of onnxruntime runs them. A machine without a GPU can thus check an export.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from codetr.detector.backend import split_device
from codetr.detector.file_backend import FileBackend
from codetr.errors import ArgumentError
from codetr.usable_cores import usable_cores

_ERRORS_ONLY = 3  # log level of onnxruntime


class OnnxRuntimeBackend(FileBackend):
    """Runs an ONNX file. Arguments and errors as `FileBackend`.

    "auto" is the GPU if this onnxruntime has its CUDA provider.
    The attribute `device` is "cuda" or "cpu" once `load` has run.
    """

    argument, kind = "onnx", "ONNX file"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._kind, self._index = split_device(self.device)
        self._session: Any = None
        self.precision = self.metadata.precision
        self.description = f"{self.metadata.model}, onnxruntime, {self.precision}"

    def load(self) -> OnnxRuntimeBackend:
        """Starts onnxruntime; returns the backend.

        Raises:
            ArgumentError: onnxruntime cannot run the file, or the metadata are another file's.
            ImportError: onnxruntime is not installed.
            RuntimeError: onnxruntime has no such device here.
        """
        import onnxruntime

        self._session = self._open(onnxruntime)
        for described, found in (
            (self.metadata.inputs, self._session.get_inputs()),
            (self.metadata.outputs, self._session.get_outputs()),
        ):
            said = {tensor["name"]: list(tensor["shape"]) for tensor in described}
            shapes = {tensor.name: tensor.shape for tensor in found}  # a dynamic size is a name or None
            has = {name: [x if isinstance(x, int) else -1 for x in shape] for name, shape in shapes.items()}
            if said != has:
                problem = f"is the metadata of another file, with {said} instead of {has}"
                raise ArgumentError("onnx", f"{self.metadata_file}: {problem}")
        self.device = "cuda" if "CUDAExecutionProvider" in self._session.get_providers() else "cpu"
        where = "GPU" if self.device == "cuda" else "CPU"
        self.description = (
            f"{self.metadata.model}, onnxruntime {onnxruntime.__version__}, {where}, {self.precision}"
        )
        return self

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the file, see `codetr.detector.backend.Backend`."""
        inputs = {"images": images, "image_shapes": image_shapes}
        return tuple(self._session.run(["boxes", "scores", "labels"], inputs))

    def close(self) -> None:
        """Frees the session."""
        self._session = None

    def _open(self, onnxruntime: Any) -> Any:
        has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        if self._kind == "cuda" and not has_cuda:
            raise RuntimeError(
                f"device {self.device}: this onnxruntime has no CUDA provider; pip install onnxruntime-gpu"
            )
        providers: list[Any] = ["CPUExecutionProvider"]
        if self._kind != "cpu" and has_cuda:
            # fp32 without TF32, as in the other backends; the provider's own default is TF32.
            providers.insert(0, ("CUDAExecutionProvider", {"device_id": self._index or 0, "use_tf32": 0}))
        options = session_options(self.precision)
        try:
            session = onnxruntime.InferenceSession(self.file, options, providers=providers)
        except Exception as error:  # onnxruntime's own classes derive from Exception
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ArgumentError("onnx", f"{self.file}: onnxruntime cannot run it ({reason})") from error
        if self._kind == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
            raise RuntimeError(f"device {self.device}: onnxruntime's CUDA provider does not start here")
        return session


def session_options(precision: str) -> Any:
    """Returns onnxruntime's options for a file of a precision."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    limit_threads(options)
    if precision == "fp8":
        # Onnxruntime 1.31 moves Q/DQ nodes behind MaxPool, which has no FP8, and its further optimizations
        # give wrong numbers.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return options


def limit_threads(options: Any) -> None:
    """Keeps a session on the cores that this process may use, such as those of a container.

    By itself, onnxruntime pins a thread to every core of the machine.
    """
    cores = usable_cores()
    if cores < (os.cpu_count() or 1) and not options.intra_op_num_threads:
        options.intra_op_num_threads = cores
