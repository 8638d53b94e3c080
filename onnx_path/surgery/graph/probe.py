"""Measuring a graph at given input sizes: sizes of its tensors, and values that sizes alone decide."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir

from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.graph.partial_models import partial_model, read_by
from onnx_path.surgery.graph.protobuf import replace_nodes
from onnx_path.surgery.graph.traversal import (
    SHAPE_OPS,
    STANDARD_DOMAINS,
    attribute,
    constant,
    is_op,
    static_values,
)


class Probe:
    """The sizes of a model's tensors in one run, and the values that follow from them.

    Tensors computed from an operator that onnxruntime does not know have no known size.

    Attributes:
        number: of this run among the runs at different input sizes.
        order: the place of each node in the graph.
        measured: the sizes by the tensors' names. Proofs add those of the tensors of new nodes.
    """

    def __init__(
        self,
        model: ir.Model,
        inputs: Mapping[str, np.ndarray],
        folder: Path | None = None,
        number: int = 0,
        measured: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        """Runs the model once for the sizes.

        Args:
            model: with names for all values.
            inputs: the graph's inputs, by name.
            folder: of weights outside the model.
            number: as above.
            measured: sizes that are known. The model does not run if these are all.

        Raises:
            onnx_session.CannotRun: onnxruntime refuses the model at these sizes.
        """
        self.model = model
        self.folder = folder
        self.number = number
        self.order = {node: place for place, node in enumerate(model.graph)}
        self._static = static_values(model.graph)
        self._shapes = _shapes(model, inputs, folder, measured)
        self.measured = {value.name: shape for value, shape in self._shapes.items()}
        self._values: dict[ir.Value, np.ndarray] = {}
        self._sizes = {
            node.outputs[0]: _size_of(node, self._shapes[node.inputs[0]])
            for node in model.graph
            if is_op(node, *SHAPE_OPS) and node.inputs[0] in self._shapes
        }

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Returns a tensor's sizes, None if they are not known."""
        return self._shapes.get(value)

    def value(self, value: ir.Value) -> np.ndarray | None:
        """Returns a tensor's numbers if they follow from constants and sizes, else None."""
        if value not in self._static:
            return constant(value)
        if value not in self._values:
            array = constant(value)
            self._values[value] = self.run({}, value) if array is None else array
        return self._values[value]

    def is_static(self, value: ir.Value) -> bool:
        """Returns True for a tensor that follows from constants and sizes."""
        return value in self._static

    def run(self, tensors: Mapping[ir.Value, np.ndarray], output: ir.Value) -> np.ndarray:
        """Runs the nodes between some tensors and an output, at the sizes of this probe.

        Raises:
            NotClosed: the output depends on other tensors.
            onnx_session.CannotRun: onnxruntime cannot run the nodes.
        """
        if output in self._sizes:
            return self._sizes[output]
        known = {}
        if self._static.isdisjoint(tensors):  # else static tensors may follow from other numbers here
            for value in () if output in self._static else self._static_sources(tensors, output):
                self.value(value)
            known = {value: array for value, array in self._values.items() if _is_computed(value)}
        inputs = self._sizes | known | dict(tensors)
        part = partial_model(self.model, list(inputs), [output])
        feed = {value.name: array for value, array in inputs.items()}
        return onnx_session.run(part, feed, self.folder)[0]

    def _static_sources(self, tensors: Collection[ir.Value], output: ir.Value) -> list[ir.Value]:
        """Returns the static tensors that the nodes between `tensors` and `output` read.

        Such a tensor can be the result of a whole network, as where a file has constant texts.
        """
        found: dict[ir.Value, None] = {}
        seen, pending = {*tensors, output}, [output]
        while pending:
            node = pending.pop().producer()
            for value in () if node is None else read_by(node):
                if value not in self._static and value not in seen:
                    seen.add(value)
                    pending.append(value)
                elif value in self._static and _is_computed(value):
                    found[value] = None
        return list(found)


def _is_computed(value: ir.Value) -> bool:
    """Returns whether a node computes a tensor of known type, which can then be an input of a part."""
    node = value.producer()
    return node is not None and not is_op(node, "Constant") and isinstance(value.type, ir.TensorType)


def runs(node: ir.Node, version: int, model: ir.Model) -> bool:
    """Returns True for an operator that onnxruntime should know."""
    if node.domain in STANDARD_DOMAINS:
        return onnx.defs.has(node.op_type, version)
    return node.domain.startswith(("com.microsoft", "ai.onnx")) or node.op_identifier() in model.functions


def _shapes(
    model: ir.Model,
    inputs: Mapping[str, np.ndarray],
    folder: Path | None,
    measured: Mapping[str, tuple[int, ...]],
) -> dict[ir.Value, tuple[int, ...]]:
    shapes = {value: tuple(inputs[value.name].shape) for value in model.graph.inputs if value.name in inputs}
    for value in model.graph.initializers.values():
        if value.const_value is not None and value not in shapes:
            shapes[value] = tuple(value.const_value.shape.numpy())
    nodes = list(_runnable_nodes(model))
    named = [value for node in nodes for value in node.outputs if value.name]
    tensors = [x for x in named if x.type is None or isinstance(x.type, ir.TensorType)]
    if not all(value.name in measured for value in tensors):
        proto = ir.to_proto(model)
        running = set(nodes)
        replace_nodes(proto.graph, [x for x, node in zip(proto.graph.node, model.graph) if node in running])
        del proto.graph.output[:]
        add_shapes(proto.graph, [value.name for value in tensors])
        results = onnx_session.run(proto, inputs, folder)
        measured = {x.name: tuple(map(int, shape)) for x, shape in zip(tensors, results, strict=True)}
    return shapes | {value: measured[value.name] for value in tensors}


def add_shapes(graph: onnx.GraphProto, tensors: Collection[str]) -> None:
    """Adds the sizes of tensors to the outputs of a graph.

    Each is computed right behind the tensor, so that onnxruntime can free large tensors early.
    """
    wanted, nodes = set(tensors), []
    for node in graph.node:
        found = [name for name in node.output if name in wanted]
        nodes += [node, *(onnx.helper.make_node("Shape", [name], [f"shape:{name}"]) for name in found)]
    replace_nodes(graph, nodes)
    graph.output.extend(
        onnx.helper.make_tensor_value_info(f"shape:{name}", onnx.TensorProto.INT64, None) for name in tensors
    )


def _runnable_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields the nodes that depend only on operators that onnxruntime should know."""
    version = model.graph.opset_imports.get("", 1)
    known = {*model.graph.inputs, *model.graph.initializers.values()}
    for node in model.graph:
        if all(x is None or x in known for x in node.inputs) and runs(node, version, model):
            known.update(node.outputs)
            yield node


def _size_of(node: ir.Node, shape: tuple[int, ...]) -> np.ndarray:
    if node.op_type == "Size":
        return np.array(np.prod(shape), np.int64)
    return np.array(shape[slice(attribute(node, "start", 0), attribute(node, "end", None))], np.int64)
