"""The files of a run: states, weights."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import codetr
from codetr.checkpoint import UPSTREAM_LABEL_EMBEDDING
from codetr.errors import ArgumentError, UsageError
from codetr.training.run_state import find_states, load_state, save_state
from codetr.training.run_weights import save_config, save_weights
from tests.training.training_runs import tiny_network


def test_states(tmp_path):
    for step in (5, 10, 100):
        save_state(tmp_path, step, {}, {"step": step, "weights": {"a": torch.ones(2)}})
    assert [path.name for path in find_states(tmp_path)] == ["state-00000010.pt", "state-00000100.pt"]
    newest = find_states(tmp_path)[-1]
    assert load_state(newest, {})["step"] == 100
    for damage in (
        lambda: newest.write_bytes(newest.read_bytes()[:-200]),
        lambda: torch.save([1, 2], newest),
        lambda: torch.save({"format": 2, "options": {}}, newest),
    ):
        damage()
        with pytest.raises(UsageError, match=r"state-00000100\.pt: damaged or not a training state"):
            load_state(newest, {})


def test_saved_weights_load(dataset, tmp_path):
    """Saved weights load into a detector with the same answers, and into another run."""
    network, words = tiny_network(dataset)
    assert words == "initialised weights"
    for name, tensor in network.state_dict().items():  # statistics other than those of a new batch norm
        if "running" in name:
            tensor.uniform_(0.5, 1.5)
    config = network.model.config
    save_weights(tmp_path / "model.safetensors", network, "fp32")
    save_config(tmp_path / "model.json", config)
    assert codetr.load_config(tmp_path / "model.json") == config
    assert config.class_names == ("green", "red") and config.num_classes == 2

    model = codetr.CoDino(codetr.load_config(tmp_path / "model.json"))
    codetr.load_checkpoint(model, tmp_path / "model.safetensors")
    images, shapes = torch.rand(2, 3, 64, 96), torch.tensor([[64, 96], [50, 70]])
    with torch.no_grad():
        expected = network.model.eval()(images, shapes)
        for found, wanted in zip(model(images, shapes), expected):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

    again, words = tiny_network(dataset, tmp_path / "model.safetensors", ("green", "red"), seed=7)
    assert "knows 2 of the 2 classes" in words
    for name, tensor in network.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(tensor, again.state_dict()[name]), name

    save_weights(tmp_path / "half.safetensors", network, "fp16")
    assert {tensor.dtype for tensor in load_file(tmp_path / "half.safetensors").values()} == {torch.float16}


def test_known_classes_keep_their_weights(dataset, tmp_path):
    """Classes keep their weights by name, with any labels. Others are initialised."""
    network, _ = tiny_network(dataset)
    weights = tmp_path / "model.safetensors"
    bias = network.model.decoder.class_branches[1].bias
    with torch.no_grad():
        bias.copy_(torch.tensor([1.0, 2.0]))
    save_weights(weights, network, "fp32")

    swapped, words = tiny_network(dataset, weights, ("red", "blue"), seed=3)
    assert "knows 1 of the 2 classes" in words
    assert swapped.model.decoder.class_branches[1].bias.tolist() == pytest.approx([-4.59512, 1.0])
    embeddings = [n.denoising.label_embedding.weight for n in (swapped, network)]
    assert torch.equal(embeddings[0][1], embeddings[1][0])
    assert not torch.equal(embeddings[0][0], embeddings[1][1])
    assert torch.equal(swapped.model.encoder.level_embeds, network.model.encoder.level_embeds)

    tensors = load_file(weights)
    for name in [name for name in tensors if "cls_branches" in name]:
        tensors[name] = torch.zeros(80, *tensors[name].shape[1:])
    del tensors[UPSTREAM_LABEL_EMBEDDING]  # some of upstream's checkpoints lack it
    save_file(tensors, weights)
    others, words = tiny_network(dataset, weights, codetr.load_config("co_dino_r50").label_names)
    assert "knows 0 of the 2 classes" in words
    assert others.model.decoder.class_branches[0].bias.tolist() == pytest.approx([-4.59512] * 2)

    tensors["neck.convs.0.conv.weight"] = torch.zeros(1)
    save_file(tensors, weights)
    with pytest.raises(ArgumentError, match=r"^init: .*weights are not those of model .*neck\.convs\.0"):
        tiny_network(dataset, weights, ("green", "red"))
    with pytest.raises(ArgumentError, match=r"^init: .*not a safetensors file"):
        weights.write_text("nothing")
        tiny_network(dataset, weights, ())
