"""The graph surgery from a model to the rewritten model: find, roles, draft, verify."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import onnx
import onnx_ir as ir

from codetr.errors import ArgumentError
from onnx_path.nodes.custom_operators import OWN_DOMAINS, nodes_of
from onnx_path.nodes.domain import DOMAIN, DOMAIN_VERSION
from onnx_path.surgery.kinds import FINDERS, LATER_FINDERS, NODES, Found, Options
from onnx_path.surgery.rewrite import function_bodies
from onnx_path.surgery.rewrite.draft import insert
from onnx_path.surgery.subject import Subject, prepare
from onnx_path.surgery.verify.model_comparison import DISTURBANCE, compare
from onnx_path.surgery.verify.model_comparison import OutputsDiffer as OutputsDiffer
from onnx_path.surgery.verify.report import Kind, Replacement, SurgeryReport

SURGERY_TARGETS = ("msda", "nvidia")


class UnknownOperator(ValueError):
    """The outputs cannot be compared: onnxruntime does not know an operator of the model."""


def operate(
    model: onnx.ModelProto,
    *,
    target: str = "msda",
    only: Sequence[Kind] | None = None,
    fuse: bool = True,
    function_body: bool = True,
    check: bool = True,
    seed: int = 0,
    folder: Path | None = None,
) -> tuple[onnx.ModelProto, SurgeryReport]:
    """Replaces decomposed MSDA, window attention and what is near them in a model by one node each.

    Attention of few queries over many keys gets other standard operators. Attention with a mask and an odd
    number of keys gets more keys.

    Args:
        model: the model, which is not changed. Its weights may lie in other files
            (`onnx.load(..., load_external_data=False)`), as they must beyond 2 GB.
        target: "msda" writes nodes of our plugin, "nvidia" nodes of MultiscaleDeformableAttnPlugin_TRT.
            NVIDIA has plugins of MSDA only.
        only: the kinds to replace. Default: "msda", "window-attention", "long-attention" and
            "masked-attention", and "linear" if a window attention was replaced. The target "nvidia" has the
            default "msda".
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
    _check_kinds(only or (), target)
    subject = prepare(model, folder, seed)
    inputs, unknown = subject.inputs, subject.unknown
    result, replacements, misses, notes = model, [], [], []
    for finders in (FINDERS, LATER_FINDERS):
        kinds = _default_kinds(target, replacements) if only is None else only
        wanted = [find for kind, find in finders.items() if kind in kinds]
        if wanted and replacements:
            subject = prepare(result, folder, seed, subject)
        found = Found()
        for find in wanted:
            find(subject, found, Options(target, fuse))
        misses += found.misses
        notes += found.notes
        if found.verified:
            result, made = _rewritten(subject, found, target)
            replacements += made
    nodes = len(model.graph.node)
    own = {op_type for kind in kinds for op_type in NODES[kind]}
    there = Counter(node.op_type for node in nodes_of(model) if node.domain in OWN_DOMAINS)
    already = {op_type: count for op_type, count in there.items() if op_type in own}
    if not replacements:
        return model, SurgeryReport((), tuple(misses), nodes, nodes, None, already=already)
    if check and unknown:
        raise UnknownOperator(
            f"onnxruntime does not know the operator {unknown[0]}, so the outputs cannot be "
            "compared; --no-check rewrites without"
        )
    error = None
    if check:
        del subject, found
        gc.collect()  # both hold graphs, which are cyclic, and copies of the weights
        disturbance = max(DISTURBANCE, *(one.error for one in replacements))
        error, more = compare(model, result, inputs, folder, disturbance)
        notes += more
    if not function_body:
        del result.functions[:]
    return result, SurgeryReport(
        tuple(replacements),
        tuple(misses),
        nodes,
        len(result.graph.node),
        error,
        tuple(notes),
        already,
    )


def _check_kinds(only: Sequence[str], target: str) -> None:
    """Raises ArgumentError for a kind that is unknown, or that the target does not have."""
    known = get_args(Kind)
    for name in only:
        if name not in known:
            raise ArgumentError("only", f"expected some of {', '.join(known)}, got {name!r}")
        if target != "msda" and name != "msda":
            raise ArgumentError("only", f"expected msda for the target {target}, got {name!r}")


def _default_kinds(target: str, replacements: Sequence[Replacement]) -> Sequence[Kind]:
    """Returns the kinds to replace by default. "linear" is measured only in files with window attention.

    Args:
        target: as for `operate`.
        replacements: those made so far.
    """
    if target != "msda":
        return ("msda",)
    windows = any(one.kind == "window-attention" for one in replacements)
    default = ("msda", "window-attention", "long-attention", "masked-attention")
    return (*default, "linear") if windows else default


def _rewritten(subject: Subject, found: Found, target: str) -> tuple[onnx.ModelProto, list[Replacement]]:
    """Returns the model with drafts in place of their regions, and what each of them removed."""
    drafts = found.drafts
    model, order = subject.model, subject.probes[0].order
    # The last first: one draft may read the tensor that another one replaces.
    last_first = sorted(drafts, key=lambda draft: order[draft.end.producer()], reverse=True)
    removed = {draft: insert(draft, model) for draft in last_first}
    nodes = len(model.graph)
    ir.passes.common.RemoveUnusedNodesPass()(model)  # those that the file never read, and weights
    removed[last_first[0]] += nodes - len(model.graph)
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
    counted = [replace(one, nodes_removed=removed[draft]) for draft, one in found.verified]
    return ir.to_proto(model), counted
