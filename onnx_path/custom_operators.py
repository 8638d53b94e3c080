"""Operators of an ONNX file that TensorRT takes from plugins: are these registered? Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from onnx_path.operator import DOMAIN, NVIDIA_DOMAIN

OWN_DOMAINS = (DOMAIN, NVIDIA_DOMAIN)
"""Bodies of operators of these domains are taken out of what TensorRT gets."""

# What TensorRT's parser itself knows beside ONNX's operators: names that begin so, and early experiments.
_PARSERS_PREFIX = "TRT_"
_PARSERS_OWN = frozenset({"ImageScaler", "ParametricSoftplus", "ScaledTanh"})


class PluginMissing(ValueError):
    """An operator that no registered plugin has, or a library that cannot be loaded."""


@dataclass(frozen=True)
class CustomOperator:
    """An operator that is neither ONNX's nor a function in the file.

    Attributes:
        domain, op_type: as in the file.
        version, namespace: by which TensorRT's parser looks the plugin up.
        node: name of the first such node, or of its output.
    """

    domain: str
    op_type: str
    version: str
    namespace: str
    node: str

    @property
    def name(self) -> str:
        """domain.op_type."""
        return f"{self.domain}.{self.op_type}".lstrip(".")


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of subgraphs and of functions that TensorRT gets included."""
    pending = [list(model.graph.node)]
    pending += [list(f.node) for f in model.functions if f.domain not in OWN_DOMAINS]
    while pending:
        for node in pending.pop(0):
            yield node
            for attribute in node.attribute:
                pending += [list(graph.node) for graph in (attribute.g, *attribute.graphs) if graph.node]


def standard_operators() -> frozenset[str]:
    """Names that TensorRT's parser does not look for among plugins: ONNX's of any version, and its own."""
    return _PARSERS_OWN | {x.name for x in onnx.defs.get_all_schemas_with_history() if x.domain == ""}


def custom_operators(model: onnx.ModelProto) -> list[CustomOperator]:
    """Returns the operators that have to be plugins, each once.

    TensorRT's parser looks at an operator's name only, so one of another domain with a standard name is none.
    """
    standard = standard_operators()
    bodies = {(f.domain, f.name) for f in model.functions if f.domain not in OWN_DOMAINS}
    found: dict[tuple[str, ...], CustomOperator] = {}
    for node in nodes_of(model):
        known = node.op_type in standard or node.op_type.startswith(_PARSERS_PREFIX)
        if (node.domain, node.op_type) in bodies or (known and node.domain not in OWN_DOMAINS):
            continue
        attributes = {x.name: x.s.decode() for x in node.attribute if x.type == onnx.AttributeProto.STRING}
        key = (
            node.domain,
            node.op_type,
            attributes.get("plugin_version", "1"),
            attributes.get("plugin_namespace", ""),
        )
        found.setdefault(key, CustomOperator(*key, node.name or next(iter(node.output), "")))
    return list(found.values())


def load_libraries(paths: Sequence[Path]) -> None:
    """Registers the plugins of libraries with TensorRT.

    Raises:
        PluginMissing: one cannot be loaded.
        trt_plugin.EngineError: TensorRT is missing.
    """
    from trt_plugin import library
    from trt_plugin.engine_error import EngineError, import_tensorrt

    import_tensorrt()
    try:
        library.load_others(paths)
    except EngineError as error:
        raise PluginMissing(str(error)) from error


def check_registered(operators: Iterable[CustomOperator]) -> None:
    """Checks that TensorRT has a plugin for each operator, NVIDIA's own included.

    Raises:
        PluginMissing: naming the first that it has not.
        trt_plugin.EngineError: TensorRT is missing.
    """
    from trt_plugin.engine_error import import_tensorrt
    from trt_plugin.tensorrt_log import tensorrt_logger

    trt = import_tensorrt()
    trt.init_libnvinfer_plugins(tensorrt_logger(), "")
    registry = trt.get_plugin_registry()
    for operator in operators:
        if registry.get_creator(operator.op_type, operator.version, operator.namespace) is None:
            others = [
                f"version {creator.plugin_version!r} in namespace {creator.plugin_namespace!r}"
                for creator in registry.all_creators
                if creator.name == operator.op_type
            ]
            there = f" (there is {', '.join(others)}: see the node's plugin_version and plugin_namespace)"
            raise PluginMissing(
                f"node {operator.node}: no TensorRT plugin is registered for the operator {operator.name}, "
                f"version {operator.version!r} in namespace {operator.namespace!r}{there if others else ''}; "
                "load its library with --plugins FILE"
            )


def needs_ours(model: onnx.ModelProto) -> bool:
    """Whether a model has nodes of our plugins."""
    return any(operator.namespace == DOMAIN for operator in custom_operators(model))


def register(libraries: Sequence[Path], model: onnx.ModelProto) -> list[Path]:
    """Registers all plugins that a model needs, those of libraries and ours.

    Returns:
        The libraries, ours too if the model needs it.

    Raises:
        PluginMissing: a library cannot be loaded, or an operator has no plugin.
        trt_plugin.EngineError: TensorRT or our library is missing.
    """
    import trt_plugin

    load_libraries(libraries)
    ours = [trt_plugin.load()] if needs_ours(model) else []
    check_registered(custom_operators(model))
    return [*libraries, *ours]
