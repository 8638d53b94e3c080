"""Checkpoints: upstream's names; damaged and hostile files and those of another model; seeded weights."""

from __future__ import annotations

import json
import os
import pickle
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import codetr
from codetr.checkpoint import upstream_name
from codetr.pth import Skipped, read_pth
from tests.golden_models import GOLDEN, parameters_of

KEYS = {
    "co_dino_r50": GOLDEN / "checkpoint_keys_co_dino_5scale_r50_8xb2_1x_coco.json",
    "co_dino_swin_l": GOLDEN / "checkpoint_keys_co_dino_5scale_swin_l_16xb1_16e_o365tococo.json",
}
KINDS = ("zip", "legacy", "safetensors")


@pytest.fixture(scope="module")
def parameters() -> dict[str, torch.Tensor]:
    return parameters_of(load_file(GOLDEN / "codino_resnet_tiny.safetensors"))


@pytest.fixture
def model() -> codetr.CoDino:
    return codetr.CoDino(codetr.load_config(GOLDEN / "codino_resnet_tiny.json"))


def is_loaded(model: codetr.CoDino, parameters: dict[str, torch.Tensor]) -> bool:
    state = model.state_dict()
    return all(torch.equal(tensor, parameters[upstream_name(name, 2)]) for name, tensor in state.items())


def save(folder: Path, kind: str, parameters: dict[str, torch.Tensor], **extra: object) -> Path:
    """Writes a checkpoint of one of `KINDS`; a .pth file has further entries beside its state dict."""
    path = folder / ("model.safetensors" if kind == "safetensors" else "model.pth")
    if kind == "safetensors":
        save_file(parameters, path)
    else:
        content = {"state_dict": parameters, **extra}
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    return path


class Run:
    """A pickle that runs a command when `torch.load` reads it without care."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


class TestSources:
    def test_mapping(self, model, parameters):
        report = codetr.load_checkpoint(model, parameters)
        assert is_loaded(model, parameters)
        assert set(report.loaded) | set(report.ignored) == set(parameters)
        assert "query_head.dn_generator.label_embedding.weight" in report.ignored
        assert "backbone.bn1.num_batches_tracked" in report.ignored
        assert str(report).startswith(f"{len(report.loaded)} tensors loaded")

    @pytest.mark.parametrize("kind", KINDS)
    def test_file(self, model, parameters, tmp_path, kind):
        extra = {"meta": {"epoch": 12}, "ema_state_dict": {"x": torch.zeros(1)}}
        codetr.load_checkpoint(model, save(tmp_path, kind, parameters, **extra))
        assert is_loaded(model, parameters)

    def test_prefix_and_extra_parts(self, model, parameters):
        heads = {"rpn_head.rpn_cls", "roi_head.0.bbox_head.fc_cls", "bbox_head.0.atss_cls"}
        extra = {f"{head}.weight" for head in heads} | {"ema_backbone_conv1_weight"}
        tensors = parameters | {name: torch.zeros(2) for name in extra}
        tensors = {f"module.{name}": tensor for name, tensor in tensors.items()}
        report = codetr.load_checkpoint(model, {"state_dict": tensors})
        assert is_loaded(model, parameters)
        assert extra <= set(report.ignored)
        assert not extra & set(report.loaded)

    def test_precision_stays(self, model, parameters):
        model.set_precision("bf16")
        codetr.load_checkpoint(model, parameters)
        assert model.neck.convs[0].conv.weight.dtype == torch.bfloat16
        assert torch.equal(model.neck.convs[0].conv.weight, parameters["neck.convs.0.conv.weight"].bfloat16())


class TestHostileFiles:
    @pytest.mark.parametrize("kind", ["zip", "legacy"])
    def test_nothing_is_run(self, model, parameters, tmp_path, kind):
        trace = tmp_path / "trace"
        path = save(tmp_path, kind, parameters, meta={"hook": Run(f"touch {trace}")})
        torch.load(path, weights_only=False)
        assert trace.exists(), "the file runs nothing"
        trace.unlink()
        codetr.load_checkpoint(model, path)
        assert not trace.exists() and is_loaded(model, parameters)

    def test_unknown_classes_are_skipped(self, parameters, tmp_path, monkeypatch):
        """As mmengine's: subclasses of dict and list, states, slots, reduce with items."""
        module = types.ModuleType("unknown_engine")
        exec(
            "import collections\n"
            "class Config(dict): pass\n"
            "class History(list): pass\n"
            "class Buffer:\n    def __init__(self): self.data = [1, 2]\n"
            "class Pair(collections.namedtuple('Pair', 'a b')): pass\n",
            module.__dict__,
        )
        monkeypatch.setitem(sys.modules, "unknown_engine", module)
        meta = {
            "config": module.Config(a=1),
            "history": module.History([1, 2]),
            "buffer": module.Buffer(),
            "pair": module.Pair(1, 2),
            "dtype": torch.float16,
            "set": {1, 2},
            "path": Path("x"),
        }
        torch.save({"meta": meta, "state_dict": parameters}, tmp_path / "model.pth")
        monkeypatch.delitem(sys.modules, "unknown_engine")
        content = read_pth(tmp_path / "model.pth")
        assert all(isinstance(content["meta"][name], Skipped) for name in ("config", "buffer"))
        assert all(torch.equal(content["state_dict"][name], tensor) for name, tensor in parameters.items())
        assert "unknown_engine" not in sys.modules

    def test_views_strides_and_types(self, tmp_path):
        base = torch.arange(24, dtype=torch.float32).view(4, 6)
        saved = {
            "transposed": base.t(),
            "slice": base[1:3, ::2],
            "half": base.half(),
            "bf16": base.bfloat16(),
            "bool": base > 3,
            "scalar": torch.tensor(7),
            "empty": torch.zeros(0, 3),
            "parameter": torch.nn.Parameter(base.clone()),
        }
        torch.save(saved, tmp_path / "model.pth")
        loaded = read_pth(tmp_path / "model.pth")
        for name, tensor in saved.items():
            assert torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype, name

    def test_a_tensor_may_not_reach_beyond_its_storage(self, tmp_path):
        storage = torch.storage.TypedStorage(
            wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.float32, _internal=True
        )

        class Beyond:
            def __reduce__(self):
                return torch._utils._rebuild_tensor_v2, (storage, 0, (1 << 20,), (1,), False, {})

        torch.save({"x": Beyond()}, tmp_path / "model.pth")
        with pytest.raises(ValueError, match="not a PyTorch checkpoint"):
            read_pth(tmp_path / "model.pth")


class TestDamagedFiles:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
    def test_cut_off(self, model, parameters, tmp_path, kind, part):
        path = save(tmp_path, kind, parameters)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])
        with pytest.raises(ValueError, match="cut off, or not a") as error:
            codetr.load_checkpoint(model, path)
        assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"hello, world\n" * 99, "cut off, or not a PyTorch checkpoint"),
            (pickle.dumps([1, 2]), "cut off, or not a PyTorch checkpoint"),
            (b"PK\x03\x04" + bytes(100), "cut off, or not a PyTorch checkpoint"),
            ([1, 2], "expected a checkpoint with tensors by name, got list"),
            ({"a": 1}, "the checkpoint holds no tensors by name"),
            (None, "no such weights file"),
        ],
        ids=["text", "pickle", "zip", "list", "number", "nothing"],
    )
    def test_something_else(self, model, tmp_path, content, message):
        path = tmp_path / "model.pth"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            torch.save(content, path)
        with pytest.raises(ValueError, match=rf"model\.pth: {message}"):
            codetr.load_checkpoint(model, path)

    def test_torchscript(self, model, tmp_path):
        """Its loader would run the program."""
        torch.jit.script(torch.nn.Identity()).save(tmp_path / "model.pth")
        with pytest.raises(ValueError, match="the archive is a TorchScript program"):
            codetr.load_checkpoint(model, tmp_path / "model.pth")


class TestMisfits:
    def test_all_kinds_are_listed_and_the_model_is_untouched(self, model, parameters):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        wrong = dict(parameters)
        del wrong["neck.convs.0.conv.weight"]
        wrong["backbone.fc.weight"] = torch.zeros(3)
        wrong["query_head.cls_branches.0.bias"] = torch.zeros(91)
        with pytest.raises(ValueError) as error:
            codetr.load_checkpoint(model, wrong)
        first, *rest = str(error.value).splitlines()
        assert first == (
            "checkpoint: the weights are not those of model codino_resnet_tiny "
            "(1 missing, 1 unexpected, 1 misshapen tensors)"
        )
        assert rest == [
            "  missing: neck.convs.0.conv.weight",
            "  unexpected: backbone.fc.weight",
            "  misshapen: query_head.cls_branches.0.bias [91] instead of [80]",
        ]
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        examples = "missing neck.convs.0.conv.weight, unexpected backbone.fc.weight"
        assert error.value.summary == f"{first}: {examples}"

    def test_weights_of_another_model(self, model):
        other = parameters_of(load_file(GOLDEN / "codino_swin_tiny.safetensors"))
        expected = "the weights are not those of model codino_resnet_tiny"
        with pytest.raises(ValueError, match=expected) as error:
            codetr.load_checkpoint(model, other)
        assert ", and " in str(error.value) and len(str(error.value)) < 4000


@pytest.mark.parametrize("name", KEYS)
def test_full_size_checkpoint(name, tmp_path):
    """Nothing missing, nothing unexpected; only known training parts ignored."""
    tensors = codetr.seeded_state_dict(json.loads(KEYS[name].read_text()))
    path = save(tmp_path, "zip", tensors)
    model = codetr.CoDino(codetr.load_config(name))
    report = codetr.load_checkpoint(model, path)
    assert set(report.loaded) | set(report.ignored) == set(tensors)
    assert len(report.loaded) == len(model.state_dict())
    layers = model.config.decoder_layers
    ours = {upstream_name(key, layers): value for key, value in model.state_dict().items()}
    assert all(torch.equal(value, tensors[key]) for key, value in ours.items())
    path.unlink()


class TestSeededWeights:
    def test_depends_on_seed_and_name_only(self, model):
        first, again = codetr.seeded_state_dict(model, 3), codetr.seeded_state_dict(model, 3)
        other = codetr.seeded_state_dict(model, 4)
        shapes = {name: list(tensor.shape) for name, tensor in first.items()}
        for name, tensor in codetr.seeded_state_dict(dict(reversed(shapes.items())), 3).items():
            assert torch.equal(tensor, first[name]) and torch.equal(tensor, again[name])
        assert not torch.equal(first["neck.convs.0.conv.weight"], other["neck.convs.0.conv.weight"])

    def test_known_values(self, model):
        """The same on every machine, or engines and models built apart would differ."""
        tensor = codetr.seeded_state_dict(model, 0)["neck.convs.0.conv.weight"]
        known = [0.1790764, 0.2335738, 0.006877577]
        assert tensor.flatten()[:3].tolist() == pytest.approx(known, rel=1e-6)

    @torch.inference_mode()
    @pytest.mark.parametrize("name", ["codino_resnet_tiny", "codino_swin_tiny"])
    def test_the_model_behaves(self, name):
        model = codetr.CoDino(codetr.load_config(GOLDEN / f"{name}.json"))
        codetr.load_checkpoint(model, codetr.seeded_state_dict(model))
        images = torch.randn(1, 3, 96, 128, generator=torch.Generator().manual_seed(0))
        stages = model.stages(images, torch.tensor([[80, 110]]))
        for stage, tensor in stages.items():
            assert tensor.isfinite().all(), stage
        assert 0.5 < stages["memory"].std() < 2.0
        best = stages["topk_scores"].amax(-1)[0]
        assert (best[:-1] > best[1:]).all(), "ties in the selection"
        moved = (stages["boxes_cxcywh"][-1] - stages["topk_boxes"]).abs().amax(-1)
        assert moved.median() > 0.01
        assert stages["boxes_cxcywh"][-1][0].std(0).min() > 0.01
        scores = stages["det_scores"][0]
        assert scores[0] - scores[-1] > 0.02 and 0.05 < scores[0] < 0.95
