"""Largest magnitudes of tensors on calibration data, as onnxruntime finds them, and their cache."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import tempfile
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnxruntime.quantization import calibrate

from codetr.detector.onnxruntime_backend import limit_threads
from codetr.errors import UsageError, one_line
from codetr.export.weight_key import OUTPUT, number_keys
from codetr.usable_cores import usable_cores
from onnx_path.quantization.attention_values import attention_values
from onnx_path.quantization.calibration_data import CalibrationData
from onnx_path.quantization.percentiles import Percentile, add_percentiles
from onnx_path.quantization.products import Product
from onnx_path.surgery.graph.float32_models import in_float32
from onnx_path.surgery.graph.onnx_session import CPU, CannotRun
from onnx_path.tensorrt.model_for_tensorrt import LARGEST_FILE, save_model
from trt_plugin.atomic_files import write_json

CALIBRATORS = {"minmax": calibrate.MinMaxCalibrater, "entropy": calibrate.EntropyCalibrater}
"""Onnxruntime's, for all methods but "percentile"."""
FORMAT = 2


class RangeError(UsageError):
    """The range of a tensor is zero or not finite."""


@dataclass(frozen=True)
class RangeCache:
    """A file with the ranges of one model on one set of data.

    Products are known by their weights, so a file serves every batch size and image size of a model, before
    and after surgery.

    Attributes:
        folder: folder of the files.
        model: hash of the weights of all products.
        data: hash of the calibration data.
        method: "minmax", "entropy" or "percentile".
    """

    folder: Path
    model: str
    data: str
    method: str

    @property
    def path(self) -> Path:
        """The file, which need not exist."""
        key = hashlib.sha256(f"{FORMAT} {self.model} {self.data} {self.method}".encode()).hexdigest()[:24]
        return self.folder / f"{key}.json"

    def read(self) -> dict[str, float] | None:
        """Returns the ranges by `stable_names`; None without a file.

        Raises:
            UsageError: the file is damaged, or of another model, other data or another method.
        """
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.path}: the ranges cannot be read ({one_line(error)}); remove it"
            ) from error
        said = {name: content.get(name) if isinstance(content, dict) else None for name in self._header()}
        for name, expected in self._header().items():
            if said[name] != expected:
                raise UsageError(
                    f"{self.path}: expected ranges of {name} {expected}, got {said[name]}; remove it"
                )
        return content["ranges"]

    def write(self, ranges: Mapping[str, float]) -> None:
        """Writes the file, whole or not at all.

        Ranges that `check_ranges` refuses are written too: a layer that stays in 16 bits needs none.
        """
        write_json(self.path, {**self._header(), "ranges": dict(ranges)})

    def _header(self) -> dict[str, Any]:
        return {"format": FORMAT, "model": self.model, "data": self.data, "method": self.method}


def model_key(products: Iterable[Product]) -> str:
    """Hashes the weights of a model's products, in any order."""
    return hashlib.sha256(" ".join(sorted(x.key for x in products)).encode()).hexdigest()[:32]


def stable_names(products: Sequence[Product], sources: Container[ir.Value]) -> dict[str, str]:
    """Names tensors by weights, so that a name means the same tensor in every export of a model.

    Products that share weights are numbered in the order of the nodes.

    Args:
        products: products of a graph, whose inputs get names.
        sources: tensors to quantise. The outputs of products among them get names too, with the end `OUTPUT`,
            and so do the values that products give MSDA.

    Returns:
        The names of tensors in the graph by their stable names.
    """
    names = dict(zip(number_keys(product.key for product in products), products, strict=True))
    outputs = {}
    for name, product in names.items():
        values = attention_values(product)
        output = product.output if values is None else values[0]
        if output in sources:
            outputs[name + OUTPUT] = output
    inputs = {name: product.source for name, product in names.items()}
    return {name: value.name for name, value in (inputs | outputs).items()}


def measure_ranges(
    model: onnx.ModelProto,
    tensors: Iterable[str],
    samples: CalibrationData | Sequence[Mapping[str, np.ndarray]],
    method: str,
    providers: Sequence[str] = CPU,
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, float]:
    """Runs a model over calibration data and returns the largest magnitude of each tensor.

    Args:
        model: with its weights, in float32 or 16 bits. It runs in float32.
        tensors: names of floating tensors of the model.
        samples: inputs of each run.
        method: "minmax", "entropy" or "percentile".
        providers: onnxruntime's execution providers.
        advance: called with 1 after each run.

    Raises:
        CannotRun: onnxruntime does not run the model.
        RangeError: a tensor has non-finite numbers, and the method is "entropy".
    """
    tensors = set(tensors)
    calibrated = onnx.ModelProto()
    calibrated.CopyFrom(in_float32(model))
    if method == "percentile":
        return _percentiles(calibrated, tensors, samples, providers, advance)
    with tempfile.TemporaryDirectory(prefix="codetr-ranges-") as temporary:
        file, augmented = (Path(temporary) / name for name in ("model.onnx", "augmented.onnx"))
        large = calibrated.ByteSize() > LARGEST_FILE
        infos = {
            name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in tensors
        }
        known = {x.name for x in calibrated.graph.value_info}
        calibrated.graph.value_info.extend(info for name, info in infos.items() if name not in known)
        save_model(calibrated, file, Path())
        calibrator = CALIBRATORS[method](
            file, augmented_model_path=str(augmented), symmetric=True, use_external_data_format=large
        )
        calibrator.select_tensors_to_calibrate = lambda model: (tensors, infos)
        calibrator.augment_graph()
        calibrator.infer_session = _session(augmented, providers)
        if method == "entropy":
            calibrator.collector = _Histograms(calibrator)
        for inputs in samples:  # one by one: a calibrator keeps the tensors of all runs of a call
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # it prints a line for each run
                    calibrator.collect_data(_OneRun(inputs))
            except ValueError:  # a histogram of non-finite numbers, whose tensor the error does not name
                if method == "entropy":
                    check_ranges(measure_ranges(model, tensors, [inputs], "minmax", providers))
                raise
            advance(1)
        with contextlib.redirect_stdout(io.StringIO()):
            found = calibrator.compute_data()
    return {name: _largest(found[name].range_value) for name in tensors}


def _percentiles(
    model: onnx.ModelProto,
    tensors: Iterable[str],
    samples: CalibrationData | Sequence[Mapping[str, np.ndarray]],
    providers: Sequence[str],
    advance: Callable[[int], None],
) -> dict[str, float]:
    outputs = add_percentiles(model, tensors, len(samples))
    found = {name: Percentile() for name in outputs}
    names = [x.name for x in model.graph.output]
    with tempfile.TemporaryDirectory(prefix="codetr-ranges-") as temporary:
        file = Path(temporary) / "model.onnx"
        save_model(model, file, Path())
        session = _session(file, providers)
        for inputs in samples:
            try:
                results = dict(zip(names, session.run(names, dict(inputs)), strict=True))
            except Exception as error:  # as in `_session`
                raise CannotRun(one_line(error)) from error
            for name, percentile in found.items():
                percentile.add(*(results[output] for output in outputs[name]))
            advance(1)
    return {name: percentile.value() for name, percentile in found.items()}


def check_ranges(ranges: Mapping[str, float]) -> None:
    """Raises `RangeError` for the first range, by the names of tensors, that gives no scale."""
    for name, largest in ranges.items():
        if not math.isfinite(largest) or largest <= 0:
            found = "zero everywhere" if largest == 0 else f"not finite ({largest})"
            raise RangeError(
                f"the tensor {name} is {found} on the calibration data; "
                f"give other data, or leave the layers that read it in 16 bits by --keep"
            )


def _session(file: Path, providers: Sequence[str]) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False  # the arena keeps what a large model frees
    limit_threads(options)
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=providers)
    except Exception as error:  # onnxruntime's exceptions have no other common base
        raise CannotRun(one_line(error)) from error


class _Histograms(calibrate.HistogramCollector):
    """Onnxruntime's histograms, several tensors at a time. They take most of the time of a calibration."""

    def __init__(self, calibrator: calibrate.HistogramCalibrater) -> None:
        names = ("method", "symmetric", "num_bins", "num_quantized_bins", "percentile", "scenario")
        super().__init__(**{name: getattr(calibrator, name) for name in names})

    def collect(self, name_to_arr: Mapping[str, Sequence[np.ndarray]]) -> None:
        collect = super().collect
        with ThreadPoolExecutor(min(usable_cores(), 16)) as pool:  # a thread copies its tensor
            list(pool.map(lambda name: collect({name: name_to_arr[name]}), name_to_arr))


class _OneRun(calibrate.CalibrationDataReader):
    def __init__(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = iter([dict(inputs)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._inputs, None)


def _largest(bounds: tuple[np.ndarray, np.ndarray]) -> float:
    return float(np.abs(np.asarray(bounds, np.float64)).max())
