"""Tables of docs/precisions.md, of the results of `codetr sweep` in benchmarks/results/sweep."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks.report import digits, release, table
from onnx_path.sweeping.results_schema import CellResult, SweepResults, read_results

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SWEEP = "sweep/results.json"
IN_8_BITS = "sweep_8_bits_h100.json"
VERSIONS = {"PyTorch": "torch", "TensorRT": "tensorrt"}


@cache
def sweep(file: str = SWEEP) -> SweepResults:
    return read_results(RESULTS / file)


def sweep_cells(
    *series: tuple[str, str], dynamic: bool = False, file: str = SWEEP
) -> dict[tuple[str, int], list[CellResult | None]]:
    """The cells of some runtimes and precisions, by network and batch size. PyTorch has no dynamic shapes."""
    found = {
        (cell.network, cell.batch, cell.series): cell
        for cell in sweep(file).measured()
        if (cell.shapes == "dynamic") == (dynamic and cell.runtime == "tensorrt")
    }
    places = dict.fromkeys((network, batch) for network, batch, one in found if one in series)
    return {place: [found.get((*place, one)) for one in series] for place in places}


def sweep_source(file: str = SWEEP) -> str:
    results = sweep(file)
    versions = [f"{name} {release(results.versions[key])}" for name, key in VERSIONS.items()]
    made = f"Made by `codetr sweep`; in `benchmarks/results/{file.removesuffix('/results.json')}`."
    return f"\n\n{results.machine['gpu']}, {', '.join(versions)}. {made}"


def sweep_times() -> str:
    """Milliseconds of a batch: PyTorch, and engines of this batch size."""
    series = [("torch", "fp32"), ("torch", "fp16"), *(("tensorrt", x) for x in ("fp32", "fp16", "int8"))]
    rows = []
    for (network, batch), cells in sweep_cells(*series).items():
        times = [None if cell is None else cell.best_ms for cell in cells]
        faster = [f"{times[0] / x:.1f}" if times[0] and x else "" for x in times[3:]]
        rows.append([network, str(batch), *(digits(x) if x else "" for x in times), *faster])
    head = ["network", "batch", "PyTorch fp32, ms", "fp16", "TensorRT fp32", "fp16", "int8"]
    return table([*head, "fp16, times faster", "int8, times faster"], rows) + sweep_source()


def sweep_in_8_bits() -> str:
    """Engines of the networks that lost in INT8, with grouped convolutions in INT8."""
    rows = []
    for place, cells in sweep_cells(("tensorrt", "fp16"), ("tensorrt", "int8"), file=IN_8_BITS).items():
        one, other = cells
        change = ""
        if one.accuracy is not None:
            change = f"{100 * (other.accuracy.headline - one.accuracy.headline):+.2f}"
        ratio = f"{one.best_ms / other.best_ms:.2f}"
        rows.append([place[0], str(place[1]), digits(one.best_ms), digits(other.best_ms), ratio, change])
    head = ["network", "batch", "fp16, ms", "int8, ms", "times faster", "top-1, change"]
    return table(head, rows) + sweep_source(IN_8_BITS)


def sweep_dynamic() -> str:
    """Engines for all batch sizes, tuned for the largest, beside engines for one."""
    series = [("tensorrt", "fp16"), ("tensorrt", "int8")]
    static, rows = sweep_cells(*series), []
    for place, cells in sweep_cells(*series, dynamic=True).items():
        pairs = [
            (one and one.best_ms, other and other.best_ms) for one, other in zip(static.get(place, ()), cells)
        ]
        ratios = [f"{other / one:.2f}" if one and other else "" for one, other in pairs]
        rows.append([place[0], str(place[1]), *ratios])
    return table(["network", "batch", "fp16", "int8"], rows) + sweep_source()


def sweep_accuracy() -> str:
    """Top-1 or AP at the largest batch of each network, and its change from PyTorch fp32."""
    cells = [cell for cell in sweep().measured() if cell.accuracy is not None and cell.shapes != "dynamic"]
    largest: dict[str, int] = {}
    for cell in cells:
        largest[cell.network] = max(cell.batch, largest.get(cell.network, 0))
    rows = []
    for cell in cells:
        if cell.batch != largest[cell.network]:
            continue
        change, agreement = sweep().accuracy_change(cell), cell.agreement
        equal = (
            None if agreement is None else agreement.close if agreement.matched is None else agreement.matched
        )
        rows.append(
            [
                cell.network,
                cell.label,
                f"{100 * cell.accuracy.headline:.2f}",
                "" if change is None else f"{100 * change:+.2f}",
                "" if equal is None else f"{equal:.2%}",
            ]
        )
    return table(["network", "runtime", "top-1 or AP, %", "change", "equal outputs"], rows) + sweep_source()
