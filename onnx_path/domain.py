"""The domain `msda` of ONNX nodes: its name and version, and the attributes of all its nodes."""

from __future__ import annotations

import onnxscript

DOMAIN = "msda"
DOMAIN_VERSION = 1
PLUGIN_ATTRIBUTES = {"plugin_namespace": "msda", "plugin_version": "1"}
"""TensorRT's parser finds the plugin by these; without them it searches the empty namespace only."""

FLOAT_TYPES = ("tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)")
"""Types of the nodes' floating-point tensors, as ONNX's schemas write them."""

msda_op = onnxscript.values.Opset(DOMAIN, DOMAIN_VERSION)
