"""Q/DQ operators of the dynamo path: the same layers, scales and numbers as in the ONNX file."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch import Tensor, nn

from onnx_path.surgery.graph import onnx_session

pytest.importorskip("onnxruntime")

from dynamo_path.quantized_layers import quantize_layers
from onnx_path.quantization.calibration_data import CalibrationData
from onnx_path.quantization.quantizer import Quantizer
from tests.export.graphs_in_8_bits import lowered


class Network(nn.Module):
    """A stem of three channels, a convolutional block, the same FFN twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        cells = self.stem(images).relu()
        cells = (cells + self.block(cells)).relu()
        x = cells.flatten(2).transpose(1, 2)
        for _ in range(2):
            x = x + self.down(self.up(self.norm(x)).relu())
        return self.head(x)


@pytest.fixture(scope="module", params=["int8", "fp8"])
def exported(request, tmp_path_factory):
    """The network for TensorRT, its images, and the quantizer of its ONNX file."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    program = torch.export.export(Network().eval(), (images,))
    folder = tmp_path_factory.mktemp("network")
    torch.onnx.export(program, input_names=["images"], dynamo=True, verbose=False).save(folder / "model.onnx")
    quantizer = Quantizer(onnx.load(folder / "model.onnx"), request.param)
    inputs = {"images": images.numpy()}
    quantizer.calibrate(CalibrationData("key", 2, 1, lambda run: inputs), "minmax", folder)
    return program, images, quantizer


def test_same_as_the_onnx_file(exported):
    program, images, quantizer = exported
    module, ranges = lowered(program), quantizer.ranges_by_weights()
    assert quantize_layers(module, ranges, quantizer.precision) == {"int8": 5, "fp8": 4}[quantizer.precision]
    found, original = module(images), Network().eval()(images)
    (expected,) = onnx_session.run(quantizer.quantize(quantizer.layers), {"images": images.numpy()})
    expected = torch.from_numpy(expected)
    assert (found - expected).norm() < 0.05 * (expected - original).norm()


def test_layers_that_a_graph_lacks(exported):
    program, _, quantizer = exported
    ranges = quantizer.ranges_by_weights()
    with pytest.raises(
        RuntimeError, match=f"expected {len(ranges) + 1} layers in 8 bits, 1 are not in the graph"
    ):
        quantize_layers(lowered(program), {**ranges, "other/0": 1.0}, quantizer.precision)
