"""Times forms of layers in TensorRT engines: which of them TensorRT joins into one kernel.

In the root of the source tree, on a machine with a GPU and TensorRT:

    python -m kernels.lab.time_layers

Maps of [1, 48 * 72, 768] cells are Swin-L's third stage at 768x1152, [1, 73656, 256] its encoder's.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cyclopts
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnx_path.tensorrt.tensorrt_engine import Settings, serialize_engine
from trt_plugin.inspection.engine_summary import measure


class Linear(nn.Module):
    """A MatMul and an Add. The exporter turns nn.Linear into a Gemm in two dimensions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / math.sqrt(inputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Block(nn.Module):
    """A Swin block behind its attention, and the LayerNorm of the next block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.next_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.fc1, self.fc2 = Linear(channels, 4 * channels), Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.fc2(F.gelu(self.fc1(self.norm(x)))) + x
        return y, self.next_norm(y)


class MaskByWhere(Linear):
    """A linear layer whose result is zero where a mask, [N, S, 1] bool, is True."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x).masked_fill(mask, 0)


class MaskByMul(Linear):
    """The same by a product."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        value = super().forward(x)
        return value * mask.logical_not().to(value.dtype)


def forms() -> Iterator[tuple[str, nn.Module, tuple[Tensor, ...]]]:
    """Yields name, network and inputs of each form, in fp16."""
    cells, channels = (48, 72), 768
    for shape in ((1, *cells, channels), (1, math.prod(cells), channels), (math.prod(cells), channels)):
        name = f"LayerNorm, FFN with GELU and LayerNorm in {len(shape)} dimensions"
        yield name, Block(channels).half(), (torch.zeros(shape).half(),)
    x, mask = torch.zeros(1, 73656, 256).half(), torch.zeros(1, 73656, 1).bool()
    yield "linear layer, no mask", Linear(256, 256).half(), (x,)
    yield "linear layer, mask by Where", MaskByWhere(256, 256).half(), (x, mask)
    yield "linear layer, mask by Mul", MaskByMul(256, 256).half(), (x, mask)


def main() -> None:
    """Prints the time of each form as a CUDA graph, and of its kernels, which wait for each other."""
    torch.manual_seed(0)
    for name, network, inputs in forms():
        with tempfile.TemporaryDirectory() as temporary:
            model, engine = Path(temporary, "model.onnx"), Path(temporary, "model.engine")
            torch.onnx.export(network, inputs, model, dynamo=True, opset_version=20, verbose=False)
            engine.write_bytes(serialize_engine(model, Settings(), name))
            times = measure(engine, runs=200)
        print(f"{name}: {1e3 * times.gpu_ms:.1f} us", flush=True)
        for layer, milliseconds in times.layer_ms.items():
            print(f"  {1e3 * milliseconds:6.1f} us  {layer}", flush=True)


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
