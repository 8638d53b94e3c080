"""The ONNX path: node bodies against the reference, exported detectors in onnxruntime, the command."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import codetr
import msda
from codetr.cli.command import UsageError
from codetr.export.box_agreement import compare_detections
from codetr.export.request import staged_folder
from tests.golden_models import GOLDEN, MODELS, arguments, load_golden, save_weights, without
from trt_plugin.tensorrt_log import tensorrt_logger

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx_path import build, operator  # noqa: E402
from onnx_path.comparison.onnxruntime_reference import add_bodies  # noqa: E402
from onnx_path.export import export_onnx, main  # noqa: E402
from onnx_path.tensorrt_engine import parsed_file  # noqa: E402

REPOSITORY = Path(__file__).parents[1]
ONNX_TYPES = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.int64: onnx.TensorProto.INT64,
    torch.int32: onnx.TensorProto.INT32,
}
LEVELS = [(6, 7), (3, 4), (1, 1)]


def node_model(
    op_type: str, tensors: dict[str, torch.Tensor], points_per_level: list[int] | None
) -> onnx.ModelProto:
    """A model of one node with its body, all dimensions dynamic."""
    attributes = dict(operator.PLUGIN_ATTRIBUTES)
    if points_per_level is not None:
        attributes["points_per_level"] = points_per_level
    helper = onnx.helper
    node = helper.make_node(op_type, list(tensors), ["output"], domain=operator.DOMAIN, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, ONNX_TYPES[tensor.dtype], [None] * tensor.dim())
        for name, tensor in tensors.items()
    ]
    output = helper.make_tensor_value_info("output", ONNX_TYPES[tensors["value"].dtype], [None] * 3)
    graph = helper.make_graph([node], "graph", inputs, [output])
    opsets = {"": operator.OPSET_VERSION, operator.DOMAIN: operator.DOMAIN_VERSION}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*pair) for pair in opsets.items()], ir_version=10
    )
    operator.add_function_bodies(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def run_body(
    op_type: str, tensors: dict[str, torch.Tensor], points_per_level: list[int] | None
) -> torch.Tensor:
    """Runs one node by its body in onnxruntime."""
    model = node_model(op_type, tensors, points_per_level).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in tensors.items()})[0])


def problem(
    op_type: str, points_per_level: list[int] | None, columns: int = 2, queries: int = 5, images: int = 2
) -> dict[str, torch.Tensor]:
    """Random inputs, locations partly outside."""
    generator = torch.Generator().manual_seed(0)
    heads, points = 3, 2
    shape = (images, queries, heads)
    shape += (len(LEVELS), points) if points_per_level is None else (sum(points_per_level),)
    total = len(LEVELS) * points if points_per_level is None else sum(points_per_level)
    sizes = [h * w for h, w in LEVELS]
    tensors = {
        "value": torch.randn(images, sum(sizes), heads, 8, generator=generator),
        "spatial_shapes": torch.tensor(LEVELS),
        "level_start_index": torch.tensor([sum(sizes[:i]) for i in range(len(sizes))]),
    }
    if op_type == operator.ATTENTION:
        return tensors | {
            "sampling_locations": torch.rand(*shape, 2, generator=generator) * 1.4 - 0.2,
            "attention_weights": torch.rand(*shape, generator=generator),
        }
    return tensors | {
        "reference_points": torch.rand(images, queries, len(LEVELS), columns, generator=generator),
        "sampling_offsets": torch.randn(*shape, 2, generator=generator) * 2,
        "attention_logits": torch.randn(images, queries, heads, total, generator=generator),
    }


def reference(
    op_type: str, tensors: dict[str, torch.Tensor], points_per_level: list[int] | None
) -> torch.Tensor:
    function = {
        operator.ATTENTION: msda.reference.attention,
        operator.FUSED_ATTENTION: msda.reference.fused_attention,
    }[op_type]
    wide = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    return function(**wide, points_per_level=points_per_level)


POINTS = pytest.mark.parametrize(
    "points_per_level", [None, [2, 1, 3], [3, 0, 1]], ids=["equal", "ragged", "zero"]
)
OPERATORS = pytest.mark.parametrize(
    ("op_type", "columns"),
    [(operator.ATTENTION, 2), (operator.FUSED_ATTENTION, 2), (operator.FUSED_ATTENTION, 4)],
    ids=["attention", "fused-points", "fused-boxes"],
)


@POINTS
@OPERATORS
def test_function_body_is_the_reference(op_type, columns, points_per_level):
    tensors = problem(op_type, points_per_level, columns)
    got = run_body(op_type, tensors, points_per_level)
    torch.testing.assert_close(got.double(), reference(op_type, tensors, points_per_level), rtol=0, atol=1e-5)


@OPERATORS
def test_function_body_takes_16_bit_values_and_32_bit_levels(op_type, columns):
    tensors = problem(op_type, None, columns)
    for name in ("value", "attention_weights", "attention_logits", "sampling_offsets"):
        if name in tensors:
            tensors[name] = tensors[name].half()
    for name in ("spatial_shapes", "level_start_index"):
        tensors[name] = tensors[name].int()
    got = run_body(op_type, tensors, None)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), reference(op_type, tensors, None), rtol=1e-3, atol=1e-3)


def test_function_body_ignores_locations_that_are_not_finite():
    tensors = problem(operator.ATTENTION, None)
    locations = tensors["sampling_locations"]
    for index, bad in enumerate((float("nan"), float("inf"), -float("inf"), 1e30)):
        locations[0, index, 0, 0, 0, index % 2] = bad
    got = run_body(operator.ATTENTION, tensors, None)
    torch.testing.assert_close(got.double(), reference(operator.ATTENTION, tensors, None), rtol=0, atol=1e-5)


def test_function_body_does_not_spread_values_that_are_not_finite():
    tensors = problem(operator.ATTENTION, None)
    tensors["value"][0, 0] = float("nan")  # the corner cell of the finest level
    tensors["sampling_locations"].fill_(1.5)
    assert (run_body(operator.ATTENTION, tensors, None) == 0).all()


@pytest.mark.parametrize("size", [{"queries": 0}, {"images": 0}], ids=str)
def test_function_body_takes_nothing(size):
    tensors = problem(operator.FUSED_ATTENTION, None, **size)
    expected = reference(operator.FUSED_ATTENTION, tensors, None)
    assert run_body(operator.FUSED_ATTENTION, tensors, None).shape == expected.shape


class Ragged(torch.nn.Module):
    def forward(self, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
        return torch.ops.msda.attention(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, [2, 1, 3]
        )


def test_translation_of_the_plain_operator_keeps_points_per_level():
    tensors = problem(operator.ATTENTION, [2, 1, 3])
    program = torch.onnx.export(
        Ragged().eval(),
        tuple(tensors.values()),
        dynamo=True,
        verbose=False,
        opset_version=operator.OPSET_VERSION,
        custom_translation_table=operator.translation_table(),
    )
    (node,) = program.model_proto.graph.node
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert (node.domain, node.op_type) == (operator.DOMAIN, operator.ATTENTION)
    assert attributes == {
        "points_per_level": [2, 1, 3],
        "plugin_namespace": b"msda",
        "plugin_version": b"1",
    }


# One of the models is exported with its group norms written out.
WRITTEN_OUT = "codino_resnet_tiny"


def model_levels(name: str) -> int:
    return codetr.load_config(GOLDEN / f"{name}.json").num_levels


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
    """A golden model exported: name, model, golden inputs, path, count of nodes by operator."""
    model, tensors = load_golden(request.param)
    inputs = tensors["in/images"], tensors["in/image_shapes_hw"].long()
    path = tmp_path_factory.mktemp(request.param) / "model.onnx"
    if request.param == WRITTEN_OUT:
        model.write_out_group_norms()
    return request.param, model, inputs, path, export_onnx(model, inputs, path)


def test_exported_graph(exported):
    name, _, (images, _), path, counts = exported
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path)
    graph = model.graph
    assert counts == Counter(node.op_type for node in graph.node)
    assert counts[operator.FUSED_ATTENTION] == MODELS[name]
    assert counts["InstanceNormalization"] == (0 if name == WRITTEN_OUT else model_levels(name))
    assert not {"GridSample", "CumSum", "NonZero", "If", "Loop", "ScatterND"} & counts.keys()
    assert [tensor.name for tensor in graph.input] == ["images", "image_shapes"]
    assert [tensor.name for tensor in graph.output] == ["boxes", "scores", "labels"]
    assert [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == list(images.shape)

    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.domain != operator.DOMAIN:
            continue
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert attributes == {"plugin_namespace": b"msda", "plugin_version": b"1"}
        shapes, starts = (constants[tensor] for tensor in node.input[1:3])
        sizes = shapes.prod(axis=1)
        assert shapes.dtype == starts.dtype == np.int64
        assert starts.tolist() == (np.cumsum(sizes) - sizes).tolist()


def test_exported_nodes_are_named_by_modules(exported):
    """So that TensorRT's layers are; every attention node says which layer of which part it is in."""
    name, _, _, path, _ = exported
    nodes = onnx.load(path).graph.node
    assert len({node.name for node in nodes}) == len(nodes)
    found = [node.name.rpartition("/")[0] for node in nodes if node.op_type == operator.FUSED_ATTENTION]
    layers = [f"/encoder/layers.{i}/self_attn" for i in range(MODELS[name])]
    layers += [f"/decoder/layers.{i}/cross_attn" for i in range(MODELS[name])]
    assert set(found) < set(layers) and len(set(found)) == MODELS[name]
    top = [node for node in nodes if node.name.count("/") == 1]
    assert len(top) < 0.2 * len(nodes)


def test_exported_file_names_no_path_of_this_machine(exported):
    content = exported[3].read_bytes()
    assert b"site-packages" not in content and bytes(Path(__file__).parents[1]) not in content


def test_tensorrt_gets_one_projection_for_each_attention(exported):
    name, _, _, path, counts = exported
    with parsed_file(path) as parsed:
        nodes = onnx.load(parsed).graph.node
    attentions = [node for node in nodes if node.op_type == operator.FUSED_ATTENTION]
    assert [len(node.input) for node in attentions] == [5] * MODELS[name]
    after = Counter(node.op_type for node in nodes)
    assert counts["MatMul"] - after["MatMul"] == counts["Add"] - after["Add"] == MODELS[name]
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


def test_build_hands_tensorrt_a_file_without_bodies(tmp_path):
    path = tmp_path / "model.onnx"
    model = node_model(operator.FUSED_ATTENTION, problem(operator.FUSED_ATTENTION, None), None)
    onnx.save(model, path)
    with parsed_file(path) as stripped:
        parsed = onnx.load(stripped)
        assert stripped.parent == path.parent
        assert not parsed.functions
        assert parsed.graph == model.graph
        onnx.save(parsed, tmp_path / "plain.onnx")
    with parsed_file(tmp_path / "plain.onnx") as unchanged:
        assert unchanged == tmp_path / "plain.onnx"
    assert {file.name for file in tmp_path.iterdir()} == {"model.onnx", "plain.onnx"}
    assert onnx.load(path) == model


class FailingBuild:
    """Stands for polygraphy's loader: TensorRT reports, polygraphy prints, and it fails."""

    def __init__(self, *_arguments, **_options) -> None:
        pass

    def __call__(self) -> bytes:
        import tensorrt as trt
        from polygraphy.backend.trt import get_trt_logger
        from polygraphy.logger import G_LOGGER

        get_trt_logger().log(trt.ILogger.WARNING, "a warning")
        get_trt_logger().log(trt.ILogger.ERROR, "no tactic\nfor node 7")
        G_LOGGER.start("noise")
        G_LOGGER.warning("noise")
        G_LOGGER.critical("Invalid Engine")


def test_failing_build_tells_tensorrts_reason_and_prints_nothing(tmp_path, monkeypatch, capfd):
    trt_backend = pytest.importorskip("polygraphy.backend.trt", reason="polygraphy is not installed")
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    from polygraphy.logger import G_LOGGER

    monkeypatch.setattr(build, "import_requirements", lambda: None)
    monkeypatch.setattr(trt_backend, "EngineBytesFromNetwork", FailingBuild)
    path = tmp_path / "model.onnx"
    onnx.save(node_model(operator.ATTENTION, problem(operator.ATTENTION, None), None), path)
    before = G_LOGGER.module_severity.trie
    capfd.readouterr()
    with pytest.raises(RuntimeError) as error:
        build.build_engine(path, tmp_path / "model.engine")
    assert str(error.value) == "model.onnx: TensorRT cannot build an engine of it: no tactic for node 7"
    assert capfd.readouterr() == ("", "")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert G_LOGGER.module_severity.trie == before
    assert trt_backend.get_trt_logger() is not tensorrt_logger()


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
        if node.domain == operator.DOMAIN:
            value, points, offsets, logits = (types[node.input[i]] for i in (0, 3, 4, 5))
            assert (value, points, types[node.output[0]]) == (half, single, half)
            assert {offsets, logits} <= {half, single}
        if node.op_type == "TopK":
            assert types[node.input[0]] == single
    assert (types["boxes"], types["scores"]) == (single, single)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "nope"}, "model 'nope': expected one of"),
        ({"weights": "nowhere.pth"}, "nowhere.pth: no such"),
        ({"weights": GOLDEN / "README.md"}, "README.md: "),
        ({"model": GOLDEN / "codino_swin_tiny.json"}, "the weights are not those of model codino_swin_tiny"),
        ({"height": -8}, "--height: expected a whole number above 0, got '-8'"),
        ({"height": 8, "width": 8}, "images: 8 x 8 pixels give"),
        ({"batch": 0}, "--batch: expected a whole number above 0, or a range such as 1-8, got '0'"),
        ({"precision": "int4"}, "--precision: invalid choice: 'int4'"),
        ({"photo": GOLDEN / "README.md"}, "README.md: not an image"),
        ({"out": GOLDEN / "README.md"}, "README.md: cannot write there (is a file, not a folder)"),
        ({"out": "/proc/out"}, "--out /proc/out: cannot write there"),
        ({"out": ""}, "--out: expected a path, got ''"),
        ({"weights": GOLDEN}, "golden: is a folder, not a file; expected a file, a URL, or one of co_dino"),
        ({"photo": "nowhere.jpg"}, "--photo nowhere.jpg: no such file"),
        ({"timing-cache": GOLDEN}, "golden: is a folder, not a file"),
        ({"timing-cache": "/proc/out/cache"}, "--timing-cache /proc/out/cache: cannot write there"),
        ({"device": "cuda"}, "--device cuda: PyTorch finds no GPU here"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_command_errors_are_one_line_and_leave_nothing(
    weights, tmp_path, capsys, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    if "device" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    status = main(arguments(weights, tmp_path / "out", **({"device": "cpu"} | options)))
    errors = capsys.readouterr().err.splitlines()
    assert status in (1, 2)
    assert len(errors) == 1 and errors[0].startswith("error: ") and message in errors[0], errors
    assert not list(tmp_path.iterdir())


def test_failure_on_the_way_keeps_what_was_there(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.onnx").write_text("before")
    with pytest.raises(KeyboardInterrupt), staged_folder(out) as folder:
        (folder / "model.onnx").write_text("half")
        raise KeyboardInterrupt
    assert [(file.name, file.read_text()) for file in out.iterdir()] == [("model.onnx", "before")]
    with staged_folder(out) as folder:
        (folder / "model.onnx").write_text("whole")
    assert [(file.name, file.read_text()) for file in out.iterdir()] == [("model.onnx", "whole")]
    with pytest.raises(OSError) as error, staged_folder(out) as folder:
        raise OSError(errno.EIO, "Input/output error", str(folder / "model.onnx"))
    assert error.value.filename == str(out)


@pytest.mark.parametrize("death", ["os.abort()", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_process_that_dies_leaves_nothing(tmp_path, death):
    """As TensorRT ends it by abort, and the system for want of memory."""
    code = f"""import os, signal, sys
from pathlib import Path
from codetr.export.request import staged_folder
with staged_folder(Path(sys.argv[1]) / "out") as folder:
    (folder / "model.onnx").write_text("half")
    assert folder.parent == Path(sys.argv[1])
    {death}
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], timeout=120, check=False)
    assert done.returncode < 0
    deadline = time.monotonic() + 20
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


def test_files_go_all_or_none(tmp_path):
    """A folder that has the name of one of the files."""
    out = tmp_path / "out"
    (out / "model.onnx").mkdir(parents=True)
    with (
        pytest.raises(UsageError, match=r"model.onnx is a folder there, not a file"),
        staged_folder(out) as folder,
    ):
        (folder / "model.json").touch()
        (folder / "model.onnx").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "model.onnx"]


def test_missing_package_is_named(tmp_path, weights):
    code = (
        "import sys; sys.modules['onnxscript'] = None; from onnx_path.export import main; "
        f"sys.exit(main({arguments(weights, tmp_path / 'out', device='cpu')!r}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert result.returncode == 1
    assert result.stderr == "error: onnxscript is not installed: pip install 'codetr-tensorrt[onnx]'\n"
    assert result.stdout == ""  # before a model is loaded
    assert not list(tmp_path.iterdir())


class NormalizedConstant(torch.nn.Module):
    """A constant that onnxscript's optimizer says that it does not fold."""

    def forward(self, images: torch.Tensor, image_shapes: torch.Tensor) -> torch.Tensor:
        return images + image_shapes + torch.nn.functional.layer_norm(torch.ones(4), [4])


def test_constants_that_are_not_folded_are_no_message(tmp_path, caplog):
    with caplog.at_level("DEBUG"):
        counts = export_onnx(
            NormalizedConstant(),
            (torch.ones(4), torch.ones(4)),
            tmp_path / "model.onnx",
            output_names=["sums"],
        )
    assert counts["LayerNormalization"] == 1
    assert "Skipping constant folding" not in caplog.text
    logger = logging.getLogger("onnxscript.optimizer._constant_folding")
    with caplog.at_level("DEBUG"):
        logger.warning("Skipping constant folding of the next caller")
    assert "of the next caller" in caplog.text and not logger.filters


def detections(*rows: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (x1, y1, x2, y2, score, label) -> boxes, scores, labels of one image."""
    table = np.array(rows, dtype=np.float32).reshape(1, -1, 6)
    return table[..., :4], table[..., 4], table[..., 5].astype(np.int64)


def test_comparison_matches_by_content_not_by_place():
    one, two = (10, 10, 50, 50, 0.9, 3), (60, 60, 90, 99, 0.9, 3)
    comparison = compare_detections(detections(one, two), detections(two, one))
    assert (comparison.matched, comparison.equal, comparison.max_box_difference_px) == (2, 2, 0)


@pytest.mark.parametrize(
    ("other", "matched", "equal"),
    [
        ((10.03, 10, 50, 50, 0.9, 3), 1, 1),
        ((10.2, 10, 50, 50, 0.9, 3), 1, 0),
        ((10, 10, 50, 50, 0.91, 3), 1, 0),
        ((10, 10, 50, 50, 0.9, 4), 0, 0),
        ((30, 30, 70, 70, 0.9, 3), 0, 0),
        ((float("nan"), 10, 50, 50, 0.9, 3), 0, 0),
    ],
)
def test_comparison_counts(other, matched, equal):
    comparison = compare_detections(detections((10, 10, 50, 50, 0.9, 3)), detections(other))
    assert (comparison.expected, comparison.matched, comparison.equal) == (1, matched, equal)
    assert comparison.equal_share == equal


def test_comparison_matches_one_to_one():
    box = (10, 10, 50, 50, 0.9, 3)
    comparison = compare_detections(detections(box, box), detections(box, (0, 0, 5, 5, 0.9, 3)))
    assert (comparison.expected, comparison.matched, comparison.equal_share) == (2, 1, 0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_engine_detects_as_pytorch(name, precision, weights, timing_cache, tmp_path, capsys):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    height, width = codetr.load_config(GOLDEN / f"{name}.json").input_hw
    options = {"height": height, "width": width, "batch": 2, "precision": precision}
    options |= {"timing-cache": timing_cache}
    status = main(arguments(weights, tmp_path / "out", name, **options))
    output = capsys.readouterr()
    assert status == 0, output.err
    names = {"model.onnx", "model.engine", "model.json"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    assert f"engine {precision} against PyTorch fp32: " in output.out
