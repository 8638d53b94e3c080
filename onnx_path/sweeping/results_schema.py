"""The schema of a sweep's results.json, and the values that follow from its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

import pydantic

from codetr.errors import UsageError, one_line
from trt_plugin.metadata import AnyPrecision
from trt_plugin.schema_errors import first_problem

RUNTIMES = {
    "torch": "PyTorch",
    "torch-compile": "torch.compile",
    "onnxruntime": "ONNX Runtime",
    "tensorrt": "TensorRT",
}
"""Runtimes in the order of tables, with their names in text."""

PRECISIONS = get_args(AnyPrecision)
"""Precisions in the order of tables."""

SHAPES = ("any", "static", "dynamic")
"""Kinds of shapes in the order of tables. "any": the runtime takes all batch sizes as they come."""


class TimeStatistics(pydantic.BaseModel):
    """Statistics of a time, in milliseconds a batch. `ci95` is the confidence interval of the mean."""

    mean: float
    median: float
    p95: float
    p99: float
    max: float
    ci95: tuple[float, float]
    samples: int
    warmup: int


class ModelTimes(pydantic.BaseModel):
    """Times of the model alone, without and with a CUDA graph."""

    eager: TimeStatistics | None = None
    graph: TimeStatistics | None = None


class Accuracy(pydantic.BaseModel):
    """Accuracy on a dataset, in shares of 1. A classifier has top1 and top5, a detector the AP."""

    images: int
    bad_images: int = 0
    top1: float | None = None
    top5: float | None = None
    AP: float | None = None
    AP50: float | None = None
    AP75: float | None = None
    APs: float | None = None
    APm: float | None = None
    APl: float | None = None

    @property
    def headline(self) -> float | None:
        """The number that stands for all: top1 of a classifier, AP of a detector."""
        return self.AP if self.top1 is None else self.top1


class RankDifference(pydantic.BaseModel):
    """Difference of the answers with one rank, over all inputs."""

    rank: int
    mean_abs_error: float | None = None
    disagreement: float | None = None
    box_px: float | None = None
    score: float | None = None


class ExampleAnswers(pydantic.BaseModel):
    """Labels and scores of one input, best first."""

    reference: list[tuple[str, float]]
    got: list[tuple[str, float]]


class Agreement(pydantic.BaseModel):
    """Agreement of a cell's outputs with PyTorch fp32."""

    inputs: int
    data: str
    rtol: float | None = None
    atol: float | None = None
    close: float | None = None
    matched: float | None = None
    by_rank: list[RankDifference] = []
    example: ExampleAnswers | None = None


class GpuWatch(pydantic.BaseModel):
    """State of the GPU while a cell ran.

    `samples` has rows of seconds, SM utilisation in %, memory in MiB, power in W, SM clock in MHz and
    temperature in °C.
    """

    throttled: bool
    reasons: list[str] = []
    sm_mhz: tuple[float, float] | None = None
    samples: list[tuple[float, float | None, float | None, float | None, float | None, float | None]] = []


class NetworkResult(pydantic.BaseModel):
    """A network of the sweep."""

    name: str
    source: str
    task: Literal["classify", "detect", "outputs"]
    parameters: int | None = None
    input: list[int] | None = None
    weights: str | None = None


class CellResult(pydantic.BaseModel):
    """One measurement: a network in a runtime, at a precision, a batch size and a kind of shapes."""

    id: str
    network: str
    runtime: str
    precision: str
    batch: int
    shapes: str
    status: Literal["ok", "failed", "missing"]
    reason: str | None = None
    model_ms: ModelTimes | None = None
    total_ms: TimeStatistics | None = None
    images_per_s: float | None = None
    images_per_s_total: float | None = None
    file: str | None = None
    file_bytes: int | None = None
    weights_bytes: int | None = None
    context_bytes: int | None = None
    peak_gpu_bytes: int | None = None
    layers: int | None = None
    parameters: int | None = None
    build_s: float | None = None
    seconds: float | None = None
    accuracy: Accuracy | None = None
    agreement: Agreement | None = None
    gpu: GpuWatch | None = None

    @property
    def series(self) -> tuple[str, str]:
        """Runtime and precision, which pictures give a colour."""
        return self.runtime, self.precision

    @property
    def label(self) -> str:
        """Runtime and precision in words."""
        return f"{RUNTIMES.get(self.runtime, self.runtime)} {self.precision}"

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Position among the cells of its network."""
        kinds = ((list(RUNTIMES), self.runtime), (PRECISIONS, self.precision), (SHAPES, self.shapes))
        return *(known.index(it) if it in known else len(known) for known, it in kinds), self.batch

    @property
    def best_ms(self) -> float | None:
        """Median of the model alone, with or without a CUDA graph, whichever is quicker."""
        times = (self.model_ms.eager, self.model_ms.graph) if self.model_ms else ()
        return min((time.median for time in times if time), default=None)

    @property
    def throttled(self) -> bool:
        """Whether the GPU slowed down while it measured the cell."""
        return self.gpu is not None and self.gpu.throttled


class SweepResults(pydantic.BaseModel):
    """Content of results.json. The cells are sorted by `CellResult.order` within each network."""

    version: Literal[1]
    command: str
    machine: dict[str, Any]
    versions: dict[str, Any]
    networks: list[NetworkResult]
    cells: list[CellResult]

    @pydantic.model_validator(mode="after")
    def _sort_cells(self) -> SweepResults:
        names = [network.name for network in self.networks]
        for cell in self.cells:
            if cell.network not in names:
                raise ValueError(f"cell {cell.id!r} names the network {cell.network!r}, which is not listed")
        self.cells.sort(key=lambda cell: (names.index(cell.network), cell.order))
        return self

    def measured(self, network: str | None = None) -> list[CellResult]:
        """Returns the cells with status "ok", of one network or of all."""
        return [cell for cell in self.cells if cell.status == "ok" and network in (None, cell.network)]

    def reference(self, cell: CellResult) -> CellResult | None:
        """Returns the cell of PyTorch fp32 with the network and batch size of `cell`, if it was measured."""
        return next((x for x in self._references(cell) if x.batch == cell.batch), None)

    def accuracy_change(self, cell: CellResult) -> float | None:
        """Returns the accuracy of `cell` minus that of PyTorch fp32, in shares of 1.

        A reference with the same batch size is preferred to the smallest.
        """
        references = [x for x in self._references(cell) if x.accuracy and x.accuracy.headline is not None]
        if not references or cell.accuracy is None or cell.accuracy.headline is None:
            return None
        reference = min(references, key=lambda x: (x.batch != cell.batch, x.batch))
        return cell.accuracy.headline - reference.accuracy.headline

    def _references(self, cell: CellResult) -> list[CellResult]:
        return [x for x in self.measured(cell.network) if x.series == ("torch", "fp32")]


def read_results(path: Path) -> SweepResults:
    """Reads the results of a sweep.

    Raises:
        UsageError: the file is missing or damaged. The message names the file and the first problem.
    """
    try:
        return SweepResults.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"no results of a sweep: {one_line(error)}") from error
    except pydantic.ValidationError as error:
        problem = first_problem(error, "the file")
    except ValueError as error:  # not JSON, not UTF-8
        problem = one_line(error)
    raise UsageError(f"{path}: no results of a sweep: {problem}")
