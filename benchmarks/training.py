"""Times a training step on the GPU, with the attention kernels and with grid_sample in their place:

    python -m benchmarks.training
    python -m benchmarks.training --problem co_dino_r50:768x1152:2 --precision fp32

A step is what `codetr train` does with a batch: forward, matching, losses, backward, clipping, AdamW, moving
average. Weights begin anew, batch norms learn, pixels are noise, and every picture has ten objects. Reading
pictures is not part of it: that is other processes' work.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unittest import mock

import torch

import msda.module
import msda.reference
from benchmarks import environment, timing
from benchmarks.arguments import add_out, result_file, run_benchmark
from codetr.cli.command import (
    ArgumentParser,
    model_config,
    positive,
)

PROBLEMS = ("co_dino_r50:768x1152:2", "co_dino_demo:480x640:16")
ATTENTIONS = ("kernels", "grid_sample")
OBJECTS = 10
PAIRS = 100
WARMUP = 5


class Problem(NamedTuple):
    """What is trained, as MODEL:HEIGHTxWIDTH:BATCH says it."""

    model: str
    height: int
    width: int
    batch: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_benchmark(_main, arguments, "benchmarks.training")


def _main(arguments: list[str]) -> int:
    options = parse(arguments)
    timing.require_gpu()
    gpu = environment.slug(torch.cuda.get_device_name())
    out = result_file(options.out, "training", gpu)
    environment.write_json(out, run(options, arguments))
    print(out)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UsageError: a wrong argument.
    """
    parser = ArgumentParser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--problem",
        action="append",
        type=_problem,
        metavar="MODEL:HEIGHTxWIDTH:BATCH",
        help=f"may be given several times; default: {' and '.join(PROBLEMS)}",
    )
    parser.add_argument("--attention", nargs="*", choices=ATTENTIONS, default=list(ATTENTIONS))
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--steps", type=positive, default=50, help="samples of each measurement")
    add_out(parser)
    options = parser.parse_args(arguments)
    options.problem = options.problem or [_problem(text) for text in PROBLEMS]
    for problem in options.problem:
        model_config(problem.model)
    return options


def _problem(text: str) -> Problem:
    match = re.fullmatch(r"(.+):([1-9]\d*)x([1-9]\d*):([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected MODEL:HEIGHTxWIDTH:BATCH, got {text!r}")
    return Problem(match[1], *map(int, match.groups()[1:]))


def run(options: argparse.Namespace, arguments: list[str]) -> dict:
    """Measures everything; returns the result file's content."""
    started = time.monotonic()
    results = []
    for problem in options.problem:
        for name in options.attention:
            with attention(name):
                row = measure(problem, options.precision == "bf16", options.steps)
            results.append({**problem._asdict(), "attention": name, "precision": options.precision, **row})
            report(results[-1])
    return {
        **environment.describe("benchmarks.training", arguments),
        "kind": "training",
        "objects_per_image": OBJECTS,
        "denoising_pairs": PAIRS,
        "seconds": round(time.monotonic() - started, 1),
        "results": results,
    }


@contextlib.contextmanager
def attention(name: str) -> Iterator[None]:
    """Runs the attention modules with the kernels, or with the reference in PyTorch."""
    if name == "kernels":
        yield
    else:
        with mock.patch.object(msda.module, "fused_attention", msda.reference.fused_attention):
            yield


def measure(problem: Problem, bf16: bool, steps: int, device: str = "cuda") -> dict:
    """Times steps of one problem. A GPU without enough memory for it is told in place of the numbers."""
    gc.collect()  # of the problem before, whose memory would count
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        step, batch = prepare(problem, bf16, device)
        # The events lie in the GPU's queue: a sample holds the time that it waits for the host as well.
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        for index in range(WARMUP):
            step(batch, index, 1.0)
        events[0].record()
        for index, event in enumerate(events[1:]):
            step(batch, WARMUP + index, 1.0)
            event.record()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return {"out_of_memory": True}
    samples = [before.elapsed_time(after) for before, after in itertools.pairwise(events)]
    timed = timing.Timing(samples, 1, WARMUP, "warm", "CUDA events between successive steps, run eagerly")
    return {
        "images_per_second": 1e3 * problem.batch / timed.median_ms,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(),
        "timing": timed.as_dict(),
    }


def prepare(problem: Problem, bf16: bool, device: str = "cuda") -> tuple:
    """A `codetr.training.training_step.TrainingStep` of a problem, and a batch in the host's memory."""
    from codetr.model import CoDino
    from codetr.model.layers import thaw_batch_norms
    from codetr.training.criterion import Criterion
    from codetr.training.denoising import Denoising
    from codetr.training.initialise import initialise
    from codetr.training.moving_average import MovingAverage
    from codetr.training.training_batches import HostBatch
    from codetr.training.training_network import TrainingNetwork, parameter_groups, use_channels_last
    from codetr.training.training_step import TrainingStep

    torch.manual_seed(0)
    config = model_config(problem.model)
    model = initialise(CoDino(config))
    thaw_batch_norms(model)
    network = TrainingNetwork(model, Denoising(config, PAIRS)).to(device).train()
    use_channels_last(model)
    groups = parameter_groups(network, learning_rate=1e-4, backbone_factor=1.0, weight_decay=1e-4)
    average = MovingAverage(network, 0.9998)
    step = TrainingStep(network, Criterion(config.num_classes), groups, average, bf16=bf16, clip=0.1)
    draws = torch.Generator().manual_seed(0)
    size = (problem.batch, problem.height, problem.width, 3)
    objects = problem.batch * OBJECTS
    boxes = torch.rand((objects, 4), generator=draws) * 0.3 + torch.tensor([0.35, 0.35, 0.05, 0.05])
    batch = HostBatch(
        torch.randint(256, size, dtype=torch.uint8, generator=draws),
        torch.tensor([size[1:3]] * problem.batch),
        boxes,
        torch.randint(config.num_classes, (objects,), generator=draws),
        [OBJECTS] * problem.batch,
    )
    if device == "cuda":
        batch = batch.map(torch.Tensor.pin_memory)
    return step, batch


def report(row: dict) -> None:
    """Prints one line for a result."""
    what = f"{row['model']} {row['height']}x{row['width']} batch {row['batch']} {row['attention']:11}"
    if "timing" not in row:
        print(f"{what} out of memory", flush=True)
        return
    spread = row["timing"]
    print(
        f"{what} {spread['median_ms']:8.1f} ms ({spread['p05_ms']:.1f} to {spread['p95_ms']:.1f}), "
        f"{row['images_per_second']:7.1f} images/s, {row['peak_memory_bytes'] / 2**30:.1f} GiB",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
