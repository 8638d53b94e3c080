"""The network of a `codetr.Detector`: which model, by which backend, at which size. Imports no Torch.

The commands `codetr detect` and `codetr evaluate` have these fields as options. The rules for them stand here
and in the constructors of the backends, and every violation is a `codetr.errors.ArgumentError`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group
from pydantic import ConfigDict

from codetr.cli.argument_types import Parameter
from codetr.detector.file_backend import FileBackend
from codetr.detector.onnxruntime_backend import OnnxRuntimeBackend
from codetr.detector.sizes import ChosenSize
from codetr.detector.tensorrt_backend import TensorRTBackend
from codetr.detector.torch_backend import TorchBackend
from codetr.errors import ArgumentError
from codetr.weights import DEMO
from trt_plugin.metadata import Precision

FILE_BACKENDS: dict[str, type[FileBackend]] = {
    "tensorrt": TensorRTBackend,
    "onnxruntime": OnnxRuntimeBackend,
}


@Parameter(name="*", group=Group("Network", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Options of the network: model or file, device and input size. See `codetr.Detector`."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # in a server's configuration

    model: Annotated[Any, Parameter(metavar="NAME")] = None
    """co_dino_swin_l, co_dino_r50, the folder of a training run, or a configuration file. Default:
    co_dino_demo."""
    weights: Annotated[Any, Parameter(metavar="FILE|URL|NAME")] = None
    """Checkpoint. Default: the file beside the configuration, else the published one."""
    labels: Annotated[Any, Parameter(metavar="FILE")] = None
    """Text file of class names, one a line, instead of the model's."""
    backend: Literal["torch", "onnxruntime", "tensorrt"] | None = None
    """Default: torch, or the runtime of the file that --engine or --onnx names."""
    engine: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """TensorRT engine with its metadata (.json) beside it. It contains model and weights."""
    onnx: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """ONNX file for onnxruntime, with its metadata (.json) beside it."""
    device: str = "auto"
    """auto (the GPU if there is one), cpu, cuda or cuda:0, cuda:1, …"""
    precision: Precision | None = None
    """Precision of the torch backend. Default: fp32."""
    max_size: Annotated[int | None, Parameter(metavar="PX")] = None
    """Limit of the resized picture's longer side. Default: the published size of the model."""
    height: Annotated[int | None, Parameter(metavar="PX")] = None
    """Fixed input height. Pictures are fitted in and padded."""
    width: Annotated[int | None, Parameter(metavar="PX")] = None
    """Fixed input width."""
    imgsz: Annotated[Any, Parameter(metavar="PX|HEIGHTxWIDTH")] = None
    """The resized picture's longer side, even beyond the published size; or --height and --width in one.
    Sizes are fixed in a file that was exported without --dynamic-size."""

    def make_backend(self) -> TorchBackend | FileBackend:
        """Checks the options and makes the backend. Its method `load` then loads the network.

        Raises:
            ArgumentError: an option is wrong, missing, or contradicts another one.
        """
        size = ChosenSize(self.max_size, self.height, self.width, self.imgsz)
        files = {name: getattr(self, cls.argument) for name, cls in FILE_BACKENDS.items()}
        backend = self.backend or next((name for name, file in files.items() if file is not None), "torch")
        if backend != "torch" and backend not in files:
            raise ArgumentError("backend", f"expected torch, onnxruntime or tensorrt, got {backend!r}")
        for name, cls in FILE_BACKENDS.items():
            if name == backend and files[name] is None:
                raise ArgumentError(cls.argument, f"expected an {cls.kind}, got none")
            if name != backend and files[name] is not None:
                problem = f"expected none with the backend {backend}, got {files[name]}"
                raise ArgumentError(cls.argument, problem)
        if backend == "torch":
            if self.model is None and self.weights is not None:
                raise ArgumentError("weights", f"expected none without a model, got {self.weights}")
            model = DEMO if self.model is None else self.model
            return TorchBackend(model, self.weights, self.device, self.precision, size)
        cls, file = FILE_BACKENDS[backend], files[backend]
        for name in ("model", "weights", "precision"):
            if getattr(self, name) is not None:
                raise ArgumentError(name, f"is fixed in the {cls.kind} {file}, leave it out")
        return cls(file, self.device, size)


def for_ray(network: NetworkOptions) -> NetworkOptions:
    """Prepares options for processes of Ray, which run in other folders: makes their paths absolute.

    Raises:
        ArgumentError: the device is one of several GPUs, which Ray chooses.
    """
    if network.device not in ("auto", "cpu", "cuda"):
        problem = f"expected auto, cpu or cuda, Ray chooses the GPUs, got {network.device!r}"
        raise ArgumentError("device", problem)
    names = ("model", "weights", "labels", "engine", "onnx")
    given = {name: Path(value) for name in names if (value := getattr(network, name)) is not None}
    return replace(network, **{name: path.resolve() for name, path in given.items() if path.exists()})


def ray_gpus(network: NetworkOptions) -> int:
    """Returns the number of Ray's GPUs that the network may use, 0 for the CPU.

    Raises:
        ArgumentError: the network needs a GPU, and Ray has none.
    """
    import ray

    found = 0 if network.device == "cpu" else int(ray.cluster_resources().get("GPU", 0))
    for option, needed in (("device", network.device == "cuda"), ("engine", network.engine is not None)):
        if needed and not found:
            raise ArgumentError(option, "expected a machine with a GPU, Ray found none")
    return found
