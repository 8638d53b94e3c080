"""Finding regions: from the samples of GridSample nodes on to the tensor that holds their weighted sum.

What happens to samples on the way is followed with layouts: each element of a tensor on the way is a sum over
taps, a tap being one sample times one weight. A region ends where something else is done with the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_path.surgery import graph as walk
from onnx_path.surgery.graph import attribute, is_op
from onnx_path.surgery.layouts import Layout, LayoutError
from onnx_path.surgery.movement import is_movement, moved
from onnx_path.surgery.probe import Probe

ANCHOR, IMAGE, CHANNEL, ROW, COLUMN = range(5)
"""Coordinates of a sample: which GridSample, and where in its output [B, C, rows, columns]."""


class NotAttention(ValueError):
    """Samples that are not multi-scale deformable attention, and why."""


@dataclass(frozen=True, eq=False)
class Term:
    """Samples on their way to the sum: a tensor's elements, each a sum over `summed` axes.

    Attributes:
        samples: over the coordinates above; axes of the tensor first, then those summed over.
        weights: over the weights' tensor, as many axes; None before the product.
        weight_source: that tensor.
        summed: how many axes are summed over.
    """

    samples: Layout
    weights: Layout | None = None
    weight_source: ir.Value | None = None
    summed: int = 0

    @property
    def rank(self) -> int:
        """Of the tensor."""
        return len(self.samples.tables) - self.summed


Flow = tuple[Term, ...]
"""What a tensor is: the sum of its terms; one term before the product."""


@dataclass(frozen=True, eq=False)
class Joined:
    """Sums of unlike terms, concatenated: understood only when it is summed over the same axis next."""

    parts: tuple[Flow, ...]
    axis: int


@dataclass(frozen=True, eq=False)
class Region:
    """Samples and what they become.

    Attributes:
        anchors: the GridSample nodes, by number.
        ends: tensors that hold the sum, the first one made by the last addition, the others views of it.
        flows: their terms.
        inside: tensors between samples and the last end, both among them.
    """

    anchors: dict[int, ir.Node]
    ends: tuple[ir.Value, ...]
    flows: tuple[Flow, ...]
    inside: frozenset[ir.Value]


def samplers(graph: ir.Graph) -> list[ir.Node]:
    """The GridSample nodes."""
    return [node for node in graph if is_op(node, "GridSample")]


def check_sampler(node: ir.Node, probe: Probe) -> None:
    """Raises `NotAttention` if a GridSample samples otherwise than MSDA."""
    mode = attribute(node, "mode", "bilinear")
    if mode not in ("bilinear", "linear"):
        raise NotAttention(f"it samples by mode {mode}, not bilinear")
    if (padding := attribute(node, "padding_mode", "zeros")) != "zeros":
        raise NotAttention(f"its padding is {padding}, not zeros")
    if attribute(node, "align_corners", 0):
        raise NotAttention("it aligns corners")
    shapes = [probe.shape(x) for x in (*node.inputs, *node.outputs)]
    if None in shapes:
        raise NotAttention(
            "its sizes cannot be found, it depends on operators that onnxruntime does not know"
        )
    if len(shapes[0]) != 4:
        raise NotAttention(f"it samples from a tensor of {len(shapes[0])} dimensions, not 4")
    if any(0 in shape for shape in shapes):
        raise NotAttention("it samples nothing at the sizes tried")


def find(
    graph: ir.Graph, anchors: dict[int, ir.Node], probe: Probe
) -> Iterator[Region | tuple[int, NotAttention]]:
    """Follows samples forward and groups those that are summed.

    Args:
        graph: in an order in which it can run.
        anchors: GridSample nodes that passed `check_sampler`, by number.
        probe: of the graph.

    Yields:
        A region, or the number of an anchor and why its samples end in none.
    """
    flows: dict[ir.Value, Flow | Joined] = {}
    reasons: dict[ir.Value, str] = {}
    for number, node in anchors.items():
        flows[node.outputs[0]] = (Term(Layout.coordinates(probe.shape(node.outputs[0]), number)),)
    for node in graph:
        if node in anchors.values() or not any(x in flows for x in node.inputs if x is not None):
            continue
        if is_op(node, *walk.SHAPE_OPS):
            continue
        try:
            for result in node.outputs:
                flow = _step(node, result, flows, probe)
                if flow is not None:
                    flows[result] = flow
        except LayoutError as error:
            reasons.update({x: f"{node.op_type} {node.name}: {error}" for x in node.inputs if x in flows})
    yield from _group(anchors, flows, reasons)


def _group(anchors, flows, reasons) -> Iterator[Region | tuple[int, NotAttention]]:
    parents = {result: [x for x in result.producer().inputs if x in flows] for result in flows}
    members = {value: _tags(value, parents, flows, anchors) for value in flows}
    ends = [value for value in flows if not any(value in parents[other] for other in flows)]
    for end in ends:
        tags = members[end]
        if isinstance(flows[end], Joined) or flows[end][0].weights is None:
            reason = reasons.get(end) or _unused(end)
            yield from ((tag, NotAttention(reason)) for tag in sorted(tags))
            continue
        chain = [end]
        while is_movement(chain[0].producer()) and len(parents[chain[0]]) == 1:
            before = parents[chain[0]][0]
            if flows[before][0].weights is None or not all(term.summed for term in flows[before]):
                break
            chain.insert(0, before)
        inside = frozenset(
            value for value in flows if members[value] <= tags and _reaches(value, end, parents)
        )
        chosen = {tag: anchors[tag] for tag in sorted(tags)}
        yield Region(chosen, tuple(chain), tuple(flows[value] for value in chain), inside)


def _tags(value, parents, flows, anchors) -> set[int]:
    pending, seen, tags = [value], set(), set()
    by_node = {node: number for number, node in anchors.items()}
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.producer() in by_node:
            tags.add(by_node[value.producer()])
        pending += [x for x in parents[value] if x in flows]
    return tags


def _reaches(value, end, parents) -> bool:
    pending, seen = [end], set()
    while pending:
        at = pending.pop()
        if at is value:
            return True
        if at not in seen:
            seen.add(at)
            pending += parents[at]
    return False


def _unused(value: ir.Value) -> str:
    users = ", ".join(node.op_type for node in walk.main_nodes(value.uses()) if not is_op(node, "Shape"))
    users = users or "an output of the model"
    return f"its samples are not multiplied by weights and summed: they go to {users}"


def _step(
    node: ir.Node, result: ir.Value, flows: dict[ir.Value, Flow | Joined], probe: Probe
) -> Flow | Joined | None:
    """The flow of a node's result, None where the node is not part of a region."""
    inputs = list(node.inputs)
    if is_op(node, "Mul", "MatMul", "Einsum") and len(inputs) == 2:
        return _multiply(node, [flows.get(x) for x in inputs], probe)
    if is_op(node, "ReduceSum") and inputs[0] in flows:
        return _reduce(node, flows[inputs[0]], probe)
    if any(isinstance(flows.get(x), Joined) for x in inputs):
        return None
    if is_movement(node):
        data = inputs if is_op(node, "Concat") else inputs[:1]
        return _move(node, result, [flows[x] for x in data], probe) if all(x in flows for x in data) else None
    return _add(result, inputs, flows, probe) if is_op(node, "Add", "Sum") else None


def _move(node: ir.Node, result: ir.Value, inputs: Sequence[Flow], probe: Probe) -> Flow | Joined:
    try:
        if any(len(flow) != len(inputs[0]) for flow in inputs):
            raise LayoutError("sums of unlike numbers of terms are joined")
        return tuple(_move_term(node, result, parts, probe) for parts in zip(*inputs))
    except LayoutError:
        if not is_op(node, "Concat") or len({part[0].weights is None for part in inputs}) > 1:
            raise
        return Joined(tuple(inputs), attribute(node, "axis", 0) % inputs[0][0].rank)


def _move_term(node: ir.Node, result: ir.Value, parts: Sequence[Term], probe: Probe) -> Term:
    first = parts[0]
    if any(part.weight_source is not first.weight_source or part.summed != first.summed for part in parts):
        raise LayoutError("the joined tensors have different weights")
    samples = _moved(node, result, [part.samples for part in parts], first.summed, probe)
    weights = first.weights
    if weights is not None:
        weights = _moved(node, result, [part.weights for part in parts], first.summed, probe)
    return replace(first, samples=samples, weights=weights)


def _moved(node, result, layouts: Sequence[Layout], summed: int, probe: Probe) -> Layout:
    """As `moved`, with axes behind those of the tensor that stay as they are."""
    if not summed:
        return moved(node, result, layouts, probe)
    tails = [layout.tables[-summed:] for layout in layouts]
    if any(not np.array_equal(a, b) for tail in tails[1:] for a, b in zip(tail, tails[0])):
        raise LayoutError("the joined sums are laid out differently")
    heads = [Layout(layout.base, layout.tables[:-summed]) for layout in layouts]
    result_layout = moved(node, result, heads, probe)
    return Layout(result_layout.base, result_layout.tables + tails[0])


def _multiply(node: ir.Node, flows: Sequence[Flow | Joined | None], probe: Probe) -> Flow | Joined | None:
    """Samples times weights: Mul, or MatMul and Einsum with the sum that is in them."""
    place = 0 if flows[1] is None else 1
    flow, other = flows[place], node.inputs[1 - place]
    if flow is None or flows[1 - place] is not None:
        return None
    parts = flow.parts if isinstance(flow, Joined) else (flow,)
    shape = probe.shape(other)
    if parts[0][0].weights is not None or shape is None or math.prod(shape) < 2:
        return None
    weights = Layout.of(shape)
    equation = _equation(node, place, parts[0][0].rank, len(shape))
    if not isinstance(flow, Joined):
        return (_product(equation, parts[0][0], weights, other),)
    letter = equation.samples[flow.axis]
    if letter not in equation.weights:
        raise LayoutError("samples of unlike levels have the same weight")
    axis, start, products = equation.weights.index(letter), 0, []
    for (term,) in parts:
        stop = start + term.samples.shape[flow.axis]
        products.append((_product(equation, term, weights.take(axis, np.arange(start, stop)), other),))
        start = stop
    if letter in equation.result:
        return Joined(tuple(products), equation.result.index(letter))
    return tuple(term for product in products for term in product)


@dataclass(frozen=True)
class _Equation:
    """A product as an einsum: a letter for each axis; those missing in the result are summed over."""

    samples: str
    weights: str
    result: str

    @property
    def summed(self) -> str:
        return "".join(dict.fromkeys(c for c in self.samples + self.weights if c not in self.result))


def _equation(node: ir.Node, place: int, samples: int, weights: int) -> _Equation:
    """Spells a node out.

    Args:
        node: Mul, MatMul or Einsum.
        place: which input the samples are.
        samples, weights: their ranks.
    """
    left, right = (samples, weights) if place == 0 else (weights, samples)
    rank = max(left, right)
    letters = "abcdefghijklmn"[:rank]
    if is_op(node, "Mul"):
        terms, result = [letters[rank - left :], letters[rank - right :]], letters
    elif is_op(node, "MatMul"):
        if min(left, right) < 2:
            raise LayoutError("a product with a vector")
        batch = letters[: rank - 2]
        terms = [batch[rank - left :] + "xz", batch[rank - right :] + "zy"]
        result = batch + "xy"
    else:
        text = attribute(node, "equation", "").replace(" ", "")
        before, _, result = text.partition("->")
        terms = before.split(",")
        repeats = any(len(set(word)) != len(word) for word in (*terms, result))
        if "." in text or "->" not in text or repeats:
            raise LayoutError(f"the equation {text} is not understood")
    return _Equation(terms[place], terms[1 - place], result)


def _product(equation: _Equation, term: Term, weights: Layout, source: ir.Value) -> Term:
    axes = equation.result + equation.summed
    words = ((equation.samples, term.samples), (equation.weights, weights))
    sizes = dict.fromkeys(axes, 1)
    for word, layout in words:
        for letter, size in zip(word, layout.shape, strict=True):
            sizes[letter] = max(size, sizes[letter])
    samples, weights = (_spread(layout, word, axes, sizes) for word, layout in words)
    return Term(samples, weights, source, len(equation.summed))


def _spread(layout: Layout, word: str, axes: str, sizes: dict[str, int]) -> Layout:
    present = [letter for letter in axes if letter in word]
    layout = layout.transpose([word.index(letter) for letter in present])
    layout = layout.reshape([layout.shape[present.index(x)] if x in present else 1 for x in axes])
    return layout.expand([sizes[x] for x in axes])


def _reduce(node: ir.Node, flow: Flow | Joined, probe: Probe) -> Flow | None:
    """The sum over axes; over one that tensors were joined along, the sum of their sums."""
    parts = flow.parts if isinstance(flow, Joined) else (flow,)
    axes = _axes(node, parts[0][0].rank, probe)
    if parts[0][0].weights is None or (isinstance(flow, Joined) and flow.axis not in axes):
        return None
    keep = attribute(node, "keepdims", 1)
    return tuple(_summed(term, axes, keep) for part in parts for term in part)


def _axes(node: ir.Node, rank: int, probe: Probe) -> list[int]:
    axes = attribute(node, "axes", None)
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = probe.value(node.inputs[1])
    if axes is None or not len(axes):
        raise LayoutError("a sum over all axes")
    return [int(axis) % rank for axis in axes]


def _summed(term: Term, axes: Sequence[int], keep: int) -> Term:
    still = [axis for axis in range(term.rank) if axis not in axes]

    def rearranged(layout: Layout) -> Layout:
        head, tail = layout.tables[: term.rank], layout.tables[term.rank :]
        zero = np.zeros((1, len(layout.base)), np.int64)
        kept = (
            tuple(zero if i in axes else head[i] for i in range(term.rank))
            if keep
            else [head[i] for i in still]
        )
        return Layout(layout.base, (*kept, *tail, *(head[axis] for axis in axes)))

    return replace(
        term,
        samples=rearranged(term.samples),
        weights=rearranged(term.weights),
        summed=term.summed + len(axes),
    )


def _add(result: ir.Value, inputs: Sequence[ir.Value], flows, probe: Probe) -> Flow | None:
    """The sum of weighted samples; all-zero constants, with which some sums begin, add nothing."""
    parts = [flows[x] for x in inputs if x in flows]
    others = [x for x in inputs if x not in flows]
    if any(flow[0].weights is None for flow in parts):
        return None
    if any((value := probe.value(x)) is None or np.any(value) for x in others):
        return None
    shape = probe.shape(result)
    terms = [term for flow in parts for term in flow]
    if any(_tensor_shape(term) != shape for term in terms):
        raise LayoutError("sums of unlike shapes are added")
    return tuple(terms)


def _tensor_shape(term: Term) -> tuple[int, ...]:
    return term.samples.shape[: term.rank]
