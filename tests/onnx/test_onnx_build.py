"""`python -m onnx_path.build`: the input that it refuses, the files that it writes, its engines."""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto

import codetr
from onnx_path import build, surgeon
from onnx_path.tensorrt import model_for_tensorrt
from onnx_path.tensorrt.equivalent_commands import equivalent_commands
from onnx_path.tensorrt.optimization_profiles import ShapeRange, inputs_of
from onnx_path.tensorrt.tensorrt_engine import Settings
from tests.detector import exported_metadata
from tests.onnx import model_zoo, zoo_exporters
from tests.onnx.engine_stand_ins import SHAPES, SUMMARY, attention_file, converted, network, refuse_by
from tests.onnx.text_models import text_model
from trt_plugin import ArtifactMetadata
from trt_plugin.inspection import engine_summary

refuse = functools.partial(refuse_by, build.main)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (("--opt", "image:1x16x16"), "--opt"),
        (("--opt", "images"), "--opt"),
        ((*SHAPES, "--keep-fp32", "x"), "--keep-fp32"),
        ((*SHAPES, "--precision", "fp16", "--keep-fp32", "("), "--keep-fp32"),
        ((*SHAPES, "--workspace", "0"), "--workspace"),
        ((*SHAPES, "--timing-cache", "model.onnx/cache"), "--timing-cache"),
        ((*SHAPES, "--json", "out/model.json"), "--json"),
        ((*SHAPES, "--json", "model.onnx"), "--json"),
        ((*SHAPES, "--timing-cache", "c", "--json", "c"), "--json"),
        ((*SHAPES, "--out", "model.onnx"), "--out"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_wrong_options_are_named(model, tmp_path, capsys, monkeypatch, machine, options, option):
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in options else ["--out", "out"]
    assert option in refuse(capsys, tmp_path, "model.onnx", *out, *options)
    assert not machine


def test_example_in_the_message_is_accepted(model, tmp_path, capsys, machine):
    line = refuse(capsys, tmp_path, model, "--out", tmp_path)
    assert build.main([str(model), "--out", str(tmp_path), *shlex.split(line.partition("such as ")[2])]) == 0
    assert machine[0][1].profiles == {"images": ShapeRange((1, 16, 16), (1, 16, 16), (8, 16, 16))}


@pytest.mark.parametrize(("precision", "kind"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_a_16_bit_file_keeps_its_precision(model, tmp_path, capsys, machine, precision, kind):
    path = converted(model, precision)
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES, "--precision", "fp32")
    assert line.startswith("--precision: ") and f" is {kind})" in line
    assert build.main([str(path), "--out", str(tmp_path), *SHAPES]) == 0
    assert machine[0][0] == path  # as it is


def test_a_file_without_its_weights_is_named(tmp_path, capsys, machine):
    path = network(tmp_path / "model.onnx", external=True)
    (tmp_path / "model.weights").unlink()
    assert f"{path}: its weights are in" in refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES)


def test_a_file_that_tensorrt_can_parse_is_not_written_again(model, tmp_path, capsys, machine):
    report, cache = tmp_path / "reports" / "report.json", tmp_path / "cache"
    options = ["--workspace", "0.5", "--optimization-level", "1", "--precision", "tf32"]
    options += ["--timing-cache", str(cache), "--json", str(report)]
    assert build.main([str(model), "--out", str(tmp_path / "out"), *SHAPES, *options]) == 0
    ((path, settings, _),) = machine
    shapes = ShapeRange((1, 16, 16), (2, 16, 16), (4, 16, 16))
    assert path == model
    assert settings == Settings({"images": shapes}, True, 2**29, 1, cache)
    engine = tmp_path / "out" / "model.engine"
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == {model, report, engine}
    assert engine.read_bytes() == model.read_bytes()
    output = capsys.readouterr()
    assert output.err == ""
    commands = equivalent_commands(model, engine, settings)
    printed = output.out.splitlines()
    assert printed[-2:] == list(commands.values())
    assert f"wrote {engine}" in printed
    assert any("tf32" in line and "precision" in line for line in printed)
    content = json.loads(report.read_text())
    assert content["commands"] == commands
    assert (content["model"], content["parsed"], content["engine"]) == (str(model), str(model), str(engine))
    assert content["report"]["plugin_layers"] == ["attention"]
    assert content["report"]["inputs"][0]["max"] == [4, 16, 16]
    assert content["conversion"] is None


@pytest.mark.parametrize(("own", "given", "found"), [("fp32", "fp16", "fp16"), ("int8", "fp16", "int8")])
def test_the_engine_of_a_detector_gets_metadata(tmp_path, capsys, machine, own, given, found):
    model, out = exported_metadata.write_onnx(tmp_path, precision=own), tmp_path / "out"
    metadata = exported_metadata.fixed_metadata()
    assert build.main([str(model), "--out", str(out), "--precision", given]) == 0
    written = ArtifactMetadata.load(out / "model.json")
    assert (written.precision, written.batch, written.profiles) == (found, 2, {})
    assert (written.tensorrt_version, written.gpu) == (SUMMARY.tensorrt_version, SUMMARY.gpu)
    assert [(x["name"], x["shape"]) for x in written.inputs] == [
        (x["name"], x["shape"]) for x in metadata.inputs
    ]
    assert written.resize == metadata.resize and written.class_names == metadata.class_names
    assert f"and {out / 'model.json'}" in capsys.readouterr().out.replace("\n", "")


def test_other_json_files_are_no_metadata(model, tmp_path, machine):
    model.with_suffix(".json").write_text("{}")
    assert build.main([str(model), "--out", str(tmp_path / "out"), *SHAPES]) == 0
    assert not (tmp_path / "out" / "model.json").exists()


@pytest.mark.gpu
def test_engine_of_a_detector_detects(tensorrt, quick_build, tmp_path, capsys):
    model = exported_metadata.write_onnx(tmp_path)
    out = tmp_path / "out"
    status = build.main([str(model), "--out", str(out), *quick_build])
    assert status == 0, capsys.readouterr().err
    photo = Path(__file__).parents[1] / "scenes" / "val" / "000000.jpg"
    with (
        codetr.Detector(engine=out / "model.engine") as engine,
        codetr.Detector(onnx=model, device="cpu") as reference,
    ):
        (found,), (expected,) = engine.detect([photo]), reference.detect([photo])
    assert found.names() == expected.names() == ["dog"]
    np.testing.assert_allclose(found.boxes_xyxy_px, expected.boxes_xyxy_px, atol=0.05)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("external", [False, True])
def test_the_converted_file_lies_beside_the_engine(
    tmp_path, capsys, machine, monkeypatch, precision, external
):
    monkeypatch.chdir(tmp_path)
    source = network(Path("model.onnx"), external=external)
    before = source.read_bytes()
    argv = ["model.onnx", "--out", "out/best.plan", *SHAPES, "--precision", precision]
    assert build.main([*argv, "--keep-fp32", "^tanh_1$", "--keep-fp32", "nothing"]) == 0
    parsed = Path("out") / f"model.{precision}.onnx"
    assert sorted(file.name for file in Path("out").iterdir()) == ["best.plan", parsed.name]
    assert source.read_bytes() == before
    ((path, _, built),) = machine
    assert built == onnx.load(parsed)  # with the weights in it
    assert path.name == parsed.name and not path.exists()  # built in a temporary folder
    weight = next(x for x in built.graph.initializer if x.name.startswith("weight"))
    assert weight.data_type == (TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16)
    lines = capsys.readouterr().out.splitlines()
    assert f"wrote out/best.plan and {parsed}" in lines
    assert any(line.startswith("conversion: ") and "asked for" in line for line in lines)
    for line in lines[-2:]:
        assert "out/best.plan" in line and str(parsed) in line and "images" in line


@pytest.mark.parametrize(
    ("sizes", "options", "shape", "of_output"),
    [
        ({}, ("--opt", "images:2x16x16"), [2, 16, 16], 2),
        ({"batch": "?"}, ("--opt", "images:2x16x16"), [2, 16, 16], None),
        ({"rows": "rows"}, SHAPES, ["batch", 16, 16], "batch"),
    ],
    ids=["named", "unnamed", "one of two"],
)
def test_sizes_without_a_choice_are_fixed_for_tensorrt(
    tmp_path, capsys, machine, sizes, options, shape, of_output
):
    path = network(tmp_path / "model.onnx", **sizes)
    before = path.read_bytes()
    assert build.main([str(path), "--out", str(tmp_path), *options]) == 0
    ((_, settings, built),) = machine
    assert list(settings.profiles) == ["images"] * (options == SHAPES)
    (found,) = inputs_of(built)
    assert list(found.shape) == shape
    dims = built.graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value or dim.dim_param or None for dim in dims] == [of_output, 16, 16]
    assert onnx.load(tmp_path / "model.trt.onnx") == built
    assert path.read_bytes() == before
    assert all("model.trt.onnx" in line for line in capsys.readouterr().out.splitlines()[-2:])


def test_a_file_with_samplers_gets_a_note_about_the_surgeon(tmp_path, capsys, machine):
    """A file with an MSDA node has been through the surgeon."""
    model = text_model(
        "samples = GridSample(maps, grid) more = GridSample(maps, grid)",
        "float[1, 2, 8, 8] maps, float[1, 5, 5, 2] grid",
        "float[1, 2, 5, 5] samples, float[1, 2, 5, 5] more",
        20,
    )
    path = tmp_path / "a model.onnx"
    onnx.save(model, path)
    assert build.main([str(path), "--out", str(tmp_path)]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert "2 GridSample nodes" in note
    words = shlex.split(note.rpartition(": ")[2])
    assert words == ["codetr", "surgeon", str(path), str(tmp_path / "a model.msda.onnx")]
    attention = onnx.load(attention_file(tmp_path / "attention.onnx"))
    for field in ("node", "input", "output"):
        getattr(attention.graph, field).extend(getattr(model.graph, field))
    onnx.save(attention, path)
    assert build.main([str(path), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def test_tensorrt_gets_msda_nodes_without_bodies(tmp_path, machine):
    path = attention_file(tmp_path / "attention.onnx")
    assert build.main([str(path), "--out", str(tmp_path)]) == 0
    ((_, _, built),) = machine
    assert not built.functions
    assert built.graph == onnx.load(path).graph
    assert onnx.load(tmp_path / "attention.trt.onnx") == built
    names = {"attention.onnx", "attention.trt.onnx", "attention.engine"}
    assert {file.name for file in tmp_path.iterdir()} == names


def test_weights_too_large_for_protobuf_go_beside_the_file(tmp_path, monkeypatch):
    source = network(tmp_path / "model.onnx", external=True)
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(model_for_tensorrt, "LARGEST_FILE", 8)
    model = onnx.load(source, load_external_data=False)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(9999, np.float32), "large"))
    model_for_tensorrt.save_model(model, out / "model.onnx", tmp_path)
    assert {file.name for file in out.iterdir()} == {"model.onnx", "model.onnx.data"}
    assert (out / "model.onnx.data").stat().st_size >= 4 * 9999
    arrays = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load(out / "model.onnx").graph.initializer}
    assert (arrays["weight_0"] != 0).all() and not arrays["large"].any()


def test_a_failing_build_leaves_the_files_that_were_there(tmp_path, capsys, machine, monkeypatch):
    """The last step fails, after the engine and the file that TensorRT parsed."""
    path = attention_file(tmp_path / "attention.onnx")
    out = tmp_path / "out"
    out.mkdir()
    (out / "attention.engine").write_text("before")

    def fails(*_arguments):
        raise RuntimeError("no memory to load it")

    monkeypatch.setattr(engine_summary, "read_engine", fails)
    argv = [path, "--out", out, "--json", tmp_path / "report.json"]
    assert "no memory" in refuse(capsys, tmp_path, *argv, status=1)
    assert (out / "attention.engine").read_text() == "before"


@pytest.fixture(scope="module")
def detr(tmp_path_factory, zoo_folder) -> tuple[Path, Path]:
    """Deformable DETR with dynamic sizes, exported and rewritten. It selects no queries by scores."""
    original = model_zoo.export("deformable_detr", zoo_folder, dynamic=True)
    rewritten = tmp_path_factory.mktemp("rewritten") / "model.onnx"
    assert surgeon.main([str(original), str(rewritten)]) == 0
    return original, rewritten


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    # Relative to the largest number. fp16: onnxruntime's own error on the converted file is 1e-3.
    [("fp32", 1e-4), ("fp16", 5e-3)],
)
def test_engine_with_dynamic_batch_is_onnxruntimes(
    tensorrt, quick_build, detr, tmp_path, capsys, precision, tolerance
):
    import trt_plugin

    original, rewritten = detr
    shapes = [
        word
        for option, batch in (("--min", 1), ("--opt", 2), ("--max", 4))
        for word in (option, f"pixel_values:{batch}x3x96x128,pixel_mask:{batch}x96x128")
    ]
    report = tmp_path / "report.json"
    argv = [str(rewritten), "--out", str(tmp_path), "--precision", precision, "--json", str(report)]
    status = build.main([*argv, *shapes, *quick_build, "--workspace", "2"])
    output = capsys.readouterr()
    assert status == 0, output.err
    content = json.loads(report.read_text())
    assert len(content["report"]["plugin_layers"]) == model_zoo.ZOO["deformable_detr"].layers
    assert {x["name"]: x["max"] for x in content["report"]["inputs"]}["pixel_mask"] == [4, 96, 128]
    with trt_plugin.EngineRunner(tmp_path / "model.engine") as runner:
        for batch in (1, 3):
            inputs = model_zoo.ZOO["deformable_detr"].other_inputs(96, 128, batch)
            expected = zoo_exporters.run_onnx(original, inputs)
            found = runner({name: tensor.numpy() for name, tensor in inputs.items()})
            for name, array in zip(model_zoo.ZOO["deformable_detr"].outputs, expected):
                error = np.abs(found[name] - array).max() / np.abs(array).max()
                assert error < tolerance, (batch, name, error)
