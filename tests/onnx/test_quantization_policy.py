"""The layers that become 8 bits: over the zoo, and in graphs that hypothesis draws."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from codetr.cli import main
from onnx_path.quantization.placement import FORMATS, find_sources, insert_nodes
from onnx_path.quantization.policy import CONVOLUTIONS, DECODER, HEADS, SAMPLING, Policy
from onnx_path.opset import opset_of
from onnx_path.surgeon import operate
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.verify.random_inputs import input_shapes, random_inputs
from tests.onnx import model_zoo
from tests.onnx.model_zoo import ZOO

# Layers in 8 bits, and layers kept: sampling, heads, decoder, convolutions.
COUNTS = {
    "bevformer_spatial": (1, 2, 1, 0, 0),
    "bevformer_temporal": (1, 2, 1, 0, 0),
    "co_dino_r50": (25, 4, 10, 5, 8),
    "co_dino_ragged": (25, 4, 10, 5, 8),
    "co_dino_swin": (38, 6, 13, 8, 1),
    "d_fine": (40, 4, 17, 14, 87),
    "deformable_detr": (27, 6, 9, 4, 5),
    "deformable_detr_two_stage": (21, 6, 19, 11, 5),
    "grounding_dino": (56, 6, 15, 27, 1),
    "mask2former": (47, 4, 11, 12, 2),
    "mask_dino": (3, 7, 5, 1, 0),
    "omdet_turbo": (82, 4, 9, 16, 1),
    "rf_detr": (32, 4, 9, 12, 1),
    "rf_detr_two_levels": (43, 4, 9, 12, 1),
    "rt_detr": (61, 4, 13, 14, 8),
    "rt_detr_v2": (61, 4, 13, 14, 8),
    "vit_adapter": (4, 4, 1, 0, 4),
}
REASONS = (SAMPLING, HEADS, DECODER, CONVOLUTIONS)


FAST = ("co_dino_swin", "deformable_detr", "rt_detr")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in ZOO]
)
@pytest.mark.parametrize("precision", ["int8", pytest.param("fp8", marks=pytest.mark.slow)])
def test_every_model_is_quantized(name: str, precision: str, zoo_folder: Path, tmp_path: Path):
    """By the command, before surgery; the result runs. After surgery the same layers are chosen."""
    ZOO[name].require()
    path = model_zoo.export(name, zoo_folder)
    original = onnx.load(path)
    model = ir.from_proto(original)
    inputs = random_inputs(model, input_shapes(model, 0), 0)
    np.savez(tmp_path / "data.npz", **inputs)
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    command = ["quantize", path, out, "--precision", precision, "--method", "minmax", "--json", report]
    assert main([*map(str, command), "--data", str(tmp_path / "data.npz")]) == 0
    found = json.loads(report.read_text())
    counts = (found["layers"], *(found["kept"].get(reason, 0) for reason in REASONS))
    assert counts == COUNTS[name]
    quantized = onnx.load(out)
    nodes = Counter(node.op_type for node in quantized.graph.node)
    assert nodes["DequantizeLinear"] > nodes["QuantizeLinear"] > 0
    outputs = onnx_session.run(quantized, inputs)
    for one, other in zip(outputs, onnx_session.run(original, inputs), strict=True):
        assert one.shape == other.shape and np.isfinite(one).all() == np.isfinite(other).all()
    operated, _ = operate(original, check=False)
    layers, kept = Policy(ir.from_proto(operated).graph, opset_of(operated)).counts()
    assert (layers, kept) == (found["layers"], found["kept"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of ranges."""
    monkeypatch.setenv("CODETR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ranges"
