"""Layers in blocks of the model's modules, and blocks that repeat drawn once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trt_plugin.inspection import module_names
from trt_plugin.inspection.engine_layers import Layer
from trt_plugin.inspection.module_names import Path

IDLE_TYPES = ("signal", "wait", "shape_call", "NoOp", "Constant")
"""Layers without work of their own, left out of the picture."""

SMALL = 3
"""A numbered module of fewer layers belongs to the block around it."""

LARGE = 24
"""A module without numbered parts, or an engine without names, is cut into blocks of so many layers."""

LONGEST_PERIOD = 4
"""Of blocks that repeat: Swin's take turns between two forms."""


@dataclass(frozen=True)
class Block:
    """Layers of one module, in the order in which they run."""

    path: Path
    layers: tuple[Layer, ...]

    @property
    def part(self) -> str:
        """The part of the model that it belongs to, such as "backbone"."""
        return self.path[0] if self.path else ""

    @property
    def form(self) -> tuple:
        """What equal blocks have in common: operators, types and shapes of their layers."""
        return tuple(
            # TensorRT lists fused nodes in any order.
            (layer.kind, layer.type, tuple(sorted(layer.origin.operators)), _shapes(layer.outputs))
            for layer in self.layers
        )


@dataclass(frozen=True)
class Repeated:
    """A block that the picture shows once.

    Attributes:
        members: all that it stands for, the one that is shown first.
    """

    members: tuple[Block, ...]

    @property
    def first(self) -> Block:
        """The one that is shown."""
        return self.members[0]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Of all members."""
        return tuple(layer for block in self.members for layer in block.layers)

    @property
    def time_ms(self) -> float | None:
        """Of all members; None if nothing was measured."""
        return total_ms(self.layers)

    @property
    def title(self) -> str:
        """The module, with the numbers of all that it stands for: stages.2.blocks.0, 2, …, 16."""
        path, count = self.first.path, len(self.members)
        if count == 1:
            return module_names.text(path)
        if not _numbered(path):
            return f"{module_names.text(path)}, {count} times"
        numbers = [block.path[-1] for block in self.members]
        shown = ", ".join(numbers) if count <= 3 else f"{numbers[0]}, {numbers[1]}, …, {numbers[-1]}"
        return f"{module_names.text(path[:-1])}.{shown}"


def total_ms(layers: Sequence[Layer]) -> float | None:
    """The sum of the times that were measured; None if none was."""
    times = [layer.time_ms for layer in layers if layer.time_ms is not None]
    return sum(times) if times else None


def blocks_of(layers: Sequence[Layer]) -> list[Block]:
    """Puts layers in blocks, in the order in which these begin.

    A layer without a name of its own (a copy that TensorRT added) belongs to the block of the one before it.
    """
    working = [layer for layer in layers if layer.type not in IDLE_TYPES]
    places = _places(working)
    keys = _merged(places)
    runs: list[tuple[Path, list[Layer]]] = []
    open_blocks: dict[Path, list[Layer]] = {}
    for layer, key in zip(working, keys):
        # What has no number lies all over the model: another block after each numbered one.
        full = not _numbered(key) and len(open_blocks.get(key, ())) >= LARGE
        if key not in open_blocks or full:
            if _numbered(key):
                open_blocks = {path: members for path, members in open_blocks.items() if _numbered(path)}
            open_blocks[key] = []
            runs.append((key, open_blocks[key]))
        open_blocks[key].append(layer)
    return [Block(path, tuple(members)) for path, members in runs]


def _numbered(path: Path) -> bool:
    return bool(path) and path[-1].isdecimal()


def collapse(blocks: Sequence[Block]) -> list[Repeated]:
    """Takes runs of equal blocks together, those that take turns (a b a b) too."""
    found, index = [], 0
    while index < len(blocks):
        period, times = _repetition(blocks, index)
        for offset in range(period):
            found.append(Repeated(tuple(blocks[index + offset : index + period * times : period])))
        index += period * times
    return found


def _places(layers: Sequence[Layer]) -> list[Path]:
    """The block of each layer by its own name."""
    places: list[Path] = []
    for layer in layers:
        known = bool(layer.nodes) or bool(layer.origin.path)
        places.append(module_names.block_of(layer.origin.path) if known or not places else places[-1])
    return places


def _merged(places: Sequence[Path]) -> list[Path]:
    """Small numbered modules become part of the numbered module around them, or of the part of the model."""
    places = list(places)
    while True:
        sizes: dict[Path, int] = defaultdict(int)
        for place in places:
            sizes[place] += 1
        small = [place for place, size in sizes.items() if size < SMALL and len(place) > 1]
        if not small:
            return places
        # The innermost first: they may make the ones around them large enough.
        depth = max(map(len, small))
        around = {place: _around(place) for place in small if len(place) == depth}
        places = [around.get(place, place) for place in places]


def _around(place: Path) -> Path:
    outer = module_names.block_of(place[:-1])
    return outer if _numbered(outer) else place[:1]


def _repetition(blocks: Sequence[Block], start: int) -> tuple[int, int]:
    """Length and number of the repetitions that begin at a block and cover most; (1, 1) if there are none."""
    best = (1, 1)
    for period in range(1, LONGEST_PERIOD + 1):
        pattern = blocks[start : start + period]
        if len(pattern) < period:
            break
        times = 1 + sum(1 for _ in _repeats(blocks, start, period, pattern))
        if times > 1 and period * times > best[0] * best[1]:
            best = period, times
    return best


def _repeats(blocks: Sequence[Block], start: int, period: int, pattern: Sequence[Block]) -> Iterator[int]:
    """The repetitions of a pattern right after it."""
    position = start + period
    while position + period <= len(blocks):
        for one, other in zip(pattern, blocks[position : position + period]):
            if (
                module_names.family_of(one.path) != module_names.family_of(other.path)
                or one.form != other.form
            ):
                return
        yield position
        position += period


def _shapes(tensors: Sequence) -> tuple:
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)
