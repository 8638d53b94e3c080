"""`python -m onnx_path.compare`: the input that it refuses, its report and exit status, engines on a GPU."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_path import build, compare
from onnx_path.comparison import marked_engines
from onnx_path.comparison.tensor_errors import TOLERANCES
from onnx_path.tensorrt import tensorrt_engine
from tests.onnx.engine_stand_ins import (
    SHAPES,
    attention_file,
    converted,
    describe,
    layers_in,
    network,
    refuse_by,
    run_engine,
)
from trt_plugin.inspection import engine_summary
from trt_plugin.inspection.engine_layers import LayerList

refuse = functools.partial(refuse_by, compare.main)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--input", "images=x.npy"), "--input: expected NAME=FILE.npy, got 'x.npy' (x.npy: No such file"),
        (("--input", "images=model.onnx"), "expected NAME=FILE.npy"),
        (("--input", "images=arrays.npz"), "an archive of arrays, see --inputs"),
        (("--input", "image=flat.npy"), "--input: expected an input of the file (images), got image"),
        (("--input", "images=flat.npy"), "expected images [batch, 16, 16], as in the file, got 2x16"),
        (("--input", "images=large.npy"), "--input images=large.npy: expected images as the engine takes it"),
        (("--input", "images=integers.npy"), "--input: images: expected float32, got int64"),
        (("--inputs", "model.onnx"), "--inputs model.onnx: cut off, or not an .npz file"),
        (("--shapes", "images"), "--shapes"),
        (("--shapes", "images:5x16x16"), "as the engine takes it, [1 to 4, 16, 16], got [5, 16, 16]"),
        (("--parsed", "other.onnx", "--layers"), "--parsed: expected a file with the inputs images"),
        (("--json", "model.json"), "--json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_options_are_named(model, tmp_path, capsys, monkeypatch, machine, options, words):
    monkeypatch.chdir(tmp_path)
    model.with_suffix(".engine").write_bytes(model.read_bytes())
    attention_file(tmp_path / "other.onnx")
    np.save("flat.npy", np.zeros((2, 16)))
    np.save("large.npy", np.zeros((5, 16, 16)))
    np.save("integers.npy", np.zeros((1, 16, 16), int))
    np.savez("arrays.npz", images=np.zeros((1, 16, 16)))
    assert words in refuse(capsys, tmp_path, "model.onnx", "model.engine", *options)


def test_an_operator_that_onnxruntime_lacks_is_named(tmp_path, capsys, monkeypatch, machine):
    monkeypatch.setattr(marked_engines, "run_engine", lambda path, inputs: {})
    path = network(tmp_path / "model.onnx", head="mine.Swirl")
    line = refuse(capsys, tmp_path, path, path)
    assert line.startswith(f"{path}: ") and "Swirl" in line


def test_an_engine_of_another_model_is_refused(model, tmp_path, capsys, machine):
    line = refuse(capsys, tmp_path, model, attention_file(tmp_path / "other.onnx"))
    assert "(features, score), got one with output" in line
    other = onnx.load(model)
    other.graph.input[0].name = "pixels"
    onnx.save(other, tmp_path / "other.onnx")
    line = refuse(capsys, tmp_path, model, tmp_path / "other.onnx")
    assert line.endswith("with the inputs of the ONNX file (images), got one with pixels")


def test_equal_outputs_are_within(model, tmp_path, capsys, machine):
    report = tmp_path / "reports" / "report.json"
    argv = [str(model), str(model), "--seed", "7", "--layers", "--json", str(report)]
    assert compare.main(argv) == 0
    output = capsys.readouterr()
    assert output.err == "" and not machine
    for words in ("[2, 16, 16] float32, random, seed 7", "fp32 (as the engine's layers tell)", "0.0001"):
        assert words in output.out
    lines = [line.split() for line in output.out.splitlines()]
    assert [line[0] for line in lines if line[-1:] == ["within"]] == ["features", "score"]
    assert output.out.endswith("all outputs agree\n")
    content = json.loads(report.read_text())
    assert content["within"] is True and content["layers"] is None
    assert content["tolerance"]["relative"] == TOLERANCES["fp32"]
    assert [x["shape"] for x in content["inputs"]] == [[2, 16, 16]]
    assert [(x["name"], x["relative"]) for x in content["outputs"]] == [("features", 0), ("score", 0)]
    assert [x.name for x in report.parent.iterdir()] == ["report.json"]


def test_given_inputs_and_shapes_reach_both_sides(model, tmp_path, capsys, monkeypatch, machine):
    seen = []
    monkeypatch.setattr(
        marked_engines, "run_engine", lambda path, inputs: seen.append(inputs) or run_engine(path, inputs)
    )
    array = np.random.default_rng(3).standard_normal((3, 16, 16))
    np.save(tmp_path / "x.npy", array)
    source = f"images={tmp_path / 'x.npy'}"
    assert compare.main([str(model), str(model), "--input", source]) == 0
    np.testing.assert_array_equal(seen[0]["images"], array.astype(np.float32))
    assert f"[3, 16, 16] float32, --input {source}" in capsys.readouterr().out
    assert compare.main([str(model), str(model), "--shapes", "images:4x16x16"]) == 0
    assert seen[1]["images"].shape == (4, 16, 16)


@pytest.mark.parametrize(
    ("changed", "node", "tensor", "external"),
    [
        ("weight_0", "product_0 (MatMul)", "product_0", False),
        ("weight_4", "product_4 (MatMul)", "product_4", True),
        ("bias_5", "bias_5 (Add)", "biased_5", False),
    ],
)
def test_the_node_of_a_wrong_number_is_named(tmp_path, capsys, machine, changed, node, tensor, external):
    model = network(tmp_path / "model.onnx", external=external)
    wrong = network(tmp_path / "wrong.onnx", changed=changed, external=external)
    argv = [str(model), str(wrong), "--parsed", str(wrong)]
    assert compare.main(argv) == 1
    output = capsys.readouterr()
    assert output.err == "" and output.out.endswith(" of 2 outputs differ\n") and not machine
    report = tmp_path / "report.json"
    assert compare.main([*argv, "--layers", "--json", str(report)]) == 1
    output = capsys.readouterr().out
    assert f"first difference: node {node}, output {tensor}: relative error " in output
    assert f"{node}: {tensor} " in output
    layers = json.loads(report.read_text())["layers"]
    assert "{name} ({op_type})".format(**layers["node"]) == node and layers["outcome"] == "node"
    assert layers["output"]["within"] is False
    assert all(x["relative"] == 0 for x in layers["inputs"])
    assert layers["measured"][-1]["name"] == tensor
    assert layers["engines"] == len(machine) <= 4
    _, settings, first = machine[0]
    assert not settings.tf32 and settings.profiles == {"images": ((2, 16, 16),) * 3}
    assert {x.name for x in first.graph.output} >= {"features", "score"}


def test_a_tensor_that_tensorrt_refuses_as_an_output_is_passed_over(
    model, tmp_path, monkeypatch, machine, capsys
):
    wrong = network(tmp_path / "wrong.onnx", changed="weight_2")
    serialize_engine = tensorrt_engine.serialize_engine

    def refuses(path, settings, name):
        if {x.name for x in onnx.load(path).graph.output} & {"product_2", "tanh_1"}:
            raise RuntimeError(f"{name}: TensorRT cannot build an engine of it: a shape tensor")
        return serialize_engine(path, settings, name)

    monkeypatch.setattr(tensorrt_engine, "serialize_engine", refuses)
    assert compare.main([str(model), str(wrong), "--layers", "--parsed", str(wrong)]) == 1
    output = capsys.readouterr()
    assert "first difference: node bias_2 (Add), output biased_2" in output.out
    assert "not compared one by one: product_2 (MatMul), bias_2 (Add)" in output.out
    assert "product_2 cannot be compared: wrong.onnx" in output.err


def test_an_engine_of_another_file_is_reported(model, tmp_path, capsys, machine):
    wrong = network(tmp_path / "wrong.onnx", changed="weight_4")
    assert compare.main([str(model), str(wrong), "--layers"]) == 1
    assert f"does not differ in an engine that is built of {model} now" in capsys.readouterr().out


def test_the_file_of_the_engines_precision_is_built_again(model, tmp_path, capsys, monkeypatch, machine):
    """`onnx_path.build` wrote it beside the engine. The tolerance is the precision's."""
    half = converted(model, "fp16")
    converted(model, "bf16")
    monkeypatch.setattr(
        engine_summary, "read_engine", lambda path: (describe(path), layers_in("FP16 format"), "")
    )
    assert compare.main([str(model), str(half)]) == 0
    assert "relative error 0.01, the default for fp16" in capsys.readouterr().out
    assert compare.main([str(model), str(half), "--tolerance", "1e-5"]) == 1
    capsys.readouterr()

    def run_wrong(path, inputs):
        return {name: (array + 1, dtype) for name, (array, dtype) in run_engine(path, inputs).items()}

    monkeypatch.setattr(marked_engines, "run_engine", run_wrong)
    assert compare.main([str(model), str(half), "--layers"]) == 1
    assert f"engines built of {half})" in capsys.readouterr().out
    assert any(x.data_type == onnx.TensorProto.FLOAT16 for x in machine[0][2].graph.initializer)


@pytest.mark.parametrize(
    ("narrow", "options", "expected"),
    [
        (None, (), "fp32 (nothing tells another, see --precision)"),
        ("fp16", (), "fp16 (as the model tells: "),
        ("bf16", (), "bf16 (as the model tells: "),
        ("fp16", ("--precision", "tf32"), "tf32 (--precision)"),
    ],
)
def test_sources_of_the_precision(model, capsys, monkeypatch, machine, narrow, options, expected):
    """Engines of trtexec lack details of their layers by default."""
    without_details = LayerList((), detailed=False)
    monkeypatch.setattr(engine_summary, "read_engine", lambda path: (describe(path), without_details, ""))
    file = converted(model, narrow) if narrow else model
    compare.main([str(file), str(file), *options])
    assert expected in capsys.readouterr().out


def test_further_outputs_of_the_engine_are_compared(model, tmp_path, capsys, machine):
    more = onnx.load(model)
    more.graph.output.append(helper.make_tensor_value_info("tanh_3", 1, ["batch", 16, 16]))
    onnx.save(more, tmp_path / "more.onnx")
    assert compare.main([str(model), str(tmp_path / "more.onnx")]) == 0
    assert "\ntanh_3 " in capsys.readouterr().out


# With a GPU.


def built(capsys, path: Path, *options: str) -> Path:
    """Builds an engine beside its file."""
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
    assert "fp32 (as the engine's layers tell)" in output.out
    assert "[2, 16, 16] float32, random, seed 0" in output.out
    assert compare.main([str(model), str(engine_path), "--shapes", "images:3x16x16"]) == 0
    assert compare.main([str(model), str(engine_path), "--shapes", "images:5x16x16"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # TensorRT may have warned of something before
    assert "as the engine takes it, [1 to 4, 16, 16], got [5, 16, 16]" in line


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_16_bit_engine_is_within_its_tolerance(tensorrt, tmp_path, capsys, precision):
    model = network(tmp_path / "model.onnx")
    engine_path = built(capsys, model, "--precision", precision)
    status = compare.main([str(model), str(engine_path)])
    output = capsys.readouterr()
    assert status == 0, output
    assert f"{precision} (as the engine's layers tell)" in output.out
    assert compare.main([str(model), str(engine_path), "--tolerance", "1e-6"]) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_node_of_a_wrong_engine_is_named(tensorrt, tmp_path, capsys, precision):
    model = network(tmp_path / "model.onnx")
    wrong = network(tmp_path / "wrong.onnx", changed="weight_4")
    engine_path = built(capsys, wrong, "--precision", precision)
    parsed = wrong if precision == "fp32" else tmp_path / f"wrong.{precision}.onnx"
    report = tmp_path / "report.json"
    argv = [str(model), str(engine_path), "--layers", "--parsed", str(parsed), "--json", str(report)]
    status = compare.main(argv)
    output = capsys.readouterr()
    assert status == 1, output
    assert "first difference: node product_4 (MatMul), output product_4" in output.out, output
    layers = json.loads(report.read_text())["layers"]
    assert [x["name"] for x in layers["inputs"]] == ["sum_3"] and layers["inputs"][0]["within"]
    assert not layers["output"]["within"] and layers["engines"] <= 3
    # An engine of the right file does not differ, so no node is named.
    status = compare.main([str(model), str(engine_path), "--layers", "--parsed", str(model)])
    output = capsys.readouterr()
    assert status == 1 and "score does not differ in an engine that is built of" in output.out, output


@pytest.mark.gpu
def test_an_engine_with_our_plugin_is_onnxruntimes(tensorrt, tmp_path, capsys):
    """The file has no function bodies. They are added for onnxruntime only."""
    model = attention_file(tmp_path / "attention.onnx", bodies=False)
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, spatial_shapes=np.int64([[4, 4], [2, 2]]), level_start_index=np.int64([0, 16]))
    engine_path = tmp_path / "attention.engine"
    assert build.main([str(model), "--out", str(engine_path)]) == 0
    status = compare.main([str(model), str(engine_path), "--inputs", str(inputs), "--tolerance", "1e-5"])
    assert status == 0, capsys.readouterr()
