"""The networks that a sweep takes: names of libraries and of this package, weights, ONNX files, engines."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import re
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from codetr.config import CONFIG_FOLDER, RUN_CONFIG, config_file
from codetr.detector.sizes import InputSizes
from codetr.errors import ArgumentError, UsageError
from codetr.weights import choose_weights, model_config, weights_file
from onnx_path.build import ENGINE_SUFFIXES
from trt_plugin.metadata import ArtifactMetadata

CHECKPOINTS = (".pth", ".pt", ".tar", ".safetensors")  # PyTorch's examples write .pth.tar
PRETRAINED, RANDOM = "pretrained", "random"


@dataclasses.dataclass(frozen=True)
class Network:
    """A network, as a cell's process gets it.

    Attributes:
        name: as in the table.
        source: "torchvision", "timm", "ultralytics", "detector", "onnx" or "engine".
        architecture: name of the network in its source; the path of a file.
        task: "classify", "detect", or "outputs" for a file that may compute anything.
        weights: "pretrained", "random", or a file.
        key: changes with everything that the network's outputs depend on.
        batch: the only batch size of a file; None for any.
        precision: the only precision of a file; None for any.
        size: height and width of the input, where a file does not fix them; None: the network's own.
    """

    name: str
    source: str
    architecture: str
    task: str
    weights: str
    key: str
    batch: int | None = None
    precision: str | None = None
    size: tuple[int, int] | None = None

    @property
    def folder(self) -> str:
        """A name for the network's files, another one for other weights."""
        return f"{re.sub(r'[^A-Za-z0-9._-]', '_', self.name)}-{self.key[:8]}"


def find_network(
    text: str, architecture: str | None, weights: str | None, size: tuple[int, int] | None
) -> Network:
    """Finds the network that a word of the command line means.

    Args:
        text: a name, or the path of weights, an ONNX file, an engine or the folder of a training run.
        architecture: network of the weights; None unless `text` is a file of weights without metadata.
        weights: "random", or a file; None is the pretrained weights.
        size: height and width; None is the network's own.

    Raises:
        UsageError: there is no such network or file.
        ArgumentError: an argument does not fit it.
    """
    path = Path(text)
    suffix = path.suffix.lower()
    if suffix in (*ENGINE_SUFFIXES, ".onnx", *CHECKPOINTS):
        if not path.is_file():
            raise UsageError(f"expected a file, there is no {text}")
        if weights not in (None, RANDOM):
            raise ArgumentError("weights", f"expected none with the file {text}, got {weights}")
    if suffix in CHECKPOINTS:
        name = architecture or _stated_architecture(path)
        network = find_network(name, None, str(path), size)
        return dataclasses.replace(network, name=path.stem)
    run_config = path / RUN_CONFIG  # of a detector; a classifier's run has weights alone
    run_weights = run_config.with_suffix(".safetensors")
    if run_weights.is_file() and not run_config.is_file():
        network = find_network(str(run_weights), architecture, weights, size)
        return dataclasses.replace(network, name=path.resolve().name)
    if architecture is not None:
        expected = f"expected none with {text}; it is for a file of weights ({', '.join(CHECKPOINTS)})"
        raise ArgumentError("network", expected)
    if suffix in (*ENGINE_SUFFIXES, ".onnx"):
        return _file(path, suffix, size)
    chosen = weights or PRETRAINED
    if text in _detectors():
        return _detector(text, chosen, size)
    if run_config.is_file():
        return dataclasses.replace(_detector(text, chosen, size), name=path.resolve().name)
    for source, has in _SOURCES.items():
        if find_spec(source) is not None and has(text):
            if size is not None and size[0] != size[1]:
                raise ArgumentError("size", f"expected a square for {text}, got {size[0]}x{size[1]}")
            key = hash_of(source, metadata.version(source), text, size, _content(chosen))
            return Network(text, source, text, "classify", chosen, key, size=size)
    missing = [source for source in _SOURCES if find_spec(source) is None]
    close = difflib.get_close_matches(text, {*_detectors(), *_library_names()}, 4)
    problem = "expected a file, a model of this package, or a classifier of torchvision, timm or ultralytics"
    problem += f"; got {text!r}" + (f", near {', '.join(close)}" if close else "")
    problem += f"; not installed: {', '.join(missing)}" if missing else ""
    raise UsageError(problem)


def _detectors() -> list[str]:
    return sorted(file.stem for file in CONFIG_FOLDER.glob("*.json"))


def _detector(name: str, weights: str, size: tuple[int, int] | None) -> Network:
    given = None if weights in (PRETRAINED, RANDOM) else weights
    if weights != RANDOM:
        weights = choose_weights(name, model_config(name), given)
        content = _content(str(weights_file(weights)))
    else:
        content = RANDOM
    key = hash_of(config_file(name).read_text(), content, size)
    return Network(name, "detector", name, "detect", weights, key, size=size)


def _file(path: Path, suffix: str, size: tuple[int, int] | None) -> Network:
    source = "onnx" if suffix == ".onnx" else "engine"
    batch = precision = None
    if source == "onnx":
        from onnx_path.quantization.qdq_nodes import EIGHT_BITS
        from onnx_path.surgery.graph import model_files
        from onnx_path.tensorrt.model_for_tensorrt import sixteen_bit_tensor

        model = model_files.load(path)
        first = next(
            (x for x in model.graph.input if len(x.type.tensor_type.shape.dim) == 4), model.graph.input[0]
        )
        batch = first.type.tensor_type.shape.dim[0].dim_value or None
        if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
            kinds = (EIGHT_BITS.get(x.data_type) for x in model.graph.initializer)
            precision = next(filter(None, kinds), "int8")
        elif (narrow := sixteen_bit_tensor(model)) is not None:
            precision = "bf16" if narrow.endswith("bfloat16") else "fp16"
    metadata_file = path.with_suffix(".json")
    task = "detect" if metadata_file.is_file() else "outputs"
    if source == "engine" and task == "detect":
        own = ArtifactMetadata.load(metadata_file)
        precision, sizes = own.precision, InputSizes.of_artifact(own)
        batch = None if sizes.batch.dynamic else sizes.batch.opt
    key = hash_of(_content(str(path)), metadata_file.read_text() if task == "detect" else "", size)
    return Network(path.stem, source, str(path), task, str(path), key, batch, precision, size)


def _stated_architecture(path: Path) -> str:
    """Returns the network that our own training wrote into a file of weights."""
    from codetr.classify.classifier_file import stated_network

    stated = stated_network(path)
    if stated is not None:
        return stated
    raise ArgumentError("network", f"expected the network of the weights {path}, such as resnet18; got none")


def _content(weights: str) -> str:
    """Returns the hash of a file; the text itself if it names none."""
    path = Path(weights)
    if not path.is_file():
        return weights
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()


def hash_of(*parts: object) -> str:
    """Returns a hash of values whose repr() tells them apart."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _in_torchvision(name: str) -> bool:
    import torchvision

    return name in torchvision.models.list_models(module=torchvision.models)


def _in_timm(name: str) -> bool:
    import timm

    return timm.is_model(name)


def _in_ultralytics(name: str) -> bool:
    return re.fullmatch(r"yolo(v8|11|26)[nsmlx]-cls", name) is not None


_SOURCES: dict[str, Callable[[str], bool]] = {
    "torchvision": _in_torchvision,
    "ultralytics": _in_ultralytics,
    "timm": _in_timm,
}


def _library_names() -> list[str]:
    names = []
    if find_spec("torchvision") is not None:
        import torchvision

        names += torchvision.models.list_models(module=torchvision.models)
    if find_spec("timm") is not None:
        import timm

        names += timm.list_models()
    return names
