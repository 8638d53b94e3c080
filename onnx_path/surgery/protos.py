"""Copies of protobuf models, and other nodes in them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a whole model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Gives a graph other nodes, its own among them if need be."""
    # A node of the graph is gone with it, so copies are made before.
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
