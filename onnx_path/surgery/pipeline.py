"""The graph surgery from a model to the rewritten model: find, roles, draft, verify."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir as ir

from codetr.errors import ArgumentError
from onnx_path import operator
from onnx_path.custom_operators import OWN_DOMAINS, nodes_of
from onnx_path.domain import DOMAIN, DOMAIN_VERSION
from onnx_path.surgery.find.recognise_fused_inputs import recognise_fused
from onnx_path.surgery.find.recognise_group_norms import group_norms, recognise_group_norm
from onnx_path.surgery.find.recognise_linears import matrix_products, recognise_linear
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
from onnx_path.surgery.graph.probe import Probe, runs
from onnx_path.surgery.graph.traversal import STANDARD_DOMAINS
from onnx_path.surgery.layouts.layout import LayoutError
from onnx_path.surgery.rewrite import function_bodies
from onnx_path.surgery.rewrite.draft import Draft, insert
from onnx_path.surgery.rewrite.group_norm_nodes import draft_group_norm
from onnx_path.surgery.rewrite.linear_nodes import draft_linear
from onnx_path.surgery.rewrite.mask_nodes import draft_mask
from onnx_path.surgery.rewrite.operator_nodes import draft_attention
from onnx_path.surgery.rewrite.window_nodes import draft_windows
from onnx_path.surgery.verify import proof, random_inputs
from onnx_path.surgery.verify.model_comparison import DISTURBANCE, compare
from onnx_path.surgery.verify.model_comparison import OutputsDiffer as OutputsDiffer
from onnx_path.surgery.verify.report import (
    GroupNormReplacement,
    LinearReplacement,
    MaskReplacement,
    NearMiss,
    Replacement,
    SurgeryReport,
    WindowReplacement,
)

SURGERY_TARGETS = ("msda", "nvidia")
MSDA = "msda"
MASKS = "padding-mask"
WINDOWS = "window-attention"
GROUP_NORMS = "group-norm"
LINEARS = "linear"
REPLACEABLE = (MSDA, MASKS, WINDOWS, GROUP_NORMS, LINEARS)
REFUSALS = (NotAttention, LayoutError, NotClosed, proof.Disagreement, onnx_session.CannotRun)
"""Why a region stays as it is; any other exception is an error."""


class UnknownOperator(ValueError):
    """The outputs cannot be compared: onnxruntime does not know an operator of the model."""


def operate(
    model: onnx.ModelProto,
    *,
    target: str = "msda",
    only: Sequence[str] = (MSDA,),
    fuse: bool = True,
    function_body: bool = True,
    check: bool = True,
    seed: int = 0,
    folder: Path | None = None,
) -> tuple[onnx.ModelProto, SurgeryReport]:
    """Replaces decomposed multi-scale deformable attention and what is near it in a model by one node each.

    Args:
        model: the model, which is not changed. Its weights may lie in other files
            (`onnx.load(..., load_external_data=False)`), as they must beyond 2 GB.
        target: "msda" writes nodes of our plugin, "nvidia" nodes of MultiscaleDeformableAttnPlugin_TRT.
            NVIDIA has plugins of MSDA only.
        only: what to replace, some of `REPLACEABLE`.
        fuse: write FusedMultiScaleDeformableAttention where softmax and locations in front of the attention
            are as that operator computes them. The target "nvidia" has no such node.
        function_body: give the nodes bodies of standard operators, for runtimes without a plugin.
        check: compare all outputs of the two models on random inputs.
        seed: of all random numbers.
        folder: of weights in other files.

    Returns:
        The rewritten model, or `model` itself if nothing was replaced, and the report.

    Raises:
        ArgumentError: `target` is unknown, or `only` names something that is not replaced.
        UnknownOperator: `check` is set, and onnxruntime does not know an operator.
        onnx_session.CannotRun: onnxruntime refuses the model.
        OutputsDiffer: the two models have different outputs.
    """
    if target not in SURGERY_TARGETS:
        raise ArgumentError("target", f"expected one of {', '.join(SURGERY_TARGETS)}, got {target!r}")
    wanted = _wanted(only, target)
    subject = _prepared(model, folder, seed)
    attentions, misses = _attentions(subject, target, fuse) if MSDA in wanted else ([], [])
    masks, more = _masks(subject, [draft for draft, *_ in attentions]) if MASKS in wanted else ([], [])
    misses += more
    windows, more = _windows(subject) if WINDOWS in wanted else ([], [])
    misses += more
    norms, more = _group_norms(subject) if GROUP_NORMS in wanted else ([], [])
    misses += more
    others = attentions, masks, windows, norms
    found = [one for verified in others for one in verified]
    result, removed = _rewritten(subject, [draft for draft, *_ in found], target) if found else (model, {})
    linears = []
    if LINEARS in wanted:
        # Only the rewritten graph has the projection of a window attention next to its residual.
        before = _prepared(result, folder, seed) if found else subject
        linears, more = _linears(before)
        misses += more
        if linears:
            result, later = _rewritten(before, [draft for draft, _ in linears], target)
            removed |= later
            found += linears
    nodes = len(model.graph.node)
    already = sum(node.op_type in (*operator.OPERATORS, function_bodies.NVIDIA) for node in nodes_of(model))
    if not found:
        return model, SurgeryReport((), tuple(misses), nodes, nodes, None, already=already)
    if check and subject.unknown:
        raise UnknownOperator(
            f"onnxruntime does not know the operator {subject.unknown[0]}, so the outputs cannot be "
            "compared; --no-check rewrites without"
        )
    notes, error = [note for *_, note in attentions if note], None
    if check:
        disturbance = max(DISTURBANCE, *(one.error for _, one, *_ in found))
        error, more = compare(model, result, subject.inputs, folder, disturbance)
        notes += more
    if not function_body:
        del result.functions[:]
    counted = [
        tuple(replace(one, nodes_removed=removed[draft]) for draft, one, *_ in verified)
        for verified in (*others, linears)
    ]
    return result, SurgeryReport(
        counted[0],
        tuple(misses),
        nodes,
        len(result.graph.node),
        error,
        tuple(notes),
        already,
        padding_masks=counted[1],
        window_attentions=counted[2],
        group_norms=counted[3],
        linears=counted[4],
    )


def _wanted(only: Sequence[str], target: str) -> tuple[str, ...]:
    """Returns what to replace.

    Raises:
        ArgumentError: as `operate`.
    """
    possible = REPLACEABLE if target == "msda" else (MSDA,)
    for name in only:
        if name not in REPLACEABLE:
            raise ArgumentError("only", f"expected some of {', '.join(REPLACEABLE)}, got {name!r}")
        if name not in possible:
            raise ArgumentError("only", f"expected {MSDA} for the target {target}, got {name!r}")
    return tuple(only)


# The model


_Drafted = tuple[Draft, Callable[..., Any]]
"""A draft, and the function that makes its part of the report."""


@dataclass(frozen=True, eq=False)
class _Subject:
    """The model to rewrite. Only the last step, `_rewritten`, changes it.

    Attributes:
        model: with types for all tensors, without functions of others, in an opset that our function bodies
            can have.
        described: names of the tensors whose types the file gives.
        unknown: operators that onnxruntime does not know, as "domain.Type".
        inputs: random inputs, one set for each attempt at its dynamic sizes.
        probes: the sizes of its tensors with these inputs.
        seed, folder: as for `operate`.
    """

    model: ir.Model
    described: frozenset[str]
    unknown: tuple[str, ...]
    inputs: tuple[dict[str, np.ndarray], ...]
    probes: tuple[Probe, ...]
    seed: int
    folder: Path | None


def _prepared(proto: onnx.ModelProto, folder: Path | None, seed: int) -> _Subject:
    # Files of an older opset have no GridSample: only samplers by gathers are a reason to raise it.
    opset = next((x.version for x in proto.opset_import if x.domain in STANDARD_DOMAINS), 1)
    if opset < function_bodies.LOWEST_OPSET and any(node.op_type == "Floor" for node in proto.graph.node):
        proto = onnx.version_converter.convert_version(proto, function_bodies.LOWEST_OPSET)
    if any(function.domain not in OWN_DOMAINS for function in proto.functions):
        model = ir.from_proto(proto)
        ir.passes.common.InlinePass(lambda function: function.domain not in OWN_DOMAINS)(model)
        proto = ir.to_proto(model)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    if folder is not None:
        ir.external_data.set_base_dir(model.graph, folder)
    version = model.graph.opset_imports.get("", 1)
    unknown = [node for node in model.graph if not runs(node, version, model)]
    names = dict.fromkeys(f"{node.domain}.{node.op_type}".lstrip(".") for node in unknown)
    inputs, probes = _measured(model, folder, seed)
    described = frozenset(value.name for value in proto.graph.value_info)
    return _Subject(model, described, tuple(names), inputs, probes, seed, folder)


def _measured(
    model: ir.Model, folder: Path | None, seed: int
) -> tuple[tuple[dict[str, np.ndarray], ...], tuple[Probe, ...]]:
    """Runs the model with random inputs, at two sets of sizes if it has dynamic dimensions."""
    attempts = range(2 if random_inputs.is_dynamic(model) else 1)
    for batch in (None, 1)[: len(attempts)]:  # some files declare a dynamic batch and run with one image only
        shapes = [random_inputs.input_shapes(model, attempt, batch) for attempt in attempts]
        inputs = tuple(random_inputs.random_inputs(model, shape, seed) for shape in shapes)
        try:
            return inputs, tuple(Probe(model, tensors, folder, i) for i, tensors in enumerate(inputs))
        except onnx_session.CannotRun as error:
            sizes = ", ".join(f"{name} {list(shape)}" for name, shape in shapes[0].items())
            refusal = onnx_session.CannotRun(f"onnxruntime cannot run it with inputs {sizes}: {error}")
    raise refusal


# MSDA: roles, draft and proof


def _attentions(
    subject: _Subject, target: str, fuse: bool
) -> tuple[list[tuple[Draft, Replacement, str]], list[NearMiss]]:
    """Returns the verified replacements of MSDA and the near misses."""
    graph, probes = subject.model.graph, subject.probes
    samplers, misses = find_samplers(graph, probes, subject.seed)
    verified = []
    for regions in find_regions(graph, samplers, probes):
        try:
            verified.append(_verified(subject, regions, target, fuse))
        except REFUSALS as error:
            named = regions[0].samplers if regions[0].reason else regions[0].samplers[:1]
            misses += [NearMiss(sampler.name, str(error)) for sampler in named]
    return verified, misses


def _verified(
    subject: _Subject, regions: tuple[Region, ...], target: str, fuse: bool
) -> tuple[Draft, Replacement, str]:
    """Drafts and proves the replacement of a region: the fused operator if possible, else the plain one.

    Returns:
        The draft, its entry in the report, and a note or "".

    Raises:
        REFUSALS: the region is not MSDA, or no draft gives its numbers.
    """
    if regions[0].reason:
        raise NotAttention(regions[0].reason)
    probes = subject.probes
    roles = [recognise(region, probe) for region, probe in zip(regions, probes, strict=True)]
    op_type, draft, error, note = operator.FUSED_ATTENTION, None, 0.0, ""
    if fuse and target == "msda":
        try:
            fused = [recognise_fused(one, probe) for one, probe in zip(roles, probes, strict=True)]
            draft = draft_attention(op_type, roles, fused, probes)
            error = _proven(subject, draft, target)
        except REFUSALS as reason:
            draft = None
            note = f"{regions[0].ends[-1].name}: softmax and locations stay outside: {reason}"
    if draft is None:
        op_type = operator.ATTENTION if target == "msda" else function_bodies.NVIDIA
        draft = draft_attention(op_type, roles, (), probes)
        error = _proven(subject, draft, target)
    sizes = roles[0].sizes
    replacement = Replacement(
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


# Padding masks: roles, draft and proof


def _masks(
    subject: _Subject, attentions: Sequence[Draft]
) -> tuple[list[tuple[Draft, MaskReplacement]], list[NearMiss]]:
    """Returns the verified replacements of masks on the values of MSDA, and the near misses.

    Args:
        subject: the model, which may have MSDA nodes already.
        attentions: drafts of others.
    """
    already = [node.inputs[0] for node in subject.model.graph if node.op_type in operator.OPERATORS]
    values = [next(iter(draft.kinds)) for draft in attentions]  # the value is their first input

    def drafted(where: ir.Node, _: Set[ir.Value]) -> _Drafted:
        _check_opset(subject)
        masked = recognise_mask(where, subject.probes[0])
        inputs, outputs = masked.layer.weight.shape
        replacement = partial(MaskReplacement, inputs=inputs, outputs=outputs)
        return draft_mask(masked, subject.probes), replacement

    return _verified_each(subject, masking_nodes([*already, *values]), drafted)


# Window attention: roles, draft and proof


def _windows(subject: _Subject) -> tuple[list[tuple[Draft, WindowReplacement]], list[NearMiss]]:
    """Returns the verified replacements of window attention and the near misses."""
    verified, misses = [], []
    for softmax in window_softmaxes(subject.model.graph, subject.probes):
        ends = {draft.end for draft, _ in verified}
        name, found = softmax.name or softmax.outputs[0].name, False
        try:
            windows = [recognise_windows(softmax, ends, probe) for probe in subject.probes]
            found = True
            verified.append(_verified_windows(subject, windows))
        except REFUSALS as error:
            if found or is_cut(softmax, subject.probes[0]):
                misses.append(NearMiss(name, str(error)))
    return verified, misses


def _verified_windows(subject: _Subject, windows: Sequence[Windows]) -> tuple[Draft, WindowReplacement]:
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
        error=_proven(subject, draft, "msda"),
    )
    return draft, replacement


# Group normalisation: roles, draft and proof


def _group_norms(subject: _Subject) -> tuple[list[tuple[Draft, GroupNormReplacement]], list[NearMiss]]:
    """Returns the verified replacements of group normalisation and the near misses."""
    maps = dict(group_norms(subject.model.graph, subject.probes[0]))

    def drafted(node: ir.Node, _: Set[ir.Value]) -> _Drafted:
        _check_opset(subject)
        norm = recognise_group_norm(node, maps[node], subject.probes[0])
        replacement = partial(GroupNormReplacement, num_groups=norm.num_groups, channels=len(norm.weight))
        return draft_group_norm(norm, subject.probes), replacement

    return _verified_each(subject, maps, drafted)


# Linear layers: roles, draft and proof


def _linears(subject: _Subject) -> tuple[list[tuple[Draft, LinearReplacement]], list[NearMiss]]:
    """Returns the verified replacements of linear layers and the near misses."""

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

    products = matrix_products(subject.model.graph, subject.probes[0])
    return _verified_each(subject, products, drafted)


# Proof


def _verified_each(
    subject: _Subject,
    nodes: Iterable[ir.Node],
    drafted: Callable[[ir.Node, Set[ir.Value]], _Drafted | None],
) -> tuple[list[tuple[Draft, Any]], list[NearMiss]]:
    """Drafts and proves a replacement for each node; returns the verified ones and the near misses.

    Args:
        nodes: each tells a place that may be replaced.
        drafted: drafts a node's replacement, or returns None for no near miss. Gets the node and the results
            of the verified replacements before. The part of the report lacks output and error.
    """
    verified, misses = [], []
    for node in nodes:
        try:
            if (found := drafted(node, {draft.end for draft, _ in verified})) is None:
                continue
            draft, replacement = found
            error = _proven(subject, draft, "msda")
        except REFUSALS as reason:
            misses.append(NearMiss(node.name or node.outputs[0].name, str(reason)))
        else:
            verified.append((draft, replacement(output=draft.end.name, error=error)))
    return verified, misses


def _check_opset(subject: _Subject) -> None:
    if (opset := subject.model.opset_imports.get("", 1)) < function_bodies.LOWEST_OPSET:
        raise NotAttention(f"the file has opset {opset}, the node needs {function_bodies.LOWEST_OPSET}")


def _proven(subject: _Subject, draft: Draft, target: str) -> float:
    """Returns the largest relative difference between a draft and its region, as `proof.prove` does."""
    op_types = {node.op_type for node in draft.nodes}
    bodies = function_bodies.functions(subject.model.opset_imports[""], target, op_types)
    session = onnx_session.Session(runnable(subject.model, draft.graph(), bodies))
    errors = []
    for probe in subject.probes:

        def run(tensors: proof.Tensors, probe: Probe = probe) -> np.ndarray:
            values = {x: tensors[x] if x in tensors else probe.value(x) for x in draft.stand_ins}
            return session.run({x.name: array for x, array in values.items()})[0]

        errors.append(proof.prove(probe, draft.end, draft.kinds, run, subject.seed))
    return max(errors)


# The new model


def _rewritten(
    subject: _Subject, drafts: Sequence[Draft], target: str
) -> tuple[onnx.ModelProto, dict[Draft, int]]:
    """Returns the model with drafts in place of their regions, and the number of nodes that each removed."""
    model, order = subject.model, subject.probes[0].order
    # The last first: one draft may read the tensor that another one replaces.
    last_first = sorted(drafts, key=lambda draft: order[draft.end.producer()], reverse=True)
    removed = {draft: insert(draft, model) for draft in last_first}
    for domain in {node.domain for node in model.graph}.intersection(OWN_DOMAINS):
        model.opset_imports[domain] = 1
    model.opset_imports[DOMAIN] = DOMAIN_VERSION
    op_types = {node.op_type for draft in drafts for node in draft.nodes}
    for body in function_bodies.functions(model.opset_imports[""], target, op_types):
        function = ir.serde.deserialize_function(body)
        model.functions[function.identifier()] = function
    model.ir_version = max(model.ir_version, 8)  # functions exist since version 8
    for node in model.graph:
        for value in node.outputs:
            if value.name not in subject.described and not value.is_graph_output():
                value.type, value.shape = None, None  # inferred here, not given by the file
    return ir.to_proto(model), removed
