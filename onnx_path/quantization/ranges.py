"""Largest magnitudes of tensors on calibration data, by onnxruntime's calibrators, and their cache."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import calibrate

from codetr.errors import UsageError, one_line
from codetr.export.weight_key import number_keys
from onnx_path.model_for_tensorrt import LARGEST_FILE, save_model
from onnx_path.quantization.products import Product
from onnx_path.surgery.graph.float32_models import in_float32
from onnx_path.surgery.graph.onnx_session import CPU, CannotRun
from trt_plugin.atomic_files import write_json

CALIBRATORS = {
    "minmax": calibrate.MinMaxCalibrater,
    "entropy": calibrate.EntropyCalibrater,
    "percentile": calibrate.PercentileCalibrater,
}
FORMAT = 1


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
        method: key of `CALIBRATORS`.
    """

    folder: Path
    model: str
    data: str
    method: str

    @property
    def path(self) -> Path:
        """The file, which need not exist."""
        key = hashlib.sha256(f"{self.model} {self.data} {self.method}".encode()).hexdigest()[:24]
        return self.folder / f"{key}.json"

    def read(self) -> dict[str, float] | None:
        """Returns the ranges by `product_names`; None without a file.

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
        """Writes the file, whole or not at all."""
        write_json(self.path, {**self._header(), "ranges": dict(ranges)}, allow_nan=False)

    def _header(self) -> dict[str, Any]:
        return {"format": FORMAT, "model": self.model, "data": self.data, "method": self.method}


def model_key(products: Iterable[Product]) -> str:
    """Hashes the weights of a model's products, in any order."""
    return hashlib.sha256(" ".join(sorted(x.key for x in products)).encode()).hexdigest()[:32]


def product_names(products: Sequence[Product]) -> dict[Product, str]:
    """Names products by their weights. Products that share weights are numbered in the order of the nodes."""
    return dict(zip(products, number_keys(product.key for product in products), strict=True))


def measure_ranges(
    model: onnx.ModelProto,
    products: Sequence[Product],
    samples: Iterable[Mapping[str, np.ndarray]],
    method: str,
    providers: Sequence[str] = CPU,
    advance: Callable[[int], None] = lambda count: None,
) -> dict[Product, float]:
    """Runs a model over calibration data and returns the largest magnitude of each product's input.

    Args:
        model: with its weights, in float32 or 16 bits. It runs in float32.
        products: of the model.
        samples: inputs of each run.
        method: key of `CALIBRATORS`.
        providers: onnxruntime's execution providers.
        advance: called with 1 after each run.

    Raises:
        CannotRun: onnxruntime does not run the model.
        RangeError: a tensor has non-finite numbers.
    """
    tensors = {product.source.name for product in products}
    with tempfile.TemporaryDirectory(prefix="codetr-ranges-") as temporary:
        file, augmented = (Path(temporary) / name for name in ("model.onnx", "augmented.onnx"))
        calibrated = onnx.ModelProto()
        calibrated.CopyFrom(in_float32(model))
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
        for inputs in samples:  # one by one: a calibrator keeps the tensors of all runs of a call
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # it prints a line for each run
                    calibrator.collect_data(_OneRun(inputs))
            except ValueError:  # a histogram of non-finite numbers, whose tensor the error does not name
                if method != "minmax":
                    check_ranges(measure_ranges(model, products, [inputs], "minmax", providers))
                raise
            advance(1)
        with contextlib.redirect_stdout(io.StringIO()):
            found = calibrator.compute_data()
    return {product: _largest(found[product.source.name].range_value) for product in products}


def check_ranges(ranges: Mapping[Product, float]) -> None:
    """Raises `RangeError` for the first range that gives no scale."""
    for product, largest in ranges.items():
        if not math.isfinite(largest) or largest <= 0:
            found = "zero everywhere" if largest == 0 else f"not finite ({largest})"
            raise RangeError(
                f"the input {product.source.name} of {product} is {found} on the calibration data; "
                f"give other data, or leave the layer in 16 bits by --keep"
            )


def _session(file: Path, providers: Sequence[str]) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False  # the arena keeps what a large model frees
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=providers)
    except Exception as error:  # onnxruntime's exceptions have no other common base
        raise CannotRun(one_line(error)) from error


class _OneRun(calibrate.CalibrationDataReader):
    def __init__(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = iter([dict(inputs)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._inputs, None)


def _largest(bounds: tuple[np.ndarray, np.ndarray]) -> float:
    return float(np.abs(np.asarray(bounds, np.float64)).max())
