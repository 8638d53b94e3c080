"""The graph surgery replaces nothing by nodes that give other numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_path.nodes import attention
from onnx_path.surgeon import OutputsDiffer, main, operate
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.graph.partial_models import partial_model
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.rewrite import draft
from onnx_path.surgery.verify import proof
from tests.onnx import attention_layers as layers
from tests.onnx.attention_layers import LEVELS, Attention
from tests.onnx.surgery_checks import export
from tests.onnx.text_models import text_model

WIDE = ((3, 4000), (2, 300), (2, 2))
"""In float32 a cell of a level of thousands is coarser than 1e-5."""


@pytest.fixture
def swapped_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts hold (W, H) instead of (H, W)."""
    right = draft.DraftBuilder.initializer

    def initializer(self, name: str, array: np.ndarray):
        return right(self, name, array[:, ::-1].copy() if array.ndim == 2 else array)

    monkeypatch.setattr(draft.DraftBuilder, "initializer", initializer)


def test_other_numbers_are_refused(stacked, swapped_sizes):
    result, report = operate(stacked)
    assert result is stacked
    assert "the operator's numbers differ by" in report.near_misses[0].reason


def test_a_model_with_other_outputs_is_not_written(
    stacked, swapped_sizes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr(proof, "prove", lambda *arguments: 0.0)
    with pytest.raises(OutputsDiffer, match="output output: differs by"):
        operate(stacked)
    _, report = operate(stacked, check=False)
    assert report.max_error is None
    source = tmp_path / "in.onnx"
    onnx.save(stacked, source)
    assert main([str(source), str(tmp_path / "out.onnx")]) == 1
    assert "is not written: output output: differs" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_last_digits_of_coordinates_are_allowed(tmp_path: Path):
    model = export(
        Attention(layers.by_concat, levels=WIDE), layers.inputs(queries=200, levels=WIDE), tmp_path
    )
    _, report = operate(model)
    (replacement,) = report.of("msda")
    assert replacement.op_type == attention.FUSED_ATTENTION
    assert proof.TOLERANCE < replacement.error < proof.LARGEST_ROUNDING


@pytest.mark.parametrize(("levels", "fault"), [(LEVELS, 3e-5), (WIDE, 3e-4)], ids=["narrow", "wide"])
def test_more_than_last_digits_is_refused(levels, fault: float, tmp_path: Path, monkeypatch):
    model = export(Attention(layers.by_concat, levels=levels), layers.inputs(levels=levels), tmp_path)

    class Faulty(onnx_session.Session):
        """Drafts, which hold functions, give other numbers."""

        def __init__(self, part: onnx.ModelProto, *arguments) -> None:
            super().__init__(part, *arguments)
            self.factor = np.float32(1 + fault if part.functions else 1)

        def run(self, inputs):
            return [x * self.factor if x.dtype == np.float32 else x for x in super().run(inputs)]

    monkeypatch.setattr(onnx_session, "Session", Faulty)
    result, report = operate(model)
    assert result is model
    assert "the operator's numbers differ by" in report.near_misses[0].reason


def test_a_part_has_its_initializers_in_the_order_of_their_readers():
    names = [f"constant{i}" for i in range(20)]
    nodes = [onnx.helper.make_node("Add", [f"x{i}", name], [f"x{i + 1}"]) for i, name in enumerate(names)]
    ends = [onnx.helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [1]) for x in ("x0", "x20")]
    constants = [onnx.numpy_helper.from_array(np.ones(1, np.float32), name) for name in names]
    graph = onnx.helper.make_graph(nodes, "adds", ends[:1], ends[1:], constants)
    model = ir.from_proto(onnx.helper.make_model(graph))
    part = partial_model(model, model.graph.inputs, model.graph.outputs)
    assert [x.name for x in part.graph.initializer] == names


def test_a_proof_replaces_constant_tensors_by_random_ones():
    """A tensor that follows from constants, such as reference points, can be an input of the replacement."""
    body = "s = Mul(c, c) t = Add(s, s) y = Add(x, t)"
    model = text_model(body, "float[1] x", "float[1] y", c=np.float32([3]))
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    probe = Probe(graph, {"x": np.float32([0])})
    values = {value.name: value for node in graph.graph for value in (*node.inputs, *node.outputs)}
    x, s, y = (values[name] for name in "xsy")
    for _ in range(2):
        assert probe.run({x: np.float32([1])}, y) == [19]
        assert probe.run({x: np.float32([1]), s: np.float32([5])}, y) == [11]


@pytest.mark.parametrize("found", [("msda",), ("msda", "linear")], ids=" ".join)
def test_the_rewritten_model_does_not_run_for_its_sizes(found, stacked, monkeypatch: pytest.MonkeyPatch):
    """The proofs tell the sizes of new nodes."""
    measured, run = [], onnx_session.run

    def counted(model: onnx.ModelProto, *arguments):
        measured.append(any(x.name.startswith("shape:") for x in model.graph.output))
        return run(model, *arguments)

    monkeypatch.setattr(onnx_session, "run", counted)
    _, report = operate(stacked, only=found)
    assert report.of("msda") and sum(measured) == 1
