"""The model under surgery: with types for all tensors, and run once on random inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir as ir

from onnx_path.nodes.custom_operators import OWN_DOMAINS
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.graph.probe import Probe, runs
from onnx_path.surgery.graph.traversal import STANDARD_DOMAINS
from onnx_path.surgery.rewrite import function_bodies
from onnx_path.surgery.verify import random_inputs


@dataclass(frozen=True, eq=False)
class Subject:
    """The model to rewrite. Only the last step changes it, see `onnx_path.surgery.pipeline`.

    Attributes:
        model: with types for all tensors, without functions of others, in an opset that our function bodies
            can have.
        described: names of the tensors whose types the file gives.
        unknown: operators that onnxruntime does not know, as "domain.Type".
        inputs: random inputs, one set for each attempt at its dynamic sizes.
        probes: the sizes of its tensors with these inputs.
        seed, folder: as for `pipeline.operate`.
    """

    model: ir.Model
    described: frozenset[str]
    unknown: tuple[str, ...]
    inputs: tuple[dict[str, np.ndarray], ...]
    probes: tuple[Probe, ...]
    seed: int
    folder: Path | None


def prepare(proto: onnx.ModelProto, folder: Path | None, seed: int, before: Subject | None = None) -> Subject:
    """Reads a model, which stays as it is.

    Args:
        proto: the model.
        folder, seed: as for `pipeline.operate`.
        before: the subject that became this model. Its inputs and the sizes of its tensors are taken over.

    Raises:
        onnx_session.CannotRun: onnxruntime refuses the model.
    """
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
    if before is None:
        inputs, probes = _measured(model, folder, seed)
    else:
        inputs = before.inputs
        pairs = zip(inputs, before.probes, strict=True)
        probes = tuple(Probe(model, tensors, folder, x.number, x.measured) for tensors, x in pairs)
    described = frozenset(value.name for value in proto.graph.value_info)
    return Subject(model, described, tuple(names), inputs, probes, seed, folder)


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
