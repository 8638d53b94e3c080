"""The layers that become 8 bits: over the zoo, and in graphs that hypothesis draws."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from codetr.cli import main
from onnx_path.nodes.attention import add_function_bodies
from onnx_path.opset import opset_of
from onnx_path.quantization import policy
from onnx_path.quantization.placement import FORMATS, find_sources, insert_nodes
from onnx_path.quantization.policy import (
    ATTENTION,
    CONVOLUTIONS,
    DECODER,
    GELU,
    HEADS,
    IMAGES,
    MERGING,
    SAMPLING,
    Policy,
)
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.verify.random_inputs import input_shapes, random_inputs
from tests.onnx import model_zoo
from tests.onnx.model_zoo import ZOO
from tests.onnx.surgery_checks import check_engine
from tests.onnx.text_models import text_model

# Layers in 8 bits, and layers kept: sampling, heads, decoder, around attention, convolutions,
# layers that read the image, layers that merge cells, convolutions before a GELU.
COUNTS = {
    "bevformer_spatial": (0, 2, 1, 0, 1, 0, 0, 0, 0),
    "bevformer_temporal": (0, 2, 1, 0, 1, 0, 0, 0, 0),
    "co_dino_r50": (15, 4, 10, 8, 3, 12, 0, 0, 0),
    "co_dino_swin": (12, 6, 13, 16, 14, 5, 1, 3, 0),
    "d_fine": (36, 4, 17, 18, 4, 83, 0, 0, 0),
    "deformable_detr": (13, 6, 9, 4, 10, 9, 0, 0, 0),
    "deformable_detr_two_stage": (9, 6, 19, 15, 4, 9, 0, 0, 0),
    "grounding_dino": (25, 6, 16, 31, 18, 5, 0, 4, 0),
    "mask2former": (25, 4, 11, 16, 11, 6, 0, 3, 0),
    "mask_dino": (0, 7, 5, 1, 3, 0, 0, 0, 0),
    "omdet_turbo": (61, 4, 9, 20, 10, 1, 0, 3, 4),
    "rf_detr": (15, 4, 9, 16, 5, 9, 0, 0, 0),
    "rt_detr": (51, 4, 13, 18, 6, 8, 0, 0, 0),
    "rt_detr_v2": (51, 4, 13, 18, 6, 8, 0, 0, 0),
    "vit_adapter": (1, 4, 1, 0, 3, 4, 0, 0, 0),
}
REASONS = (SAMPLING, HEADS, DECODER, ATTENTION, CONVOLUTIONS, IMAGES, MERGING, GELU)
LAYERS_IN_FP8 = {"co_dino_r50": 2, "rf_detr": 15, "vit_adapter": 1}
"""Without convolutions. Tested in every run."""

TOLERANCES = {("omdet_turbo", "int8"): 0.15, ("d_fine", "int8"): 0.15}
"""Where engines differ more than `codetr compare` allows, because every rounding decides other roundings.

In onnxruntime, the scores of OmDet-Turbo's INT8 file move by 0.09 if its image changes by 1e-6. Those of the
float32 file move by 1e-6, and differ from the INT8 file's by 0.09. The logits of D-FINE's INT8 file move by
0.13 if its image changes by 1e-4 and its selections stay, those of the float32 file by 0.001. The weights are
random.
"""


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *(
            pytest.param(name, "int8", marks=() if name in LAYERS_IN_FP8 else pytest.mark.slow)
            for name in ZOO
        ),
        *(pytest.param(name, "fp8", marks=pytest.mark.slow) for name in LAYERS_IN_FP8),
    ],
)
def test_every_model_is_quantized(name, precision, zoo_folder, tmp_path, capsys):
    """By the command, before surgery; the result runs. After surgery the same layers are chosen.

    In three files, each a single layer with MSDA, no product gains.
    """
    path = model_zoo.export(name, zoo_folder)
    original = onnx.load(path)
    model = ir.from_proto(original)
    inputs = random_inputs(model, input_shapes(model, 0), 0)
    np.savez(tmp_path / "data.npz", **inputs)
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    command = ["quantize", path, out, "--precision", precision, "--method", "minmax", "--json", report]
    status = main([*map(str, command), "--data", str(tmp_path / "data.npz")])
    if not COUNTS[name][0]:
        assert status == 2 and "has no layer that 8 bits make faster" in capsys.readouterr().err
        return
    assert status == 0
    found = json.loads(report.read_text())
    counts = (found["layers"], *(found["kept"].get(reason, 0) for reason in REASONS))
    if precision == "int8":
        assert counts == COUNTS[name]
    else:
        assert counts[0] == LAYERS_IN_FP8[name] and sum(counts) == sum(COUNTS[name])
    quantized = onnx.load(out)
    nodes = Counter(node.op_type for node in quantized.graph.node)
    assert nodes["DequantizeLinear"] > nodes["QuantizeLinear"] > 0
    outputs = onnx_session.run(quantized, inputs)
    for one, other in zip(outputs, onnx_session.run(original, inputs), strict=True):
        assert one.shape == other.shape and np.isfinite(one).all() == np.isfinite(other).all()
    operated = model_zoo.operated(name, zoo_folder)
    layers, kept = Policy(ir.from_proto(operated).graph, opset_of(operated), precision).counts()
    assert (layers, kept) == (found["layers"], found["kept"])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["int8", "fp8"])
@pytest.mark.parametrize("name", [name for name in ZOO if COUNTS[name][0]])
def test_engine_of_every_quantized_model(
    tensorrt, name, precision, quick_build, zoo_folder, tmp_path, capsys
):
    """Quantised after surgery; the engine agrees with onnxruntime, which selects the same."""
    operated = model_zoo.operated(name, zoo_folder)
    onnx.save(operated, tmp_path / "operated.onnx")
    model = ir.from_proto(operated)
    np.savez(tmp_path / "data.npz", **random_inputs(model, input_shapes(model, 0), 0))
    out = tmp_path / "quantized.onnx"
    command = ["quantize", tmp_path / "operated.onnx", out, "--precision", precision, "--method", "minmax"]
    assert main([*map(str, command), "--data", str(tmp_path / "data.npz")]) == 0, capsys.readouterr().err
    command = ["build", str(out), "--out", str(tmp_path), "--precision", "fp16", "--tell-selections"]
    assert main([*command, *quick_build]) == 0, capsys.readouterr().err
    tolerance = TOLERANCES.get((name, precision))
    options = [] if tolerance is None else ["--tolerance", str(tolerance)]
    check_engine(out, tmp_path / "quantized.engine", capsys, *options)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of ranges."""
    monkeypatch.setenv("CODETR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ranges"


@pytest.fixture(autouse=True)
def everything_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all convolutions wide: the zoo's models have few channels."""
    monkeypatch.setattr(policy, "WIDE", 1)


CHANNELS, SIDE, HEADS_OF_MSDA, QUERIES = 16, 8, 2, 10


class Drawing:
    """A graph that grows by blocks. Names of layers tell what the policy has to do.

    Names are "eight", "sixteen", or "either" for the convolution: 8 bits in INT8, if no norm reads it.

    Args:
        gelu: whether a GELU follows the convolution, as one node or by Erf; it is 16 bits then.
        groups: of the convolution.
        precision: "int8" or "fp8".
    """

    def __init__(self, gelu: str | None = None, groups: int = 1, precision: str = "int8") -> None:
        self.precision = precision
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(0)
        images = self.weight((CHANNELS, CHANNELS // groups, 3, 3))
        name = "sixteen_stem" if gelu else "either_stem"
        cells = self.add("Conv", "images", images, name=name, pads=[1, 1, 1, 1], group=groups)
        if gelu == "Gelu":
            cells = self.add("Gelu", cells)
        elif gelu == "Erf":
            share = self.add("Erf", self.add("Div", cells, self.constant(np.float32(2**0.5))))
            cells = self.add("Mul", cells, self.add("Add", share, self.constant(np.float32(1))))
        flat = self.add("Reshape", cells, self.constant([1, CHANNELS, -1]))
        self.x = self.memory = self.add("Transpose", flat, perm=[0, 2, 1])
        self.cells = True

    def constant(self, value: object) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def weight(self, shape: tuple[int, ...]) -> str:
        return self.constant(self.random.standard_normal(shape).astype(np.float32))

    def add(
        self, op_type: str, *inputs: str, name: str = "", domain: str = "", outputs: int = 1, **options
    ) -> str:
        made = [f"{name or op_type}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(
            helper.make_node(op_type, inputs, made, name=made[0], domain=domain or None, **options)
        )
        return made[-1]

    def linear(self, x: str, outputs: int, name: str, inputs: int = CHANNELS) -> str:
        product = self.add("MatMul", x, self.weight((inputs, outputs)), name=name)
        return self.add("Add", product, self.weight((outputs,)))

    def norm(self) -> None:
        self.x = self.add("LayerNormalization", self.x, self.weight((CHANNELS,)))

    def centre_cells(self) -> None:
        """A linear layer, then the mean over cells of a normalisation in single nodes."""
        self.centre("sixteen", [1])

    def centre_channels(self) -> None:
        """A linear layer, then the mean over channels of a LayerNorm in single nodes."""
        self.centre("eight" if self.cells else "sixteen", [-1])

    def centre(self, name: str, axes: list[int]) -> None:
        x = self.add("MatMul", self.x, self.weight((CHANNELS, CHANNELS)), name=name)
        self.x = self.add("Sub", x, self.add("ReduceMean", x, self.constant(axes)))

    def feedforward(self) -> None:
        name = "eight" if self.cells else "sixteen"
        norm = self.add("LayerNormalization", self.x, self.weight((CHANNELS,)))
        up = self.add("Relu", self.linear(norm, 48, name))
        self.x = self.add("Add", self.x, self.linear(up, CHANNELS, name, 48))

    def merge(self) -> None:
        """A norm of pairs of cells, and the linear layer that merges each."""
        if self.cells:
            pairs = self.add("Concat", self.x, self.x, axis=2)
            norm = self.add("LayerNormalization", pairs, self.weight((2 * CHANNELS,)))
            self.x = self.linear(norm, CHANNELS, "sixteen", 2 * CHANNELS)

    def attention(self) -> None:
        name = "eight" if self.cells else "sixteen"
        self.attend(*(self.linear(self.x, CHANNELS, name) for _ in range(3)))

    def packed_attention(self) -> None:
        packed = self.linear(self.x, 3 * CHANNELS, "sixteen")
        cuts = [self.constant([i * CHANNELS]) for i in range(4)]
        self.attend(*(self.add("Slice", packed, *cuts[i : i + 2], self.constant([2])) for i in range(3)))

    def attend(self, q: str, k: str, v: str) -> None:
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 2, 1]))
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        self.x = self.add("Add", self.x, self.linear(mixed, CHANNELS, "sixteen"))

    def window_attention(self) -> None:
        """Cells attend in windows, by one node, which quantises its result to int8."""
        if self.cells:
            qkv = self.linear(self.x, 3 * CHANNELS, "eight")
            inputs = [
                self.add("Reshape", qkv, self.constant([1, SIDE, SIDE, 3 * CHANNELS])),
                self.weight((2, 16, 16)),
                self.weight((3 * CHANNELS,)),
            ]
            found = self.add("WindowAttention", *inputs, domain="msda", window_size=4, shift=2)
            rows = self.add("Reshape", found, self.constant([1, -1, CHANNELS]))
            name = "eight" if self.precision == "int8" else "sixteen"
            self.x = self.add("Add", self.x, self.linear(rows, CHANNELS, name))

    def group_norm(self) -> None:
        """A linear layer, then its group normalisation over the cells, by one node."""
        if self.cells:
            x = self.add("MatMul", self.x, self.weight((CHANNELS, CHANNELS)), name="eight")
            self.x = self.group_norm_of(x)

    def group_norm_of_map(self) -> None:
        """The same, but the node reads a map."""
        if self.cells:
            x = self.add("MatMul", self.x, self.weight((CHANNELS, CHANNELS)), name="sixteen")
            norm = self.group_norm_of(self.add("Reshape", x, self.constant([1, SIDE, SIDE, CHANNELS])))
            self.x = self.add("Reshape", norm, self.constant([1, -1, CHANNELS]))

    def group_norm_of_convolution(self) -> None:
        """A convolution, then the group normalisation of its cells, by one node."""
        if self.cells:
            rows = self.add("Transpose", self.x, perm=[0, 2, 1])
            found = self.add("Reshape", rows, self.constant([1, CHANNELS, SIDE, SIDE]))
            name = "eight" if self.precision == "int8" else "sixteen"
            found = self.add("Conv", found, self.weight((CHANNELS, CHANNELS, 1, 1)), name=name)
            moved = self.add("Transpose", found, perm=[0, 2, 3, 1])
            self.x = self.group_norm_of(self.add("Reshape", moved, self.constant([1, -1, CHANNELS])))

    def group_norm_of(self, x: str) -> str:
        parameters = [self.weight((CHANNELS,)) for _ in range(2)]
        return self.add("GroupNorm", x, *parameters, domain="msda", num_groups=4, eps=1e-5)

    def msda(self) -> None:
        """Rows attend to the stem's cells."""
        samples = HEADS_OF_MSDA * 4
        rows = SIDE * SIDE if self.cells else QUERIES
        value = self.linear(self.memory, CHANNELS, "sixteen")
        offsets, logits = (self.linear(self.x, n, "sixteen") for n in (2 * samples, samples))
        inputs = [
            self.add("Reshape", value, self.constant([1, -1, HEADS_OF_MSDA, CHANNELS // HEADS_OF_MSDA])),
            self.constant([[SIDE, SIDE]]),
            self.constant([0]),
            self.constant(np.full((1, rows, 1, 2), 0.5, np.float32)),
            self.add("Reshape", offsets, self.constant([1, -1, HEADS_OF_MSDA, 1, 4, 2])),
            self.add("Reshape", logits, self.constant([1, -1, HEADS_OF_MSDA, 4])),
        ]
        found = self.add("FusedMultiScaleDeformableAttention", *inputs, domain="msda")
        self.x = self.add("Add", self.x, self.linear(found, CHANNELS, "sixteen"))

    def select(self) -> None:
        """The best rows become queries."""
        if self.cells:
            scores = self.add("Squeeze", self.linear(self.x, 1, "sixteen"), self.constant([2]))
            indices = self.add("TopK", scores, self.constant([QUERIES]), outputs=2)
            columns = self.add(
                "Expand", self.add("Unsqueeze", indices, self.constant([2])), self.constant([1, 1, CHANNELS])
            )
            self.x = self.add("GatherElements", self.x, columns, axis=1)
            self.cells = False

    def finish(self) -> onnx.ModelProto:
        """Adds a class and a box head."""
        boxes = self.linear(self.add("Relu", self.linear(self.x, CHANNELS, "sixteen")), 4, "sixteen")
        outputs = [self.linear(self.x, 5, "sixteen"), self.add("Sigmoid", boxes)]
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [info("images", TensorProto.FLOAT, [1, CHANNELS, SIDE, SIDE])],
            [info(name, TensorProto.FLOAT, [1, "rows", n]) for name, n in zip(outputs, (5, 4))],
            [onnx.numpy_helper.from_array(x, name) for name, x in self.weights.items()],
        )
        imports = [helper.make_opsetid("", 20), helper.make_opsetid("msda", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=9)
        add_function_bodies(model)
        return model


BLOCKS = (
    Drawing.norm,
    Drawing.centre_cells,
    Drawing.centre_channels,
    Drawing.feedforward,
    Drawing.merge,
    Drawing.attention,
    Drawing.packed_attention,
    Drawing.window_attention,
    Drawing.group_norm,
    Drawing.group_norm_of_map,
    Drawing.group_norm_of_convolution,
    Drawing.msda,
    Drawing.select,
)


@given(
    st.lists(st.sampled_from(BLOCKS), max_size=8),
    st.sampled_from(list(FORMATS.values())),
    st.sampled_from([None, "Gelu", "Erf"]),
    st.sampled_from([1, 4, CHANNELS]),
)
def test_drawn_graphs(blocks, form, gelu, groups):
    """Only layers that may be 8 bits read Q/DQ nodes, and both their inputs do."""
    drawing = Drawing(gelu, groups, form.name)
    for block in blocks:
        block(drawing)
    drawing.norm()
    model = ir.from_proto(drawing.finish())
    policy = Policy(model.graph, 20, form.name)
    chosen = {product.node for product in policy.quantized}
    names = (value.name for value in find_sources(model.graph, policy.quantized, form.name))
    insert_nodes(model.graph, policy.quantized, dict.fromkeys(names, 4.0), form)
    quantized: set[ir.Value] = set()
    for node in model.graph:
        reads = {x in quantized for x in node.inputs[:2]}
        if node.op_type == "DequantizeLinear":
            quantized.update(node.outputs)
        elif node.op_type != "QuantizeLinear":
            assert reads <= {node in chosen}, node.name
        if node.name.startswith(("eight", "sixteen")):
            assert (node in chosen) == node.name.startswith("eight"), node.name
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize(
    ("channels", "groups", "layers"), [(16, 1, 1), (16, 4, 1), (16, 16, 1), (8, 1, 0), (8, 8, 0)]
)
def test_channels_of_a_convolution(channels, groups, layers):
    """All input channels count, those of a depthwise convolution too."""
    body = f"""x = Conv<group = {groups}>(images, kernels) positive = Relu(x)
        mean = GlobalAveragePool(positive) flat = Flatten(mean) y = MatMul(flat, weights)"""
    shapes = {"kernels": (16, channels // groups, 3, 3), "weights": (16, 5)}
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    model = text_model(body, f"float[1, {channels}, 8, 8] images", "float[1, 5] y", 20, **weights)
    found, kept = Policy(ir.from_proto(model).graph, 20, "int8").counts()
    assert found == layers and kept.get(CONVOLUTIONS, 0) == 1 - layers


@pytest.mark.parametrize(("wide", "layers"), [(16, 3), (64, 3), (65, 1)])
@pytest.mark.parametrize(
    ("silu", "opset"), [("{g} = Sigmoid({x}) {y} = Mul({x}, {g})", 20), ("{y} = Swish({x})", 24)]
)
def test_convolutions_before_a_silu(wide, layers, silu, opset, monkeypatch):
    """They become 8 bits if one of them is wide; that before a ReLU becomes 8 bits in any case."""
    monkeypatch.setattr(policy, "WIDE", wide)
    one, other = (silu.format(x=f"x{i}", g=f"g{i}", y=f"y{i}") for i in range(2))
    body = f"""x0 = Conv(images, first) {one} x1 = Conv(y0, second) {other} x2 = Conv(y1, third)
        positive = Relu(x2) mean = GlobalAveragePool(positive)
        flat = Flatten(mean) y = MatMul(flat, weights)"""
    shapes = {
        "first": (128, 16, 3, 3),
        "second": (16, 128, 1, 1),
        "third": (16, 16, 3, 3),
        "weights": (16, 5),
    }
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    model = text_model(body, "float[1, 16, 8, 8] images", "float[1, 5] y", opset, **weights)
    found, _ = Policy(ir.from_proto(model).graph, opset, "int8").counts()
    assert found == layers
