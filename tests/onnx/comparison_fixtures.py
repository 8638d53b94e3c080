"""A small network, and stand-ins for TensorRT and the GPU, for the tests of `onnx_path.compare`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_path import compare, model_for_tensorrt, tensorrt_engine
from onnx_path.comparison import marked_engines
from onnx_path.comparison.onnxruntime_reference import OnnxruntimeReference
from onnx_path.optimization_profiles import inputs_of
from onnx_path.precision import convert_precision
from onnx_path.tensorrt_engine import Settings
from tests.engines.engine_samples import SUMMARY
from tests.onnx.text_models import text_model
from trt_plugin.inspection import engine_summary
from trt_plugin.inspection.engine_layers import parse
from trt_plugin.inspection.engine_summary import EngineSummary, TensorReport

LAYERS = 6
SIZE = 16


def network(path: Path, *, changed: str | None = None, external: bool = False, head: str = "Sigmoid") -> Path:
    """Writes images [batch, 16, 16] -> six times (MatMul, Add, Tanh, with a sum over two) -> features, score.

    Args:
        changed: name of a weight, such as "weight_3", that gets other numbers.
        external: put the weights beside the file.
        head: operator that computes "score" of "sum_5".
    """
    random = np.random.default_rng(5)
    weights, body, last = {}, "", "images"
    for i in range(LAYERS):
        weights[f"weight_{i}"] = (random.standard_normal((SIZE, SIZE)) / 4).astype(np.float32)
        weights[f"bias_{i}"] = random.standard_normal(SIZE).astype(np.float32)
        body += f"""[product_{i}] product_{i} = MatMul({last}, weight_{i})
            [bias_{i}] biased_{i} = Add(product_{i}, bias_{i}) [tanh_{i}] tanh_{i} = Tanh(biased_{i})
            [sum_{i}] sum_{i} = Add({last}, tanh_{i}) """
        last = f"sum_{i}"
    if changed is not None:
        weights[changed] = weights[changed] + np.float32(1)
    shape = f"float[batch, {SIZE}, {SIZE}]"
    model = text_model(
        f"{body} [features] features = Neg(sum_2) [score] score = {head}({last})",
        f"{shape} images",
        f"{shape} features, {shape} score",
        20,
        domains=head.rpartition(".")[0],
        **weights,
    )
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.weights", size_threshold=0)
    return path


def pretend(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, str]]:
    """Stands for TensorRT: an "engine" is an ONNX file, which onnxruntime runs."""
    arrays = OnnxruntimeReference(onnx.load(path), path.parent, inputs)()
    return {name: (array, array.dtype.name) for name, array in arrays.items()}


def describe(path: Path) -> EngineSummary:
    """Returns the summary of such an engine, whose dynamic batch is 1 to 4."""
    model, inputs = onnx.load(path), []
    for one in inputs_of(model):
        shapes = [(batch, *one.shape[1:]) for batch in ((-1, 1, 2, 4) if one.dynamic else one.shape[:1])]
        inputs.append(TensorReport(one.name, shapes[0], "float32", *shapes[1:]))
    outputs = tuple(TensorReport(x.name, (-1,), "float32") for x in model.graph.output)
    return dataclasses.replace(SUMMARY, inputs=tuple(inputs), outputs=outputs)


def layers_in(dtype: str):
    """Returns the layers of an engine with one tensor, whose type the inspector calls `dtype`."""
    tensors = [{"Name": "x", "Format/Datatype": dtype}]
    return parse(json.dumps({"Layers": [{"Name": "layer", "Outputs": tensors}]}))


@pytest.fixture
def gpu(monkeypatch) -> list[tuple[Settings, onnx.ModelProto]]:
    """A machine with a GPU. Lists the settings and models of what was built."""
    built = []

    def serialize_engine(path, settings, name):
        model = onnx.load(path)
        built.append((settings, model))
        return model.SerializeToString()

    monkeypatch.setattr(compare, "check_machine", lambda libraries, model: None)
    monkeypatch.setattr(marked_engines, "run_engine", pretend)
    monkeypatch.setattr(tensorrt_engine, "serialize_engine", serialize_engine)
    monkeypatch.setattr(engine_summary, "read_engine", lambda path: (describe(path), layers_in("Float"), ""))
    return built


def converted(path: Path, precision: str) -> Path:
    """Writes the file that `onnx_path.build` would make of another, beside it."""
    model = onnx.load(path)
    convert_precision(model, precision)
    target = path.with_name(f"{path.stem}.{precision}.onnx")
    model_for_tensorrt.save_model(model, target, path.parent)
    return target
