"""`python -m onnx_path.compare`: what it refuses, what it says, its exit status; engines with a GPU."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from onnx import helper  # noqa: E402

from onnx_path import build, compare, engine_report  # noqa: E402
from onnx_path.comparison import marked_engines as engine  # noqa: E402
from onnx_path.comparison.tensor_errors import TOLERANCES  # noqa: E402
from tests.onnx_builds import NO_GPU, REPOSITORY, attention_file, refuse_by  # noqa: E402
from tests.onnx_comparisons import converted, describe, network, pretend  # noqa: E402

pytest_plugins = ("tests.onnx_builds", "tests.onnx_comparisons")

SHAPES = tuple(
    word
    for option, batch in (("--min", 1), ("--opt", 2), ("--max", 4))
    for word in (option, f"images:{batch}x16x16")
)


@pytest.fixture
def model(tmp_path) -> Path:
    return network(tmp_path / "model.onnx")


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


refuse = functools.partial(refuse_by, compare.main)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--input", "image=x.npy"),
            "--input image=x.npy: expected NAME=FILE.npy with an input's name, one of",
        ),
        (("--input", "images=x.npy"), "--input images=x.npy: No such file or directory"),
        (("--inputs", "x.npz"), "--inputs x.npz: no such file"),
        (("--inputs", ""), "--inputs: expected a path, got ''"),
        (("--inputs", "model.onnx"), "--inputs model.onnx: cut off, or not a NumPy file with arrays"),
        (("--seed", "-1"), "--seed: expected a whole number from 0 on, got '-1'"),
        (("--tolerance", "nan"), "--tolerance: expected a number from 0 on, got 'nan'"),
        (("--tolerance", "1e-3x"), "--tolerance: expected a number from 0 on, got '1e-3x'"),
        (("--precision", "int8"), "--precision: invalid choice: 'int8' (choose from"),
        (("--shapes", "images"), "--shapes images: expected NAME:SIZExSIZE..., such as images:1x3x640x640"),
        (("--shapes", "x:1"), "--shapes x: the file has no such input; its inputs are images"),
        (
            ("--shapes", "images:1x16"),
            "--shapes images:1x16: expected 3 sizes, as the file has images [batch, ",
        ),
        (
            ("--shapes", "images:5x16x16"),
            "expected a shape that the engine takes, [1 to 4, 16, 16], got [5, ",
        ),
        (("--parsed", "x.onnx"), "--parsed x.onnx: no such file"),
        (
            ("--parsed", "other.onnx", "--layers"),
            "--parsed other.onnx: expected the inputs of MODEL.onnx (images)",
        ),
        (("--plugins", "lib.so"), "--plugins lib.so: no such file"),
        (("--json", "/proc/x.json"), "--json /proc/x.json: cannot write there"),
        (("--json", "model.onnx"), "--json model.onnx: is read for something else; name another file"),
        (("--json", "model.json"), "--json model.json: whoever runs model.engine looks there"),
        (("--unknown",), "unrecognized arguments: --unknown"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_arguments_are_one_line(model, tmp_path, capsys, monkeypatch, gpu, options, message):
    monkeypatch.chdir(tmp_path)
    model.with_suffix(".engine").write_bytes(model.read_bytes())
    attention_file(tmp_path / "other.onnx")
    assert message in refuse(capsys, tmp_path, "model.onnx", "model.engine", *options)


@pytest.mark.parametrize("which", ["model.onnx", "model.engine"])
def test_files_that_will_not_do_are_named(model, tmp_path, capsys, monkeypatch, which):
    monkeypatch.chdir(tmp_path)
    path = Path("model.engine")
    path.write_bytes(b"content")
    Path(which).unlink()
    name = "MODEL.onnx" if which == "model.onnx" else "ENGINE"
    assert refuse(capsys, tmp_path, "model.onnx", path) == f"{name} {which}: no such file"
    Path(which).mkdir()
    assert refuse(capsys, tmp_path, "model.onnx", path) == f"{name} {which}: is a folder, not a file"
    if which == "model.onnx":
        Path(which).rmdir()
        Path(which).write_bytes(b"a text")
        line = "model.onnx: not an ONNX file, or a part of one is missing"
        assert refuse(capsys, tmp_path, "model.onnx", path) == line


def test_an_operator_that_onnxruntime_lacks_is_named(tmp_path, capsys, monkeypatch, gpu):
    monkeypatch.setattr(engine, "run", lambda path, inputs: {})
    head = helper.make_node("Swirl", ["sum_5"], ["score"], name="mine", domain="mine")
    path = network(tmp_path / "model.onnx", head=head)
    line = refuse(capsys, tmp_path, path, path)
    assert line.startswith(f"{path}: ") and "Swirl" in line


def test_an_engine_of_another_model_is_told(model, tmp_path, capsys, monkeypatch, gpu):
    other = attention_file(tmp_path / "other.onnx")
    line = refuse(capsys, tmp_path, model, other)
    assert line.startswith(
        f"{model}: expected an engine with the outputs of the ONNX file (features, score), "
    )
    assert line.endswith("got one with output")


def run_without(folder: Path, *absent: str) -> subprocess.CompletedProcess:
    """The command in a process of its own where some modules cannot be imported."""
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in absent)
    argv = [str(folder / "model.onnx"), str(folder / "model.engine")]
    code = f"import sys; {blocked}; from onnx_path.compare import main; sys.exit(main({argv!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)


def test_missing_packages_are_named_at_once(model, tmp_path):
    (tmp_path / "model.engine").write_bytes(b"content")
    result = run_without(tmp_path, "onnxruntime", "tensorrt")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: this machine lacks onnxruntime")
    assert ", TensorRT" in result.stderr.replace(" and", ",") and result.stderr.count("\n") == 1
    assert result.stderr.endswith("pip install 'codetr-tensorrt[onnx,tensorrt]'\n")


@pytest.mark.parametrize("options", [(), ("--layers",)])
def test_no_gpu_is_said_in_one_line(tensorrt, no_gpu, model, tmp_path, capsys, options):
    (tmp_path / "model.engine").write_bytes(b"content")
    assert refuse(capsys, tmp_path, model, tmp_path / "model.engine", *options).startswith(NO_GPU)


def test_what_a_build_lacks_is_said_with_layers_only(tensorrt, no_gpu, tmp_path, capsys, monkeypatch):
    head = helper.make_node("Swirl", ["sum_5"], ["score"], name="mine", domain="mine")
    path = network(tmp_path / "model.onnx", head=head)
    assert refuse(capsys, tmp_path, path, path).startswith(NO_GPU)
    assert "no TensorRT plugin is registered for the operator mine.Swirl" in refuse(
        capsys, tmp_path, path, path, "--layers"
    )
    monkeypatch.setitem(sys.modules, "polygraphy", None)
    line = refuse(capsys, tmp_path, path, path, "--layers")
    assert line.startswith("this machine lacks polygraphy and an NVIDIA GPU (no CUDA-capable device")


def test_equal_outputs_are_within(model, tmp_path, capsys, gpu, temporary):
    report = tmp_path / "reports" / "report.json"
    argv = [str(model), str(model), "--seed", "7", "--layers", "--json", str(report)]
    assert compare.main(argv) == 0
    output = capsys.readouterr()
    assert output.err == "" and not gpu and not list(temporary.iterdir())
    lines = output.out.splitlines()
    assert "input images  [2, 16, 16] float32, random, seed 7" in lines
    assert "precision     fp32 (as the engine's layers say)" in lines
    assert (
        "tolerance     relative error 0.0001, the default for fp32 (norm of the difference over norm of "
        in output.out
    )
    assert [line.split()[0] for line in lines if line.endswith("  within")] == ["features", "score"]
    assert lines[-2:] == ["all outputs agree", "no output differs, so there is no layer to look for"]
    content = json.loads(report.read_text())
    assert content["within"] is True and content["layers"] is None
    assert content["tolerance"]["relative"] == TOLERANCES["fp32"]
    assert [x["shape"] for x in content["inputs"]] == [[2, 16, 16]]
    assert [(x["name"], x["relative"]) for x in content["outputs"]] == [("features", 0), ("score", 0)]
    assert [x.name for x in report.parent.iterdir()] == ["report.json"]


def test_given_inputs_and_shapes_reach_both(model, tmp_path, capsys, monkeypatch, gpu):
    seen = []
    monkeypatch.setattr(engine, "run", lambda path, inputs: seen.append(inputs) or pretend(path, inputs))
    array = np.random.default_rng(3).standard_normal((3, 16, 16))
    np.save(tmp_path / "x.npy", array)
    source = f"images={tmp_path / 'x.npy'}"
    assert compare.main([str(model), str(model), "--input", source]) == 0
    np.testing.assert_array_equal(seen[0]["images"], array.astype(np.float32))
    assert f"[3, 16, 16] float32, --input {source}" in capsys.readouterr().out
    assert compare.main([str(model), str(model), "--shapes", "images:4x16x16"]) == 0
    assert seen[1]["images"].shape == (4, 16, 16)


def test_a_wrong_engine_fails_and_its_node_is_named(model, tmp_path, capsys, gpu, temporary):
    wrong = network(tmp_path / "wrong.onnx", changed="weight_4")
    assert compare.main([str(model), str(wrong)]) == 1
    output = capsys.readouterr()
    assert output.err == "" and output.out.endswith("\n1 of 2 outputs differ\n") and not gpu
    report = tmp_path / "report.json"
    argv = [str(model), str(wrong), "--layers", "--parsed", str(wrong), "--json", str(report)]
    assert compare.main(argv) == 1
    lines = capsys.readouterr().out.splitlines()
    first = next(line for line in lines if line.startswith("first difference: "))
    assert first.startswith("first difference: node product 4 (MatMul), output product_4: relative error ")
    assert lines[-1] == "relative error of its inputs: sum_3 0"
    table = lines[
        next(i for i, line in enumerate(lines) if line.startswith("tensor ")) + 1 : lines.index(first)
    ]
    assert [line.split()[0] for line in table if "DIFFERS" in line] == ["product_4"]
    assert not list(temporary.iterdir())
    layers = json.loads(report.read_text())["layers"]
    assert layers["node"] == {"name": "product 4", "op_type": "MatMul"} and layers["outcome"] == "node"
    assert layers["output"]["within"] is False and layers["inputs"][0]["relative"] == 0
    assert layers["engines"] == len(gpu)


def test_an_engine_of_another_file_is_told(model, tmp_path, capsys, gpu):
    wrong = network(tmp_path / "wrong.onnx", changed="weight_4")
    assert compare.main([str(model), str(wrong), "--layers"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        f"score does not differ in an engine that is built of {model} now: {wrong} was built "
    )


def test_the_file_that_a_build_wrote_beside_the_engine_is_taken(model, tmp_path, capsys, monkeypatch, gpu):
    """And the tolerance is that of the engine's precision."""
    half = converted(model, "fp16")
    monkeypatch.setattr(engine_report, "read_engine", lambda path: described(path, "fp16"))
    assert compare.main([str(model), str(half)]) == 0
    assert "relative error 0.01, the default for fp16" in capsys.readouterr().out
    assert compare.main([str(model), str(half), "--tolerance", "1e-5"]) == 1
    capsys.readouterr()
    monkeypatch.setattr(
        engine,
        "run",
        lambda path, inputs: {name: (x + 1, y) for name, (x, y) in pretend(path, inputs).items()},
    )
    assert compare.main([str(model), str(half), "--layers"]) == 1
    assert f"engines built of {half})" in capsys.readouterr().out
    assert len(gpu) and any(x.data_type == 10 for x in gpu[0][1].graph.initializer)
    monkeypatch.setattr(engine_report, "read_engine", lambda path: described(path, "fp32"))
    line = refuse(capsys, tmp_path, model, half, "--layers")
    assert line.startswith(f"--layers: {half} lies beside the engine, which is fp32 (as the engine's layers ")
    assert line.endswith("say by --parsed what it was built of")
    other = converted(model, "bf16")
    line = refuse(capsys, tmp_path, model, half, "--layers")
    assert line.startswith(f"--layers: {half} and {other} lie beside the engine; say by --parsed")


def described(path: Path, precision: str | None) -> engine_report.EngineReport:
    report = describe(path)
    return engine_report.EngineReport(**{**vars(report), "precision": precision})


def test_what_decides_the_precision(model, tmp_path, capsys, monkeypatch, gpu):
    monkeypatch.setattr(engine_report, "read_engine", lambda path: described(path, None))
    half = converted(model, "fp16")
    for options, expected in (
        ((), "fp16 (as model.fp16.onnx says: "),
        (("--precision", "tf32"), "tf32 (--precision)"),
        (("--parsed", str(model)), "fp32 (nothing says otherwise)"),
    ):
        compare.main([str(model), str(half), *options])
        assert f"precision     {expected}" in capsys.readouterr().out


def test_tensors_that_the_engine_gives_beside_the_outputs_are_compared(
    model,
    tmp_path,
    capsys,
    monkeypatch,
    gpu,
):
    more = onnx.load(model)
    more.graph.output.append(helper.make_tensor_value_info("tanh_3", 1, ["batch", 16, 16]))
    onnx.save(more, tmp_path / "more.onnx")
    assert compare.main([str(model), str(tmp_path / "more.onnx")]) == 0
    assert "\ntanh_3 " in capsys.readouterr().out


# With a GPU.


def built(capsys, path: Path, *options: str) -> Path:
    """An engine of a file, beside it."""
    status = build.main([str(path), "--out", str(path.with_suffix(".engine")), *SHAPES, *options])
    output = capsys.readouterr()
    assert status == 0, output.err
    return path.with_suffix(".engine")


@pytest.mark.gpu
@pytest.mark.parametrize("external", [False, True])
def test_an_fp32_engine_is_onnxruntimes(tensorrt, tmp_path, capsys, external):
    model = network(tmp_path / "model.onnx", external=external)
    engine_path = built(capsys, model)
    status = compare.main([str(model), str(engine_path), "--tolerance", "1e-5"])
    output = capsys.readouterr()
    assert status == 0, output
    assert "precision     fp32 (as the engine's layers say)" in output.out
    assert "[2, 16, 16] float32, random, seed 0" in output.out
    assert compare.main([str(model), str(engine_path), "--shapes", "images:3x16x16"]) == 0
    assert compare.main([str(model), str(engine_path), "--shapes", "images:5x16x16"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # TensorRT may have warned of something before
    assert "expected a shape that the engine takes, [1 to 4, 16, 16], got [5, 16, 16]" in line


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_16_bit_engine_is_within_its_tolerance(tensorrt, tmp_path, capsys, precision):
    model = network(tmp_path / "model.onnx")
    engine_path = built(capsys, model, "--precision", precision)
    status = compare.main([str(model), str(engine_path)])
    output = capsys.readouterr()
    assert status == 0, output
    assert f"precision     {precision} (as the engine's layers say)" in output.out
    assert compare.main([str(model), str(engine_path), "--tolerance", "1e-6"]) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_node_of_a_wrong_engine_is_named(tensorrt, tmp_path, capsys, temporary, precision):
    model = network(tmp_path / "model.onnx")
    wrong = network(tmp_path / "wrong.onnx", changed="weight_4")
    engine_path = built(capsys, wrong, "--precision", precision)
    parsed = wrong if precision == "fp32" else tmp_path / f"wrong.{precision}.onnx"
    report = tmp_path / "report.json"
    argv = [str(model), str(engine_path), "--layers", "--parsed", str(parsed), "--json", str(report)]
    status = compare.main(argv)
    output = capsys.readouterr()
    assert status == 1, output
    assert "first difference: node product 4 (MatMul), output product_4" in output.out, output
    layers = json.loads(report.read_text())["layers"]
    assert [x["name"] for x in layers["inputs"]] == ["sum_3"] and layers["inputs"][0]["within"]
    assert not layers["output"]["within"] and layers["engines"] <= 3
    assert not list(temporary.iterdir())
    # Of the right file an engine does not differ: that is said, and no node is named.
    status = compare.main([str(model), str(engine_path), "--layers", "--parsed", str(model)])
    output = capsys.readouterr()
    assert status == 1 and "score does not differ in an engine that is built of" in output.out, output


@pytest.mark.gpu
def test_an_engine_with_our_plugin_is_onnxruntimes(tensorrt, tmp_path, capsys):
    """The file has no bodies: they are put in for onnxruntime only."""
    model = attention_file(tmp_path / "attention.onnx", bodies=False)
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, spatial_shapes=np.int64([[4, 4], [2, 2]]), level_start_index=np.int64([0, 16]))
    engine_path = tmp_path / "attention.engine"
    assert build.main([str(model), "--out", str(engine_path)]) == 0
    status = compare.main([str(model), str(engine_path), "--inputs", str(inputs), "--tolerance", "1e-5"])
    assert status == 0, capsys.readouterr()
