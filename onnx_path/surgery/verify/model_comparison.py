"""Comparing the outputs of two models on random inputs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx

from onnx_path import operator
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.graph.protobuf import replace_nodes
from onnx_path.surgery.verify import selections
from onnx_path.surgery.verify.proof import TOLERANCE, relative_error, same_numbers

DISTURBANCE = 2.0**-20
"""Least share of an attention's result that is a rounding: a sum of dozens of products in another order."""

MAGNIFICATION = 4.0
"""A rounding may be so many times the response to a disturbance; both are one draw of many."""

LARGEST_OUTPUT_ROUNDING = 0.05
"""Share of an output's largest number beyond which a rounding could hide a fault."""

_PREFIX = "disturbed/"


class OutputsDiffer(ValueError):
    """The rewritten model gives other outputs."""


def compare(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    inputs: Sequence[dict[str, np.ndarray]],
    folder: Path | None,
    disturbance: float = DISTURBANCE,
) -> tuple[float, list[str]]:
    """Runs both models in onnxruntime and compares every output.

    Two correct attentions round differently, and a deep network can magnify this; with random weights it does
    so a hundred thousand times in some rows. Therefore an output that differs by more than `TOLERANCE` is
    compared with the effect of disturbing the last digits of the rewritten model's attentions. Up to
    `MAGNIFICATION` times that effect is a rounding, unless it exceeds `LARGEST_OUTPUT_ROUNDING`.

    A selection between nearly equal scores magnifies without bound. If outputs differ, the rewritten model
    runs again with the original's selections, and the scores are compared as well.

    Args:
        before, after: the models.
        inputs: one set for every comparison.
        folder: of weights outside the models.
        disturbance: the share by which an attention's result may be off.

    Returns:
        The largest relative difference, and notes on outputs that differ by no more than roundings explain.

    Raises:
        OutputsDiffer: naming the first output that differs.
        onnx_session.CannotRun: onnxruntime cannot run one of the models.
    """
    names = [output.name for output in before.graph.output]
    original = onnx_session.Session(before, folder)
    expected = [original.run(tensors) for tensors in inputs]
    try:
        worst, notes = _judge(names, expected, after, inputs, folder, disturbance)
    except OutputsDiffer:
        selected = selections.common(before, after)
        if not selected:
            raise
        results = _run(selections.telling(before, selected), inputs, folder)
        kept = len(names) + len(selected)
        expected = [one[:kept] for one in results]
        told = [
            tensors | dict(zip(map(selections.choice_name, selected), one[kept:], strict=True))
            for tensors, one in zip(inputs, results, strict=True)
        ]
        names += [f"{name}'s scores" for name in selected]
        after = selections.told(after, selected)
        worst, notes = _judge(names, expected, after, told, folder, disturbance)
        notes.append(
            "scores that are equal, or as large as a threshold, but for their last digits are selected "
            f"otherwise; outputs were compared with the original's selections: {', '.join(selected)}"
        )
    return worst, [*notes, *([onnx_session.STAND_IN] if original.stand_in else [])]


def _run(
    model: onnx.ModelProto, inputs: Sequence[dict[str, np.ndarray]], folder: Path | None
) -> list[list[np.ndarray]]:
    session = onnx_session.Session(model, folder)
    return [session.run(tensors) for tensors in inputs]


def _judge(
    names: Sequence[str],
    expected: Sequence[Sequence[np.ndarray]],
    after: onnx.ModelProto,
    inputs: Sequence[dict[str, np.ndarray]],
    folder: Path | None,
    disturbance: float,
) -> tuple[float, list[str]]:
    """Checks that a model's outputs are the expected ones but for roundings.

    Args:
        names: of the outputs.
        expected: the outputs for every set of inputs.
        after: the model. It runs once, and once more disturbed if outputs differ.
        inputs, folder, disturbance: as for `compare`.

    Returns:
        The largest relative difference, and notes on roundings.

    Raises:
        OutputsDiffer: naming the first output that differs.
    """
    actual = _run(after, inputs, folder)

    @functools.cache
    def disturbed_outputs() -> list[list[np.ndarray]]:
        return _run(disturbed(after, disturbance), inputs, folder)

    worst = 0.0
    notes = {}
    for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
        for index, (name, a, b) in enumerate(zip(names, one, other, strict=True)):
            if a.shape != b.shape:
                raise OutputsDiffer(f"output {name}: shape {list(a.shape)} before, {list(b.shape)} after")
            error = relative_error(a, b)
            if not error <= TOLERANCE:
                response = relative_error(b, disturbed_outputs()[number][index])
                if not error <= min(MAGNIFICATION * response, LARGEST_OUTPUT_ROUNDING):
                    raise OutputsDiffer(_difference(name, a, b, error))
                notes[name] = (
                    f"output {name} differs by {error:.1e} of its largest number, a rounding: the model "
                    f"magnifies {disturbance:.0e} of its attentions' results to {response:.1e}"
                )
            worst = max(worst, error)
    return worst, list(notes.values())


def _difference(name: str, before: np.ndarray, after: np.ndarray, error: float) -> str:
    with np.errstate(invalid="ignore"):  # of equal infinities
        distance = np.where(same_numbers(before, after), 0, np.abs(before.astype(float) - after))
    where = np.unravel_index(np.argmax(distance), before.shape)
    return (
        f"output {name}: differs by {error:.2g} of its largest number (allowed {TOLERANCE:.0e}), "
        f"most at {[int(i) for i in where]}: {before[where]:.6g} before, {after[where]:.6g} after"
    )


def disturbed(model: onnx.ModelProto, disturbance: float = DISTURBANCE) -> onnx.ModelProto:
    """Returns a copy in which every attention's result is x (1 + d sin(k x)): off in the last digits.

    Every number changes by another share of up to d, by the same in every run.

    Args:
        model: a model with MSDA nodes.
        disturbance: d.
    """
    copy = deepcopy(model)
    constants = {"share": disturbance, "frequency": 1e4}
    for name, number in constants.items():
        copy.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(number), f"{_PREFIX}{name}"))
    make = onnx.helper.make_node
    nodes = []
    for node in copy.graph.node:
        nodes.append(node)
        if node.domain not in (operator.DOMAIN, operator.NVIDIA_DOMAIN):
            continue
        result = node.output[0]
        exact, phase, wave, small, change, share, frequency = (
            f"{_PREFIX}{result}/{part}"
            for part in ("exact", "phase", "wave", "small", "change", "share", "frequency")
        )
        node.output[0] = exact
        nodes += [
            make("CastLike", [f"{_PREFIX}share", exact], [share]),
            make("CastLike", [f"{_PREFIX}frequency", exact], [frequency]),
            make("Mul", [exact, frequency], [phase]),
            make("Sin", [phase], [wave]),
            make("Mul", [wave, share], [small]),
            make("Mul", [small, exact], [change]),
            make("Add", [exact, change], [result]),
        ]
    replace_nodes(copy.graph, nodes)
    return copy
