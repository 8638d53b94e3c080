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

from onnx_path.surgery.find.samplers import Sampler
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import SHAPE_OPS, is_op
from onnx_path.surgery.layouts.layout import Layout, LayoutError
from onnx_path.surgery.layouts.movement import is_movement, moved

SAMPLER, IMAGE, CHANNEL, ROW, COLUMN, WEIGHT = range(6)
"""Coordinates of a tap: the number of its sampler, its place in the result [B, C, rows, columns], and its
weight's flat index. Before the product, a sample has the first five."""


@dataclass(frozen=True, eq=False)
class Term:
    """Samples on their way to the sum: a tensor whose elements are sums over `summed` axes.

    Attributes:
        layout: of the tensor, over the coordinates above.
        weights: the weights' tensor; None before the product.
        summed: the tables of the axes summed over.
    """

    layout: Layout
    weights: ir.Value | None = None
    summed: tuple[np.ndarray, ...] = ()


Flow = tuple[Term, ...]
"""A tensor as the sum of its terms; one term before the product."""


@dataclass(frozen=True, eq=False)
class Region:
    """Samples and their weighted sum, at one probe.

    Attributes:
        samplers: the samplers, in the order of the graph.
        ends: tensors that hold the sum: the sum itself first, then views of it. Each can be replaced.
        flows: the terms of each end.
        reason: why the samples end in no weighted sum, "" if they do.
    """

    samplers: tuple[Sampler, ...]
    ends: tuple[ir.Value, ...] = ()
    flows: tuple[Flow, ...] = ()
    reason: str = ""


def find_regions(
    graph: ir.Graph, samplers: Sequence[Sampler], probes: Sequence[Probe]
) -> Iterator[tuple[Region, ...]]:
    """Follows samples forward through a sorted graph, and yields each region at every probe.

    A region with a reason is alone.
    """
    first, *others = (_find(graph, samplers, probe) for probe in probes)
    for region in first:
        same = [next((r for r in other if r.samplers == region.samplers), None) for other in others]
        if region.reason:
            yield (region,)
        elif all(r is not None and not r.reason for r in same):
            yield (region, *same)
        else:
            yield (Region(region.samplers, reason="its tensors depend on the input sizes"),)


def _find(graph: ir.Graph, samplers: Sequence[Sampler], probe: Probe) -> list[Region]:
    flows: dict[ir.Value, Flow] = {}
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
    samplers: Sequence[Sampler], flows: Mapping[ir.Value, Flow], reasons: Mapping[ir.Value, str]
) -> Iterator[Region]:
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
            yield Region(chosen, reason=reason)
            continue
        inside = upstream[chain[0]] - {chain[0]}
        if (reason := _read_elsewhere(inside, upstream[chain[0]])) is not None:
            yield Region(chosen, reason=reason)
            continue
        count = 1  # an end that something else reads is the last
        while count < len(chain) and not _read_elsewhere(chain[count - 1 : count], chain[: count + 1]):
            count += 1
        yield Region(chosen, tuple(chain[:count]), tuple(flows[x] for x in chain[:count]))


def _chain(last: ir.Value, flows, parents, reasons) -> list[ir.Value]:
    """Returns the sum and its views up to the last value of a flow; empty if that is no weighted sum."""
    if flows[last][0].weights is None or (last in reasons and not _is_summed(flows[last])):
        return []
    chain = [last]
    while len(parents[chain[0]]) == 1:
        (before,) = parents[chain[0]]
        sizes = [[len(term.summed) for term in flows[x]] for x in (before, chain[0])]
        if not _is_summed(flows[before]) or sizes[0] != sizes[1]:
            break  # the node between them adds to the sum: it moves no elements, and adds more than zeros
        chain.insert(0, before)
    return chain


def _is_summed(flow: Flow) -> bool:
    return all(term.summed for term in flow)


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


def _step(node: ir.Node, result: ir.Value, flows: Mapping[ir.Value, Flow], probe: Probe) -> Flow | None:
    """Returns the flow of a node's result, None where the node is not part of a region."""
    if is_op(node, "Mul"):
        return _multiply(node, flows, probe)
    if is_op(node, "Add", "Sum"):
        return _add(result, node.inputs, flows, probe)
    if is_op(node, "Concat"):
        inputs = [flows.get(x) for x in node.inputs]
        if None in inputs or any(flow[0].weights is not None for flow in inputs):
            return None
        return (Term(moved(node, result, [term.layout for (term,) in inputs], probe)),)
    if (flow := flows.get(node.inputs[0])) is None:
        return None
    if is_op(node, "ReduceSum") and flow[0].weights is not None:
        return tuple(_summed(node, term, probe) for term in flow)
    if is_movement(node):
        return tuple(replace(term, layout=moved(node, result, [term.layout], probe)) for term in flow)
    return None


def _multiply(node: ir.Node, flows: Mapping[ir.Value, Flow], probe: Probe) -> Flow | None:
    """Multiplies samples by weights."""
    samples, other = node.inputs if node.inputs[0] in flows else node.inputs[::-1]
    (term, *_), shape = flows[samples], probe.shape(other)
    if term.weights is not None or other in flows or shape is None or math.prod(shape) < 2:
        return None
    sizes = np.broadcast_shapes(term.layout.shape, shape)
    return (Term(term.layout.expand(sizes).beside(Layout.of(shape).expand(sizes)), other),)


def _summed(node: ir.Node, term: Term, probe: Probe) -> Term:
    axes = probe.value(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None or not len(axes):
        raise LayoutError("a sum over all axes")
    base, tables = term.layout.base, list(term.layout.tables)
    summed = tuple(tables[axis] for axis in axes)
    if any(table[:, (IMAGE, CHANNEL)].any() for table in summed):
        raise LayoutError("samples of several images, heads or channels are summed")
    for axis in axes:
        tables[axis] = np.zeros((1, len(base)), np.int64)
    layout = Layout(base, tuple(tables)).reshape(probe.shape(node.outputs[0]))
    return Term(layout, term.weights, term.summed + summed)


def _add(result: ir.Value, inputs: Sequence[ir.Value], flows, probe: Probe) -> Flow | None:
    """Adds weighted samples; constants of zeros, with which some sums begin, add nothing.

    Raises:
        LayoutError: the terms differ in images, heads or channels at the same element.
    """
    parts = [flows[x] for x in inputs if x in flows]
    others = [x for x in inputs if x not in flows]
    if any(flow[0].weights is None for flow in parts):
        return None
    if any((value := probe.value(x)) is None or np.any(value) for x in others):
        return None
    terms = [term for flow in parts for term in flow]
    if any(term.layout.shape != probe.shape(result) for term in terms):
        raise LayoutError("sums of unlike shapes are added")
    places = [
        [table[:, (IMAGE, CHANNEL)] for table in (x.layout.base[None], *x.layout.tables)] for x in terms
    ]
    if any(not np.array_equal(a, b) for other in places[1:] for a, b in zip(other, places[0])):
        raise LayoutError("samples of several images, heads or channels are summed")
    return tuple(terms)
