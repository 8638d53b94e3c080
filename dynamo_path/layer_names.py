"""Names of the layers that Torch-TensorRT adds: the modules that they come from, as on the ONNX path.

TensorRT keeps metadata through its fusions, and names otherwise; both say
/backbone/stages.2/blocks.5/attn/linear_12, so profiles and NVTX ranges speak of the model's modules. Imports
neither TensorRT nor Torch-TensorRT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from trt_plugin.inspection import module_names


class NamedLayers:
    """Mixin in front of Torch-TensorRT's interpreter: names what each node adds to the network."""

    _node_names: dict[torch.fx.Node, str] | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        if self._node_names is None:  # all at once: the interpreter takes nodes' notes apart as it goes
            self._node_names = node_names(self.module.graph)
        network = self.ctx.net
        first = network.num_layers
        result = super().run_node(n)
        name_layers(map(network.get_layer, range(first, network.num_layers)), self._node_names[n])
        return result


def node_names(graph: torch.fx.Graph) -> dict[torch.fx.Node, str]:
    """/encoder/layers.0/self_attn/linear_12 for each node.

    A node that a pass made without a note belongs to the module of the first node that it takes.
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
    """Names layers of one node: its name, and their type, with a number where there are several of one."""
    taken: Counter[str] = Counter()
    for layer in layers:
        kind = layer.type.name
        taken[kind] += 1
        number = f" {taken[kind]}" if taken[kind] > 1 else ""
        layer.name = f"{name} [{kind}{number}]"
        layer.metadata = f"[Torch Node: {name}]"
