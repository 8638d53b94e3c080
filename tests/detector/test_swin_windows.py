"""Windows of Swin: their mask, and the two ways to cut and join them."""

from __future__ import annotations

import pytest
import torch

from codetr.model.backbones.windows import GatheredWindows, SlicedWindows


@pytest.mark.parametrize("hw", [(4, 4), (8, 12), (9, 7), (3, 5)])
def test_shifted_window_mask(hw):
    """Two cells of a window see each other exactly when the cyclic shift kept their distance."""
    size, shift = 4, 2
    mask = SlicedWindows(torch.zeros(2, *hw, 1), size).mask
    padded = [length + -length % size for length in hw]
    cells = torch.cartesian_prod(*map(torch.arange, padded)).reshape(1, *padded, 2)
    sliced = SlicedWindows(cells, size)
    before = sliced.cut(cells, shifted=False).transpose(0, 1)  # positions in the rolled map
    after = sliced.cut(cells.roll((-shift, -shift), (1, 2)), shifted=False).transpose(0, 1)  # in the image
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
        cut = gathered.cut(x.flatten(0, 2), shifted)
        assert torch.equal(gathered.clear_padding(cut, shifted), windows)
        assert torch.equal(sliced.clear_padding(windows + 1.0, shifted), (windows + 1.0) * (windows != 0.0))
        changed = windows * torch.arange(1.0, 1.0 + len(windows))[:, None, None]
        assert torch.equal(gathered.join(changed, shifted), sliced.join(changed, shifted).flatten(0, 2))
