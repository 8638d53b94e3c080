"""The graph surgery's proofs and its comparison of outputs, where a model magnifies roundings."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_path import surgeon
from onnx_path.nodes import attention
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.verify import proof, selections
from onnx_path.surgery.verify.model_comparison import OutputsDiffer, compare
from tests.onnx import model_zoo
from tests.onnx.selecting_models import SCORES, masking, selecting

MODEL, OUTPUT = "vit_adapter", "tokens"
FACTOR = 3e4


@pytest.fixture(scope="module")
def original(zoo_folder: Path) -> onnx.ModelProto:
    return onnx.load(model_zoo.export(MODEL, zoo_folder))


@pytest.fixture(scope="module")
def rewritten(original) -> onnx.ModelProto:
    model, _ = surgeon.operate(original, check=False)
    return model


@pytest.fixture(scope="module")
def inputs() -> list[dict[str, np.ndarray]]:
    _, tensors = model_zoo.ZOO[MODEL].build()
    return [{name: tensor.numpy() for name, tensor in tensors.items()}]


def magnifying(model: onnx.ModelProto, factor: float = FACTOR) -> onnx.ModelProto:
    """The model with sin(factor * x) in place of its first output x."""
    copy = deepcopy(model)
    name = copy.graph.output[0].name
    for node in copy.graph.node:
        node.output[:] = [f"{x}/small" if x == name else x for x in node.output]
        node.input[:] = [f"{x}/small" if x == name else x for x in node.input]
    copy.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(factor), "factor"))
    copy.graph.node.append(onnx.helper.make_node("Mul", [f"{name}/small", "factor"], [f"{name}/large"]))
    copy.graph.node.append(onnx.helper.make_node("Sin", [f"{name}/large"], [name]))
    return copy


def faulty(model: onnx.ModelProto, share: float) -> onnx.ModelProto:
    """The rewritten model with one attention's result wrong by a share of itself."""
    copy = deepcopy(model)
    index = next(i for i, node in enumerate(copy.graph.node) if node.domain == attention.DOMAIN)
    node = copy.graph.node[index]
    result, node.output[0] = node.output[0], "right"
    copy.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1 + share), "wrong"))
    copy.graph.node.insert(index + 1, onnx.helper.make_node("Mul", ["right", "wrong"], [result]))
    return copy


def test_model_that_magnifies_roundings_is_rewritten_and_says_so(original) -> None:
    model = magnifying(original)
    result, report = surgeon.operate(model)
    assert len(report.of("msda")) == model_zoo.ZOO[MODEL].layers
    assert report.max_error > proof.TOLERANCE
    (note,) = report.notes
    assert note.startswith(f"output {OUTPUT} differs by ")
    assert "a rounding: the model magnifies" in note
    onnx.checker.check_model(result)


@pytest.mark.parametrize("factor", [None, FACTOR], ids=["usual", "magnifying"])
@pytest.mark.parametrize("share", [1e-3, 1e-4])
def test_fault_is_no_rounding(original, rewritten, inputs, factor: float | None, share: float) -> None:
    """A result that is wrong in its fourth digit is found in both kinds of model."""
    before, after = (
        model if factor is None else magnifying(model, factor) for model in (original, rewritten)
    )
    _, notes = compare(before, after, inputs, None)
    assert bool(notes) == (factor is not None)
    with pytest.raises(OutputsDiffer, match="differs by"):
        compare(before, faulty(after, share), inputs, None)


def test_chaotic_model_is_refused(original, rewritten, inputs) -> None:
    """A rounding here becomes as large as any fault, so that the comparison can say nothing."""
    with pytest.raises(OutputsDiffer, match=f"output {OUTPUT}: differs by"):
        compare(magnifying(original, 1e8), magnifying(rewritten, 1e8), inputs, None)


@pytest.mark.parametrize(
    ("before", "after", "selection"),
    [
        pytest.param(selecting(0), selecting(2**-21), "best", id="TopK"),
        pytest.param(masking(2**-22), masking(-(2**-22)), "mask", id="Less"),
    ],
)
def test_near_ties_may_be_selected_otherwise(before, after, selection) -> None:
    """Scores that nearly tie with each other, or with a threshold."""
    assert selections.common(before, after) == [selection]
    selected = [onnx_session.run(model, {"x": SCORES})[-1] for model in (before, after)]
    assert not np.array_equal(*selected)
    error, (note,) = compare(before, after, [{"x": SCORES}, {"x": SCORES[:, ::-1]}], None)
    assert error <= proof.TOLERANCE
    assert note.endswith(f"compared with the original's selections: {selection}")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (selecting(0), selecting(0.02), r"output best: differs by 0\.0067"),
        (selecting(-2), selecting(0), r"output best's scores: differs by 0\.67"),
        (masking(0), masking(-0.02), r"output mask's scores: differs by 0\.008"),
    ],
)
def test_other_scores_are_no_near_ties(before, after, message: str) -> None:
    """The rows that are told are the same, but not the scores that they were selected by."""
    with pytest.raises(OutputsDiffer, match=message):
        compare(before, after, [{"x": SCORES}], None)


def test_a_selection_without_indices() -> None:
    before = selecting(0, indices="")
    (best, scores, indices) = onnx_session.run(selections.telling(before, ["best"]), {"x": SCORES})
    assert best.tolist() == [[3, 2, 1 + 2**-22, 1]]
    assert indices.tolist() == [[3, 4, 1, 0]]
    np.testing.assert_array_equal(scores, SCORES)
    tensors = {"x": SCORES, selections.choice_name("best"): indices[:, ::-1]}
    (told, again) = onnx_session.run(selections.told(before, ["best"]), tensors)
    assert told.tolist() == best[:, ::-1].tolist()
    np.testing.assert_array_equal(again, SCORES)
