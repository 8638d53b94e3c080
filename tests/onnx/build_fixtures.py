"""Small models, and stand-ins for TensorRT and the GPU, for the tests of `onnx_path.build`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_path import build, operator
from onnx_path.tensorrt_engine import Settings
from tests.onnx.text_models import text_model
from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import engine_summary
from trt_plugin.inspection.engine_layers import parse
from trt_plugin.inspection.engine_summary import EngineSummary, TensorReport

REPOSITORY = Path(__file__).parents[2]
SHAPES = ("--min", "images:1x3x8x8", "--opt", "images:2x3x8x8", "--max", "images:4x3x8x8")
NO_GPU = "TensorRT needs an NVIDIA GPU, and CUDA finds none"


def convolution(
    path: Path,
    *,
    external: bool = False,
    dtype: int = TensorProto.FLOAT,
    batch: str | None = "batch",
    node: onnx.NodeProto | None = None,
    functions: tuple = (),
) -> Path:
    """Writes images [batch, 3, 8, 8] -> Conv -> maps -> Relu -> output; `node` replaces the Relu."""
    kind = {1: "float", 10: "float16", 16: "bfloat16"}[dtype]
    model = text_model(
        "[conv] maps = Conv<pads = [1, 1, 1, 1]>(images, weight) [relu] output = Relu(maps)",
        f"{kind}[N, 3, 8, 8] images",
        f"{kind}[N, 2, 8, 8] output",
        20,
        domains=" ".join({x.domain for x in (node, *functions) if x is not None and x.domain}),
        weight=np.ones((2, 3, 3, 3), helper.tensor_dtype_to_np_dtype(dtype)),
    )
    for value in (*model.graph.input, *model.graph.output):
        (value.type.tensor_type.shape.dim[0]).CopyFrom(
            onnx.TensorShapeProto.Dimension(**({"dim_param": batch} if batch else {}))
        )
    if node is not None:
        model.graph.node[1].CopyFrom(node)
    model.functions.extend(functions)
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


def summary_of(
    inputs: tuple[TensorReport, ...], outputs: tuple[TensorReport, ...], layers: int = 3
) -> EngineSummary:
    """The summary of an engine that does not exist."""
    return EngineSummary(
        engine_bytes=6,
        built_with="10.6.0",
        tensorrt_version="10.6.0",
        gpu="a GPU",
        verbosity="DETAILED",
        layers=layers,
        inputs=inputs,
        outputs=outputs,
        profiles=1,
        device_memory_bytes=3 * 2**20 // 2,
        loaded_bytes=0,
        streamable_weights_bytes=0,
        auxiliary_streams=0,
    )


@pytest.fixture
def machine(monkeypatch) -> list[tuple[Path, Settings, onnx.ModelProto]]:
    """A machine with a GPU, whose engines contain "engine". Lists what was built."""
    built = []

    def serialize_engine(path, settings, name):
        built.append((path, settings, onnx.load(path)))
        return b"engine"

    images = TensorReport("images", (-1, 3, 8, 8), "float32", (1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))
    summary = summary_of((images,), (TensorReport("output", (-1, 2, 8, 8), "float32"),))
    layers = parse(json.dumps({"Layers": [{"Name": "attention", "LayerType": "PluginV3"}]}))
    monkeypatch.setattr(build, "check_machine", lambda libraries, model: list(libraries))
    monkeypatch.setattr(build, "serialize_engine", serialize_engine)
    monkeypatch.setattr(engine_summary, "read_engine", lambda path: (summary, layers, ""))
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
