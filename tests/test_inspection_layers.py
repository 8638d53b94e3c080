"""Layers of engines from the inspector's JSON, on parts of real engines: tensors, weights, kinds, modules."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import engine_layers, layer_kinds, module_names
from trt_plugin.inspection.layer_kinds import ATTENTION, GEMM, MOVEMENT, MSDA, NORMALISATION, OTHER, SORT

SAMPLES = Path(__file__).parent / "inspection"


def sample(name: str) -> engine_layers.LayerList:
    """Part of a real engine, with times."""
    times = engine_layers.read_times(SAMPLES / f"{name}_times.json")
    return engine_layers.read_file(SAMPLES / f"{name}_layers.json").with_times(times)


def only(found: engine_layers.LayerList, text: str) -> engine_layers.Layer:
    """The layer that has a text in its name or nodes."""
    (layer,) = (layer for layer in found.layers if any(text in name for name in (layer.name, *layer.nodes)))
    return layer


def test_plugin_layer():
    layer = only(sample("onnx"), "/encoder/layers.1/self_attn/FusedMultiScaleDeformableAttention")
    assert (layer.type, layer.kind, layer.is_plugin) == ("PluginV3", MSDA, True)
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
    found = sample("onnx")
    layer = only(found, "/backbone/stages.2/blocks.5/attn/proj/MatMul")
    assert layer.weights_bytes == pytest.approx(2 * (768 * 768 + 768), abs=8)  # and alpha and beta
    assert [tensor.shape for tensor in layer.inputs] == [(3456, 768)]
    layer = only(found, "/decoder/layers.0/ffn/fc1/MatMul")
    assert layer.weights_bytes == pytest.approx(2 * (256 * 2048 + 2048), abs=8)
    assert 71e6 < found.weights_bytes < 72e6
    assert found.weights_bytes <= sum(layer.weights_bytes for layer in found.layers)


def test_a_shared_constant_counts_once():
    tensor = {"Name": "w", "Dimensions": [3, 5], "Format/Datatype": "Half"}
    entry = {"LayerType": "gemm", "Inputs": [tensor], "Bias": {"Type": "Float", "Count": 7}}
    content = {"Layers": [{"Name": "a", **entry}, {"Name": "b", **entry}], "Bindings": ["x"]}
    found = engine_layers.parse(json.dumps(content))
    assert [layer.weights_bytes for layer in found.layers] == [58, 58]
    assert found.weights_bytes == 30 + 2 * 28


@pytest.mark.parametrize("name", ["onnx", "dynamo"])
def test_engine_as_a_whole(name):
    found = sample(name)
    assert found.detailed
    assert found.precision == "fp16"
    assert found.bindings[:5] == ("images", "image_shapes", "boxes", "scores", "labels")
    assert [layer.index for layer in found.layers] == list(range(len(found.layers)))
    assert all(layer.time_ms is not None for layer in found.layers)
    assert found.time_ms == pytest.approx(sum(layer.time_ms for layer in found.layers))


@pytest.mark.parametrize("name", ["onnx", "dynamo"])
def test_kinds_of_real_layers(name):
    """By what the tactics of TensorRT 10.6 say, in other words than `kinds` has."""
    found = sample(name)
    counts = Counter(layer.kind for layer in found.layers)
    assert counts[MSDA] == len(found.plugins) > 2
    assert counts[SORT] == 2
    for layer in found.layers:
        if layer.tactic.startswith("_gemm_mha"):
            assert layer.kind == ATTENTION, layer
        elif layer.tactic.startswith("sm"):  # sm80_xmma_gemm…, sm90_xmma_fprop…
            assert layer.kind == GEMM, layer
        elif layer.type in ("signal", "wait", "shape_call", "Constant"):
            assert layer.kind == OTHER, layer
        elif "layer_norm" in str(layer.nodes) or "LayerNorm" in str(layer.nodes):
            assert layer.kind == NORMALISATION, layer
        else:
            assert layer.kind not in (GEMM, MSDA) or layer.is_plugin, layer
    assert counts[GEMM] == sum(layer.tactic.startswith("sm") for layer in found.layers)
    assert counts[NORMALISATION] >= 14 and counts[MOVEMENT] >= 10 and counts[ATTENTION] >= 2


NODE = "/encoder/layers.0/"


@pytest.mark.parametrize(
    ("name", "layer_type", "tactic", "nodes", "kind"),
    [
        ("__myl_AddAddCasMeaSubMulMea_myl3_9", "kgen", "__myl_AddAddCasMeaSubMulMea_0x1", (), NORMALISATION),
        (
            "__myl_AddSqrDivMulCasMulAddResTra_myl3_1",
            "kgen",
            "__myl_AddSqrDivMulCasMulAddResTra_0x1",
            (),
            NORMALISATION,
        ),
        ("__myl_Gno_myl5_1", "kgen", "__myl_Gno_0x1", (), NORMALISATION),
        (
            "__myl_MulAddResTraMov",
            "kgen",
            "__myl_MulAddResTraMov_0x",
            (f"{NODE}norm/native_group_norm_4",),
            NORMALISATION,
        ),
        ("__myl_Mov_myl3_1", "kgen", "__myl_Mov_0x1", (f"{NODE}norm/InstanceNormalization",), MOVEMENT),
        ("__myl_AddDivCasErfCasAddMulMul_myl3_6", "kgen", "__myl_AddDivCasErfCasAddMulMul_0x1", (), OTHER),
        ("__myl_TranReshMove_myl3_3", "kgen", "__myl_TranReshMove_0x1", (), MOVEMENT),
        ("__myl_ResSel_myl3_3", "kgen", "__myl_ResSel_0x1", (), OTHER),
        ("__myl_Top_myl9_1", "kgen", "__myl_Top_0x1", (), SORT),
        ("__myl_FcAddRelu_myl9_1", "kgen", "__myl_FcAddRelu_0x1", (), GEMM),
        (
            "__myl_FcAddCasMeaSubMulMea_myl4_1",
            "fusion",
            "sm80_xmma_gemm_f16_by_fusion_tactic",
            (f"{NODE}norm1/LayerNormalization",),
            GEMM,
        ),
        ("__myl_MaxSubExpSumDiv_myl4_1", "kgen", "__myl_MaxSubExpSumDiv_0x1", (), ATTENTION),
        ("softmax", "SoftMax", "", (), ATTENTION),
        ("_gemm_mha_v2_myl3_6", "kgen", "_gemm_mha_v2_0xabc", (), ATTENTION),
        ("a+b_myl3_2", "gemm", "sm90_xmma_gemm_f16f16", (f"{NODE}self_attn/MatMul",), GEMM),
        ("conv", "CaskConvolution", "sm80_xmma_fprop_implicit_gemm", (), GEMM),
        ("topk", "TopK", "", (), SORT),
        ("Reformatting CopyNode for Input Tensor 0 to conv", "Reformat", "", (), MOVEMENT),
        ("relu", "PointWiseV2", "", (f"{NODE}ffn/Relu",), OTHER),
        ("(Unnamed Layer* 4) [Shuffle]", "Shuffle", "", (), MOVEMENT),
        ("x_myl1_1", "wait", "", (), OTHER),
        ("/encoder/layers.0/norm1/LayerNormalization", "", "", (), OTHER),
    ],
)
def test_kind(name, layer_type, tactic, nodes, kind):
    assert layer_kinds.classify(name, layer_type, tactic, nodes) == kind


@pytest.mark.parametrize(
    ("plugin", "kind"),
    [
        ("MultiScaleDeformableAttention", MSDA),
        ("FusedMultiScaleDeformableAttention", MSDA),
        ("MultiscaleDeformableAttnPlugin_TRT", MSDA),
        ("EfficientNMS_TRT", SORT),
        ("CustomQKVToContextPluginDynamic", ATTENTION),
        ("InstanceNormalization_TRT", NORMALISATION),
        ("MyActivation", OTHER),
    ],
)
def test_kind_of_a_plugin(plugin, kind):
    assert layer_kinds.classify("node", "PluginV3", "", (), {"PluginType": plugin}) == kind
    assert layer_kinds.classify(plugin, "PluginV2", "", ()) == kind


@pytest.mark.parametrize(
    ("entry", "dtype", "layout"),
    [
        ({"Format/Datatype": "Half"}, "fp16", ""),
        ({"Format/Datatype": "Row major linear FP32 format"}, "fp32", "linear"),
        ({"Format/Datatype": "Row major linear BFloat16 format"}, "bf16", "linear"),
        (
            {"Format/Datatype": "Channel major FP16 format where channel % 8 == 0"},
            "fp16",
            "Channel major where channel % 8 == 0",
        ),
        ({"Datatype": "Int64", "Format": "N/A"}, "int64", ""),
        ({"Datatype": "Float", "Format": "Row major linear"}, "fp32", "linear"),
        ({"Datatype": "FP8", "Format": "N/A due to dynamic shapes"}, "fp8", "due to dynamic shapes"),
        ({}, "", ""),
    ],
)
def test_types_and_formats_of_tensors(entry, dtype, layout):
    layer = {"Name": "x", "LayerType": "Reformat", "Outputs": [{"Name": "y", "Dimensions": [2, -1], **entry}]}
    (found,) = engine_layers.parse(json.dumps({"Layers": [layer]})).layers
    assert (found.outputs[0].dtype, found.outputs[0].layout, found.outputs[0].shape) == (
        dtype,
        layout,
        (2, -1),
    )
    assert found.outputs[0].num_bytes == 0  # a size is unknown


def test_names_alone():
    found = engine_layers.parse('{"Layers": ["/encoder/Add", "_gemm_mha_v2_myl3_6"], "Bindings": ["x"]}')
    assert not found.detailed
    assert found.precision is None
    assert [layer.kind for layer in found.layers] == [OTHER, ATTENTION]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.json is not JSON: "),
        ("[" * 100_000, "x.json is not JSON: "),
        ("[]", 'x.json: expected {"Layers": [...]}, as TensorRT'),
        ('{"Layers": [3]}', 'x.json: expected {"Layers": [...]}'),
        (
            '{"Layers": []}',
            "x.json lists no layers: the engine was built with profiling verbosity NONE; build it",
        ),
        ('{"Layers": [{"Inputs": [3]}]}', "x.json: a layer is not as TensorRT writes it (AttributeError("),
        (
            '{"Layers": [{"Inputs": [{"Dimensions": "ab"}]}]}',
            "x.json: a layer is not as TensorRT writes it (Value",
        ),
    ],
)
def test_wrong_layer_information_is_one_line(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(EngineError) as caught:
        engine_layers.read_file(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["3", "[]", '[{"count": 3}]', '[{"name": "a"}]', '[{"name": "a", "averageMs": "b"}]', '{"a": 1}']
)
def test_wrong_times_are_one_line(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(EngineError, match=r"x.json: expected \[\{.*as trtexec --exportProfile writes it"):
        engine_layers.read_times(path)


def test_times_of_another_engine_are_refused():
    with pytest.raises(EngineError, match="1 of 1 names are no layer's of this one, conv_9 for one"):
        sample("onnx").with_times({"conv_9": 1.0})


def test_median_is_preferred_to_the_average(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(
        '[{"count": 3}, {"name": "a", "timeMs": 9, "averageMs": 3.0, "medianMs": 2.0, "percentage": 100}]'
    )
    assert engine_layers.read_times(path) == {"a": 2.0}


@pytest.mark.parametrize(
    ("name", "path", "operator"),
    [
        ("/backbone/stages.2/blocks.5/attn/qkv/MatMul_3", "backbone.stages.2.blocks.5.attn.qkv", "MatMul"),
        ("/encoder/layers.0/ffn/fc1/linear_12 [MATRIX_MULTIPLY]", "encoder.layers.0.ffn.fc1", "linear"),
        (
            "[CONVOLUTION]-[aten_ops.convolution]-[backbone.patch_embed.projection/convolution]",
            "backbone.patch_embed.projection",
            "convolution",
        ),
        (
            "FusedMultiScaleDeformableAttention-[encoder.layers.3.self_attn/fused_attention_3]",
            "encoder.layers.3.self_attn",
            "fused_attention",
        ),
        (
            "[MATRIX_MULTIPLY]_[aten_ops_linear]_[encoder_layers_1_ffn_fc1/linear_matrix_multiply]",
            "(top)",
            "linear_matrix_multiply",
        ),
        ("node_topk__0", "(top)", "topk"),
        ("/Reshape", "(top)", "Reshape"),
        ("", "(top)", ""),
    ],
)
def test_module_and_operator_of_a_node(name, path, operator):
    found = module_names.split(name)
    assert (module_names.text(found[0]), found[1]) == (path, operator)


def test_names_are_read_as_they_are_written():
    scopes = [
        "",
        "backbone",
        "backbone.stages.2",
        "backbone.stages.2.blocks.5",
        "backbone.stages.2.blocks.5.attn",
    ]
    name = module_names.node_name(scopes, "MatMul_4")
    assert name == "/backbone/stages.2/blocks.5/attn/MatMul_4"
    assert module_names.split(name) == (("backbone", "stages", "2", "blocks", "5", "attn"), "MatMul")
    assert module_names.node_name([], "Add") == module_names.node_name([""], "Add") == "/Add"
    assert module_names.node_name(["a.b", "c"], "Add") == "/a.b/c/Add"


@pytest.mark.parametrize("separator", ["", "\x1e", "\x1f"])
def test_nodes_in_metadata(separator):
    text = separator.join(
        ("[ONNX Layer: /a/Add]", "[Torch Node: /b.0/mul_2]", "[ONNX Layer: x [y]]", "[ONNX Layer: /a/Add]")
    )
    assert module_names.node_names(text) == ("/a/Add", "/b.0/mul_2", "x [y]")
    assert module_names.node_names("") == ()


def test_origin_is_the_module_of_most_nodes():
    origin = module_names.origin_of(["/a.0/norm/Add", "/a.0/attn/MatMul_1", "/a.0/attn/Add + /a.0/attn/Mul"])
    assert origin.path == ("a", "0", "attn")
    assert origin.operators == ("Add", "MatMul", "Mul")
    assert module_names.origin_of([]).path == ()


def test_block_is_the_innermost_numbered_module():
    assert module_names.block_of(("encoder", "layers", "0", "self_attn")) == ("encoder", "layers", "0")
    assert module_names.block_of(("query_selection", "norm")) == ("query_selection",)
    assert module_names.block_of(()) == ()
