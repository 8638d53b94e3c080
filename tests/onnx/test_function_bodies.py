"""Function bodies of MSDA nodes against the reference, and the exporter's translation of the operators."""

from __future__ import annotations

import pytest
import torch

import msda

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx_path import operator  # noqa: E402

ONNX_TYPES = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.int64: onnx.TensorProto.INT64,
    torch.int32: onnx.TensorProto.INT32,
}
LEVELS = [(6, 7), (3, 4), (1, 1)]


def node_model(
    op_type: str, tensors: dict[str, torch.Tensor], points_per_level: list[int] | None
) -> onnx.ModelProto:
    """Returns a model of one node with its body and dynamic dimensions."""
    attributes = dict(operator.PLUGIN_ATTRIBUTES)
    if points_per_level is not None:
        attributes["points_per_level"] = points_per_level
    helper = onnx.helper
    node = helper.make_node(op_type, list(tensors), ["output"], domain=operator.DOMAIN, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, ONNX_TYPES[tensor.dtype], [None] * tensor.dim())
        for name, tensor in tensors.items()
    ]
    output = helper.make_tensor_value_info("output", ONNX_TYPES[tensors["value"].dtype], [None] * 3)
    graph = helper.make_graph([node], "graph", inputs, [output])
    opsets = {"": operator.OPSET_VERSION, operator.DOMAIN: operator.DOMAIN_VERSION}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*pair) for pair in opsets.items()], ir_version=10
    )
    operator.add_function_bodies(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def run_body(
    op_type: str, tensors: dict[str, torch.Tensor], points_per_level: list[int] | None
) -> torch.Tensor:
    """Runs one node by its body in onnxruntime."""
    model = node_model(op_type, tensors, points_per_level).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in tensors.items()})[0])


def problem(
    op_type: str, points_per_level: list[int] | None, columns: int = 2, queries: int = 5, images: int = 2
) -> dict[str, torch.Tensor]:
    """Returns random inputs. Some locations lie outside of the maps."""
    generator = torch.Generator().manual_seed(0)
    heads, points = 3, 2
    shape = (images, queries, heads)
    shape += (len(LEVELS), points) if points_per_level is None else (sum(points_per_level),)
    total = len(LEVELS) * points if points_per_level is None else sum(points_per_level)
    sizes = [h * w for h, w in LEVELS]
    tensors = {
        "value": torch.randn(images, sum(sizes), heads, 8, generator=generator),
        "spatial_shapes": torch.tensor(LEVELS),
        "level_start_index": torch.tensor([sum(sizes[:i]) for i in range(len(sizes))]),
    }
    if op_type == operator.ATTENTION:
        return tensors | {
            "sampling_locations": torch.rand(*shape, 2, generator=generator) * 1.4 - 0.2,
            "attention_weights": torch.rand(*shape, generator=generator),
        }
    return tensors | {
        "reference_points": torch.rand(images, queries, len(LEVELS), columns, generator=generator),
        "sampling_offsets": torch.randn(*shape, 2, generator=generator) * 2,
        "attention_logits": torch.randn(images, queries, heads, total, generator=generator),
    }


def reference(
    op_type: str, tensors: dict[str, torch.Tensor], points_per_level: list[int] | None
) -> torch.Tensor:
    function = {
        operator.ATTENTION: msda.reference.attention,
        operator.FUSED_ATTENTION: msda.reference.fused_attention,
    }[op_type]
    wide = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    return function(**wide, points_per_level=points_per_level)


POINTS = pytest.mark.parametrize(
    "points_per_level", [None, [2, 1, 3], [3, 0, 1]], ids=["equal", "ragged", "zero"]
)
OPERATORS = pytest.mark.parametrize(
    ("op_type", "columns"),
    [(operator.ATTENTION, 2), (operator.FUSED_ATTENTION, 2), (operator.FUSED_ATTENTION, 4)],
    ids=["attention", "fused-points", "fused-boxes"],
)


@POINTS
@OPERATORS
def test_function_body_is_the_reference(op_type, columns, points_per_level):
    tensors = problem(op_type, points_per_level, columns)
    got = run_body(op_type, tensors, points_per_level)
    torch.testing.assert_close(got.double(), reference(op_type, tensors, points_per_level), rtol=0, atol=1e-5)


@OPERATORS
def test_function_body_takes_16_bit_values_and_32_bit_levels(op_type, columns):
    tensors = problem(op_type, None, columns)
    for name in ("value", "attention_weights", "attention_logits", "sampling_offsets"):
        if name in tensors:
            tensors[name] = tensors[name].half()
    for name in ("spatial_shapes", "level_start_index"):
        tensors[name] = tensors[name].int()
    got = run_body(op_type, tensors, None)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), reference(op_type, tensors, None), rtol=1e-3, atol=1e-3)


def test_function_body_ignores_locations_that_are_not_finite():
    tensors = problem(operator.ATTENTION, None)
    locations = tensors["sampling_locations"]
    for index, bad in enumerate((float("nan"), float("inf"), -float("inf"), 1e30)):
        locations[0, index, 0, 0, 0, index % 2] = bad
    got = run_body(operator.ATTENTION, tensors, None)
    torch.testing.assert_close(got.double(), reference(operator.ATTENTION, tensors, None), rtol=0, atol=1e-5)


def test_function_body_does_not_spread_values_that_are_not_finite():
    tensors = problem(operator.ATTENTION, None)
    tensors["value"][0, 0] = float("nan")  # the corner cell of the finest level
    tensors["sampling_locations"].fill_(1.5)
    assert (run_body(operator.ATTENTION, tensors, None) == 0).all()


@pytest.mark.parametrize("size", [{"queries": 0}, {"images": 0}], ids=str)
def test_function_body_takes_nothing(size):
    tensors = problem(operator.FUSED_ATTENTION, None, **size)
    expected = reference(operator.FUSED_ATTENTION, tensors, None)
    assert run_body(operator.FUSED_ATTENTION, tensors, None).shape == expected.shape


class Ragged(torch.nn.Module):
    def forward(self, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
        return torch.ops.msda.attention(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, [2, 1, 3]
        )


def test_translation_of_the_plain_operator_keeps_points_per_level():
    tensors = problem(operator.ATTENTION, [2, 1, 3])
    program = torch.onnx.export(
        Ragged().eval(),
        tuple(tensors.values()),
        dynamo=True,
        verbose=False,
        opset_version=operator.OPSET_VERSION,
        custom_translation_table=operator.translation_table(),
    )
    (node,) = program.model_proto.graph.node
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert (node.domain, node.op_type) == (operator.DOMAIN, operator.ATTENTION)
    assert attributes == {
        "points_per_level": [2, 1, 3],
        "plugin_namespace": b"msda",
        "plugin_version": b"1",
    }
