"""Replacing the nodes of a protobuf graph."""

from __future__ import annotations

from collections.abc import Iterable

import onnx


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replaces the nodes of a graph in place; `nodes` may contain nodes of the same graph."""
    # Deleting a node from the graph invalidates it, so copies are made first.
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
