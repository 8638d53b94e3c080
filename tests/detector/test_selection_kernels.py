"""The kernels of exports select the cells that float32 selects, in 16-bit models."""

from __future__ import annotations

import pytest
import torch

import codetr
from codetr.detector.preprocess import load_image
from codetr.model.head import best_indices
from tests.golden_models import GOLDEN, MODELS, load_golden
from tests.matrix import emulated_kernels
from tests.matrix.map_operators import emulator_or_skip


def check_selection(model: codetr.CoDino, images: torch.Tensor, image_shapes: torch.Tensor) -> None:
    """Compares scores and selection of the emulated kernels with PyTorch's in float32, and with float64."""
    emulator_or_skip()
    cells = []
    selection = model.query_selection
    handle = selection.norm.register_forward_hook(lambda module, given, result: cells.append(result))
    with torch.no_grad():
        model(images, image_shapes)
        handle.remove()
        x, branch = cells[0].contiguous(), selection.class_branch
        wide = branch(x).amax(dim=-1)
        exact = (x.double() @ branch.weight.double().mT + branch.bias.double()).amax(dim=-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSDA_LINEAR_MAX", "tensor_core")
        best = emulated_kernels.linear_max(x, branch.weight, branch.bias)
    count = selection.num_queries
    found = emulated_kernels.top_k_indices(best, count)
    assert torch.equal(found.long(), best_indices(wide, count))
    # The scores are as near to the exact ones as those of float32.
    assert (best - exact).abs().max() <= 2 * (wide - exact).abs().max()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_golden_models(name: str, precision: str) -> None:
    model, tensors = load_golden(name)
    check_selection(model.set_precision(precision), tensors["in/images"], tensors["in/image_shapes_hw"])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_demo(precision: str) -> None:
    """At the demo's size, in a scene that it was not trained on."""
    with codetr.Detector(device="cpu") as detector:
        backend = detector.backend.load()
        batch = backend.preprocessor.batch([load_image(GOLDEN.parents[1] / "assets" / "scene.jpg")])
        images, image_shapes = (torch.from_numpy(x) for x in (batch.images, batch.image_shapes))
        check_selection(backend.model.set_precision(precision), images, image_shapes)
