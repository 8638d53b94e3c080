"""Linear layers as ONNX nodes: their body in onnxruntime, written out, and as plugins of TensorRT."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from msda import checks
from onnx_path.nodes import linear
from onnx_path.nodes.attention import OPSET_VERSION, add_function_bodies, translation_table
from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.linear import ACTIVATIONS, LINEAR
from onnx_path.precision import convert_precision
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt import model_for_tensorrt
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from onnx_path.tensorrt.written_out_linears import write_out_linears
from tests.onnx.map_nodes import (
    CODES,
    ELEMENTS,
    add_bodies_of_opset,
    assert_near,
    build_engine,
    check_conversion,
    exported_node,
    one_node,
    open_session,
    run_engine,
    run_session,
    sizes_of,
)
from tests.onnx.text_models import text_model
from trt_plugin import library

MAPS = [(2, 8), (1, 63), (1, 1), (0, 4), (3, 0)]
"""Sizes of x before the last."""
Form = tuple[int, int, int, int]
"""Numbers of the attributes activation, add_residual, multiply_mask and normalise."""
FORMS: list[Form] = list(itertools.product(range(len(ACTIVATIONS)), (0, 1), (0, 1), (0,)))
FORMS += [(0, 0, 0, 1), (0, 1, 0, 1)]
EPS = 1e-3


def make_inputs(rows: tuple[int, ...], inputs: int, outputs: int, dtype: torch.dtype) -> dict:
    """Random x, weight, bias, residual, mask, norm_weight and norm_bias."""
    random = torch.Generator().manual_seed(inputs + sum(rows))
    shapes = {"x": (*rows, inputs), "weight": (outputs, inputs), "bias": (outputs,)}
    shapes |= {"residual": (*rows, outputs), "mask": (*rows, 1)}
    shapes |= {"norm_weight": (outputs,), "norm_bias": (outputs,)}
    tensors = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    tensors["weight"] /= inputs**0.5
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def optional(form: Form, found: Mapping, missing: object) -> dict:
    """Residual, mask and parameters of the norm; `missing` for those that a form does not have."""
    given = {"residual": form[1], "mask": form[2], "norm_weight": form[3], "norm_bias": form[3]}
    return {name: found[name] if has else missing for name, has in given.items()}


def truth(inputs: Mapping[str, torch.Tensor], form: Form) -> torch.Tensor:
    """The reference's result in float64."""
    tensors = {name: tensor.double() for name, tensor in inputs.items()}
    tensors |= optional(form, tensors, None)
    return msda.linear_reference.linear(**tensors, activation=ACTIVATIONS[form[0]], eps=EPS)


def assert_close(found: np.ndarray, inputs: Mapping[str, torch.Tensor], form: Form) -> None:
    assert_near(found, truth(inputs, form), inputs["x"].dtype)


def numbers(form: Form) -> dict[str, int | float]:
    names = "activation", "add_residual", "multiply_mask", "normalise"
    return {**dict(zip(names, form, strict=True)), "eps": EPS}


SHAPES = {"x": ("n", "s", "k"), "weight": ("o", "k"), "bias": ("o",), "residual": ("n", "s", "o")}
SHAPES |= {"mask": ("n", "s", 1), "norm_weight": ("o",), "norm_bias": ("o",)}


def test_activations_are_those_of_the_operator():
    assert linear.ACTIVATIONS == checks.ACTIVATIONS


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_body_in_onnxruntime(dtype, form):
    """One session for every size: no size is fixed. A node names its bias in place of what it lacks."""
    shapes = SHAPES | optional(form, SHAPES, ("o",))
    model = one_node(LINEAR, numbers(form), dtype, shapes, output=("n", "s", "o"))
    add_function_bodies(model)
    onnx.checker.check_model(model, full_check=True)
    session = open_session(model)
    for rows in MAPS:
        inputs = make_inputs(rows, 24, 40, dtype)
        given = inputs | optional(form, inputs, inputs["bias"])
        assert_close(run_session(session, given), inputs, form)


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, 22])
def test_body_in_another_opset(opset):
    inputs = make_inputs((2, 9), 16, 24, torch.float32)
    for form in ((1, 1, 1, 0), (0, 1, 0, 1)):
        shapes = SHAPES | optional(form, SHAPES, ("o",))
        model = one_node(LINEAR, numbers(form), torch.float32, shapes, opset, output=("n", "s", "o"))
        add_bodies_of_opset(model, opset)
        given = inputs | optional(form, inputs, inputs["bias"])
        assert_close(run_session(open_session(model), given), inputs, form)


def test_body_without_identities():
    """Tools run this pass of onnx_ir over bodies too."""
    form = (0, 0, 0, 0)
    shapes = SHAPES | optional(form, SHAPES, ("o",))
    model = one_node(LINEAR, numbers(form), torch.float32, shapes, output=("n", "s", "o"))
    add_function_bodies(model)
    changed = ir.from_proto(model)
    ir.passes.common.IdentityEliminationPass()(changed)
    inputs = make_inputs((2, 9), 16, 24, torch.float32)
    given = inputs | optional(form, inputs, inputs["bias"])
    assert_close(run_session(open_session(ir.to_proto(changed)), given), inputs, form)


class Layer(torch.nn.Module):
    def forward(self, x, weight, bias, mask):
        return msda.linear(x, weight, bias, activation="gelu", mask=mask)


def test_translation():
    """Sizes of x stay dynamic. A node names its bias again in place of what it lacks."""
    tensors = make_inputs((2, 9, 7), 16, 24, torch.float32)
    for name in ("residual", "norm_weight", "norm_bias"):
        del tensors[name]
    node, attributes, output = exported_node(Layer(), list(tensors.values()), LINEAR)
    assert attributes.pop("eps") == pytest.approx(1e-5)
    assert attributes == {"activation": 1, "add_residual": 0, "multiply_mask": 1, "normalise": 0}
    x, weight, bias, residual, mask, *norm = node.input
    assert [residual, *norm] == [bias] * 3 and len({x, weight, bias, mask}) == 4
    assert sizes_of(output) == [0, 0, 0, 24]


class Normalised(torch.nn.Module):
    def forward(self, x, weight, bias, norm_weight, norm_bias):
        norm = {"norm_weight": norm_weight, "norm_bias": norm_bias, "eps": EPS}
        return msda.linear(x, weight, bias, **norm)


def test_translation_of_a_normalisation():
    tensors = make_inputs((2, 9, 7), 16, 24, torch.float32)
    for name in ("residual", "mask"):
        del tensors[name]
    node, attributes, _ = exported_node(Normalised(), list(tensors.values()), LINEAR)
    assert attributes["normalise"] == 1 and attributes["eps"] == pytest.approx(EPS)
    _, _, bias, residual, mask, *norm = node.input
    assert residual == mask == bias and len({bias, *norm}) == 3


class Unbiased(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x, residual):
        return msda.linear(x, self.weight, None, residual, "relu")


def test_translation_without_a_bias():
    """The node has zeros for it."""
    inputs = make_inputs((2, 9), 16, 24, torch.float32)
    given = {name: inputs[name] for name in ("x", "residual")}
    program = torch.onnx.export(
        Unbiased(inputs["weight"]),
        tuple(given.values()),
        dynamo=True,
        verbose=False,
        opset_version=OPSET_VERSION,
        custom_translation_table=translation_table(),
    )
    model = program.model_proto
    assert model.graph.node[-1].op_type == LINEAR
    add_function_bodies(model)
    found = run_session(open_session(model), given)
    assert_close(found, inputs | {"bias": torch.zeros(24)}, (2, 1, 0, 0))


WEIGHTS = {"W": (32, 16), "b": (32,), "V": (16, 32), "c": (16,), "U": (16, 16), "m": (2, 63, 1)}
WEIGHTS |= {"g": (16,), "d": (16,)}
BLOCK = """
    h = msda.Linear<activation = 1, add_residual = 0, multiply_mask = 0, normalise = 0, eps = 1e-5>
        (x, W, b, b, b, b, b)
    h_1 = msda.Linear<activation = 0, add_residual = 1, multiply_mask = 0, normalise = 0, eps = 1e-5>
        (h, V, c, x, c, c, c)
    t = msda.Linear<activation = 0, add_residual = 1, multiply_mask = 0, normalise = 1, eps = 1e-3>
        (h_1, U, c, x, c, g, d)
    y = msda.Linear<activation = 0, add_residual = 0, multiply_mask = 1, normalise = 0, eps = 1e-5>
        (t, U, c, c, m, c, c)
"""
"""A feed-forward block of Swin, a layer with a normalisation, and one with a mask.

Names are numbered, as PyTorch's exporter does.
"""


def block() -> tuple[onnx.ModelProto, np.ndarray]:
    """A model of four nodes, and an input."""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(size, dtype=np.float32) / 4 for name, size in WEIGHTS.items()}
    edges = "float[2, 63, 16] x", "float[2, 63, 16] y"
    model = text_model(BLOCK, *edges, OPSET_VERSION, domains=DOMAIN, **weights)
    for node, name in zip(model.graph.node, ("fc1", "fc2", "normed", "last"), strict=True):
        node.name = f"/mlp/{name}/Linear"
    add_function_bodies(model)
    return model, random.standard_normal((2, 63, 16), dtype=np.float32)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_conversion_to_16_bits(precision):
    """All inputs of the nodes become 16-bit."""
    model, x = block()
    graph = check_conversion(model, precision, 4, x)
    assert {x.data_type for x in graph.initializer} == {ELEMENTS[precision]}


def test_written_out_as_pytorch_exports():
    """The same operators, weights and sums as those of PyTorch's exporter, named by modules."""
    model, x = block()
    written = ir.from_proto(model)
    assert write_out_linears(written) == 4
    written = ir.to_proto(written)
    onnx.checker.check_model(written, full_check=True)
    nodes = [(node.name, node.op_type) for node in written.graph.node]
    fc1 = [(f"/mlp/fc1/{op_type}", op_type) for op_type in ("MatMul", "Add", "Gelu")]
    fc2 = [("/mlp/fc2/MatMul", "MatMul"), ("/mlp/fc2/Add", "Add"), ("/mlp/fc2/Add_1", "Add")]
    normed = [("/mlp/normed/MatMul", "MatMul"), ("/mlp/normed/Add", "Add"), ("/mlp/normed/Add_1", "Add")]
    normed += [("/mlp/normed/LayerNormalization", "LayerNormalization")]
    last = [(f"/mlp/last/{op_type}", op_type) for op_type in ("MatMul", "Add", "Mul")]
    assert nodes == fc1 + fc2 + normed + last
    assert written.graph.node[5].input[0] == "x" and written.graph.node[-1].input[1] == "m"
    assert list(written.graph.node[9].input[1:]) == ["g", "d"]
    attributes = {x.name: onnx.helper.get_attribute_value(x) for x in written.graph.node[9].attribute}
    assert attributes == {"axis": -1, "epsilon": pytest.approx(1e-3)}
    sizes = [(2, 63, 1), (16,), (16,), (16,), (16, 16), (16, 16), (16, 32), (32,), (32, 16)]
    assert sorted(tuple(x.dims) for x in written.graph.initializer) == sizes
    assert LINEAR not in [function.name for function in written.functions]
    (found,), (expected,) = (onnx_session.run(one, {"x": x}) for one in (written, model))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_nodes_without_constant_weights_are_written_out():
    shapes = SHAPES | {"x": (2, 9, 16), "weight": (24, 16)}
    form = (2, 1, 1, 0)
    shapes |= optional(form, shapes, ("o",))
    model = one_node(LINEAR, numbers(form), torch.float32, shapes, output=("n", "s", "o"))
    assert model_for_tensorrt.fit_to_tensorrt(model, Path())
    assert [x.op_type for x in model.graph.node] == ["Transpose", "MatMul", "Add", "Relu", "Add", "Mul"]
    inputs = make_inputs((2, 9), 16, 24, torch.float32)
    assert_close(run_session(open_session(model), inputs), inputs, form)


def test_builds_keep_what_a_kernel_runs_fast(monkeypatch):
    """The library decides by the sizes, attributes and type of each node."""
    has_fast = Mock(side_effect=lambda inputs, outputs, *others: outputs == 32)
    monkeypatch.setattr(library, "has_fast_linear", has_fast)
    model, _ = block()
    convert_precision(model, "bf16")
    assert model_for_tensorrt.fit_to_tensorrt(model, Path())
    forms = (
        (16, 32, 1, False, False, False),
        (32, 16, 0, True, False, False),
        (16, 16, 0, True, False, True),
        (16, 16, 0, False, True, False),
    )
    assert [asked.args for asked in has_fast.call_args_list] == [(*form, "bfloat16") for form in forms]
    kinds = [x.op_type for x in model.graph.node if x.op_type != "Cast"]
    normed = ["MatMul", "Add", "Add", "LayerNormalization"]
    assert kinds == [LINEAR, "MatMul", "Add", "Add", *normed, "MatMul", "Add", "Mul"]
    onnx.checker.check_model(model)


# Engines.


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(192, 576), (192, 256), (64, 192), (64, 20)])
def test_engine_of_dynamic_shapes(tmp_path, inputs, outputs, dtype, form):
    """The plugin with kernels of CUTLASS, or with the plain one, which builds of detectors never use."""
    shapes = SHAPES | {"x": ("n", "s", inputs), "weight": (outputs, inputs), "bias": (outputs,)}
    of_rows = {"residual": ("n", "s", outputs), "mask": ("n", "s", 1)}
    of_rows |= dict.fromkeys(("norm_weight", "norm_bias"), (outputs,))
    shapes |= optional(form, of_rows, (outputs,))
    model = one_node(LINEAR, numbers(form), dtype, shapes, output=("n", "s", outputs))
    ranges = {"x": inputs} | ({"residual": outputs} if form[1] else {}) | ({"mask": 1} if form[2] else {})
    profiles = {
        name: ShapeRange(*((*rows, columns) for rows in ((1, 1), (1, 864), (4, 1500))))
        for name, columns in ranges.items()
    }
    path = build_engine(tmp_path, model, **profiles)
    for rows in ((1, 1), (1, 864), (2, 77), (4, 1500)):
        tensors = make_inputs(rows, inputs, outputs, dtype)
        given = tensors | optional(form, tensors, tensors["bias"])
        assert_close(run_engine(path, given), tensors, form)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_engine_of_a_block(tmp_path, precision):
    """Weights are constants of the engine."""
    model, x = block()
    (expected,) = onnx_session.run(model, {"x": x})
    convert_precision(model, precision)
    model_for_tensorrt.remove_function_bodies(model)
    found = run_engine(build_engine(tmp_path, model), {"x": torch.from_numpy(x)}, "y")
    error = relative_error(torch.from_numpy(found), torch.from_numpy(expected).double())
    assert error < 4 * TOLERANCE[torch.float16 if precision == "fp16" else torch.bfloat16]
