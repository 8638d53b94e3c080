"""Layers of the model: windows of Swin, norms in their forms for exports."""

from __future__ import annotations

import pytest
import torch

from codetr.model.backbones.swin import relative_position_index
from codetr.model.backbones.windows import GatheredWindows, SlicedWindows
from codetr.model.layers import FrozenBatchNorm2d
from tests.golden_models import load_golden


@pytest.mark.parametrize("hw", [(4, 4), (8, 12), (9, 7), (3, 5)])
def test_shifted_window_mask(hw):
    """Two cells of a window see each other exactly when the cyclic shift kept their distance."""
    size, shift = 4, 2
    mask = SlicedWindows(torch.zeros(2, *hw, 1), size).mask
    padded = [length + -length % size for length in hw]
    cells = torch.cartesian_prod(*map(torch.arange, padded)).reshape(1, *padded, 2)
    sliced = SlicedWindows(cells, size)
    before = sliced.cut(cells, shifted=False)  # position in the rolled map
    after = sliced.cut(cells.roll((-shift, -shift), (1, 2)), shifted=False)  # position in the image
    same = (before[:, :, None] - before[:, None] == after[:, :, None] - after[:, None]).all(-1)
    assert mask.shape == (2 * len(same), 1, size * size, size * size)
    assert torch.equal(mask[:, 0] == 0, same.repeat(2, 1, 1))
    assert set(mask.unique().tolist()) <= {0.0, -100.0}


@pytest.mark.parametrize("hw", [(4, 4), (8, 12), (9, 7), (3, 5), (1, 30)])
@pytest.mark.parametrize("size", [4, 5])
def test_gathered_windows_are_the_sliced_ones(size, hw):
    x = torch.randn(3, *hw, 2)
    sliced, gathered = SlicedWindows(x, size), GatheredWindows(x, size)
    assert torch.equal(gathered.mask, sliced.mask)
    for shifted in (False, True):
        windows = sliced.cut(x, shifted)
        assert torch.equal(gathered.cut(x.flatten(0, 2), shifted), windows)
        changed = windows * torch.arange(1.0, 1.0 + len(windows))[:, None, None]
        assert torch.equal(gathered.join(changed, shifted), sliced.join(changed, shifted).flatten(0, 2))


def test_relative_position_index_is_upstreams():
    _, tensors = load_golden("codino_swin_tiny")
    stored = tensors["param/backbone.stages.0.blocks.0.attn.w_msa.relative_position_index"]
    assert torch.equal(relative_position_index(4), stored)


@torch.inference_mode()
def test_batch_norms_fold_into_convolutions():
    """No norm and no value of one is left, and the convolutions find what both found."""
    model, tensors = load_golden("codino_resnet_tiny")
    maps = model.backbone(tensors["in/images"])
    assert model.fold_batch_norms() is model
    assert not any(isinstance(module, FrozenBatchNorm2d) for module in model.modules())
    assert not any("running" in name for name in model.state_dict())
    for got, expected in zip(model.backbone(tensors["in/images"]), maps, strict=True):
        assert float((got - expected).norm() / expected.norm()) < 1e-6
