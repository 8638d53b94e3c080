"""The files that cells run: exports, quantised files and engines, each made once and kept beside its key."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from codetr.errors import UsageError, one_line
from onnx_path.sweeping.cells import CellSpec, MissingCell
from onnx_path.sweeping.classifiers import Classifier
from onnx_path.sweeping.networks import RANDOM
from onnx_path.tensorrt.optimization_profiles import format_shape
from trt_plugin.atomic_files import atomic_write, new_folder, write_json

if TYPE_CHECKING:
    import onnx_ir as ir

IMAGES = "images"
OPSET = 20


class ClassifierFiles:
    """The files of a classifier.

    Args:
        spec: the cell, of whose network and batch sizes the files are.
        classifier: the network.
        calibration: yields batches of images [N, 3, H, W] that ranges are measured on.
    """

    def __init__(
        self, spec: CellSpec, classifier: Classifier, calibration: Callable[[], Iterable[np.ndarray]]
    ) -> None:
        self._spec, self._classifier, self._calibration = spec, classifier, calibration
        self._folder = spec.files

    def onnx(self) -> Path:
        """Returns the ONNX file with a dynamic batch size, in the precision of a cell of onnxruntime."""
        precision = self._spec.cell.precision
        if precision in ("int8", "fp8"):
            return self._quantized(precision)
        if precision != "fp16":
            return self._float32()
        path = self._folder / "model.fp16.onnx"
        if not path.is_file():
            import onnx

            from onnx_path.precision import convert_precision

            model = onnx.load(self._float32())
            convert_precision(model, "fp16", ())
            with atomic_write(path) as temporary:
                onnx.save(model, temporary)
        return path

    def engine(self) -> tuple[Path, float]:
        """Returns the cell's engine and the seconds of its build."""
        precision, side = self._spec.cell.precision, self._classifier.preprocessing.crop
        eight = precision in ("int8", "fp8")
        model = self._quantized(precision) if eight else self._float32()
        form = "fp16" if eight else precision
        return build_engine(self._spec, str(model), form, lambda n: f"{IMAGES}:{n}x3x{side}x{side}")

    def _float32(self) -> Path:
        path = self._folder / "model.onnx"
        if not path.is_file():
            import torch

            side = self._classifier.preprocessing.crop
            with quiet(), atomic_write(path) as temporary:
                try:
                    torch.onnx.export(
                        self._classifier.module,
                        (torch.zeros(2, 3, side, side),),
                        str(temporary),
                        input_names=[IMAGES],
                        output_names=["logits"],
                        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
                        opset_version=OPSET,
                        dynamo=True,
                        external_data=False,
                    )
                except torch.onnx.OnnxExporterError as error:  # its own message is a guide of many lines
                    reason = one_line(error.__cause__ or error)
                    raise UsageError(f"the network cannot be exported to ONNX: {reason}") from error
        return path

    def _quantized(self, precision: str) -> Path:
        key = f"{self._spec.calibration_key or 'random'}"[:8]
        path = self._folder / f"model.{precision}-{key}-{self._spec.calibration_images}.onnx"
        if not path.is_file():
            self._check_gain(precision)
            images = np.concatenate([*self._calibration()])
            with tempfile.TemporaryDirectory(prefix="codetr-sweep-") as folder:
                arrays = Path(folder) / "images.npz"
                np.savez(arrays, **{IMAGES: images})
                options = ["--precision", precision, "--data", str(arrays), "--images", str(len(images))]
                run_command(["quantize", str(self._float32()), str(path), *options])
        return path

    def _check_gain(self, precision: str) -> None:
        """Raises `MissingCell` for a network without a layer that 8 bits make faster."""
        import onnx

        from onnx_path.quantization.quantizer import NoLayerGains, Quantizer

        try:
            Quantizer(onnx.load(self._float32()), precision)
        except NoLayerGains as error:
            raise MissingCell(f"codetr quantize --precision {precision}: {error}") from error


class DetectorFiles:
    """The files of a detector of this package, by `codetr export`.

    Args:
        spec: the cell, of whose network and batch sizes the files are.
        size: height and width of the input.
    """

    def __init__(self, spec: CellSpec, size: Sequence[int]) -> None:
        self._spec, self._size, self._folder = spec, size, spec.files

    def onnx(self) -> Path:
        """Returns the ONNX file for all batch sizes in the cell's precision, with its metadata beside it."""
        return self._export(onnx_only=True)[0]

    def engine(self) -> tuple[Path, float]:
        """Returns the cell's engine, with its metadata beside it, and the seconds of its export and build."""
        return self._export(onnx_only=False)

    def _export(self, onnx_only: bool) -> tuple[Path, float]:
        precision, sizes = self._spec.cell.precision, str(self._spec.batches)
        out = self._folder / f"{precision}-b{sizes}{'-onnx' if onnx_only else ''}"
        height, width = map(str, self._size)
        command = ["export", "--model", self._spec.network.architecture, "--batch", sizes, "--out", str(out)]
        command += ["--height", height, "--width", width, "--precision", precision]
        data = None
        if precision in ("int8", "fp8"):
            if self._spec.calibration is None:
                raise UsageError(f"expected --calibration or --dataset for {precision}, got none")
            command += ["--calibration-data", self._spec.calibration]
            command += ["--calibration-images", str(self._spec.calibration_images)]
            data = self._spec.calibration_key
        command += ["--weights", self.weights()]
        if onnx_only:
            command.append("--onnx-only")
        else:
            command += ["--keep-unequal", "--timing-cache", str(timing_cache(self._spec))]
        return build_once(out / ("model.onnx" if onnx_only else "model.engine"), command, data)

    def weights(self) -> str:
        """Returns the weights as `codetr --weights` takes them."""
        network = self._spec.network
        if network.weights != RANDOM:
            return network.weights
        path = self._folder / "random.safetensors"
        if not path.is_file():
            from safetensors.torch import save_file

            import codetr

            model = codetr.CoDino(codetr.load_config(network.architecture))
            state = codetr.seeded_state_dict(model, 0)
            with atomic_write(path) as temporary:
                save_file({name: x.contiguous() for name, x in state.items()}, temporary)
        return str(path)


class GivenFile:
    """The ONNX file or engine that is the cell's network. An ONNX file gets an engine."""

    def __init__(self, spec: CellSpec) -> None:
        self._spec = spec

    def onnx(self) -> Path:
        """Returns the ONNX file."""
        return Path(self._spec.network.architecture)

    def engine(self) -> tuple[Path, float | None]:
        """Returns the engine, and the seconds of its build; None for the caller's own."""
        import onnx_ir as ir

        spec, network = self._spec, self._spec.network
        if network.source == "engine":
            return Path(network.architecture), None
        model = ir.load(network.architecture)

        def shapes(batch: int) -> str:
            inputs = file_shapes(spec, model, batch).items()
            return ",".join(f"{name}:{format_shape(x)}" for name, x in inputs if x)  # no scalars

        precision = spec.cell.precision if network.precision is None else None
        return build_engine(spec, network.architecture, precision, shapes)


def file_shapes(spec: CellSpec, model: ir.Model, batch: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each input of an ONNX file, with the batch size and --size for dynamic ones.

    Raises:
        UsageError: another size is dynamic.
    """
    shapes = {}
    for value in model.graph.inputs:
        if value.is_initializer():
            continue
        given = [size if isinstance(size, int) else 0 for size in value.shape or ()]
        if given and not given[0]:
            given[0] = batch
        if spec.network.size is not None and len(given) == 4:
            given[2:] = [own or side for own, side in zip(given[2:], spec.network.size)]
        if not all(given):
            problem = f"input {value.name} has dynamic sizes beside the batch"
            raise UsageError(f"{spec.network.architecture}: {problem}; give --size HEIGHTxWIDTH")
        shapes[value.name] = tuple(given)
    return shapes


def build_engine(
    spec: CellSpec, model: str, precision: str | None, shapes: Callable[[int], str]
) -> tuple[Path, float]:
    """Builds the engine of a cell by `codetr build`; returns it and the seconds of its build.

    Args:
        precision: of the build; None for the types in the ONNX file.
        shapes: batch size -> shapes of the inputs, such as images:8x3x224x224.
    """
    path = spec.files / f"{spec.cell.precision}-b{spec.batches}.engine"
    command = ["build", model, "--out", str(path)]
    if precision is not None:
        command += ["--precision", precision]
    command += ["--timing-cache", str(timing_cache(spec))]
    for option, size in zip(("--min", "--opt", "--max"), spec.batches, strict=True):
        command += [option, shapes(size)]
    return build_once(path, command)


def timing_cache(spec: CellSpec) -> Path:
    """Returns TensorRT's timing cache of the sweep."""
    return Path(spec.folder) / "timing.cache"


def build_once(path: Path, command: Sequence[str], data: str | None = None) -> tuple[Path, float]:
    """Runs a command that makes a file, if the file was not made by the same command and versions before.

    Args:
        data: changes with the data that the command reads.

    Returns:
        The file, and the seconds that the command took.
    """
    record = path.parent / f"{path.name}.made.json"
    made_by = {"command": list(command), "data": data, "versions": _versions()}
    if path.is_file() and record.is_file():
        content = json.loads(record.read_text())
        if content["made_by"] == made_by:
            return path, content["seconds"]
    with new_folder(path.parent):
        path.unlink(missing_ok=True)
        started = time.monotonic()
        run_command(command)
        seconds = round(time.monotonic() - started, 3)
        write_json(record, {"made_by": made_by, "seconds": seconds})
    return path, seconds


def run_command(words: Sequence[str]) -> None:
    """Runs a command of `codetr` in this process.

    Raises:
        UsageError: the command failed, with its message.
    """
    from codetr.cli.app import main

    errors = io.StringIO()
    with quiet(), contextlib.redirect_stderr(errors):
        status = main(list(words))
    if status:
        lines = [line for line in errors.getvalue().splitlines() if "error:" in line]
        message = lines[-1].partition("error: ")[2] if lines else f"exit status {status}"
        raise UsageError(f"codetr {words[0]}: {message}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps what a command prints on stdout away from the sweep's output."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _versions() -> dict[str, str | None]:
    from onnx_path.sweeping.machine import gpu_name, version_of

    return {"gpu": gpu_name(), **{name: version_of(name) for name in ("tensorrt", "onnxruntime", "torch")}}
