"""`codetr quantize`: files, calibration data, the cache of ranges, sensitivity, and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from PIL import Image

from codetr.cli import main
from codetr.detector.onnxruntime_backend import session_options
from onnx_path.nodes.attention import OPSET_VERSION, add_function_bodies
from onnx_path.nodes.domain import DOMAIN
from onnx_path.precision import convert_precision
from onnx_path.quantization import ranges
from onnx_path.quantization.batch_norms import fold_batch_norms
from onnx_path.quantization.quantizer import Quantizer
from onnx_path.surgery.graph import onnx_session
from tests.onnx.text_models import text_model

SIZE = 32
COLOURS = ["--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]


def network(fused: bool = False) -> onnx.ModelProto:
    """A stem of three channels, a convolutional block, an FFN, and a head with scores.

    Args:
        fused: whether a node `Linear` is the FFN's first layer.
    """
    random = np.random.default_rng(0)
    shapes = {
        "stem": (16, 3, 3, 3),
        "first": (16, 16, 3, 3),
        "second": (16, 16, 3, 3),
        "up": (16, 48),
        "down": (48, 16),
        "boxes": (16, 4),
    }
    weights = {name: random.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    weights |= {"ones": np.ones(16, np.float32), "tokens": np.array([1, 16, -1])}
    first, opset, domains = "k = MatMul (j, up) l = Relu (k)", 17, ""
    if fused:
        weights |= {"rows": weights.pop("up").T.copy(), "zeros": np.zeros(48, np.float32)}
        first = """l = msda.Linear <activation: int = 2, add_residual: int = 0, multiply_mask: int = 0,
            normalise: int = 0, eps: float = 1e-5> (j, rows, zeros, zeros, zeros, zeros, zeros)"""
        opset, domains = OPSET_VERSION, DOMAIN
    body = f"""
        a = Conv <pads = [1, 1, 1, 1], strides = [4, 4]> (images, stem)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, first)
        d = Relu (c)
        e = Conv <pads = [1, 1, 1, 1]> (d, second)
        f = Add (e, b)
        g = Relu (f)
        h = Reshape (g, tokens)
        i = Transpose <perm = [0, 2, 1]> (h)
        j = LayerNormalization (i, ones)
        {first}
        m = MatMul (l, down)
        n_ = Add (i, m)
        o = LayerNormalization (n_, ones)
        p = MatMul (o, boxes)
        result = Sigmoid (p)
    """
    edges = f"float[1, 3, {SIZE}, {SIZE}] images", "float[1, n, 4] result"
    model = text_model(body, *edges, opset, domains=domains, **weights)
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    if fused:
        add_function_bodies(model)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of ranges, which does not exist yet."""
    monkeypatch.setenv("CODETR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ranges"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The network, and a folder with photographs of several sizes."""
    onnx.save(network(), tmp_path / "in.onnx")
    photos = tmp_path / "photos"
    photos.mkdir()
    random = np.random.default_rng(1)
    for index, size in enumerate([(40, 50), (32, 32), (64, 20)]):
        pixels = random.integers(0, 255, (*size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(photos / f"{index}.png")
    return tmp_path / "in.onnx", photos


def run(model: Path, out: Path, data: Path, *options: str, precision: str = "int8") -> int:
    """Runs the command."""
    return main(["quantize", str(model), str(out), "--precision", precision, "--data", str(data), *options])


def nodes_before(model: onnx.ModelProto, place: int, *types: str) -> dict[str, str]:
    """Returns the producers' types of an input of the nodes of some types, by the nodes' names."""
    producers = {name: node.op_type for node in model.graph.node for name in node.output}
    nodes = (node for node in model.graph.node if node.op_type in types)
    return {node.name: producers.get(node.input[place], "") for node in nodes}


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_file(precision: str, files, tmp_path):
    """Q/DQ stand before the FFN, and in INT8 before the block and its skip connection."""
    model, photos = files
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    assert run(model, out, photos, *COLOURS, "--json", str(report), precision=precision) == 0
    quantized = onnx.load(out)
    quantize, dequantize = "QuantizeLinear", "DequantizeLinear"
    block = dequantize if precision == "int8" else "Relu"
    assert nodes_before(quantized, 0, "Conv", "MatMul") == {
        "node_a": "",
        "node_c": block,
        "node_e": block,
        "node_k": dequantize,
        "node_m": dequantize,
        "node_p": "LayerNormalization",
    }
    assert nodes_before(quantized, 1, "Add") == {"node_f": block, "node_n_": "MatMul"}
    assert set(nodes_before(quantized, 0, quantize).values()) == {"Relu", "LayerNormalization"}
    kinds = {x.data_type for x in quantized.graph.initializer if x.name.endswith(f"/{precision}")}
    assert kinds == {onnx.TensorProto.INT8 if precision == "int8" else onnx.TensorProto.FLOAT8E4M3FN}
    found = json.loads(report.read_text())
    assert found["layers"] == (4 if precision == "int8" else 2)
    assert (sum(found["kept"].values()), found["images"]) == (6 - found["layers"], 3)
    images = np.random.default_rng(2).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
    (one,), (other,) = (onnx_session.run(onnx.load(x), {"images": images}) for x in (model, out))
    assert 1e-5 < np.abs(one - other).max() < 0.05
    if precision == "fp8":  # with optimizations, unlike the session above
        session = onnxruntime.InferenceSession(out, session_options(precision))
        np.testing.assert_allclose(session.run(None, {"images": images})[0], other, atol=1e-6)


def test_linear_node(files, tmp_path):
    """The calibration runs the body of a node, whose branches pass a value through."""
    model, photos = files
    onnx.save(network(fused=True), tmp_path / "fused.onnx")
    out = tmp_path / "out.onnx"
    assert run(tmp_path / "fused.onnx", out, photos, *COLOURS) == 0
    layers = nodes_before(onnx.load(out), 0, "Conv", "MatMul")
    assert list(layers.values()).count("DequantizeLinear") == 4
    images = np.random.default_rng(2).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
    (one,), (other,) = (onnx_session.run(onnx.load(x), {"images": images}) for x in (model, out))
    assert 1e-5 < np.abs(one - other).max() < 0.05


def test_16_bits(files, tmp_path):
    """A conversion to fp16 keeps the integers, and no Cast stands between Q/DQ nodes and layers."""
    model, photos = files
    assert run(model, tmp_path / "out.onnx", photos, *COLOURS) == 0
    quantized = onnx.load(tmp_path / "out.onnx")
    converted = onnx.load(tmp_path / "out.onnx")
    convert_precision(converted, "fp16")
    types = {x.name: x.data_type for x in converted.graph.initializer}
    for node in converted.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert types[node.input[1]] == onnx.TensorProto.FLOAT16
    places = (nodes_before(model, 0, "Conv", "MatMul", "QuantizeLinear") for model in (quantized, converted))
    before, after = places
    assert {name: kind for name, kind in before.items() if name != "node_a"} == {
        name: kind for name, kind in after.items() if name != "node_a"
    }
    images = np.random.default_rng(2).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
    (one,), (other,) = (onnx_session.run(x, {"images": images}) for x in (quantized, converted))
    assert np.abs(one - other).mean() < 1e-3


def test_ranges_are_kept(files, tmp_path, cache, capsys, monkeypatch):
    """The second run reads them, also for another batch size; other data, weights and methods do not."""
    model, photos = files
    out = tmp_path / "out.onnx"
    measured = []
    original = ranges.measure_ranges
    monkeypatch.setattr(ranges, "measure_ranges", lambda *args: measured.append(1) or original(*args))

    def count(model: Path, data: Path, *options: str) -> int:
        """Runs the command and returns how many calibrations there were."""
        measured.clear()
        assert run(model, out, data, *COLOURS, *options) == 0
        return len(measured)

    assert count(model, photos) == 1
    first = out.read_bytes()
    assert count(model, photos) == 0
    assert out.read_bytes() == first
    assert "ranges read from" in capsys.readouterr().out
    larger = network()
    larger.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    larger.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(np.array([2, 16, -1]), "tokens"))
    larger.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(larger, tmp_path / "larger.onnx")
    assert count(tmp_path / "larger.onnx", photos) == 0
    assert count(model, photos, "--method", "minmax") == 1
    fewer = shutil.copytree(photos, tmp_path / "fewer")
    (fewer / "2.png").unlink()
    assert count(model, fewer) == 1
    other = network()
    weight = onnx.numpy_helper.to_array(other.graph.initializer[1]) * 2
    other.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(weight, "first"))
    onnx.save(other, tmp_path / "other.onnx")
    assert count(tmp_path / "other.onnx", photos) == 1
    assert len(list(cache.iterdir())) == 4


def test_fewer_arrays_have_ranges_of_their_own(files, tmp_path, cache):
    """They are spread over the file."""
    images = np.zeros((8, 3, SIZE, SIZE), np.float32)
    images[:2], images[4:] = 0.01, 0.1  # the second and the last are not among the first ones
    np.savez(tmp_path / "images.npz", images=images + np.random.default_rng(1).random(images.shape) / 100)
    found = []
    for count in (2, 8):
        report = tmp_path / f"{count}.json"
        options = ["--images", str(count), "--json", str(report)]
        assert run(files[0], tmp_path / "out.onnx", tmp_path / "images.npz", *options) == 0
        found.append(json.loads(report.read_text()))
    assert [(x["images"], x["ranges_read"]) for x in found] == [(2, False), (8, False)]
    few, all_of_them = (json.loads(Path(x["ranges"]).read_text())["ranges"] for x in found)
    assert few.keys() == all_of_them.keys() and few != all_of_them
    for name, largest in few.items():
        assert largest > 0.5 * all_of_them[name]


def test_damaged_ranges_are_refused(files, tmp_path, cache, capsys):
    model, photos = files
    run(model, tmp_path / "out.onnx", photos, *COLOURS)
    (file,) = cache.iterdir()
    content = json.loads(file.read_text())
    for text in ("{", json.dumps({**content, "model": "another"})):
        file.write_text(text)
        assert run(model, tmp_path / "new.onnx", photos, *COLOURS) == 2
        assert str(file) in capsys.readouterr().err
    assert not (tmp_path / "new.onnx").exists()


def test_an_interrupted_calibration_keeps_no_ranges(files, tmp_path, cache, monkeypatch):
    model, photos = files

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(ranges, "check_ranges", interrupt)  # after the file of ranges
    monkeypatch.setattr("onnx_path.quantization.calibration_data.load_image", interrupt)
    assert run(model, tmp_path / "out.onnx", photos, *COLOURS) == 130
    assert not cache.exists() and not (tmp_path / "out.onnx").exists()


def test_sensitivity(files, tmp_path):
    """A budget that no group fits leaves all layers; a wide one leaves none."""
    model, photos = files
    folder, report = tmp_path / "study", tmp_path / "report.json"
    options = ["--sensitivity", str(folder), "--json", str(report)]
    assert run(model, tmp_path / "out.onnx", photos, *COLOURS, *options) == 0
    found = json.loads((folder / "sensitivity.json").read_text())
    drops = [group["drop"] for group in found["groups"]]
    assert drops == sorted(drops, reverse=True) and drops[-1] > 0 and len(drops) == 2
    assert {len(group["layers"]) for group in found["groups"]} == {2}
    assert (folder / "sensitivity.png").stat().st_size > 1000
    all_of_them = found["drop"]
    budget = str((drops[-1] + all_of_them) / 2)
    assert run(model, tmp_path / "some.onnx", photos, *COLOURS, "--max-drop", budget, *options[2:]) == 0
    found = json.loads(report.read_text())
    assert found["layers"] == 2 and found["kept"]["above --max-drop"] == 2
    assert found["drop"] <= float(budget) < all_of_them


@pytest.mark.parametrize(
    ("fast", "words"),
    [(8.0, "int8 takes 8.000 ms, 16 bits 10.000 ms: 1.25 times as fast"), (11.0, "10.0% slower")],
)
def test_time(fast, words, files, tmp_path, monkeypatch, capsys):
    """The command says by how much the engine in 8 bits is faster or slower."""
    monkeypatch.setattr("onnx_path.quantize.check_machine", lambda plugins, model: [])
    times = {"out.onnx": fast, "in.onnx": 10.0}
    monkeypatch.setattr("onnx_path.quantization.engine_times.engine_ms", lambda path: times[path.name])
    report = tmp_path / "report.json"
    options = [*COLOURS, "--time", "--json", str(report)]
    assert run(files[0], tmp_path / "out.onnx", files[1], *options) == 0
    assert words in capsys.readouterr().out
    assert json.loads(report.read_text())["engine_ms"] == {"int8": fast, "16 bits": 10.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--mean: expected three numbers"),
        (["--mean", "0.5,0.5"], "expected three numbers in 0..1 for R, G and B"),
        (["--mean", "124,116,104"], "expected three numbers in 0..1 for R, G and B"),
        (["--device", "cuda"], "--device: expected cpu, this onnxruntime has no CUDA provider"),
        ([*COLOURS, "--size", "64x64"], "--size: expected 32x32, the file's own, got 64x64"),
        ([*COLOURS, "--keep", "("], "--keep: expected a regular expression"),
        ([*COLOURS, "--data", "."], "--data: expected pictures"),
        ([*COLOURS, "--data", "missing"], "--data: expected a folder or an .npz file, got 'missing'"),
        (["--data", "in.onnx"], "in.onnx: expected an .npz file"),
        (["--data", "names.npz"], "names.npz: expected arrays images, got pictures"),
        (
            ["--data", "shapes.npz"],
            "expected images of FLOAT [1,3,32,32], got float32 (2, 3, 16, 16)",
        ),
        (["--data", "zeros.npz", "--keep", "node_[ce]"], "is zero everywhere"),
        (["--data", "infinite.npz"], "is not finite (nan)"),
        (["--data", "infinite.npz", "--method", "minmax"], "is not finite (nan)"),
    ],
)
def test_errors(options, words, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    (tmp_path / "empty").mkdir()
    images = np.zeros((2, 3, SIZE, SIZE), np.float32)
    np.savez("names.npz", pictures=images)
    np.savez("shapes.npz", images=images[..., :16, :16])
    np.savez("zeros.npz", images=images)
    np.savez("infinite.npz", images=images + np.inf)
    if options[-1:] == ["."]:
        shutil.rmtree("photos")
    data = [] if "--data" in options else ["--data", "photos"]
    assert main(["quantize", "in.onnx", "out.onnx", "--precision", "int8", *data, *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not Path("out.onnx").exists()


def test_files_that_cannot_be_quantized(files, tmp_path, capsys):
    model, photos = files
    out = tmp_path / "out.onnx"
    assert run(model, out, photos, *COLOURS) == 0
    assert run(out, tmp_path / "twice.onnx", photos, *COLOURS) == 2
    assert "is quantised already: DequantizeLinear" in capsys.readouterr().err
    onnx.save(text_model("y = Relu(x)", "float[1, 3] x", "float[1, 3] y"), tmp_path / "relu.onnx")
    assert run(tmp_path / "relu.onnx", tmp_path / "new.onnx", photos, *COLOURS) == 2
    assert "no layer that 8 bits make faster" in capsys.readouterr().err
    assert not (tmp_path / "new.onnx").exists() and not (tmp_path / "twice.onnx").exists()


def kinds_after_folding(model: onnx.ModelProto, **inputs: np.ndarray) -> list[str]:
    """Folds norms and scales, checks that the outputs stay, and returns the nodes' types."""
    copy = ir.from_proto(model)
    fold_batch_norms(copy.graph)
    folded = ir.to_proto(copy)
    onnx.checker.check_model(folded, full_check=True)
    (one,), (other,) = (onnx_session.run(x, inputs) for x in (model, folded))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return [node.op_type for node in folded.graph.node]


def test_layer_scales_are_folded():
    """The sum behind a layer scale reads the layer's bias; one number for all channels stays."""
    random = np.random.default_rng(0)
    shapes = {"u": (16, 32), "v": (32, 16), "scale": (16,), "one": (1, 1, 32), "two": (16,)}
    weights = {name: random.random(shape).astype(np.float32) for name, shape in shapes.items()}
    weights["half"] = np.float32(0.5)
    body = """a = MatMul (rows, u) b = Add (one, a) c = Mul (b, half) d = Relu (c)
        e = MatMul (d, v) f = Add (e, two) g = Mul (scale, f) sum = Add (g, rows) result = Relu (sum)"""
    model = text_model(body, "float[1, 9, 16] rows", "float[1, 9, 16] result", 17, **weights)
    rows = random.standard_normal((1, 9, 16)).astype(np.float32)
    assert kinds_after_folding(model, rows=rows) == [
        *("MatMul", "Add", "Mul", "Relu", "MatMul", "Add", "Add", "Relu"),
    ]


def test_batch_norms_are_folded(tmp_path):
    """Frozen norms and BatchNormalization; the sum of a first block reads one convolution in 8 bits.

    A bias that is a copy of another becomes a constant.
    """
    random = np.random.default_rng(0)
    shapes = dict.fromkeys("uvw", (16, 16, 1, 1)) | dict.fromkeys(("scale", "shift"), (1, 16, 1, 1))
    shapes |= dict.fromkeys(("one", "two", "three", "four"), (16,)) | {"map": (1, 16, 8, 8)}
    weights = {name: random.random(shape).astype(np.float32) + 0.5 for name, shape in shapes.items()}
    body = """
        a = Conv (images, u)
        b = Mul (scale, a)
        c = Add (b, shift)
        d = Relu (c)
        e = Conv (d, v, one)
        f = BatchNormalization (e, one, two, three, four)
        g = Conv (images, w)
        h = Mul (g, scale)
        i = Add (f, h)
        j = Relu (i)
        copy = Identity (one)
        k = Conv (j, w, copy)
        result = Add (k, map)
    """
    model = text_model(body, "float[1, 16, 8, 8] images", "float[1, 16, 8, 8] result", 17, **weights)
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    images = random.standard_normal((1, 16, 8, 8)).astype(np.float32)
    assert kinds_after_folding(model, images=images) == [
        *("Conv", "Relu", "Conv", "Conv", "Add", "Relu", "Identity", "Conv", "Add"),
    ]
    quantizer = Quantizer(model, "int8")
    quantizer.assume_ranges(4.0)
    quantized = quantizer.quantize(quantizer.layers)
    assert nodes_before(quantized, 1, "Add") == {"node_i": "DequantizeLinear", "node_result": ""}
    assert nodes_before(quantized, 0, "Add") == {"node_i": "Conv", "node_result": "Conv"}
    assert not any(node.op_type == "Identity" for node in quantized.graph.node)
