"""`python -m onnx_path.sweep`: measures networks in every precision, batch size and runtime, in one table."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Group
from cyclopts.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from codetr.cli.argument_types import Folder, InputFile, Parameter, parsed_by
from codetr.cli.program import complain, run_program
from codetr.errors import ArgumentError, UsageError
from onnx_path.quantize import parse_size
from onnx_path.sweeping.cell_processes import CellProcesses
from onnx_path.sweeping.cells import Cell, CellSpec, Runtime, Shapes, plan
from onnx_path.sweeping.machine import describe_machine, gpu_name
from onnx_path.sweeping.networks import RANDOM, Network, find_network, hash_of
from onnx_path.sweeping.results_file import ResultsFile
from trt_plugin.atomic_files import new_folder, write_json
from trt_plugin.metadata import AnyPrecision, EightBits

_CELLS = Group("Cells", sort_key=1)
_DATA = Group("Images", sort_key=2)
_MEASURE = Group("Measurement", sort_key=3)


def _several(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        unknown = [word for word in words if word not in allowed]
        if unknown:
            raise ValueError(f"expected some of {','.join(allowed)}, got {unknown[0]!r}")
        return words

    return parse


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1:
        raise ValueError(f"expected batch sizes such as 1,32, got {text!r}")
    return numbers


@Parameter(name="*", group=_CELLS)
@dataclasses.dataclass(frozen=True, kw_only=True)
class CellOptions:
    """The rows of the table."""

    runtime: Annotated[
        tuple[str, ...], parsed_by(_several(get_args(Runtime)), "torch,torch-compile,onnxruntime,tensorrt")
    ] = ("torch", "tensorrt")
    """Runtimes."""
    precision: Annotated[
        tuple[str, ...], parsed_by(_several(get_args(AnyPrecision)), "fp32,tf32,fp16,bf16,int8,fp8")
    ] = ("fp32", "fp16")
    """Precisions."""
    batch: Annotated[tuple[int, ...], parsed_by(_numbers, "1,32,…")] = (1,)
    """Batch sizes."""
    shapes: Annotated[tuple[str, ...], parsed_by(_several(get_args(Shapes)), "static,dynamic")] = ("static",)
    """Engines and files for one batch size each, or one for all of them."""
    opt_batch: PositiveInt | None = None
    """Batch size that dynamic engines are tuned for. Default: the largest."""
    size: Annotated[tuple[int, int] | None, parsed_by(parse_size, "HxW")] = None
    """Size of the input. Default: the network's own."""


@Parameter(name="*", group=_DATA)
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The images."""

    dataset: Folder | None = None
    """Folder of class folders, or dataset in COCO format; of its part val, if it has one. Without it no
    accuracy is measured, and the inputs are random numbers. Pictures of class folders are decoded once, into
    files of DIR: 150 kB each at 224x224."""
    limit: PositiveInt | None = None
    """Evaluate this number of images: of class folders every n-th, else the first ones. Default: all."""
    calibration: Folder | None = None
    """Images that the ranges of int8 and fp8 are measured on. Default: the dataset's part train, or the whole
    dataset if it has none; random numbers without a dataset."""
    calibration_images: PositiveInt = 64
    """Number of images of --calibration."""
    compare: bool = False
    """Compare the outputs with those of PyTorch in fp32."""
    inputs: PositiveInt = 5000
    """Number of inputs to compare, of the dataset or random."""
    rtol: NonNegativeFloat = 1e-3
    """Relative tolerance of two equal numbers, see `numpy.isclose`."""
    atol: NonNegativeFloat = 1e-8
    """Absolute tolerance."""


@Parameter(name="*", group=_MEASURE)
@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """Samples and limits."""

    iterations: PositiveInt = 100
    """Samples of each latency, after a warm-up of a tenth of that."""
    seconds: PositiveFloat = 5.0
    """Limit of the time of these samples."""
    cell_seconds: PositiveInt = 3600
    """Limit of the time of a cell with its build."""
    again: Literal["none", "failed", "all"] = "none"
    """Finished cells to measure again."""
    jobs: PositiveInt = 1
    """Engines that are built at the same time. With more than one, all are built before measurements start.
    TensorRT then chooses kernels by times that other builds disturb. Start NVIDIA's MPS
    (`nvidia-cuda-mps-control -d`) first: without it, the GPU gives each build a slice of time in turn."""
    ahead: NonNegativeInt = 0
    """Cells that load their networks on the CPU while the GPU measures another one. Needs idle cores."""


def sweep(
    *networks: Annotated[str, Parameter(metavar="NETWORK")],
    out: Folder | None = None,
    network: str | None = None,
    weights: Annotated[InputFile | None, Parameter(metavar="FILE")] = None,
    random: bool = False,
    cells: CellOptions = CellOptions(),  # noqa: B008
    images: ImageOptions = ImageOptions(),  # noqa: B008
    measurement: MeasureOptions = MeasureOptions(),  # noqa: B008
    report: Folder | None = None,
) -> int:
    """Measure networks in every precision, batch size and runtime: accuracy, latency, memory, size.

    ```
    codetr sweep resnet18 mobilenet_v2 --dataset imagenet --precision fp32,fp16,int8 --batch 1,32 --out sweep
    codetr sweep finetuned.pth --network resnet18 --dataset flowers --runtime torch,onnxruntime --out sweep
    codetr sweep --report sweep
    ```

    Each cell of the table runs in a process of its own; one that fails is a row with its reason. A sweep that
    was stopped goes on where it was. Other sweeps of the same kind of machine add their cells to DIR's table.
    They may run at the same time, one for each GPU of CUDA_VISIBLE_DEVICES. DIR gets report.html, report.md,
    results.json, results.csv and pictures.

    Args:
        networks: names of torchvision, timm or ultralytics (yolov8n-cls), detectors of this package, weights
            (.pth, .pt, .tar, .safetensors), folders of training runs, ONNX files or engines.
        out: folder of the results, and of the files of all cells.
        network: name of the network of a file of weights, such as resnet18.
        weights: weights of the only network. Default: pretrained ones, which may be downloaded.
        random: random weights, for times alone.
        report: write the report of a folder of results again, and measure nothing.
    """
    from onnx_path.sweeping.report import write_report

    if report is not None:
        given = (*networks, *filter(None, (out, network, weights, random)))
        if given or (cells, images, measurement) != (CellOptions(), ImageOptions(), MeasureOptions()):
            raise ArgumentError("report", f"expected no networks and no other options with it, got {report}")
        for path in write_report(report):
            print(f"wrote {path}")
        return 0
    if not networks or out is None:
        raise UsageError("expected at least one NETWORK and --out DIR")
    if weights is not None and (random or len(networks) > 1):
        raise ArgumentError("weights", "expected one network with it, and no --random")
    if measurement.ahead and gpu_name() is None:
        raise ArgumentError("ahead", f"expected 0 where the CPU is measured, got {measurement.ahead}")
    _check_effects(cells, images, measurement)
    chosen = RANDOM if random else None if weights is None else str(weights)
    found = [find_network(text, network, chosen, cells.size) for text in networks]
    if random and all(x.weights != RANDOM for x in found):
        raise ArgumentError("random", f"expected the name of a network with it, got {', '.join(networks)}")
    names = [x.name for x in found]
    if len(set(names)) < len(names):
        raise UsageError(f"expected networks of different names, got {', '.join(names)}")
    for name in ("dataset", "calibration"):
        folder = getattr(images, name)
        if folder is not None and not folder.is_dir():
            raise ArgumentError(name, f"expected a folder, there is no {folder}")
    planned = plan(
        found, cells.runtime, cells.precision, cells.batch, cells.shapes, has_gpu=gpu_name() is not None
    )
    with new_folder(out):
        run = Sweep(out, found, planned, cells, images, measurement)
        run.measure()
        for path in write_report(out):
            print(f"wrote {path}")
    return run.status


def _check_effects(cells: CellOptions, images: ImageOptions, measurement: MeasureOptions) -> None:
    """Raises ArgumentError for an option that has no effect with the others."""
    largest, engines = max(cells.batch), "tensorrt" in cells.runtime
    in_8_bits = not set(get_args(EightBits)).isdisjoint(cells.precision)
    needs = (
        (cells, "shapes", engines, "--runtime tensorrt"),
        (cells, "opt_batch", "dynamic" in cells.shapes, "--shapes dynamic"),
        (images, "limit", images.dataset is not None, "--dataset"),
        (images, "calibration", in_8_bits, "--precision int8 or fp8"),
        (images, "inputs", images.compare, "--compare"),
        (images, "rtol", images.compare, "--compare"),
        (images, "atol", images.compare, "--compare"),
        (measurement, "jobs", engines, "--runtime tensorrt"),
    )
    for options, name, has_effect, other in needs:
        if not has_effect and getattr(options, name) != getattr(type(options), name):
            raise ArgumentError(name, f"expected {other} with it, got none")
    if cells.opt_batch is not None and cells.opt_batch > largest:
        problem = f"expected at most {largest}, the largest of --batch, got {cells.opt_batch}"
        raise ArgumentError("opt_batch", problem)


class Sweep:
    """Measures cells one after the other and keeps their results.

    Attributes:
        status: exit status of the command, 1 if a cell failed.
    """

    def __init__(
        self,
        out: Path,
        networks: Sequence[Network],
        planned: Sequence[Cell],
        cells: CellOptions,
        images: ImageOptions,
        measurement: MeasureOptions,
    ) -> None:
        self._out, self._networks, self._planned = out, {x.name: x for x in networks}, planned
        self._cells, self._images, self._measurement = cells, images, measurement
        self._machine, self._versions = describe_machine()
        folders = {images.dataset, self._calibration}
        self._fingerprints = {folder: _fingerprint(folder) for folder in folders if folder is not None}
        self._rows: dict[str, dict] = {}
        self._results = ResultsFile(out, networks, planned, self._machine, self._versions)
        self._processes = CellProcesses(out / "logs", measurement.cell_seconds)
        self._references: set[Path] = set()  # tried in this run
        self._next: dict[str, CellSpec] = {}  # cells to measure, in order
        self._missing: dict[tuple[str, str], str] = {}  # reasons by network and precision
        self.status = 0

    @property
    def _calibration(self) -> Path | None:
        return self._images.calibration or self._images.dataset

    def measure(self) -> None:
        """Measures the cells that have no valid result, and writes results.json after each of them."""
        try:
            with _progress(len(self._planned)) as (say, advance):
                if self._measurement.jobs > 1:
                    self._build_engines(say)
                specs = [self._spec(cell) for cell in self._planned if cell.reason is None]
                self._next = {spec.cell.id: spec for spec in specs if self._is_to_measure(spec)}
                for cell in self._planned:
                    row = self._row(cell, say)
                    self.status |= row["status"] == "failed"
                    advance(_line(row))
        finally:
            self._processes.stop_all()
        self._write()

    def _build_engines(self, say: Callable[[str], None]) -> None:
        """Builds the engines of the cells without a valid result, several at the same time.

        A build that fails is told by its cell, which tries again.
        """
        engines: dict[tuple, CellSpec] = {}
        for cell in self._planned:
            own = self._networks[cell.network].source != "engine"
            if cell.reason is None and cell.runtime == "tensorrt" and own:
                spec = self._spec(cell)
                batch = cell.batch if cell.shapes == "static" else "all"
                if self._kept(spec) is None:
                    engines.setdefault((cell.network, cell.precision, cell.shapes, batch), spec)
        # The first engine of a network and precision makes the ONNX file that its others read.
        leaders = list({key[:2]: key for key in reversed(engines)}.values())
        done = 0
        for keys in (leaders, [key for key in engines if key not in leaders]):
            specs = [engines[key] for key in keys if key[:2] not in self._missing]
            with ThreadPoolExecutor(self._measurement.jobs) as pool:
                results = pool.map(lambda spec: self._processes.run("build", spec), specs)
                for spec, built in zip(specs, results):
                    self._note_missing(spec.cell, built)
                    done += 1
                    say(f"built {done} of {len(engines)} engines")

    def _is_to_measure(self, spec: CellSpec) -> bool:
        return (spec.cell.network, spec.cell.precision) not in self._missing and self._kept(spec) is None

    def _note_missing(self, cell: Cell, result: Mapping[str, Any]) -> None:
        """Keeps the reason why no file of a network and precision exists; it holds for all batch sizes."""
        if result["status"] == "missing":
            self._missing[cell.network, cell.precision] = result["reason"]

    def _kept(self, spec: CellSpec) -> dict | None:
        """Returns the row of an earlier run, None if the cell is to be measured."""
        path, again = self._result_file(spec), self._measurement.again
        if again == "all" or not path.is_file():
            return None
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] != self._key(spec) or (again == "failed" and kept["row"]["status"] == "failed"):
            return None
        return kept["row"]

    def _result_file(self, spec: CellSpec) -> Path:
        return self._out / "cells" / f"{spec.cell.id}.json"

    def _key(self, spec: CellSpec) -> str:
        """Returns a hash of all that a cell's result depends on: contents, not paths as they were typed."""
        fields = spec.as_dict()
        for path in ("network", "folder", "dataset", "calibration"):
            del fields[path]
        return hash_of(fields, spec.network.key, self._machine["gpu"], self._versions)

    def _row(self, cell: Cell, say: Callable[[str], None]) -> dict:
        head = {
            "id": cell.id,
            **{x: getattr(cell, x) for x in ("network", "runtime", "precision", "batch", "shapes")},
        }
        if cell.reason is not None:
            return self._rows.setdefault(cell.id, {**head, "status": "missing", "reason": cell.reason})
        spec = self._spec(cell)
        self._next.pop(cell.id, None)
        kept = self._kept(spec)
        if kept is not None:
            self._note_missing(cell, kept)
            self._processes.stop(cell.id)
            return self._rows.setdefault(cell.id, kept)
        reason = self._missing.get((cell.network, cell.precision))
        if reason is not None:
            self._processes.stop(cell.id)
            return self._keep(spec, {**head, "status": "missing", "reason": reason})
        say(cell.id)
        for following in itertools.islice(self._next.values(), self._measurement.ahead):
            self._processes.load(following)
        if spec.compare:
            self._make_reference(spec)
        row = {**head, **self._processes.run("cell", spec)}
        self._note_missing(cell, row)
        return self._keep(spec, row)

    def _keep(self, spec: CellSpec, row: dict) -> dict:
        self._rows[spec.cell.id] = row
        write_json(self._result_file(spec), {"key": self._key(spec), "row": row})
        self._write()
        return row

    def _spec(self, cell: Cell) -> CellSpec:
        images, cells = self._images, self._cells
        largest = max(cells.batch)
        return CellSpec(
            network=self._networks[cell.network],
            cell=cell,
            folder=str(self._out / "files"),
            dataset=None if images.dataset is None else str(images.dataset),
            calibration=None if self._calibration is None else str(self._calibration),
            calibration_images=images.calibration_images,
            compare=images.inputs if images.compare else 0,
            rtol=images.rtol,
            atol=images.atol,
            iterations=self._measurement.iterations,
            seconds=self._measurement.seconds,
            largest=largest,
            best=cells.opt_batch or largest,
            limit=images.limit,
            dataset_key=self._fingerprints.get(images.dataset),
            calibration_key=self._fingerprints.get(self._calibration),
        )

    def _make_reference(self, spec: CellSpec) -> None:
        from onnx_path.sweeping.subjects import reference_file

        path = reference_file(spec)
        if path.is_file() or path in self._references or spec.network.source == "engine":
            return
        self._references.add(path)
        batch = spec.network.batch or min(32, spec.compare)
        cell = Cell(spec.network.name, "torch", "fp32", batch, "any")
        result = self._processes.run("reference", dataclasses.replace(spec, cell=cell))
        if result["status"] == "failed":
            complain("note", f"{spec.network.name} has no outputs to compare with: {result['reason']}")

    def _write(self) -> None:
        self._results.write(self._rows.values())


def _fingerprint(folder: Path) -> str:
    """Returns a hash of the names, sizes and times of a dataset's files."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return hash_of([(str(x.relative_to(folder)), x.stat().st_size, x.stat().st_mtime_ns) for x in files])


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Shows the cells done, the time left and the current cell; prints a line for each cell."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=total)

        def advance(line: str) -> None:
            print(line, flush=True)
            bar.advance(task)

        yield lambda text: bar.update(task, description=text), advance


def _line(row: dict) -> str:
    if row["status"] != "ok":
        return f"{row['id']}: {row['status']}: {row['reason']}"
    parts = [f"{min(x['median'] for x in row['model_ms'].values() if x):.3f} ms a batch"]
    parts.append(f"{row['images_per_s']:.0f} images/s")
    accuracy = row["accuracy"] or {}
    parts += [f"{name} {accuracy[name]:.4f}" for name in ("top1", "AP") if accuracy.get(name) is not None]
    return f"{row['id']}: {', '.join(parts)}"


main = partial(run_program, sweep, program="python -m onnx_path.sweep")

if __name__ == "__main__":
    sys.exit(main())
