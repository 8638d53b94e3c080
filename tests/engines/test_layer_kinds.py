"""Kinds of layers: of real engines, of generated kernels, by TensorRT's type, and of plugins."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engines.engine_samples import recorded
from trt_plugin.inspection.layer_kinds import (
    ATTENTION,
    GEMM,
    MOVEMENT,
    MSDA,
    NORMALISATION,
    OTHER,
    SORT,
    WINDOW_ATTENTION,
    classify,
)


@pytest.mark.parametrize("name", ["onnx", "dynamo"])
def test_kinds_of_real_layers(name):
    """Compares with the tactics of TensorRT 10.6, which `layer_kinds` reads in another way."""
    found = recorded(name)
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
            assert layer.kind not in (GEMM, MSDA) or layer.type == "PluginV3", layer
    assert counts[GEMM] == sum(layer.tactic.startswith("sm") for layer in found.layers)
    assert counts[NORMALISATION] >= 14 and counts[MOVEMENT] >= 10 and counts[ATTENTION] >= 2


@pytest.mark.parametrize(
    ("steps", "node", "kind"),
    [
        ("AddAddCasMeaSubMulMea", "", NORMALISATION),
        ("AddSqrDivMulCasMulAddResTra", "", NORMALISATION),
        ("Gno", "", NORMALISATION),
        ("MulAddResTraMov", "norm/native_group_norm_4", NORMALISATION),
        ("Mov", "norm/InstanceNormalization", MOVEMENT),
        ("ResSel", "", OTHER),
        ("AddDivCasErfCasAddMulMul", "", OTHER),
        ("Top", "", SORT),
        ("FcAddRelu", "", GEMM),
        ("MaxSubExpSumDiv", "", ATTENTION),
    ],
)
def test_kind_of_a_generated_kernel(steps, node, kind):
    nodes = (f"/encoder/layers.0/{node}",) if node else ()
    assert classify(f"__myl_{steps}_myl3_9", "kgen", f"__myl_{steps}_0x1", nodes) == kind


@pytest.mark.parametrize(
    ("name", "layer_type", "tactic", "node", "kind"),
    [
        ("__myl_FcAddCasMeaSubMulMea_myl4_1", "fusion", "sm80_xmma_gemm_f16", "n/LayerNormalization", GEMM),
        ("conv", "CaskConvolution", "sm80_xmma_fprop_implicit_gemm", "", GEMM),
        ("_gemm_mha_v2_myl3_6", "kgen", "_gemm_mha_v2_0xabc", "", ATTENTION),
        ("softmax", "SoftMax", "", "", ATTENTION),
        ("Reformatting CopyNode for Input Tensor 0 to conv", "Reformat", "", "", MOVEMENT),
        ("(Unnamed Layer* 4) [Shuffle]", "Shuffle", "", "", MOVEMENT),
        ("pool", "CaskPooling", "sm50_xmma_pooling_coalescedC_NHWC_kMAX_3_False", "", OTHER),
        ("relu", "PointWiseV2", "", "ffn/Relu", OTHER),
        ("/encoder/layers.0/norm1/LayerNormalization", "", "", "", OTHER),
    ],
)
def test_kind_of_another_layer(name, layer_type, tactic, node, kind):
    nodes = (f"/encoder/layers.0/{node}",) if node else ()
    assert classify(name, layer_type, tactic, nodes) == kind


@pytest.mark.parametrize(
    ("plugin", "kind"),
    [
        ("FusedMultiScaleDeformableAttention", MSDA),
        ("MultiscaleDeformableAttnPlugin_TRT", MSDA),
        ("WindowAttention", WINDOW_ATTENTION),
        ("GroupNorm", NORMALISATION),
        ("Linear", GEMM),
        ("LinearMax", GEMM),
        ("LinearOfSum", GEMM),
        ("TopKIndices", SORT),
        ("/stages.0/blocks.0/attn/qkv/Linear", GEMM),
        ("/stages.0/blocks.0/mlp/fc1/QuantizedLinear", GEMM),
        ("/stages.0/blocks.0/norm1/QuantizedLayerNorm", NORMALISATION),
        ("/encoder/layers.0/FeedForward", GEMM),
        ("/encoder/layers.0/QuantizedFeedForward", GEMM),
        ("EfficientNMS_TRT", SORT),
        ("CustomQKVToContextPluginDynamic", ATTENTION),
        ("InstanceNormalization_TRT", NORMALISATION),
    ],
)
def test_kind_of_a_plugin(plugin, kind):
    assert classify("node", "PluginV3", "", (), {"PluginType": plugin}) == kind
    assert classify(plugin, "PluginV2", "", ()) == kind
