"""Small models, and stand-ins for TensorRT and the GPU, for the tests of `onnx_path.build` and `compare`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_path import build, compare
from onnx_path.comparison import marked_engines
from onnx_path.comparison.onnxruntime_reference import OnnxruntimeReference
from onnx_path.nodes import attention
from onnx_path.precision import convert_precision
from onnx_path.tensorrt import model_for_tensorrt, tensorrt_engine
from onnx_path.tensorrt.optimization_profiles import inputs_of
from onnx_path.tensorrt.tensorrt_engine import Settings
from tests.engines.engine_samples import SUMMARY
from tests.onnx.text_models import text_model
from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import engine_summary
from trt_plugin.inspection.engine_layers import LayerList, parse
from trt_plugin.inspection.engine_summary import EngineSummary, TensorReport

LAYERS = 6
SIZE = 16
SHAPES = ("--min", "images:1x16x16", "--opt", "images:2x16x16", "--max", "images:4x16x16")
"""Options of a build of `network`."""
NO_GPU = "TensorRT needs an NVIDIA GPU, and CUDA finds none"


def network(
    path: Path,
    *,
    changed: str | None = None,
    external: bool = False,
    head: str = "Sigmoid",
    batch: str = "batch",
    rows: object = SIZE,
) -> Path:
    """Writes images [batch, rows, 16] -> six times (MatMul, Add, Tanh, and a sum) -> features, score.

    Args:
        changed: name of a weight, such as "weight_3", that gets other numbers.
        external: put the weights beside the file.
        head: operator that computes "score" of "sum_5", with its domain and attributes.
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
    shape = f"float[{batch}, {rows}, {SIZE}]"
    model = text_model(
        f"{body} [features] features = Neg(sum_2) [score] score = {head}({last})",
        f"{shape} images",
        f"{shape} features, {shape} score",
        20,
        domains=head.partition("<")[0].rpartition(".")[0],
        **weights,
    )
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.weights", size_threshold=0)
    return path


def attention_file(path: Path, bodies: bool = True) -> Path:
    """Writes a file with one MSDA node and static shapes."""
    model = text_model(
        "[attention] output = msda.MultiScaleDeformableAttention"
        '<plugin_version = "1", plugin_namespace = "msda">'
        "(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)",
        "float[1, 20, 2, 4] value, int64[2, 2] spatial_shapes, int64[2] level_start_index, "
        "float[1, 5, 2, 2, 3, 2] sampling_locations, float[1, 5, 2, 2, 3] attention_weights",
        "float[1, 5, 8] output",
        attention.OPSET_VERSION,
        domains=attention.DOMAIN,
    )
    if bodies:
        attention.add_function_bodies(model)
    onnx.save(model, path)
    return path


def converted(path: Path, precision: str) -> Path:
    """Writes the file that `onnx_path.build` would make of another, beside it."""
    model = onnx.load(path)
    convert_precision(model, precision)
    target = path.with_name(f"{path.stem}.{precision}.onnx")
    model_for_tensorrt.save_model(model, target, path.parent)
    return target


def refuse_by(main: Callable[[list[str]], int], capsys, folder: Path, *argv: object, status: int = 2) -> str:
    """Runs a command, which must print one line and leave its folder as it was; returns the line."""
    before = sorted(folder.rglob("*"))
    found = main([str(word) for word in argv])
    output = capsys.readouterr()
    assert found == status, output
    (line,) = output.err.splitlines()
    assert sorted(folder.rglob("*")) == before
    return line.partition(": error: ")[2]


def run_engine(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, str]]:
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


def layers_in(dtype: str) -> LayerList:
    """Returns the layers of an engine: a plugin, whose result the inspector calls `dtype`."""
    tensors = [{"Name": "x", "Format/Datatype": dtype}]
    layer = {"Name": "attention", "LayerType": "PluginV3", "Outputs": tensors}
    return parse(json.dumps({"Layers": [layer]}))


@pytest.fixture
def machine(monkeypatch) -> list[tuple[Path, Settings, onnx.ModelProto]]:
    """A machine with a GPU, whose engines are ONNX files. Lists what was built."""
    built = []

    def serialize_engine(path, settings, name):
        built.append((path, settings, onnx.load(path)))
        return built[-1][2].SerializeToString()

    for module in (build, compare):
        monkeypatch.setattr(module, "check_machine", lambda libraries, model: list(libraries))
    for module in (build, tensorrt_engine):
        monkeypatch.setattr(module, "serialize_engine", serialize_engine)
    monkeypatch.setattr(marked_engines, "run_engine", run_engine)
    monkeypatch.setattr(engine_summary, "read_engine", lambda path: (describe(path), layers_in("Float"), ""))
    return built


@pytest.fixture
def model(tmp_path) -> Path:
    return network(tmp_path / "model.onnx")


@pytest.fixture
def tensorrt():
    pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    return pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)


@pytest.fixture
def no_gpu(monkeypatch):
    """Makes every machine one without a GPU."""

    def require_gpu():
        raise EngineError(f"{NO_GPU}: no CUDA-capable device is detected")

    monkeypatch.setattr("trt_plugin.cuda_runtime.require_gpu", require_gpu)
