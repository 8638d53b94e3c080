"""`python -m benchmarks.window_attention`: times and errors of window attention on the GPU."""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from cyclopts.types import PositiveInt
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import msda
from benchmarks import operator_errors, timing
from benchmarks.msda import DTYPES, add_time, summary, time_graphs
from benchmarks.option_types import OneOrMore
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import OutputFile
from codetr.cli.program import run_program
from codetr.errors import one_line

METHODS = {
    "window_attention": "msda.window_attention",
    "plain": "msda.window_attention with MSDA_WINDOW=plain",
    "rows": "msda.window_attention with MSDA_WINDOW=rows",
    "eager": "windows cut and joined, two products and a softmax in the type, eager PyTorch",
    "sdpa": "windows cut and joined, scaled_dot_product_attention with bias and mask as attn_mask",
    "sdpa_no_bias": "the same without bias and mask, by FlashAttention or cuDNN: another result",
}


class Inputs(NamedTuple):
    """The arguments of `msda.window_attention`."""

    qkv: Tensor
    bias: Tensor
    padding: Tensor
    window_size: int
    shift: int


@dataclass(frozen=True)
class WindowProblem:
    """Sizes of one call of the operator."""

    name: str
    height: int
    width: int
    num_heads: int
    window_size: int
    shift: int
    head_dim: int = 32
    batch: int = 1

    @property
    def channels(self) -> int:
        """C."""
        return self.num_heads * self.head_dim

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of qkv, bias and result, each once."""
        cells = self.batch * self.height * self.width
        return dtype.itemsize * (4 * cells * self.channels + self.num_heads * self.window_size**4)

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws normal numbers."""
        generator = torch.Generator(device).manual_seed(seed)
        cells = self.window_size**2
        shapes = (
            (self.batch, self.height, self.width, 3 * self.channels),
            (self.num_heads, cells, cells),
            (3 * self.channels,),
        )
        tensors = (torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)
        return Inputs(*tensors, self.window_size, self.shift)


def stages(name: str, height: int, width: int, num_heads: int, window_size: int) -> Iterator[WindowProblem]:
    """Yields the problems of a Swin's four stages, not shifted and shifted, for an image of some size."""
    for stage, shift in itertools.product(range(4), (0, window_size // 2)):
        stride = 4 << stage
        yield WindowProblem(
            name=f"{name}_stage{stage}" + ("_shifted" if shift else ""),
            height=math.ceil(height / stride),
            width=math.ceil(width / stride),
            num_heads=num_heads << stage,
            window_size=window_size,
            shift=shift,
        )


PROBLEMS = (*stages("swin_l_768x1152", 768, 1152, 6, 12), *stages("swin_t_800x1344", 800, 1344, 3, 7))

ProblemName = Literal[tuple(problem.name for problem in PROBLEMS)]
DtypeName = Literal[tuple(DTYPES)]
Method = Literal[tuple(METHODS)]


def measure_window_attention(
    *,
    out: OutputFile | None = None,
    problems: Annotated[tuple[ProblemName, ...], OneOrMore] = tuple(problem.name for problem in PROBLEMS),
    dtypes: Annotated[tuple[DtypeName, ...], OneOrMore] = ("fp16", "bf16"),
    methods: Annotated[tuple[Method, ...], OneOrMore] = tuple(METHODS),
    iterations: PositiveInt = 100,
) -> int:
    """Time window attention at the sizes of Swin's stages, and compare it with the reference.

    Every method gets the same qkv as a linear layer makes it, and gives a map. PyTorch's methods cut windows
    and join them. The L2 cache is cold. Problems that fit into it are timed with a warm cache too.

    Args:
        out: result file. Default: benchmarks/results/window_attention_GPU.json.
        problems: sizes of the operator.
        iterations: samples of each measurement.
    """
    result = ResultFile("benchmarks.window_attention", out)
    bandwidth = timing.copy_bandwidth()
    print(f"{result.head['gpu']['name']}: copies at {bandwidth / 1e12:.2f} TB/s", flush=True)
    for problem, dtype in itertools.product(PROBLEMS, dtypes):
        if problem.name in problems:
            for row in measure(problem, dtype, methods, bandwidth, iterations):
                result.add(row, summary({"distribution": "", **row}))
    content = result.write(
        copy_bandwidth_bytes_per_second=bandwidth,
        methods={name: METHODS[name] for name in methods},
    )
    failed = sum("failure" in row for row in result.rows)
    print(f"{len(result.rows)} measurements, {failed} failed, {content['seconds']} s: {result.path}")
    return 1 if failed else 0


def measure(
    problem: WindowProblem, dtype_name: str, methods: Sequence[str], bandwidth: float, iterations: int
) -> Iterator[dict]:
    """Yields the row of each method: times, bytes and error, or the failure."""
    dtype = DTYPES[dtype_name]
    moved = problem.bytes_moved(dtype)
    inputs = [problem.inputs(dtype, seed=seed) for seed in range(timing.copies_for_cold_cache(moved))]
    expected = truth(inputs[0])
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
            with forced(method if method in ("plain", "rows") else None):
                calls = [make_call(method, one) for one in inputs]
                if method != "sdpa_no_bias":
                    row["relative_error"] = operator_errors.relative_error(calls[0](), expected)
                    if row["relative_error"] == math.inf:
                        raise RuntimeError("the result has another shape, or other non-finite values")
                add_time(row, time_graphs(row, calls, iterations))
            del calls
        except RuntimeError as error:
            row["failure"] = one_line(error)
        torch.cuda.empty_cache()
        yield row


@contextmanager
def forced(kernel: str | None) -> Iterator[None]:
    """Forces a kernel of the operator."""
    before = os.environ.pop("MSDA_WINDOW", None) if kernel else None
    if kernel:
        os.environ["MSDA_WINDOW"] = kernel
    try:
        yield
    finally:
        if kernel:
            del os.environ["MSDA_WINDOW"]
        if before is not None:
            os.environ["MSDA_WINDOW"] = before


def truth(inputs: Inputs) -> Tensor:
    """Returns the reference's result in float64, [N, H, W, C]."""
    wide = (x.double() if isinstance(x, Tensor) else x for x in inputs)
    return msda.window_reference.window_attention(*wide)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method."""
    if method in ("window_attention", "plain", "rows"):
        return lambda: msda.window_attention(*inputs)
    # The mask belongs to a stage, so no block of a model computes it.
    qkv, bias, padding, window_size, shift = inputs
    images, height, width, _ = qkv.shape
    down, across = -(-height // window_size), -(-width // window_size)
    mask = msda.window_reference.mask(down, across, window_size, shift, qkv.dtype, qkv.device)
    mask = mask.repeat(images, 1, 1)[:, None]  # [B, 1, L, L]
    added = bias[None] + mask if shift else bias[None]  # [B or 1, heads, L, L]
    attend = {
        "eager": attend_eagerly,
        "sdpa": F.scaled_dot_product_attention,
        "sdpa_no_bias": lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v),
    }[method]
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    if method == "sdpa":
        added = added.expand(len(mask), -1, -1, -1)
        backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

    def call() -> Tensor:
        padded = height % window_size or width % window_size
        cells = msda.window_reference.pad(qkv, padding, window_size) if padded else qkv
        windows = msda.window_reference.cut(cells, window_size, shift).flatten(0, 1)  # [B, L, 3 * C]
        query, key, value = windows.unflatten(-1, (3, bias.shape[0], -1)).unbind(2)
        with sdpa_kernel(backends):
            attended = attend(*(x.transpose(1, 2) for x in (query, key, value)), added)
        parts = attended.unflatten(0, (images, -1)).transpose(1, 2).unsqueeze(0)  # [1, N, heads, B / N, L, d]
        return msda.window_reference.join(parts, qkv, window_size, shift)[:, :height, :width]

    return call


def attend_eagerly(query: Tensor, key: Tensor, value: Tensor, added: Tensor) -> Tensor:
    """Two products and a softmax."""
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1) + added
    return logits.softmax(-1) @ value


main = functools.partial(
    run_program, measure_window_attention, program="python -m benchmarks.window_attention"
)

if __name__ == "__main__":
    sys.exit(main())
