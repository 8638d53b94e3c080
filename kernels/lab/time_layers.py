"""Times forms of layers in TensorRT engines: which of them TensorRT joins into one kernel.

In the root of the source tree, on a machine with a GPU and TensorRT:

    python -m kernels.lab.time_layers

Maps of [1, 48 * 72, 768] cells are Swin-L's third stage at 768x1152, [1, 73656, 256] its encoder's.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cyclopts
import numpy as np
import onnx
import tensorrt as trt
from onnx import TensorProto, helper, numpy_helper
from polygraphy.backend.trt import CreateConfig, engine_bytes_from_network, network_from_onnx_path

from trt_plugin.inspection.engine_summary import measure

FLOAT16 = TensorProto.FLOAT16


class Network:
    """A small fp16 network. Weights are normal numbers of seed 0."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.shape = shape
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs = [helper.make_tensor_value_info("x", FLOAT16, shape)]
        self._random = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Appends a node and returns its output."""
        output = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, array: np.ndarray, dtype: type = np.float16) -> str:
        """Returns the name of a constant."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """A product with a matrix, and a bias."""
        weight = self._random.standard_normal((inputs, outputs)) / math.sqrt(inputs)
        product = self.add("MatMul", x, self.constant(weight))
        return self.add("Add", product, self.constant(self._random.standard_normal(outputs)))

    def norm(self, x: str) -> str:
        """A LayerNorm."""
        channels = self.shape[-1]
        parameters = self.constant(np.ones(channels)), self.constant(np.zeros(channels))
        return self.add("LayerNormalization", x, *parameters, axis=-1)

    def mask(self) -> str:
        """An input, [N, S, 1] bool."""
        self._inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, (*self.shape[:-1], 1)))
        return "mask"

    def save(self, folder: Path, *outputs: str) -> Path:
        """Writes the network, whose outputs have the shape of x."""
        results = [helper.make_tensor_value_info(output, FLOAT16, self.shape) for output in outputs]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, results, self._constants)
        path = folder / f"{self.name}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
        return path


def networks(folder: Path) -> Iterator[Path]:
    """Yields the ONNX files of all forms."""
    rows, columns, channels = 48, 72, 768
    for shape in ((1, rows, columns, channels), (1, rows * columns, channels), (rows * columns, channels)):
        net = Network(f"LayerNorm, FFN with GELU and LayerNorm in {len(shape)} dimensions", shape)
        hidden = net.add("Gelu", net.linear(net.norm("x"), channels, 4 * channels))
        y = net.add("Add", net.linear(hidden, 4 * channels, channels), "x")
        yield net.save(folder, y, net.norm(y))
    for form in ("no mask", "mask by Where", "mask by Mul"):
        net = Network(f"linear layer, {form}", (1, 73656, 256))
        value = net.linear("x", 256, 256)
        if form == "mask by Where":
            value = net.add("Where", net.mask(), net.constant(0.0), value)
        elif form == "mask by Mul":
            keep = net.add("Cast", net.add("Not", net.mask()), to=FLOAT16)
            value = net.add("Mul", value, keep)
        yield net.save(folder, value)


def main() -> None:
    """Prints the time of each form as a CUDA graph, and of its kernels, which wait for each other."""
    with tempfile.TemporaryDirectory() as temporary:
        for path in networks(Path(temporary)):
            network = network_from_onnx_path(str(path), strongly_typed=True)
            config = CreateConfig(profiling_verbosity=trt.ProfilingVerbosity.DETAILED)
            engine = path.with_suffix(".engine")
            engine.write_bytes(bytes(engine_bytes_from_network(network, config)))
            times = measure(engine, runs=200)
            print(f"{path.stem}: {1e3 * float(np.median(times.samples_ms)):.1f} us", flush=True)
            for name, milliseconds in times.layer_ms.items():
                print(f"  {1e3 * milliseconds:6.1f} us  {json.dumps(name)}", flush=True)


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
