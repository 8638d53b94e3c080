"""Q/DQ operators of the dynamo path: the same layers, scales and numbers as in the ONNX file."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch import Tensor, nn

from onnx_path.surgery.graph import onnx_session

pytest.importorskip("onnxruntime")

from dynamo_path.quantized_layers import LAYERS, quantize_layers
from onnx_path.quantization.calibration_data import CalibrationData
from onnx_path.quantization.quantizer import Quantizer


class Network(nn.Module):
    """A stem of three channels, a convolutional block, an FFN of one layer twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 3, padding=1)
        self.layer, self.norm, self.head = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        cells = self.stem(images).relu()
        cells = (cells + self.block(cells)).relu()
        x = self.norm(cells.flatten(2).transpose(1, 2))
        x = self.norm(x + self.layer(self.layer(x).relu()))
        return self.head(x)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The network for TensorRT, its images, and the quantizer of its ONNX file."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    program = torch.export.export(Network().eval(), (images,))
    folder = tmp_path_factory.mktemp("network")
    torch.onnx.export(program, input_names=["images"], dynamo=True, verbose=False).save(folder / "model.onnx")
    quantizer = Quantizer(onnx.load(folder / "model.onnx"))
    inputs = {"images": images.numpy()}
    quantizer.calibrate(CalibrationData("key", 2, 1, lambda run: inputs), "minmax", folder)
    return program, images, quantizer


def lowered(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    table = torch.export.default_decompositions()
    table.pop(LAYERS[0], None)
    return program.run_decompositions(table).module()


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_same_as_the_onnx_file(exported, precision):
    program, images, quantizer = exported
    module = lowered(program)
    assert quantize_layers(module, quantizer.ranges_by_weights(quantizer.layers), precision) == 3
    found, original = module(images), Network().eval()(images)
    (expected,) = onnx_session.run(
        quantizer.quantize(precision, quantizer.layers), {"images": images.numpy()}
    )
    expected = torch.from_numpy(expected)
    assert (found - expected).norm() < 0.05 * (expected - original).norm()


def test_layers_that_a_graph_lacks(exported):
    program, _, quantizer = exported
    ranges = quantizer.ranges_by_weights(quantizer.layers)
    with pytest.raises(RuntimeError, match="expected 4 layers in 8 bits, 1 are not in the graph"):
        quantize_layers(lowered(program), {**ranges, "other/0": 1.0}, "int8")
