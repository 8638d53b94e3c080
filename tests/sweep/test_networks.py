"""The networks that a sweep takes by name, and by files of weights."""

from __future__ import annotations

import shutil

import pytest
import torch

from codetr.config import config_file
from onnx_path.sweeping.classifiers import load_classifier
from onnx_path.sweeping.networks import find_network
from tests.sweep.sweep_specs import CLASSES, SMALL


def test_random_weights_are_the_same_and_their_outputs_moderate():
    network = find_network(SMALL, None, "random", (32, 32))
    one, other = (load_classifier(network) for _ in range(2))
    images = torch.randn(4, 3, 32, 32)
    with torch.inference_mode():
        logits = one.module(images)
        torch.testing.assert_close(logits, other.module(images), rtol=0, atol=0)
    assert 1e-3 < logits.std() < 100
    assert len(one.class_names) == len(one.folder_names) == 1000
    assert one.folder_names[0] == "n01440764"


def test_weights_of_our_training_state_their_network(tmp_path):
    from codetr.classify.classifier_file import make_classifier, save_classifier
    from codetr.classify.pictures import ClassifierPreprocessing

    path = tmp_path / "trained/model.safetensors"
    path.parent.mkdir()
    model = make_classifier("resnet18", 2).eval()
    save_classifier(path, model, "resnet18", CLASSES, ClassifierPreprocessing(36, 32))
    network = find_network(str(path.parent), None, None, None)
    found = load_classifier(network)
    assert (network.name, network.source, network.architecture) == ("trained", "torchvision", "resnet18")
    assert (found.folder_names, found.preprocessing.crop) == (CLASSES, 32)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(found.module(images), model(images))


def test_a_detector_of_a_training_run(tmp_path):
    shutil.copy(config_file("co_dino_demo"), tmp_path / "model.json")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    network = find_network(str(tmp_path), None, None, None)
    assert (network.name, network.task) == (tmp_path.name, "detect")
    assert network.weights == str(tmp_path / "model.safetensors")
    assert find_network(str(tmp_path), None, "random", None).weights == "random"


def test_weights_of_another_network(folder):
    with pytest.raises(ValueError, match=r"own\.pth: expected weights of resnet18"):
        load_classifier(find_network(str(folder / "own.pth"), "resnet18", None, None))


def test_files_of_weights_alone_take_a_network(folder, tmp_path):
    shutil.copy(folder / "own.pth", tmp_path / "best.pth.tar")
    assert find_network(str(tmp_path / "best.pth.tar"), SMALL, None, None).name == "best.pth"
    (tmp_path / "own.onnx").touch()
    with pytest.raises(ValueError, match=r"network: expected none with .*own\.onnx; it is for"):
        find_network(str(tmp_path / "own.onnx"), SMALL, None, None)


@pytest.mark.parametrize("network", ["test_convnext", "squeezenet1_0"])
def test_the_number_of_classes_in_sorted_weights(tmp_path, network):
    """Safetensors sort names, so that the last layer need not be last; SqueezeNet's is a convolution."""
    import timm
    import torchvision
    from safetensors.torch import save_file

    library = timm.create_model if network.startswith("test_") else torchvision.models.get_model
    save_file(library(network, num_classes=5).state_dict(), tmp_path / "own.safetensors")
    found = load_classifier(find_network(str(tmp_path / "own.safetensors"), network, None, (32, 32)))
    assert (len(found.class_names), found.folder_names) == (5, None)
