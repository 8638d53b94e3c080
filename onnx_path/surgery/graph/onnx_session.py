"""Running models in onnxruntime, on the CPU unless a caller names another provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from codetr.detector.onnxruntime_backend import limit_threads
from onnx_path.surgery.graph.float32_models import NARROW, in_float32

STAND_IN = "the original's float64 nodes ran in float32: onnxruntime's CPU provider samples no other"

CPU = ("CPUExecutionProvider",)

ort.set_default_logger_severity(4)  # fatal errors only; onnxruntime's C++ code writes straight to stderr


class CannotRun(ValueError):
    """Onnxruntime does not load or run a model."""


class Session:
    """A model loaded by onnxruntime; its 16-bit tensors run in float32.

    Attributes:
        stand_in: whether float64 tensors are float32 too, see `STAND_IN`.
    """

    def __init__(
        self, model: onnx.ModelProto, folder: Path | None = None, providers: Sequence[str] = CPU
    ) -> None:
        """Loads a model; its weights outside the model lie in `folder`.

        Raises:
            CannotRun: with onnxruntime's reason.
        """
        self.stand_in = False
        try:
            self._session = _load(in_float32(model), folder, providers)
        except CannotRun as error:
            if "GridSample" not in str(error) or "NOT_IMPLEMENTED" not in str(error):
                raise
            self.stand_in = True
            kinds = (*NARROW, onnx.TensorProto.DOUBLE)
            self._session = _load(in_float32(model, kinds), folder, providers)

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Returns all outputs.

        Raises:
            CannotRun: with onnxruntime's reason.
        """
        wanted = {x.name: x.type for x in self._session.get_inputs()}
        tensors = {name: array for name, array in inputs.items() if name in wanted}
        for name, array in tensors.items():
            if wanted[name] == "tensor(float)":
                tensors[name] = array.astype(np.float32, copy=False)
        try:
            return self._session.run(None, tensors)
        except Exception as error:  # onnxruntime's exceptions have no other common base
            raise CannotRun(" ".join(str(error).split())) from error


def run(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], folder: Path | None = None
) -> list[np.ndarray]:
    """Loads a model, runs it once and returns all outputs; raises as `Session` does."""
    return Session(model, folder).run(inputs)


def _load(model: onnx.ModelProto, folder: Path | None, providers: Sequence[str]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.enable_mem_pattern = False
    options.enable_mem_reuse = False  # the plan takes a minute for 20,000 nodes; the arena reuses memory too
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # Shape nodes early, which frees their inputs
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # the graph as it stands
    limit_threads(options)
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    except Exception as error:  # onnxruntime's exceptions have no other common base
        raise CannotRun(" ".join(str(error).split())) from error
