"""What the benchmarks of operators on maps share: the command line, and the loop that measures."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import torch
from cyclopts.types import PositiveInt
from torch import Tensor

from benchmarks import operator_errors, timing
from benchmarks.msda import DTYPES, add_time, finish, summary, time_graphs
from benchmarks.option_types import OneOrMore
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import OutputFile, Parameter
from codetr.cli.program import run_program
from codetr.errors import one_line


@dataclass(frozen=True)
class MapOperator:
    """An operator and the methods that compute it.

    Attributes:
        module: the benchmark's module, such as "benchmarks.window_attention".
        methods: what each method computes, by name.
        problems: sizes of the operator.
        make_call: returns a call of a method with the inputs of a problem.
        truth: returns the reference's result in float64.
        variable: the environment variable that forces a kernel.
        kernels: the methods that are the operator with this kernel.
        other_results: methods with another result than the operator's.
    """

    module: str
    methods: Mapping[str, str]
    problems: Sequence[Any]
    make_call: Callable[[str, Any], Callable[[], Tensor]]
    truth: Callable[[Any], Tensor]
    variable: str = ""
    kernels: Sequence[str] = ()
    other_results: Sequence[str] = ()

    def program(
        self,
        text: str,
        dtypes: Sequence[str] = ("fp16", "bf16"),
        choices: Sequence[str] = tuple(DTYPES),
        about_dtypes: str = "",
    ) -> Callable[..., int]:
        """Returns the main function of the benchmark.

        Args:
            text: the help before the options.
            dtypes: the types that are measured by default.
            choices: the types that the operator takes. A single type needs no option.
            about_dtypes: help of the option.
        """
        names = tuple(problem.name for problem in self.problems)

        def command(
            *, out=None, problems=names, dtypes=tuple(dtypes), methods=tuple(self.methods), iterations=100
        ):
            chosen = [problem for problem in self.problems if problem.name in problems]
            return self.measure(out, chosen, dtypes, methods, iterations)

        command.__annotations__ = {
            "out": OutputFile | None,
            "problems": _several(names),
            "dtypes": _several(choices) if len(choices) > 1 else Annotated[tuple, Parameter(parse=False)],
            "methods": _several(self.methods),
            "iterations": PositiveInt,
        }
        options = [
            f"out: result file. Default: {self.module.replace('.', '/results/')}_GPU.json.",
            "problems: sizes of the operator.",
            *([f"dtypes: {about_dtypes}"] if about_dtypes else []),
            "iterations: samples of each measurement.",
        ]
        command.__doc__ = "\n    ".join([f"{inspect.cleandoc(text)}\n\nArgs:", *options])
        return functools.partial(run_program, command, program=f"python -m {self.module}")

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
        return finish(result, bandwidth, {name: self.methods[name] for name in methods})

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


def _several(choices: Iterable[str]) -> Any:
    """The type of an option with one or several of these names."""
    return Annotated[tuple[Literal[tuple(choices)], ...], OneOrMore]


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
