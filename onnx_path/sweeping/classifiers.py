"""Classifiers of torchvision, timm and ultralytics as PyTorch modules, with their preprocessing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codetr.classify import classifier_file
from codetr.classify.classifier_file import read_tensors, stated_network
from codetr.classify.pictures import ClassifierPreprocessing
from codetr.errors import UsageError, one_line
from onnx_path.sweeping.networks import PRETRAINED, RANDOM, Network

IMAGENET_CLASSES = 1000

Made = tuple[nn.Module, ClassifierPreprocessing, list[str] | None]
"""Module, preprocessing, and names of the classes if the library knows them."""


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A classifier in float32 on the CPU, in evaluation mode.

    Attributes:
        module: images [N, 3, H, W] -> logits [N, classes].
        preprocessing: turns pictures into its input.
        class_names: name of each label.
        folder_names: name of each label's folder in a dataset; WordNet ids for ImageNet's classes. None for
            weights that do not name their classes.
    """

    module: nn.Module
    preprocessing: ClassifierPreprocessing
    class_names: tuple[str, ...]
    folder_names: tuple[str, ...] | None


def load_classifier(network: Network) -> Classifier:
    """Makes the module of a network and loads its weights.

    Random weights are the same in every process. Their batch norms have the statistics of random images, so
    that activations neither vanish nor exceed 16 bits.

    Raises:
        UsageError: the weights cannot be downloaded, or are another network's.
    """
    torch.manual_seed(0)
    own = None if network.weights in (PRETRAINED, RANDOM) else Path(network.weights)
    if own is not None and stated_network(own) is not None:  # of `codetr train --task classify`
        module = classifier_file.load_classifier(own)
        return Classifier(module, _resized(module.preprocessing, network), *[module.class_names] * 2)
    state = None if own is None else read_tensors(str(own))
    make = _MAKERS[network.source]
    try:
        module, preprocessing, names = make(network.architecture, network.weights == PRETRAINED, None)
        if state is not None and (classes := _other_classes(module, state)) is not None:
            module, preprocessing, names = make(network.architecture, False, classes)
    except (OSError, RuntimeError) as error:
        if network.weights != PRETRAINED:
            raise
        problem = f"the pretrained weights of {network.name} cannot be had here ({one_line(error)})"
        raise UsageError(f"{problem}; --random times it without, --weights takes a file") from error
    if state is not None:
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            problem = f"expected weights of {network.architecture} ({one_line(error)})"
            raise UsageError(f"{own}: {problem}") from error
    preprocessing, module = _resized(preprocessing, network), module.eval()
    if network.weights == RANDOM:
        _set_statistics(module, preprocessing.crop)
    with torch.inference_mode():
        count = module(torch.zeros(1, 3, preprocessing.crop, preprocessing.crop)).shape[-1]
    if count == IMAGENET_CLASSES:
        return Classifier(module, preprocessing, tuple(names or _imagenet_words()), tuple(_imagenet_ids()))
    known = tuple(names) if names else None
    return Classifier(module, preprocessing, known or tuple(f"class {i}" for i in range(count)), known)


def _resized(preprocessing: ClassifierPreprocessing, network: Network) -> ClassifierPreprocessing:
    """Returns the preprocessing for the size that the network was asked for, with the usual margin."""
    if network.size is None:
        return preprocessing
    side = network.size[0]
    return dataclasses.replace(preprocessing, resize=side * 8 // 7, crop=side)


def _other_classes(module: nn.Module, state: Mapping[str, Tensor]) -> int | None:
    """Returns the number of classes of weights; None if the module has as many.

    The last layer of every classifier here has a row for each class. A file of weights may sort its tensors,
    so that the module tells which one is the last.
    """
    name, own = [*module.named_parameters()][-1]
    given = state.get(name.removeprefix("network."))  # `_Logits` adds the prefix
    return None if given is None or len(given) == len(own) else len(given)


def _make_torchvision(name: str, pretrained: bool, classes: int | None) -> Made:
    from torchvision import models

    weights = models.get_model_weights(name).DEFAULT
    options = {} if classes is None else {"num_classes": classes}
    extra = {"init_weights": True} if name in ("googlenet", "inception_v3") and not pretrained else {}
    module = models.get_model(name, weights=weights if pretrained else None, **options, **extra)
    if name in ("googlenet", "inception_v3"):
        module.aux_logits = False
    made = weights.transforms()
    preprocessing = ClassifierPreprocessing(
        made.resize_size[0], made.crop_size[0], made.mean, made.std, made.interpolation.value
    )
    return module, preprocessing, list(weights.meta["categories"]) if classes is None else None


def _make_timm(name: str, pretrained: bool, classes: int | None) -> Made:
    import timm

    options = {} if classes is None else {"num_classes": classes}
    module = timm.create_model(name, pretrained=pretrained, **options)
    config = timm.data.resolve_data_config({}, model=module)
    side = config["input_size"][-1]
    preprocessing = ClassifierPreprocessing(
        int(side / config["crop_pct"]),
        side,
        config["mean"],
        config["std"],
        config["interpolation"],
        squash=config["crop_mode"] == "squash",
    )
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


def _make_ultralytics(name: str, pretrained: bool, classes: int | None) -> Made:
    from ultralytics import YOLO

    if pretrained:
        network = YOLO(f"{name}.pt").model.float()
    else:
        from ultralytics.nn.tasks import ClassificationModel

        network = ClassificationModel(f"{name}.yaml", nc=classes, verbose=False)
    names = list(network.names.values()) if pretrained else None
    preprocessing = ClassifierPreprocessing(224, 224, (0.0,) * 3, (1.0,) * 3)
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
