"""8-bit products, products that fell back and conversions, on parts of real INT8 and FP8 engines."""

from __future__ import annotations

import json
import re

import pytest

from tests.engines.engine_samples import RECORDED, recorded
from trt_plugin import inspect
from trt_plugin.inspection import engine_layers, text_report
from trt_plugin.inspection.eight_bits import find_eight_bits

WEIGHTS = "weights dequantised in the build"
VALUE = "input dequantised by decoder: LayerNormalization Slice"
FOUND = {
    "int8": {
        "narrow": [
            "backbone.stages.0.blocks.0.attn.qkv",
            "neck.convs.0.conv",
            "encoder.layers.0.ffn.fc1",
            "decoder.layers.0.cross_attn.value_proj",
        ],
        "wide": ["backbone.patch_embed.projection"],
        "conversions": ["neck.convs.3.conv.weight", "layer_norm_6", "fused_attention"],
        "fallen": {
            "neck.convs.3.conv": "weights dequantised in every run by neck.convs.3.conv.weight/dequantize",
            "decoder.layers.1.cross_attn.value_proj": VALUE,
        },
    },
    "fp8": {
        "narrow": ["encoder.layers.0.ffn.fc1"],
        "wide": ["backbone.conv1"],
        "conversions": [
            "max_pool2d",
            "backbone.layer1.0.conv1.weight",
            "backbone.layer1.0.conv2.weight",
        ],
        "fallen": {
            "backbone.layer1.0.conv1": f"{WEIGHTS}; input dequantised by max_pool2d: fp8 dequantized",
            "backbone.layer1.0.conv2": f"{WEIGHTS}; input dequantised by backbone.layer1.0: Relu",
        },
    },
}


def modules(layers) -> list[str]:
    return [".".join(layer.origin.path) for layer in layers]


@pytest.mark.parametrize("name", FOUND)
def test_layers_of_quantised_engines(name):
    layers = recorded(name)
    found = find_eight_bits(layers.layers)
    for group in ("narrow", "wide", "conversions"):
        assert modules(getattr(found, group)) == FOUND[name][group]
    assert (
        dict(zip(modules(x.layer for x in found.fallen), (x.why for x in found.fallen)))
        == (FOUND[name]["fallen"])
    )
    assert {layer.eight_bits for layer in found.narrow} == {name}
    assert (layers.precision, layers.precisions) == (name, (name, "fp16"))


@pytest.mark.parametrize("name", ["onnx", "dynamo"])
def test_fp16_engines_have_none(name):
    assert find_eight_bits(recorded(name).layers) is None
    assert recorded(name).precisions == ("fp16",)


def test_types_are_enough_where_names_tell_nothing():
    """Names of the model's nodes and of its tensors differ between exporters."""
    content = json.loads((RECORDED / "int8_layers.json").read_text())
    tensors: dict[str, str] = {}
    for layer in content["Layers"]:
        layer["Metadata"] = ""
        if not layer["Name"].startswith("__myl"):
            layer["Name"] = "layer"
        for tensor in (*layer["Inputs"], *layer["Outputs"]):
            tensor["Name"] = tensors.setdefault(tensor["Name"], f"tensor {len(tensors)}")
    content["Bindings"] = [tensors[name] for name in content["Bindings"] if name in tensors]
    found = find_eight_bits(engine_layers.parse(json.dumps(content)).layers)
    assert (len(found.narrow), len(found.conversions)) == (4, 3)
    assert [product.why for product in found.fallen] == ["weights dequantised in every run by layer"]


@pytest.mark.parametrize("timed", [True, False])
def test_command_prints_and_writes_them(tmp_path, capsys, timed):
    path = tmp_path / "report.json"
    times = ["--times", str(RECORDED / "int8_times.json")] if timed else []
    layers = ["--layer-info", str(RECORDED / "int8_layers.json")]
    assert inspect.main([*layers, *times, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    found = find_eight_bits(recorded("int8").layers)
    ms = engine_layers.total_ms(found.narrow)
    assert re.search(rf"^products in 8 bits +4{f' +{ms:.3f} ' if timed else ' *$'}", out, re.M)
    assert re.search(r"neck\.convs\.3\.conv: Conv +fp16 +weights dequantised in every run", out)
    content = json.loads(path.read_text())
    assert content["precision"] == "int8"
    assert content["eight_bits"]["fell_back"] == {x.layer.name: x.why for x in found.fallen}
    group = content["eight_bits"]["groups"]["products in 8 bits"]
    assert group == {"layers": 4} | ({"ms": pytest.approx(ms)} if timed else {})
    told = [layer["name"] for layer in content["layers"] if layer["eight_bits"] == "int8"]
    assert told == [layer.name for layer in found.narrow]

    inspect.main(["--layer-info", str(RECORDED / "onnx_layers.json"), "--json", str(path)])
    assert "8 bits" not in capsys.readouterr().out
    assert json.loads(path.read_text())["eight_bits"] is None


def test_long_lists_are_cut():
    found = find_eight_bits(recorded("fp8").layers)
    table = text_report.fallen_table(found, 1)
    assert list(table.columns[1].cells) == ["backbone.layer1.0.conv2: Conv", "1 more: see --table"]
