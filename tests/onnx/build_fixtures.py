"""Small models, and stand-ins for TensorRT and the GPU, for the tests of `onnx_path.build`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnx_path import build, operator
from onnx_path.tensorrt_engine import Settings
from tests.engines.engine_samples import SUMMARY
from tests.onnx.text_models import text_model
from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import engine_summary
from trt_plugin.inspection.engine_layers import parse

REPOSITORY = Path(__file__).parents[2]
SHAPES = ("--min", "images:1x3x8x8", "--opt", "images:2x3x8x8", "--max", "images:4x3x8x8")
NO_GPU = "TensorRT needs an NVIDIA GPU, and CUDA finds none"


def convolution(
    path: Path,
    *,
    external: bool = False,
    kind: str = "float",
    batch: str = "batch",
    last: str = "[relu] output = Relu(maps)",
    domains: str = "",
) -> Path:
    """Writes images [batch, 3, 8, 8] -> Conv -> maps -> `last` -> output."""
    types = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    model = text_model(
        f"[conv] maps = Conv<pads = [1, 1, 1, 1]>(images, weight) {last}",
        f"{kind}[{batch}, 3, 8, 8] images",
        f"{kind}[{batch}, 2, 8, 8] output",
        20,
        domains=domains,
        weight=np.ones((2, 3, 3, 3), types[kind]),
    )
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
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
        operator.OPSET_VERSION,
        domains=operator.DOMAIN,
    )
    if bodies:
        operator.add_function_bodies(model)
    onnx.save(model, path)
    return path


@pytest.fixture
def model(tmp_path) -> Path:
    return convolution(tmp_path / "model.onnx")


@pytest.fixture
def machine(monkeypatch) -> list[tuple[Path, Settings, onnx.ModelProto]]:
    """A machine with a GPU, whose engines contain "engine". Lists what was built."""
    built = []

    def serialize_engine(path, settings, name):
        built.append((path, settings, onnx.load(path)))
        return b"engine"

    layers = parse(json.dumps({"Layers": [{"Name": "attention", "LayerType": "PluginV3"}]}))
    monkeypatch.setattr(build, "check_machine", lambda libraries, model: list(libraries))
    monkeypatch.setattr(build, "serialize_engine", serialize_engine)
    monkeypatch.setattr(engine_summary, "read_engine", lambda path: (SUMMARY, layers, ""))
    return built


def refuse_by(main: Callable[[list[str]], int], capsys, folder: Path, *argv: object, status: int = 2) -> str:
    """Runs a command, which must print one line and leave its folder as it was; returns the line."""
    before = sorted(folder.rglob("*"))
    found = main([str(word) for word in argv])
    output = capsys.readouterr()
    assert found == status, output
    (line,) = output.err.splitlines()
    assert sorted(folder.rglob("*")) == before
    return line.partition(": error: ")[2]


refuse = functools.partial(refuse_by, build.main)


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
