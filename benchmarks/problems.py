"""The registry of problem sizes of multi-scale deformable attention, for benchmarks and tests.

A `Problem` draws its tensors from a seed. `msda.attention` and `msda.fused_attention` sample the same places
with the same weights for the same problem, distribution and seed.

Shape letters: N batch, S cells of all levels, M heads, D channels of a head, Q queries, L levels, P points of
a level, K points of all levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from msda.module import star
from msda.quantized_linear_reference import quantize

DISTRIBUTIONS = ("near", "uniform")
"""near: around the reference points, in the pattern of Deformable DETR's initialisation (head m in direction
2 pi m / M, point p in a distance of p + 1 cells), plus normal noise of 1.5 cells. uniform: anywhere."""

NOISE_CELLS = 1.5
NECK_STRIDES = (4, 8, 16, 32, 64)


class AttentionInputs(NamedTuple):
    """The arguments of `msda.attention`, in its order."""

    value: torch.Tensor  # [N, S, M, D]
    spatial_shapes: torch.Tensor  # [L, 2] = (H, W)
    level_start_index: torch.Tensor  # [L]
    sampling_locations: torch.Tensor  # [N, Q, M, L, P, 2] or [N, Q, M, K, 2], (x, y) in 0..1
    attention_weights: torch.Tensor  # [N, Q, M, L, P] or [N, Q, M, K]
    points_per_level: list[int] | None


class FusedInputs(NamedTuple):
    """The arguments of `msda.fused_attention`, in its order."""

    value: torch.Tensor  # [N, S, M, D]
    spatial_shapes: torch.Tensor  # [L, 2] = (H, W)
    level_start_index: torch.Tensor  # [L]
    reference_points: torch.Tensor  # [N, Q, L, 2] = (x, y) or [N, Q, L, 4] = (cx, cy, w, h), fp32
    sampling_offsets: torch.Tensor  # [N, Q, M, L, P, 2] or [N, Q, M, K, 2]
    attention_logits: torch.Tensor  # [N, Q, M, K]
    points_per_level: list[int] | None


class QuantizedFusedInputs(NamedTuple):
    """The arguments of `msda.quantized_fused_attention`, in its order."""

    value: torch.Tensor  # [N, S, M, D] int8
    spatial_shapes: torch.Tensor
    level_start_index: torch.Tensor
    reference_points: torch.Tensor
    sampling_offsets: torch.Tensor
    attention_logits: torch.Tensor
    value_scale: float
    points_per_level: list[int] | None

    @classmethod
    def of(cls, inputs: FusedInputs, scale: float) -> QuantizedFusedInputs:
        """Returns inputs with their value rounded to int8."""
        value, *tensors, points = inputs
        return cls(quantize(value.float() / scale, torch.int8), *tensors, scale, points)

    def dequantized(self) -> FusedInputs:
        """Returns the inputs with the exact numbers of the value, in float64."""
        return FusedInputs(self.value.double() * self.value_scale, *self[1:6], self.points_per_level)


@dataclass(frozen=True)
class Problem:
    """Sizes of one call of the operator."""

    name: str
    batch: int  # N
    spatial_shapes: tuple[tuple[int, int], ...]  # (H, W) of each level, in cells
    num_queries: int  # Q. If it equals S, the queries are the cells of the levels in order, as in an encoder
    num_heads: int = 8  # M
    head_dim: int = 32  # D
    num_points: int = 4  # P, the same for every level, unless points_per_level is given
    points_per_level: tuple[int, ...] | None = None  # P_l of each level, or None
    reference_dim: int = 2  # 2 for reference points, 4 for reference boxes (fused form only)

    @property
    def num_levels(self) -> int:
        """L."""
        return len(self.spatial_shapes)

    @property
    def num_cells(self) -> int:
        """S."""
        return sum(height * width for height, width in self.spatial_shapes)

    @property
    def points(self) -> tuple[int, ...]:
        """P_l of every level."""
        return self.points_per_level or (self.num_points,) * self.num_levels

    @property
    def total_points(self) -> int:
        """K."""
        return sum(self.points)

    def bytes_moved(self, dtype: torch.dtype, fused: bool = False, backward: bool = False) -> int:
        """Returns the bytes if every input is read once and every output is written once.

        The two small index tensors do not count.

        Args:
            dtype: type of the value, the locations and the weights.
            fused: count `fused_attention` (offsets, logits, reference points), not `attention`.
            backward: count the backward pass, which reads the inputs and grad_output and writes all
                gradients.
        """
        rows = self.batch * self.num_queries
        value = self.batch * self.num_cells * self.num_heads * self.head_dim * dtype.itemsize
        samples = rows * self.num_heads * self.total_points * 3 * dtype.itemsize  # x, y, weight
        reference = rows * self.num_levels * self.reference_dim * 4 if fused else 0
        output = rows * self.num_heads * self.head_dim * dtype.itemsize
        return value + samples + reference + output + (value + samples + reference if backward else 0)

    def index_tensors(
        self, device: torch.device | str = "cpu", index_dtype: torch.dtype = torch.int64
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns spatial_shapes [L, 2] and level_start_index [L] on a device."""
        sizes = [height * width for height, width in self.spatial_shapes]
        starts = [sum(sizes[:level]) for level in range(self.num_levels)]
        shapes = torch.tensor(self.spatial_shapes, dtype=index_dtype).reshape(-1, 2)
        return shapes.to(device), torch.tensor(starts, dtype=index_dtype).to(device)

    def fused_inputs(
        self,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        distribution: str = "near",
        seed: int = 0,
    ) -> FusedInputs:
        """Draws the arguments of `msda.fused_attention`, with int64 indices.

        The numbers of a seed depend on the device.
        """
        value, reference, offsets, logits = self._draw(device, distribution, seed)
        return FusedInputs(
            value.to(dtype),
            *self.index_tensors(device),
            reference.to(torch.float64 if dtype == torch.float64 else torch.float32),
            self.per_level(offsets).to(dtype),
            logits.to(dtype),
            self._ragged(),
        )

    def attention_inputs(
        self,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        distribution: str = "near",
        seed: int = 0,
    ) -> AttentionInputs:
        """Draws the arguments of `msda.attention`, see `fused_inputs`."""
        value, reference, offsets, logits = self._draw(device, distribution, seed)
        offsets *= self.cells_to_unit(reference)
        locations = self.per_level(offsets.add_(self.to_points(reference[..., :2]))).to(dtype)
        weights = self.per_level(logits.softmax(-1)).to(dtype)
        return AttentionInputs(
            value.to(dtype), *self.index_tensors(device), locations, weights, self._ragged()
        )

    def _ragged(self) -> list[int] | None:
        return None if self.points_per_level is None else list(self.points_per_level)

    def _draw(self, device: torch.device | str, distribution: str, seed: int) -> tuple[torch.Tensor, ...]:
        """Draws the value, reference points [N, Q, L, 2|4], offsets [N, Q, M, K, 2] and logits [N, Q, M, K],
        in fp32."""
        generator = torch.Generator(device).manual_seed(seed)
        device = generator.device
        shape = (self.batch, self.num_cells, self.num_heads, self.head_dim)
        value = torch.randn(shape, generator=generator, device=device)
        shape = (self.batch, self.num_queries, self.num_heads, self.total_points)
        reference = self._reference(generator)
        if distribution == "near":
            offsets = torch.randn((*shape, 2), generator=generator, device=device).mul_(NOISE_CELLS)
            offsets += star(self.num_heads, self.points, device)
        else:
            places = torch.rand((*shape, 2), generator=generator, device=device)
            offsets = places.sub_(self.to_points(reference[..., :2])).div_(self.cells_to_unit(reference))
        logits = torch.randn(shape, generator=generator, device=device)
        return value, reference, offsets, logits

    def _reference(self, generator: torch.Generator) -> torch.Tensor:
        """Returns the centres of the cells in an encoder, else random points, [N, Q, L, 2|4].

        Boxes have 5 to 40% of the image's sides.
        """
        device = generator.device
        if self.num_queries == self.num_cells:
            centres = []
            for height, width in self.spatial_shapes:
                y = (torch.arange(height, device=device) + 0.5) / height
                x = (torch.arange(width, device=device) + 0.5) / width
                y, x = torch.meshgrid(y, x, indexing="ij")
                centres.append(torch.stack((x, y), -1).reshape(-1, 2))
            points = torch.cat(centres).expand(self.batch, -1, -1)
        else:
            points = torch.rand((self.batch, self.num_queries, 2), generator=generator, device=device)
        if self.reference_dim == 4:
            sizes = torch.rand((self.batch, self.num_queries, 2), generator=generator, device=device)
            points = torch.cat((points, sizes * 0.35 + 0.05), -1)
        return points[:, :, None].repeat(1, 1, self.num_levels, 1)

    def to_points(self, per_level: torch.Tensor) -> torch.Tensor:
        """Repeats the values of each level for its points, [N, Q, L, c] -> [N, Q, 1, K, c]."""
        counts = torch.tensor(self.points, device=per_level.device)
        return per_level.repeat_interleave(counts, 2, output_size=self.total_points)[:, :, None]

    def cells_to_unit(self, reference: torch.Tensor) -> torch.Tensor:
        """Returns the factors of offsets to distances in 0..1, which broadcast to [N, Q, M, K, 2]."""
        if self.reference_dim == 2:
            sizes = torch.tensor(self.spatial_shapes, device=reference.device, dtype=torch.float32).flip(-1)
            return self.to_points((1 / sizes)[None, None])
        counts = torch.tensor(self.points, device=reference.device, dtype=torch.float32).clamp(min=1)
        return self.to_points(reference[..., 2:] * (0.5 / counts)[:, None])

    def per_level(self, per_point: torch.Tensor) -> torch.Tensor:
        """Reshapes [N, Q, M, K, ...] to [N, Q, M, L, P, ...] if every level has the same number of points."""
        if self.points_per_level is not None:
            return per_point
        return per_point.unflatten(3, (self.num_levels, self.num_points))


def pyramid(height: int, width: int) -> tuple[tuple[int, int], ...]:
    """Returns the level sizes of Co-DETR's five-scale neck for an image."""
    return _levels(height, width, *NECK_STRIDES)


def _levels(height: int, width: int, *strides: int) -> tuple[tuple[int, int], ...]:
    return tuple((math.ceil(height / stride), math.ceil(width / stride)) for stride in strides)


def _encoder(name: str, levels: tuple[tuple[int, int], ...]) -> Problem:
    return Problem(name, 1, levels, sum(height * width for height, width in levels))


def _codino(height: int, width: int) -> tuple[Problem, Problem]:
    encoder = _encoder(f"codino_encoder_{height}x{width}", pyramid(height, width))
    decoder = replace(encoder, name=f"codino_decoder_{height}x{width}", num_queries=900, reference_dim=4)
    return encoder, decoder


IMAGE_SIZES = ((608, 608), (768, 1152), (1280, 1920))
"""(height, width) of images in pixels."""

REAL = tuple(problem for size in IMAGE_SIZES for problem in _codino(*size))
"""Encoder (S = Q = 30,785, 73,656, 204,600) and decoder (900 queries) of Co-DINO at IMAGE_SIZES."""

BATCHED = tuple(replace(problem, name=f"{problem.name}_batch8", batch=8) for problem in _codino(768, 1152))
"""Co-DINO at 768x1152 with a batch of eight."""


_RTDETR_LEVELS = _levels(640, 640, 8, 16, 32)
_DETR_LEVELS = _levels(800, 1333, 8, 16, 32, 64)
PEERS = (
    Problem("rtdetr_decoder_640x640", 1, _RTDETR_LEVELS, 300, reference_dim=4),
    Problem("dfine_decoder_640x640", 1, _RTDETR_LEVELS, 300, points_per_level=(3, 6, 3), reference_dim=4),
    Problem("rfdetr_decoder_576x576", 1, _levels(576, 576, 16), 300, 16, 16, 2, reference_dim=4),
    _encoder("deformable_detr_encoder_800x1333", _DETR_LEVELS),
    Problem("deformable_detr_decoder_800x1333", 1, _DETR_LEVELS, 300),
    _encoder("mask2former_encoder_800x1344", _levels(800, 1344, 8, 16, 32)),
)
"""Other detectors and segmenters with the operator, at their published sizes."""

SMALL = (
    Problem("one_cell", 1, ((1, 1),), 3, num_heads=1, head_dim=4, num_points=1),
    Problem("one_cell_levels", 2, ((1, 1), (2, 1), (1, 3)), 5, num_heads=2, head_dim=8, num_points=2),
    Problem("odd_head_dim", 2, ((5, 7), (3, 4)), 11, num_heads=3, head_dim=13, num_points=3, reference_dim=4),
    Problem("one_channel", 1, ((6, 5),), 7, num_heads=5, head_dim=1, num_points=4),
    Problem("pyramid", 2, ((12, 16), (6, 8), (3, 4), (2, 2)), 256, num_heads=8, head_dim=32),
    Problem("three_levels", 1, ((7, 9), (4, 5), (2, 3)), 89),
    Problem("five_levels", 1, ((6, 9), (5, 5), (3, 5), (2, 3), (1, 2)), 13, reference_dim=4),
    Problem("boxes", 1, ((8, 8), (4, 4), (2, 2)), 30, num_heads=4, head_dim=16, reference_dim=4),
    Problem("wide_heads", 1, ((9, 6), (5, 3)), 17, num_heads=2, head_dim=64, num_points=8),
    Problem("very_wide_head", 1, ((4, 3),), 5, num_heads=1, head_dim=200, num_points=2),
    Problem("ragged", 2, ((8, 10), (4, 5), (2, 3)), 21, 4, points_per_level=(3, 6, 1), reference_dim=4),
    Problem("ragged_skipped_level", 1, ((4, 4), (2, 2), (1, 1)), 9, 2, 20, points_per_level=(2, 0, 5)),
    Problem("no_queries", 2, ((4, 4), (2, 2)), 0, num_heads=2, head_dim=8),
    Problem("no_batch", 0, ((4, 4), (2, 2)), 6, num_heads=2, head_dim=8),
)
"""Small sizes for tests, each with a case that a kernel may miss."""

BY_NAME = {problem.name: problem for problem in (*REAL, *BATCHED, *PEERS, *SMALL)}
