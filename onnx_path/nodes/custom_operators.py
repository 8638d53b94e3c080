"""Operators of an ONNX file that TensorRT takes from plugins, and the registration of these plugins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from codetr.errors import ArgumentError, UsageError
from onnx_path.nodes.attention import DOMAIN, NVIDIA_DOMAIN

OWN_DOMAINS = (DOMAIN, NVIDIA_DOMAIN)
"""TensorRT gets nodes of these domains without their function bodies."""

# Names that TensorRT's parser knows in addition to ONNX's: this prefix, and early experiments.
_PARSER_PREFIX = "TRT_"
_PARSER_OPERATORS = frozenset({"ImageScaler", "ParametricSoftplus", "ScaledTanh"})


@dataclass(frozen=True)
class CustomOperator:
    """An operator that neither ONNX nor the file itself defines.

    Attributes:
        version, namespace: TensorRT's parser looks the plugin up by them and `op_type`.
        node: name of the first such node, or of its output.
    """

    domain: str
    op_type: str
    version: str
    namespace: str
    node: str

    @property
    def name(self) -> str:
        """The operator as domain.op_type."""
        return f"{self.domain}.{self.op_type}".lstrip(".")


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yields all nodes that TensorRT gets, nodes of subgraphs and functions included."""
    pending = [list(model.graph.node)]
    pending += [list(f.node) for f in model.functions if f.domain not in OWN_DOMAINS]
    while pending:
        for node in pending.pop(0):
            yield node
            for attribute in node.attribute:
                pending += [list(graph.node) for graph in (attribute.g, *attribute.graphs) if graph.node]


def custom_operators(model: onnx.ModelProto) -> list[CustomOperator]:
    """Returns the operators that have to be plugins, each once.

    TensorRT's parser ignores domains. An operator of another domain with a name of ONNX's is not among them.
    """
    standard = _PARSER_OPERATORS | {x.name for x in onnx.defs.get_all_schemas_with_history() if not x.domain}
    bodies = {(f.domain, f.name) for f in model.functions if f.domain not in OWN_DOMAINS}
    found: dict[tuple[str, ...], CustomOperator] = {}
    for node in nodes_of(model):
        known = node.op_type in standard or node.op_type.startswith(_PARSER_PREFIX)
        if (node.domain, node.op_type) in bodies or (known and node.domain not in OWN_DOMAINS):
            continue
        attributes = {x.name: x.s.decode() for x in node.attribute if x.type == onnx.AttributeProto.STRING}
        version = attributes.get("plugin_version", "1")
        key = node.domain, node.op_type, version, attributes.get("plugin_namespace", "")
        found.setdefault(key, CustomOperator(*key, node.name or next(iter(node.output), "")))
    return list(found.values())


def register_plugins(libraries: Sequence[Path], model: onnx.ModelProto | None) -> list[Path]:
    """Registers the plugins of libraries with TensorRT, and the project's plugins if a model needs them.

    Returns:
        The libraries, each once, with the project's if the model needs it.

    Raises:
        ArgumentError: the model has an operator without a plugin.
        UsageError: a library cannot be loaded.
        trt_plugin.EngineError: TensorRT or the project's library is missing.
    """
    from trt_plugin import library
    from trt_plugin.engine_error import EngineError, import_tensorrt
    from trt_plugin.tensorrt_log import tensorrt_logger

    trt = import_tensorrt()
    try:
        library.load_others(libraries)
    except EngineError as error:
        raise UsageError(str(error)) from error
    operators = [] if model is None else custom_operators(model)
    loaded = [*libraries]
    if any(operator.namespace == DOMAIN for operator in operators):
        loaded.append(library.load())
    trt.init_libnvinfer_plugins(tensorrt_logger(), "")  # NVIDIA's own plugins
    registry = trt.get_plugin_registry()
    for operator in operators:
        if registry.get_creator(operator.op_type, operator.version, operator.namespace) is None:
            others = [
                f"version {creator.plugin_version!r} in namespace {creator.plugin_namespace!r}"
                for creator in registry.all_creators
                if creator.name == operator.op_type
            ]
            wanted = f"version {operator.version!r} in namespace {operator.namespace!r}"
            raise ArgumentError(
                "plugins",
                f"expected a library with the operator {operator.name} of node {operator.node}, {wanted}, "
                f"got {' and '.join(others) or 'none'}",
            )
    return list({path.resolve(): path for path in loaded}.values())
