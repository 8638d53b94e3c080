"""`python -m onnx_path.build`: profiles, what it refuses and when, its files, the equal command lines."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from onnx import TensorProto, helper  # noqa: E402

from onnx_path import build, engine_report, operator, plugins, preparation, profiles  # noqa: E402
from onnx_path.builder import Settings  # noqa: E402
from onnx_path.command_lines import polygraphy_line, trtexec_line  # noqa: E402
from onnx_path.engine_report import EngineReport, TensorReport, read_layers  # noqa: E402
from onnx_path.profiles import BadProfile, Input, Profile  # noqa: E402
from tests import onnx_zoo  # noqa: E402
from trt_plugin.errors import EngineError  # noqa: E402

REPOSITORY = Path(__file__).parents[1]
SHAPES = ("--min", "images:1x3x8x8", "--opt", "images:2x3x8x8", "--max", "images:4x3x8x8")
NO_GPU = "TensorRT needs an NVIDIA GPU, and CUDA finds none"


def convolution(
    path: Path,
    *,
    external: bool = False,
    dtype: int = TensorProto.FLOAT,
    batch: int | str | None = "batch",
    node: onnx.NodeProto | None = None,
    functions: tuple = (),
) -> Path:
    """Writes images [batch, 3, 8, 8] -> Conv -> output, with another node behind it if one is given."""
    weight = np.ones((2, 3, 3, 3), helper.tensor_dtype_to_np_dtype(dtype))
    nodes = [helper.make_node("Conv", ["images", "weight"], ["maps"], name="conv", pads=[1] * 4)]
    nodes.append(node or helper.make_node("Relu", ["maps"], ["output"], name="relu"))
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("images", dtype, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("output", dtype, [batch, 2, 8, 8])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    domains = {"": 20} | {x: 1 for x in (nodes[-1].domain, *(f.domain for f in functions)) if x}
    imports = [helper.make_opsetid(*item) for item in domains.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=functions)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


@pytest.fixture
def model(tmp_path) -> Path:
    return convolution(tmp_path / "model.onnx")


@pytest.fixture
def machine(monkeypatch) -> list[tuple[Path, Settings, onnx.ModelProto]]:
    """Stands for a machine with a GPU; the engine's content is "engine". Lists what was built."""
    built = []

    def serialize_engine(path, settings, name):
        built.append((path, settings, onnx.load(path)))
        return b"engine"

    report = EngineReport(
        engine_bytes=6,
        device_memory_bytes=3 * 2**20 // 2,
        layers=3,
        plugin_layers=("attention",),
        inputs=(TensorReport("images", (-1, 3, 8, 8), "float32", (1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8)),),
        outputs=(TensorReport("output", (-1, 2, 8, 8), "float32"),),
        tensorrt_version="10.6.0",
        gpu="a GPU",
    )
    monkeypatch.setattr(build, "_check_machine", lambda libraries, model, settings: settings)
    monkeypatch.setattr(build, "serialize_engine", serialize_engine)
    monkeypatch.setattr(engine_report, "read_engine", lambda path: report)
    return built


def refuse(capsys, folder: Path, *argv: object) -> str:
    """Runs the command, which must refuse with one line and status 2 and write nothing; returns the line."""
    before = sorted(folder.rglob("*"))
    status = build.main([str(word) for word in argv])
    output = capsys.readouterr()
    assert status == 2, output
    assert output.err.startswith("error: ") and output.err.count("\n") == 1, output.err
    assert sorted(folder.rglob("*")) == before
    return output.err[len("error: ") :].rstrip("\n")


# Profiles.


def file_input(shape, name="images") -> Input:
    return Input(name, tuple(shape))


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        ([], {}),
        (["images:1x3x8x8"], {"images": (1, 3, 8, 8)}),
        (["images:1x3,mask:2", "last:7"], {"images": (1, 3), "mask": (2,), "last": (7,)}),
        (["input:0:1x3,b,c:2"], {"input:0": (1, 3), "b,c": (2,)}),
    ],
)
def test_shapes_are_read(texts, shapes):
    assert profiles.parse_shapes("--min", texts) == shapes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "images",
        "images:",
        ":1x3",
        "images:1x",
        "images:x3",
        "images:1x3x-1",
        "images:1 x3",
        "images:٣",
        "images:1x3,",
        ",images:1x3",
        "images=1x3",
        "images:[1,3]",
        "images:0x3",
        "images:4294967296",
        "a:1,a:2",
    ],
)
def test_what_is_no_shape_is_refused(text):
    # Where a name could hold the comma, the file does not have it.
    if text == ",images:1x3":
        with pytest.raises(BadProfile, match="the file has no such input; its inputs are images"):
            profiles.fit([file_input(["n", 3])], profiles.parse_shapes("--min", [text]), {}, {})
        return
    with pytest.raises(BadProfile, match=rf"^--min {re.escape(text)}".rstrip()):
        profiles.parse_shapes("--min", [text])


SIZES = st.integers(1, 4)
NAMED = st.sampled_from(["n", "h", "w", None])


@given(st.lists(st.lists(st.one_of(SIZES, NAMED), min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_accepted_profiles_fit_the_file(file_shapes, data):
    """Near misses are drawn: wrong ranks, orders, names and fixed sizes, each now and then."""
    inputs = [file_input(shape, f"input{i}") for i, shape in enumerate(file_shapes)]
    named = {name: sorted(data.draw(st.lists(SIZES, min_size=3, max_size=3))) for name in ("n", "h", "w")}
    given_shapes = [{}, {}, {}]
    for one in inputs:
        for which, shapes in enumerate(given_shapes):
            if data.draw(st.integers(0, 19)) == 7:
                continue
            shape = [named[x][which] if isinstance(x, str) else x or 2 for x in one.shape]
            if data.draw(st.integers(0, 11)) == 7:
                shape[data.draw(st.integers(0, len(shape) - 1))] = data.draw(SIZES)
            shapes[one.name] = tuple(shape[: len(shape) - (data.draw(st.integers(0, 29)) == 7)] or [1])
    try:
        found = profiles.fit(inputs, *given_shapes)
    except BadProfile as error:
        assert re.match(r"--(min|opt|max) input\d|--(min|opt|max): expected|input input\d", str(error)), error
        return
    assert list(found) == [one.name for one in inputs if one.dynamic]
    sizes: dict[tuple[str, int], int] = {}
    for one in inputs:
        if not one.dynamic:
            continue
        profile = found[one.name]
        assert [len(shape) for shape in profile] == [len(one.shape)] * 3
        for axis, fixed in enumerate(one.shape):
            low, usual, high = (shape[axis] for shape in profile)
            assert low <= usual <= high
            if isinstance(fixed, int):
                assert low == high == fixed
            elif fixed is not None:
                for which, size in enumerate((low, usual, high)):
                    assert sizes.setdefault((fixed, which), size) == size
        for shapes, shape in zip(given_shapes, profile):
            assert shapes.get(one.name, shape) == shape


@given(st.lists(st.one_of(SIZES, NAMED), min_size=1, max_size=4))
def test_the_example_fits(shape):
    one = file_input(shape)
    assume(one.dynamic)
    words = shlex.split(profiles.example(one))
    assert words[::2] == list(profiles.OPTIONS)
    shapes = [profiles.parse_shapes(option, [text]) for option, text in zip(words[::2], words[1::2])]
    assert set(profiles.fit([one], *shapes)) == {"images"}


def test_opt_alone_fixes_a_shape():
    fixed = profiles.fit([file_input(["n", 3])], {}, {"images": (2, 3)}, {})
    assert fixed == {"images": Profile((2, 3), (2, 3), (2, 3))}


def test_a_name_of_a_dynamic_size_is_one_size():
    inputs = [file_input(["n", "h"]), file_input(["n"], "mask")]
    usual = {"images": (1, 8), "mask": (2,)}
    with pytest.raises(BadProfile, match=r"^--opt mask: expected 1 for n, as in images, got 2$"):
        profiles.fit(inputs, {}, usual, {})
    least, most = {"images": (1, 8), "mask": (1,)}, {"images": (4, 8), "mask": (3,)}
    with pytest.raises(BadProfile, match=r"^--max mask: expected 4 for n, as in images, got 3$"):
        profiles.fit(inputs, least, least, most)


def test_inputs_are_read_from_the_file():
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "w"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("a", 1, ["n", None, 3, -1]),
            helper.make_tensor_value_info("w", 1, [1]),
        ],
        [helper.make_tensor_value_info("y", 1, None)],
        [helper.make_tensor("w", 1, [1], [1.0])],
    )
    (one,) = profiles.inputs_of(helper.make_model(graph))
    assert (one.name, one.shape, one.dynamic) == ("a", ("n", None, 3, None), (0, 1, 3))
    assert str(one) == "a [n, ?, 3, ?]"
    graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(BadProfile, match="input a: expected a tensor with a shape"):
        profiles.inputs_of(helper.make_model(graph))


# What the command refuses, one by one.


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


# The machine: packages, plugins, GPU.


def run_without(path: Path, *absent: str) -> subprocess.CompletedProcess:
    """The command in a process of its own where some modules cannot be imported."""
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in absent)
    argv = [str(path), "--out", str(path.parent / "out"), *SHAPES]
    code = f"import sys; {blocked}; from onnx_path.build import main; sys.exit(main({argv!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ("polygraphy", "polygraphy is not installed: pip install codetr-tensorrt[tensorrt]"),
        (
            "tensorrt",
            "TensorRT cannot be imported (import of tensorrt halted; None in sys.modules); install it ",
        ),
    ],
)
def test_a_missing_package_is_named_after_the_file_was_checked(model, absent, message):
    if absent != "polygraphy":
        pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    result = run_without(model, absent)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}") and result.stderr.count("\n") == 1
    assert [file.name for file in model.parent.iterdir()] == ["model.onnx"]
    model.write_bytes(b"damaged")
    result = run_without(model, "polygraphy", "tensorrt", "cuda")
    assert result.returncode == 2
    assert result.stderr == f"error: {model}: not an ONNX file, or a part of one is missing\n"


def test_tensorrt_is_not_imported_before_the_file_is_checked(model, tmp_path):
    """Refused for its profile, the last check of the file: until then nothing of TensorRT is there."""
    code = (
        "import sys; from onnx_path.build import main; "
        f"status = main([{str(model)!r}, '--out', {str(tmp_path)!r}, '--precision', 'fp16']); "
        "found = {'tensorrt', 'polygraphy', 'cuda', 'torch', 'onnxruntime'} & set(sys.modules); "
        "sys.exit(f'{status} {found}')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    error, found = result.stderr.splitlines()
    assert "dimension 0 (batch) is dynamic" in error
    assert found == "2 set()"


@pytest.fixture
def tensorrt():
    pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    return pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a GPU, wherever the test runs."""

    def require_gpu():
        raise EngineError(f"{NO_GPU}: no CUDA-capable device is detected")

    monkeypatch.setattr("trt_plugin.device.require_gpu", require_gpu)


def custom_node(op_type: str, domain: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op_type, ["maps"], ["output"], name="mine", domain=domain, **attributes)


def test_no_gpu_is_said_last_and_nothing_is_built(tensorrt, no_gpu, model, tmp_path, capsys):
    line = refuse(capsys, tmp_path, model, "--out", tmp_path / "out", *SHAPES)
    assert line.startswith(NO_GPU)


@pytest.mark.parametrize("domain", ["", "mine"])
def test_an_operator_without_plugin_is_named(tensorrt, no_gpu, tmp_path, capsys, domain):
    path = convolution(tmp_path / "model.onnx", node=custom_node("Swirl", domain))
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES)
    name = "mine.Swirl" if domain else "Swirl"
    assert line == (
        f"{path}: node mine: no TensorRT plugin is registered for the operator {name}, version '1' in "
        "namespace ''; load its library with --plugins FILE"
    )


def test_a_plugin_of_another_version_is_told(tensorrt, no_gpu, tmp_path, capsys):
    node = custom_node("MultiscaleDeformableAttnPlugin_TRT", "trt.plugins", plugin_version="77")
    path = convolution(tmp_path / "model.onnx", node=node)
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES)
    assert "version '77' in namespace '' (there is version '1' in namespace ''" in line


@pytest.mark.parametrize("domain", ["", "trt.plugins"])
def test_nvidias_plugins_are_known(tensorrt, no_gpu, tmp_path, capsys, domain):
    path = convolution(tmp_path / "model.onnx", node=custom_node("EfficientNMS_TRT", domain))
    assert refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES).startswith(NO_GPU)


def test_a_function_of_the_file_is_no_custom_operator(tmp_path):
    imports = [helper.make_opsetid("", 20)]
    relu = helper.make_node("Relu", ["x"], ["y"])
    function = helper.make_function("mine", "Swirl", ["x"], ["y"], [relu], imports)
    path = convolution(tmp_path / "model.onnx", node=custom_node("Swirl", "mine"), functions=(function,))
    model = preparation.load(path)
    assert plugins.custom_operators(model) == []
    model.functions[0].node[0].domain = "mine"
    model.functions[0].node[0].op_type = "Whirl"
    assert [x.name for x in plugins.custom_operators(model)] == ["mine.Whirl"]
    branch = helper.make_graph([custom_node("Twist", "mine")], "branch", [], [])
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    assert [x.name for x in plugins.custom_operators(model)] == ["mine.Whirl", "mine.Twist"]


def test_a_standard_name_in_another_domain_is_the_parsers(tmp_path):
    """TensorRT's parser looks at names only: com.microsoft's QuantizeLinear is ONNX's to it."""
    path = convolution(tmp_path / "model.onnx", node=custom_node("Gelu", "com.microsoft"))
    assert plugins.custom_operators(onnx.load(path)) == []


def test_a_library_that_is_none_is_named(tensorrt, no_gpu, model, tmp_path, capsys):
    library = tmp_path / "lib.so"
    library.write_text("no library")
    line = refuse(capsys, tmp_path, model, "--out", tmp_path, *SHAPES, "--plugins", library)
    assert line.startswith(f"--plugins {library}: cannot be loaded (")


def attention_file(path: Path, bodies: bool = True) -> Path:
    """One node of our plugin with static shapes."""
    shapes = {
        "value": (1, [1, 20, 2, 4]),
        "spatial_shapes": (7, [2, 2]),
        "level_start_index": (7, [2]),
        "sampling_locations": (1, [1, 5, 2, 2, 3, 2]),
        "attention_weights": (1, [1, 5, 2, 2, 3]),
    }
    inputs = [helper.make_tensor_value_info(name, *info) for name, info in shapes.items()]
    node = helper.make_node(
        operator.ATTENTION,
        list(shapes),
        ["output"],
        name="attention",
        domain=operator.DOMAIN,
        **operator.PLUGIN_ATTRIBUTES,
    )
    output = helper.make_tensor_value_info("output", 1, [1, 5, 8])
    imports = [helper.make_opsetid("", operator.OPSET_VERSION), helper.make_opsetid(operator.DOMAIN, 1)]
    model = helper.make_model(
        helper.make_graph([node], "attention", inputs, [output]), opset_imports=imports, ir_version=10
    )
    if bodies:
        operator.add_function_bodies(model)
    onnx.save(model, path)
    return path


def test_our_plugin_is_loaded_where_the_file_needs_it(tensorrt, tmp_path, monkeypatch):
    import trt_plugin

    try:
        library = trt_plugin.load()
    except EngineError as error:
        pytest.skip(str(error))
    monkeypatch.setattr("trt_plugin.device.require_gpu", lambda: None)
    settings = Settings(workspace_bytes=7)
    for bodies in (True, False):
        model = preparation.load(attention_file(tmp_path / "attention.onnx", bodies))
        assert build._check_machine([], model, settings) == dataclasses.replace(settings, plugins=(library,))
    model = preparation.load(convolution(tmp_path / "model.onnx"))
    assert build._check_machine([], model, settings) == settings
    assert build._check_machine([library, library], model, settings).plugins == (library,)


def test_a_missing_plugin_library_is_named(tensorrt, no_gpu, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MSDA_TRT_PLUGIN", str(tmp_path / "nowhere.so"))
    path = attention_file(tmp_path / "attention.onnx")
    line = refuse(capsys, tmp_path, path, "--out", tmp_path)
    assert line.startswith(
        f"the TensorRT plugin library {tmp_path / 'nowhere.so'}, named by $MSDA_TRT_PLUGIN"
    )


# What is written.


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


# The other tools' command lines.

EVERYTHING = Settings(
    {
        "images": Profile((1, 3, 320, 320), (2, 3, 640, 640), (8, 3, 1280, 1280)),
        "mask:0": Profile((1, 8), (2, 8), (8, 8)),
    },
    tf32=True,
    workspace_bytes=2**29,
    optimization_level=4,
    timing_cache=Path("my cache"),
    plugins=(Path("/opt/lib a.so"), Path("b.so")),
)


@pytest.mark.parametrize("model", ["a model.onnx", "model.bin"])
@pytest.mark.parametrize("settings", [EVERYTHING, Settings()], ids=["everything", "nothing"])
def test_polygraphy_reads_its_line(tensorrt, tmp_path, settings, model):
    from polygraphy.tools import args
    from polygraphy.tools.convert.convert import Convert

    path = tmp_path / model  # polygraphy warns of a file that is not there
    path.touch()
    line = polygraphy_line(path, tmp_path / "model.plan", settings)
    tool, parser = Convert(), argparse.ArgumentParser()
    tool.setup_parser(parser.add_subparsers())
    program, *words = shlex.split(line)
    assert program == "polygraphy"
    parsed = parser.parse_args(words)
    tool.parse(parsed)
    groups = tool.arg_groups
    config = groups[args.TrtConfigArgs]
    assert (parsed.convert_to, parsed.output) == ("trt", str(tmp_path / "model.plan"))
    assert (groups[args.ModelArgs].path, str(groups[args.ModelArgs].model_type)) == (str(path), "onnx")
    assert groups[args.TrtLoadNetworkArgs].strongly_typed is True
    assert bool(config.tf32) is settings.tf32
    expected = {name: tuple(map(list, profile)) for name, profile in settings.profiles.items()}
    assert (config.profile_dicts or [{}]) == [expected]
    limits = {str(pool): size for pool, size in (config.memory_pool_limits or {}).items()}
    assert limits == ({"trt.MemoryPoolType.WORKSPACE": 2**29} if settings.workspace_bytes else {})
    assert config.builder_optimization_level == settings.optimization_level
    assert str(config.profiling_verbosity).endswith("DETAILED")
    cache = str(settings.timing_cache) if settings.timing_cache else None
    assert config.load_timing_cache == groups[args.TrtLoadEngineBytesArgs].save_timing_cache == cache
    assert (groups[args.TrtLoadPluginsArgs].plugins or []) == [str(path) for path in settings.plugins]


def test_the_build_has_the_same_settings(tensorrt, tmp_path, monkeypatch):
    """What polygraphy's Python API is given, up to the builder, which needs a GPU."""
    from polygraphy.backend import trt as backend

    calls = []

    class Captured:
        def __init__(self, network, config, save_timing_cache) -> None:
            calls.append((network, config, save_timing_cache))

        def __call__(self) -> bytes:
            return b"engine"

    monkeypatch.setattr(backend, "EngineBytesFromNetwork", Captured)
    cache = tmp_path / "cache"
    settings = dataclasses.replace(EVERYTHING, timing_cache=cache)
    for loaded in (None, str(cache)):
        assert build.serialize_engine(tmp_path / "model.onnx", settings, "model.onnx") == b"engine"
        network, config, saved = calls.pop()
        assert network.strongly_typed is True
        assert config.tf32 is True
        assert config.memory_pool_limits == {tensorrt.MemoryPoolType.WORKSPACE: 2**29}
        assert config.profiling_verbosity == tensorrt.ProfilingVerbosity.DETAILED
        assert config.builder_optimization_level == 4
        assert (config.timing_cache_path, saved) == (loaded, str(cache))
        (profile,) = config.profiles
        assert {name: tuple(shapes) for name, shapes in profile.items()} == EVERYTHING.profiles
        cache.touch()
    build.serialize_engine(tmp_path / "model.onnx", Settings(), "model.onnx")
    _, config, saved = calls.pop()
    assert (config.tf32, config.memory_pool_limits, config.timing_cache_path, saved) == (
        False,
        None,
        None,
        None,
    )


def test_trtexec_line():
    """Options as `trtexec --help` of TensorRT 10.6 has them; names with a colon stand between quotes."""
    words = shlex.split(trtexec_line(Path("a model.onnx"), Path("model.engine"), EVERYTHING))
    assert words == [
        "trtexec",
        "--onnx=a model.onnx",
        "--saveEngine=model.engine",
        "--stronglyTyped",
        "--minShapes=images:1x3x320x320,'mask:0':1x8",
        "--optShapes=images:2x3x640x640,'mask:0':2x8",
        "--maxShapes=images:8x3x1280x1280,'mask:0':8x8",
        "--memPoolSize=workspace:536870912B",
        "--builderOptimizationLevel=4",
        "--profilingVerbosity=detailed",
        "--timingCacheFile=my cache",
        "--dynamicPlugins=/opt/lib a.so",
        "--dynamicPlugins=b.so",
        "--skipInference",
    ]
    assert trtexec_line(Path("m.onnx"), Path("m.engine"), Settings()) == (
        "trtexec --onnx=m.onnx --saveEngine=m.engine --stronglyTyped --noTF32 --profilingVerbosity=detailed "
        "--skipInference"
    )


def test_layers_of_an_engine_are_counted():
    layers = [{"Name": "a", "LayerType": "gemm"}, {"Name": "b", "LayerType": "PluginV3"}]
    assert read_layers(json.dumps({"Layers": layers, "Bindings": ["x"]})) == (2, ["b"])
    assert read_layers(json.dumps({"Layers": ["only", "names"]})) == (2, [])


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**39, "2.5 TiB")]
)
def test_bytes_are_readable(number, text):
    assert engine_report.format_bytes(number) == text


# On a GPU.


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
