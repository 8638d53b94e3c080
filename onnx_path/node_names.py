"""Names an exported file's nodes by the model's modules, as in /backbone/stages.2/blocks.5/attn/MatMul.

TensorRT's parser makes them names and metadata of layers. Profiles and NVTX ranges then name the modules.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

from trt_plugin.inspection import module_names

if TYPE_CHECKING:
    import onnx_ir

SCOPES = "pkg.torch.onnx.name_scopes"
"""The exporter's note on a node: ['', 'encoder', 'encoder.layers.0', 'linear_12'], the operator last."""
STACK_TRACE = "pkg.torch.onnx.stack_trace"
"""Another note: source lines with paths of the machine that exported."""


def name_by_modules(graph: onnx_ir.Graph) -> None:
    """Renames all nodes of a graph. Tensors keep their names.

    A node without a note belongs to the module of the node that computes its first input.
    """
    taken: Counter[str] = Counter()
    for node in graph:
        name = module_names.node_name(_scopes(node), node.op_type)
        taken[name] += 1
        node.name = name if taken[name] == 1 else f"{name}_{taken[name] - 1}"


def remove_stack_traces(graph: onnx_ir.Graph) -> None:
    """Removes the exporter's stack traces, so that a file does not depend on the machine."""
    for node in graph:
        node.metadata_props.pop(STACK_TRACE, None)


def _scopes(node: onnx_ir.Node | None) -> list[str]:
    """Returns the modules around a node, outermost first."""
    while node is not None:
        note = node.metadata_props.get(SCOPES)
        if note is not None:
            return ast.literal_eval(note)[:-1]
        producers = (value.producer() for value in node.inputs if value is not None)
        node = next((producer for producer in producers if producer is not None), None)
    return []
