"""The dynamo path: converters of the MSDA operators, the exported program, the command."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import codetr
from dynamo_path import converter
from dynamo_path.engine import UnsupportedOperators, build_engine
from dynamo_path.export import export_program, import_requirements, main
from dynamo_path.packed_projections import packed_attention
from dynamo_path.quiet_logs import quiet
from tests.export.requests import make_request
from tests.golden_models import GOLDEN, MODELS, arguments, load_golden, save_weights


class Layer:
    name = ""

    def get_output(self, index: int) -> str:
        return f"output {index} of {self.name}"


class Network:
    """Stands in for tensorrt.INetworkDefinition, which exists only where there is a GPU."""

    def __init__(self, layer: Layer | None) -> None:
        self.layer = layer
        self.calls: list[tuple] = []

    def add_plugin_v3(self, *arguments):
        self.calls.append(arguments)
        return self.layer


@pytest.fixture
def plugin():
    """The plugin library, loaded."""
    import trt_plugin

    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    try:
        return trt_plugin.load()
    except trt_plugin.EngineError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("points_per_level", [None, [4, 2, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize(
    ("operator", "packed"),
    [(converter.ATTENTION, False), (converter.FUSED_ATTENTION, False), (converter.FUSED_ATTENTION, True)],
)
def test_plugin_layer(plugin, operator, packed, points_per_level):
    import tensorrt

    network = Network(Layer())
    inputs = ["value", "spatial_shapes", "level_start_index", "more"]
    output = converter.add_plugin_layer(network, operator, inputs, points_per_level, "layer 7", packed)
    ((tensors, shape_tensors, instance),) = network.calls
    assert output == "output 0 of layer 7"
    assert (tensors, shape_tensors) == (inputs, [])
    assert isinstance(instance, tensorrt.IPluginV3)
    made = instance.get_capability_interface(tensorrt.PluginCapabilityType.BUILD)
    assert made.metadata_string.startswith("packed") == packed


def test_plugin_layer_errors(plugin):
    with pytest.raises(RuntimeError, match="layer 7: TensorRT could not add the plugin"):
        converter.add_plugin_layer(Network(None), converter.ATTENTION, [], None, "layer 7")
    with pytest.raises(RuntimeError, match="layer 7: TensorRT could not create the plugin"):
        converter.add_plugin_layer(Network(Layer()), converter.ATTENTION, [], [-1], "layer 7")


def test_packed_attention_becomes_the_fused_plugin_of_five_inputs(monkeypatch):
    """Torch-TensorRT itself is replaced: it needs a GPU even to be imported."""
    tensors = [
        SimpleNamespace(dtype=SimpleNamespace(name=name))
        for name in ["HALF", "INT64", "INT64", "FLOAT", "HALF"]
    ]
    for name in ("torch_tensorrt", "torch_tensorrt.dynamo", "torch_tensorrt.dynamo.conversion"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    utils = SimpleNamespace(get_trt_tensor=lambda ctx, value, name: value, cast_trt_tensor=None)
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo.conversion.converter_utils", utils)
    monkeypatch.setattr(converter, "add_plugin_layer", lambda *given: given)
    context = SimpleNamespace(net="net")
    added = converter.convert(context, packed_attention, (*tensors, [3, 1]), {}, "node")
    name = f"{converter.FUSED_ATTENTION}-[node]"
    assert added == ("net", converter.FUSED_ATTENTION, tensors, [3, 1], name, True)


@pytest.mark.parametrize(
    ("dtype", "supported"),
    [(torch.float32, True), (torch.float16, True), (torch.bfloat16, True), (torch.float64, False)],
    ids=str,
)
def test_only_types_of_the_plugin_are_converted(dtype, supported):
    graph = torch.fx.Graph()
    value = graph.placeholder("value")
    value.meta["val"] = torch.empty(1, dtype=dtype, device="meta")
    node = graph.call_function(torch.ops.msda.attention.default, (value,))
    assert converter.is_supported(node) == supported


def test_where_in_bfloat16(monkeypatch):
    """Torch-TensorRT itself is replaced: it needs a GPU even to be imported."""

    class Tensor(SimpleNamespace):
        def __init__(self, dtype: str, *shape: int) -> None:
            super().__init__(dtype=SimpleNamespace(name=dtype), shape=shape)

    utils = SimpleNamespace(
        get_trt_tensor=lambda ctx, value, name: value if isinstance(value, Tensor) else Tensor("FLOAT"),
        cast_trt_tensor=lambda ctx, tensor, dtype, name: Tensor(f"{dtype}", *tensor.shape),
        prepend_ones=lambda ctx, tensor, name, count: Tensor(tensor.dtype.name, *[1] * count, *tensor.shape),
    )
    for name in ("torch_tensorrt", "torch_tensorrt.dynamo", "torch_tensorrt.dynamo.conversion"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo.conversion.converter_utils", utils)
    selected = []

    def add_select(*tensors):
        selected.extend((tensor.dtype.name, tensor.shape) for tensor in tensors)
        return Layer()

    network = SimpleNamespace(add_select=add_select)
    arguments = (Tensor("BOOL", 5, 1), 0.0, Tensor("BF16", 2, 5, 8))
    converter.convert_where(SimpleNamespace(net=network), torch.ops.aten.where.self, arguments, {}, "node")
    assert selected == [("BOOL", (1, 5, 1)), ("torch.bfloat16", (1, 1, 1)), ("BF16", (2, 5, 8))]


@pytest.mark.parametrize(("dtype", "taken"), [(torch.bfloat16, True), (torch.float16, False)])
def test_only_where_in_bfloat16_is_ours(dtype, taken):
    graph = torch.fx.Graph()
    node = graph.call_function(torch.ops.aten.where.self, (graph.placeholder("condition"), 0.0, 1.0))
    node.meta["val"] = torch.empty(1, dtype=dtype, device="meta")
    assert converter.is_bfloat16(node) == taken


def test_converters_are_registered():
    if not torch.cuda.is_available():
        pytest.skip("Torch-TensorRT cannot be imported without a GPU")
    pytest.importorskip("torch_tensorrt", reason="Torch-TensorRT is not installed")
    from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS

    converter.register()
    for target in (*converter.TARGETS, torch.ops.aten.where.self):
        assert target in DYNAMO_CONVERTERS


def test_converter_passes_arguments_by_name(plugin, monkeypatch):
    """Torch-TensorRT itself is replaced: it needs a GPU even to be imported."""
    asked = []

    def get_trt_tensor(ctx, value, name):
        asked.append(name)
        return value

    def cast_trt_tensor(ctx, tensor, dtype, name):
        return f"{tensor.label} as {dtype}"

    utils = SimpleNamespace(get_trt_tensor=get_trt_tensor, cast_trt_tensor=cast_trt_tensor)
    for name in ("torch_tensorrt", "torch_tensorrt.dynamo", "torch_tensorrt.dynamo.conversion"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo.conversion.converter_utils", utils)
    network = Network(Layer())
    target = torch.ops.msda.fused_attention.default
    types = ("HALF", "INT64", "INT64", "HALF", "BF16", "HALF")
    *args, logits = (
        SimpleNamespace(label=label, dtype=SimpleNamespace(name=dtype))
        for label, dtype in zip("abcdef", types, strict=True)
    )
    output = converter.convert(
        SimpleNamespace(net=network), target, tuple(args), {"attention_logits": logits}, "node"
    )
    ((tensors, _, _),) = network.calls
    # Reference points are float32 always; what has neither the value's type nor float32 becomes float32.
    assert tensors == [*args[:3], "d as torch.float32", "e as torch.float32", logits]
    assert asked[3] == "node_reference_points"
    assert output == f"output 0 of {converter.FUSED_ATTENTION}-[node]"


@pytest.mark.parametrize("name", MODELS)
def test_exported_program_keeps_the_operators_whole(name):
    model, tensors = load_golden(name)
    inputs = tensors["in/images"], tensors["in/image_shapes_hw"].long()
    program = export_program(model, inputs)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.msda.fused_attention.default) == MODELS[name]
    # Torch-TensorRT 2.11 has no converter for these.
    unsupported = {
        torch.ops.aten.all.dim,
        torch.ops.aten.grid_sampler.default,
        torch.ops.aten._assert_async.msg,
    }
    assert not unsupported & set(targets)
    placeholders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    assert placeholders[-2:] == ["images", "image_shapes"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, Path]:
    """The golden models' weights as checkpoints."""
    return save_weights(tmp_path_factory.mktemp("weights"))


def test_command_without_gpu_stops_after_the_program(weights, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(arguments(weights, out, batch=2, device="cpu")) == 0
    assert [file.name for file in out.iterdir()] == ["model.pt2"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "note: 128x96 resizes a 4:3 image to 72x96, and codino_resnet_tiny was trained"
    )
    assert lines[-1] == f"wrote {out / 'model.pt2'}; stopped there: no GPU to build a TensorRT engine for"
    assert any(line.startswith("export model.pt2: ") and line.endswith(" s") for line in lines)

    model, tensors = load_golden("codino_resnet_tiny")
    inputs = tensors["in/images"], tensors["in/image_shapes_hw"].long()
    with torch.no_grad():
        for got, expected in zip(torch.export.load(out / "model.pt2").module()(*inputs), model(*inputs)):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "nope"}, "model 'nope': expected one of"),
        ({"weights": "nowhere.pth"}, "--weights: expected a file, a URL, or one of"),
        ({"width": 0}, 'Invalid value "0" for --width'),
        ({"out": "/proc/out"}, "--out: expected a folder to write, got /proc/out"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_command_errors_are_one_line_and_leave_nothing(
    weights, tmp_path, capsys, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    status = main(arguments(weights, tmp_path / "out", **({"device": "cpu"} | options)))
    errors = capsys.readouterr().err.splitlines()
    assert status in (1, 2)
    assert (
        len(errors) == 1
        and errors[0].startswith("python -m dynamo_path.export: error: ")
        and message in errors[0]
    ), errors
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_disk_while_the_program_is_saved(tmp_path):
    """Torch's writer would end the process. In one of its own, for that reason."""
    code = (
        "import torch, pathlib; from dynamo_path.saved_modules import write_program\n"
        "layer = torch.nn.Linear(300, 300); program = torch.export.export(layer, (torch.ones(1, 300),))\n"
        "try: write_program(program, pathlib.Path('/dev/full'))\n"
        "except OSError as error: print(error.strerror)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=GOLDEN.parents[1])
    assert (done.returncode, done.stdout, done.stderr) == (0, "No space left on device\n", "")


def test_missing_torch_tensorrt_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    with pytest.raises(ImportError, match=r"pip install 'codetr-tensorrt\[dynamo\]'"):
        import_requirements()


def test_others_are_quiet_while_they_work(caplog, recwarn):
    logger = logging.getLogger("tests.noisy")
    logger.setLevel(logging.INFO)
    with pytest.raises(ZeroDivisionError), quiet("tests.noisy"):
        logger.error("a warning for each layer")
        warnings.warn("deprecated", stacklevel=1)
        1 / 0  # noqa: B018
    assert not caplog.records and not recwarn.list
    logger.info("heard again")
    assert [record.message for record in caplog.records] == ["heard again"]


@pytest.fixture
def torch_tensorrt(plugin):
    return pytest.importorskip("torch_tensorrt", reason="Torch-TensorRT is not installed")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_engine_detects_as_pytorch(torch_tensorrt, name, precision, weights, timing_cache, tmp_path, capsys):
    height, width = codetr.load_config(GOLDEN / f"{name}.json").input_hw
    options = {"height": height, "width": width, "batch": 2, "precision": precision}
    options |= {"timing-cache": timing_cache}
    status = main(arguments(weights, tmp_path / "out", name, **options))
    output = capsys.readouterr()
    assert status == 0, output.err
    names = {"model.pt2", "model.ep", "model.engine", "model.json", "model.ts"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    for name in ("engine", "model.ep", "model.ts"):
        assert f"{name} {precision} against PyTorch fp32: " in output.out


class Unsupported(torch.nn.Module):
    def forward(self, images, image_shapes):
        return torch.linalg.inv(images), image_shapes + 1, image_shapes + 2


@pytest.mark.gpu
def test_operator_without_converter_is_named(torch_tensorrt, tmp_path):
    import_requirements()
    request = make_request(out=tmp_path)
    inputs = torch.eye(4, device="cuda")[None], torch.ones(1, 2, device="cuda")
    with pytest.raises(UnsupportedOperators, match=r"has no converter for aten\.linalg_inv"):
        build_engine(export_program(Unsupported(), inputs), inputs, request)
