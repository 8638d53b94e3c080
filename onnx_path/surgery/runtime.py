"""Running models in onnxruntime on the CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from onnx_path.surgery.precision import in_float32
from onnx_path.surgery.protos import copied, replace_nodes

STAND_IN = (
    "the original's GridSample nodes on float64 ran in float32: onnxruntime's CPU provider has no other"
)


class CannotRun(ValueError):
    """onnxruntime does not load or run a model."""


class Session:
    """A model loaded by onnxruntime on the CPU; what it has in 16 bits runs in float32.

    Attributes:
        stand_in: GridSample nodes run in float32 whatever their type, see `STAND_IN`.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path | None = None, optimise: bool = False) -> None:
        """Loads a model.

        Args:
            model: weights outside of it lie in `folder`.
            optimise: let onnxruntime fuse nodes; without, the graph runs as it stands.

        Raises:
            CannotRun: with onnxruntime's reason.
        """
        self.stand_in = False
        model = in_float32(model)
        try:
            self._session = _load(model, folder, optimise)
        except CannotRun as error:
            if "GridSample" not in str(error) or "NOT_IMPLEMENTED" not in str(error):
                raise
            self.stand_in = True
            self._session = _load(_samples_in_float32(model), folder, optimise)

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
        except Exception as error:  # onnxruntime's exceptions have no common base but this
            raise CannotRun(" ".join(str(error).split())) from error


def run(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], folder: Path | None = None
) -> list[np.ndarray]:
    """Loads a model, runs it once and returns all outputs; errors as `Session`'s."""
    return Session(model, folder).run(inputs)


def _load(model: onnx.ModelProto, folder: Path | None, optimise: bool):
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise ImportError("onnxruntime is not installed: pip install onnxruntime") from error
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False  # it keeps what a big model frees, and doubles it
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # Shape nodes at once, so that tensors go
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        with _quiet():
            return ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
    except Exception as error:
        raise CannotRun(" ".join(str(error).split())) from error


@contextlib.contextmanager
def _quiet():
    """onnxruntime's C++ code writes some warnings straight to stderr's descriptor."""
    saved = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _samples_in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose GridSample nodes compute in float32 and give the type that they gave."""
    copy = copied(model)
    nodes = []
    for node in copy.graph.node:
        if node.op_type != "GridSample" or node.domain not in ("", "ai.onnx"):
            nodes.append(node)
            continue
        image, (result,) = node.input[0], node.output
        for i, name in enumerate(node.input):
            narrow = f"{result}/float32/{i}"
            nodes.append(onnx.helper.make_node("Cast", [name], [narrow], to=onnx.TensorProto.FLOAT))
            node.input[i] = narrow
        node.output[0] = f"{result}/float32"
        nodes += [node, onnx.helper.make_node("CastLike", [node.output[0], image], [result])]
    replace_nodes(copy.graph, nodes)
    return copy
