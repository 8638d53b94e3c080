"""The report on an engine as tables for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_plugin.inspection.eight_bits import EightBitReport
from trt_plugin.inspection.engine_layers import Layer, LayerList, layers_by_kind, total_ms
from trt_plugin.inspection.layer_kinds import KIND_COLOURS
from trt_plugin.inspection.module_names import path_text

if TYPE_CHECKING:
    from trt_plugin.inspection.engine_summary import EngineSummary, EngineTimes

BAR = 24
"""Width of a bar for 100 %, in characters."""


def make_console() -> Console:
    """Returns a console that prints every line whole: layers' names are longer than a terminal is wide."""
    return Console(width=10_000, highlight=False, markup=False, emoji=False)


def format_bytes(number: int) -> str:
    """1.5 MiB for 1572864, 8.0 KiB for 8192."""
    return f"{number / 2**20:.1f} MiB" if number >= 2**20 else f"{number / 2**10:.1f} KiB"


def format_ms(milliseconds: float) -> str:
    """0.125 for 0.12512, as in all tables of this repository."""
    return f"{milliseconds:.3f}"


def count(number: int, word: str) -> str:
    """1 layer, 2 layers."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def shorten(text: str, width: int) -> str:
    """Cuts a text in its middle to a number of characters."""
    keep = width - 1
    return text if len(text) <= width else f"{text[: (keep + 1) // 2]}…{text[len(text) - keep // 2 :]}"


def summary_table(summary: EngineSummary, precision: str | None, build_seconds: float | None) -> Table:
    """Size, memory, inputs and outputs of an engine."""
    built = f"built by {summary.built_with}, " if summary.built_with else ""
    rows = {
        "TensorRT": f"{built}loaded by {summary.tensorrt_version} on {summary.gpu}",
        "engine": format_bytes(summary.engine_bytes),
        "build": "" if build_seconds is None else f"{build_seconds:.1f} s",
        "precision": precision,
        **{f"input {tensor.name}": str(tensor) for tensor in summary.inputs},
        **{f"output {tensor.name}": str(tensor) for tensor in summary.outputs},
        "profiles": str(summary.profiles) if summary.profiles > 1 else "",
        "intermediate results": f"{format_bytes(summary.device_memory_bytes)} of GPU memory a context",
        "weights and code": f"{format_bytes(summary.loaded_bytes)} of GPU memory taken by loading",
        "auxiliary streams": summary.auxiliary_streams and str(summary.auxiliary_streams),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        if value:
            table.add_row(f"  {name}", value)
    return table


def layers_line(layers: LayerList) -> str:
    """Returns a line with the number of layers and the plugins among them."""
    counts = Counter(map(plugin_name, layers.plugins))
    plugins = ", ".join(f"{number} {name}" for name, number in counts.items())
    plugins = f"of plugins: {plugins}" if plugins else "none of a plugin"
    return f"{count(len(layers.layers), 'layer')}, {plugins}"


def plugin_name(layer: Layer) -> str:
    """A plugin's name. The type of its layer if the inspector does not tell the name."""
    return str(layer.attributes.get("PluginType") or layer.type)


def kinds_table(layers: LayerList) -> Table:
    """Number of layers and time of each kind, with bars."""
    total = layers.time_ms
    table = _table("kind", ">layers", *((">ms", ">share", "") if total else ()))
    for kind, members in layers_by_kind(layers.layers).items():
        row = [kind, str(len(members))]
        if total:
            time = total_ms(members)
            bar = Text("█" * round(BAR * time / total), style=KIND_COLOURS[kind])
            row += [format_ms(time), f"{time / total:.1%}", bar]
        table.add_row(*row)
    return table


def eight_bits_table(found: EightBitReport, total: float) -> Table:
    """Number and time of the products in 8 bits, of the others, and of conversions.

    Args:
        found: the layers of a quantised engine.
        total: the time of all layers in milliseconds; 0 if it was not measured.
    """
    types = " and ".join(sorted({layer.eight_bits for layer in found.narrow}))
    table = _table(types or "8 bits", ">layers", *((">ms", ">share") if total else ()))
    for name, members in found.groups.items():
        time = total_ms(members)
        table.add_row(name, str(len(members)), *((format_ms(time), f"{time / total:.1%}") if total else ()))
    return table


def fallen_table(found: EightBitReport, most: int) -> Table:
    """The slowest products that fell back from 8 bits, and why."""
    ordered = sorted(found.fallen, key=lambda product: -product.layer.time_ms)
    timed = any(product.layer.time_ms for product in ordered)
    table = _table(*((">ms",) if timed else ()), "products that fell back", "type", "why")
    for product in ordered[:most]:
        layer = product.layer
        types = ", ".join(dict.fromkeys(tensor.dtype for tensor in layer.outputs))
        table.add_row(*((format_ms(layer.time_ms),) if timed else ()), layer.place, types, product.why)
    if len(ordered) > most:
        table.add_row(*(("",) if timed else ()), f"{len(ordered) - most} more: see --table", "", "")
    return table


def times_line(times: EngineTimes, layers: LayerList) -> str:
    """GPU time of a run, and why the sum of the layers' times differs."""
    how = "CUDA graph" if times.cuda_graph else "no CUDA graph"
    return (
        f"GPU time of a run: {format_ms(times.gpu_ms)} ms ({how}, median of {len(times.samples_ms)}); "
        f"sum of the layers, which wait for each other when profiled: {format_ms(layers.time_ms)} ms"
    )


def slowest_table(layers: LayerList, most: int) -> Table:
    """The layers that take longest, with their module and operators."""
    ordered = layers.slowest(most)
    head = f"the {len(ordered)} slowest layers: module and operators"
    table = _table(">ms", ">share", "kind", head, "output")
    for layer in ordered:
        share = f"{layer.time_ms / layers.time_ms:.1%}"
        table.add_row(format_ms(layer.time_ms), share, layer.kind, layer.place, _tensors(layer.outputs[:1]))
    return table


def layers_table(layers: Iterable[Layer]) -> Table:
    """A row for each layer."""
    columns = (">", "kind", "type", "inputs", "outputs", ">weights", ">ms", "tactic", "module", "name")
    table = _table(*columns)
    for layer in layers:
        table.add_row(
            str(layer.index),
            layer.kind,
            layer.type,
            _tensors(layer.inputs),
            _tensors(layer.outputs),
            format_bytes(layer.weights_bytes) if layer.weights_bytes else "",
            format_ms(layer.time_ms) if layer.time_ms else "",
            layer.tactic,
            path_text(layer.origin.path),
            layer.name,
        )
    return table


def _tensors(tensors: Sequence[object]) -> str:
    """Types and shapes of the first three tensors, and the number of the others."""
    shown = ", ".join(map(str, tensors[:3]))
    return shown + (f", {len(tensors) - 3} more" if len(tensors) > 3 else "")


def _table(*columns: str) -> Table:
    """Returns an empty table. Columns whose names begin with ">" are aligned right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    return table
