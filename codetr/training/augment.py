"""Augmentation of one picture: crop, flip, colour. On 8-bit pixels, with OpenCV. No Torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from codetr.detector.preprocess import fit_size, resize

LEAST_VISIBLE = 0.4
"""A crop that leaves a smaller share of an object's box drops the object."""


@dataclass(frozen=True)
class Augmentation:
    """Settings of `augment`."""

    flip: float = 0.5  # probability of a horizontal flip
    crop: float = 0.5  # probability of a crop, which then fills the picture's place
    least_side: float = 0.5  # least side of a crop, as a share of the picture's
    colour: float = 0.2  # strength from 0 to 1 of changes in brightness, contrast, saturation and hue


def augment(
    pixels: np.ndarray,
    boxes_xyxy_px: np.ndarray,
    labels: np.ndarray,
    limits: tuple[int, int],
    augmentation: Augmentation,
    draws: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Crops, flips and recolours a picture and fits it into a size.

    Args:
        pixels: uint8 [H, W, 3], RGB.
        boxes_xyxy_px: float32 [n, 4], inside the picture.
        labels: int64 [n].
        limits: largest height and width of the result, in pixels.

    Returns:
        pixels uint8 [h, w, 3]; boxes float32 [m, 4], (cx, cy, w, h) in units of the result; labels int64 [m],
        m <= n.
    """
    if draws.random() < augmentation.crop:
        x, y, width, height = draw_window(*pixels.shape[:2], augmentation.least_side, draws)
        pixels = pixels[y : y + height, x : x + width]
        boxes_xyxy_px, kept = crop_boxes(boxes_xyxy_px, (x, y, width, height))
        boxes_xyxy_px, labels = boxes_xyxy_px[kept], labels[kept]
    height, width = pixels.shape[:2]
    boxes = boxes_xyxy_px / np.array([width, height, width, height], dtype=np.float32)
    flipped = draws.random() < augmentation.flip
    if flipped:
        boxes = np.stack((1.0 - boxes[:, 2], boxes[:, 1], 1.0 - boxes[:, 0], boxes[:, 3]), axis=1)
    pixels = resize(pixels, fit_size(height, width, *limits))
    if flipped:
        pixels = pixels[:, ::-1]
    if augmentation.colour > 0.0:
        pixels = change_colours(pixels, augmentation.colour, draws)
    low, high = boxes[:, :2], boxes[:, 2:]
    boxes = np.concatenate(((low + high) * 0.5, high - low), axis=1).astype(np.float32)
    return np.ascontiguousarray(pixels), boxes, labels


def draw_window(
    height: int, width: int, least_side: float, draws: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draws a crop: its area evenly between the least and the whole, its aspect ratio within a fifth.

    Returns:
        x, y, width, height in pixels.
    """
    side = math.sqrt(draws.uniform(least_side**2, 1.0))
    stretch = math.exp(draws.uniform(-0.2, 0.2) / 2)
    window_width = max(1, round(width * min(1.0, max(least_side, side * stretch))))
    window_height = max(1, round(height * min(1.0, max(least_side, side / stretch))))
    x = int(draws.integers(width - window_width + 1))
    y = int(draws.integers(height - window_height + 1))
    return x, y, window_width, window_height


def crop_boxes(boxes_xyxy_px: np.ndarray, window: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Moves boxes, float32 [n, 4], into a crop (x, y, width, height) in pixels.

    Returns:
        The boxes clipped to the window, float32 [n, 4] in its pixels; and a mask, bool [n], of the boxes of
        which `LEAST_VISIBLE` or more lies inside.
    """
    x, y, width, height = window
    moved = boxes_xyxy_px - np.array([x, y, x, y], dtype=np.float32)
    clipped = np.clip(moved, 0.0, np.array([width, height, width, height], dtype=np.float32))
    inside, whole = ((boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (clipped, moved))
    return clipped, (inside >= LEAST_VISIBLE * whole) & (inside > 0.0)


def change_colours(pixels: np.ndarray, strength: float, draws: np.random.Generator) -> np.ndarray:
    """Changes brightness, contrast, saturation and hue of RGB pixels, uint8 [h, w, 3], by one affine map.

    A strength of 1 varies contrast and saturation by factors from 0 to 2.
    """
    import cv2

    contrast, saturation = draws.uniform(1.0 - strength, 1.0 + strength, 2)
    brightness, hue = draws.uniform(-strength, strength, 2)
    gray = np.broadcast_to(np.array([0.299, 0.587, 0.114]), (3, 3))  # ITU-R BT.601
    # Rodrigues' formula: the rotation of RGB about the axis of grays by radians.
    cosine, sine = math.cos(0.5 * hue), math.sin(0.5 * hue) / math.sqrt(3.0)
    cross = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
    rotation = cosine * np.eye(3) + sine * cross + (1.0 - cosine) / 3.0
    matrix = contrast * (saturation * np.eye(3) + (1.0 - saturation) * gray) @ rotation
    shift = 128.0 * (1.0 - contrast) + 100.0 * brightness
    return cv2.transform(pixels, np.concatenate((matrix, np.full((3, 1), shift)), axis=1))
