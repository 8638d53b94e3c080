"""Models with Q/DQ nodes around layers in 8 bits: their fused forms, and engines of these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import torch

from msda.checks import EIGHT_BIT_TYPES
from onnx_path.nodes.attention import OPSET_VERSION
from onnx_path.opset import opset_of
from onnx_path.tensorrt import model_for_tensorrt
from onnx_path.tensorrt.fused_quantized_linears import QuantizedLayer, fuse_layers
from tests.onnx.map_nodes import add_bodies_of_opset, build_engine
from tests.onnx.text_models import text_model
from trt_plugin.inspection.engine_summary import read_engine

INT8, FP8 = EIGHT_BIT_TYPES
PRECISIONS = {"int8": INT8, "fp8": FP8}
ARRAYS = {INT8: np.int8, FP8: ml_dtypes.float8_e4m3fn}
CODES = {
    INT8: onnx.TensorProto.INT8,
    FP8: onnx.TensorProto.FLOAT8E4M3FN,
    torch.float16: onnx.TensorProto.FLOAT16,
}


def quantized_model(
    body: str, inputs: str, outputs: str, constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """Returns a model of nodes in text form, as `text_model`. Constants may be in FP8."""
    plain = {name: x for name, x in constants.items() if x.dtype != ml_dtypes.float8_e4m3fn}
    model = text_model(body, inputs, outputs, OPSET_VERSION, **plain)
    model.graph.initializer.extend(
        onnx.helper.make_tensor(name, CODES[FP8], x.shape, x.tobytes(), raw=True)
        for name, x in constants.items()
        if name not in plain
    )
    return model


def fused(model: onnx.ModelProto, rule: Callable[[QuantizedLayer], bool]) -> onnx.ModelProto:
    """Fuses the layers that a rule accepts, and adds the bodies of the new nodes."""
    changed = ir.from_proto(model)
    fuse_layers(changed, rule)
    proto = ir.to_proto(changed)
    del proto.functions[:]
    add_bodies_of_opset(proto, opset_of(proto))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def check_numbers(found: torch.Tensor, expected: torch.Tensor, eight_bits: torch.dtype) -> None:
    """Fails unless numbers of 8 bits are equal, but for a step in at most 1% of them."""
    expected = expected.float()
    differences = (found - expected).abs()
    step = torch.ones_like(expected) if eight_bits == INT8 else expected.abs().clamp(min=2**-6) / 8
    assert (differences <= step).all() and (differences > 0).sum() <= 0.01 * differences.numel()


def build_fused_engine(folder: Path, model: onnx.ModelProto, plugins: int) -> Path:
    """Builds an engine of a fused model, and fails unless it has this number of plugins."""
    model_for_tensorrt.remove_function_bodies(model)
    path = build_engine(folder, model)
    layers = read_engine(path)[1].layers
    print(*(layer.name for layer in layers), sep="\n")
    assert sum(layer.type == "PluginV3" for layer in layers) == plugins
    return path
