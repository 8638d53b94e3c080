"""One flat row for each cell of a sweep. Its keys are the columns of results.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from onnx_path.sweeping.results_schema import CellResult, SweepResults, TimeStatistics

Row = Mapping[str, object]

_CELL = ("id", "network", "runtime", "precision", "batch", "shapes", "status", "reason")
_SIZES = (
    *("images_per_s", "images_per_s_total", "file", "file_bytes", "weights_bytes", "context_bytes"),
    *("peak_gpu_bytes", "layers", "parameters", "build_s", "seconds"),
)
_ACCURACY = ("images", "bad_images", "top1", "top5", "AP", "AP50", "AP75", "APs", "APm", "APl")
_AGREEMENT = ("inputs", "data", "rtol", "atol", "close", "matched")
_TIMES = ("mean", "median", "p95", "p99", "max", "samples", "warmup")


def flat_row(results: SweepResults, cell: CellResult) -> Row:
    """Returns the row of a cell. Values that the cell lacks are None.

    `speed` is how many times as fast the model alone is as PyTorch fp32 without a CUDA graph at the same
    batch size. `accuracy_change` is a difference of shares. `clocks` says why times are in doubt.
    """
    reference, times = results.reference(cell), cell.model_ms
    reference_time = reference.model_ms.eager if reference and reference.model_ms else None
    doubtful_speed = reference is not None and reference.throttled and cell.best_ms is not None
    row: dict[str, object] = {
        **{key: getattr(cell, key) for key in _CELL},
        "clocks": clocks(results, cell) or ("PyTorch fp32 throttled" if doubtful_speed else None),
        "throttled": cell.gpu and cell.gpu.throttled,
        **_times("model_ms", times and times.eager),
        **_times("model_graph_ms", times and times.graph),
        **_times("total_ms", cell.total_ms),
        **{key: getattr(cell, key) for key in _SIZES},
        "speed": reference_time.median / cell.best_ms if reference_time and cell.best_ms else None,
        **{key: getattr(cell.accuracy, key, None) for key in _ACCURACY},
        "accuracy_change": results.accuracy_change(cell),
        **{f"agreement_{key}": getattr(cell.agreement, key, None) for key in _AGREEMENT},
    }
    for difference in cell.agreement.by_rank if cell.agreement else ():
        values = difference.model_dump(exclude={"rank"}, exclude_none=True)
        row |= {f"rank{difference.rank}_{name}": value for name, value in values.items()}
    return row


def clocks(results: SweepResults, cell: CellResult) -> str | None:
    """Returns why the times of a cell are in doubt; None if the clocks were watched and kept, or on a CPU."""
    if cell.throttled:
        reasons = ", ".join(cell.gpu.reasons) if cell.gpu else ""
        return f"throttled: {reasons}" if reasons else "throttled"
    unwatched = cell.status == "ok" and cell.gpu is None and results.machine.get("gpu")
    return "not watched" if unwatched else None


def csv_text(rows: list[Row]) -> str:
    """Returns the rows as CSV. Columns that only some rows have, such as those of ranks, come last."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _times(name: str, times: TimeStatistics | None) -> dict[str, object]:
    low, high = times.ci95 if times else (None, None)
    values = {f"{name}_{key}": getattr(times, key, None) for key in _TIMES}
    return {**values, f"{name}_ci95_low": low, f"{name}_ci95_high": high}
