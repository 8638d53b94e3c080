"""Models of one node of an operator on maps, in onnxruntime and as engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch

import trt_plugin
from benchmarks.operator_errors import TOLERANCE, relative_error
from onnx_path.domain import PLUGIN_ATTRIBUTES
from onnx_path.operator import OPSET_VERSION, translation_table
from onnx_path.precision import convert_precision
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.rewrite.function_bodies import functions

CODES = {torch.float32: "float", torch.float16: "float16", torch.bfloat16: "bfloat16"}
ELEMENTS = {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}
Shapes = Mapping[str, Sequence[int | str]]


def one_node(
    op_type: str,
    attributes: Mapping[str, int | float],
    dtype: torch.dtype,
    shapes: Shapes,
    opset: int = OPSET_VERSION,
    output: Sequence[int | str] = ("n", "h", "w", "c"),
) -> onnx.ModelProto:
    """A model of one node without a body, with inputs and an output of these shapes."""
    code = CODES[dtype]
    inputs = ", ".join(f"{code}[{', '.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    options = [f"{name}: {type(x).__name__} = {x}" for name, x in attributes.items()]
    options += [f'{name}: string = "{text}"' for name, text in PLUGIN_ATTRIBUTES.items()]
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "msda": 1]>\n'
        f"one_node ({inputs}) => ({code}[{', '.join(map(str, output))}] output) {{\n"
        f"output = msda.{op_type}<{', '.join(options)}>({', '.join(shapes)})\n}}"
    )


def add_bodies_of_opset(model: onnx.ModelProto, opset: int) -> None:
    """Adds the bodies of all nodes, in the opset of the model."""
    model.functions.extend(functions(opset, "onnxruntime"))
    model.opset_import.append(onnx.helper.make_opsetid("trt.plugins", 1))


def check_conversion(
    model: onnx.ModelProto, precision: str, converted: int, x: np.ndarray
) -> onnx.GraphProto:
    """Converts a model of nodes with their bodies to 16 bits, and compares its result with the model's.

    Args:
        model: in float32, with one input `x`, of which all nodes become 16-bit.
        precision: "fp16" or "bf16".
        converted: the number of nodes.
        x: the input.

    Returns:
        The graph with the types of all tensors.
    """
    narrow = onnx.ModelProto()
    narrow.CopyFrom(model)
    report = convert_precision(narrow, precision)
    assert (report.converted, report.kept, report.casts) == (converted, {}, 2)
    onnx.checker.check_model(narrow, full_check=True)
    (found,), (expected,) = (onnx_session.run(one, {"x": x}) for one in (narrow, model))
    error = relative_error(torch.from_numpy(found), torch.from_numpy(expected).double())
    assert error < 4 * TOLERANCE[torch.float16 if precision == "fp16" else torch.bfloat16]
    return onnx.shape_inference.infer_shapes(narrow, check_type=True, strict_mode=True).graph


def check_16_bits(graph: onnx.GraphProto, op_type: str, precision: str) -> None:
    """Fails unless all tensors of the only node of an operator have the 16-bit type."""
    types = {x.name: x.data_type for x in graph.initializer}
    types |= {x.name: x.type.tensor_type.elem_type for x in graph.value_info}
    (node,) = (x for x in graph.node if x.op_type == op_type)
    assert {types[x] for x in (*node.input, *node.output)} == {ELEMENTS[precision]}


def open_session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def exported_node(
    module: torch.nn.Module, tensors: Sequence[torch.Tensor]
) -> tuple[onnx.NodeProto, dict, list[int]]:
    """Exports a module of one node.

    Args:
        module: its arguments are the tensors.
        tensors: maps, whose sizes but the channels become dynamic, and parameters of fixed sizes.

    Returns:
        The node, its attributes, and the output's sizes, 0 where dynamic.
    """
    dynamic = dict.fromkeys(range(3), torch.export.Dim.DYNAMIC)
    program = torch.onnx.export(
        module.eval(),
        tuple(tensors),
        dynamo=True,
        verbose=False,
        dynamic_shapes=tuple(dynamic if x.dim() == 4 else None for x in tensors),
        opset_version=OPSET_VERSION,
        custom_translation_table=translation_table(),
    )
    (node,) = program.model_proto.graph.node
    sizes = program.model_proto.graph.output[0].type.tensor_type.shape.dim
    attributes = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    return node, attributes, [size.dim_value for size in sizes]


def run_engine(path: Path, inputs: Mapping[str, torch.Tensor | None], output: str = "output") -> np.ndarray:
    arrays = {name: x.float().numpy() for name, x in inputs.items() if x is not None}
    with trt_plugin.EngineRunner(path) as runner:
        return runner(arrays)[output]
