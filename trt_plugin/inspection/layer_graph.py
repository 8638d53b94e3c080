"""Draws the graph of an engine with Graphviz: blocks of layers by module, and arrows for their tensors.

Blocks stand in columns in execution order. Blocks that repeat are drawn once. Each layer is a row with the
colour of its kind and a bar of its time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from itertools import pairwise, takewhile
from pathlib import Path

import graphviz

from trt_plugin.atomic_files import atomic_write
from trt_plugin.engine_error import EngineError
from trt_plugin.inspection.engine_layers import Layer, LayerList, layers_by_kind, total_ms
from trt_plugin.inspection.layer_kinds import KIND_COLOURS
from trt_plugin.inspection.module_blocks import LayerBlock, blocks_of, join_equal
from trt_plugin.inspection.text_report import count, format_bytes, format_ms, shorten

LABEL = 44
"""Longest label of a row, in characters."""
BAR = 250
"""Width of a row's label and of the longest bar, in points."""
COLUMN = 30
"""Width of a column, in heights of a row."""
RATIO = 1.4
"""Width of the picture for a height of 1, about."""

GREY, EDGE, FRAME, BOX = "#666666", "#9aa3ad", "#c9ccd1", "#f4f4f2"


def write_graph(path: Path, layers: LayerList, title: str) -> None:
    """Draws the graph of an engine that was built with detailed profiling verbosity: .svg, .png or .pdf.

    Raises:
        EngineError: the program `dot` is missing.
    """
    blocks = join_equal(blocks_of(layers.layers))
    starts = [index == 0 or blocks[index - 1].part != block.part for index, block in enumerate(blocks)]
    longest = max(layer.time_ms for layer in layers.layers)
    # From left to right, a rank is a column.
    graph = graphviz.Digraph(graph_attr={"rankdir": "LR", "ranksep": "0.9", "nodesep": "0.3", "dpi": "96"})
    graph.attr("graph", splines="ortho", fontname="Helvetica", fontsize="11", labelloc="t", labeljust="l")
    graph.attr("graph", label=_title_table(layers, title))
    graph.attr("node", shape="plain", fontname="Helvetica", fontsize="9")
    graph.attr("edge", color=EDGE, arrowsize="0.6")
    columns = columns_of([len(block.layers) + 3 + 3 * start for block, start in zip(blocks, starts)])
    for left, right in pairwise(columns):
        graph.edge(str(left[0]), str(right[0]), style="invis")
    for column in columns:
        with graph.subgraph(graph_attr={"rank": "same"}) as rank:
            for index in column:
                heading = _part_heading(blocks[index:], len(blocks)) if starts[index] else ""
                rank.node(str(index), _block_table(blocks[index], longest, heading))
            for above, below in pairwise(column):
                rank.edge(str(above), str(below), style="invis", weight="100")
    for (source, target), tensors in edges_of(blocks).items():
        size = sum(tensors.values())
        facts = f"{count(len(tensors), 'tensor')}, {format_bytes(size)}"
        tip = [f"{blocks[source].title} → {blocks[target].title}", facts, *list(tensors)[:12]]
        width = f"{1 + min(2.5, math.log10(1 + size / 2**20)):.2f}"
        graph.edge(str(source), str(target), penwidth=width, tooltip="\n".join(tip), constraint="false")
    try:
        picture = graph.pipe(path.suffix.lower().removeprefix("."))
    except graphviz.ExecutableNotFound as error:
        raise EngineError(
            f"{path}: the graph needs Graphviz's program dot, which is not on PATH: apt-get install graphviz"
        ) from error
    with atomic_write(path) as temporary:
        temporary.write_bytes(picture)


def columns_of(heights: Sequence[float]) -> list[list[int]]:
    """Divides blocks, whose heights are given in rows, into columns of similar heights."""
    total, above = sum(heights), 0.0
    columns: list[list[int]] = [[] for _ in range(max(1, round(math.sqrt(RATIO * total / COLUMN))))]
    for index, height in enumerate(heights):
        columns[int(len(columns) * (above + height / 2) / total)].append(index)
        above += height
    return [column for column in columns if column]


def edges_of(blocks: Sequence[LayerBlock]) -> dict[tuple[int, int], dict[str, int]]:
    """Returns the tensors between different blocks: {(source, target): {name: bytes}}.

    TensorRT uses a name again in another part of an engine. A name means the tensor that was written last.
    """
    numbered = [(layer, number) for number, block in enumerate(blocks) for layer in block.all_layers]
    writer: dict[str, int] = {}
    edges: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for layer, number in sorted(numbered, key=lambda entry: entry[0].index):
        for tensor in layer.inputs:
            if writer.get(tensor.name, number) != number:
                edges[writer[tensor.name], number][tensor.name] = tensor.num_bytes
        writer.update({tensor.name: number for tensor in layer.outputs})
    return dict(edges)


def _describe(layer: Layer) -> str:
    """Returns all that is known of a layer, in lines."""
    lines = [layer.name, f"{layer.kind} ({layer.type})"]
    lines += [f"{format_ms(layer.time_ms)} ms"] if layer.time_ms else []
    lines += [f"in   {tensor.name}: {tensor}" for tensor in layer.inputs]
    lines += [f"out  {tensor.name}: {tensor}" for tensor in layer.outputs]
    lines += [f"weights: {format_bytes(layer.weights_bytes)}"] if layer.weights_bytes else []
    lines += [f"tactic: {layer.tactic}"] if layer.tactic else []
    lines += [f"node {node}" for node in layer.nodes[:8]]
    return "\n".join(lines)


def _title_table(layers: LayerList, title: str) -> str:
    """Title, facts and the kinds with their colours, above the graph."""
    time = layers.time_ms
    facts = count(len(layers.layers), "layer")
    facts += f", {format_ms(time)} ms in all, a bar for each layer's time" if time else ""
    legend = ""
    for kind, members in layers_by_kind(layers.layers).items():
        ms = f" {format_ms(total_ms(members))} ms" if time else ""
        legend += _cell(bgcolor=KIND_COLOURS[kind], width=12) + _cell(f"{kind}{ms}    ")
    return _table(
        _cell(title, font=18, bold=True, colspan=14, align="LEFT"),
        _cell(f"{facts}; blocks that repeat are drawn once", color=GREY, colspan=14, align="LEFT"),
        legend,
        cellspacing=4,
    )


def _part_heading(blocks: Sequence[LayerBlock], total: int) -> str:
    """Name and time of a part of the model, above its first block."""
    part = blocks[0].part
    members = list(takewhile(lambda block: block.part == part, blocks))
    layers = [layer for block in members for layer in block.all_layers]
    name = part or ("all of it" if len(members) == total else "between the parts")
    facts, time = count(len(layers), "layer"), total_ms(layers)
    facts += f", {format_ms(time)} ms" if time else ""
    return _cell(name, font=14, bold=True, align="LEFT") + _cell(facts, color=GREY, align="RIGHT")


def _block_table(block: LayerBlock, longest: float, heading: str) -> str:
    times, time = len(block.paths), block.time_ms
    facts = f"{times} x " if times > 1 else ""
    facts += f"{format_ms(time / times)} ms" if time else count(len(block.layers), "layer")
    title = _cell(shorten(block.title, 48), bold=True, colspan=2, align="LEFT") + _cell(facts, align="RIGHT")
    body = [_row_cells(layer, block, longest) for layer in block.layers]
    frame = {"border": 1, "color": FRAME, "cellspacing": 1, "cellpadding": 1}
    box = _table(title, *body, **frame, bgcolor=BOX).removeprefix("<").removesuffix(">")
    return _table(heading, f'<TD COLSPAN="2">{box}</TD>', cellpadding=2)


def _row_cells(layer: Layer, block: LayerBlock, longest: float) -> str:
    label = ".".join((*layer.origin.path[len(block.paths[0]) :], layer.title))
    share, colour = (layer.time_ms / longest if longest else 0.0), KIND_COLOURS[layer.kind]
    # Opaque to 42 %. Graphviz draws a share of 0 as a half.
    bar = f"{colour}6b;{max(share, 0.001):.3f}:#ffffff" if share else "#ffffff"
    facts = [str(layer.outputs[0])] if layer.outputs else []
    facts += [format_ms(layer.time_ms)] if longest else []
    # Graphviz writes a tooltip only for cells with a link.
    tip = {"href": "#", "tooltip": _describe(layer)}
    return (
        _cell(bgcolor=colour, width=10)
        + _cell(shorten(label, LABEL), bgcolor=bar, align="LEFT", width=BAR, **tip)
        + _cell("  ".join(facts), font=8, color=GREY, bgcolor="#ffffff", align="RIGHT")
    )


def _cell(text: str = "", *, font: int = 0, color: str = "", bold: bool = False, **attributes: object) -> str:
    """A cell of an HTML-like label."""
    style = (f' POINT-SIZE="{font}"' if font else "") + (f' COLOR="{color}"' if color else "")
    inner = f"<B>{escape(text)}</B>" if bold else escape(text)
    return f"<TD{_attributes(attributes)}>{f'<FONT{style}>{inner}</FONT>' if style else inner}</TD>"


def _table(*rows: str, **attributes: object) -> str:
    """An HTML-like label. Rows without cells are left out."""
    attributes = {"border": 0, "cellborder": 0, "cellspacing": 0, "cellpadding": 0, **attributes}
    body = "".join(f"<TR>{row}</TR>" for row in rows if row)
    return f"<<TABLE{_attributes(attributes)}>{body}</TABLE>>"


def _attributes(values: dict[str, object]) -> str:
    escaped = {name.upper(): escape(str(value)).replace("\n", "&#10;") for name, value in values.items()}
    return "".join(f' {name}="{value}"' for name, value in escaped.items())
