"""Registers derivatives and vmap of the operators: gradients, forward mode, second derivatives, `torch.func`.

The backward kernels compute gradients. `msda.derivatives` computes forward-mode derivatives and derivatives
of gradients. `msda.window_reference` computes all derivatives of window attention,
`msda.group_norm_reference` those of group normalisation, `msda.linear_reference` those of linear layers,
`msda.linear_of_sum_reference` those of linear layers of a sum, and `msda.feed_forward_reference` those of
feed-forward blocks.
`msda.registrations` has loaded the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from msda import (
    derivatives,
    feed_forward_reference,
    group_norm_reference,
    linear_of_sum_reference,
    linear_reference,
    window_reference,
)

_library = torch.library.Library("msda", "FRAGMENT")


def _differentiate(ctx: Any, grad_output: Tensor) -> tuple:
    """The gradients of `attention`, by its backward operator."""
    points_per_level = ctx.others[0]
    deterministic = torch.are_deterministic_algorithms_enabled()
    grad_value, *grads = torch.ops.msda.attention_backward(
        grad_output, *ctx.saved_tensors, points_per_level, deterministic
    )
    return grad_value, None, None, *grads


def _differentiate_fused(ctx: Any, grad_output: Tensor) -> tuple:
    """The gradients of `fused_attention`, by its backward operator."""
    points_per_level, wants_reference = ctx.others[0], ctx.needs_input_grad[3]
    deterministic = torch.are_deterministic_algorithms_enabled()
    grad_value, grad_reference, *grads = torch.ops.msda.fused_attention_backward(
        grad_output, *ctx.saved_tensors, points_per_level, wants_reference, deterministic
    )
    return grad_value, None, None, grad_reference if wants_reference else None, *grads


def _differentiate_window(ctx: Any, grad_output: Tensor) -> tuple:
    """The gradients of `window_attention`, by its backward operator."""
    window_size, shift, _ = ctx.others  # a result in int8 has no gradient
    *grads, grad_padding = torch.ops.msda.window_attention_backward(
        grad_output, *ctx.saved_tensors, window_size, shift
    )
    return *grads, None if ctx.saved_tensors[2] is None else grad_padding


def _differentiate_by(formula: Callable) -> Callable:
    """The gradients of a backward operator, by differentiating the formula of its result."""

    def differentiate(ctx: Any, *grad_outputs: Tensor) -> tuple:
        tensors = dict(enumerate(ctx.saved_tensors))
        floats = {i: x for i, x in tensors.items() if x is not None and x.is_floating_point()}

        def backward(*values: Tensor) -> tuple[Tensor, ...]:
            return formula(*(tensors | dict(zip(floats, values))).values(), *ctx.others)

        _, vjp = torch.func.vjp(backward, *floats.values())
        grads = dict(zip(floats, vjp(grad_outputs)))
        return tuple(map(grads.get, tensors))

    return differentiate


def _has_tangent(tensor: Tensor | None) -> bool:
    """Whether forward mode differentiates by a tensor."""
    if tensor is None:
        return False
    # PyTorch has one level, 0. Where torch.compile traces torch.func.jvp, `forward_ad` does not show it.
    if forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active():
        return False
    return torch._VF._unpack_dual(tensor, level=0)[1] is not None


def _is_tensor(kind: torch.JitType) -> bool:
    """Whether an argument is a tensor, or a tensor or None."""
    return isinstance(
        kind.getElementType() if isinstance(kind, torch.OptionalType) else kind, torch.TensorType
    )


def _register_autograd(name: str, differentiate: Callable, formula: Callable) -> None:
    """Registers the operator's kernel for the dispatch key Autograd.

    `torch.library.register_autograd` does not support `torch.func.grad`, and silently makes forward-mode
    derivatives zero.
    """
    operator = getattr(torch.ops.msda, name).default
    count = sum(_is_tensor(argument.type) for argument in operator._schema.arguments)

    def run(keyset: torch._C.DispatchKeySet, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    # torch.func calls this once for each of its levels, so the function has a single level.
    class Node(torch.autograd.function._SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *arguments, keyset = arguments
            ctx.save_for_backward(*arguments[:count])
            ctx.others = arguments[count:]
            # The levels below differentiate this call, but a forward runs with both modes off.
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                return run(keyset, *arguments)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> tuple:
            return *differentiate(ctx, *grad_outputs), *[None] * (len(ctx.others) + 1)

    def implement(keyset: torch._C.DispatchKeySet, *arguments: Any) -> Any:
        tensors = arguments[:count]
        arguments = *arguments, *(a.default_value for a in operator._schema.arguments[len(arguments) :])
        if any(map(_has_tangent, tensors)):
            return formula(*arguments)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
            with enable_single_level_autograd_function():
                return Node.apply(*arguments, keyset)
        return run(keyset, *arguments)

    _library.impl(name, implement, "Autograd", with_keyset=True)


def _samples(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """The samples of vmap along the first axis; None: all are the same."""
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _register_vmap(name: str) -> None:
    """Registers the operator's rule for vmap: the samples become independent images of the batch."""
    operator = getattr(torch.ops.msda, name).default
    schema = [argument.name for argument in operator._schema.arguments]

    def rule(info: Any, in_dims: tuple, *arguments: Any) -> tuple[Any, Any]:
        joined = []
        for argument, dim, argument_name in zip(arguments, in_dims, schema):
            if argument_name in ("spatial_shapes", "level_start_index"):
                if dim is not None:
                    raise ValueError(
                        f"{argument_name}: expected the same for all samples of torch.vmap, got a sample "
                        f"dimension {dim}; call the operator once for each"
                    )
            elif isinstance(argument, Tensor):
                argument = _samples(argument, dim, info.batch_size).flatten(0, 1)
            joined.append(argument)
        results = operator(*joined)
        if isinstance(results, Tensor):
            return results.unflatten(0, (info.batch_size, -1)), 0
        return tuple(result.unflatten(0, (info.batch_size, -1)) for result in results), (0,) * len(results)

    torch.library.register_vmap(f"msda::{name}", rule)


def _register_window_vmap(name: str) -> None:
    """Registers the rule for vmap of an operator of window attention: the samples' heads become heads."""
    operator = getattr(torch.ops.msda, name).default
    schema = [argument.name for argument in operator._schema.arguments]
    parts = {"grad_output": 1, "qkv": 3, "padding": 3}  # of the last axis, each with all heads

    def fold(name: str, tensor: Tensor) -> Tensor:
        if name == "bias":
            return tensor.flatten(0, 1)
        return tensor.unflatten(-1, (parts[name], -1)).movedim(0, -2).flatten(-3)

    def unfold(name: str, tensor: Tensor, samples: int) -> Tensor:
        if name == "bias":
            return tensor.unflatten(0, (samples, -1))
        if not tensor.numel():
            return tensor.expand(samples, *tensor.shape[:-1], tensor.shape[-1] // samples)
        return tensor.unflatten(-1, (parts[name], samples, -1)).movedim(-2, 0).flatten(-2)

    def rule(info: Any, in_dims: tuple, *arguments: Any) -> tuple[Any, Any]:
        joined = list(arguments)
        for i, (tensor, dim) in enumerate(zip(arguments, in_dims)):
            if isinstance(tensor, Tensor):
                joined[i] = fold(schema[i], _samples(tensor, dim, info.batch_size))
        results = operator(*joined)
        if isinstance(results, Tensor):
            return unfold("grad_output", results, info.batch_size), 0
        named = zip(("qkv", "bias", "padding"), results)
        return tuple(unfold(name, result, info.batch_size) for name, result in named), (0, 0, 0)

    torch.library.register_vmap(f"msda::{name}", rule)


def _register_group_norm_vmap() -> None:
    """Registers the rule for vmap of group normalisation: the samples' groups become groups."""
    operator = torch.ops.msda.group_norm.default

    def rule(info: Any, in_dims: tuple, *arguments: Any) -> tuple[Tensor, int]:
        *tensors, num_groups, eps = arguments
        for i, (tensor, dim) in enumerate(zip(tensors, in_dims)):
            samples = tensor.unsqueeze(-2) if dim is None else tensor.movedim(dim, -1).movedim(-1, -2)
            sizes = (*samples.shape[:-2], info.batch_size, samples.shape[-1])
            tensors[i] = samples.expand(sizes).flatten(-2)
        result = operator(*tensors, num_groups * info.batch_size, eps)
        return result.unflatten(-1, (info.batch_size, -1)), 3

    torch.library.register_vmap("msda::group_norm", rule)


def _register_linear_vmap() -> None:
    """Registers the rule for vmap of linear layers: the samples become rows, or calls with their weights."""
    operator = torch.ops.msda.linear.default

    def rule(info: Any, in_dims: tuple, *arguments: Any) -> tuple[Tensor, int]:
        *tensors, activation, eps = arguments
        count = info.batch_size
        samples = [None if x is None else _samples(x, dim, count) for x, dim in zip(tensors, in_dims)]
        if not any(dim is not None for dim in (*in_dims[1:3], *in_dims[5:7])):
            rows = samples[0], *tensors[1:3], *samples[3:5], *tensors[5:]
            return operator(*rows, activation, eps), 0
        calls = ([None if x is None else x[i] for x in samples] for i in range(count))
        return torch.stack([operator(*call, activation, eps) for call in calls]), 0

    torch.library.register_vmap("msda::linear", rule)


def _linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    mask: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    activation: str,
    eps: float,
) -> Tensor:
    """Computes `linear`. PyTorch cannot trace derivatives of F.linear in `torch.func` with dynamic sizes."""
    dtype = x.dtype
    if norm_weight is not None:  # derivatives of a norm magnify the rounding of its input
        tensors = (x, weight, bias, residual, norm_weight, norm_bias)
        wide = torch.promote_types(dtype, torch.float32)
        tensors = (None if tensor is None else tensor.to(wide) for tensor in tensors)
        x, weight, bias, residual, norm_weight, norm_bias = tensors
    product = x @ weight.mT
    product = product if bias is None else product + bias
    result = linear_reference.finish(product, residual, activation, mask, norm_weight, norm_bias, eps)
    return result.to(dtype)


def _register_by_formula(name: str, formula: Callable) -> None:
    """Registers an operator whose derivatives are those of a formula in PyTorch's operations."""
    _register_autograd(name, _differentiate_by(lambda *arguments: (formula(*arguments),)), formula)


def register() -> None:
    """Registers everything, once."""
    _register_autograd("attention", _differentiate, derivatives.attention)
    _register_autograd("fused_attention", _differentiate_fused, derivatives.fused_attention)
    for name in ("attention_backward", "fused_attention_backward"):
        formula = getattr(derivatives, name)
        _register_autograd(name, _differentiate_by(formula), formula)
    for name in ("attention", "fused_attention", "attention_backward", "fused_attention_backward"):
        _register_vmap(name)
    _register_autograd("window_attention", _differentiate_window, window_reference.window_attention)
    formula = window_reference.window_attention_backward
    _register_autograd("window_attention_backward", _differentiate_by(formula), formula)
    for name in ("window_attention", "window_attention_backward"):
        _register_window_vmap(name)
    _register_by_formula("group_norm", group_norm_reference.group_norm)
    _register_group_norm_vmap()
    _register_by_formula("linear", _linear)
    _register_linear_vmap()
    _register_by_formula("linear_of_sum", linear_of_sum_reference.linear_of_sum)
    _register_by_formula("feed_forward", feed_forward_reference.feed_forward)
