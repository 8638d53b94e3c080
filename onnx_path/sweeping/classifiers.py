"""Classifiers of torchvision, timm and ultralytics as PyTorch modules, with their preprocessing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codetr.classify.pictures import ClassifierPreprocessing
from codetr.errors import UsageError, one_line
from onnx_path.sweeping.networks import PRETRAINED, RANDOM, Network

IMAGENET_CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A classifier in float32 on the CPU, in evaluation mode.

    Attributes:
        module: images [N, 3, H, W] -> logits [N, classes].
        preprocessing: turns pictures into its input.
        class_names: name of each label.
        folder_names: name of each label's folder in a dataset; WordNet ids for ImageNet's classes.
    """

    module: nn.Module
    preprocessing: ClassifierPreprocessing
    class_names: tuple[str, ...]
    folder_names: tuple[str, ...]


def load_classifier(network: Network) -> Classifier:
    """Makes the module of a network and loads its weights.

    Random weights are the same in every process. Their batch norms have the statistics of random images, so
    that activations neither vanish nor exceed 16 bits.

    Raises:
        UsageError: the weights cannot be downloaded, or are another network's.
    """
    torch.manual_seed(0)
    own = network.weights not in (PRETRAINED, RANDOM)
    trained = _read_weights(Path(network.weights)) if own else None
    classes = None if trained is None else _count_classes(trained.state)
    try:
        module, preprocessing, names = _MAKERS[network.source](
            network.architecture, network.weights == PRETRAINED, classes
        )
    except (OSError, RuntimeError) as error:
        if network.weights != PRETRAINED:
            raise
        problem = f"the pretrained weights of {network.name} cannot be had here ({one_line(error)})"
        raise UsageError(f"{problem}; --random times it without, --weights takes a file") from error
    if trained is not None:
        try:
            module.load_state_dict(trained.state)
        except RuntimeError as error:
            problem = f"expected weights of {network.architecture} ({one_line(error)})"
            raise UsageError(f"{network.weights}: {problem}") from error
        preprocessing = {**preprocessing, **trained.preprocessing}
        names = trained.class_names or names
    if network.size is not None:
        preprocessing = {**preprocessing, "resize": network.size[0] * 8 // 7, "crop": network.size[0]}
    module = module.eval()
    if network.weights == RANDOM:
        _set_statistics(module, preprocessing["crop"])
    with torch.inference_mode():
        count = module(torch.zeros(1, 3, preprocessing["crop"], preprocessing["crop"])).shape[-1]
    if names is None or len(names) != count:
        names = _imagenet_words() if count == IMAGENET_CLASSES else [f"class {i}" for i in range(count)]
    folders = (
        _imagenet_ids() if count == IMAGENET_CLASSES and not (trained and trained.class_names) else names
    )
    return Classifier(module, ClassifierPreprocessing(**preprocessing), tuple(names), tuple(folders))


@dataclasses.dataclass(frozen=True)
class _Weights:
    state: dict[str, Tensor]
    preprocessing: dict[str, Any]
    class_names: list[str] | None


def _read_weights(path: Path) -> _Weights:
    if path.suffix == ".safetensors":
        import json

        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            stated = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        read = {key: json.loads(stated[key]) for key in ("resize", "crop", "mean", "std") if key in stated}
        read |= {key: stated[key] for key in ("interpolation",) if key in stated}
        names = json.loads(stated["class_names"]) if "class_names" in stated else None
        return _Weights(state, read, names)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zipfile's and Torch's own classes
        raise UsageError(f"{path}: expected a state dict of tensors ({one_line(error)})") from error
    for key in ("state_dict", "model"):
        state = state[key] if isinstance(state.get(key), dict) else state
    return _Weights({name.removeprefix("module."): x for name, x in state.items()}, {}, None)


def _count_classes(state: Mapping[str, Tensor]) -> int:
    """Returns the number of classes: the rows of the last matrix, as in every classifier here."""
    return [x for x in state.values() if x.ndim == 2][-1].shape[0]


def _make_torchvision(
    name: str, pretrained: bool, classes: int | None
) -> tuple[nn.Module, dict, list | None]:
    from torchvision import models

    weights = models.get_model_weights(name).DEFAULT
    options = {} if classes is None else {"num_classes": classes}
    extra = {"init_weights": True} if name in ("googlenet", "inception_v3") and not pretrained else {}
    module = models.get_model(name, weights=weights if pretrained else None, **options, **extra)
    if name in ("googlenet", "inception_v3"):
        module.aux_logits = False
    made = weights.transforms()
    preprocessing = {
        "resize": made.resize_size[0],
        "crop": made.crop_size[0],
        "mean": list(made.mean),
        "std": list(made.std),
        "interpolation": made.interpolation.value,
    }
    return module, preprocessing, list(weights.meta["categories"]) if classes is None else None


def _make_timm(name: str, pretrained: bool, classes: int | None) -> tuple[nn.Module, dict, list | None]:
    import timm

    options = {} if classes is None else {"num_classes": classes}
    module = timm.create_model(name, pretrained=pretrained, **options)
    config = timm.data.resolve_data_config({}, model=module)
    side = config["input_size"][-1]
    preprocessing = {
        "resize": int(side / config["crop_pct"]),
        "crop": side,
        "mean": list(config["mean"]),
        "std": list(config["std"]),
        "interpolation": config["interpolation"],
    }
    return module, preprocessing, None


class _Logits(nn.Module):
    """The logits of a network that returns (probabilities, logits)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)[1]

    def load_state_dict(self, state: Mapping[str, Tensor], *args: Any, **options: Any) -> Any:
        return self.network.load_state_dict(state, *args, **options)


def _make_ultralytics(
    name: str, pretrained: bool, classes: int | None
) -> tuple[nn.Module, dict, list | None]:
    from ultralytics import YOLO

    if pretrained:
        network = YOLO(f"{name}.pt").model.float()
    else:
        from ultralytics.nn.tasks import ClassificationModel

        network = ClassificationModel(f"{name}.yaml", nc=classes, verbose=False)
    names = list(network.names.values()) if pretrained else None
    preprocessing = {
        "resize": 224,
        "crop": 224,
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
        "interpolation": "bilinear",
    }
    return _Logits(network), preprocessing, names


_MAKERS = {"torchvision": _make_torchvision, "timm": _make_timm, "ultralytics": _make_ultralytics}


def _set_statistics(module: nn.Module, side: int) -> None:
    """Gives batch norms the statistics of random images."""
    norms = [x for x in module.modules() if isinstance(x, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        module(torch.randn(8, 3, side, side, generator=torch.Generator().manual_seed(0)))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def _imagenet_words() -> list[str]:
    from torchvision import models

    return list(models.ResNet18_Weights.DEFAULT.meta["categories"])


def _imagenet_ids() -> list[str]:
    """Returns the WordNet ids of ImageNet's classes in the order of the labels."""
    try:
        from timm.data import ImageNetInfo
    except ModuleNotFoundError:
        return [""] * IMAGENET_CLASSES
    return list(ImageNetInfo().label_names())
