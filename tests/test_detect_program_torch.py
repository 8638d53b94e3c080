"""`codetr_detect_torch`, the optional C++ program on TorchScript modules, against the module in Python."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from codetr.preprocess import load_image
from tests.detect_program import ROOT, Network, find_program, read_document, run

PROGRAM = "codetr_detect_torch"
pytestmark = [
    pytest.mark.skipif(
        find_program(PROGRAM) is None,
        reason="codetr_detect_torch is not built: cmake -DCODETR_DETECT_TORCH=ON",
    ),
    pytest.mark.filterwarnings("ignore"),  # torch.jit is deprecated, and what Torch-TensorRT saves for C++
]


class Detector(torch.nn.Module):
    """Boxes and scores that depend on the pixels."""

    def forward(self, images: torch.Tensor, image_shapes: torch.Tensor):
        scores = images.mean(dim=(2, 3)).sigmoid()  # [N, 3]
        sides = image_shapes.flip(1).repeat(1, 2).to(images.dtype)  # [N, 4]
        starts = torch.tensor([0.1, 0.2, 0.5, 0.6], dtype=images.dtype, device=images.device)
        boxes = sides[:, None] * starts * scores[..., None]
        return boxes, scores, torch.arange(3, device=images.device).expand(scores.shape)


def make_module(folder, batch: int = 1) -> Network:
    """Writes net.ts and net.json; returns the network for the expected document."""
    height, width = 96, 128
    inputs = torch.zeros(batch, 3, height, width), torch.ones(batch, 2, dtype=torch.int64)
    folder.mkdir()
    torch.jit.save(torch.jit.trace(Detector(), inputs), folder / "net.ts")
    empty = tuple(np.zeros((1, 3, *shape), np.float32) for shape in ((4,), (), ()))
    network = Network(height, width, empty)
    (folder / "net.json").write_text(json.dumps({**network.metadata(), "batch": batch}), encoding="utf-8")
    return network


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_module_detects_as_in_python(tmp_path, batch, device):
    network = make_module(tmp_path / "net", batch)
    files = [ROOT / "assets/coffee.jpg", tmp_path / "small.png", tmp_path / "tall.png"]
    Image.new("RGB", (40, 30), (200, 10, 90)).save(files[1])
    Image.new("RGB", (20, 70), (20, 210, 190)).save(files[2])
    options = ["--device", device, "--threshold", "0", "--benchmark", "3", "--json", tmp_path / "out.json"]
    done = run("--model", tmp_path / "net/net.ts", *options, *files, program=PROGRAM)
    assert done.returncode == 0, done.stderr
    images = [load_image(file) for file in files]
    inputs = network.input(images)
    outputs = Detector()(torch.from_numpy(inputs.images), torch.from_numpy(inputs.image_shapes))
    network.outputs = tuple(output.numpy() for output in outputs)
    document, info = read_document(tmp_path / "out.json")
    expected = network.expected([image["file_name"] for image in document["images"]], images, threshold=0)
    assert len(document["annotations"]) == len(expected["annotations"]) == 9
    for row, other in zip(document["annotations"], expected["annotations"], strict=True):
        assert row["bbox"] == pytest.approx(other["bbox"], abs=0.01)
        assert (row["category_id"], row["image_id"]) == (other["category_id"], other["image_id"])
    assert info["benchmark"]["batch"] == batch and info["benchmark"]["runs"][0]["samples"] == 3


def test_what_is_wrong_is_one_line(tmp_path):
    make_module(tmp_path / "net")
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    module = tmp_path / "net/net.ts"
    options = ["--model", module, "--device", "cpu", tmp_path / "a.png"]
    missing = run(*options, "--torchtrt", tmp_path / "no.so", program=PROGRAM)
    assert missing.returncode == 2 and "no.so: no such file" in missing.stderr
    text = tmp_path / "text.so"
    text.write_text("no library")
    unloadable = run(*options, "--torchtrt", text, program=PROGRAM)
    assert unloadable.returncode == 1 and f"--torchtrt: {text}: " in unloadable.stderr
    assert run(*options, "--no-cuda-graph", program=PROGRAM).returncode == 2
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), module)
    wrong = run(*options, program=PROGRAM)
    assert wrong.returncode == 1 and f"{module}: the module does not run: " in wrong.stderr
    module.write_bytes(b"no module")
    damaged = run(*options, program=PROGRAM)
    assert damaged.returncode == 1 and f"{module}: cannot be loaded: " in damaged.stderr
    assert all(len(done.stderr.splitlines()) == 1 for done in (missing, unloadable, wrong, damaged))
