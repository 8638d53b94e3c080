"""The operation on one model: every region understood, drafted, proven and replaced."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import onnx
import onnx.version_converter
import onnx_ir as ir

from onnx_path import operator
from onnx_path.surgery import bodies, check, fusion, gathers, graph, proof, regions, rewrite, roles, runtime
from onnx_path.surgery.draft import Draft
from onnx_path.surgery.layouts import LayoutError
from onnx_path.surgery.levels import LevelShapes
from onnx_path.surgery.probe import Probe, runs
from onnx_path.surgery.regions import NotAttention, Region
from onnx_path.surgery.report import NearMiss, Replacement

REFUSALS = (NotAttention, LayoutError, proof.Disagreement, graph.NotClosed, runtime.CannotRun)
"""Why a region stays as it is; anything else is an error."""

OWN_DOMAINS = (operator.DOMAIN, operator.NVIDIA_DOMAIN)


class Operation:
    """A model on the table.

    Attributes:
        model: changed by `run`.
        unknown: operators that onnxruntime does not know, as "domain.Type".
        inputs: random inputs of the whole model, one set for each try of its dynamic sizes.
        replacements, near_misses, notes: filled by `run`, as the report has them.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        target: str,
        fuse: bool,
        seed: int,
        folder: Path | None,
        skip: Collection[str] = (),
    ) -> None:
        """Prepares a model; it is not changed itself.

        Args:
            proto: the model.
            target: msda or nvidia.
            fuse: use the fused operator where it fits.
            seed: of all random numbers.
            folder: where weights outside of the model lie.
            skip: results of gathers that are not to be taken for samplers, see `left_over`.

        Raises:
            runtime.CannotRun: onnxruntime refuses what of the model it should know.
        """
        self.target = target
        self.fuse = fuse and target == "msda"
        self.seed = seed
        self.folder = folder
        self.skip = set(skip)
        self.model = _prepared(proto, folder)
        self.unknown = _unknown_operators(self.model)
        self.described = {value.name for value in proto.graph.value_info}
        self.replacements: list[Replacement] = []
        self.near_misses: list[NearMiss] = []
        self.notes: list[str] = []
        self._made: dict[ir.Node, str] = {}
        self.inputs: list[dict] = []
        self.probes: list[Probe] = []

    def run(self) -> None:
        """Replaces what can be replaced."""
        self._measure()
        made = self._unify()
        samplers = dict(enumerate(regions.samplers(self.model.graph)))
        anchors = {number: node for number, node in samplers.items() if self._samples_right(node)}
        found = [list(regions.find(self.model.graph, anchors, probe)) for probe in self.probes]
        others = [{r.ends[-1]: r for r in rest if isinstance(r, Region)} for rest in found[1:]]
        level_shapes = LevelShapes(self.model, self.probes)
        for region in found[0]:
            if not isinstance(region, Region):
                number, reason = region
                self._miss(samplers[number], reason)
                continue
            try:
                same = [region, *(other[region.ends[-1]] for other in others if region.ends[-1] in other)]
                if len(same) < len(self.probes):
                    raise NotAttention("what it is depends on the input sizes")
                self._replace(
                    same, level_shapes, "gather" if set(region.anchors.values()) & made else "GridSample"
                )
            except REFUSALS as error:
                self._miss(next(iter(region.anchors.values())), error)

    def left_over(self) -> set[str]:
        """Results of samplers by gathers that `run` made GridSample nodes of in vain."""
        return {name for node, name in self._made.items() if node.graph is not None}

    def _unify(self) -> set[ir.Node]:
        """Makes GridSample nodes of samplers by gathers; returns them."""
        opset = self.model.graph.opset_imports[""]
        for sampler in list(gathers.samplers(self.model.graph, self.skip)):
            for draft in gathers.draft(sampler, self.probes, opset):
                try:
                    proof.prove(self.model, draft, sampler.result, self.probes, self.seed, self.target)
                except REFUSALS:
                    draft.discard()
                    continue
                name = sampler.result.name
                self._insert(draft, sampler.result)
                draft.operator.name = name
                self._made[draft.operator] = name
                break
        if self._made:
            self.probes = [Probe(self.model, tensors, self.folder) for tensors in self.inputs]
        return set(self._made)

    def _insert(self, draft: Draft, end: ir.Value) -> None:
        """Puts a draft into the graph in place of what made `end`, and takes out what became dead."""
        name = end.name
        draft.insert(end.producer())
        ir.convenience.replace_all_uses_with(end, draft.result, replace_graph_outputs=True)
        draft.result.shape, draft.result.type = end.shape, end.type
        end.name = f"{name}/decomposed"
        draft.result.name = name
        ir.passes.common.RemoveUnusedNodesPass()(self.model)

    def result(self, function_body: bool) -> onnx.ModelProto:
        """The model as it is now, with or without bodies of the nodes."""
        used = {node.domain for node in self.model.graph}
        for domain in OWN_DOMAINS:
            if domain in used:
                self.model.opset_imports[domain] = 1
        if function_body:
            self.model.opset_imports[operator.DOMAIN] = operator.DOMAIN_VERSION
            bodies.add(self.model, self.target)
        self.model.ir_version = max(self.model.ir_version, 8)  # functions exist since then
        for node in self.model.graph:
            for value in node.outputs:
                if value.name not in self.described and not value.is_graph_output():
                    value.type, value.shape = None, None  # inferred here, not the file's own
        return ir.to_proto(self.model)

    def _measure(self) -> None:
        """Runs the model at one or two sets of sizes."""
        attempts = range(2 if check.is_dynamic(self.model) else 1)
        for batch in (None, 1):  # some files say that the batch is dynamic and are for one image all the same
            try:
                shapes = [check.input_shapes(self.model, attempt, batch) for attempt in attempts]
                self.inputs = [check.random_inputs(self.model, shape, self.seed) for shape in shapes]
                self.probes = [Probe(self.model, tensors, self.folder) for tensors in self.inputs]
                return
            except runtime.CannotRun as error:
                if batch == 1 or len(attempts) == 1:
                    sizes = ", ".join(f"{name} {list(shape)}" for name, shape in shapes[0].items())
                    raise runtime.CannotRun(
                        f"onnxruntime cannot run it with inputs {sizes}: {error}"
                    ) from error

    def _samples_right(self, node: ir.Node) -> bool:
        try:
            for probe in self.probes:
                regions.check_sampler(node, probe)
        except NotAttention as error:
            self._miss(node, error)
            return False
        return True

    def _miss(self, node: ir.Node, reason: Exception) -> None:
        self.near_misses.append(NearMiss(node.name or node.outputs[0].name, str(reason)))

    def _replace(self, found: Sequence[Region], level_shapes: LevelShapes, form: str) -> None:
        region = found[0]
        understood = [roles.understand(one, probe) for one, probe in zip(found, self.probes)]
        shapes, starts, levels = level_shapes.of(region, understood)
        draft, end, error = self._proven(region, understood, shapes, starts)
        _check_unused(region, end)
        nodes_before = len(self.model.graph)
        name = end.name
        if levels is not None:
            levels.insert(end.producer())
        self._insert(draft, end)
        sizes = understood[0].sizes
        self.replacements.append(
            Replacement(
                output=name,
                op_type=draft.operator.op_type,
                levels=len(sizes.levels),
                points=sizes.points,
                heads=sizes.heads,
                head_dim=sizes.head_dim,
                nodes_removed=nodes_before - len(self.model.graph),
                form=form,
                error=error,
            )
        )

    def _proven(self, region: Region, understood: Sequence[roles.Roles], shapes: ir.Value, starts: ir.Value):
        """A draft that gives the region's numbers: the fused operator if it does, else the plain one."""
        if self.fuse:
            try:
                fused = [fusion.understand(one, probe) for one, probe in zip(understood, self.probes)]
                return self._checked(
                    rewrite.draft_fused_attention(region, understood, fused, self.probes, shapes, starts)
                )
            except REFUSALS as error:  # what stands before the region is computed otherwise, and stays
                self.notes.append(f"{region.ends[-1].name}: softmax and locations stay outside: {error}")
        return self._checked(
            rewrite.draft_attention(region, understood, self.probes, shapes, starts, self.target)
        )

    def _checked(self, drafted: tuple[Draft, ir.Value]) -> tuple[Draft, ir.Value, float]:
        draft, end = drafted
        try:
            return draft, end, proof.prove(self.model, draft, end, self.probes, self.seed, self.target)
        except REFUSALS:
            draft.discard()
            raise


def _prepared(proto: onnx.ModelProto, folder: Path | None) -> ir.Model:
    """A copy with types for all tensors, without functions but ours, in an opset that bodies can have.

    Files of an older opset have no GridSample, so only gathers are a reason to raise it.
    """
    opset = next((x.version for x in proto.opset_import if x.domain in graph.STANDARD_DOMAINS), 1)
    if opset < bodies.LOWEST_OPSET and any(node.op_type == "Floor" for node in proto.graph.node):
        proto = onnx.version_converter.convert_version(proto, bodies.LOWEST_OPSET)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    if any(function.domain not in OWN_DOMAINS for function in model.functions.values()):
        inline = ir.passes.common.InlinePass(lambda function: function.domain not in OWN_DOMAINS)
        inline(model)
        model = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))
    if folder is not None:
        ir.external_data.set_base_dir(model.graph, folder)
    return model


def _unknown_operators(model: ir.Model) -> list[str]:
    version = model.graph.opset_imports.get("", 1)
    unknown = [node for node in model.graph if not runs(node, version, model)]
    return list(dict.fromkeys(f"{node.domain}.{node.op_type}".lstrip(".") for node in unknown))


def _check_unused(region: Region, end: ir.Value) -> None:
    """Raises `NotAttention` if something else reads a tensor on the way to a region's end."""
    for value in region.inside - set(region.ends[region.ends.index(end) :]):
        for use in value.uses():
            node = use.node
            if not graph.is_op(node, *graph.SHAPE_OPS) and not any(x in region.inside for x in node.outputs):
                raise NotAttention(
                    f"{value.name}, which is on the way, is also read by {node.op_type} {node.name}"
                )
        if value.is_graph_output():
            raise NotAttention(f"{value.name}, which is on the way, is an output of the model")
