"""The report on an engine as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trt_plugin.inspection.engine_layers import Layer, LayerList
from trt_plugin.inspection.layer_kinds import KINDS
from trt_plugin.inspection.module_names import text as module_text

if TYPE_CHECKING:
    from trt_plugin.inspection.engine_summary import Summary, Times

BAR = 24
"""Columns of the longest bar."""


def format_bytes(number: int) -> str:
    """1.5 MiB for 1572864."""
    size, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"


def format_ms(milliseconds: float) -> str:
    """Milliseconds with three digits after the point, as all our tables have them."""
    return f"{milliseconds:.3f}"


def summary_lines(summary: Summary, precision: str | None, build_seconds: float | None) -> list[str]:
    """What an engine is as a whole."""
    built = f"built by {summary.built_with}, " if summary.built_with else ""
    rows = [
        ("TensorRT", f"{built}loaded by {summary.tensorrt_version} on {summary.gpu}"),
        ("engine", format_bytes(summary.engine_bytes)),
    ]
    if build_seconds is not None:
        rows.append(("build", f"{build_seconds:.1f} s"))
    if precision:
        rows.append(("precision", precision))
    rows += [(f"input {tensor.name}", str(tensor)) for tensor in summary.inputs]
    rows += [(f"output {tensor.name}", str(tensor)) for tensor in summary.outputs]
    if summary.profiles > 1:
        rows.append(("profiles", str(summary.profiles)))
    rows += [
        ("intermediate results", f"{format_bytes(summary.device_memory_bytes)} of GPU memory a context"),
        ("weights and code", f"{format_bytes(summary.loaded_bytes)} of GPU memory taken by loading"),
    ]
    if summary.streamable_weights_bytes:
        rows.append(("streamable weights", format_bytes(summary.streamable_weights_bytes)))
    if summary.auxiliary_streams:
        rows.append(("auxiliary streams", str(summary.auxiliary_streams)))
    return columns(rows)


def layers_line(layers: LayerList) -> str:
    """How many layers there are and which are plugins."""
    types: dict[str, int] = {}
    for layer in layers.plugins:
        types[plugin_name(layer)] = types.get(plugin_name(layer), 0) + 1
    plugins = ", ".join(f"{times} {name}" for name, times in types.items())
    return count(len(layers.layers), "layer") + (
        f", of plugins: {plugins}" if plugins else ", none of a plugin"
    )


def plugin_name(layer: Layer) -> str:
    """A plugin's name, its layer's type if the inspector does not say it."""
    return str(layer.attributes.get("PluginType") or layer.type)


def kind_lines(layers: LayerList) -> list[str]:
    """Number of layers and time of each kind, with bars."""
    total, rows = layers.time_ms, []
    for kind in KINDS:
        members = [layer for layer in layers.layers if layer.kind == kind]
        if not members:
            continue
        row = [kind, str(len(members))]
        if total:
            time = sum(layer.time_ms or 0.0 for layer in members)
            row += [format_ms(time), f"{time / total:.1%}", "█" * round(BAR * time / total)]
        rows.append(row)
    head = ["kind", "layers"] + (["ms", "share", ""] if total else [])
    return table(head, rows, left=(0, 4))


def times_lines(times: Times, layers: LayerList) -> list[str]:
    """What a run takes, and why the layers' sum is another number."""
    how = "CUDA graph" if times.cuda_graph else "no CUDA graph"
    return [
        f"GPU time of a run: {format_ms(times.gpu_ms)} ms ({how}, median of {len(times.samples_ms)}); "
        f"sum of the layers, which wait for each other when profiled: {format_ms(layers.time_ms or 0.0)} ms"
    ]


def slowest_lines(layers: LayerList, most: int) -> list[str]:
    """The layers that take longest, with what they compute and where in the model."""
    ordered = sorted(layers.layers, key=lambda layer: -(layer.time_ms or 0.0))[:most]
    total, rows = layers.time_ms or 1.0, []
    for layer in ordered:
        time = layer.time_ms or 0.0
        output = str(layer.outputs[0]) if layer.outputs else ""
        where = f"{module_text(layer.origin.path)}: {layer.title}"
        rows.append([format_ms(time), f"{time / total:.1%}", layer.kind, where, output])
    head = ["ms", "share", "kind", f"the {len(rows)} slowest layers: module and what it computes", "output"]
    return table(head, rows, left=(2, 3, 4))


def layer_lines(layers: Iterable[Layer]) -> list[str]:
    """A row for each layer."""
    layers = list(layers)
    timed = any(layer.time_ms is not None for layer in layers)
    rows = []
    for index, layer in enumerate(layers):
        row = [str(index), layer.kind, layer.type, tensors(layer.inputs), tensors(layer.outputs)]
        row += [format_bytes(layer.weights_bytes) if layer.weights_bytes else ""]
        if timed:
            row.append("" if layer.time_ms is None else format_ms(layer.time_ms))
        rows.append([*row, layer.tactic, module_text(layer.origin.path), layer.name])
    time = ["ms"] if timed else []
    head = ["", "kind", "type", "inputs", "outputs", "weights", *time, "tactic", "module", "name"]
    right = (0, 5, 6) if timed else (0, 5)
    return table(head, rows, left=tuple(i for i in range(len(head)) if i not in right))


def tensors(all_of: Sequence) -> str:
    """Types and shapes of tensors in a few words: the first three, and how many more."""
    shown = ", ".join(map(str, all_of[:3]))
    return shown + (f", {len(all_of) - 3} more" if len(all_of) > 3 else "")


def columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Names and values, aligned."""
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {value}" for name, value in rows]


def count(number: int, word: str) -> str:
    """1 layer, 2 layers."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Aligned columns, those in `left` to the left, with a rule below the head."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))
        )
        return "  ".join(cells).rstrip()

    return [line(head), "  ".join("─" * width for width in widths), *map(line, rows)]
