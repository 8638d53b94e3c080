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


def one_type_node(
    name: str,
    inputs: Sequence[str],
    attributes: Mapping[str, onnx.defs.OpSchema.AttrType],
    optional: str | None = None,
) -> onnxscript.values.Op:
    """Describes for the exporter a node whose inputs and output have one floating type.

    Args:
        name: the operator.
        inputs: names of the inputs.
        attributes: types of the attributes besides `PLUGIN_ATTRIBUTES`, by name.
        optional: an input that a node may lack.
    """
    schema = onnx.defs.OpSchema
    option = schema.FormalParameterOption
    kinds = {x: option.Optional if x == optional else option.Single for x in inputs}
    description = schema(
        name,
        DOMAIN,
        DOMAIN_VERSION,
        inputs=[schema.FormalParameter(x, "T", param_option=kind) for x, kind in kinds.items()],
        outputs=[schema.FormalParameter("output", "T")],
        type_constraints=[("T", list(FLOAT_TYPES), "")],
        attributes=[
            *(schema.Attribute(key, kind) for key, kind in attributes.items()),
            *(schema.Attribute(key, schema.AttrType.STRING) for key in PLUGIN_ATTRIBUTES),
        ],
    )
    return onnxscript.values.Op(msda_op, name, description)
