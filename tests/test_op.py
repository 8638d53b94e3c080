"""The operators inside Torch: registration, tracing, compilation, export, autocast, and the module."""

from __future__ import annotations

import copy
import doctest
import time
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
from torch import nn

import codetr
import msda
from benchmarks import errors
from benchmarks.problems import BY_NAME, AttentionInputs, FusedInputs, Problem
from tests import backends, strategies
from tests.comparison import assert_result, run_msda

PROBLEM = Problem("op", 2, ((6, 8), (3, 4)), 10, num_heads=4, head_dim=8, num_points=3)
RAGGED = Problem("op_ragged", 1, ((6, 8), (3, 4)), 10, 4, 8, points_per_level=(2, 3), reference_dim=4)
OPERATORS = ("attention", "fused_attention")


def make(
    operator: str,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    problem: Problem = PROBLEM,
    seed: int = 0,
) -> AttentionInputs | FusedInputs:
    """Inputs whose samples keep away from the kinks, so that gradients can be compared too."""
    return strategies.Case(problem, operator == "fused_attention", seed=seed, smooth=True).inputs(
        dtype, device
    )


def with_gradient(inputs: AttentionInputs | FusedInputs) -> AttentionInputs | FusedInputs:
    """The same inputs, every floating tensor a leaf that wants a gradient."""
    return type(inputs)(
        *(
            x.detach().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for x in inputs
        )
    )


def leaves(inputs: AttentionInputs | FusedInputs) -> list[torch.Tensor]:
    """The tensors that want a gradient."""
    return [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("problem", [PROBLEM, RAGGED], ids=lambda problem: problem.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_msda_opcheck(operator: str, problem: Problem, dtype: torch.dtype, device: str) -> None:
    """Schema, autograd registration, fake tensors, and tracing with dynamic shapes (part of `-k msda`)."""
    inputs = with_gradient(make(operator, device, dtype, problem))
    # Tracing compares gradients of two runs; CUDA's atomics and 16-bit rounding make them differ a little.
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.float16 else {"rtol": 1e-4, "atol": 1e-4}
    torch.library.opcheck(getattr(torch.ops.msda, operator).default, tuple(inputs), **tolerance)


def test_docstring_examples() -> None:
    tested = doctest.testmod(msda.ops)
    assert tested.attempted >= 8 and not tested.failed


def test_schemas() -> None:
    """The positional order is part of the contract with the ONNX node and the plugin."""
    names = {
        operator: [argument.name for argument in getattr(torch.ops.msda, operator).default._schema.arguments]
        for operator in OPERATORS
    }
    assert names == {
        "attention": list(AttentionInputs._fields),
        "fused_attention": list(FusedInputs._fields),
    }


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("problem", [PROBLEM, RAGGED], ids=lambda problem: problem.name)
def test_compile(operator: str, problem: Problem, device: str) -> None:
    """torch.compile without a graph break, forward and backward (Inductor on the GPU alone: it is slow)."""
    inputs = with_gradient(make(operator, device, problem=problem))
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(getattr(msda, operator), fullgraph=True, backend=backend)
    output = compiled(*inputs)
    expected = run_msda(inputs)
    torch.testing.assert_close(output, expected)
    grad_output = torch.randn_like(expected)
    found = torch.autograd.grad(output, leaves(inputs), grad_output)
    wanted = torch.autograd.grad(expected, leaves(inputs), grad_output)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class Call(nn.Module):
    """A module that is nothing but the operator."""

    def __init__(self, operator: str, points_per_level: list[int] | None) -> None:
        super().__init__()
        self.operator = operator
        self.points_per_level = points_per_level

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return getattr(msda, self.operator)(*tensors, self.points_per_level)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("problem", [PROBLEM, RAGGED], ids=lambda problem: problem.name)
def test_export(operator: str, problem: Problem) -> None:
    """torch.export, strict, with dynamic batch, cells and queries; the graph keeps the operator whole."""
    inputs = make(operator, problem=replace(problem, batch=2))
    batch, cells, queries = (torch.export.Dim(name, min=1, max=4096) for name in ("N", "S", "Q"))
    rows = {0: batch, 1: queries}
    dynamic = ({0: batch, 1: cells}, None, None, *(rows for _ in inputs[3:-1]))
    module = Call(operator, inputs.points_per_level)
    program = torch.export.export(module, tuple(inputs[:-1]), dynamic_shapes=(dynamic,), strict=True)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert getattr(torch.ops.msda, operator).default in targets
    other = Problem(
        "other",
        3,
        ((5, 9), (2, 2)),
        17,
        4,
        8,
        problem.num_points,
        problem.points_per_level,
        problem.reference_dim,
    )
    again = make(operator, problem=other)
    torch.testing.assert_close(program.module()(*again[:-1]), run_msda(again))


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
def test_columns_of_one_tensor_are_not_copied(operator: str) -> None:
    if reason := backends.no_gpu():
        pytest.skip(reason)
    problem = Problem("columns", 2, ((64, 64), (32, 32)), 5120, num_heads=8, head_dim=32)
    case = strategies.Case(problem, operator == "fused_attention", packed=True)
    inputs = case.inputs(torch.float16, "cuda")
    run_msda(inputs)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = run_msda(inputs)
    assert torch.cuda.max_memory_allocated() - before == output.nbytes


@pytest.mark.parametrize("operator", OPERATORS)
def test_meta(operator: str) -> None:
    """Meta tensors give a shape and a type without numbers."""
    inputs = make(operator, dtype=torch.float16)
    meta = type(inputs)(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in inputs))
    output = run_msda(meta)
    assert output.device.type == "meta"
    assert output.shape == (PROBLEM.batch, PROBLEM.num_queries, PROBLEM.num_heads * PROBLEM.head_dim)
    assert output.dtype == torch.float16


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(operator: str, dtype: torch.dtype, device: str) -> None:
    """Values are cast; what says where to look stays as exact as it came."""
    inputs = make(operator, device)
    with torch.autocast(device, dtype):
        output = run_msda(inputs)
    rounded = inputs._replace(value=inputs.value.to(dtype))
    assert_result(output, errors.truth(rounded), rounded, dtype)


@pytest.mark.parametrize("operator", OPERATORS)
def test_autocast_leaves_float64_alone(operator: str, device: str) -> None:
    inputs = make(operator, device, torch.float64)
    with torch.autocast(device, torch.bfloat16):
        output = run_msda(inputs)
    assert output.dtype == torch.float64
    assert torch.equal(output, run_msda(inputs))


@pytest.mark.parametrize("operator", OPERATORS)
def test_autocast_brings_types_together(operator: str, device: str) -> None:
    """Under autocast layers hand over 16-bit tensors beside fp32 ones: all mixtures are taken."""
    inputs = make(operator, device)
    mixed = inputs._replace(**{name: getattr(inputs, name).half() for name in inputs._fields[3:-1]})
    with torch.autocast(device, torch.bfloat16):
        output = run_msda(mixed)
    wide = mixed._replace(**{name: getattr(mixed, name).float() for name in mixed._fields[3:-1]})
    expected = run_msda(wide._replace(value=wide.value.bfloat16()))
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, expected)


def test_module_under_autocast(device: str) -> None:
    """The module's layers run in 16 bits, reference points stay fp32."""
    module, arguments = module_and_inputs(torch.float32, device=device)
    # oneDNN's bfloat16 linear layer dies on virtual machines that report AMX and do not let it be used.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast(device, torch.bfloat16):
        output = module(*arguments)
    assert output.dtype == torch.bfloat16
    assert errors.relative_error(output, plain_module(module, *arguments, None)) <= 4e-2


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("sizes", [{"head_dim": 0}, {"num_heads": 0}], ids=str)
def test_nothing_to_add_up(operator: str, sizes: dict[str, int], device: str) -> None:
    """Heads without channels, or no heads: an empty result, and gradients that are zero."""
    inputs = with_gradient(make(operator, device, problem=replace(PROBLEM, **sizes)))
    output = run_msda(inputs)
    assert output.shape == (PROBLEM.batch, PROBLEM.num_queries, 0)
    for gradient in torch.autograd.grad(output.sum(), leaves(inputs)):
        assert not gradient.any()


@pytest.mark.parametrize("operator", OPERATORS)
def test_autocast_gradient(operator: str, device: str) -> None:
    """Gradients come back in the types of what was passed in."""
    inputs = with_gradient(make(operator, device))
    with torch.autocast(device, torch.bfloat16):
        output = run_msda(inputs)
    for leaf, gradient in zip(
        leaves(inputs), torch.autograd.grad(output.float().sum(), leaves(inputs)), strict=True
    ):
        assert gradient.dtype == leaf.dtype
        assert gradient.isfinite().all()


@pytest.mark.parametrize("operator", OPERATORS)
def test_gradients_that_nobody_wants(operator: str) -> None:
    """Each input alone can want a gradient, and has the one it has beside the others."""
    together = with_gradient(make(operator))
    wanted = torch.autograd.grad(run_msda(together).sum(), leaves(together))
    names = [
        name for name, x in together._asdict().items() if isinstance(x, torch.Tensor) and x.requires_grad
    ]
    for name, expected in zip(names, wanted, strict=True):
        alone = make(operator)
        leaf = getattr(alone, name).requires_grad_()
        (found,) = torch.autograd.grad(run_msda(alone).sum(), [leaf])
        torch.testing.assert_close(found, expected)


def plain_module(
    module: msda.MultiScaleDeformableAttention,
    query: torch.Tensor,
    value: torch.Tensor,
    reference_points: torch.Tensor,
    shapes: torch.Tensor,
    starts: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """What the module computes, from its parameters and the reference, in float64."""
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
    assert errors.relative_error(output, expected) <= tolerance


def module_and_inputs(
    dtype: torch.dtype, reference_dim: int = 2, device: str = "cpu"
) -> tuple[msda.MultiScaleDeformableAttention, tuple[torch.Tensor, ...]]:
    """A module with weights that are not its initial ones, and its first five arguments."""
    generator = torch.Generator().manual_seed(reference_dim)
    module = msda.MultiScaleDeformableAttention(embed_dims=32, num_heads=4, num_levels=2, num_points=3)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    inputs = make("fused_attention", dtype=torch.float32)
    query = torch.randn((2, 10, 32), generator=generator)
    value = torch.randn((2, PROBLEM.num_cells, 32), generator=generator)
    reference_points = torch.rand((2, 10, 2, reference_dim), generator=generator)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    arguments = (query.to(dtype), value.to(dtype), reference_points.to(wide), inputs[1], inputs[2])
    return module.to(device, dtype), tuple(x.to(device) for x in arguments)


def test_module_parameter_names() -> None:
    """Published checkpoints load by these names."""
    module = msda.MultiScaleDeformableAttention(embed_dims=256, num_heads=8, num_levels=5, num_points=4)
    shapes = {name: tuple(parameter.shape) for name, parameter in module.state_dict().items()}
    assert shapes == {
        "sampling_offsets.weight": (320, 256),
        "sampling_offsets.bias": (320,),
        "attention_weights.weight": (160, 256),
        "attention_weights.bias": (160,),
        "value_proj.weight": (256, 256),
        "value_proj.bias": (256,),
        "output_proj.weight": (256, 256),
        "output_proj.bias": (256,),
    }


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


def test_float16_on_the_cpu_is_as_fast_as_float32() -> None:
    """The CPU converts float16 in software, so the operator converts every cell once, not every sample."""
    problem = BY_NAME["codino_decoder_608x608"]
    inputs = {dtype: problem.attention_inputs(dtype, "cpu") for dtype in (torch.float32, torch.float16)}
    seconds = {dtype: [] for dtype in inputs}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for other tests' threads
    try:
        for _ in range(5):
            for dtype, arguments in inputs.items():
                started = time.process_time()
                msda.attention(*arguments)
                seconds[dtype].append(time.process_time() - started)
    finally:
        torch.set_num_threads(threads)
    assert min(seconds[torch.float16]) < 1.8 * min(seconds[torch.float32])


def test_versions() -> None:
    assert msda.__version__ == codetr.__version__ == version("codetr-tensorrt")


def test_module_padding_is_not_read() -> None:
    """Numbers under the padding mask change nothing, be they NaN."""
    module, (query, value, *rest) = module_and_inputs(torch.float32)
    mask = torch.zeros(value.shape[:2], dtype=torch.bool)
    mask[:, 30:45] = True
    clean = module(query, value, *rest, mask)
    spoiled = value.masked_fill(mask[..., None], float("nan"))
    assert torch.equal(module(query, spoiled, *rest, mask), clean)


def test_module_copies_and_trains() -> None:
    """A deep copy is independent, and every parameter gets a gradient."""
    module, arguments = module_and_inputs(torch.float32)
    twin = copy.deepcopy(module)
    assert torch.equal(twin(*arguments), module(*arguments))
    module(*arguments).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in module.parameters())
    assert all(parameter.grad is None for parameter in twin.parameters())


def test_module_compiles(device: str) -> None:
    """The module in one graph, with Inductor on the GPU."""
    module, arguments = module_and_inputs(torch.float32, device=device)
    compiled = torch.compile(module, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    torch.testing.assert_close(compiled(*arguments), module(*arguments), rtol=1e-4, atol=1e-5)
