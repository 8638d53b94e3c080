"""`python -m onnx_path.build`: what it refuses, the files it writes, its engines."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from onnx import TensorProto, helper  # noqa: E402

from onnx_path import build, engine_report  # noqa: E402
from onnx_path import model_for_tensorrt as preparation
from onnx_path import optimization_profiles as profiles
from onnx_path.equivalent_commands import polygraphy_line, trtexec_line  # noqa: E402
from onnx_path.optimization_profiles import Profile  # noqa: E402
from onnx_path.tensorrt_engine import Settings  # noqa: E402
from tests import onnx_zoo  # noqa: E402
from tests.onnx_builds import SHAPES, attention_file, convolution, refuse  # noqa: E402

pytest_plugins = ("tests.onnx_builds",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--min", "images:1x3x8x8"),
            "--opt: expected a shape of images too; --min, --opt and --max go together",
        ),
        (("--opt", "image:1x3x8x8"), "--opt image: the file has no such input; its inputs are images"),
        (
            ("--opt", "images:1x3x8"),
            "--opt images:1x3x8: expected 4 sizes, as the file has images [batch, 3, 8, 8]",
        ),
        (
            ("--opt", "images:1x4x8x8"),
            "--opt images:1x4x8x8: expected 3 in dimension 1, as in the file, got 4",
        ),
        (
            (*SHAPES[:4], "--max", "images:1x3x8x8"),
            "--opt images:2x3x8x8: expected 1 to 1, as --min and --max say, in dimension 0, got 2",
        ),
        (
            ("--min", "images:5x3x8x8", *SHAPES[2:]),
            "--min images:5x3x8x8: expected at most 4, the size of --max, in dimension 0, got 5",
        ),
        (("--opt", "images:0x3x8x8"), "--opt images:0x3x8x8: expected sizes of 1 to 2147483647, got 0"),
        (("--opt", "images"), "--opt images: expected NAME:SIZExSIZE..., such as images:1x3x640x640"),
        (
            (),
            "model.onnx: input images [batch, 3, 8, 8]: dimension 0 (batch) is dynamic; say which sizes ",
        ),
        ((*SHAPES, "--precision", "int8"), "--precision: invalid choice: 'int8' (choose from"),
        ((*SHAPES, "--keep-fp32", "x"), "--keep-fp32: expected with --precision fp16 or bf16 only"),
        (
            (*SHAPES, "--precision", "fp16", "--keep-fp32", "("),
            "--keep-fp32 (: expected a regular expression (missing )",
        ),
        ((*SHAPES, "--workspace", "0"), "--workspace: expected a number of GiB above 0, got '0'"),
        ((*SHAPES, "--workspace", "nan"), "--workspace: expected a number of GiB above 0, got 'nan'"),
        ((*SHAPES, "--workspace", "inf"), "--workspace: expected a number of GiB above 0, got 'inf'"),
        ((*SHAPES, "--workspace", "4G"), "--workspace: expected a number of GiB above 0, got '4G'"),
        ((*SHAPES, "--optimization-level", "6"), "--optimization-level: invalid choice: 6"),
        ((*SHAPES, "--plugins", "lib.so"), "--plugins lib.so: no such file"),
        ((*SHAPES, "--timing-cache", "/proc/x/cache"), "--timing-cache /proc/x/cache: cannot write there"),
        ((*SHAPES, "--json", "/proc/x.json"), "--json /proc/x.json: cannot write there"),
        (
            (*SHAPES, "--json", "out/model.json"),
            "--json out/model.json: whoever runs model.engine looks there",
        ),
        ((*SHAPES, "--json", "model.onnx"), "--json model.onnx: is read or written for something else"),
        ((*SHAPES, "--timing-cache", "c", "--json", "c"), "--json c: is read or written for something else"),
        ((*SHAPES, "--out", "/proc/out"), "--out /proc/out/model.engine: cannot write there"),
        ((*SHAPES, "--out", "model.onnx"), "--out model.onnx/model.engine: cannot write there"),
        ((*SHAPES, "--out", ""), "--out: expected a path, got ''"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_wrong_arguments_are_one_line(model, tmp_path, capsys, monkeypatch, machine, options, message):
    monkeypatch.chdir(tmp_path)
    line = refuse(capsys, tmp_path, "model.onnx", *([] if "--out" in options else ["--out", "out"]), *options)
    assert message in line
    assert not machine


def test_example_in_the_message_is_accepted(model, tmp_path, capsys, machine):
    line = refuse(capsys, tmp_path, model, "--out", tmp_path)
    words = shlex.split(line.partition("such as ")[2])
    assert build.main([str(model), "--out", str(tmp_path), *words]) == 0
    assert machine[0][1].profiles == {"images": Profile((1, 3, 8, 8), (1, 3, 8, 8), (8, 3, 8, 8))}


@pytest.mark.parametrize("sixteen", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("precision", build.PRECISIONS)
def test_a_16_bit_file_has_its_precision_already(tmp_path, capsys, machine, precision, sixteen):
    path = convolution(tmp_path / "half.onnx", dtype=sixteen)
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES, "--precision", precision)
    name = "float16" if sixteen == TensorProto.FLOAT16 else "bfloat16"
    assert line.startswith(
        f"--precision {precision}: expected a model in float32, half.onnx has 16 bits already "
        f"(weight is {name})"
    )
    assert build.main([str(path), "--out", str(tmp_path), *SHAPES]) == 0
    assert machine[0][0] == path  # as it is


@pytest.mark.parametrize("damage", ["missing", "folder", "empty", "text", "cut off", "invalid"])
def test_a_file_that_is_no_model_is_named(model, tmp_path, capsys, machine, damage):
    content = model.read_bytes()
    model.unlink()
    expected = "not an ONNX file, or a part of one is missing"
    if damage == "missing":
        expected = "no such file"
    elif damage == "folder":
        model.mkdir()
        expected = "is a folder, not a file"
    elif damage == "invalid":
        broken = onnx.load_from_string(content)
        broken.graph.node[1].input[0] = "nothing"
        model.write_bytes(broken.SerializeToString())
        expected = "not a valid ONNX model: "
    else:
        model.write_bytes({"empty": b"", "text": b"a text\n", "cut off": content[:-40]}[damage])
    line = refuse(capsys, tmp_path, model, "--out", tmp_path, *SHAPES)
    assert str(model) in line and expected in line


def test_missing_and_cut_off_weights_are_named(tmp_path, capsys, machine):
    path = convolution(tmp_path / "model.onnx", external=True)
    weights = tmp_path / "weights.bin"
    content = weights.read_bytes()
    weights.write_bytes(content[:8])
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES)
    assert line == f"{path}: its weights file weights.bin is cut off, weight lies beyond its end"
    weights.unlink()
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES)
    assert line == f"{path}: its weights are in weights.bin, which is not beside it"


def test_a_file_that_tensorrt_can_have_as_it_is_is_not_written_again(model, tmp_path, capsys, machine):
    report = tmp_path / "reports" / "report.json"
    options = [
        "--workspace",
        "0.5",
        "--optimization-level",
        "1",
        "--precision",
        "tf32",
        "--json",
        str(report),
    ]
    cache = tmp_path / "cache"
    argv = [str(model), "--out", str(tmp_path / "out"), *SHAPES, *options, "--timing-cache", str(cache)]
    assert build.main(argv) == 0
    ((path, settings, _),) = machine
    profile = Profile((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))
    assert path == model
    assert settings == Settings({"images": profile}, True, 2**29, 1, cache)
    engine = tmp_path / "out" / "model.engine"
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == {model, report, engine}
    assert engine.read_bytes() == b"engine"
    output = capsys.readouterr()
    assert output.err == ""
    lines = {
        "polygraphy": polygraphy_line(model, engine, settings),
        "trtexec": trtexec_line(model, engine, settings),
    }
    printed = output.out.splitlines()
    assert printed[-2:] == list(lines.values())
    assert f"wrote {engine}" in printed
    rows = {line.strip().partition("  ")[0]: line.rpartition("  ")[2] for line in printed if line[:2] == "  "}
    assert rows["precision"] == "tf32"
    assert rows["device memory"] == "1.5 MiB"
    assert rows["layers"] == "3, 1 of plugins"
    assert rows["input images"] == "[1 to 4, 3, 8, 8] float32, best at [2, 3, 8, 8]"
    assert rows["output output"] == "[?, 2, 8, 8] float32"
    content = json.loads(report.read_text())
    assert content["commands"] == lines
    assert (content["model"], content["parsed"], content["engine"]) == (str(model), str(model), str(engine))
    assert content["report"]["plugin_layers"] == ["attention"]
    assert content["report"]["inputs"][0]["max"] == [4, 3, 8, 8]
    assert content["conversion"] is None


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("external", [False, True])
def test_the_converted_file_lies_beside_the_engine(
    tmp_path, capsys, machine, monkeypatch, precision, external
):
    pytest.importorskip("onnx_path.precision", reason="the conversion is not there")
    monkeypatch.chdir(tmp_path)
    source = convolution(Path("model.onnx"), external=external)
    before = source.read_bytes()
    argv = [
        "model.onnx",
        "--out",
        "out/best.plan",
        *SHAPES,
        "--precision",
        precision,
        "--keep-fp32",
        "^relu$",
    ]
    assert build.main(argv) == 0
    parsed = Path("out") / f"model.{precision}.onnx"
    assert sorted(file.name for file in Path("out").iterdir()) == ["best.plan", parsed.name]
    assert source.read_bytes() == before
    ((path, _, built),) = machine
    assert built == onnx.load(parsed)  # with the weights in it
    assert path.name == parsed.name and not path.exists()  # it was built before it was there for good
    weight = next(x for x in built.graph.initializer if x.name.startswith("weight"))
    # Conv has bfloat16 from opset 22 on.
    assert weight.data_type == (TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT)
    output = capsys.readouterr().out
    assert "wrote out/best.plan and out/" + parsed.name in output
    assert re.search(r"\n  conversion +\S.*kept in float32", output)
    for line in output.splitlines()[-2:]:
        assert "out/best.plan" in line and str(parsed) in line and "images" in line


@pytest.mark.parametrize("name", ["batch", None])
def test_sizes_without_a_choice_are_fixed_for_tensorrt(tmp_path, capsys, machine, name):
    path = convolution(tmp_path / "model.onnx", batch=name)
    before = path.read_bytes()
    assert build.main([str(path), "--out", str(tmp_path), "--opt", "images:2x3x8x8"]) == 0
    ((_, settings, built),) = machine
    assert not settings.profiles
    assert [dim.dim_value for dim in built.graph.input[0].type.tensor_type.shape.dim] == [2, 3, 8, 8]
    assert built.graph.output[0].type.tensor_type.shape.dim[0].dim_value == (2 if name else 0)
    assert onnx.load(tmp_path / "model.trt.onnx") == built
    assert path.read_bytes() == before
    assert all("model.trt.onnx" in line for line in capsys.readouterr().out.splitlines()[-2:])


def test_only_sizes_without_a_choice_are_fixed():
    names = [["batch", 3, "height", "width"], ["batch", "height", "width"], ["boxes", 4]]
    shapes = dict(zip(("images", "mask", "start"), names))
    values = [
        onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph([], "graph", values, []))
    wanted = {
        "images": Profile((1, 3, 96, 64), (2, 3, 96, 64), (4, 3, 96, 64)),
        "mask": Profile((1, 96, 64), (2, 96, 64), (4, 96, 64)),
        "start": Profile((5, 4), (5, 4), (5, 4)),
    }
    remaining, written = preparation.fix_sizes(model, wanted)
    assert (remaining, written) == ({name: wanted[name] for name in ("images", "mask")}, 5)
    assert [list(one.shape) for one in profiles.inputs_of(model)] == [
        ["batch", 3, 96, 64],
        ["batch", 96, 64],
        [5, 4],
    ]


def test_conversion_gets_what_was_asked_for(model, tmp_path, capsys, machine, monkeypatch):
    calls = []

    def convert_precision(model, precision, keep=()):
        calls.append((model.graph.initializer[0].HasField("raw_data"), precision, list(keep)))
        return "seven nodes"

    fake = type(sys)("onnx_path.precision")
    fake.convert_precision = convert_precision
    monkeypatch.setitem(sys.modules, "onnx_path.precision", fake)
    argv = [str(model), "--out", str(tmp_path / "out"), *SHAPES, "--precision", "bf16"]
    assert build.main([*argv, "--keep-fp32", "a.*", "--keep-fp32", "b"]) == 0
    assert calls == [(True, "bf16", ["a.*", "b"])]
    assert "seven nodes" in capsys.readouterr().out

    def refuses(model, precision, keep=()):
        raise ValueError("cannot be\nconverted")

    fake.convert_precision = refuses
    before = sorted(tmp_path.rglob("*"))
    assert build.main(argv) == 2
    assert capsys.readouterr().err == "error: --precision bf16: model.onnx: cannot be converted\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_may_hold_attention_in_pieces_is_for_the_surgeon(tmp_path, capsys, machine):
    """Three samplings, two of them in subgraphs; with a node of ours the surgeon has seen the file."""
    maps, grid, shape = ("maps", [1, 2, 8, 8]), ("grid", [1, 5, 5, 2]), [1, 2, 5, 5]
    sampled = [helper.make_node("GridSample", ["maps", "grid"], [name]) for name in ("inner", "outer")]
    branch = helper.make_graph(
        sampled[:1], "branch", [], [helper.make_tensor_value_info("inner", TensorProto.FLOAT, shape)]
    )
    choice = helper.make_node("If", ["condition"], ["chosen"], then_branch=branch, else_branch=branch)
    path = tmp_path / "a model.onnx"
    model = helper.make_model(
        helper.make_graph(
            [sampled[1], choice, helper.make_node("Add", ["outer", "chosen"], ["sum"])],
            "samplings",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in (maps, grid)]
            + [helper.make_tensor_value_info("condition", TensorProto.BOOL, [])],
            [helper.make_tensor_value_info("sum", TensorProto.FLOAT, shape)],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    onnx.save(model, path)
    assert build.main([str(path), "--out", str(tmp_path)]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith(f"note: {path} has 3 GridSample nodes.")
    words = shlex.split(note.rpartition(": ")[2])
    assert words == ["python", "-m", "onnx_path.surgeon", str(path), str(tmp_path / "a model.msda.onnx")]
    attention = onnx.load(attention_file(tmp_path / "attention.onnx"))
    model.graph.node.extend(attention.graph.node)
    model.graph.input.extend(attention.graph.input)
    model.graph.output.extend(attention.graph.output)
    model.opset_import.extend(x for x in attention.opset_import if x.domain)
    onnx.save(model, path)
    assert build.main([str(path), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def test_bodies_of_msda_nodes_are_not_for_tensorrt(tmp_path, machine):
    path = attention_file(tmp_path / "attention.onnx")
    assert build.main([str(path), "--out", str(tmp_path)]) == 0
    ((_, _, built),) = machine
    assert not built.functions
    assert built.graph == onnx.load(path).graph
    assert onnx.load(tmp_path / "attention.trt.onnx") == built
    assert {file.name for file in tmp_path.iterdir()} == {
        "attention.onnx",
        "attention.trt.onnx",
        "attention.engine",
    }


def test_weights_too_large_for_protobuf_go_beside_the_file(tmp_path, monkeypatch):
    source = convolution(tmp_path / "model.onnx", external=True)
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(preparation, "LARGEST_FILE", 8)
    model = onnx.load(source, load_external_data=False)
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "w"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(9999, np.float32), "large"))
    preparation.save(model, out / "model.onnx", tmp_path)
    assert {file.name for file in out.iterdir()} == {"model.onnx", "model.onnx.data"}
    assert (out / "model.onnx.data").stat().st_size >= 4 * 9999
    arrays = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load(out / "model.onnx").graph.initializer}
    assert (arrays["w"] == 1).all() and not arrays["large"].any()


@pytest.mark.parametrize("failing", ["serialize_engine", "read_engine"])
def test_a_failing_build_leaves_what_was_there(tmp_path, capsys, machine, monkeypatch, failing):
    path = attention_file(tmp_path / "attention.onnx")
    out = tmp_path / "out"
    out.mkdir()
    (out / "attention.engine").write_text("before")

    def fails(*_arguments):
        raise RuntimeError("attention.onnx: TensorRT cannot build an engine of it: no tactic")

    monkeypatch.setattr(build if failing == "serialize_engine" else engine_report, failing, fails)
    before = sorted(tmp_path.rglob("*"))
    argv = [str(path), "--out", str(out), "--json", str(tmp_path / "report.json")]
    assert build.main(argv) == 1
    errors = capsys.readouterr().err
    assert errors == "error: attention.onnx: TensorRT cannot build an engine of it: no tactic\n"
    assert sorted(tmp_path.rglob("*")) == before
    assert (out / "attention.engine").read_text() == "before"


@pytest.fixture(scope="module")
def detr(tmp_path_factory) -> tuple[Path, Path]:
    """Deformable DETR with dynamic sizes, as exported and rewritten. It picks no queries by their scores."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from onnx_path import surgeon

    onnx_zoo.ZOO["deformable_detr"].require()
    original = onnx_zoo.export("deformable_detr", onnx_zoo.session_folder(tmp_path_factory), dynamic=True)
    rewritten = tmp_path_factory.mktemp("rewritten") / "model.onnx"
    assert surgeon.main([str(original), str(rewritten)]) == 0
    return original, rewritten


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    # Relative to the largest number. fp16: onnxruntime's own error on the converted file is 1e-3.
    [("fp32", 1e-4), ("fp16", 5e-3)],
)
def test_engine_with_dynamic_batch_is_onnxruntimes(tensorrt, detr, tmp_path, capsys, precision, tolerance):
    import trt_plugin

    original, rewritten = detr
    shapes = {
        option: f"pixel_values:{batch}x3x96x128,pixel_mask:{batch}x96x128"
        for option, batch in zip(profiles.OPTIONS, (1, 2, 4))
    }
    report = tmp_path / "report.json"
    argv = [str(rewritten), "--out", str(tmp_path), "--precision", precision, "--json", str(report)]
    status = build.main([*argv, *(word for item in shapes.items() for word in item), "--workspace", "2"])
    output = capsys.readouterr()
    assert status == 0, output.err
    content = json.loads(report.read_text())
    assert len(content["report"]["plugin_layers"]) == onnx_zoo.ZOO["deformable_detr"].layers
    assert {x["name"]: x["max"] for x in content["report"]["inputs"]}["pixel_mask"] == [4, 96, 128]
    with trt_plugin.EngineRunner(tmp_path / "model.engine") as runner:
        for batch in (1, 3):
            inputs = onnx_zoo.ZOO["deformable_detr"].other_inputs(96, 128, batch)
            expected = onnx_zoo.run_onnx(original, inputs)
            found = runner({name: tensor.numpy() for name, tensor in inputs.items()})
            for name, array in zip(onnx_zoo.ZOO["deformable_detr"].outputs, expected):
                error = np.abs(found[name] - array).max() / np.abs(array).max()
                assert error < tolerance, (batch, name, error)
