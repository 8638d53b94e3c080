"""The dynamo path's converters of the operators.

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
    network = Mock()
    network.add_plugin_v3.return_value.num_outputs = 1
    return network


@pytest.mark.parametrize(
    ("operator", "fields", "said"),
    [
        (converter.ATTENTION, {}, "equal points per level"),
        (converter.ATTENTION, {"points_per_level": [4, 2, 1]}, "points_per_level=[4,2,1]"),
        (converter.FUSED_ATTENTION, {"packed": 1}, "packed, equal points per level"),
        (converter.WINDOW_ATTENTION, {"window_size": 12, "shift": 6}, "window_size=12 shift=6"),
        (
            converter.WINDOW_ATTENTION,
            {"window_size": 12, "shift": 6, "output_scale": 0.25},
            "window_size=12 shift=6 output_scale=0.25",
        ),
        (converter.TOP_K_INDICES, {"count": 900}, "count=900"),
        (converter.LINEAR_MAX, {}, ""),
        (converter.LINEAR_OF_SUM, {}, ""),
        (converter.GROUP_NORM, {"num_groups": 32, "eps": 1e-5}, "num_groups=32 eps=1e-05"),
        (
            converter.LINEAR,
            {"activation": 0, "add_residual": 1, "multiply_mask": 0, "normalise": 1, "eps": 1e-3},
            "activation=0 add_residual=1 multiply_mask=0 normalise=1 eps=0.001",
        ),
        (
            converter.QUANTIZED_LAYER_NORM,
            {"eps": 1e-5, "output_type": 17, "scale": 0.25},
            "eps=1e-05 output_type=17 scale=0.25",
        ),
        (converter.FEED_FORWARD, {"eps": 1e-3}, "eps=0.001"),
        (
            converter.QUANTIZED_FEED_FORWARD,
            {"x_scale": 0.25, "hidden_scale": 0.5, "eps": 1e-5, "next_scale": 0.0},
            "x_scale=0.25 hidden_scale=0.5 eps=1e-05 next_scale=0",
        ),
    ],
    ids=str,
)
def test_plugin_layer(network, operator, fields, said):
    import tensorrt

    inputs = ["value", "spatial_shapes", "level_start_index", "more"]
    output = converter.add_plugin_layer(network, operator, inputs, fields, "layer 7")
    layer = network.add_plugin_v3.return_value
    tensors, shape_tensors, instance = network.add_plugin_v3.call_args.args
    assert (layer.name, output, tensors, shape_tensors) == ("layer 7", layer.get_output(0), inputs, [])
    assert isinstance(instance, tensorrt.IPluginV3)
    made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
    assert made.metadata_string == said


def standing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the modules of Torch-TensorRT that converters import."""
    utils = SimpleNamespace(
        get_trt_tensor=lambda ctx, value, name: value,
        cast_trt_tensor=lambda ctx, value, dtype, name: stand_in(str(dtype), value.label),
    )
    for name in ("torch_tensorrt", "torch_tensorrt.dynamo", "torch_tensorrt.dynamo.conversion"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo.conversion.converter_utils", utils)


def stand_in(dtype: str, label: str) -> SimpleNamespace:
    """A tensor of TensorRT."""
    return SimpleNamespace(dtype=SimpleNamespace(name=dtype), label=label)


def converted(network: Mock, monkeypatch: pytest.MonkeyPatch, target, types, *numbers, **given) -> list:
    """Converts a call of tensors of some types, and `numbers`; returns the types of the layer's inputs."""
    standing_in(monkeypatch)
    args = [dtype and stand_in(dtype, label) for dtype, label in zip(types, "abcdefghi")]
    named = {name: args.pop() for name in given}
    converter.convert(SimpleNamespace(net=network), target, (*args, *numbers), named, "node")
    tensors = network.add_plugin_v3.call_args.args[0]
    assert [x.label for x in tensors] == [label for dtype, label in zip(types, "abcdefghi") if dtype]
    return [x.dtype.name for x in tensors]


def test_arguments_by_name_and_types(network, monkeypatch):
    """Reference points are float32. So is every input that has neither the value's type nor float32."""
    types = ("HALF", "INT64", "INT64", "HALF", "BF16", "HALF")
    fused = torch.ops.msda.fused_attention.default
    found = converted(network, monkeypatch, fused, types, attention_logits=True)
    assert found == ["HALF", "INT64", "INT64", "torch.float32", "torch.float32", "HALF"]


@pytest.mark.parametrize(("scale", "said"), [(None, ""), (0.5, " output_scale=0.5")])
@pytest.mark.parametrize("padding", ["BF16", None])
def test_inputs_of_window_attention_have_one_type(network, monkeypatch, padding, scale, said):
    import tensorrt

    target, types = torch.ops.msda.window_attention.default, ("HALF", "FLOAT", padding)
    found = converted(network, monkeypatch, target, types, 12, 6, scale)
    assert found == ["HALF", "torch.float16", "torch.float16"][: 3 if padding else 2]
    instance = network.add_plugin_v3.call_args.args[2]
    made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
    assert made.metadata_string == "window_size=12 shift=6" + said


def test_inputs_of_group_norm_have_one_type(network, monkeypatch):
    import tensorrt

    target, types = torch.ops.msda.group_norm.default, ("BF16", "FLOAT", "HALF")
    found = converted(network, monkeypatch, target, types, 32, 1e-5)
    assert found == ["BF16", "torch.bfloat16", "torch.bfloat16"]
    instance = network.add_plugin_v3.call_args.args[2]
    made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
    assert made.metadata_string == "num_groups=32 eps=1e-05"


def test_inputs_of_feed_forward_have_one_type(network, monkeypatch):
    import tensorrt

    target, types = torch.ops.msda.feed_forward.default, ("BF16", "FLOAT", "HALF", *["BF16"] * 4)
    found = converted(network, monkeypatch, target, types, 1e-3)
    assert found == ["BF16", "torch.bfloat16", "torch.bfloat16", *["BF16"] * 4]
    instance = network.add_plugin_v3.call_args.args[2]
    made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
    assert made.metadata_string == "eps=0.001"


@pytest.mark.parametrize(("dtype", "number"), [(torch.int8, 3), (torch.float8_e4m3fn, 17)], ids=str)
def test_fields_of_quantized_layer_norm(network, monkeypatch, dtype, number):
    import tensorrt

    target, types = torch.ops.msda.quantized_layer_norm.default, ("BF16", "FLOAT", "BF16")
    found = converted(network, monkeypatch, target, types, 1e-5, 0.25, dtype)
    assert found == ["BF16", "torch.bfloat16", "BF16"]
    instance = network.add_plugin_v3.call_args.args[2]
    made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
    assert made.metadata_string == f"eps=1e-05 output_type={number} scale=0.25"


def test_fields_of_quantized_feed_forward(network, monkeypatch):
    import tensorrt

    float32, packed = ("FLOAT", "FLOAT"), "INT32"
    types = "HALF", packed, *float32, packed, *float32, "HALF", "HALF"
    standing_in(monkeypatch)
    tensors = [stand_in(dtype, label) for dtype, label in zip(types, "abcdefghi", strict=True)]
    ctx, numbers = SimpleNamespace(net=network), (0.25, 0.5, 1e-5)
    network.add_plugin_v3.return_value.get_output = "yq".__getitem__
    for others, outputs, said in (((), "y", "0"), ((0.5,), ("y", "q"), "0.5")):
        network.add_plugin_v3.return_value.num_outputs = len(outputs)
        arguments = (*tensors, *numbers, *others)
        assert converter.convert(ctx, converter.quantized_feed_forward, arguments, {}, "node") == outputs
        inputs, _, instance = network.add_plugin_v3.call_args.args
        assert inputs == tensors
        made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
        assert made.metadata_string == f"x_scale=0.25 hidden_scale=0.5 eps=1e-05 next_scale={said}"


def test_inputs_of_linear_have_one_type(network, monkeypatch):
    import tensorrt

    target = torch.ops.msda.linear.default
    for optional, switches in (
        (("FLOAT", "FLOAT", None, None), "add_residual=1 multiply_mask=1 normalise=0"),
        (("FLOAT", None, "HALF", "FLOAT"), "add_residual=1 multiply_mask=0 normalise=1"),
    ):
        types = "BF16", "FLOAT", "HALF", *optional
        standing_in(monkeypatch)
        args = [dtype and stand_in(dtype, label) for dtype, label in zip(types, "abcdefg", strict=True)]
        converter.convert(SimpleNamespace(net=network), target, (*args, "none", 1e-3), {}, "node")
        tensors, _, instance = network.add_plugin_v3.call_args.args
        bias, names = "c", "".join(label if kind else "c" for kind, label in zip(optional, "defg"))
        assert [x.label for x in tensors] == ["a", "b", bias, *names]
        assert [x.dtype.name for x in tensors] == ["BF16", *["torch.bfloat16"] * 6]
        made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
        assert made.metadata_string == f"activation=0 {switches} eps=0.001"


def test_weights_of_linear_max_are_float32(network, monkeypatch):
    target, types = torch.ops.msda.linear_max.default, ("HALF", "HALF", "FLOAT")
    assert converted(network, monkeypatch, target, types) == ["HALF", "torch.float32", "FLOAT"]


def test_inputs_that_a_call_of_linear_lacks():
    """The plugin has all inputs: zeros for the bias, and the bias for the others."""
    weight, names = torch.rand(5, 3), ["residual", "mask", "norm_weight", "norm_bias"]
    inputs = converter._inputs_of_linear("x", weight)
    assert list(inputs) == ["x", "weight", "bias", *names]
    assert all(inputs[name] is inputs["bias"] for name in names)
    assert torch.equal(inputs["bias"], torch.zeros(5))
    given = converter._inputs_of_linear("x", weight, **dict(zip(names, names)))
    assert list(given) == list(inputs) and [given[name] for name in names] == names
    assert torch.equal(given["bias"], torch.zeros(5))


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


@pytest.mark.parametrize(("eight_bits", "output_type"), [("INT8", 3), ("FP8", 17)])
def test_quantized_linear(network, monkeypatch, eight_bits, output_type):
    """The bias stands for a missing residual or mask. 16-bit inputs get the type of the call."""
    import tensorrt

    standing_in(monkeypatch)
    x, residual = stand_in(eight_bits, "x"), stand_in("FLOAT", "residual")
    context, constants = SimpleNamespace(net=network), ("weight", "scale", "bias")
    for more, inputs, said in (
        ((residual, None, "none", None), ("residual", "bias"), (0, 1, 16)),
        ((None, None, "gelu", 0.5), ("bias", "bias"), (1, 0, output_type)),
    ):
        call = (x, *constants, *more, torch.bfloat16)
        converter.convert_quantized_linear(context, None, call, {}, "node")
        tensors, _, instance = network.add_plugin_v3.call_args.args
        assert [getattr(tensor, "label", tensor) for tensor in tensors] == ["x", *constants, *inputs]
        assert getattr(tensors[4], "dtype", None) in (None, stand_in("torch.bfloat16", "").dtype)
        made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
        words = "activation={} add_residual={} multiply_mask=0 output_type={} output_scale=".format(*said)
        assert made.metadata_string.startswith(words)
