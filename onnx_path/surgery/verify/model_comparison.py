"""Comparing the outputs of two models on random inputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx

from onnx_path.nodes import attention
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.graph.protobuf import replace_nodes
from onnx_path.surgery.graph.traversal import STANDARD_DOMAINS
from onnx_path.surgery.verify import selections
from onnx_path.surgery.verify.proof import TOLERANCE, relative_error, same_numbers

DISTURBANCE = 2.0**-20
"""Least share of an attention's result that is a rounding: a sum of dozens of products in another order."""

MAGNIFICATION = 4.0
"""A rounding may be so many times the response to a disturbance; both are one draw of many."""

LARGEST_OUTPUT_ROUNDING = 0.05
"""Share of an output's largest number beyond which a rounding could hide a fault."""

_DISTURB = """<domain: "disturbed", opset_import: ["" : %d]> Disturb (exact) => (result) {
    share = Constant <value_float = %.20f> ()
    frequency = Constant <value_float = 10000.0> ()
    share_as = CastLike(share, exact)
    frequency_as = CastLike(frequency, exact)
    phase = Mul(exact, frequency_as)
    wave = Sin(phase)
    small = Mul(wave, share_as)
    change = Mul(small, exact)
    result = Add(exact, change)
}"""


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
    runs again with the original's selections, and the scores are compared as well. The original runs once.

    Args:
        before, after: the models, with weights outside them in `folder`.
        inputs: one set for every comparison.
        disturbance: the share by which an attention's result may be off.

    Returns:
        The largest relative difference, and notes on outputs that differ by no more than roundings explain.

    Raises:
        OutputsDiffer: naming the first output that differs.
        onnx_session.CannotRun: onnxruntime cannot run one of the models.
    """
    names = [output.name for output in before.graph.output]
    selected = selections.common(before, after)
    original = onnx_session.Session(selections.telling(before, selected), folder)
    results = [original.run(tensors) for tensors in inputs]
    notes = [onnx_session.STAND_IN] if original.stand_in else []
    del original  # which holds the memory of its largest tensors
    expected = [one[: len(names)] for one in results]
    try:
        worst, more = _judge(names, expected, after, inputs, folder, disturbance)
    except OutputsDiffer:
        if not selected:
            raise
        kept = len(names) + len(selected)
        expected = [one[:kept] for one in results]
        told = [
            tensors | dict(zip(map(selections.choice_name, selected), one[kept:], strict=True))
            for tensors, one in zip(inputs, results, strict=True)
        ]
        names += [f"{name}'s scores" for name in selected]
        after = selections.told(after, selected)
        worst, more = _judge(names, expected, after, told, folder, disturbance)
        more.append(
            "scores that are equal, or as large as a threshold, but for their last digits are selected "
            f"otherwise; outputs were compared with the original's selections: {', '.join(selected)}"
        )
    return worst, [*more, *notes]


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
    """Checks that the outputs of `after` are the expected ones but for roundings; as `compare`.

    The model runs once, and once more disturbed if outputs differ so little that it could be a rounding.
    """
    actual = _run(after, inputs, folder)
    pairs = [
        (name, a, b)
        for one, other in zip(expected, actual, strict=True)
        for name, a, b in zip(names, one, other, strict=True)
    ]
    errors = []
    for name, a, b in pairs:
        if a.shape != b.shape:
            raise OutputsDiffer(f"output {name}: shape {list(a.shape)} before, {list(b.shape)} after")
        error = relative_error(a, b)
        if not error <= LARGEST_OUTPUT_ROUNDING:  # spares the disturbed run
            raise OutputsDiffer(_difference(name, a, b, error))
        errors.append(error)
    worst = max(errors, default=0.0)
    if worst <= TOLERANCE:
        return worst, []
    moved = itertools.chain.from_iterable(_run(disturbed(after, disturbance), inputs, folder))
    notes = {}
    for (name, a, b), error, c in zip(pairs, errors, moved, strict=True):
        if error > TOLERANCE:
            response = relative_error(b, c)
            if not error <= MAGNIFICATION * response:
                raise OutputsDiffer(_difference(name, a, b, error))
            notes[name] = (
                f"output {name} differs by {error:.1e} of its largest number, a rounding: the model "
                f"magnifies {disturbance:.0e} of its attentions' results to {response:.1e}"
            )
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

    Every number changes by another share of up to d = `disturbance`, by the same in every run.
    """
    copy = deepcopy(model)
    opset = next(x.version for x in copy.opset_import if x.domain in STANDARD_DOMAINS)
    copy.functions.append(onnx.parser.parse_function(_DISTURB % (opset, disturbance)))
    copy.opset_import.append(onnx.helper.make_opsetid("disturbed", 1))
    nodes = []
    for node in copy.graph.node:
        nodes.append(node)
        if node.domain in (attention.DOMAIN, attention.NVIDIA_DOMAIN):
            result, node.output[0] = node.output[0], f"disturbed/{node.output[0]}"
            nodes.append(onnx.helper.make_node("Disturb", [node.output[0]], [result], domain="disturbed"))
    replace_nodes(copy.graph, nodes)
    return copy
