"""Window attention in plain PyTorch: the definition of correct results.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. The padding, the cyclic shift and the mask are those of Swin Transformer (arXiv 2103.14030,
section 3.2). This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from msda import checks

MASK = -100.0  # kWindowMask of kernels/include/msda/window_params.h


def window_attention(
    qkv: Tensor, bias: Tensor, padding: Tensor | None, window_size: int, shift: int
) -> Tensor:
    """Computes :func:`msda.window_attention` by padding, rolling and cutting; 16-bit values in float32."""
    checks.check_window_attention(qkv, bias, padding, window_size, shift)
    wide = torch.promote_types(qkv.dtype, torch.float32)
    windows, down, across = _cut(_pad(qkv.to(wide), padding, window_size), window_size, shift)
    query, key, value = windows.unflatten(-1, (3, bias.shape[0], -1)).permute(3, 0, 4, 1, 2, 5)
    # [N, heads, B, L, d] each, with B = down * across windows of L cells
    logits = (query @ key.transpose(-2, -1)) * query.shape[-1] ** -0.5 + bias.to(wide).unsqueeze(1)
    if shift:
        logits = logits + mask(down, across, window_size, shift, wide, qkv.device)
    attended = (logits.softmax(-1) @ value).permute(0, 2, 3, 1, 4).flatten(3)  # [N, B, L, C]
    return _join(attended, qkv.shape[1], qkv.shape[2], window_size, shift).to(qkv.dtype)


def mask(
    down: int, across: int, window_size: int, shift: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Masks the pairs of cells that only the cyclic shift made neighbours.

    The rolled map has three bands along each axis: all windows but the last, the last window's first cells,
    and the `shift` cells that came around. Cells attend within their band only.

    Returns:
        [B, L, L], 0 or -100, for the B = down * across windows of a map.
    """
    bands = []
    for count in (down, across):
        place = torch.arange(count * window_size, device=device) - (count - 1) * window_size
        bands.append((place >= 0).int() + (place >= window_size - shift).int())
    region = 3 * bands[0].reshape(down, 1, window_size, 1) + bands[1].reshape(across, 1, window_size)
    region = region.reshape(down * across, window_size**2)
    return (region[:, :, None] != region[:, None]).to(dtype) * MASK


def _pad(qkv: Tensor, padding: Tensor | None, window_size: int) -> Tensor:
    """Pads [N, H, W, 3 * C] at the bottom and right to multiples of the window size."""
    height, width = qkv.shape[1:3]
    sides = (0, 0, 0, -width % window_size, 0, -height % window_size)
    padded = F.pad(qkv, sides)
    if padding is None:
        return padded
    inside = F.pad(torch.ones_like(qkv[:, :, :, :1], dtype=torch.bool), sides)
    return torch.where(inside, padded, padding.to(qkv.dtype))


def _cut(x: Tensor, window_size: int, shift: int) -> tuple[Tensor, int, int]:
    """Rolls a padded map and cuts it into windows [N, B, L, C]; returns their numbers down and across too."""
    x = x.roll((-shift, -shift), (1, 2)) if shift else x
    n, height, width, channels = x.shape
    down, across = height // window_size, width // window_size
    x = x.reshape(n, down, window_size, across, window_size, channels).transpose(2, 3)
    return x.reshape(n, down * across, window_size**2, channels), down, across


def _join(windows: Tensor, height: int, width: int, window_size: int, shift: int) -> Tensor:
    """Inverts `_cut`, and drops the padding."""
    n, _, _, channels = windows.shape
    down, across = -(-height // window_size), -(-width // window_size)
    x = windows.reshape(n, down, across, window_size, window_size, channels).transpose(2, 3)
    x = x.reshape(n, down * window_size, across * window_size, channels)
    x = x.roll((shift, shift), (1, 2)) if shift else x
    return x[:, :height, :width].contiguous()
