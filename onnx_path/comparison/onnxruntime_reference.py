"""The reference of a comparison: outputs of a model, and tensors between its nodes, by onnxruntime on the
CPU.

16-bit models run in float32. The comparison then measures the error of an engine's 16 bits, and onnxruntime's
CPU provider lacks some operators in 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from onnx_path.nodes.attention import DOMAIN, PACKED, remove_function_bodies
from onnx_path.nodes.custom_operators import OWN_DOMAINS
from onnx_path.nodes.group_norm import written_out_levels
from onnx_path.nodes.window_attention import OUTPUT_SCALE, WINDOW_ATTENTION, QuantizedWindowAttention
from onnx_path.opset import opset_of
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.rewrite import function_bodies
from trt_plugin.library import GROUP_NORM_LEVELS


def add_bodies(model: onnx.ModelProto) -> None:
    """Gives our nodes, also those of builds, and NVIDIA's the bodies that onnxruntime needs, in place."""
    if not any(node.domain in OWN_DOMAINS for node in model.graph.node):
        return
    _write_out_levels(model)
    for node in model.graph.node:
        attributes = [x for x in node.attribute if x.name != PACKED]
        is_window = (node.domain, node.op_type) == (DOMAIN, WINDOW_ATTENTION)
        if is_window and any(x.name == OUTPUT_SCALE for x in attributes):
            node.op_type = QuantizedWindowAttention.name
        if node.domain == DOMAIN and len(attributes) < len(node.attribute):
            node.op_type = function_bodies.PackedMultiScaleDeformableAttention.name
            del node.attribute[:]
            node.attribute.extend(attributes)
    remove_function_bodies(model)
    model.functions.extend(function_bodies.functions(max(1, opset_of(model)), "onnxruntime"))
    needed = {*OWN_DOMAINS} - {x.domain for x in model.opset_import}
    model.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in sorted(needed))
    model.ir_version = max(model.ir_version, 8)  # functions exist since then


def _write_out_levels(model: onnx.ModelProto) -> None:
    """Replaces nodes `GroupNormLevels`, whose number of inputs a body would fix."""
    graph = model.graph
    ranks = {x.name: len(x.type.tensor_type.shape.dim) for x in (*graph.input, *graph.value_info)}
    nodes = [
        each
        for node in graph.node
        for each in (
            written_out_levels(node, ranks)
            if (node.domain, node.op_type) == (DOMAIN, GROUP_NORM_LEVELS)
            else [node]
        )
    ]
    del graph.node[:]
    graph.node.extend(nodes)


class OnnxruntimeReference:
    """A model in onnxruntime with fixed inputs.

    Args:
        model: gets function bodies for nodes that have none.
        folder: location of weights outside of the model.
        inputs: arrays by name.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path, inputs: Mapping[str, np.ndarray]) -> None:
        add_bodies(model)
        self._model, self._folder, self._inputs = model, folder, inputs

    def __call__(self, marks: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Runs the model, and returns its outputs and other tensors of the main graph by name, in float32.

        Raises:
            onnx_session.CannotRun: onnxruntime does not load or run the model. The message has its reason.
        """
        outputs = self._model.graph.output
        own = len(outputs)
        names = [x.name for x in outputs]
        names += [name for name in dict.fromkeys(marks) if name not in names]
        outputs.extend(onnx.ValueInfoProto(name=name) for name in names[own:])  # onnxruntime infers types
        try:
            session = onnx_session.Session(self._model, self._folder)
        finally:
            del outputs[own:]
        return dict(zip(names, session.run(self._inputs), strict=True))
