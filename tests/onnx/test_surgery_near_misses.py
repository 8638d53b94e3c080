"""Nodes that look like MSDA, which the graph surgery keeps with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from onnx_path.surgeon import operate
from tests.onnx import attention_layers as layers
from tests.onnx.attention_layers import LEVELS, Attention
from tests.onnx.surgery_checks import Function, export

FEATURES, PLACES = torch.randn(2, 4, 6, 8), torch.rand(2, 5, 3, 2)
WEIGHTS, CHANNEL_WEIGHTS = torch.rand(2, 1, 5, 3), torch.rand(2, 4, 5, 3)


def sampled(features, places):
    return F.grid_sample(features, 2 * places - 1, align_corners=False)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"padding_mode": "border"}, "padding is border, not zeros"),
        ({"align_corners": True}, "aligns corners"),
        ({"mode": "nearest"}, "mode nearest, not bilinear"),
        ({"mode": "bicubic"}, "mode .*cubic, not bilinear"),
    ],
)
def test_other_sampling(options: dict, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sample = F.grid_sample
    monkeypatch.setattr(
        F, "grid_sample", lambda *args, **kw: sample(*args, **{"align_corners": False} | kw | options)
    )
    model = export(Attention(layers.by_stack), layers.inputs(), tmp_path)
    result, report = operate(model)
    assert result is model
    assert len(report.near_misses) == len(LEVELS)
    for miss in report.near_misses:
        assert re.search(reason, miss.reason)


def read_elsewhere(features, places, weights):
    return (sampled(features, places) * weights).sum(-1) + sampled(features, places).amax(-1)


@pytest.mark.parametrize(
    ("function", "more", "reason"),
    [
        (lambda f, p: sampled(f, p).sigmoid(), (), "multiplied by weights and summed: they go to Sigmoid"),
        (read_elsewhere, (WEIGHTS,), "which is on the way, is also read by ReduceMax"),
        (
            lambda f, p, w: (sampled(f, p) * w).sum(-1),
            (CHANNEL_WEIGHTS,),
            "channels have weights of their own",
        ),
        (lambda f, p, w: (sampled(f, p) * w).sum((1, 3)), (WEIGHTS,), "channels are summed"),
    ],
    ids=["no-sum", "samples-read-elsewhere", "weights-of-channels", "sum-over-channels"],
)
def test_other_uses_of_samples(function: Callable, more: tuple, reason: str, tmp_path: Path):
    inputs = {f"x{i}": x for i, x in enumerate((FEATURES, PLACES, *more))}
    model = export(Function(function), inputs, tmp_path)
    _, report = operate(model)
    assert any(reason in miss.reason for miss in report.near_misses), report
