"""Layers read from the inspector's JSON, on parts of real engines: tensors, weights, times, errors."""

from __future__ import annotations

import json

import pytest

from tests.engines.engine_samples import recorded
from trt_plugin import EngineError
from trt_plugin.inspection import engine_layers
from trt_plugin.inspection.layer_kinds import ATTENTION, MSDA, OTHER


def only(found: engine_layers.LayerList, text: str) -> engine_layers.Layer:
    """The layer that has a text in its name or nodes."""
    (layer,) = (layer for layer in found.layers if any(text in name for name in (layer.name, *layer.nodes)))
    return layer


def test_plugin_layer():
    layer = only(recorded("onnx"), "/encoder/layers.1/self_attn/FusedMultiScaleDeformableAttention")
    assert (layer.type, layer.kind) == ("PluginV3", MSDA)
    assert layer.attributes["PluginType"] == "FusedMultiScaleDeformableAttention"
    value, shapes, starts, points, *_ = layer.inputs
    assert (value.shape, value.dtype) == ((1, 73656, 8, 32), "fp16")
    assert (shapes.dtype, starts.dtype, points.dtype) == ("int64", "int64", "fp32")
    assert str(layer.outputs[0]) == "1x73656x256 fp16"
    assert layer.origin.path == ("encoder", "layers", "1", "self_attn")
    assert layer.time_ms == pytest.approx(0.178, abs=0.005)
    assert layer.title == "MSDA"


def test_weights_are_what_no_layer_computes():
    """Two sizes of the model: a window attention's projection, and the decoder's feed-forward network."""
    found = recorded("onnx")
    layer = only(found, "/backbone/stages.2/blocks.5/attn/proj/MatMul")
    assert layer.weights_bytes == pytest.approx(2 * (768 * 768 + 768), abs=8)  # and alpha and beta
    assert [tensor.shape for tensor in layer.inputs] == [(3456, 768)]
    layer = only(found, "/decoder/layers.0/ffn/fc1/MatMul")
    assert layer.weights_bytes == pytest.approx(2 * (256 * 2048 + 2048), abs=8)


@pytest.mark.parametrize(
    ("entry", "dtype", "layout"),
    [
        ({"Format/Datatype": "Half"}, "fp16", ""),
        ({"Format/Datatype": "Row major linear FP32 format"}, "fp32", "linear"),
        ({"Format/Datatype": "Channel major FP16 format where C % 8"}, "fp16", "Channel major where C % 8"),
        ({"Datatype": "Float", "Format": "Row major linear"}, "fp32", "linear"),
        ({"Datatype": "FP8", "Format": "N/A due to dynamic shapes"}, "fp8", "due to dynamic shapes"),
        ({}, "", ""),
    ],
)
def test_types_and_formats_of_tensors(entry, dtype, layout):
    layer = {"Name": "x", "LayerType": "Reformat", "Outputs": [{"Name": "y", "Dimensions": [2, -1], **entry}]}
    (found,) = engine_layers.parse(json.dumps({"Layers": [layer]})).layers
    tensor = found.outputs[0]
    assert (tensor.dtype, tensor.layout, tensor.shape, tensor.num_bytes) == (dtype, layout, (2, -1), 0)


def test_names_alone():
    found = engine_layers.parse('{"Layers": ["/encoder/Add", "_gemm_mha_v2_myl3_6"], "Bindings": ["x"]}')
    assert not found.detailed
    assert found.precision is None
    assert [layer.kind for layer in found.layers] == [OTHER, ATTENTION]


@pytest.mark.parametrize("text", ["", "[]", '{"Layers": [3]}', '{"Layers": [{"Inputs": [3]}]}'])
def test_wrong_layer_information_is_one_line(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(EngineError, match=r'x.json: expected \{"Layers".* write it, got [^\n]*$'):
        engine_layers.read_file(path)


@pytest.mark.parametrize("text", ["3", '[{"name": "a"}]', '[{"name": "a", "averageMs": "b"}]', '{"a": 1}'])
def test_wrong_times_are_one_line(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(EngineError, match=r"x.json: expected \[\{.*as trtexec --exportProfile writes it"):
        engine_layers.read_times(path)
