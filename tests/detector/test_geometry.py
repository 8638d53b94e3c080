"""The pyramid's closed forms against masks drawn in pixels, which are upstream's definition."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from codetr.model.geometry import Pyramid, encoder_positions, make_pyramid, proposal_boxes


def pyramid_of(image_shapes, input_hw, level_hw) -> Pyramid:
    """Makes the pyramid of images in tensors of `input_hw` pixels with levels of `level_hw` cells."""
    cells = sum(h * w for h, w in level_hw)
    return make_pyramid(image_shapes, torch.tensor(input_hw).float(), torch.tensor(level_hw).float(), cells)


def slow_geometry(image_shapes, input_hw, level_hw, num_feats, temperature):
    """Masks drawn in pixels, shrunk by nearest interpolation, summed up: the definition, in fp32."""
    mask = torch.ones(len(image_shapes), *input_hw)
    for row, (h, w) in enumerate(image_shapes.tolist()):
        mask[row, :h, :w] = 0
    masks = [F.interpolate(mask[None], size=hw)[0].bool() for hw in level_hw]
    ratios, points, positions, boxes = [], [], [], []
    for level, (level_mask, (h, w)) in enumerate(zip(masks, level_hw)):
        inside = ~level_mask
        valid_h, valid_w = inside[:, :, 0].sum(1), inside[:, 0, :].sum(1)
        ratios.append(torch.stack((valid_w / w, valid_h / h), -1))
        y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
        center = torch.stack((x / valid_w[:, None, None], y / valid_h[:, None, None]), -1).flatten(1, 2)
        points.append(center)
        boxes.append(torch.cat((center, torch.full_like(center, 0.05 * 2**level)), -1))
        embeddings = []
        for axis in (1, 2):
            count = inside.float().cumsum(axis)
            count = count / (count.select(axis, -1).unsqueeze(axis) + 1e-6) * 2 * math.pi
            frequency = temperature ** (2 * (torch.arange(num_feats) // 2) / num_feats)
            angle = count[..., None] / frequency
            embeddings.append(torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), -1).flatten(-2))
        positions.append(torch.cat(embeddings, -1).flatten(1, 2))
    padding = torch.cat([level_mask.flatten(1) for level_mask in masks], 1)
    ratios = torch.stack(ratios, 1)
    boxes = torch.cat(boxes, 1)
    usable = ((boxes > 0.01) & (boxes < 0.99)).all(-1) & ~padding
    return padding, ratios, torch.cat(points, 1)[:, :, None] * ratios[:, None], positions, boxes, usable


@st.composite
def layouts(draw):
    """Padded sizes, levels of strides 4..64 (rounded up, as the backbones do) and images inside."""
    height, width = draw(st.integers(5, 700)), draw(st.integers(5, 700))
    level_hw = [(math.ceil(height / s), math.ceil(width / s)) for s in (4, 8, 16, 32, 64)]
    image = st.tuples(st.integers(1, height), st.integers(1, width))
    images = draw(st.lists(image, min_size=1, max_size=3))
    return (height, width), level_hw[draw(st.integers(0, 3)) :], torch.tensor(images)


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_closed_forms_are_those_of_the_mask(layout):
    input_hw, level_hw, image_shapes = layout
    pyramid = pyramid_of(image_shapes, input_hw, level_hw)
    padding, ratios, points, positions, boxes, usable = slow_geometry(
        image_shapes, input_hw, level_hw, 8, 20.0
    )
    assert torch.equal(pyramid.padding_mask, padding)
    assert torch.equal(pyramid.valid_ratios, ratios)
    torch.testing.assert_close(pyramid.reference_points, points, rtol=1e-6, atol=1e-6)
    embeds = torch.arange(len(level_hw) * 16.0).reshape(-1, 16) / 8.0
    longest = max(max(hw) for hw in level_hw)
    got = encoder_positions(pyramid, embeds, longest, 20.0, torch.float32)
    expected = [position + embed for position, embed in zip(positions, embeds, strict=True)]
    torch.testing.assert_close(got, torch.cat(expected, 1), rtol=0, atol=2e-5)
    got_boxes, got_usable = proposal_boxes(pyramid)
    torch.testing.assert_close(got_boxes, boxes, rtol=1e-6, atol=1e-6)
    assert torch.equal(got_usable, usable)


@pytest.mark.parametrize("stride", [4, 7, 8, 32, 64])
def test_counts_of_every_size(stride):
    """All image heights in tensors of many heights: rounding of the step and of the product included."""
    for height in [*range(1, 200), 608, 768, 800, 1152, 1279, 1280, 1333, 1535, 1920, 2047, 2048]:
        cells = math.ceil(height / stride)
        sizes = torch.arange(1, height + 1)
        mask = (torch.arange(height)[None] >= sizes[:, None]).float()  # [sizes, height]
        expected = (F.interpolate(mask[None, :, :, None], size=(cells, 1))[0, :, :, 0] == 0).sum(1)
        shapes = torch.stack((sizes, torch.ones_like(sizes)), 1)
        pyramid = pyramid_of(shapes, (height, 1), [(cells, 1)])
        assert torch.equal(pyramid.valid_sizes[:, 0, 0].long(), expected), height
