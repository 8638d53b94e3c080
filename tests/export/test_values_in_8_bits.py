"""Values of MSDA in int8: what quantisation chooses, and what builds of both paths make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("onnxruntime")

import msda
import trt_plugin
from dynamo_path import fused_quantized_linears as dynamo_linears
from dynamo_path.fused_quantized_values import fuse_quantized_values
from dynamo_path.packed_projections import pack_projections, packed_attention
from dynamo_path.quantized_layers import quantize_layers
from dynamo_path.written_out_linears import calls_in_8_bits, write_out_for_tensorrt
from onnx_path.nodes.attention import FUSED_ATTENTION, add_function_bodies, translation_table
from onnx_path.precision import convert_precision
from onnx_path.quantization import attention_values
from onnx_path.quantization.calibration_data import CalibrationData
from onnx_path.quantization.quantizer import Quantizer
from onnx_path.surgery.graph import onnx_session
from onnx_path.tensorrt import model_for_tensorrt
from tests.export.graphs_in_8_bits import lowered
from tests.onnx.map_nodes import build_engine
from trt_plugin import library
from trt_plugin.library import QUANTIZED_LINEAR

LEVELS = ((5, 9), (3, 4), (2, 3))
CELLS = sum(height * width for height, width in LEVELS)
NAMES = ["x", "references", "mask"]


class Network(nn.Module):
    """A norm, an encoder's attention with a mask, an FFN and a head."""

    def __init__(self, heads: int = 8, points: int | tuple[int, ...] = 4, boxes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.boxes = nn.LayerNorm(256), boxes
        self.attention = msda.MultiScaleDeformableAttention(256, heads, 3, points)
        self.up, self.down, self.head = nn.Linear(256, 64), nn.Linear(64, 256), nn.Linear(256, 4)
        self.register_buffer("shapes", torch.tensor(LEVELS))
        self.register_buffer("starts", torch.tensor([0, 45, 57]))
        self.register_buffer("positions", torch.randn(CELLS, 256))

    def forward(self, x: Tensor, references: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(x)
        queries = (x + self.positions)[:, : references.shape[1]]
        if self.boxes:
            references = torch.cat((references, references), -1)
        levels = references, self.shapes, self.starts
        x = x[:, : references.shape[1]] + self.attention(queries, x, *levels, key_padding_mask=mask)
        return self.head(x + self.down(self.up(x).relu()))


def network_inputs(queries: int = CELLS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, CELLS, 256, generator=generator)
    references = torch.rand(2, queries, 3, 2, generator=generator)
    return x, references, torch.arange(CELLS).expand(2, -1) % 7 == 0


def export(
    network: Network, inputs: tuple[Tensor, ...]
) -> tuple[torch.export.ExportedProgram, onnx.ModelProto]:
    program = torch.export.export(network.eval(), inputs)
    model = torch.onnx.export(
        program,
        input_names=NAMES,
        custom_translation_table=translation_table(),
        dynamo=True,
        verbose=False,
    ).model_proto
    add_function_bodies(model)
    return program, model


@pytest.fixture(scope="module", autouse=True)
def few_cells():
    """Lets values have as few cells as those of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_values, "FEWEST_CELLS", CELLS)
        yield


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The network for TensorRT, its inputs by name, its ONNX file, and the quantizer of the file."""
    inputs = network_inputs()
    program, model = export(Network(), inputs)
    quantizer = Quantizer(model, "int8")
    feed = {name: tensor.numpy() for name, tensor in zip(NAMES, inputs, strict=True)}
    data = CalibrationData("key", 2, 1, lambda run: feed)
    quantizer.calibrate(data, "minmax", tmp_path_factory.mktemp("cache"))
    return program, feed, model, quantizer


@pytest.fixture
def fast_layers(monkeypatch):
    """All layers in 8 bits have fast kernels, others have none."""
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: True)
    monkeypatch.setattr(library, "has_fast_quantized_feed_forward", lambda *block: False)
    monkeypatch.setattr(library, "has_fast_linear", lambda *layer: False)


def giver(model: onnx.ModelProto, precision: str = "int8") -> bool:
    """Whether a layer of a file gives MSDA its values in 8 bits."""
    layers = Quantizer(model, precision).layers
    return any(attention_values.attention_values(layer.product) is not None for layer in layers)


# What quantisation chooses.


def test_values_of_an_encoder(exported):
    assert giver(exported[2]) and not giver(exported[2], "fp8")


def test_values_of_a_decoder():
    assert giver(export(Network(boxes=True), network_inputs(20))[1])


@pytest.mark.parametrize("network", [Network(heads=4), Network(points=3)], ids=["4 heads", "3 points"])
def test_values_that_stay(network):
    assert not giver(export(network, network_inputs())[1])


def test_few_cells(exported, monkeypatch):
    monkeypatch.setattr(attention_values, "FEWEST_CELLS", CELLS + 1)
    assert not giver(exported[2])


def test_values_with_another_reader(exported):
    model = onnx.ModelProto()
    model.CopyFrom(exported[2])
    node = next(node for node in model.graph.node if node.op_type == FUSED_ATTENTION)
    model.graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None))
    assert not giver(model)


# The ONNX path.


def test_file(exported):
    """The masked values are in int8; the result is as far from the original as int8 lets it be."""
    _, feed, model, quantizer = exported
    found = quantizer.quantize(quantizer.layers)
    made = {name: node for node in found.graph.node for name in node.output}
    node = next(node for node in found.graph.node if node.op_type == FUSED_ATTENTION)
    chain = []
    while (node := made.get(node.input[0])) is not None and len(chain) < 6:
        chain.append(node.op_type)
    assert chain == ["Reshape", "DequantizeLinear", "QuantizeLinear", "Mul", "Add", "MatMul"]
    one, other = (onnx_session.run(x, feed)[0] for x in (found, model))
    assert np.linalg.norm(one - other) < 0.05 * np.linalg.norm(other)


def test_build(exported, fast_layers):
    """The layer masks and quantises its result, and MSDA reads that."""
    *_, quantizer = exported
    model = quantizer.quantize(quantizer.layers)
    convert_precision(model, "fp16")
    assert model_for_tensorrt.fit_to_tensorrt(model, Path())
    made = {name: node for node in model.graph.node for name in node.output}
    node = next(node for node in model.graph.node if node.op_type == FUSED_ATTENTION)
    fields = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    cut = made[node.input[0]]
    layer = made[cut.input[0]]
    of_layer = {x.name: onnx.helper.get_attribute_value(x) for x in layer.attribute}
    assert (cut.op_type, layer.op_type) == ("Reshape", QUANTIZED_LINEAR)
    assert of_layer["multiply_mask"] == 1 and of_layer["output_type"] == onnx.TensorProto.INT8
    assert fields["value_scale"] == of_layer["output_scale"] > 0 and fields["packed"] == 1


def test_build_in_float32(exported, fast_layers):
    """MSDA reads float32 values as before."""
    *_, quantizer = exported
    model = quantizer.quantize(quantizer.layers)
    model_for_tensorrt.fit_to_tensorrt(model, Path())
    node = next(node for node in model.graph.node if node.op_type == FUSED_ATTENTION)
    assert "value_scale" not in {x.name for x in node.attribute}


# The dynamo path.


def graph_for_tensorrt(
    program: torch.export.ExportedProgram, quantizer: Quantizer, packed: bool = True
) -> torch.fx.GraphModule:
    names = quantizer.ranges_by_weights()
    write_out_for_tensorrt(program, calls_in_8_bits(program, names))
    module = lowered(program)
    if packed:
        pack_projections(module)
    quantize_layers(module, names, "int8")
    return module


def test_same_numbers_as_the_file(exported, fast_layers):
    program, feed, _, quantizer = exported
    module = graph_for_tensorrt(program, quantizer)
    found = module(*(torch.from_numpy(x) for x in feed.values()))
    (expected,) = onnx_session.run(quantizer.quantize(quantizer.layers), feed)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-2, atol=1e-2)
    assert fuse_quantized_values(module) == 0  # in float32


@pytest.mark.parametrize("packed", [True, False])
def test_graph(fast_layers, packed):
    """In 16 bits the attention reads what the layer quantises."""
    network, (x, references, mask) = Network().half(), network_inputs()
    network.shapes, network.starts = Network().shapes, Network().starts
    inputs = x.half(), references, mask
    program, model = export(network, inputs)
    quantizer = Quantizer(model, "int8")
    quantizer.assume_ranges(4.0)
    module = graph_for_tensorrt(program, quantizer, packed)
    before = module(*inputs)
    dynamo_linears.fuse_quantized_linears(module, "int8")
    assert fuse_quantized_values(module) == 1
    operators = packed_attention, torch.ops.msda.quantized_fused_attention.default
    (node,) = (node for node in module.graph.nodes if node.target in operators)
    assert (node.target is packed_attention) == packed
    layer = node.args[0].args[0]
    assert layer.target is dynamo_linears.quantized_linear and layer.args[5] is not None
    assert layer.args[7] == pytest.approx(4 / 127, rel=1e-3)  # a scale in float16
    assert node.args[0].meta["val"].dtype == torch.int8
    torch.testing.assert_close(module(*inputs), before, rtol=2e-2, atol=2e-2)


# Engines.


@pytest.mark.gpu
def test_engine(exported, tmp_path):
    """The engine's result is as far from onnxruntime's of the Q/DQ nodes as 16 bits let it be."""
    _, feed, _, quantizer = exported
    model = quantizer.quantize(quantizer.layers)
    (expected,) = onnx_session.run(model, feed)
    convert_precision(model, "fp16")
    model_for_tensorrt.fit_to_tensorrt(model, tmp_path)
    with trt_plugin.EngineRunner(build_engine(tmp_path, model)) as runner:
        (found,) = runner(feed).values()
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)
