"""The domain `msda` of ONNX nodes: its name and version, and what its nodes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnxscript

DOMAIN = "msda"
DOMAIN_VERSION = 1
PLUGIN_ATTRIBUTES = {"plugin_namespace": "msda", "plugin_version": "1"}
"""TensorRT's parser finds the plugin by these; without them it searches the empty namespace only."""

FLOAT_TYPES = ("tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)")
"""Types of the nodes' floating-point tensors, as ONNX's schemas write them."""

msda_op = onnxscript.values.Opset(DOMAIN, DOMAIN_VERSION)


def plugin_node(
    name: str,
    inputs: Mapping[str, str],
    output: tuple[str, str],
    attributes: Mapping[str, onnx.defs.OpSchema.AttrType],
    types: Mapping[str, Sequence[str]],
    optional: str | None = None,
) -> onnxscript.values.Op:
    """Describes a node of one output for the exporter.

    Args:
        name: the operator.
        inputs: types of the inputs by name, as ONNX's schemas write them, or keys of `types`.
        output: name and type of the output.
        attributes: types of the attributes besides `PLUGIN_ATTRIBUTES`, by name.
        types: the types that a key such as "T" stands for.
        optional: an input or attribute that a node may lack.
    """
    schema = onnx.defs.OpSchema
    option = schema.FormalParameterOption
    description = schema(
        name,
        DOMAIN,
        DOMAIN_VERSION,
        inputs=[
            schema.FormalParameter(x, kind, param_option=option.Optional if x == optional else option.Single)
            for x, kind in inputs.items()
        ],
        outputs=[schema.FormalParameter(*output)],
        type_constraints=[(key, list(kinds), "") for key, kinds in types.items()],
        attributes=[
            *(schema.Attribute(key, kind, required=key != optional) for key, kind in attributes.items()),
            *(schema.Attribute(key, schema.AttrType.STRING) for key in PLUGIN_ATTRIBUTES),
        ],
    )
    return onnxscript.values.Op(msda_op, name, description)


def one_type_node(
    name: str,
    inputs: Sequence[str],
    attributes: Mapping[str, onnx.defs.OpSchema.AttrType],
    optional: str | None = None,
) -> onnxscript.values.Op:
    """Describes for the exporter a node whose inputs and output have one floating type, see `plugin_node`."""
    types = {"T": FLOAT_TYPES}
    return plugin_node(name, dict.fromkeys(inputs, "T"), ("output", "T"), attributes, types, optional)
