"""Models of one node of an operator, in onnxruntime and as engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch

import trt_plugin
from benchmarks.operator_errors import TOLERANCE, relative_error
from onnx_path.nodes.attention import OPSET_VERSION, add_function_bodies, translation_table
from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.precision import convert_precision
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.rewrite.function_bodies import functions
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from onnx_path.tensorrt.tensorrt_engine import Settings, serialize_engine
from tests.engines.plugin_engines import plugin_or_skip, save
from tests.onnx.text_models import text_model

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


def check_conversion_of_map(
    body: str, sizes: Mapping[str, Sequence[int]], op_type: str, precision: str, converted: int
) -> onnx.GraphProto:
    """Converts a model with one node of an operator to 16 bits. All tensors of the node have that type then.

    Args:
        body: nodes from a map `x` to a map `y`, both [2, 9, 7, 16].
        sizes: of the weights by name.
        op_type: the operator.
        precision, converted: as for `check_conversion`.

    Returns:
        As `check_conversion`.
    """
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(size, dtype=np.float32) / 4 for name, size in sizes.items()}
    edges = "float[2, 9, 7, 16] x", "float[2, 9, 7, 16] y"
    model = text_model(body, *edges, OPSET_VERSION, domains=DOMAIN, **weights)
    add_function_bodies(model)
    x = random.standard_normal((2, 9, 7, 16), dtype=np.float32)
    graph = check_conversion(model, precision, converted, x)
    types = {x.name: x.data_type for x in graph.initializer}
    types |= {x.name: x.type.tensor_type.elem_type for x in graph.value_info}
    (node,) = (x for x in graph.node if x.op_type == op_type)
    assert {types[x] for x in (*node.input, *node.output)} == {ELEMENTS[precision]}
    return graph


def open_session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run_session(session: ort.InferenceSession, inputs: Mapping[str, torch.Tensor]) -> np.ndarray:
    """Runs a model that has one output, and returns this output."""
    (found,) = session.run(None, {name: x.numpy() for name, x in inputs.items()})
    return found


def exported_node(
    module: torch.nn.Module, tensors: Sequence[torch.Tensor], op_type: str, dynamic: int = 3
) -> tuple[onnx.NodeProto, dict, onnx.TypeProto.Tensor]:
    """Exports a module of one node, and checks the node's type and those attributes that plugins need.

    Args:
        module: its arguments are the tensors.
        tensors: maps or rows, and parameters of fixed sizes.
        op_type: the operator.
        dynamic: the number of first sizes that become dynamic, of the tensors with as many dimensions as
            the first.

    Returns:
        The node, its other attributes, and the output's type.
    """
    sizes = dict.fromkeys(range(dynamic), torch.export.Dim.DYNAMIC)
    program = torch.onnx.export(
        module.eval(),
        tuple(tensors),
        dynamo=True,
        verbose=False,
        dynamic_shapes=tuple(sizes if x.dim() == tensors[0].dim() else None for x in tensors),
        opset_version=OPSET_VERSION,
        custom_translation_table=translation_table(),
    )
    (node,) = program.model_proto.graph.node
    assert (node.domain, node.op_type) == ("msda", op_type)
    attributes = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    for name, text in PLUGIN_ATTRIBUTES.items():
        assert attributes.pop(name) == text.encode()
    return node, attributes, program.model_proto.graph.output[0].type.tensor_type


def sizes_of(tensor: onnx.TypeProto.Tensor) -> list[int]:
    """The sizes of a tensor, 0 where dynamic."""
    return [size.dim_value for size in tensor.shape.dim]


def build_engine(folder: Path, model: onnx.ModelProto, **profiles: ShapeRange) -> Path:
    """Builds an engine of a model without bodies; skips the test without the plugin library.

    TensorRT's parser turns the nodes into plugins.
    """
    plugin_or_skip()
    onnx.save(model, folder / "model.onnx")
    return save(folder, serialize_engine(folder / "model.onnx", Settings(profiles=profiles), "model"))


def assert_near(found: np.ndarray, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Fails unless a result is as near as its type allows to numbers of size 1, and has their shape."""
    assert found.shape == tuple(expected.shape)
    error = relative_error(torch.from_numpy(found), expected, floor=expected.numel() ** 0.5)
    assert error <= TOLERANCE[dtype], error


def run_engine(path: Path, inputs: Mapping[str, torch.Tensor], output: str = "output") -> np.ndarray:
    arrays = {name: x.float().numpy() for name, x in inputs.items()}
    with trt_plugin.EngineRunner(path) as runner:
        return runner(arrays)[output]
