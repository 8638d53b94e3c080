"""Measuring a graph at given input sizes: how large its tensors are, and what sizes alone decide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnx_path.surgery import graph as walk
from onnx_path.surgery import runtime
from onnx_path.surgery.protos import replace_nodes


class Probe:
    """What one run of a model shows about its tensors.

    A tensor computed from something that onnxruntime does not know has no known shape.
    """

    def __init__(self, model: ir.Model, inputs: Mapping[str, np.ndarray], folder: Path | None = None) -> None:
        """Runs the model once for the shapes.

        Args:
            model: with names for all values.
            inputs: the graph's inputs.
            folder: of weights outside the model.

        Raises:
            runtime.CannotRun: onnxruntime refuses the model at these sizes.
        """
        self.model = model
        self._static = walk.static_values(model.graph)
        self._values: dict[ir.Value, np.ndarray] = {}
        self._shapes = _shapes(model, inputs, folder)

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """A tensor's sizes, None if not known."""
        return self._shapes.get(value)

    def value(self, value: ir.Value) -> np.ndarray | None:
        """What a tensor holds if that follows from constants and sizes, else None."""
        if value not in self._values:
            array = walk.constant(value)
            if array is None:
                if value not in self._static:
                    return None
                part = walk.cut(self.model, [value], [], self.shape)
                (array,) = runtime.run(part, {})
            self._values[value] = array
        return self._values[value]

    def is_static(self, value: ir.Value) -> bool:
        """True for a tensor that follows from constants and sizes."""
        return value in self._static


def _shapes(
    model: ir.Model, inputs: Mapping[str, np.ndarray], folder: Path | None
) -> dict[ir.Value, tuple[int, ...]]:
    proto = ir.to_proto(model)
    known = list(model.graph.inputs) + list(model.graph.initializers.values())
    shapes = {value: tuple(inputs[value.name].shape) for value in model.graph.inputs if value.name in inputs}
    for value in model.graph.initializers.values():
        if value.const_value is not None and value not in shapes:
            shapes[value] = tuple(value.const_value.shape.numpy())
    running = dict.fromkeys(_that_run(model, set(known)))
    nodes, values = [], []
    for copy, node in zip(proto.graph.node, model.graph, strict=True):
        if node in running:
            nodes.append(copy)
            measured = [output for output in node.outputs if output.name and _is_tensor(output)]
            # At once, so that onnxruntime need not keep what is large.
            nodes += [onnx.helper.make_node("Shape", [x.name], [f"shape:{x.name}"]) for x in measured]
            values += measured
    replace_nodes(proto.graph, nodes)
    del proto.graph.output[:]
    proto.graph.output.extend(
        onnx.helper.make_tensor_value_info(f"shape:{value.name}", onnx.TensorProto.INT64, None)
        for value in values
    )
    if values:
        results = runtime.run(proto, inputs, folder)
        shapes.update({value: tuple(int(n) for n in result) for value, result in zip(values, results)})
    return shapes


def _that_run(model: ir.Model, known: set[ir.Value]):
    """The nodes that follow from standard operators, onnxruntime's own and functions, in order."""
    version = model.graph.opset_imports.get("", 1)
    for node in model.graph:
        if all(x is None or x in known for x in node.inputs) and runs(node, version, model):
            known.update(node.outputs)
            yield node


def runs(node: ir.Node, version: int, model: ir.Model) -> bool:
    """True for an operator that onnxruntime should know."""
    if node.domain in walk.STANDARD_DOMAINS:
        return onnx.defs.has(node.op_type, version)
    return node.domain.startswith(("com.microsoft", "ai.onnx")) or node.op_identifier() in model.functions


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)
