"""The dynamo path's export: the program, the command, and with a GPU the engine."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import codetr
from codetr.export.traced_model import export_program
from codetr.model.backbones.swin import WindowAttention
from dynamo_path.engine import _unsupported
from dynamo_path.export import main
from dynamo_path.saved_modules import write_program
from tests.golden_models import GOLDEN, MODELS, arguments, load_golden


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x == "codino_resnet_tiny")) for x in MODELS]
)
def test_exported_program_keeps_the_operators_whole(name):
    model, tensors = load_golden(name)
    inputs = tensors["in/images"], tensors["in/image_shapes_hw"].long()
    program = export_program(model, inputs)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.msda.fused_attention.default) == MODELS[name]
    linears = [node for node in program.graph.nodes if node.target is torch.ops.msda.linear.default]
    found = [tuple(argument is not None for argument in x.args[3:7]) for x in linears]
    # Values have a mask, outputs a residual and a norm.
    assert found == [(False, True, False, False), (True, False, True, True)] * MODELS[name]
    blocks = sum(isinstance(module, WindowAttention) for module in model.modules())
    assert targets.count(torch.ops.msda.window_attention.default) == blocks
    aten = torch.ops.aten  # Torch-TensorRT 2.11 has no converter for these
    assert not {aten.all.dim, aten.grid_sampler.default, aten._assert_async.msg} & set(targets)
    placeholders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    assert placeholders[-2:] == ["images", "image_shapes"]


@pytest.mark.slow
def test_exported_layers_before_norms():
    """With 256 channels, each layer before a norm has it, and the model computes the same."""
    torch.manual_seed(0)
    channels = 256
    config = codetr.load_config(GOLDEN / "codino_resnet_tiny.json")
    neck = dataclasses.replace(config.neck, out_channels=channels)
    encoding = dataclasses.replace(config.positional_encoding, num_feats=channels // 2)
    sizes = {"embed_dims": channels, "neck": neck, "positional_encoding": encoding}
    config = dataclasses.replace(config, **sizes)
    model = codetr.CoDino(config).eval().requires_grad_(False)
    inputs = torch.randn(1, 3, 128, 96), torch.tensor([[128, 96]])
    expected = model(*inputs)
    program = export_program(model.write_out_linears(), inputs)
    linears = [node for node in program.graph.nodes if node.target is torch.ops.msda.linear.default]
    forms = Counter((x.args[3] is not None, x.args[5] is not None) for x in linears)
    # Values; those of attention and feed-forward layers; that of the query selection.
    attentions = MODELS["codino_resnet_tiny"]
    layers = 2 * config.encoder_layers + 3 * config.decoder_layers
    assert forms == {(False, False): attentions, (True, True): layers, (False, True): 1}
    # Of the empty cells and of the decoder's answers. These read no layer's result.
    norms = [x for x in program.graph.nodes if x.target is torch.ops.aten.layer_norm.default]
    assert len(norms) == 2
    for found, other in zip(program.module()(*inputs), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-4)


def test_command_without_gpu_stops_after_the_program(weights, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(arguments(weights, out, batch=2, device="cpu")) == 0
    assert [file.name for file in out.iterdir()] == ["model.pt2"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("note: 128x96 resizes a 4:3 image to 72x96")
    assert lines[-1] == f"wrote {out / 'model.pt2'}; stopped there: no GPU to build a TensorRT engine for"
    assert any(line.startswith("export model.pt2: ") and line.endswith(" s") for line in lines)

    model, tensors = load_golden("codino_resnet_tiny")
    inputs = tensors["in/images"], tensors["in/image_shapes_hw"].long()
    with torch.no_grad():
        for got, expected in zip(torch.export.load(out / "model.pt2").module()(*inputs), model(*inputs)):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_an_error():
    """Torch's writer would end the process."""
    program = torch.export.export(torch.nn.Linear(300, 300), (torch.zeros(1, 300),))
    with pytest.raises(OSError, match="No space left on device"):
        write_program(program, Path("/dev/full"))


def test_missing_torch_tensorrt_is_one_line(monkeypatch, tmp_path, capsys):
    """The export ends before it loads the model."""
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    monkeypatch.setattr("codetr.export.traced_model.pick_device", lambda device: torch.device("cuda"))
    given = ["--model", "co_dino_r50", "--weights", "nowhere.pth", "--out", str(tmp_path / "out")]
    assert main(given) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "Torch-TensorRT cannot be imported" in line and "pip install 'codetr-tensorrt[dynamo]'" in line
    assert not list(tmp_path.iterdir())


def test_operators_without_a_converter_are_named_with_their_module():
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Softsign()

        def forward(self, x):
            return torch.linalg.inv(self.inner(x)).topk(1)

    graph = torch.export.export(Model(), (torch.eye(3)[None],), strict=True).graph
    names = ("abs.default", "linalg_inv.default", "topk.default")
    missing = {f"call_function torch.ops.aten.{name}" for name in names}
    message = _unsupported(graph, missing | {"call_function _operator.getitem"})
    assert message.startswith("Torch-TensorRT has no converter for aten.")
    assert "aten.abs.default (in inner)" in message and "aten.linalg_inv.default" in message
    assert message.endswith("aten.topk.default")  # without the getitem that reads its results


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_engine_detects_as_pytorch(torch_tensorrt, name, precision, weights, quick_build, tmp_path, capsys):
    height, width = codetr.load_config(GOLDEN / f"{name}.json").input_hw
    options = {"height": height, "width": width, "batch": 2, "precision": precision}
    status = main([*arguments(weights, tmp_path / "out", name, **options), *quick_build])
    output = capsys.readouterr()
    assert status == 0, output.err
    names = {"model.pt2", "model.ep", "model.engine", "model.json", "model.ts"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    for name in ("engine", "model.ep", "model.ts"):
        assert f"{name} {precision} against PyTorch fp32: " in output.out
