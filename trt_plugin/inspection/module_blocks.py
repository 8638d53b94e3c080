"""Groups layers into blocks by the model's modules, and equal blocks in a row into one block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trt_plugin.inspection.engine_layers import Layer, total_ms
from trt_plugin.inspection.layer_kinds import IDLE_TYPES
from trt_plugin.inspection.module_names import ModulePath, block_of, path_text

SMALL = 3
"""A numbered module with fewer layers joins the block around it."""

LARGE = 24
"""Layers outside of numbered modules are cut into blocks of this size."""

LONGEST_PERIOD = 4
"""Longest sequence of blocks that may repeat. In Swin, two forms of blocks alternate."""


@dataclass(frozen=True)
class LayerBlock:
    """The layers of one module, or of several modules with equal layers.

    Attributes:
        paths: the modules.
        repetitions: for each module, its layers in execution order.
    """

    paths: tuple[ModulePath, ...]
    repetitions: tuple[tuple[Layer, ...], ...]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers of the first module."""
        return self.repetitions[0]

    @property
    def all_layers(self) -> tuple[Layer, ...]:
        """Layers of all modules."""
        return sum(self.repetitions, ())

    @property
    def part(self) -> str:
        """Outermost module, such as "backbone"."""
        return self.paths[0][0] if self.paths[0] else ""

    @property
    def time_ms(self) -> float:
        """Sum of all layers' times."""
        return total_ms(self.all_layers)

    @property
    def title(self) -> str:
        """The modules in one line: "stages.2.blocks.0, 2, …, 16"."""
        path, count = self.paths[0], len(self.paths)
        if count == 1:
            return path_text(path)
        if not _numbered(path):
            return f"{path_text(path)}, {count} times"
        numbers = [path[-1] for path in self.paths]
        shown = numbers if count <= 3 else [*numbers[:2], "…", numbers[-1]]
        return f"{path_text(path[:-1])}.{', '.join(shown)}"


def blocks_of(layers: Sequence[Layer]) -> list[LayerBlock]:
    """Groups layers into blocks, in the order in which the blocks begin.

    A layer without a name of its own, such as a copy that TensorRT added, joins the block of the layer before
    it.
    """
    working = [layer for layer in layers if layer.type.lower() not in IDLE_TYPES]
    found: list[tuple[ModulePath, list[Layer]]] = []
    open_blocks: dict[ModulePath, list[Layer]] = {}
    for layer, key in zip(working, _block_paths(working)):
        # Unnumbered modules spread over the whole model: each numbered block begins new ones.
        full = not _numbered(key) and len(open_blocks.get(key, ())) >= LARGE
        if key not in open_blocks or full:
            if _numbered(key):
                open_blocks = {path: members for path, members in open_blocks.items() if _numbered(path)}
            open_blocks[key] = []
            found.append((key, open_blocks[key]))
        open_blocks[key].append(layer)
    return [LayerBlock((path,), (tuple(members),)) for path, members in found]


def join_equal(blocks: Sequence[LayerBlock]) -> list[LayerBlock]:
    """Joins equal blocks that follow each other, also where they alternate (a b a b)."""
    forms = [_form(block) for block in blocks]
    joined, start = [], 0
    while start < len(blocks):
        period, times = _repetition(forms, start)
        for first in range(start, start + period):
            equal = blocks[first : start + period * times : period]
            paths = tuple(block.paths[0] for block in equal)
            joined.append(LayerBlock(paths, tuple(block.layers for block in equal)))
        start += period * times
    return joined


def _block_paths(layers: Sequence[Layer]) -> list[ModulePath]:
    """Returns the module of each layer's block."""
    paths: list[ModulePath] = []
    for layer in layers:
        named = layer.nodes or layer.origin.path or not paths
        paths.append(block_of(layer.origin.path) if named else paths[-1])
    while True:
        small = [path for path, size in Counter(paths).items() if size < SMALL and len(path) > 1]
        if not small:
            return paths
        # The innermost modules first: their layers may make the modules around them large enough.
        depth = max(map(len, small))
        for path in (path for path in small if len(path) == depth):
            around = block_of(path[:-1])
            around = around if _numbered(around) else path[:1]
            paths = [around if other == path else other for other in paths]


def _numbered(path: ModulePath) -> bool:
    return bool(path) and path[-1].isdecimal()


def _form(block: LayerBlock) -> list[tuple]:
    """Describes the list of modules and the layers so that equal blocks compare equal."""
    path = block.paths[0]
    family = (*path[:-1], "*") if _numbered(path) else path
    return [
        # TensorRT lists the nodes of a fused layer in any order.
        (family, x.kind, x.type, sorted(x.origin.operators), [(y.shape, y.dtype) for y in x.outputs])
        for x in block.layers
    ]


def _repetition(forms: Sequence[list], start: int) -> tuple[int, int]:
    """Returns period and count of the longest repetition that begins at `start`, (1, 1) without one."""
    best = (1, 1)
    for period in range(1, LONGEST_PERIOD + 1):
        pattern, times = forms[start : start + period], 1
        while forms[start + times * period : start + (times + 1) * period] == pattern:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = period, times
    return best
