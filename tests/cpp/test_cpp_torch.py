"""`codetr_detect_torch`: TorchScript modules detect as in Python."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from codetr.detector.preprocess import load_image
from codetr.detector.sizes import SizeRange
from tests.cpp.detect_program import COFFEE, Network, Outputs, find_program, read_document, refused, run

PROGRAM = "codetr_detect_torch"
pytestmark = [
    pytest.mark.skipif(
        find_program(PROGRAM) is None,
        reason="codetr_detect_torch is not built: cmake -DCODETR_DETECT_TORCH=ON",
    ),
    pytest.mark.filterwarnings("ignore"),  # torch.jit is deprecated, but Torch-TensorRT saves it for C++
]


class TinyDetector(torch.nn.Module):
    """Gives boxes and scores that depend on the pixels, the padding and N."""

    def forward(self, images: torch.Tensor, image_shapes: torch.Tensor):
        means = images.mean(dim=(2, 3))  # [N, 3]
        scores = (means + 0.1 * torch.ones_like(means).sum()).sigmoid()
        sides = image_shapes.flip(1).repeat(1, 2).to(images.dtype)  # [N, 4]
        starts = torch.tensor([0.1, 0.2, 0.5, 0.6], dtype=images.dtype, device=images.device)
        boxes = sides[:, None] * starts * scores[..., None]
        return boxes, scores, torch.arange(3, device=images.device).expand(scores.shape)


class TinyNetwork(Network):
    """Runs the module for Python's detector."""

    def __call__(self, images: np.ndarray, image_shapes: np.ndarray) -> Outputs:
        super().__call__(images, image_shapes)
        outputs = TinyDetector()(torch.from_numpy(images), torch.from_numpy(image_shapes))
        return tuple(output.numpy() for output in outputs)


def make_module(
    folder, height: int | SizeRange = 96, width: int | SizeRange = 128, batch: int | SizeRange = 1
) -> TinyNetwork:
    """Writes net.ts and net.json. Returns the network for the expected document."""
    empty = tuple(np.zeros((1, 3, *shape), np.float32) for shape in ((4,), (), ()))
    network = TinyNetwork(height, width, empty, batch=batch)
    sizes = network.sizes
    count, height, width = sizes.batch.opt, sizes.height.opt, sizes.width.opt
    inputs = torch.zeros(count, 3, height, width), torch.ones(count, 2, dtype=torch.int64)
    folder.mkdir()
    torch.jit.save(torch.jit.trace(TinyDetector(), inputs), folder / "net.ts")
    (folder / "net.json").write_text(json.dumps(network.metadata()), encoding="utf-8")
    return network


SIZES = SizeRange(64, 96, 160), SizeRange(64, 128, 192)


@pytest.mark.parametrize(
    ("shape", "together", "timed"),
    [
        ((96, 128, 2), None, [2, 96, 128]),
        ((*SIZES, 1), None, [1, 128, 192]),
        ((*SIZES, SizeRange(2, 2, 4)), None, [2, 128, 192]),
        ((96, 128, SizeRange(1, 1, 4)), 4, [3, 96, 128]),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_module_detects_as_in_python(tmp_path, shape, together, timed, device):
    """Checks the document, and N, H, W of the timed run, which is the first."""
    network = make_module(tmp_path / "net", *shape)
    files = [COFFEE, tmp_path / "small.png", tmp_path / "tall.png"]
    Image.new("RGB", (40, 30), (200, 10, 90)).save(files[1])
    Image.new("RGB", (20, 70), (20, 210, 190)).save(files[2])
    options = ["--device", device, "--threshold", "0", "--benchmark", "3", "--json", tmp_path / "out.json"]
    options += [] if together is None else ["--batch", together]
    run("--model", tmp_path / "net/net.ts", *options, *files, program=PROGRAM)
    document, info = read_document(tmp_path / "out.json")
    names = [image["file_name"] for image in document["images"]]
    expected = network.expected(names, [load_image(file) for file in files], batch=together, threshold=0)
    assert len(document["annotations"]) == len(expected["annotations"]) == 9
    for row, other in zip(document["annotations"], expected["annotations"], strict=True):
        assert row["bbox"] == pytest.approx(other["bbox"], abs=0.01)
        assert row["score"] == pytest.approx(other["score"], abs=1e-5)
        assert (row["category_id"], row["image_id"]) == (other["category_id"], other["image_id"])
    benchmark = info["benchmark"]
    assert [benchmark[name] for name in ("batch", "height", "width")] == timed
    assert benchmark["runs"][0]["samples"] == 3


def test_errors(tmp_path):
    make_module(tmp_path / "net")
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    module, text = tmp_path / "net/net.ts", tmp_path / "text.so"
    options = ["--model", module, "--device", "cpu", tmp_path / "a.png"]

    def error(*more: object, status: int = 1) -> str:
        return refused(*options, *more, program=PROGRAM, status=status)

    text.write_text("no library")
    assert error("--torchtrt", text).startswith(f"--torchtrt: {text}: ")
    assert error("--no-cuda-graph", status=2).endswith("not expected: --no-cuda-graph")
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), module)
    assert error().startswith(f"{module}: the module does not run: ")
    module.write_bytes(b"no module")
    assert error().startswith(f"{module}: cannot be loaded: ")
