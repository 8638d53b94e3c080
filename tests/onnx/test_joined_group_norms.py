"""The GroupNorm nodes of a pyramid, replaced by one `GroupNormLevels` node before a build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from onnx_path.comparison.onnxruntime_reference import OnnxruntimeReference
from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.nodes.group_norm import GROUP_NORM
from onnx_path.tensorrt.graph_passes import run_passes
from onnx_path.tensorrt.joined_group_norms import join_group_norms
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from tests.onnx.map_nodes import CODES, build_engine
from tests.onnx.text_models import text_model
from trt_plugin import EngineRunner
from trt_plugin.library import GROUP_NORM_LEVELS

CHANNELS = 16


def norm(x: str, number: int, eps: float = 0.5, groups: int = 4) -> str:
    return f"msda.GroupNorm<num_groups = {groups}, eps = {eps}>({x}, w{number}, b{number})"


CELLS = f"h = MatMul(x, V) n0 = {norm('h', 0)}"
MAP = f"""m = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(p, K)
    t = Transpose<perm = [0, 2, 3, 1]>(m) c = Reshape(t, cells) n1 = {norm("c", 1)}"""
JOIN = "y = Concat<axis = 1>(n0, n1)"
QUANTISE = "q = QuantizeLinear(y, scale, zero) i = DequantizeLinear(q, scale, zero)"


def make_model(body: str, outputs: str = "float[2, s, 16] y", **others: np.ndarray) -> onnx.ModelProto:
    """A level of cells x [2, 12, 16], and one of a map m [2, 16, 4, 5], which is a convolution of p."""
    random = np.random.default_rng(0)
    shapes = {"V": (CHANNELS, CHANNELS), "K": (CHANNELS, 8, 3, 3)}
    shapes |= {f"{kind}{number}": (CHANNELS,) for kind in "wb" for number in range(3)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights |= {"cells": np.array([2, 20, CHANNELS]), "scale": np.float32(0.021), "zero": np.int8(0)} | others
    inputs = "float[2, 12, 16] x, float[2, 8, 8, 10] p"
    model = text_model(body, inputs, outputs, 20, domains=DOMAIN, **weights)
    for node in model.graph.node:
        node.name = f"/neck/{node.output[0]}/{node.op_type}"
    return model


def run(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    shapes = {"x": (2, 12, 16), "p": (2, 8, 8, 10)}
    inputs = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return OnnxruntimeReference(onnx.ModelProto.FromString(model.SerializeToString()), Path(), inputs)()


def joined(model: onnx.ModelProto, count: int) -> onnx.NodeProto:
    """Runs the pass, compares the results with those before, and returns the node that it made."""
    before = run(model)
    assert run_passes(model, Path(), join_group_norms) == count
    after = run(model)
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-4, atol=1e-4)
    (made,) = (node for node in model.graph.node if node.op_type == GROUP_NORM_LEVELS)
    return made


def numbers_of(node: onnx.NodeProto) -> dict[str, object]:
    return {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}


def test_cells_and_map():
    model = make_model(f"{CELLS} {MAP} {JOIN}")
    node = joined(model, 2)
    assert node.name == "/neck/n0/GroupNormLevels"
    assert list(node.input) == ["h", "w0", "b0", "m", "w1", "b1"] and list(node.output) == ["y"]
    numbers = {"num_levels": 2, "num_groups": 4, "eps": 0.5, "next_scale": 0.0}
    assert numbers_of(node) == numbers | {key: x.encode() for key, x in PLUGIN_ATTRIBUTES.items()}
    assert [x.op_type for x in model.graph.node] == ["MatMul", "Conv", GROUP_NORM_LEVELS]


def test_result_in_int8():
    """Other readers of the result keep it."""
    outputs = "float[2, s, 16] i, float[2, s, 16] a"
    model = make_model(f"{CELLS} {MAP} {JOIN} {QUANTISE} a = Neg(y)", outputs)
    node = joined(model, 2)
    assert len(node.output) == 2 and numbers_of(node)["next_scale"] == pytest.approx(0.021)
    assert [x.op_type for x in model.graph.node][2:] == [GROUP_NORM_LEVELS, "DequantizeLinear", "Neg"]


def test_map_alone():
    """A map whose cells no Concat joins."""
    node = joined(make_model(f"{MAP} y = Neg(n1)"), 1)
    assert list(node.input) == ["m", "w1", "b1"] and numbers_of(node)["num_levels"] == 1


def test_map_beside_norms_that_differ():
    """The map is still read as it is."""
    body = f"{CELLS} {MAP} {JOIN}".replace(norm("h", 0), norm("h", 0, eps=0.25))
    node = joined(make_model(body), 1)
    assert list(node.input) == ["m", "w1", "b1"]


def test_dynamic_sizes():
    """A Reshape of dynamic rows and columns that keeps N and C."""
    shape = np.array([0, -1, CHANNELS])
    model = make_model(f"{CELLS} {MAP} {JOIN}", cells=shape)
    for dim, name in zip(model.graph.input[1].type.tensor_type.shape.dim[2:], "hw", strict=True):
        dim.dim_param = name
    assert joined(model, 2).input[3] == "m"


TWO = f"{CELLS} h2 = Neg(h) n2 = {norm('h2', 2)}"
STAY = {
    "another reader": f"{TWO} y0 = Concat<axis = 1>(n0, n2) y = Add(y0, n0)",
    "another axis": f"{TWO} y = Concat<axis = 2>(n0, n2)",
    "other groups": f"{TWO.replace(norm('h2', 2), norm('h2', 2, groups=2))} y = Concat<axis = 1>(n0, n2)",
    "another node": f"{CELLS} y = Concat<axis = 1>(n0, h)",
    "another map": f"p2 = Neg(p) t = Transpose<perm = [0, 2, 3, 1]>(p2) c = Reshape(t, small) "
    f"y = {norm('c', 3)}",
    "another move": f"{MAP.replace('[0, 2, 3, 1]', '[0, 3, 2, 1]')} y = Neg(n1)",
    "a moved map that is read": f"{MAP} t2 = Reshape(t, cells) y = Add(n1, t2)",
}


@pytest.mark.parametrize("name", STAY)
def test_norms_that_stay(name):
    eight = {key: np.ones(8, np.float32) for key in ("w3", "b3")}
    model = make_model(STAY[name], "float[2, s, k] y", small=np.array([2, 80, 8]), **eight)
    before = [node.op_type for node in model.graph.node]
    assert run_passes(model, Path(), join_group_norms) == 0
    assert [node.op_type for node in model.graph.node] == before and GROUP_NORM in before


# Engines.


def engine_model(dtype: torch.dtype, next_scale: float) -> onnx.ModelProto:
    """A node with a level of cells and a map, and its result in int8 as float."""
    code = CODES[dtype]
    numbers = f"num_levels = 2, num_groups = 4, eps = 0.5, next_scale = {next_scale}"
    texts = ", ".join(f'{key} = "{text}"' for key, text in PLUGIN_ATTRIBUTES.items())
    results = "y, q" if next_scale else "y"
    behind = "i = DequantizeLinear(q, scale, zero)" if next_scale else ""
    tensors = f"{code}[n, s, 32] x, {code}[32] w0, {code}[32] b0, {code}[n, 32, h, w] m, {code}[32] w1, "
    outputs = f"{code}[n, a, 32] y" + (", float[n, a, 32] i" if next_scale else "")
    body = f"{results} = msda.GroupNormLevels<{numbers}, {texts}>(x, w0, b0, m, w1, b1) {behind}"
    constants = {"scale": np.float32(next_scale), "zero": np.int8(0)} if next_scale else {}
    return text_model(body, f"{tensors}{code}[32] b1", outputs, 20, domains=DOMAIN, **constants)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("next_scale", [0.0, 0.021])
def test_engine_of_dynamic_shapes(tmp_path, dtype, next_scale):
    """TensorRT gives the map with channels innermost."""
    sizes = ((1, 1, 1, 1), (1, 60, 8, 8), (2, 3000, 40, 50))
    path = build_engine(
        tmp_path,
        engine_model(dtype, next_scale),
        x=ShapeRange(*((n, s, 32) for n, s, _, _ in sizes)),
        m=ShapeRange(*((n, 32, h, w) for n, _, h, w in sizes)),
    )
    random = torch.Generator().manual_seed(0)
    for n, s, h, w in ((1, 1, 1, 1), (2, 700, 9, 31), (2, 3000, 40, 50)):
        shapes = (n, s, 32), (32,), (32,), (n, 32, h, w), (32,), (32,)
        tensors = [torch.randn(shape, generator=random).to(dtype) for shape in shapes]
        x, w0, b0, m, w1, b1 = tensors
        wide = [[t.double() for t in group] for group in ((x, m), (w0, w1), (b0, b1))]
        expected = msda.group_norm_reference.group_norm_levels(*wide, 4, 0.5)
        arrays = dict(zip(("x", "w0", "b0", "m", "w1", "b1"), (t.float().numpy() for t in tensors)))
        with EngineRunner(path) as runner:
            found = runner(arrays)
        floor = 0.05 * expected.numel() ** 0.5
        y = torch.from_numpy(found["y"])
        assert relative_error(y, expected, floor) <= TOLERANCE[dtype]
        if next_scale:
            codes = (y.float() * (1 / torch.tensor(next_scale))).round().clamp(-128, 127)
            torch.testing.assert_close(torch.from_numpy(found["i"]), codes * next_scale)
