"""The story of a user who differentiates the operator: python tests/project/stories/research.py FOLDER

FOLDER takes the files that torch.compile writes.
"""

from __future__ import annotations

import os
import sys

os.environ["TORCHINDUCTOR_CACHE_DIR"] = sys.argv[1]

import torch

import msda

device = "cuda" if torch.cuda.is_available() and msda.build_info().has_cuda else "cpu"
print("msda", msda.__version__, "on", device)
torch.manual_seed(0)

# Three levels with their own numbers of points, as newer DETRs have them.
points = [4, 4, 6]
shapes = torch.tensor([[6, 8], [3, 4], [2, 2]], device=device)
starts = torch.tensor([0, 48, 60], device=device)
value = torch.randn(2, 64, 2, 4, dtype=torch.float64, device=device)
locations = torch.rand(2, 5, 2, sum(points), 2, dtype=torch.float64, device=device)
weights = torch.rand(2, 5, 2, sum(points), dtype=torch.float64, device=device)


def attend(value, locations, weights):
    return msda.attention(value, shapes, starts, locations, weights, points)


leaves = [tensor.clone().requires_grad_() for tensor in (value, locations, weights)]
tolerance = {"nondet_tol": 1e-10}  # CUDA adds up the gradient of value in any order
assert torch.autograd.gradcheck(attend, leaves, check_forward_ad=True, fast_mode=True, **tolerance)
assert torch.autograd.gradgradcheck(attend, leaves, fast_mode=True, **tolerance)
print("gradcheck and gradgradcheck pass")

result, tangent = torch.func.jvp(lambda value: attend(value, locations, weights), (value,), (value,))
torch.testing.assert_close(tangent, result)  # the operator is linear in value
print("jvp: the norm of the tangent is", tangent.norm().item())


def loss(value):
    return attend(value, locations, weights).square().sum()


_, product = torch.autograd.functional.hvp(loss, value, value)
torch.testing.assert_close(product, torch.func.grad(loss)(value))  # the loss is quadratic
print("hvp: the norm of the product is", product.norm().item())

samples = torch.stack([value, 2 * value, 3 * value])
gradients = torch.vmap(torch.func.grad(loss))(samples)
torch.testing.assert_close(gradients[2], 3 * gradients[0])
print("vmap of grad:", list(gradients.shape))

module = msda.MultiScaleDeformableAttention(8, 2, 3, num_points=points).to(device)
queries, reference_points = torch.randn(2, 5, 8, device=device), torch.rand(2, 5, 3, 4, device=device)
arguments = queries, torch.randn(2, 64, 8, device=device), reference_points, shapes, starts
compiled = torch.compile(module, fullgraph=True)
torch.testing.assert_close(compiled(*arguments), module(*arguments), rtol=1e-4, atol=1e-5)
compiled(*arguments).sum().backward()
assert all(parameter.grad is not None for parameter in module.parameters())
print("torch.compile: equal to eager, with gradients")

meta = [tensor.to("meta") for tensor in (value, shapes, starts, locations, weights)]
print("meta:", list(msda.attention(*meta, points).shape))
