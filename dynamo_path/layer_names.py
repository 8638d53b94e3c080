"""Names the layers that Torch-TensorRT adds by the modules of the model, as the ONNX path does.

TensorRT keeps metadata through its fusions, and names elsewhere. Both hold
/backbone/stages.2/blocks.5/attn/linear_12, so profiles and NVTX ranges show the model's modules. Imports
neither TensorRT nor Torch-TensorRT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from trt_plugin.inspection import module_names


class NamedLayers:
    """Mixin for Torch-TensorRT's interpreter that names the layers of each node."""

    _node_names: dict[torch.fx.Node, str] | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        if self._node_names is None:  # all at once: the interpreter changes the metadata of nodes
            self._node_names = node_names(self.module.graph)
        network = self.ctx.net
        first = network.num_layers
        result = super().run_node(n)
        name_layers(map(network.get_layer, range(first, network.num_layers)), self._node_names[n])
        return result


def node_names(graph: torch.fx.Graph) -> dict[torch.fx.Node, str]:
    """Returns a name such as /encoder/layers.0/self_attn/linear_12 for each node.

    A node without metadata, which a pass made, belongs to the module of its first input.
    """
    scopes: dict[torch.fx.Node, list[str]] = {}
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            scopes[node] = [path for path, _ in stack.values()]
        else:
            scopes[node] = next((scopes[other] for other in node.all_input_nodes if scopes[other]), [])
    return {node: module_names.node_name(around, node.name) for node, around in scopes.items()}


def name_layers(layers: Iterable[Any], name: str) -> None:
    """Names the layers of one node by its name and their type, numbered if the node has several of a type."""
    taken: Counter[str] = Counter()
    for layer in layers:
        kind = layer.type.name
        taken[kind] += 1
        number = f" {taken[kind]}" if taken[kind] > 1 else ""
        layer.name = f"{name} [{kind}{number}]"
        layer.metadata = f"[Torch Node: {name}]"
