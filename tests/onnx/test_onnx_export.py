"""`python -m onnx_path.export`: exported graphs, their outputs in onnxruntime, and the command."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F

import codetr
import msda
from codetr.detector.preprocess import load_image
from codetr.export.box_agreement import compare_detections
from codetr.export.traced_model import export_program
from codetr.model.backbones.swin import SwinBlock
from codetr.model.layers import GroupNorm
from onnx_path.comparison.onnxruntime_reference import add_bodies
from onnx_path.export import main, write_onnx
from onnx_path.nodes import attention
from onnx_path.nodes.group_norm import GROUP_NORM
from onnx_path.nodes.linear import LINEAR
from onnx_path.nodes.linear_max import LINEAR_MAX
from onnx_path.nodes.window_attention import WINDOW_ATTENTION
from onnx_path.precision import convert_precision
from onnx_path.quantization.quantizer import Quantizer
from onnx_path.surgery.graph import onnx_session
from onnx_path.tensorrt.fused_quantized_feed_forwards import fuse_quantized_feed_forwards
from onnx_path.tensorrt.fused_quantized_linears import fuse_layers
from onnx_path.tensorrt.model_for_tensorrt import parsed_file
from onnx_path.tensorrt.tensorrt_engine import Settings, serialize_engine
from onnx_path.tensorrt.written_out_linears import product_name, write_out_linears
from tests.golden_models import GOLDEN, MODELS, arguments, load_golden, save_weights, without
from tests.onnx.engine_stand_ins import attention_file
from tests.onnx.map_nodes import ELEMENTS
from trt_plugin.library import QUANTIZED_LAYER_NORM, QUANTIZED_LINEAR

REPOSITORY = Path(__file__).parents[2]


class RaggedAttention(torch.nn.Module):
    def forward(self, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
        return torch.ops.msda.attention(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, [2, 1]
        )


def test_translation_of_the_plain_operator_keeps_points_per_level():
    value, levels, starts = torch.rand(1, 20, 2, 8), torch.tensor([[4, 4], [2, 2]]), torch.tensor([0, 16])
    program = torch.onnx.export(
        RaggedAttention(),
        (value, levels, starts, torch.rand(1, 5, 2, 3, 2), torch.rand(1, 5, 2, 3)),
        dynamo=True,
        verbose=False,
        opset_version=attention.OPSET_VERSION,
        custom_translation_table=attention.translation_table(),
    )
    (node,) = program.model_proto.graph.node
    assert (node.domain, node.op_type) == (attention.DOMAIN, attention.ATTENTION)
    assert attributes_of(node) == PLUGIN_ATTRIBUTES | {"points_per_level": [2, 1]}


PLUGIN_ATTRIBUTES = {"plugin_namespace": b"msda", "plugin_version": b"1"}


def attributes_of(node: onnx.NodeProto) -> dict:
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


# This model is exported with its group norms written out.
WRITTEN_OUT = "codino_resnet_tiny"


def model_levels(name: str) -> int:
    return codetr.load_config(GOLDEN / f"{name}.json").num_levels


@pytest.fixture(
    scope="module",
    params=[pytest.param(x, marks=[pytest.mark.slow] * (x == WRITTEN_OUT)) for x in MODELS],
)
def exported(request, tmp_path_factory):
    """Exports a golden model: name, model, golden inputs, path, number of nodes by operator."""
    model, tensors = load_golden(request.param)
    inputs = tensors["in/images"], tensors["in/image_shapes_hw"].long()
    path = tmp_path_factory.mktemp(request.param) / "model.onnx"
    model.fold_position_biases()
    if request.param == WRITTEN_OUT:
        model.write_out_group_norms()
    model.write_out_linears()  # of Swin
    return request.param, model, inputs, path, write_onnx(export_program(model, inputs), path)


def test_exported_graph(exported):
    name, _, (images, _), path, counts = exported
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path)
    graph = model.graph
    assert counts == Counter(node.op_type for node in graph.node)
    assert counts[attention.FUSED_ATTENTION] == MODELS[name]
    assert counts["InstanceNormalization"] == (0 if name == WRITTEN_OUT else model_levels(name))
    assert not {"GridSample", "CumSum", "NonZero", "If", "Loop", "ScatterND"} & counts.keys()
    assert [tensor.name for tensor in graph.input] == ["images", "image_shapes"]
    assert [tensor.name for tensor in graph.output] == ["boxes", "scores", "labels"]
    assert [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == list(images.shape)

    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != attention.FUSED_ATTENTION:
            continue
        assert attributes_of(node) == PLUGIN_ATTRIBUTES
        shapes, starts = (constants[tensor] for tensor in node.input[1:3])
        sizes = shapes.prod(axis=1)
        assert shapes.dtype == starts.dtype == np.int64
        assert starts.tolist() == (np.cumsum(sizes) - sizes).tolist()


def test_exported_window_attentions(exported):
    """Each block of the Swin has one, of a linear layer's result and constants; nothing else cuts windows."""
    name, model, _, path, counts = exported
    exported_model = onnx.load(path)
    nodes = [node for node in exported_model.graph.node if node.op_type == WINDOW_ATTENTION]
    bodies = [body.name for body in exported_model.functions].count(WINDOW_ATTENTION)
    blocks = [] if name == "codino_resnet_tiny" else [x for s in model.backbone.stages for x in s.blocks]
    assert len(nodes) == len(blocks) == counts[WINDOW_ATTENTION] and bodies == bool(blocks)
    constants = {x.name: onnx.numpy_helper.to_array(x) for x in exported_model.graph.initializer}
    made = {node.output[0]: node for node in exported_model.graph.node}
    for block, node in zip(blocks, nodes, strict=True):
        size, shift = block.attn.window_size, block.attn.shift
        assert attributes_of(node) == PLUGIN_ATTRIBUTES | {"window_size": size, "shift": shift}
        qkv, bias, padding = node.input
        assert made[qkv].op_type == "Reshape" and made[made[qkv].input[0]].op_type == LINEAR
        np.testing.assert_array_equal(constants[bias], block.attn.position_bias().detach())
        np.testing.assert_array_equal(constants[padding], block.attn.qkv.bias.detach())
        assert re.fullmatch(r"/backbone/stages\.\d/blocks\.\d/attn/WindowAttention", node.name)


def test_exported_linears(exported):
    """Each block of the Swin has four, with the activation or the residual that follows; no Gelu remains.

    Each attention has two: values with the mask of padded cells, and the output with residual and norm.
    """
    name, model, _, path, counts = exported
    exported_model = onnx.load(path)
    nodes = [node for node in exported_model.graph.node if node.op_type == LINEAR]
    bodies = [body.name for body in exported_model.functions].count(LINEAR)
    blocks = [] if name == "codino_resnet_tiny" else [x for s in model.backbone.stages for x in s.blocks]
    attentions = [x for x in model.modules() if isinstance(x, msda.MultiScaleDeformableAttention)]
    assert len(attentions) == MODELS[name] and bodies == 1 and not counts["Gelu"]
    layers = [layer for x in blocks for layer in (x.attn.qkv, x.attn.proj, x.mlp.fc1, x.mlp.fc2)]
    layers += [layer for x in attentions for layer in (x.value_proj, x.output_proj)]
    norms = [layer.norm1 for layer in model.encoder.layers] + [layer.norm2 for layer in model.decoder.layers]
    norms = [None] * 4 * len(blocks) + [x for norm in norms for x in (None, norm)]
    forms = [(0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0)] * len(blocks)
    forms += [(0, 0, 1, 0), (0, 1, 0, 1)] * len(attentions)
    constants = {x.name: onnx.numpy_helper.to_array(x) for x in exported_model.graph.initializer}
    for layer, norm, form, node in zip(layers, norms, forms, nodes, strict=True):
        numbers = dict(zip(("activation", "add_residual", "multiply_mask", "normalise"), form))
        attributes = attributes_of(node)
        assert attributes.pop("eps") == pytest.approx(1e-5)
        assert attributes == PLUGIN_ATTRIBUTES | numbers
        np.testing.assert_array_equal(constants[node.input[1]], layer.weight.detach())
        np.testing.assert_array_equal(constants[node.input[2]], layer.bias.detach())
        assert [x in constants for x in node.input[3:5]] == [not form[1], not form[2]]
        for name, parameter in zip(node.input[5:], () if norm is None else (norm.weight, norm.bias)):
            np.testing.assert_array_equal(constants[name], parameter.detach())
    # The residual is the map before the norm: what the last block gave, or the sum before.
    swin = nodes[: 4 * len(blocks)]
    for proj, fc2 in zip(swin[1::4], swin[3::4], strict=True):
        assert fc2.input[3] == proj.output[0]
    parts = ("attn/qkv", "attn/proj", "mlp/fc1", "mlp/fc2")
    assert [x.name for x in swin[:4]] == [f"/backbone/stages.0/blocks.0/{x}/Linear" for x in parts][
        : len(swin)
    ]
    for node in nodes[len(swin) :]:
        assert re.fullmatch(r"/(encoder|decoder)/layers\.\d/(self|cross)_attn/Linear(_1)?", node.name)


@pytest.fixture(scope="module")
def exported_without_linears(exported, tmp_path_factory) -> Path:
    """The same model without the nodes `Linear` and `LinearMax`."""
    name, _, inputs, *_ = exported
    plain, _ = load_golden(name)
    plain.fold_position_biases()
    if name == WRITTEN_OUT:
        plain.write_out_group_norms()

    def linear(x, weight, bias, residual=None, mask=None, norm_weight=None, norm_bias=None, eps=1e-5):
        result = F.linear(x, weight, bias)
        if residual is None:
            return result * mask
        return F.layer_norm(residual + result, norm_weight.shape, norm_weight, norm_bias, eps)

    path = tmp_path_factory.mktemp(name) / "plain.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msda.module, "linear", linear)
        patch.setattr(msda, "has_fast_linear_max", lambda *sizes: False)
        write_onnx(export_program(plain, inputs), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_linear_nodes_change_no_quantisation(exported, exported_without_linears, precision):
    """The same layers become 8 bits, and the reasons of the others are the same, as without these nodes.

    The nodes of the other layers stay, the query selection's `LinearMax` among them.
    """
    name, _, _, path, _ = exported
    found, expected = (Quantizer(onnx.load(x), precision) for x in (path, exported_without_linears))
    assert [x.product.key for x in found.layers] == [x.product.key for x in expected.layers]
    assert [x.group for x in found.layers] == [x.group for x in expected.layers]
    assert found.kept == expected.kept
    for quantizer in (found, expected):
        quantizer.assume_ranges(4.0)
    with_nodes, without = (ir.from_proto(x.quantize(x.layers)) for x in (found, expected))
    linears = [node.op_type for node in found.model.graph.node].count(LINEAR)
    outputs = {product_name(node) for node in ir.from_proto(found.model).graph if node.op_type == LINEAR}
    eight_bits = sum(layer.product.output.name in outputs for layer in found.layers)
    assert eight_bits < linears == len(outputs)
    assert bool(eight_bits) == (name != "codino_resnet_tiny")  # of Swin
    assert write_out_linears(with_nodes) == linears - eight_bits + 1  # of the query selection
    counts = [Counter(node.op_type for node in x.graph) for x in (with_nodes, without)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_normalisations_before_layers_in_8_bits(exported, precision):
    """Those of Swin's blocks quantise. Other norms are read in 16 bits too, or alone."""
    name, model, _, path, _ = exported
    narrow = onnx.load(path)
    convert_precision(narrow, "fp16")
    quantizer = Quantizer(narrow, precision)
    quantizer.assume_ranges(4.0)
    quantized = ir.from_proto(quantizer.quantize(quantizer.layers))
    before = Counter(node.op_type for node in quantized.graph)
    layers = fuse_layers(quantized, lambda layer: layer.residual is None or layer.output_scale is None)
    after = Counter(node.op_type for node in quantized.graph)
    norms = 2 * sum(isinstance(x, SwinBlock) for x in model.backbone.modules())
    assert after[QUANTIZED_LINEAR] == layers and after[QUANTIZED_LAYER_NORM] == norms
    assert after["LayerNormalization"] == before["LayerNormalization"] - norms
    assert bool(norms) == (name == "codino_swin_tiny")
    sizes = []
    fuse_quantized_feed_forwards(quantized.graph, lambda *block: sizes.append(block) or True)
    assert len(sizes) == len(model.encoder.layers) * (precision == "int8")
    assert all(rows > 1000 for rows, _, _ in sizes)  # none of the decoder


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_scores_of_a_conversion(exported, precision):
    """`LinearMax` reads what the norm writes in 16 bits. Its scores have float32's accuracy."""
    _, model, inputs, path, _ = exported
    converted = onnx.load(path)
    convert_precision(converted, precision)
    graph = onnx.shape_inference.infer_shapes(converted, check_type=True, strict_mode=True).graph
    types = {x.name: x.type.tensor_type.elem_type for x in graph.value_info}
    (node,) = (x for x in graph.node if x.op_type == LINEAR_MAX)
    (norm,) = (x for x in graph.node if node.input[0] in x.output)
    assert norm.op_type == "LayerNormalization"
    found = [types[x] for x in (*norm.output[:1], *node.output)]
    assert found == [ELEMENTS[precision], onnx.TensorProto.FLOAT]
    constants = {x.name: onnx.numpy_helper.to_array(x) for x in graph.initializer}
    branch = model.query_selection.class_branch
    for name, parameter in zip(node.input[1:], (branch.weight, branch.bias), strict=True):
        assert constants[name].dtype == np.float32
        np.testing.assert_array_equal(constants[name], parameter.detach())
    for name in (node.input[0], node.output[0]):
        converted.graph.output.append(onnx.helper.make_tensor_value_info(name, types[name], None))
    given = {"images": inputs[0].numpy(), "image_shapes": inputs[1].numpy()}
    *_, x, best = onnx_session.run(converted, given)
    x, best = torch.from_numpy(x).float(), torch.from_numpy(best)
    torch.testing.assert_close(best, branch(x).amax(-1), rtol=1e-5, atol=1e-5)


def test_exported_group_norms(exported):
    """Each level of the neck has one, of the result of a layer and the norm's parameters."""
    name, model, _, path, counts = exported
    exported_model = onnx.load(path)
    nodes = [node for node in exported_model.graph.node if node.op_type == GROUP_NORM]
    bodies = [body.name for body in exported_model.functions].count(GROUP_NORM)
    norms = [x for x in model.neck.modules() if isinstance(x, GroupNorm)] if name == WRITTEN_OUT else []
    assert len(nodes) == len(norms) == counts[GROUP_NORM] and bodies == bool(norms)
    constants = {x.name: onnx.numpy_helper.to_array(x) for x in exported_model.graph.initializer}
    made = {node.output[0]: node for node in exported_model.graph.node}
    for norm, node in zip(norms, nodes, strict=True):
        attributes = attributes_of(node)
        assert attributes.pop("eps") == pytest.approx(norm.eps)
        assert attributes == PLUGIN_ATTRIBUTES | {"num_groups": norm.num_groups}
        x, weight, bias = node.input
        assert made[x].op_type in ("MatMul", "Transpose")
        np.testing.assert_array_equal(constants[weight], norm.weight.detach())
        np.testing.assert_array_equal(constants[bias], norm.bias.detach())
        assert re.fullmatch(r"/neck/(extra_)?convs\.\d/norm/GroupNorm", node.name)
    if name == WRITTEN_OUT:  # and no mean over cells remains
        assert not counts["ReduceMean"]


def test_exported_nodes_are_named_by_modules(exported):
    """TensorRT's layers get these names. An attention's name has its part and layer."""
    name, _, _, path, _ = exported
    nodes = onnx.load(path).graph.node
    assert len({node.name for node in nodes}) == len(nodes)
    found = [node.name.rpartition("/")[0] for node in nodes if node.op_type == attention.FUSED_ATTENTION]
    layers = [f"/encoder/layers.{i}/self_attn" for i in range(MODELS[name])]
    layers += [f"/decoder/layers.{i}/cross_attn" for i in range(MODELS[name])]
    assert set(found) < set(layers) and len(set(found)) == MODELS[name]
    top = [node for node in nodes if node.name.count("/") == 1]
    assert len(top) < 0.2 * len(nodes)


def test_exported_file_names_no_path_of_this_machine(exported):
    content = exported[3].read_bytes()
    assert b"site-packages" not in content and bytes(REPOSITORY) not in content


def test_tensorrt_gets_one_projection_for_each_attention(exported):
    name, _, _, path, counts = exported
    with parsed_file(path) as parsed:
        nodes = onnx.load(parsed).graph.node
    attentions = [node for node in nodes if node.op_type == attention.FUSED_ATTENTION]
    assert [len(node.input) for node in attentions] == [5] * MODELS[name]
    after = Counter(node.op_type for node in nodes)
    # No kernel runs linear layers in float32, so these became products and sums. Half of them have a second
    # sum, of the residual. Those of the values have a product with the mask, and those behind an attention a
    # normalisation. The query selection's layer has one product and one sum too.
    linears, swin = counts[LINEAR], counts[LINEAR] - 2 * MODELS[name]
    assert not after[LINEAR] and after["Gelu"] == swin // 4
    assert after["Mul"] - counts["Mul"] == MODELS[name]
    assert after["LayerNormalization"] - counts["LayerNormalization"] == MODELS[name]
    assert (counts[LINEAR_MAX], after[LINEAR_MAX]) == (1, 0)
    assert after["ReduceMax"] - counts["ReduceMax"] == 1
    assert counts["MatMul"] + linears + 1 - after["MatMul"] == MODELS[name]
    assert counts["Add"] + linears + linears // 2 + 1 - after["Add"] == MODELS[name]
    assert len({node.name for node in nodes}) == len(nodes)
    assert counts["Reshape"] - after["Reshape"] == 2 * MODELS[name] and after["Shape"] == counts["Shape"]
    made = {node.output[0]: node.name for node in nodes}
    for node in attentions:
        module = node.name.rpartition("/")[0]
        assert made[node.input[4]] == f"{module}/projection/Add"


@pytest.mark.parametrize("packed", [False, True], ids=["file", "as_tensorrt_gets_it"])
def test_exported_file_runs_in_onnxruntime(exported, packed, tmp_path):
    _, model, inputs, path, _ = exported
    if packed:
        with parsed_file(path) as parsed:
            changed = onnx.load(parsed)
        add_bodies(changed)
        path = tmp_path / "packed.onnx"
        onnx.save(changed, path)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(
        ["boxes", "scores", "labels"], {"images": inputs[0].numpy(), "image_shapes": inputs[1].numpy()}
    )
    with torch.no_grad():
        expected = [output.numpy() for output in model(*inputs)]
    comparison = compare_detections(expected, found, box_tolerance_px=1e-3, score_tolerance=1e-5)
    assert comparison.equal == comparison.expected == expected[1].size, comparison
    assert (found[2] == expected[2]).all()


def test_failing_build_raises_tensorrts_reason_and_prints_nothing(tensorrt, tmp_path, monkeypatch, capfd):
    """TensorRT reports the reason, and polygraphy prints."""
    from polygraphy.backend import trt as backend
    from polygraphy.logger import G_LOGGER

    def build() -> bytes:
        backend.get_trt_logger().log(tensorrt.ILogger.ERROR, "no tactic\nfor node 7")
        G_LOGGER.critical("Invalid Engine")

    monkeypatch.setattr(backend, "EngineBytesFromNetwork", lambda *_, **__: build)
    path = attention_file(tmp_path / "model.onnx")
    capfd.readouterr()
    with pytest.raises(RuntimeError, match=r"^name: TensorRT cannot build .*: no tactic for node 7$"):
        serialize_engine(path, Settings(), "name")
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, Path]:
    """The golden models' weights as checkpoints."""
    return save_weights(tmp_path_factory.mktemp("weights"))


def test_command_without_gpu_stops_after_the_onnx_file(weights, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    fields = json.loads((GOLDEN / "codino_resnet_tiny.json").read_text())
    config = tmp_path / "tiny.json"
    config.write_text(json.dumps(fields | {"resize_scale": [120, 90]}))
    options = {"model": config, "batch": 2, "precision": "fp16", "device": "cpu"}
    given = without(arguments(weights, out, **options), "--height", "--width")
    assert main([*given, "--no-function-body"]) == 0
    assert {file.name for file in out.iterdir()} == {"model.onnx", "model.json"}
    metadata = json.loads((out / "model.json").read_text(encoding="utf-8"))
    assert metadata["precision"] == "fp16" and metadata["tensorrt_version"] == metadata["gpu"] == ""
    assert metadata["resize"] == {"height": 96, "width": 128, "mode": "fit_pad", "scale": [120, 90]}
    assert {file.name for file in tmp_path.iterdir()} == {"new", "tiny.json"}
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("note: ") for line in lines)
    wrote = f"wrote model.onnx and model.json in {out}"
    assert lines[-1] == f"{wrote}; stopped there: no GPU to build a TensorRT engine for"
    assert any(line.startswith("export model.onnx: ") and line.endswith(" s") for line in lines)

    model = onnx.load(out / "model.onnx")
    assert not model.functions
    graph = model.graph
    assert [dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim] == [2, 3, 96, 128]
    types = {v.name: v.type.tensor_type.elem_type for v in [*graph.value_info, *graph.output]}
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    for node in graph.node:
        if node.op_type == attention.FUSED_ATTENTION:
            value, points, offsets, logits = (types[node.input[i]] for i in (0, 3, 4, 5))
            assert (value, points, types[node.output[0]]) == (half, single, half)
            assert {offsets, logits} <= {half, single}
        if node.op_type == "LinearMax":
            assert [types.get(node.input[0]), types[node.output[0]]] == [half, single]
        if node.op_type == "TopKIndices":
            assert types[node.input[0]] == single
    counts = Counter(node.op_type for node in graph.node)
    assert (counts["LinearMax"], counts["TopKIndices"], counts["TopK"]) == (1, 2, 0)
    assert (types["boxes"], types["scores"]) == (single, single)


@pytest.mark.parametrize("name", ["model.json", "model.engine"])
def test_other_files_keep_their_model_json(weights, tmp_path, capsys, name):
    """The configuration of a training run stays, and so does the description of an older engine."""
    (tmp_path / name).write_bytes((GOLDEN / "codino_resnet_tiny.json").read_bytes())
    before = (tmp_path / name).read_bytes()
    assert main(arguments(weights, tmp_path, device="cpu")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "error: --out: expected a folder" in line and name in line
    assert [file.name for file in tmp_path.iterdir()] == [name] and (tmp_path / name).read_bytes() == before


@pytest.mark.slow
def test_command_in_8_bits(weights, tmp_path, monkeypatch):
    """The encoder's FFN becomes FP8, and the file runs in onnxruntime, by its metadata."""
    monkeypatch.setenv("CODETR_CACHE", str(tmp_path / "cache"))
    pictures, out = GOLDEN.parent / "scenes" / "val", tmp_path / "out"
    options = {"precision": "fp8", "calibration-data": pictures, "calibration-images": 2}
    assert main([*arguments(weights, out, **options), "--onnx-only"]) == 0
    nodes = Counter(node.op_type for node in onnx.load(out / "model.onnx").graph.node)
    assert (nodes["QuantizeLinear"], nodes["DequantizeLinear"]) == (2, 4)
    with codetr.Detector(onnx=out / "model.onnx", device="cpu") as detector:
        assert "fp8" in detector.backend.load().description
        batch = detector.backend.preprocessor.batch([load_image(pictures / "000000.jpg")])
        inputs = {"images": batch.images, "image_shapes": batch.image_shapes}
        found = detector.backend(*inputs.values())
    assert found[1].max() > 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "nope"}, "nope"),
        ({"weights": "nowhere.pth"}, "nowhere.pth"),
        ({"weights": GOLDEN / "README.md"}, "README.md: "),
        ({"model": GOLDEN / "codino_swin_tiny.json"}, "codino_swin_tiny"),
        ({"height": 8, "width": 8}, "images: 8 x 8 pixels give"),
        ({"batch": 0}, "--batch"),
        ({"photo": GOLDEN / "README.md"}, "README.md"),
        ({"out": GOLDEN / "README.md"}, "README.md"),
        ({"timing-cache": GOLDEN}, "--timing-cache"),
        ({"precision": "int8"}, "--calibration-data: expected a folder of pictures with int8"),
        (
            {"precision": "int8", "calibration-data": Path(__file__).parent},
            "--calibration-data: expected pictures (",
        ),
        ({"calibration-data": GOLDEN}, "--calibration-data: expected int8 or fp8 with it, got fp32"),
        ({"calibration-images": 8}, "--calibration-images: expected int8 or fp8 with it, got fp32"),
        ({"device": "cuda"}, "--device"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_command_errors_are_one_line_and_leave_nothing(
    weights, tmp_path, capsys, monkeypatch, options, words
):
    monkeypatch.chdir(tmp_path)
    if "device" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    status = main(arguments(weights, tmp_path / "out", **({"device": "cpu"} | options)))
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert status in (1, 2)
    assert words in line and "export model.onnx" not in output.out
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_engine_detects_as_pytorch(tensorrt, name, precision, weights, quick_build, tmp_path, capsys):
    height, width = codetr.load_config(GOLDEN / f"{name}.json").input_hw
    options = {"height": height, "width": width, "batch": 2, "precision": precision}
    status = main([*arguments(weights, tmp_path / "out", name, **options), *quick_build])
    output = capsys.readouterr()
    assert status == 0, output.err
    names = {"model.onnx", "model.engine", "model.json"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    assert f"engine {precision} against PyTorch fp32: " in output.out
