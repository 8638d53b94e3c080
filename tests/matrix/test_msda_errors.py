"""Wrong arguments: the message names the argument, what it should be and what it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import msda
from benchmarks.problems import Problem
from tests.matrix import backends
from tests.matrix.against_reference import make, normal_grad_output
from tests.matrix.backends import Backend

EQUAL = Problem("equal", 2, ((3, 4), (2, 2)), 5, num_heads=2, head_dim=4, num_points=3)
RAGGED = Problem("ragged", 2, ((3, 4), (2, 2)), 5, 2, 4, points_per_level=(1, 4))


class Row(NamedTuple):
    """One wrong argument: its name, the change that makes it wrong, and parts of the message."""

    argument: str
    change: Callable[[Any], Any]
    says: tuple[str, ...]
    error: type[Exception] = ValueError
    problem: Problem = EQUAL
    blames: str | None = None  # what the message names in place of the argument

    def __str__(self) -> str:
        return f"{self.argument}-{self.says[-1]}-{self.problem.name}".replace(" ", "_")


def to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(dtype)


LEVELS = (
    Row("value", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("value", to(torch.int32), ("float32, float16, bfloat16 or float64", "torch.int32"), TypeError),
    Row("value", lambda x: x[0], ("[N, S, M, D]", "[16, 2, 4]")),
    Row("value", lambda x: x[:, :-1], ("2 x 2", "S = 15"), blames="level_start_index"),
    Row("value", lambda x: torch.cat((x, x), 1), ("16", "32")),
    Row("spatial_shapes", lambda x: x.to("meta"), ("cpu", "meta")),
    Row("spatial_shapes", to(torch.float32), ("int32 or int64", "torch.float32"), TypeError),
    Row("spatial_shapes", torch.flatten, ("[L, 2]", "[4]")),
    Row("spatial_shapes", lambda x: x.repeat(20, 1), ("1 to 32", "40")),
    Row("spatial_shapes", lambda x: x * torch.tensor([[1, 1], [0, 1]]), ("1 or more", "(0, 2)")),
    Row("level_start_index", lambda x: x[:1], ("[L]", "[2]", "[1]")),
    Row("level_start_index", to(torch.int32), ("int64", "torch.int32"), TypeError),
    Row("level_start_index", lambda x: x + 1, ("S = 16", "starts at 13")),
    Row("level_start_index", lambda x: x - 1, ("S = 16", "starts at -1")),
    Row("points_per_level", lambda x: [1.0, 4.0], ("int", "[1.0, 4.0]"), TypeError, RAGGED),
    Row("points_per_level", lambda x: [1, 4, 2], ("2 numbers", "[1, 4, 2]"), problem=RAGGED),
    Row("points_per_level", lambda x: [6, -1], ("0 or more", "[6, -1]"), problem=RAGGED),
    Row("points_per_level", lambda x: [0, 0], ("not all 0", "[0, 0]"), problem=RAGGED),
)


def locations(argument: str) -> tuple[Row, ...]:
    """sampling_locations or sampling_offsets."""
    shape = "[2, 5, 2, 2, 3, 2]"
    return (
        Row(argument, to(torch.float16), ("float32", "torch.float16"), TypeError),
        Row(argument, lambda x: x[0], ("[N, Q, M, L, P, 2]", "[5, 2, 2, 3, 2]")),
        Row(argument, lambda x: x[..., :1], ("[N, Q, M, L, P, 2]", "[2, 5, 2, 2, 3, 1]")),
        Row(argument, lambda x: x[:, :, :1], (shape, "[2, 5, 1, 2, 3, 2]")),
        Row(argument, lambda x: x[:, :, :, :, :0], ("P of 1 or more", "[2, 5, 2, 2, 0, 2]")),
        Row(argument, lambda x: x[:, :, :, :4], ("[2, 5, 2, 5, 2]", "[2, 5, 2, 4, 2]"), problem=RAGGED),
    )


ATTENTION = (
    *LEVELS,
    *locations("sampling_locations"),
    Row("attention_weights", to(torch.bfloat16), ("float32", "torch.bfloat16"), TypeError),
    Row("attention_weights", lambda x: x.flatten(3), ("[N, Q, M, L, P]", "[2, 5, 2, 6]")),
    Row("attention_weights", lambda x: x[:, :4], ("[2, 5, 2, 2, 3]", "[2, 4, 2, 2, 3]")),
    Row("attention_weights", lambda x: x[..., :4], ("[2, 5, 2, 5]", "[2, 5, 2, 4]"), problem=RAGGED),
)

FUSED = (
    *LEVELS,
    *locations("sampling_offsets"),
    Row("reference_points", to(torch.float16), ("float32", "torch.float16"), TypeError),
    Row("reference_points", lambda x: x[:, :, 0], ("[N, Q, L, 2]", "[N, Q, L, 4]", "[2, 5, 2]")),
    Row("reference_points", lambda x: x.repeat(1, 1, 1, 2)[..., :3], ("[N, Q, L, 4]", "[2, 5, 2, 3]")),
    Row("attention_logits", to(torch.float64), ("float32", "torch.float64"), TypeError),
    Row("attention_logits", lambda x: x.unflatten(-1, (2, 3)), ("[N, Q, M, L * P]", "[2, 5, 2, 2, 3]")),
    Row("attention_logits", lambda x: x[..., :4], ("[2, 5, 2, 5]", "[2, 5, 2, 4]"), problem=RAGGED),
)


@pytest.mark.parametrize(
    ("operator", "row"),
    [
        pytest.param(operator, row, id=f"{operator}-{row}")
        for operator, rows in (("attention", ATTENTION), ("fused_attention", FUSED))
        for row in rows
    ],
)
def test_wrong_argument(operator: str, row: Row) -> None:
    build = row.problem.fused_inputs if operator == "fused_attention" else row.problem.attention_inputs
    arguments = build()._asdict()
    arguments[row.argument] = row.change(arguments[row.argument])
    for module in (msda, msda.reference):
        with pytest.raises(row.error) as caught:
            getattr(module, operator)(**arguments)
        assert str(caught.value).startswith(f"{row.blames or row.argument}: ")
        assert all(part in str(caught.value) for part in row.says), str(caught.value)


def test_types_that_do_not_go_together() -> None:
    """A 16-bit value takes its own type or float32 beside it; the message names both."""
    inputs = EQUAL.attention_inputs(torch.float16)
    message = "^attention_weights: expected torch.float16 as value, or torch.float32, got torch.bfloat16$"
    with pytest.raises(TypeError, match=message):
        msda.attention(*inputs._replace(attention_weights=inputs.attention_weights.bfloat16()))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "argument", ["spatial_shapes", "level_start_index", "sampling_locations", "attention_weights"]
)
def test_another_device(argument: str) -> None:
    """A CPU tensor beside a value on the GPU."""
    arguments = EQUAL.attention_inputs(device="cuda")._asdict()
    arguments[argument] = arguments[argument].cpu()
    with pytest.raises(ValueError, match=f"^{argument}: .*cuda:0.*cpu"):
        msda.attention(**arguments)


@backends.operators
def test_raw_operator_is_safe(operator: str) -> None:
    """The registered operator, called without the public function's checks, raises too."""
    inputs = (EQUAL.fused_inputs if operator == "fused_attention" else EQUAL.attention_inputs)()
    for wrong in (
        inputs._replace(value=inputs.value[0]),
        inputs._replace(**{inputs._fields[-3]: inputs[-3][:, :2]}),
        inputs._replace(**{inputs._fields[-2]: inputs[-2][..., :1]}),
        inputs._replace(points_per_level=[3, 3]),
        inputs._replace(spatial_shapes=inputs.spatial_shapes.float()),
    ):
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            getattr(torch.ops.msda, operator)(*wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dims": 30}, "embed_dims: expected a multiple of num_heads = 8, got 30"),
        ({"num_heads": 0}, "num_heads: expected 1 or more, got 0"),
        ({"num_levels": 0}, "num_levels: expected 1 or more, got 0"),
        ({"num_points": -1}, "num_points: expected a number of 1 or more, or one for each of .* = 4, got -1"),
        ({"num_points": [4, 4]}, r"num_points: .* one for each of num_levels = 4, got \[4, 4\]"),
    ],
)
def test_wrong_module(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        msda.MultiScaleDeformableAttention(**options)


@pytest.mark.parametrize(
    ("argument", "change", "error", "message"),
    [
        ("query", lambda x: x[..., :8], ValueError, r"\[N, Q, C\] with C = 16, got \[2, 5, 8\]"),
        ("value", lambda x: x[..., :8], ValueError, r"\[N, S, C\] with C = 16, got \[2, 16, 8\]"),
        ("reference_points", to(torch.float16), TypeError, "float32.*got torch.float16"),
        ("key_padding_mask", lambda x: x[:, :3], ValueError, r"\[N, S\] = \[2, 16\].*got \[2, 3\]"),
        ("key_padding_mask", to(torch.float32), ValueError, "torch.bool, got.*torch.float32"),
    ],
)
def test_wrong_module_input(argument: str, change: Callable, error: type[Exception], message: str) -> None:
    inputs = EQUAL.fused_inputs()
    arguments = {
        "query": torch.randn(2, 5, 16),
        "value": torch.randn(2, 16, 16),
        "reference_points": inputs.reference_points,
        "spatial_shapes": inputs.spatial_shapes,
        "level_start_index": inputs.level_start_index,
        "key_padding_mask": torch.zeros(2, 16, dtype=torch.bool),
    }
    module = msda.MultiScaleDeformableAttention(embed_dims=16, num_heads=2, num_levels=2, num_points=3)
    assert module(**arguments).shape == (2, 5, 16)
    arguments[argument] = change(arguments[argument])
    with pytest.raises(error, match=f"^{argument}: expected .*{message}"):
        module(**arguments)


NAMES = {"MSDA_FORWARD": "general, many, medium, few", "MSDA_BACKWARD": "general, group, tile"}


@pytest.mark.parametrize("variable", NAMES)
@backends.matrix(lambda backend: backend.name in ("emulator", "torch-cuda"))
def test_unknown_kernel(
    backend: Backend, operator: str, dtype: torch.dtype, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt kernel is an error that lists the names; an empty name leaves the choice to the library."""
    backend.skip_unless_ready(dtype)
    inputs = make(EQUAL, operator, dtype, backend.device)
    grad_output = normal_grad_output(inputs, 0)
    expected = f"{variable}: expected one of {NAMES[variable]}, or no value, got 'genral'"
    for name in ("genral", ""):
        monkeypatch.setenv(variable, name)
        error = pytest.raises(RuntimeError, match=expected)
        with error if name else contextlib.nullcontext():
            if variable == "MSDA_FORWARD":
                backend.compute(inputs)
            else:
                backend.differentiate(inputs, grad_output)
