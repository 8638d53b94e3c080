"""The result of a comparison, as tables for the terminal and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from onnx_path.comparison.first_difference import FirstDifference, SearchOutcome
from onnx_path.comparison.input_arrays import InputArray
from onnx_path.comparison.tensor_errors import TensorError, Tolerance
from trt_plugin.engine_tensors import format_shape


@dataclass(frozen=True)
class EngineComparison:
    """An engine compared with its ONNX file.

    Attributes:
        tensorrt_version, gpu: ran the engine.
        selections: selections that the engine output and onnxruntime took over.
        parsed: file of the engines for layers; None without a search.
        layers: result of the search, or None.
    """

    model: Path
    engine: Path
    tensorrt_version: str
    gpu: str
    tolerance: Tolerance
    inputs: Mapping[str, InputArray]
    outputs: tuple[TensorError, ...]
    selections: tuple[str, ...] = ()
    parsed: Path | None = None
    layers: FirstDifference | None = None

    @property
    def differing(self) -> list[str]:
        """Names of the outputs that are not within the tolerance."""
        return [error.name for error in self.outputs if not error.within]

    def print_outputs(self, console: Console) -> None:
        """Prints a table of the outputs, and the settings that it depends on."""
        tolerance = self.tolerance
        default = "" if tolerance.given else f", the default for {tolerance.precision}"
        rows = {
            "reference": f"{self.model}, onnxruntime on the CPU in float32",
            "engine": f"{self.engine}, TensorRT {self.tensorrt_version}, {self.gpu}",
            **{
                f"input {name}": f"{format_shape(x.array.shape)} {x.array.dtype}, {x.source}"
                for name, x in self.inputs.items()
            },
            "selections": self.selections and f"onnxruntime takes the engine's: {', '.join(self.selections)}",
            "precision": f"{tolerance.precision} ({tolerance.why})",
            "tolerance": f"relative error {tolerance.relative:g}{default} (norm of the difference over norm "
            "of the reference)",
        }
        settings = Table.grid(padding=(0, 2))
        for name, text in rows.items():
            if text:
                settings.add_row(name, text)
        console.print(settings)
        console.print(_error_table("output", [(error.name, error) for error in self.outputs]))
        count = len(self.differing)
        console.print(f"{count} of {len(self.outputs)} outputs differ" if count else "all outputs agree")

    def print_layers(self, console: Console) -> None:
        """Prints the tensors that the search compared, and the first that differs."""
        found = self.layers
        assert found is not None
        console.print(_error_table("node and tensor", [(f"{n}: {x.name}", x) for n, x in found.measured]))
        built = f"({found.engines} engines built of {self.parsed})"
        nodes = ", ".join(map(str, found.nodes))
        if found.outcome is SearchOutcome.OTHER_ENGINE:
            console.print(
                f"{found.error.name} does not differ in an engine that is built of {self.parsed} now: "
                f"{self.engine} was built of another file (see --parsed), with other settings or by another "
                f"version {built}"
            )
        elif found.outcome is SearchOutcome.FUSION:
            console.print(
                f"{found.error.name} differs only in engines without its sources as outputs: a fusion of "
                f"layers differs, and {nodes} is in it {built}"
            )
        else:
            console.print(
                f"first difference: node {found.node}, output {found.error.name}: relative error "
                f"{found.error.relative:.3g}, absolute {found.error.absolute:.3g} {built}"
            )
            inputs = ", ".join(f"{x.name} {x.relative:.3g}" for x in found.inputs)
            console.print(f"relative error of its inputs: {inputs or 'none are computed'}")
            if len(found.nodes) > 1:
                console.print(f"not compared one by one: {nodes}")

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        found, layers = self.layers, None
        if found is not None:
            layers = {
                "parsed": str(self.parsed),
                "outcome": found.outcome.name.lower(),
                "explanation": found.outcome.value,
                "node": dataclasses.asdict(found.node),
                "nodes": [dataclasses.asdict(node) for node in found.nodes],
                "output": found.error.as_dict(),
                "inputs": [error.as_dict() for error in found.inputs],
                "measured": [
                    error.as_dict() | {"node": dataclasses.asdict(n)} for n, error in found.measured
                ],
                "engines": found.engines,
            }
        return {
            "model": str(self.model),
            "engine": str(self.engine),
            "tensorrt_version": self.tensorrt_version,
            "gpu": self.gpu,
            "tolerance": dataclasses.asdict(self.tolerance),
            "inputs": [
                {"name": name, "shape": x.array.shape, "dtype": x.array.dtype.name, "source": x.source}
                for name, x in self.inputs.items()
            ],
            "selections": list(self.selections),
            "outputs": [error.as_dict() for error in self.outputs],
            "within": not self.differing,
            "layers": layers,
        }


def _error_table(title: str, rows: Iterable[tuple[str, TensorError]]) -> Table:
    table = Table(title, "shape", "type", "absolute", "relative", "", box=None, pad_edge=False)
    for name, error in rows:
        verdict = "within" if error.within else "DIFFERS"
        numbers = f"{error.absolute:.3g}", f"{error.relative:.3g}"
        note = f": {error.note}" if error.note else ""
        table.add_row(name, format_shape(error.shape), error.dtype, *numbers, verdict + note)
    return table
