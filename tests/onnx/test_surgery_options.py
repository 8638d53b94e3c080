"""The graph surgery's options, and the cases in which softmax and locations stay outside the node."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from onnx_path.nodes import attention
from onnx_path.surgeon import UnknownOperator, operate
from onnx_path.surgery.rewrite.function_bodies import NVIDIA
from tests.onnx import attention_layers as layers
from tests.onnx.attention_layers import RAGGED, Attention
from tests.onnx.surgery_checks import check_one, export, operators


class WideOffsets(Attention):
    """Offsets in other units than the fused operator's."""

    def locations(self, references: Tensor, offsets: Tensor) -> Tensor:
        return super().locations(references, offsets * 1.5)


@pytest.mark.parametrize(
    ("module", "columns", "note"),
    [
        (Attention(layers.by_stack, softmax=False), 2, "no softmax"),
        (WideOffsets(layers.by_stack), 2, "the operator's numbers differ by"),
        (WideOffsets(layers.by_concat, points=RAGGED), 4, "the operator's numbers differ by"),
    ],
    ids=["sigmoid", "levels", "boxes"],
)
def test_other_weights_and_locations_stay_outside(module, columns: int, note: str, tmp_path: Path):
    model = export(module, layers.inputs(columns=columns), tmp_path)
    result, report = operate(model)
    check_one(model, result, report, attention.ATTENTION)
    assert any(note in text for text in report.notes)


@pytest.mark.parametrize("swapped", [False, True], ids=["bad-second", "bad-first"])
@pytest.mark.parametrize("elsewhere", [-2.0, 0.5])
def test_clipped_locations_are_fused_if_only_those_outside_move(
    elsewhere: float, swapped: bool, tmp_path: Path
):
    """Our reference keeps NaN and large numbers from GridSample; simplifiers swap the branches of Where."""

    def way(value, levels, locations, weights, points):
        near, far = locations.clamp(-2, 3), locations.abs() > 100
        kept = torch.where(far, elsewhere, near) if swapped else torch.where(~far, near, elsewhere)
        return layers.by_stack(value, levels, kept, weights, points)

    model = export(Attention(way), layers.inputs(), tmp_path)
    expected = attention.FUSED_ATTENTION if elsewhere == -2 else attention.ATTENTION
    check_one(model, *operate(model), expected)


def test_without_fusion(stacked: onnx.ModelProto):
    result, report = operate(stacked, fuse=False)
    check_one(stacked, result, report, attention.ATTENTION)
    assert operators(result)["Softmax"] == 1


def test_nvidia_s_plugin(stacked: onnx.ModelProto, tmp_path: Path):
    result, report = operate(stacked, target="nvidia")
    check_one(stacked, result, report, NVIDIA)
    (node,) = (node for node in result.graph.node if node.op_type == NVIDIA)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert attributes == {"plugin_namespace": b"", "plugin_version": b"1"}
    inferred = onnx.shape_inference.infer_shapes(result)
    types = {v.name: v.type.tensor_type for v in inferred.graph.value_info}
    for name in node.input[1:3]:
        assert types[name].elem_type == onnx.TensorProto.INT32
    assert [len(types[name].shape.dim) for name in (node.input[0], *node.input[3:])] == [4, 6, 5]

    ragged = export(Attention(layers.by_concat, points=RAGGED), layers.inputs(), tmp_path)
    result, report = operate(ragged, target="nvidia")
    assert result is ragged
    assert "same number of points at every level, got [2, 4, 1]" in report.near_misses[0].reason


def test_an_operator_that_onnxruntime_does_not_know_hinders_only_the_check(stacked: onnx.ModelProto):
    model = deepcopy(stacked)
    model.graph.node.append(onnx.helper.make_node("Sort", ["output"], ["sorted"], domain="acme"))
    model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    model.graph.output[0].name = "sorted"
    with pytest.raises(UnknownOperator, match=r"acme\.Sort.*--no-check"):
        operate(model)
    result, report = operate(model, check=False)
    assert report.max_error is None
    assert operators(result)[attention.FUSED_ATTENTION] == operators(result)["Sort"] == 1


def test_nothing_else_changes(stacked: onnx.ModelProto):
    model = deepcopy(stacked)
    model.metadata_props.add(key="author", value="somebody")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "unused"))
    before = model.SerializeToString()
    result, _ = operate(model)
    assert model.SerializeToString() == before
    assert {x.key: x.value for x in result.metadata_props} == {"author": "somebody"}
    assert result.ir_version == max(model.ir_version, 8)
    assert list(result.graph.input) == list(model.graph.input)
    assert [x.name for x in result.graph.output] == [x.name for x in model.graph.output]
    read = {name for node in result.graph.node for name in node.input}
    assert {x.name for x in result.graph.initializer} <= read
    again, report = operate(result)
    assert again is result and not report.of("msda")
