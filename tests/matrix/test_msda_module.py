"""The module MultiScaleDeformableAttention: parameters, results, masks, autocast, compilation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import msda
from benchmarks import operator_errors
from benchmarks.problems import Problem

PROBLEM = Problem("module", 2, ((6, 8), (3, 4)), 10, num_heads=4, head_dim=8, num_points=3)


def module_and_inputs(
    dtype: torch.dtype, reference_dim: int = 2, device: str = "cpu"
) -> tuple[msda.MultiScaleDeformableAttention, tuple[torch.Tensor, ...]]:
    """A module with weights that are not its initial ones, and its first five arguments."""
    generator = torch.Generator().manual_seed(reference_dim)
    module = msda.MultiScaleDeformableAttention(embed_dims=32, num_heads=4, num_levels=2, num_points=3)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    shapes, starts = PROBLEM.index_tensors("cpu")
    query = torch.randn((2, 10, 32), generator=generator)
    value = torch.randn((2, PROBLEM.num_cells, 32), generator=generator)
    reference_points = torch.rand((2, 10, 2, reference_dim), generator=generator)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    arguments = (query.to(dtype), value.to(dtype), reference_points.to(wide), shapes, starts)
    return module.to(device, dtype), tuple(x.to(device) for x in arguments)


def plain_module(
    module: msda.MultiScaleDeformableAttention,
    query: torch.Tensor,
    value: torch.Tensor,
    reference_points: torch.Tensor,
    shapes: torch.Tensor,
    starts: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Computes the module's result from its parameters by the reference, in float64."""
    weights = {name: parameter.double() for name, parameter in module.state_dict().items()}

    def linear(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    heads, levels, points = module.num_heads, module.num_levels, module.num_points
    projected = linear("value_proj", value)
    if mask is not None:
        projected = projected * ~mask[..., None]
    offsets = linear("sampling_offsets", query).unflatten(-1, (heads, levels, points, 2))
    logits = linear("attention_weights", query).unflatten(-1, (heads, levels * points))
    attended = msda.reference.fused_attention(
        projected.unflatten(-1, (heads, -1)), shapes, starts, reference_points.double(), offsets, logits
    )
    return linear("output_proj", attended)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reference_dim", [2, 4])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_module(dtype: torch.dtype, reference_dim: int, masked: bool, device: str) -> None:
    module, arguments = module_and_inputs(dtype, reference_dim, device)
    mask = None
    if masked:
        mask = torch.zeros(arguments[1].shape[:2], dtype=torch.bool, device=device)
        mask[0, 20:40] = True
        mask[1, 50:] = True
    # oneDNN's bfloat16 linear layer dies on virtual machines that report AMX and do not let it be used.
    with torch.backends.mkldnn.flags(enabled=False):
        output = module(*arguments, mask)
    expected = plain_module(module, *arguments, mask)
    assert output.dtype == dtype
    # Its four linear layers round too, and offsets in 16 bits move the samples.
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    assert operator_errors.relative_error(output, expected) <= tolerance


def test_module_under_autocast(device: str) -> None:
    """The module's layers run in 16 bits, reference points stay fp32."""
    module, arguments = module_and_inputs(torch.float32, device=device)
    # As in test_module.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast(device, torch.bfloat16):
        output = module(*arguments)
    assert output.dtype == torch.bfloat16
    assert operator_errors.relative_error(output, plain_module(module, *arguments, None)) <= 4e-2


def test_module_initial_offsets() -> None:
    """Head m looks in direction 2 pi m / M, point p is p + 1 cells away (the larger coordinate is)."""
    module = msda.MultiScaleDeformableAttention(embed_dims=32, num_heads=8, num_levels=2, num_points=3)
    offsets = module.sampling_offsets.bias.detach().view(8, 2, 3, 2)
    torch.testing.assert_close(offsets[0, 0], torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
    torch.testing.assert_close(offsets[3, 1], torch.tensor([[-1.0, 1.0], [-2.0, 2.0], [-3.0, 3.0]]))
    assert not module.sampling_offsets.weight.any()


def test_module_with_points_of_each_level() -> None:
    """Levels with different numbers of points; with equal ones, the result is that of the plain number."""
    plain, arguments = module_and_inputs(torch.float32)
    listed = msda.MultiScaleDeformableAttention(32, 4, 2, num_points=[3, 3])
    torch.testing.assert_close(listed.sampling_offsets.bias, type(plain)(32, 4, 2, 3).sampling_offsets.bias)
    listed.load_state_dict(plain.state_dict())
    torch.testing.assert_close(listed(*arguments), plain(*arguments))
    ragged = msda.MultiScaleDeformableAttention(32, 4, 2, num_points=[1, 4])
    offsets = ragged.sampling_offsets.bias.detach().view(4, 5, 2)
    torch.testing.assert_close(offsets[0, :, 0], torch.tensor([1.0, 1.0, 2.0, 3.0, 4.0]))
    expected = msda.reference.fused_attention(
        ragged.value_proj(arguments[1]).unflatten(-1, (4, -1)),
        *arguments[3:],
        arguments[2],
        ragged.sampling_offsets(arguments[0]).unflatten(-1, (4, 5, 2)),
        ragged.attention_weights(arguments[0]).unflatten(-1, (4, 5)),
        [1, 4],
    )
    torch.testing.assert_close(ragged(*arguments), ragged.output_proj(expected))


def test_module_padding_is_not_read() -> None:
    """Numbers under the padding mask change nothing, be they NaN."""
    module, (query, value, *rest) = module_and_inputs(torch.float32)
    mask = torch.zeros(value.shape[:2], dtype=torch.bool)
    mask[:, 30:45] = True
    clean = module(query, value, *rest, mask)
    spoiled = value.masked_fill(mask[..., None], float("nan"))
    assert torch.equal(module(query, spoiled, *rest, mask), clean)


def test_module_with_residual_and_norm() -> None:
    """An export has one operator for the last layer and what follows it, and computes the same."""
    module, arguments = module_and_inputs(torch.float32)
    norm = nn.LayerNorm(32, eps=1e-3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    options = {"residual": torch.randn_like(arguments[0]), "norm": norm}
    expected = norm(options["residual"] + module(*arguments))
    torch.testing.assert_close(module(*arguments, **options), expected)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.norm = module, norm

        def forward(self, residual: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
            return self.attention(*arguments, residual=residual, norm=self.norm)

    given = options["residual"], *arguments
    program = torch.export.export(Attention(), given, strict=True)
    *_, last, _ = program.graph.nodes
    assert last.target is torch.ops.msda.linear.default
    torch.testing.assert_close(program.module()(*given), expected)


@pytest.mark.parametrize("norm", [nn.LayerNorm(31), nn.LayerNorm(32, bias=False)], ids=str)
def test_module_with_a_wrong_norm(norm: nn.LayerNorm) -> None:
    module, arguments = module_and_inputs(torch.float32)
    with pytest.raises(ValueError, match="norm: expected a norm of 32 channels with a bias, got LayerNorm"):
        module(*arguments, norm=norm)


def test_module_on_meta() -> None:
    """A module without memory, as large models are made, takes its state dict afterwards."""
    with torch.device("meta"):
        module = msda.MultiScaleDeformableAttention(32, 4, 2, 3)
    expected = msda.MultiScaleDeformableAttention(32, 4, 2, 3).state_dict()
    module.load_state_dict(expected, assign=True)
    assert torch.equal(module.value_proj.weight, expected["value_proj.weight"])


def test_module_compiles(device: str) -> None:
    """The module in one graph, with Inductor on the GPU."""
    module, arguments = module_and_inputs(torch.float32, device=device)
    compiled = torch.compile(module, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    torch.testing.assert_close(compiled(*arguments), module(*arguments), rtol=1e-4, atol=1e-5)
