"""What the surgeon replaces: for each kind, a function that finds places, drafts nodes and proves them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_path.nodes import attention
from onnx_path.surgery.find.recognise_fused_inputs import recognise_fused
from onnx_path.surgery.find.recognise_group_norms import group_norms, recognise_group_norm
from onnx_path.surgery.find.recognise_linears import matrix_products, recognise_linear
from onnx_path.surgery.find.recognise_long_attention import long_softmaxes, recognise_long_attention
from onnx_path.surgery.find.recognise_masked_attention import masked_softmaxes, recognise_masked_attention
from onnx_path.surgery.find.recognise_masks import masking_nodes, recognise_mask
from onnx_path.surgery.find.recognise_msda import recognise
from onnx_path.surgery.find.recognise_windows import (
    FAST_HEAD_DIMS,
    FAST_WINDOW_SIZES,
    Windows,
    is_cut,
    recognise_windows,
    window_softmaxes,
)
from onnx_path.surgery.find.regions import Region, find_regions
from onnx_path.surgery.find.samplers import NotAttention, find_samplers
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.graph.partial_models import NotClosed, runnable
from onnx_path.surgery.graph.probe import Probe, add_shapes
from onnx_path.surgery.layouts.layout import LayoutError
from onnx_path.surgery.rewrite import function_bodies
from onnx_path.surgery.rewrite.draft import Draft
from onnx_path.surgery.rewrite.group_norm_nodes import draft_group_norm
from onnx_path.surgery.rewrite.linear_nodes import draft_linear
from onnx_path.surgery.rewrite.long_attention_nodes import draft_long_attention
from onnx_path.surgery.rewrite.mask_nodes import draft_mask
from onnx_path.surgery.rewrite.masked_attention_nodes import draft_masked_attention
from onnx_path.surgery.rewrite.operator_nodes import draft_attention
from onnx_path.surgery.rewrite.window_nodes import draft_windows
from onnx_path.surgery.subject import Subject
from onnx_path.surgery.verify import proof
from onnx_path.surgery.verify.report import (
    AttentionReplacement,
    GroupNormReplacement,
    Kind,
    LinearReplacement,
    LongAttentionReplacement,
    MaskedAttentionReplacement,
    MaskReplacement,
    NearMiss,
    Replacement,
    WindowReplacement,
)
from trt_plugin.library import GROUP_NORM, LINEAR, WINDOW_ATTENTION

REFUSALS = (NotAttention, LayoutError, NotClosed, proof.Disagreement, onnx_session.CannotRun)
"""Why a place stays as it is; any other exception is an error."""


@dataclass
class Found:
    """What was found in a model.

    Attributes:
        verified: proven drafts with their part of the report.
        misses: places that look like something to replace and stay.
        notes: further information for the user.
    """

    verified: list[tuple[Draft, Replacement]] = field(default_factory=list)
    misses: list[NearMiss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def drafts(self) -> list[Draft]:
        return [draft for draft, _ in self.verified]


@dataclass(frozen=True)
class Options:
    """How to write MSDA: `target` and `fuse` of `onnx_path.surgery.pipeline.operate`."""

    target: str
    fuse: bool


# MSDA


def _find_attentions(subject: Subject, found: Found, options: Options) -> None:
    samplers, misses = find_samplers(subject.model.graph, subject.probes, subject.seed)
    found.misses += misses
    for regions in find_regions(subject.model.graph, samplers, subject.probes):
        try:
            draft, replacement, note = _verified_attention(subject, regions, options)
        except REFUSALS as error:
            named = regions[0].samplers if regions[0].reason else regions[0].samplers[:1]
            found.misses += [NearMiss("msda", sampler.name, str(error)) for sampler in named]
        else:
            found.verified.append((draft, replacement))
            found.notes += [note] if note else []


def _verified_attention(
    subject: Subject, regions: tuple[Region, ...], options: Options
) -> tuple[Draft, AttentionReplacement, str]:
    """Drafts and proves the replacement of a region: the fused operator if possible, else the plain one.

    Returns:
        The draft, its entry in the report, and a note or "".

    Raises:
        REFUSALS: the region is not MSDA, or no draft gives its numbers.
    """
    if regions[0].reason:
        raise NotAttention(regions[0].reason)
    probes, target = subject.probes, options.target
    roles = [recognise(region, probe) for region, probe in zip(regions, probes, strict=True)]
    op_type, draft, error, note = attention.FUSED_ATTENTION, None, 0.0, ""
    if options.fuse and target == "msda":
        try:
            fused = [recognise_fused(one, probe) for one, probe in zip(roles, probes, strict=True)]
            draft = draft_attention(op_type, roles, fused, probes)
            error = _proven(subject, draft, target)
        except REFUSALS as reason:
            draft = None
            note = f"{regions[0].ends[-1].name}: softmax and locations stay outside: {reason}"
    if draft is None:
        op_type = attention.ATTENTION if target == "msda" else function_bodies.NVIDIA
        draft = draft_attention(op_type, roles, (), probes)
        error = _proven(subject, draft, target)
    sizes = roles[0].sizes
    replacement = AttentionReplacement(
        output=draft.end.name,
        op_type=op_type,
        levels=len(sizes.levels),
        points=sizes.points,
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        form=regions[0].samplers[0].form,
        error=error,
    )
    return draft, replacement, note


# Padding masks on the values of MSDA


def _find_masks(subject: Subject, found: Found, options: Options) -> None:
    already = [node.inputs[0] for node in subject.model.graph if node.op_type in attention.OPERATORS]
    values = [next(iter(draft.kinds)) for draft in found.drafts]  # the value is the first input of MSDA

    def drafted(where: ir.Node, _: Set[ir.Value]) -> _Drafted:
        _check_opset(subject)
        masked = recognise_mask(where, subject.probes[0])
        inputs, outputs = masked.layer.weight.shape
        replacement = partial(MaskReplacement, inputs=inputs, outputs=outputs)
        return draft_mask(masked, subject.probes), replacement

    _verify_each("padding-mask", subject, found, masking_nodes([*already, *values]), drafted)


# Window attention


def _find_windows(subject: Subject, found: Found, options: Options) -> None:
    ends: set[ir.Value] = set()
    for softmax in window_softmaxes(subject.model.graph, subject.probes):
        name, recognised = softmax.name or softmax.outputs[0].name, False
        try:
            windows = [recognise_windows(softmax, ends, probe) for probe in subject.probes]
            recognised = True
            draft, replacement = _verified_windows(subject, windows)
        except REFUSALS as error:
            if recognised or is_cut(softmax, subject.probes[0]):
                found.misses.append(NearMiss("window-attention", name, str(error)))
        else:
            found.verified.append((draft, replacement))
            ends.add(draft.end)


def _verified_windows(subject: Subject, windows: Sequence[Windows]) -> tuple[Draft, WindowReplacement]:
    """Drafts and proves the replacement of a window attention, which is given at every probe.

    Raises:
        REFUSALS: our plugin has no fast kernel for it, or the draft gives other numbers.
    """
    first = windows[0]
    _check_opset(subject)
    if first.head_dim not in FAST_HEAD_DIMS or first.window_size not in FAST_WINDOW_SIZES:
        raise NotAttention(
            f"the plugin has no fast kernel for windows of {first.window_size} cells a side with heads of "
            f"{first.head_dim} channels"
        )
    if first.map.dtype == ir.DataType.DOUBLE:
        raise NotAttention("its numbers are float64, which the plugin does not know")
    draft = draft_windows(windows, subject.probes)
    replacement = WindowReplacement(
        output=draft.end.name,
        window_size=first.window_size,
        shift=first.shift,
        heads=first.heads,
        head_dim=first.head_dim,
        error=_proven(subject, draft),
    )
    return draft, replacement


# Attention of few queries over many keys


def _find_long_attentions(subject: Subject, found: Found, options: Options) -> None:
    def drafted(softmax: ir.Node, _: Set[ir.Value]) -> _Drafted:
        _check_opset(subject)
        long = recognise_long_attention(softmax, subject.probes)
        replacement = partial(
            LongAttentionReplacement, queries=long.queries, keys=long.keys, parts=long.parts
        )
        return draft_long_attention(long, subject.probes, subject.model.opset_imports[""]), replacement

    softmaxes = long_softmaxes(subject.model.graph, subject.probes[0])
    _verify_each("long-attention", subject, found, softmaxes, drafted)


# Attention with a mask and an odd number of keys


def _find_masked_attentions(subject: Subject, found: Found, options: Options) -> None:
    already = {draft.end for draft in found.drafts}  # those of few queries over many keys

    def drafted(softmax: ir.Node, _: Set[ir.Value]) -> _Drafted | None:
        _check_opset(subject)
        masked = recognise_masked_attention(softmax, subject.probes)
        if masked.end in already:
            return None
        queries, keys = masked.sizes
        replacement = partial(MaskedAttentionReplacement, queries=queries, keys=keys)
        return draft_masked_attention(masked, subject.probes), replacement

    softmaxes = masked_softmaxes(subject.model.graph, subject.probes[0])
    _verify_each("masked-attention", subject, found, softmaxes, drafted)


# Group normalisation


def _find_group_norms(subject: Subject, found: Found, options: Options) -> None:
    maps = dict(group_norms(subject.model.graph, subject.probes[0]))

    def drafted(node: ir.Node, _: Set[ir.Value]) -> _Drafted:
        _check_opset(subject)
        norm = recognise_group_norm(node, maps[node], subject.probes[0])
        replacement = partial(GroupNormReplacement, num_groups=norm.num_groups, channels=len(norm.weight))
        return draft_group_norm(norm, subject.probes), replacement

    _verify_each("group-norm", subject, found, maps, drafted)


# Linear layers with what follows them


def _find_linears(subject: Subject, found: Found, options: Options) -> None:
    def drafted(product: ir.Node, ends: Set[ir.Value]) -> _Drafted | None:
        linear = recognise_linear(product, subject.probes[0])
        if linear is None:
            return None
        _check_opset(subject)
        if linear.end in ends:
            raise NotAttention("its residual is a linear layer, whose node computes the sum")
        inputs, outputs = linear.layer.weight.shape
        replacement = partial(
            LinearReplacement,
            inputs=inputs,
            outputs=outputs,
            activation=linear.activation,
            residual=linear.residual is not None,
        )
        return draft_linear(linear, subject.probes), replacement

    _verify_each("linear", subject, found, matrix_products(subject.model.graph, subject.probes[0]), drafted)


Finder = Callable[[Subject, Found, Options], None]
"""Adds what it finds. It reads what the finders of other kinds found in the same model."""

FINDERS: dict[Kind, Finder] = {
    "msda": _find_attentions,
    "padding-mask": _find_masks,
    "window-attention": _find_windows,
    "long-attention": _find_long_attentions,
    "masked-attention": _find_masked_attentions,
    "group-norm": _find_group_norms,
}
"""The finders of the file's graph, in order."""

LATER_FINDERS: dict[Kind, Finder] = {"linear": _find_linears}
"""Those of the rewritten graph: only there is the projection of a window attention next to its residual."""

NODES: dict[Kind, Sequence[str]] = {
    "msda": (*attention.OPERATORS, function_bodies.NVIDIA),
    "padding-mask": (LINEAR,),
    "window-attention": (WINDOW_ATTENTION,),
    "long-attention": (),
    "masked-attention": (),
    "group-norm": (GROUP_NORM,),
    "linear": (LINEAR,),
}
"""Our operators, or NVIDIA's, that the surgeon writes."""


# Proof


_Drafted = tuple[Draft, Callable[..., Any]]
"""A draft, and the function that makes its part of the report."""


def _verify_each(
    kind: Kind,
    subject: Subject,
    found: Found,
    nodes: Iterable[ir.Node],
    drafted: Callable[[ir.Node, Set[ir.Value]], _Drafted | None],
) -> None:
    """Drafts and proves a replacement for each node.

    Args:
        kind: of the replacements.
        nodes: each tells a place that may be replaced.
        drafted: drafts a node's replacement, or returns None for no near miss. Gets the node and the results
            of the verified replacements before. The part of the report lacks output and error.
    """
    ends: set[ir.Value] = set()
    for node in nodes:
        try:
            if (made := drafted(node, ends)) is None:
                continue
            draft, replacement = made
            error = _proven(subject, draft)
        except REFUSALS as reason:
            found.misses.append(NearMiss(kind, node.name or node.outputs[0].name, str(reason)))
        else:
            found.verified.append((draft, replacement(output=draft.end.name, error=error)))
            ends.add(draft.end)


def _check_opset(subject: Subject) -> None:
    if (opset := subject.model.opset_imports.get("", 1)) < function_bodies.LOWEST_OPSET:
        raise NotAttention(f"the file has opset {opset}, the node needs {function_bodies.LOWEST_OPSET}")


def _proven(subject: Subject, draft: Draft, target: str = "msda") -> float:
    """Returns the largest relative difference between a draft and its region, as `proof.prove` does."""
    op_types = {node.op_type for node in draft.nodes}
    bodies = function_bodies.functions(subject.model.opset_imports[""], target, op_types)
    model = runnable(subject.model, draft.graph(), bodies)
    inner = [value.name for node in draft.nodes for value in node.outputs]
    add_shapes(model.graph, inner)
    session = onnx_session.Session(model)
    errors = []
    for probe in subject.probes:

        def run(tensors: proof.Tensors, probe: Probe = probe) -> np.ndarray:
            values = {x: tensors[x] if x in tensors else probe.value(x) for x in draft.stand_ins}
            result, *shapes = session.run({x.name: array for x, array in values.items()})
            probe.measured |= {name: tuple(map(int, shape)) for name, shape in zip(inner, shapes)}
            return result

        errors.append(proof.prove(probe, draft.end, draft.kinds, run, subject.seed))
    return max(errors)
