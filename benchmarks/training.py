"""`python -m benchmarks.training`: times of a training step on the GPU, with both forms of the attention."""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import sys
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple
from unittest import mock

import torch
from cyclopts.types import PositiveInt

import msda.module
import msda.reference
from benchmarks import timing
from benchmarks.option_types import OneOrMore
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import OutputFile, parsed_by
from codetr.cli.program import run_program
from codetr.weights import model_config

ATTENTIONS = ("kernels", "grid_sample")
OBJECTS = 10
PAIRS = 100
WARMUP = 5


class TrainingProblem(NamedTuple):
    """A model, and the size of a batch."""

    model: str
    height: int
    width: int
    batch: int

    @classmethod
    def parse(cls, text: str) -> TrainingProblem:
        """Parses MODEL:HEIGHTxWIDTH:BATCH."""
        match = re.fullmatch(r"(.+):([1-9]\d*)x([1-9]\d*):([1-9]\d*)", text)
        if not match:
            raise ValueError(f"expected MODEL:HEIGHTxWIDTH:BATCH, got {text!r}")
        return cls(match[1], *map(int, match.groups()[1:]))


PROBLEMS = (TrainingProblem("co_dino_r50", 768, 1152, 2), TrainingProblem("co_dino_demo", 480, 640, 16))


def measure_training(
    *,
    problem: Annotated[
        tuple[Any, ...], parsed_by(TrainingProblem.parse, "MODEL:HEIGHTxWIDTH:BATCH", several=True)
    ] = PROBLEMS,
    attention: Annotated[tuple[Literal[ATTENTIONS], ...], OneOrMore] = ATTENTIONS,
    precision: Literal["bf16", "fp32"] = "bf16",
    steps: PositiveInt = 50,
    out: OutputFile | None = None,
) -> int:
    """Time a training step on the GPU, with the attention kernels and with grid_sample.

    A step is that of `codetr train`: forward, matching, losses, backward, clipping, AdamW, moving average.
    The weights are initialised, batch norms learn, pixels are noise, and every picture has ten objects. The
    step does not read pictures, which other processes do.

    ```
    python -m benchmarks.training --problem co_dino_r50:768x1152:2 --precision fp32
    ```

    Args:
        problem: model, size and batch. May be repeated.
        attention: forms of the attention.
        precision: see `codetr train`.
        steps: samples of each measurement.
        out: result file. Default: a file in benchmarks/results.
    """
    for item in problem:
        model_config(item.model)
    result = ResultFile("benchmarks.training", out)
    for item, name in itertools.product(problem, attention):
        with use_attention(name):
            measured = measure(item, precision == "bf16", steps)
        row = {**item._asdict(), "attention": name, "precision": precision, **measured}
        result.add(row, line(row))
    result.write(objects_per_image=OBJECTS, denoising_pairs=PAIRS)
    print(result.path)
    return 0


def use_attention(name: str) -> contextlib.AbstractContextManager:
    """Runs the attention modules with the kernels, or with the reference in PyTorch, inside its block."""
    room = msda.module if name == "kernels" else msda.reference
    return mock.patch.object(msda.module, "fused_attention", room.fused_attention)


def measure(problem: TrainingProblem, bf16: bool, steps: int) -> dict:
    """Times steps of one problem. Without enough memory the result is {"out_of_memory": True}."""
    gc.collect()  # the memory of the problem before would count
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        step, batch = prepare(problem, bf16)
        # The events are in the GPU's queue, so that a sample includes the time that it waits for the host.
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
    method = "CUDA events between successive steps, run eagerly"
    timed = timing.Timing(samples, warmup=WARMUP, method=method)
    return {
        "images_per_second": 1e3 * problem.batch / timed.median_ms,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(),
        "timing": timed.as_dict(),
    }


def prepare(problem: TrainingProblem, bf16: bool, device: str = "cuda") -> tuple:
    """Makes a `codetr.training.training_step.TrainingStep`, and a batch in the host's memory."""
    from codetr.model import CoDino
    from codetr.model.layers import thaw_batch_norms
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
    step = TrainingStep(network, groups, average, bf16=bf16, clip=0.1)
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


def line(row: dict) -> str:
    """Describes a row on one line."""
    what = f"{row['model']} {row['height']}x{row['width']} batch {row['batch']} {row['attention']:11}"
    if "timing" not in row:
        return f"{what} out of memory"
    memory = f"{row['peak_memory_bytes'] / 2**30:.1f} GiB"
    return f"{what} {timing.spread(row['timing'])}, {row['images_per_second']:.1f} images/s, {memory}"


main = partial(run_program, measure_training, program="python -m benchmarks.training")

if __name__ == "__main__":
    sys.exit(main())
