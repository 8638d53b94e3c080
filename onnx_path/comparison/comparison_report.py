"""What a comparison says, for people and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_path.comparison.comparable_tensors import Node
from onnx_path.comparison.first_difference import Found, Outcome
from onnx_path.comparison.tensor_errors import TensorError, Tolerance, table
from trt_plugin.engine_tensors import format_shape


@dataclass(frozen=True)
class Input:
    """An input that both sides got.

    Attributes:
        name, shape, dtype: of it, as the ONNX file has it.
        source: the option that named a file, or how the numbers are drawn.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: str


@dataclass(frozen=True)
class Comparison:
    """Two files compared.

    Attributes:
        model: the ONNX file.
        engine: the engine's file.
        tensorrt_version, gpu: that ran it.
        tolerance: by which.
        inputs: of both.
        outputs: errors of all outputs.
        selections: that the engine told and onnxruntime took over.
        parsed: what engines for layers were built of; None if there was no such search.
        layers: what it found, or None.
    """

    model: Path
    engine: Path
    tensorrt_version: str
    gpu: str
    tolerance: Tolerance
    inputs: tuple[Input, ...]
    outputs: tuple[TensorError, ...]
    selections: tuple[str, ...] = ()
    parsed: Path | None = None
    layers: Found | None = None

    @property
    def differing(self) -> list[str]:
        """Names of the outputs that are not within the tolerance."""
        return [error.name for error in self.outputs if not error.within]

    @property
    def within(self) -> bool:
        """Whether all outputs are."""
        return not self.differing

    def with_layers(self, parsed: Path, layers: Found) -> Comparison:
        """The same with a search's result."""
        return dataclasses.replace(self, parsed=parsed, layers=layers)

    def lines(self) -> list[str]:
        """A table of the outputs, and what it depends on."""
        tolerance = self.tolerance
        rows = [("reference", f"{self.model}, onnxruntime on the CPU in float32")]
        rows += [("engine", f"{self.engine}, TensorRT {self.tensorrt_version}, {self.gpu}")]
        rows += [(f"input {x.name}", f"{format_shape(x.shape)} {x.dtype}, {x.source}") for x in self.inputs]
        if self.selections:
            rows.append(
                ("selections", f"the engine's own, told to onnxruntime: {', '.join(self.selections)}")
            )
        rows += [
            ("precision", f"{tolerance.precision} ({tolerance.why})"),
            (
                "tolerance",
                f"relative error {tolerance.relative:g}"
                f"{'' if tolerance.given else f', the default for {tolerance.precision}'}"
                " (norm of the difference over norm of the reference)",
            ),
        ]
        width = max(len(name) for name, _ in rows)
        differing = len(self.differing)
        verdict = f"{differing} of {len(self.outputs)} outputs differ" if differing else "all outputs agree"
        return [*(f"{name:{width}}  {text}" for name, text in rows), *table(self.outputs, "output"), verdict]

    def layer_lines(self) -> list[str]:
        """What a search found: the tensors that were compared, and the first that differs."""
        found = self.layers
        assert found is not None
        lines = table(found.measured, "tensor", [["node", *map(str, found.producers)]])
        built = f"({found.engines} engines built of {self.parsed})"
        if found.outcome is Outcome.OTHER_ENGINE:
            return [
                *lines,
                f"{found.error.name} does not differ in an engine that is built of {self.parsed} now: "
                f"{self.engine} was built of another file (see --parsed), with other settings or by another "
                f"version {built}",
            ]
        if found.outcome is Outcome.FUSION:
            return [
                *lines,
                f"{found.error.name} differs only in engines where the tensors that it is computed from are "
                f"no outputs: it is one of fused layers, {_names(found.nodes)} among them {built}",
            ]
        inputs = ", ".join(f"{x.name} {x.relative:.3g}" for x in found.inputs)
        lines += [
            f"first difference: node {found.node}, output {found.error.name}: relative error "
            f"{found.error.relative:.3g}, absolute {found.error.absolute:.3g} {built}",
            f"relative error of its inputs: {inputs or 'none, they are inputs of the file or constants'}",
        ]
        if len(found.nodes) > 1:
            lines.append(f"not compared one by one: {_names(found.nodes)}")
        return lines

    def content(self) -> dict[str, Any]:
        """The report as JSON."""
        found = self.layers
        layers = None
        if found is not None:
            layers = {
                "parsed": str(self.parsed),
                "outcome": found.outcome.name.lower(),
                "explanation": found.outcome.value,
                "node": dataclasses.asdict(found.node),
                "nodes": [dataclasses.asdict(node) for node in found.nodes],
                "output": found.error.content(),
                "inputs": [error.content() for error in found.inputs],
                "measured": [
                    error.content() | {"node": dataclasses.asdict(node)}
                    for error, node in zip(found.measured, found.producers)
                ],
                "engines": found.engines,
            }
        return {
            "model": str(self.model),
            "engine": str(self.engine),
            "tensorrt_version": self.tensorrt_version,
            "gpu": self.gpu,
            "tolerance": dataclasses.asdict(self.tolerance),
            "inputs": [dataclasses.asdict(x) for x in self.inputs],
            "selections": list(self.selections),
            "outputs": [error.content() for error in self.outputs],
            "within": self.within,
            "layers": layers,
        }


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(map(str, nodes))
