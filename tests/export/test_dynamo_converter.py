"""The dynamo path's converters of the MSDA operators.

Torch-TensorRT cannot even be imported without a GPU, so modules of its name stand in for it.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from dynamo_path import converter


@pytest.fixture
def network(plugin) -> Mock:
    """Stands in for tensorrt.INetworkDefinition."""
    return Mock()


@pytest.mark.parametrize("points_per_level", [None, [4, 2, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize(
    ("operator", "packed"),
    [(converter.ATTENTION, False), (converter.FUSED_ATTENTION, False), (converter.FUSED_ATTENTION, True)],
)
def test_plugin_layer(network, operator, packed, points_per_level):
    import tensorrt

    inputs = ["value", "spatial_shapes", "level_start_index", "more"]
    output = converter.add_plugin_layer(network, operator, inputs, points_per_level, "layer 7", packed)
    layer = network.add_plugin_v3.return_value
    tensors, shape_tensors, instance = network.add_plugin_v3.call_args.args
    assert (layer.name, output, tensors, shape_tensors) == ("layer 7", layer.get_output(0), inputs, [])
    assert isinstance(instance, tensorrt.IPluginV3)
    made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
    assert made.metadata_string.startswith("packed") == packed


def test_arguments_by_name_and_types(network, monkeypatch):
    """Reference points are float32. So is every input that has neither the value's type nor float32."""

    def tensor(dtype: str, label: str) -> SimpleNamespace:
        return SimpleNamespace(dtype=SimpleNamespace(name=dtype), label=label)

    utils = SimpleNamespace(
        get_trt_tensor=lambda ctx, value, name: value,
        cast_trt_tensor=lambda ctx, value, dtype, name: tensor(str(dtype), value.label),
    )
    for name in ("torch_tensorrt", "torch_tensorrt.dynamo", "torch_tensorrt.dynamo.conversion"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo.conversion.converter_utils", utils)
    types = ("HALF", "INT64", "INT64", "HALF", "BF16", "HALF")
    *args, logits = (tensor(dtype, label) for label, dtype in zip("abcdef", types, strict=True))
    fused, given = torch.ops.msda.fused_attention.default, {"attention_logits": logits}
    converter.convert(SimpleNamespace(net=network), fused, tuple(args), given, "node")
    tensors = network.add_plugin_v3.call_args.args[0]
    assert "".join(tensor.label for tensor in tensors) == "abcdef"
    float32 = "torch.float32"
    assert [x.dtype.name for x in tensors] == ["HALF", "INT64", "INT64", float32, float32, "HALF"]


@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.tensor([0.5, 0.25])], ids=["one", "channels"])
def test_quantisation_layers(network, scale, monkeypatch):
    """Scales have the floating type of the pair; those of channels lie along the first axis."""
    import tensorrt as trt

    made = []

    def constant(ctx: object, value: object, name: str) -> object:
        if isinstance(value, torch.Tensor):
            made.append(value.dtype)
        return value

    utils = SimpleNamespace(get_trt_tensor=constant)
    for name in ("torch_tensorrt", "torch_tensorrt.dynamo", "torch_tensorrt.dynamo.conversion"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo.conversion.converter_utils", utils)
    ctx, half = SimpleNamespace(net=network), SimpleNamespace(dtype=trt.float16)
    converter.convert_scaling(ctx, converter.quantize, (half, scale, torch.float8_e4m3fn), {}, "node")
    converter.convert_scaling(ctx, converter.dequantize, (Mock(), scale, torch.float16), {}, "node")
    assert made == [torch.float16] * 2
    assert network.add_quantize.call_args.args[2] == trt.fp8
    assert network.add_dequantize.call_args.args[2] == trt.float16
    assert ("axis" in vars(network.add_quantize.return_value)) == bool(scale.ndim)
