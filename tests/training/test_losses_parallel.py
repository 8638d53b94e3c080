"""Losses on a GPU, which must not wait for the host, and in processes that share a batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from codetr.model import TrainingOutputs
from codetr.training.criterion import Criterion, total
from codetr.training.denoising import DenoisingLayout
from codetr.training.targets import Targets
from tests.training.loss_batches import make_denoising, random_outputs, random_targets, to

ROOT = Path(__file__).parents[2]


def operations(step) -> list[str]:
    """Returns the names of all operations of a step, those of backward and nested ones included."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        step()
    return [event.name for event in profile.events() if event.name.startswith("aten::")]


WAITING = {f"aten::{name}" for name in ("item", "_local_scalar_dense", "nonzero", "is_nonzero", "equal")}
"""Operations whose result the host needs. On a GPU they wait for all work before them."""


class TestWaiting:
    """The host waits for the GPU once in a step."""

    def test_one_copy_to_the_host(self, monkeypatch):
        targets = random_targets([3, 0, 5, 1])
        denoising = make_denoising()
        copies = []
        for name in ("cpu", "numpy", "tolist", "item"):
            original = getattr(torch.Tensor, name)

            def counted(tensor, *args, name=name, original=original, **kwargs):
                copies.append(name)
                return original(tensor, *args, **kwargs)

            monkeypatch.setattr(torch.Tensor, name, counted)

        def step():
            _, layout = denoising(targets)
            total(Criterion(5)(outputs, targets, layout)).backward()

        outputs = random_outputs(4, 200, layers=6)
        names = operations(step)
        assert copies == ["cpu", "numpy"]
        assert WAITING.isdisjoint(names)

    @pytest.mark.gpu
    def test_on_the_gpu(self):
        targets = random_targets([3, 0, 5, 1]).to("cuda")
        denoising, criterion = make_denoising().cuda(), Criterion(5)

        def step() -> list[str]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                _, layout = denoising(targets)
                total(criterion(outputs, targets, layout)).backward()
            return [str(warning.message) for warning in caught if "synchroniz" in str(warning.message)]

        outputs = to(random_outputs(4, 200, layers=6), "cuda")
        step()  # memory is pinned and kernels are loaded
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            waits = step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len(waits) == 1, waits


OTHER_RANK = """
import json, sys
from tests.training.test_losses_parallel import rank_losses
print(json.dumps(rank_losses(1, sys.argv[1])))
"""


def rank_losses(rank: int, store: str) -> dict[str, float]:
    """Returns the losses of one of two processes that share a batch."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    try:
        return {name: loss.item() for name, loss in Criterion(5)(*distributed_problem(rank)).items()}
    finally:
        torch.distributed.destroy_process_group()


def distributed_problem(rank: int | None) -> tuple[TrainingOutputs, Targets, DenoisingLayout]:
    """Returns a batch of three images, or a rank's share of it: two images or one."""
    boxes, labels, shapes = random_targets([3, 1, 3])
    outputs = random_outputs(3, 18)
    part = {None: slice(0, 3), 0: slice(0, 2), 1: slice(2, 3)}[rank]
    targets = Targets(boxes[part], labels[part], shapes[part])
    _, layout = make_denoising(num_pairs=9)(targets)
    shares = (
        outputs.encoder_logits[part],
        outputs.encoder_boxes[part],
        outputs.class_logits[:, part],
        outputs.boxes_cxcywh[:, part],
    )
    return TrainingOutputs(*shares), targets, layout


def test_ranks_share_a_batch(tmp_path):
    """The mean over ranks, as DDP computes it of gradients, is the loss of the batch."""
    store = str(tmp_path / "store")
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_RANK, store],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        first = rank_losses(0, store)
        output, _ = other.communicate(timeout=60)
    finally:
        other.kill()
    assert other.returncode == 0
    second = json.loads(output.splitlines()[-1])
    for name, loss in Criterion(5)(*distributed_problem(None)).items():
        assert (first[name] + second[name]) / 2 == pytest.approx(loss.item(), rel=1e-5), name
        assert first[name] != second[name]
