"""Finding regions: from samples to the tensor that holds their weighted sum.

Layouts follow the samples through the graph. Each element of a tensor on the way is a sum over taps; a tap is
one sample times one weight. A region ends where the operator ends: where the tensor is used for something
else, or where a sum would mix images, heads or channels, as a sum over BEVFormer's cameras does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.samplers import NotAttention, Sampler
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import SHAPE_OPS, attribute, is_op
from onnx_path.surgery.layouts.layout import Layout, LayoutError
from onnx_path.surgery.layouts.movement import is_movement, moved

SAMPLER, IMAGE, CHANNEL, ROW, COLUMN = range(5)
"""Coordinates of a sample: the number of its sampler, and its place in the result [B, C, rows, columns]."""


@dataclass(frozen=True, eq=False)
class Term:
    """Samples on their way to the sum: a tensor whose elements are sums over `summed` axes.

    Attributes:
        samples: layout over the coordinates above; axes of the tensor first, then the axes summed over.
        weights: layout over the weights' tensor, with the same axes; None before the product.
        weight_source: the weights' tensor.
        summed: the number of axes summed over.
    """

    samples: Layout
    weights: Layout | None = None
    weight_source: ir.Value | None = None
    summed: int = 0

    @property
    def rank(self) -> int:
        """The rank of the tensor."""
        return len(self.samples.tables) - self.summed

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the tensor."""
        return self.samples.shape[: self.rank]


Flow = tuple[Term, ...]
"""A tensor as the sum of its terms; one term before the product."""


@dataclass(frozen=True, eq=False)
class Joined:
    """Concatenated sums of unlike terms; a sum over the same axis must follow."""

    parts: tuple[Flow, ...]
    axis: int


@dataclass(frozen=True, eq=False)
class Region:
    """Samples and their weighted sum, at one probe.

    Attributes:
        samplers: the samplers, in the order of the graph.
        ends: tensors that hold the sum: the sum itself first, then views of it. Each can be replaced.
        flows: the terms of each end.
    """

    samplers: tuple[Sampler, ...]
    ends: tuple[ir.Value, ...]
    flows: tuple[Flow, ...]


@dataclass(frozen=True, eq=False)
class NoRegion:
    """Samples that end in no weighted sum."""

    samplers: tuple[Sampler, ...]
    reason: NotAttention


def find_regions(
    graph: ir.Graph, samplers: Sequence[Sampler], probes: Sequence[Probe]
) -> Iterator[tuple[Region, ...] | NoRegion]:
    """Follows samples forward, and yields the regions that their sums make: each at every probe.

    Args:
        graph: in an order in which it can run.
        samplers: of the graph.
        probes: of the graph.
    """
    first, *others = (_find(graph, samplers, probe) for probe in probes)
    for region in first:
        same = [next((r for r in other if r.samplers == region.samplers), None) for other in others]
        if isinstance(region, NoRegion):
            yield region
        elif all(isinstance(r, Region) for r in same):
            yield (region, *same)
        else:
            yield NoRegion(region.samplers, NotAttention("its tensors depend on the input sizes"))


def _find(graph: ir.Graph, samplers: Sequence[Sampler], probe: Probe) -> list[Region | NoRegion]:
    flows: dict[ir.Value, Flow | Joined] = {}
    reasons: dict[ir.Value, str] = {}
    for sampler in samplers:
        shape = probe.shape(sampler.result)
        samples = Layout.coordinates((*shape, 1)[:4], sampler.number).reshape(shape)
        flows[sampler.result] = (Term(samples),)
    results = set(flows)
    for node in graph:
        entering = [x for x in node.inputs if x in flows]
        if not entering or is_op(node, *SHAPE_OPS) or not results.isdisjoint(node.outputs):
            continue
        for result in node.outputs:
            try:
                if (flow := _step(node, result, flows, probe)) is not None:
                    flows[result] = flow
            except LayoutError as error:
                reasons.update(dict.fromkeys(entering, f"{node.op_type} {node.name}: {error}"))
    return list(_group(samplers, flows, reasons))


# The regions of a graph whose flows are known


def _group(
    samplers: Sequence[Sampler], flows: Mapping[ir.Value, Flow | Joined], reasons: Mapping[ir.Value, str]
) -> Iterator[Region | NoRegion]:
    own = {sampler.result: sampler for sampler in samplers}
    parents = {x: [] if x in own else [y for y in x.producer().inputs if y in flows] for x in flows}
    upstream: dict[ir.Value, frozenset[ir.Value]] = {}
    for value in flows:  # in the order of the graph
        upstream[value] = frozenset([value]).union(*(upstream[x] for x in parents[value]))
    inner = {x for others in parents.values() for x in others}
    lasts: dict[tuple[Sampler, ...], list[ir.Value]] = {}
    for value in flows:
        if value not in inner:
            lasts.setdefault(tuple(own[x] for x in own if x in upstream[value]), []).append(value)
    for chosen, values in lasts.items():
        chains = [_chain(value, flows, parents, reasons) for value in values]
        # Parts of the sum may go different ways; it ends before they part.
        chain = [x for x in chains[0] if all(x in other for other in chains[1:])]
        if not chain:
            reason = next((reasons[x] for x in values if x in reasons), None) or _unused(values[0])
            yield NoRegion(chosen, NotAttention(reason))
            continue
        inside = upstream[chain[0]] - {chain[0]}
        if (reason := _read_elsewhere(inside, upstream[chain[0]])) is not None:
            yield NoRegion(chosen, NotAttention(reason))
            continue
        count = 1  # an end that something else reads is the last
        while count < len(chain) and not _read_elsewhere(chain[count - 1 : count], chain[: count + 1]):
            count += 1
        yield Region(chosen, tuple(chain[:count]), tuple(flows[x] for x in chain[:count]))


def _chain(last: ir.Value, flows, parents, reasons) -> list[ir.Value]:
    """Returns the sum and its views up to the last value of a flow; empty if that is no weighted sum."""
    if not _is_sum(flows[last]) or (last in reasons and not _is_summed(flows[last])):
        return []
    chain = [last]
    while len(parents[chain[0]]) == 1:
        (before,) = parents[chain[0]]
        if not _is_sum(flows[before]) or not _same_sum(flows[before], flows[chain[0]]):
            break
        chain.insert(0, before)
    return chain


def _is_sum(flow: Flow | Joined) -> bool:
    return not isinstance(flow, Joined) and flow[0].weights is not None


def _is_summed(flow: Flow) -> bool:
    return all(term.summed for term in flow)


def _same_sum(before: Flow, after: Flow) -> bool:
    """Returns whether a node added nothing to a sum: it moved elements, or added zeros."""
    return _is_summed(before) and [term.summed for term in before] == [term.summed for term in after]


def _read_elsewhere(values: Iterable[ir.Value], inside: Collection[ir.Value]) -> str | None:
    """Returns why some tensors cannot go: nodes that make none of `inside` read them, or they are outputs."""
    for value in values:
        if value.is_graph_output():
            return f"{value.name}, which is on the way, is an output of the model"
        for node in value.consumers():
            if not is_op(node, *SHAPE_OPS) and not any(x in inside for x in node.outputs):
                return f"{value.name}, which is on the way, is also read by {node.op_type} {node.name}"
    return None


def _unused(value: ir.Value) -> str:
    users = ", ".join(node.op_type for node in dict.fromkeys(value.consumers()) if not is_op(node, "Shape"))
    users = users or "an output of the model"
    return f"its samples are not multiplied by weights and summed: they go to {users}"


# One node of a flow


def _step(
    node: ir.Node, result: ir.Value, flows: Mapping[ir.Value, Flow | Joined], probe: Probe
) -> Flow | Joined | None:
    """Returns the flow of a node's result, None where the node is not part of a region."""
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
    """Moves layouts as `moved` does; the last `summed` axes stay as they are."""
    if not summed:
        return moved(node, result, layouts, probe)
    tails = [layout.tables[-summed:] for layout in layouts]
    if any(not np.array_equal(a, b) for tail in tails[1:] for a, b in zip(tail, tails[0])):
        raise LayoutError("the joined sums are laid out differently")
    heads = [Layout(layout.base, layout.tables[:-summed]) for layout in layouts]
    result_layout = moved(node, result, heads, probe)
    return Layout(result_layout.base, result_layout.tables + tails[0])


def _multiply(node: ir.Node, flows: Sequence[Flow | Joined | None], probe: Probe) -> Flow | Joined | None:
    """Multiplies samples by weights: Mul, or MatMul and Einsum with the sum that is in them."""
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
    return _like_places([term for product in products for term in product])


@dataclass(frozen=True)
class _Equation:
    """A product as an einsum, a letter for each axis; letters missing in the result are summed over."""

    samples: str
    weights: str
    result: str

    @property
    def summed(self) -> str:
        return "".join(dict.fromkeys(c for c in self.samples + self.weights if c not in self.result))


def _equation(node: ir.Node, place: int, samples: int, weights: int) -> _Equation:
    """Writes a product as an einsum.

    Args:
        node: Mul, MatMul or Einsum.
        place: 0 if the samples are the first input, else 1.
        samples, weights: ranks of the two inputs.
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
    _check_summed(samples.tables[len(equation.result) :])
    return Term(samples, weights, source, len(equation.summed))


def _spread(layout: Layout, word: str, axes: str, sizes: dict[str, int]) -> Layout:
    present = [letter for letter in axes if letter in word]
    layout = layout.transpose([word.index(letter) for letter in present])
    layout = layout.reshape([layout.shape[present.index(x)] if x in present else 1 for x in axes])
    return layout.expand([sizes[x] for x in axes])


def _reduce(node: ir.Node, flow: Flow | Joined, probe: Probe) -> Flow | None:
    """Sums over axes; a sum over the axis of a concatenation is the sum of the parts' sums."""
    parts = flow.parts if isinstance(flow, Joined) else (flow,)
    axes = _axes(node, parts[0][0].rank, probe)
    if parts[0][0].weights is None or (isinstance(flow, Joined) and flow.axis not in axes):
        return None
    keep = attribute(node, "keepdims", 1)
    return _like_places([_summed(term, axes, keep) for part in parts for term in part])


def _axes(node: ir.Node, rank: int, probe: Probe) -> list[int]:
    axes = attribute(node, "axes", None)
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = probe.value(node.inputs[1])
    if axes is None or not len(axes):
        raise LayoutError("a sum over all axes")
    return [int(axis) % rank for axis in axes]


def _summed(term: Term, axes: Sequence[int], keep: int) -> Term:
    def rearranged(layout: Layout) -> Layout:
        head, tail = layout.tables[: term.rank], layout.tables[term.rank :]
        zero = np.zeros((1, len(layout.base)), np.int64)
        kept = [zero if i in axes else table for i, table in enumerate(head) if keep or i not in axes]
        return Layout(layout.base, (*kept, *tail, *(head[axis] for axis in axes)))

    _check_summed([term.samples.tables[axis] for axis in axes])
    return replace(
        term,
        samples=rearranged(term.samples),
        weights=rearranged(term.weights),
        summed=term.summed + len(axes),
    )


def _check_summed(tables: Sequence[np.ndarray]) -> None:
    """Raises `LayoutError` if axes to be summed run through more than the points of a query."""
    if any(table[:, (IMAGE, CHANNEL)].any() for table in tables):
        raise LayoutError("samples of several images, heads or channels are summed")


def _like_places(terms: Sequence[Term]) -> Flow:
    """Returns terms that can be added.

    Raises:
        LayoutError: they differ in images, heads or channels at the same element.
    """
    places = [
        [layout.base[[IMAGE, CHANNEL]], *(table[:, (IMAGE, CHANNEL)] for table in layout.tables[: term.rank])]
        for term in terms
        for layout in (term.samples,)
    ]
    if any(not np.array_equal(a, b) for other in places[1:] for a, b in zip(other, places[0])):
        raise LayoutError("samples of several images, heads or channels are summed")
    return tuple(terms)


def _add(result: ir.Value, inputs: Sequence[ir.Value], flows, probe: Probe) -> Flow | None:
    """Adds weighted samples; constants of zeros, with which some sums begin, add nothing."""
    parts = [flows[x] for x in inputs if x in flows]
    others = [x for x in inputs if x not in flows]
    if any(flow[0].weights is None for flow in parts):
        return None
    if any((value := probe.value(x)) is None or np.any(value) for x in others):
        return None
    terms = [term for flow in parts for term in flow]
    if any(term.shape != probe.shape(result) for term in terms):
        raise LayoutError("sums of unlike shapes are added")
    return _like_places(terms)
