"""Classifiers of torchvision, and the file of a trained one: safetensors with what a caller must know.

The metadata of the file has the entry "classifier", a JSON text:

    {"network": "resnet18", "class_names": ["key", …], "resize": 256, "crop": 224,
     "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "interpolation": "bilinear"}
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from codetr.classify.pictures import ClassifierPreprocessing
from codetr.errors import ArgumentError, UsageError, one_line
from codetr.pth import read_pth
from trt_plugin.atomic_files import atomic_write

WEIGHTS_FILE = "model.safetensors"
_ENTRY = "classifier"


def make_classifier(network: str, classes: int) -> nn.Module:
    """Makes a classifier of torchvision with random weights.

    Args:
        network: its name, such as resnet18.
        classes: number of outputs.

    Raises:
        ArgumentError: torchvision has no such classifier.
        ModuleNotFoundError: torchvision is not installed.
    """
    from torchvision import models

    known = models.list_models(module=models)
    if network not in known:
        near = ", ".join(difflib.get_close_matches(network, known) or ("resnet18", "mobilenet_v2"))
        raise ArgumentError("network", f"expected a classifier of torchvision ({near}, …), got {network!r}")
    return models.get_model(network, weights=None, num_classes=classes)


def load_initial_weights(model: nn.Module, network: str, weights: str) -> str:
    """Loads the tensors that fit; others, such as those of the last layer for other classes, stay random.

    Args:
        network: name of the network.
        weights: "pretrained", "none", or a file: safetensors, or one that `torch.save` wrote.

    Returns:
        The origin of the weights in words.

    Raises:
        ArgumentError: `weights` names no file, or most of its tensors do not fit.
    """
    if weights == "none":
        return "random weights"
    given = _pretrained(network) if weights == "pretrained" else read_tensors(weights)
    own = model.state_dict()
    fitting = {name: value for name, value in given.items() if name in own and value.shape == own[name].shape}
    origin = f"{len(fitting)} of {len(own)} tensors of {weights}"
    if 2 * len(fitting) < len(own):
        raise ArgumentError("weights", f"expected weights of {network}, got {origin}")
    model.load_state_dict(fitting, strict=False)
    return origin


def _pretrained(network: str) -> Mapping[str, Tensor]:
    from torchvision import models

    try:
        return models.get_model_weights(network).DEFAULT.get_state_dict(progress=False, check_hash=True)
    except OSError as error:
        words = f"the pretrained weights of {network} cannot be downloaded ({one_line(error, 120)})"
        raise ArgumentError("weights", f"{words}; expected a file or none") from error


def read_tensors(path: str) -> Mapping[str, Tensor]:
    """Reads the tensors of a state dict: .safetensors, or .pth with or without "state_dict" around it.

    Raises:
        ArgumentError: there is no such file, or it is damaged or has no state dict.
    """
    if not Path(path).is_file():
        raise ArgumentError("weights", f"expected pretrained, none or a file, got {path!r}")
    try:
        content: Any = load_file(path) if path.endswith(".safetensors") else read_pth(path)
    except SafetensorError as error:
        raise ArgumentError("weights", _damaged(path, error)) from error
    except ValueError as error:
        raise ArgumentError("weights", one_line(error)) from error
    if isinstance(content, dict):
        content = next((content[key] for key in ("state_dict", "model") if key in content), content)
    items = content.items() if isinstance(content, dict) else ()
    tensors = {str(name).removeprefix("module."): x for name, x in items if isinstance(x, Tensor)}
    if not tensors:
        expected = "expected a state dict, as torch.save(model.state_dict(), …) writes it"
        raise ArgumentError("weights", f"{path}: {expected}, got no tensor")
    return tensors


def save_classifier(
    path: Path,
    model: nn.Module,
    network: str,
    class_names: Sequence[str],
    preprocessing: ClassifierPreprocessing,
) -> None:
    """Writes a file for `load_classifier`, whole or not at all."""
    content = {"network": network, "class_names": list(class_names), **preprocessing.as_dict()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, {_ENTRY: json.dumps(content, ensure_ascii=False)})


def stated_network(path: Path) -> str | None:
    """Returns the network that `save_classifier` wrote into a file; None for other files.

    Raises:
        UsageError: a .safetensors file is damaged.
    """
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, "pt") as file:
            entry = (file.metadata() or {}).get(_ENTRY)
    except SafetensorError as error:
        raise UsageError(_damaged(path, error)) from error
    return None if entry is None else json.loads(entry)["network"]


def _damaged(path: str | Path, error: SafetensorError) -> str:
    return f"{path}: damaged, or no safetensors file ({one_line(error)})"


def load_classifier(path: str | Path) -> nn.Module:
    """Loads a classifier that `codetr train --task classify` wrote.

    Args:
        path: the file, or the folder of the run.

    Returns:
        The network in evaluation mode, on the CPU: [N, 3, crop, crop] to logits [N, classes]. It has the
        attributes `class_names` (tuple of str), `preprocessing` (`ClassifierPreprocessing`) and `network`
        (the name in torchvision).

    Raises:
        UsageError: there is no such file, or something else wrote it.
    """
    path = Path(path)
    path = path / WEIGHTS_FILE if path.is_dir() else path
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    try:
        with safe_open(path, "pt") as file:
            content = json.loads((file.metadata() or {})[_ENTRY])
        network, class_names = content.pop("network"), tuple(content.pop("class_names"))
        preprocessing = ClassifierPreprocessing(**content)
        model = make_classifier(network, len(class_names))
        model.load_state_dict(load_file(path))
    except ModuleNotFoundError:
        raise
    except Exception as error:  # wrong metadata raises errors of many classes
        words = "expected the weights of codetr train --task classify"
        raise UsageError(f"{path}: {words} ({one_line(error, 120)})") from error
    model.class_names, model.preprocessing, model.network = class_names, preprocessing, network
    return model.eval()
