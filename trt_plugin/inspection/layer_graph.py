"""The picture of an engine's graph: blocks of layers by module, arrows for the tensors between them.

Blocks stand in columns in the order in which they run, those that repeat once; a layer is a row with the
colour of its kind and, if it was measured, a bar of its time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trt_plugin.inspection.canvas import Canvas, Point, shorten, text_width
from trt_plugin.inspection.engine_layers import Layer, LayerList
from trt_plugin.inspection.layer_kinds import COLOURS, KINDS, MOVEMENT, OTHER
from trt_plugin.inspection.module_blocks import Repeated, blocks_of, collapse, total_ms
from trt_plugin.inspection.text_report import count, format_bytes, format_ms

MARGIN = 28
WIDTH = 340
GAP = 18
LANE, TRACK, TRACKS = 66, 5, 12
"""Between columns, for arrows that pass blocks by, each on one of its tracks."""
ROW = 15
HEAD = 22
PART_HEAD = 40
TOP = 116
MOST_ROWS = 26
"""A block of more rows shows its small steps summed up."""
RATIO = 1.5
"""Width of the picture for a height of 1, about."""

GREY, DARK, EDGE = "#f4f4f2", "#222222", "#9aa3ad"


@dataclass(frozen=True)
class Row:
    """Layers that the picture shows as one line; mostly one layer."""

    layers: tuple[Layer, ...]
    label: str

    @property
    def kind(self) -> str:
        """Of its layers, which are of one kind."""
        return self.layers[0].kind


@dataclass
class Box:
    """A block with its place in the picture."""

    block: Repeated
    rows: list[Row]
    x: float = 0.0
    y: float = 0.0
    column: int = 0

    @property
    def height(self) -> float:
        return HEAD + ROW * len(self.rows) + 6


def draw(layers: LayerList, title: str) -> Canvas:
    """Draws the graph of an engine that tells details of its layers.

    Args:
        layers: of the engine, with times or without.
        title: of the picture.
    """
    boxes = [Box(block, rows_of(block)) for block in collapse(blocks_of(layers.layers))]
    columns = _place(boxes)
    width = MARGIN + columns * (WIDTH + LANE)
    height = max(box.y + box.height for box in boxes) + MARGIN
    canvas = Canvas(max(width, 900), height)
    _draw_head(canvas, layers, title)
    longest = max((_row_ms(row, box) for box in boxes for row in box.rows), default=0.0)
    _draw_edges(canvas, boxes)
    for index, box in enumerate(boxes):
        if index == 0 or boxes[index - 1].block.first.part != box.block.first.part:
            _draw_part(canvas, boxes, index)
        _draw_box(canvas, box, longest)
    return canvas


def rows_of(block: Repeated) -> list[Row]:
    """The lines of a block: its layers; if they are too many, neighbouring small steps of a kind as one."""
    layers = block.first.layers
    rows = [Row((layer,), _label(layer, len(block.first.path))) for layer in layers]
    if len(rows) <= MOST_ROWS:
        return rows
    merged: list[Row] = []
    for row in rows:
        if merged and row.kind in (MOVEMENT, OTHER) and merged[-1].kind == row.kind:
            together = (*merged[-1].layers, *row.layers)
            merged[-1] = Row(together, f"{len(together)} steps")
        else:
            merged.append(row)
    return merged


def _label(layer: Layer, depth: int) -> str:
    """What a layer computes, below its block's module."""
    return ".".join((*layer.origin.path[depth:], layer.title))


def _place(boxes: Sequence[Box]) -> int:
    """Gives every box its place; returns the number of columns."""
    parts = sum(1 for a, b in pairwise(boxes) if a.block.first.part != b.block.first.part) + 1
    total = sum(box.height + GAP for box in boxes) + parts * PART_HEAD
    columns = max(1, round(math.sqrt(RATIO * total / (WIDTH + LANE))))
    limit = max(total / columns, max(box.height for box in boxes))
    while _fill(boxes, limit) > columns:
        limit *= 1.02
    return boxes[-1].column + 1


def _fill(boxes: Sequence[Box], limit: float) -> int:
    """Puts boxes below each other in columns of about a height; returns how many these are."""
    column, y, part = 0, float(TOP), None
    for box in boxes:
        new_part = box.block.first.part != part
        needed = box.height + (PART_HEAD if new_part else 0)
        if y > TOP and y + needed / 2 > TOP + limit:
            column, y = column + 1, float(TOP)
            if not new_part:
                y += PART_HEAD - GAP
        if new_part:
            y += PART_HEAD
        part = box.block.first.part
        box.column, box.x, box.y = column, MARGIN + column * (WIDTH + LANE), y
        y += box.height + GAP
    return column + 1


def _draw_head(canvas: Canvas, layers: LayerList, title: str) -> None:
    canvas.text(MARGIN, 34, title, size=18, bold=True)
    time = layers.time_ms
    below = count(len(layers.layers), "layer") + (
        f", {format_ms(time)} ms in all, a bar for each layer's time" if time else ""
    )
    canvas.text(MARGIN, 53, f"{below}; blocks that repeat are drawn once", size=11, colour="#666666")
    x = float(MARGIN)
    for kind in KINDS:
        members = [layer for layer in layers.layers if layer.kind == kind]
        if not members:
            continue
        text = kind
        if time:
            text += f"  {format_ms(total_ms(members) or 0.0)} ms"
        canvas.rectangle(x, 66, 11, 11, COLOURS[kind], radius=2)
        canvas.text(x + 16, 76, text, size=11)
        x += 16 + text_width(text, 11) + 22


def _draw_part(canvas: Canvas, boxes: Sequence[Box], index: int) -> None:
    """The name of a part of the model above its first block, with its time."""
    box, last = boxes[index], index
    part = box.block.first.part
    while last < len(boxes) and boxes[last].block.first.part == part:
        last += 1
    layers = [layer for other in boxes[index:last] for layer in other.block.layers]
    y = box.y - 12
    alone = index == 0 and last == len(boxes)
    canvas.text(box.x, y, part or ("all of it" if alone else "between the parts"), size=14, bold=True)
    time = total_ms(layers)
    text = count(len(layers), "layer") + (f", {format_ms(time)} ms" if time is not None else "")
    canvas.text(box.x + WIDTH, y, text, size=11, colour="#666666", anchor="end")


def _draw_box(canvas: Canvas, box: Box, longest: float) -> None:
    times, time = len(box.block.members), box.block.time_ms
    canvas.rectangle(box.x, box.y, WIDTH, box.height, GREY, outline="#c9ccd1", radius=5)
    figures = f"{times} x " if times > 1 else ""
    figures += (
        count(len(box.block.first.layers), "layer") if time is None else f"{format_ms(time / times)} ms"
    )
    room = WIDTH - text_width(figures, 10.5) - 28
    tip = "\n".join(".".join(block.path) for block in box.block.members)
    canvas.text(box.x + 8, box.y + 15, shorten(box.block.title, 11, room), size=11, bold=True, tip=tip)
    canvas.text(box.x + WIDTH - 8, box.y + 15, figures, size=10.5, colour="#444444", anchor="end")
    for index, row in enumerate(box.rows):
        _draw_row(canvas, box, row, box.y + HEAD + ROW * index, longest)


def _draw_row(canvas: Canvas, box: Box, row: Row, y: float, longest: float) -> None:
    tip = "\n\n".join(map(describe, row.layers[:6]))
    time = _row_ms(row, box)
    canvas.rectangle(box.x + 6, y + 1, WIDTH - 12, ROW - 2, "#ffffff", radius=2, tip=tip)
    if longest and time:
        canvas.rectangle(
            box.x + 20, y + 1, max(1.0, (WIDTH - 26) * time / longest), ROW - 2, _pale(row.kind), tip=tip
        )
    canvas.rectangle(box.x + 6, y + 1, 11, ROW - 2, COLOURS[row.kind], radius=2, tip=tip)
    right = _tensor(row.layers[-1])
    if longest:
        right += f"  {format_ms(total_ms(row.layers) or 0.0)}"
    canvas.text(box.x + WIDTH - 10, y + 11, right, size=8.5, colour="#555555", anchor="end", tip=tip)
    label = shorten(row.label, 9.5, WIDTH - 44 - text_width(right, 8.5))
    canvas.text(box.x + 22, y + 11, label, size=9.5, colour=DARK, tip=tip)


def _tensor(layer: Layer) -> str:
    """Shape and type of a layer's first output, in a few letters."""
    return str(layer.outputs[0]) if layer.outputs else ""


def _row_ms(row: Row, box: Box) -> float:
    """What a row's layers take, in all blocks that its block stands for."""
    return (total_ms(row.layers) or 0.0) * len(box.block.members)


def describe(layer: Layer) -> str:
    """All that is known of a layer, in lines."""
    lines = [layer.name, f"{layer.kind} ({layer.type})"]
    if layer.time_ms is not None:
        lines.append(f"{format_ms(layer.time_ms)} ms")
    lines += [f"in   {tensor.name}: {tensor}" for tensor in layer.inputs]
    lines += [f"out  {tensor.name}: {tensor}" for tensor in layer.outputs]
    if layer.weights_bytes:
        lines.append(f"weights: {format_bytes(layer.weights_bytes)}")
    if layer.tactic:
        lines.append(f"tactic: {layer.tactic}")
    lines += [f"node {node}" for node in layer.nodes[:8]]
    if len(layer.nodes) > 8:
        lines.append(f"{len(layer.nodes) - 8} nodes more")
    return "\n".join(lines)


def _pale(kind: str) -> str:
    """A kind's colour as a background."""
    red, green, blue = (int(COLOURS[kind][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - value) * 0.42):02x}" for value in (red, green, blue))


def _draw_edges(canvas: Canvas, boxes: Sequence[Box]) -> None:
    """Arrows for the tensors between blocks: down the column, in the lane beside it, or over the top.

    Those that come from one block share a track. What goes back belongs to blocks that take turns.
    """
    for (source, target), tensors in edges_of(boxes).items():
        a, b = boxes[source], boxes[target]
        size = sum(tensors.values())
        width = 1.0 + min(2.5, math.log10(1 + size / 2**20))
        what = f"{count(len(tensors), 'tensor')}, {format_bytes(size)}"
        tip = "\n".join([f"{a.block.title} → {b.block.title}", what, *list(tensors)[:12]])
        canvas.arrow(_route(a, b, source, target), EDGE, width, tip)


def _route(a: Box, b: Box, source: int, target: int) -> list[Point]:
    """The corners of an arrow's line."""
    middle = a.x + WIDTH / 2
    if a.column == b.column and target == source + 1:
        near = b.y - a.y - a.height < 2 * GAP  # else the name of a part stands between
        return [(middle, a.y + a.height), (middle, b.y - (0 if near else PART_HEAD - 12))]
    lane = a.x + WIDTH + TRACK * (1 + source % TRACKS)
    start, end = (a.x + WIDTH, a.y + a.height - 8), b.y + 10 + target % 3
    if b.column in (a.column, a.column + 1):
        side = b.x + (WIDTH if a.column == b.column else 0)
        return [start, (lane, start[1]), (lane, end), (side, end)]
    top = TOP - 8 - TRACK / 2 * (source % TRACKS)
    last = max(b.x - LANE + TRACK * (1 + source % TRACKS), MARGIN / 3)
    return [start, (lane, start[1]), (lane, top), (last, top), (last, end), (b.x, end)]


def edges_of(boxes: Sequence[Box]) -> dict[tuple[int, int], dict[str, int]]:
    """Bytes of the tensors between boxes by name, by numbers of the boxes; what stays in one is left out.

    TensorRT uses names again in other parts of an engine: each stands for the tensor that was written last.
    """
    places = {id(layer): number for number, box in enumerate(boxes) for layer in box.block.layers}
    writer: dict[str, int] = {}
    found: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    layers = (layer for box in boxes for layer in box.block.layers)
    for layer in sorted(layers, key=lambda layer: layer.index):
        number = places[id(layer)]
        for tensor in layer.inputs:
            if writer.get(tensor.name, number) != number:
                found[writer[tensor.name], number][tensor.name] = tensor.num_bytes
        writer.update({tensor.name: number for tensor in layer.outputs})
    return dict(found)
