"""`codetr_detect_torch`, the optional C++ program on TorchScript modules, against the module in Python."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from codetr.detector.preprocess import load_image
from codetr.detector.sizes import Range
from tests.detect_program import ROOT, Network, Outputs, find_program, read_document, run

PROGRAM = "codetr_detect_torch"
pytestmark = [
    pytest.mark.skipif(
        find_program(PROGRAM) is None,
        reason="codetr_detect_torch is not built: cmake -DCODETR_DETECT_TORCH=ON",
    ),
    pytest.mark.filterwarnings("ignore"),  # torch.jit is deprecated, and what Torch-TensorRT saves for C++
]


class Detector(torch.nn.Module):
    """Boxes and scores that depend on the pixels, the padding and N."""

    def forward(self, images: torch.Tensor, image_shapes: torch.Tensor):
        means = images.mean(dim=(2, 3))  # [N, 3]
        scores = (means + 0.1 * torch.ones_like(means).sum()).sigmoid()
        sides = image_shapes.flip(1).repeat(1, 2).to(images.dtype)  # [N, 4]
        starts = torch.tensor([0.1, 0.2, 0.5, 0.6], dtype=images.dtype, device=images.device)
        boxes = sides[:, None] * starts * scores[..., None]
        return boxes, scores, torch.arange(3, device=images.device).expand(scores.shape)


class Python(Network):
    """The module behind Python's detector."""

    def __call__(self, images: np.ndarray, image_shapes: np.ndarray) -> Outputs:
        super().__call__(images, image_shapes)
        outputs = Detector()(torch.from_numpy(images), torch.from_numpy(image_shapes))
        return tuple(output.numpy() for output in outputs)


def make_module(folder, height: int | Range = 96, width: int | Range = 128, batch: int | Range = 1) -> Python:
    """Writes net.ts and net.json; returns the network for the expected document."""
    empty = tuple(np.zeros((1, 3, *shape), np.float32) for shape in ((4,), (), ()))
    network = Python(height, width, empty, batch=batch)
    sizes = network.sizes
    count, height, width = sizes.batch.opt, sizes.height.opt, sizes.width.opt
    inputs = torch.zeros(count, 3, height, width), torch.ones(count, 2, dtype=torch.int64)
    folder.mkdir()
    torch.jit.save(torch.jit.trace(Detector(), inputs), folder / "net.ts")
    (folder / "net.json").write_text(json.dumps(network.metadata()), encoding="utf-8")
    return network


SIZES = Range(64, 96, 160), Range(64, 128, 192)


@pytest.mark.parametrize(
    ("shape", "together", "timed"),
    [
        ((96, 128, 1), None, [1, 96, 128]),
        ((96, 128, 2), None, [2, 96, 128]),
        ((*SIZES, 1), None, [1, 128, 192]),
        ((*SIZES, Range(1, 1, 2)), 3, [2, 160, 192]),
        ((*SIZES, Range(2, 2, 4)), None, [2, 128, 192]),
        ((*SIZES, 2), 3, [2, 160, 192]),
        ((96, 128, Range(1, 1, 4)), 4, [3, 96, 128]),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_module_detects_as_in_python(tmp_path, shape, together, timed, device):
    """`timed`: N, H, W of the first run."""
    network = make_module(tmp_path / "net", *shape)
    files = [ROOT / "assets/coffee.jpg", tmp_path / "small.png", tmp_path / "tall.png"]
    Image.new("RGB", (40, 30), (200, 10, 90)).save(files[1])
    Image.new("RGB", (20, 70), (20, 210, 190)).save(files[2])
    options = ["--device", device, "--threshold", "0", "--benchmark", "3", "--json", tmp_path / "out.json"]
    options += [] if together is None else ["--batch", together]
    done = run("--model", tmp_path / "net/net.ts", *options, *files, program=PROGRAM)
    assert done.returncode == 0, done.stderr
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
