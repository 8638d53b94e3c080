"""What the benchmarks of operators on maps share: the loop over problems, types and methods."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import operator_errors, timing
from benchmarks.msda import DTYPES, add_time, summary, time_graphs
from benchmarks.result_files import ResultFile
from codetr.errors import one_line


@dataclass(frozen=True)
class MapOperator:
    """An operator and the methods that compute it.

    Attributes:
        module: the benchmark's module, such as "benchmarks.window_attention".
        methods: what each method computes, by name.
        make_call: returns a call of a method with the inputs of a problem.
        truth: returns the reference's result in float64.
        variable: the environment variable that forces a kernel.
        kernels: the methods that are the operator with this kernel.
        other_results: methods with another result than the operator's.
    """

    module: str
    methods: Mapping[str, str]
    make_call: Callable[[str, Any], Callable[[], Tensor]]
    truth: Callable[[Any], Tensor]
    variable: str
    kernels: Sequence[str]
    other_results: Sequence[str] = ()

    def measure(
        self,
        out: str | os.PathLike | None,
        problems: Iterable[Any],
        dtypes: Sequence[str],
        methods: Sequence[str],
        iterations: int,
    ) -> int:
        """Measures every combination, writes the result file, and returns the exit status."""
        result = ResultFile(self.module, out)
        bandwidth = timing.copy_bandwidth()
        print(f"{result.head['gpu']['name']}: copies at {bandwidth / 1e12:.2f} TB/s", flush=True)
        for problem, dtype in itertools.product(problems, dtypes):
            for row in self._rows(problem, dtype, methods, bandwidth, iterations):
                result.add(row, summary({"distribution": "", **row}))
        content = result.write(
            copy_bandwidth_bytes_per_second=bandwidth,
            methods={name: self.methods[name] for name in methods},
        )
        failed = sum("failure" in row for row in result.rows)
        print(f"{len(result.rows)} measurements, {failed} failed, {content['seconds']} s: {result.path}")
        return 1 if failed else 0

    def _rows(
        self, problem: Any, dtype_name: str, methods: Sequence[str], bandwidth: float, iterations: int
    ) -> Iterator[dict]:
        """Yields the row of each method: times, bytes and error, or the failure."""
        dtype = DTYPES[dtype_name]
        moved = problem.bytes_moved(dtype)
        inputs = [problem.inputs(dtype, seed=seed) for seed in range(timing.copies_for_cold_cache(moved))]
        expected = self.truth(inputs[0])
        for method in methods:
            row = {
                "problem": asdict(problem),
                "dtype": dtype_name,
                "method": method,
                "bytes_moved": moved,
                "floor_us": moved / bandwidth * 1e6,
                "relative_error": None,
            }
            try:
                with forced(self.variable, method if method in self.kernels else None):
                    calls = [self.make_call(method, one) for one in inputs]
                    if method not in self.other_results:
                        row["relative_error"] = operator_errors.relative_error(calls[0](), expected)
                        if row["relative_error"] == math.inf:
                            raise RuntimeError("the result has another shape, or other non-finite values")
                    add_time(row, time_graphs(row, calls, iterations))
                del calls
            except RuntimeError as error:
                row["failure"] = one_line(error)
            torch.cuda.empty_cache()
            yield row


def truth_by(reference: Callable[..., Tensor]) -> Callable[[Any], Tensor]:
    """Returns the function from inputs to the reference's result in float64."""
    return lambda inputs: reference(*(x.double() if isinstance(x, Tensor) else x for x in inputs))


@contextmanager
def forced(variable: str, kernel: str | None) -> Iterator[None]:
    """Forces a kernel by an environment variable; None changes nothing."""
    before = os.environ.pop(variable, None) if kernel else None
    if kernel:
        os.environ[variable] = kernel
    try:
        yield
    finally:
        if kernel:
            del os.environ[variable]
        if before is not None:
            os.environ[variable] = before
