"""The dynamo path's converters of the MSDA operators and of `where`.

Torch-TensorRT cannot even be imported without a GPU, so modules of its name stand in for it.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

import trt_plugin
from dynamo_path import converter
from dynamo_path.packed_projections import packed_attention

FUSED = torch.ops.msda.fused_attention.default


class Layer:
    name = ""

    def get_output(self, index: int) -> str:
        return f"output {index} of {self.name}"


class Network:
    """Stands in for tensorrt.INetworkDefinition."""

    def __init__(self, layer: Layer | None) -> None:
        self.layer = layer
        self.calls: list[tuple] = []

    def add_plugin_v3(self, *arguments):
        self.calls.append(arguments)
        return self.layer


class Tensor(SimpleNamespace):
    def __init__(self, dtype: str, *shape: int, label: str = "") -> None:
        super().__init__(dtype=SimpleNamespace(name=dtype), shape=shape, label=label)


@pytest.fixture
def plugin():
    """The loaded plugin library."""
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    try:
        return trt_plugin.load()
    except trt_plugin.EngineError as error:
        pytest.skip(str(error))


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The stand-in for Torch-TensorRT, and the names that converters ask it for."""
    asked: list[str] = []

    def get_trt_tensor(ctx, value, name):
        asked.append(name)
        return value if isinstance(value, Tensor) else Tensor("FLOAT")

    utils = SimpleNamespace(
        get_trt_tensor=get_trt_tensor,
        cast_trt_tensor=lambda ctx, tensor, dtype, name: Tensor(
            f"{dtype}", *tensor.shape, label=tensor.label
        ),
        prepend_ones=lambda ctx, tensor, name, count: Tensor(tensor.dtype.name, *[1] * count, *tensor.shape),
    )
    for name in ("torch_tensorrt", "torch_tensorrt.dynamo", "torch_tensorrt.dynamo.conversion"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo.conversion.converter_utils", utils)
    return asked


@pytest.mark.parametrize("points_per_level", [None, [4, 2, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize(
    ("operator", "packed"),
    [(converter.ATTENTION, False), (converter.FUSED_ATTENTION, False), (converter.FUSED_ATTENTION, True)],
)
def test_plugin_layer(plugin, operator, packed, points_per_level):
    import tensorrt

    network = Network(Layer())
    inputs = ["value", "spatial_shapes", "level_start_index", "more"]
    output = converter.add_plugin_layer(network, operator, inputs, points_per_level, "layer 7", packed)
    ((tensors, shape_tensors, instance),) = network.calls
    assert (output, tensors, shape_tensors) == ("output 0 of layer 7", inputs, [])
    assert isinstance(instance, tensorrt.IPluginV3)
    made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
    assert made.metadata_string.startswith("packed") == packed


def test_packed_attention_becomes_the_fused_plugin_of_five_inputs(asked, monkeypatch):
    tensors = [Tensor(name) for name in ["HALF", "INT64", "INT64", "FLOAT", "HALF"]]
    monkeypatch.setattr(converter, "add_plugin_layer", lambda *given: given)
    added = converter.convert(SimpleNamespace(net="net"), packed_attention, (*tensors, [3, 1]), {}, "node")
    name = f"{converter.FUSED_ATTENTION}-[node]"
    assert added == ("net", converter.FUSED_ATTENTION, tensors, [3, 1], name, True)


def test_arguments_by_name_and_types(plugin, asked):
    """Reference points are float32. So is every input that has neither the value's type nor float32."""
    types = ("HALF", "INT64", "INT64", "HALF", "BF16", "HALF")
    *args, logits = (Tensor(dtype, label=label) for label, dtype in zip("abcdef", types, strict=True))
    network = Network(Layer())
    given = {"attention_logits": logits}
    output = converter.convert(SimpleNamespace(net=network), FUSED, tuple(args), given, "node")
    ((tensors, _, _),) = network.calls
    assert "".join(tensor.label for tensor in tensors) == "abcdef"
    float32 = "torch.float32"
    assert [x.dtype.name for x in tensors] == ["HALF", "INT64", "INT64", float32, float32, "HALF"]
    assert asked[3] == "node_reference_points"
    assert output == f"output 0 of {converter.FUSED_ATTENTION}-[node]"


def test_where_in_bfloat16(asked):
    selected = []

    def add_select(*tensors):
        selected.extend((tensor.dtype.name, tensor.shape) for tensor in tensors)
        return Layer()

    network = SimpleNamespace(add_select=add_select)
    arguments = (Tensor("BOOL", 5, 1), 0.0, Tensor("BF16", 2, 5, 8))
    converter.convert_where(SimpleNamespace(net=network), torch.ops.aten.where.self, arguments, {}, "node")
    assert selected == [("BOOL", (1, 5, 1)), ("torch.bfloat16", (1, 1, 1)), ("BF16", (2, 5, 8))]
