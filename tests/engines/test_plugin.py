"""The TensorRT plugins: the library and its creators without a GPU, engines of one node with one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trt_plugin
from benchmarks.operator_errors import relative_error, truth
from benchmarks.problems import BY_NAME
from benchmarks.trt_engines import ATTENTION, FUSED_ATTENTION, INPUT_NAMES
from tests.engines.engine_samples import run_python
from tests.engines.plugin_engines import arrays_of, build_plan, plugin_or_skip, save
from tests.matrix.against_reference import TOLERANCE, make
from tests.matrix.backends import no_sm90, operators
from tests.matrix.cuda_emulator import compile_for_cpu
from trt_plugin.engine_error import import_tensorrt
from trt_plugin.inspection.engine_summary import read_engine
from trt_plugin.library import (
    FEED_FORWARD,
    GROUP_NORM,
    GROUP_NORM_LEVELS,
    LINEAR,
    LINEAR_MAX,
    LINEAR_OF_SUM,
    QUANTIZED_FEED_FORWARD,
    QUANTIZED_LAYER_NORM,
    QUANTIZED_LINEAR,
    TOP_K_INDICES,
    WINDOW_ATTENTION,
    has_fast_feed_forward,
    has_fast_linear,
    has_fast_linear_of_sum,
    has_fast_quantized_feed_forward,
    has_fast_quantized_linear,
)


@pytest.fixture(scope="module", autouse=True)
def library() -> Path:
    plugin_or_skip()
    return trt_plugin.library_path()


def output_of(code: str) -> str:
    """Output and errors of code in a process of its own."""
    done = run_python("-c", code, gpu=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# Without a GPU.

LOADERS = {"load": "trt_plugin.load()", "dlopen": "ctypes.CDLL(str(trt_plugin.library_path()))"}


@pytest.mark.parametrize("ways", ["load", "load load", "dlopen load", "load dlopen"])
def test_every_way_of_loading_registers_each_creator_once(ways):
    code = f"""
import ctypes, tensorrt as trt, trt_plugin
{"; ".join(LOADERS[way] for way in ways.split())}
creators = [c for c in trt.get_plugin_registry().all_creators if c.plugin_namespace == "msda"]
print("creators", *sorted(c.name + ":" + c.plugin_version for c in creators))
"""
    expected = " ".join(["creators", *sorted(f"{name}:1" for name in trt_plugin.OPERATORS)])
    assert expected in output_of(code).splitlines()


POINTS = "points_per_level"
WRONG_FIELDS = [
    (ATTENTION, POINTS, [1, -1], "INT32", "points_per_level: expected numbers from 0"),
    (ATTENTION, POINTS, [0, 0], "INT32", "points_per_level: expected numbers that are not"),
    (ATTENTION, POINTS, [1.0], "FLOAT32", "points_per_level: expected a field of type"),
    (ATTENTION, POINTS, [1] * 33, "INT32", "points_per_level: expected at most 32 levels"),
    (ATTENTION, "num_heads", [1], "INT32", 'unknown field "num_heads", expected points_per_level'),
    (FUSED_ATTENTION, "packed", [2], "INT32", "packed: expected one number"),
    (FUSED_ATTENTION, "packed", [1, 1], "INT32", "packed: expected one number"),
    (FUSED_ATTENTION, "value_scale", [1], "INT32", "value_scale: expected one number of type FLOAT32"),
    (FUSED_ATTENTION, "value_scale", [-0.5], "FLOAT32", "value_scale: expected a number above 0, got -0.5"),
    (WINDOW_ATTENTION, "window_size", [4.0], "FLOAT32", "window_size: expected one number"),
    (WINDOW_ATTENTION, "window_size", [0], "INT32", "shift: expected a number, got none"),
    (WINDOW_ATTENTION, "shift", [2], "INT64", "window_size: expected a number, got none"),
    (WINDOW_ATTENTION, "shift", [-1], "INT32", "shift: expected one number"),
    (WINDOW_ATTENTION, "output_scale", [1], "INT32", "output_scale: expected one number of type FLOAT32"),
    (WINDOW_ATTENTION, "heads", [2], "INT32", 'unknown field "heads", expected window_size, shift and'),
    (GROUP_NORM, "num_groups", [2], "INT32", "eps: expected a number, got none"),
    (GROUP_NORM, "num_groups", [2.0], "FLOAT32", "num_groups: expected one number of type INT32 or INT64"),
    (GROUP_NORM, "eps", [1e-5], "FLOAT32", "num_groups: expected a number, got none"),
    (GROUP_NORM, "eps", [1], "INT32", "eps: expected one number of type FLOAT32 or FLOAT64"),
    (GROUP_NORM, "epsilon", [1e-5], "FLOAT32", 'unknown field "epsilon", expected num_groups and eps'),
    (TOP_K_INDICES, "count", [2.0], "FLOAT32", "count: expected one number of type INT32 or INT64"),
    (LINEAR_MAX, "count", [2], "INT32", 'unknown field "count", expected none'),
    (LINEAR_OF_SUM, "activation", [1], "INT32", 'unknown field "activation", expected none'),
    (TOP_K_INDICES, "k", [2], "INT32", 'unknown field "k", expected count'),
    (LINEAR, "activation", [3], "INT32", "activation: expected one number, 0 to 2"),
    (LINEAR, "activation", [1], "INT32", "add_residual: expected a number, got none"),
    (LINEAR, "multiply_mask", [2], "INT32", "multiply_mask: expected one number, 0 or 1"),
    (LINEAR, "add_residual", [2], "INT32", "add_residual: expected one number, 0 or 1"),
    (GROUP_NORM_LEVELS, "num_levels", [5], "INT32", "num_groups: expected a number, got none"),
    (
        GROUP_NORM_LEVELS,
        "num_levels",
        [5.0],
        "FLOAT32",
        "num_levels: expected one number of type INT32 or INT64",
    ),
    (LINEAR, "normalise", [2], "INT32", "normalise: expected one number, 0 or 1"),
    (LINEAR, "eps", [1], "INT32", "eps: expected one number of type FLOAT32 or FLOAT64"),
    (LINEAR, "add_residual", [1], "INT64", "activation: expected a number, got none"),
    (
        LINEAR,
        "gelu",
        [1],
        "INT32",
        'unknown field "gelu", expected activation, add_residual, multiply_mask, normalise and eps',
    ),
    (QUANTIZED_LINEAR, "activation", [3], "INT32", "activation: expected one number, 0 to 2"),
    (QUANTIZED_LINEAR, "multiply_mask", [2], "INT32", "multiply_mask: expected one number, 0 or 1"),
    (QUANTIZED_LINEAR, "output_type", [1], "INT32", "output_type: expected 3 (int8), 10 (float16), 16"),
    (QUANTIZED_LINEAR, "output_scale", [1], "INT32", "output_scale: expected one number of type FLOAT32"),
    (QUANTIZED_LINEAR, "output_type", [3], "INT64", "activation: expected a number, got none"),
    (QUANTIZED_LINEAR, "scale", [1], "INT32", 'unknown field "scale", expected activation, add_residual'),
    (QUANTIZED_LAYER_NORM, "eps", [1e-5], "FLOAT32", "output_type: expected a number, got none"),
    (QUANTIZED_LAYER_NORM, "scale", [1], "INT32", "scale: expected one number of type FLOAT32 or FLOAT64"),
    (QUANTIZED_LAYER_NORM, "axis", [1], "INT32", 'unknown field "axis", expected eps, output_type and scale'),
    (FEED_FORWARD, "eps", [1], "INT32", "eps: expected one number of type FLOAT32 or FLOAT64"),
    (FEED_FORWARD, "scale", [1.0], "FLOAT32", 'unknown field "scale", expected eps'),
    (QUANTIZED_FEED_FORWARD, "eps", [1e-5], "FLOAT32", "x_scale: expected a number, got none"),
    (QUANTIZED_FEED_FORWARD, "x_scale", [1.0], "FLOAT64", "hidden_scale: expected a number, got none"),
    (
        QUANTIZED_FEED_FORWARD,
        "hidden_scale",
        [1],
        "INT32",
        "hidden_scale: expected one number of type FLOAT32",
    ),
    (
        QUANTIZED_FEED_FORWARD,
        "scale",
        [1],
        "INT32",
        'unknown field "scale", expected x_scale, hidden_scale, eps and next_scale',
    ),
]


def test_wrong_field_is_refused_with_a_message():
    output = output_of(
        f"""
import numpy as np, tensorrt as trt, trt_plugin
trt_plugin.load()
for operator, name, values, kind, _ in {WRONG_FIELDS!r}:
    creator = trt.get_plugin_registry().get_creator(operator, "1", "msda")
    values = np.array(values, kind.lower())
    fields = trt.PluginFieldCollection([trt.PluginField(name, values, getattr(trt.PluginFieldType, kind))])
    assert creator.create_plugin("attention", fields, trt.TensorRTPhase.BUILD) is None
"""
    )
    for operator, _, _, _, message in WRONG_FIELDS:
        assert f"msda::{operator}: {message}" in output


def test_creators_list_the_fields_of_a_network():
    """Type and length of each, the latter 0 for a list. An engine's plugin may have more."""
    flags = ["add_residual INT32 1", "multiply_mask INT32 1"]
    expected = {
        ATTENTION: ["points_per_level INT32 0"],
        FUSED_ATTENTION: ["points_per_level INT32 0", "packed INT32 1", "value_scale FLOAT32 1"],
        WINDOW_ATTENTION: ["window_size INT32 1", "shift INT32 1", "output_scale FLOAT32 1"],
        GROUP_NORM: ["num_groups INT32 1", "eps FLOAT32 1"],
        GROUP_NORM_LEVELS: [
            "num_levels INT32 1",
            "num_groups INT32 1",
            "eps FLOAT32 1",
            "next_scale FLOAT32 1",
        ],
        LINEAR: ["activation INT32 1", *flags, "normalise INT32 1", "eps FLOAT32 1"],
        LINEAR_MAX: [],
        LINEAR_OF_SUM: [],
        TOP_K_INDICES: ["count INT32 1"],
        QUANTIZED_LINEAR: ["activation INT32 1", *flags, "output_type INT32 1", "output_scale FLOAT32 1"],
        QUANTIZED_LAYER_NORM: ["eps FLOAT32 1", "output_type INT32 1", "scale FLOAT32 1"],
        FEED_FORWARD: ["eps FLOAT32 1"],
        QUANTIZED_FEED_FORWARD: [
            f"{name} FLOAT32 1" for name in ("x_scale", "hidden_scale", "eps", "next_scale")
        ],
    }
    output = output_of(
        """
import tensorrt as trt, trt_plugin
trt_plugin.load()
for operator in trt_plugin.OPERATORS:
    fields = trt.get_plugin_registry().get_creator(operator, "1", "msda").field_names
    print(operator, [f"{field.name} {field.type.name} {field.size}" for field in fields])
"""
    )
    assert set(expected) == set(trt_plugin.OPERATORS)
    assert {f"{name} {fields}" for name, fields in expected.items()} <= set(output.splitlines())


def test_linear_layers_that_a_kernel_runs_fast():
    """On GPUs of compute capability 9.0: 16 bits, multiples of 8, one of activation, residual and mask.

    With a normalisation: 192 or 256 outputs.
    """
    expected = no_sm90(torch.float16) is None
    fast = (
        (192, 576, 0, False, False, False, "float16"),
        (192, 768, 1, False, False, False, "bfloat16"),
        (768, 192, 0, True, False, False, "float16"),
        (256, 256, 0, False, True, False, "float16"),
        (256, 256, 0, False, False, True, "bfloat16"),
        (1024, 192, 0, True, False, True, "float16"),
    )
    assert [has_fast_linear(*layer) for layer in fast] == [expected] * len(fast)
    slow = (
        (190, 576, 0, False, False, False, "float16"),
        (192, 570, 0, False, False, False, "float16"),
        (192, 768, 1, True, False, False, "float16"),
        (256, 256, 0, True, True, False, "float16"),
        (256, 256, 2, False, True, False, "float16"),
        (256, 128, 0, True, False, True, "float16"),
        (256, 512, 0, False, False, True, "float16"),
        (192, 576, 0, False, False, False, "float32"),
    )
    assert not any(has_fast_linear(*layer) for layer in slow)


def test_quantized_linear_layers_that_a_kernel_runs_fast():
    """On GPUs of compute capability 9.0: multiples of 16 and 8, one of residual, mask and 8-bit result."""
    expected = no_sm90(torch.float16) is None
    for eight_bits in ("int8", "fp8"):
        forms = ((False, False, False), (True, False, False), (False, True, False), (False, False, True))
        assert [has_fast_quantized_linear(192, 576, *form, eight_bits) for form in forms] == [expected] * 4
        assert has_fast_quantized_linear(192, 568, False, False, False, eight_bits) == expected
        slow = (
            (200, 576, False, False, False),
            (192, 580, False, False, False),
            (192, 568, False, False, True),
            (192, 576, True, True, False),
            (192, 576, True, False, True),
            (192, 576, False, True, True),
        )
        assert not any(has_fast_quantized_linear(*layer, eight_bits) for layer in slow)


def test_linear_layers_of_a_sum_that_a_kernel_runs_fast():
    """On GPUs of compute capability 9.0: many rows of up to 256, with a multiple of 32 up to 512 outputs."""
    expected = no_sm90(torch.float16) is None
    fast = (73656, 256, 480), (8192, 192, 384), (22223, 8, 512)
    assert [has_fast_linear_of_sum(*layer) for layer in fast] == [expected] * 3
    slow = (900, 256, 480), (73656, 264, 480), (73656, 252, 480), (73656, 256, 472), (73656, 256, 544)
    assert not any(has_fast_linear_of_sum(*layer) for layer in slow)


@pytest.mark.parametrize("has_fast", [has_fast_feed_forward, has_fast_quantized_feed_forward])
def test_feed_forward_blocks_that_a_kernel_runs_fast(has_fast):
    """On GPUs of compute capability 9.0: many rows of 256, with a multiple of 64 hidden numbers; few rows in
    16 bits too."""
    expected = no_sm90(torch.float16) is None
    fast = (73656, 256, 2048), (73656, 256, 64), (16384, 256, 1024)
    assert [has_fast(*block) for block in fast] == [expected] * 3
    slow = (4096, 256, 2048), (73656, 192, 2048), (73656, 256, 2112), (73656, 256, 2000)
    assert not any(has_fast(*block) for block in slow)
    assert has_fast(900, 256, 2048) == (expected and has_fast is has_fast_feed_forward)


def compile_probe(name: str, folder: Path) -> Path:
    """Compiles a program of this folder with the headers of CUDA and TensorRT."""
    compiler, cuda = compile_for_cpu.compiler(), compile_for_cpu.include_folders()
    root = Path(os.environ.get("TENSORRT_ROOT", "/usr")) / "include"
    places = [Path(os.environ.get("TENSORRT_HEADERS", root)), root / f"{os.uname().machine}-linux-gnu"]
    headers = [folder for folder in places if (folder / "NvInferRuntime.h").is_file()]
    if compiler is None or cuda is None or not headers:
        pytest.skip("needs a C++ compiler, and the headers of CUDA and TensorRT (TENSORRT_ROOT)")
    source = Path(__file__).with_name(f"{name}.cpp")
    includes = [f"-I{folder}" for folder in (*headers, *cuda)]
    command = [compiler, "-std=c++17", "-w", *includes, str(source), "-o", str(folder / name), "-ldl"]
    subprocess.run(command, check=True)
    return folder / name


@pytest.fixture(scope="session")
def probe(tmp_path_factory) -> Path:
    """The compiled plugin_probe.cpp."""
    return compile_probe("plugin_probe", tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="session")
def registry_probe(tmp_path_factory) -> Path:
    """The compiled registry_probe.cpp."""
    return compile_probe("registry_probe", tmp_path_factory.mktemp("registry_probe"))


def nvinfer_libraries() -> list[str]:
    """TensorRT's library of this process, and those of other versions in $MSDA_NVINFER_LIBRARIES."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    own = next(line.split()[-1] for line in maps if "libnvinfer.so" in line)
    return [own, *filter(None, os.environ.get("MSDA_NVINFER_LIBRARIES", "").split(":"))]


@pytest.mark.parametrize("ways", ["dlopen", "loadLibrary", "dlopen loadLibrary", "loadLibrary dlopen"])
def test_one_library_serves_every_version(registry_probe, library, ways):
    """Also in another major version than that of the headers. Errors go to TensorRT's logger."""
    clean = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    plugins = sorted(["plugins:", *(f"{name}:1" for name in trt_plugin.OPERATORS)])
    for path in nvinfer_libraries():
        command = [str(registry_probe), path, str(library), *ways.split()]
        done = subprocess.run(command, capture_output=True, text=True, env=clean, check=False)
        assert (done.returncode, done.stderr) == (0, ""), path
        version, *found, logged = done.stdout.splitlines()
        assert version.startswith("version 1")
        assert [sorted(line.split()) for line in found] == [plugins] * len(ways.split()), path
        assert logged.startswith("logged: msda::") and 'unknown field "wrong"' in logged


def test_library_links_no_tensorrt(library):
    """It opens in a process that finds none."""
    clean = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    code = f"import ctypes; ctypes.CDLL({str(library)!r}); print(open('/proc/self/maps').read())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=clean, check=True)
    assert library.name in done.stdout and "libnvinfer" not in done.stdout


INT32, INT64 = "int32:3,2 int32:3", "int64:3,2 int64:3"
PAIRS, NONE = "float32:2,7,3,2", "float32:0,0,3,4"
GROUPS = "num_groups=8;eps=0.5"
PACKED, RAGGED, WINDOW = "packed=1", "points_per_level=3,6,1", "window_size=4;shift=2"
WINDOW_TO_INT8 = f"{WINDOW};output_scale=0.5"
OF_INT8 = "value_scale=0.5"
PRODUCT = "activation=1;add_residual=0;multiply_mask=0;normalise=0;eps=0.00001"
SUM = "activation=0;add_residual=1;multiply_mask=1;normalise=0;eps=0.00001"
NORMED = "activation=0;add_residual=1;multiply_mask=0;normalise=1;eps=0.5"
TO_HALF = "activation=1;add_residual=1;multiply_mask=1;output_type=10;output_scale=1.0"
TO_INT8 = "activation=0;add_residual=0;multiply_mask=0;output_type=3;output_scale=0.25"
TO_FP8 = "activation=2;add_residual=1;multiply_mask=0;output_type=17;output_scale=0.5"
NORM_TO_INT8 = "eps=0.00001;output_type=3;scale=0.25"
NORM_TO_FP8 = "eps=0.5;output_type=17;scale=0.5"
LEVELS = "num_levels=2;num_groups=8;eps=0.5;next_scale=0.0"
LEVELS_TO_INT8 = LEVELS.replace("next_scale=0.0", "next_scale=0.5")
FLOAT_BLOCK = "eps=0.25"
BLOCK = "x_scale=0.25;hidden_scale=0.5;eps=0.00001;next_scale=0.0"
BLOCK_IN_INT8 = BLOCK.replace("next_scale=0.0", "next_scale=0.5")
BLOCK_TENSORS = (
    "float16:2,63,64 int32:96,16 float32:96 float32:96 int32:64,24 float32:64 float32:64"
    " float16:64 float16:64"
)
GOOD = {
    (ATTENTION, "-"): f"float16:2,30,4,8 {INT64} float32:2,7,4,3,5,2 float16:2,7,4,3,5",
    (ATTENTION, RAGGED): f"float32:2,30,4,8 {INT32} float32:2,7,4,10,2 float32:2,7,4,10",
    (FUSED_ATTENTION, "-"): f"bfloat16:2,30,4,8 {INT64} {PAIRS} bfloat16:2,7,4,3,5,2 float32:2,7,4,15",
    (FUSED_ATTENTION, RAGGED): f"float16:0,9,4,8 {INT32} {NONE} float16:0,0,4,10,2 float16:0,0,4,10",
    (FUSED_ATTENTION, PACKED): f"float16:2,30,4,8 {INT64} {PAIRS} float16:2,7,180",
    (FUSED_ATTENTION, f"{PACKED};{RAGGED}"): f"bfloat16:2,30,4,8 {INT32} float32:2,7,3,4 float32:2,7,120",
    (FUSED_ATTENTION, OF_INT8): f"int8:2,30,4,8 {INT64} {PAIRS} float16:2,7,4,3,5,2 float16:2,7,4,15",
    (FUSED_ATTENTION, f"{PACKED};{OF_INT8}"): f"int8:2,30,4,8 {INT64} {PAIRS} bfloat16:2,7,180",
    (WINDOW_ATTENTION, WINDOW): "float16:2,9,7,96 float16:4,16,16 float16:96",
    (WINDOW_ATTENTION, WINDOW_TO_INT8): "float16:2,9,7,96 float16:4,16,16",
    (WINDOW_ATTENTION, "window_size=5;shift=0"): "bfloat16:0,5,1,48 bfloat16:1,25,25",
    (GROUP_NORM, GROUPS): "float16:2,9,7,64 float16:64 float16:64",
    (GROUP_NORM_LEVELS, LEVELS): "float16:2,63,64 float16:64 float16:64 float16:2,5,64 float16:64 float16:64",
    (
        GROUP_NORM_LEVELS,
        LEVELS_TO_INT8,
    ): "float32:0,63,8 float32:8 float32:8 float32:0,5,8 float32:8 float32:8",
    (GROUP_NORM, "num_groups=3;eps=0.00001"): "float32:1,200,200,6 float32:6 float32:6",
    (GROUP_NORM, "num_groups=8;eps=0.00001"): "float16:2,63,64 float16:64 float16:64",
    (LINEAR, PRODUCT): "float16:2,63,64 float16:256,64" + 5 * " float16:256",
    (LINEAR, SUM): (
        "bfloat16:0,63,64 bfloat16:24,64 bfloat16:24 bfloat16:0,63,24 bfloat16:0,63,1" + 2 * " bfloat16:24"
    ),
    (LINEAR, NORMED): "float32:5,64 float32:24,64 float32:24 float32:5,24" + 3 * " float32:24",
    (LINEAR_MAX, "-"): "bfloat16:2,63,256 float32:80,256 float32:80",
    (LINEAR_OF_SUM, "-"): "float16:2,63,64 float16:2,63,64 float16:96,64 float16:96",
    (TOP_K_INDICES, "count=900"): "float32:8,73656",
    (TOP_K_INDICES, "count=3"): "float32:2,3",
    (QUANTIZED_LINEAR, TO_HALF): (
        "int8:2,63,64 int32:24,16 float32:24 float32:24 float16:2,63,24 float16:2,63,1"
    ),
    (QUANTIZED_LINEAR, TO_INT8): "int8:0,64 int32:32,16 float32:32 float32:32 float32:32 float32:32",
    (QUANTIZED_LINEAR, TO_FP8): "float8:5,64 int32:32,16 float32:32 float32:32 bfloat16:5,32 float32:32",
    (QUANTIZED_LAYER_NORM, NORM_TO_INT8): "float16:2,63,192 float16:192 float16:192",
    (QUANTIZED_LAYER_NORM, NORM_TO_FP8): "bfloat16:0,96 bfloat16:96 bfloat16:96",
    (FEED_FORWARD, FLOAT_BLOCK): (
        "float16:2,63,64 float16:96,64 float16:96 float16:64,96" + 3 * " float16:64"
    ),
    (FEED_FORWARD, "eps=0.125"): "float32:0,8 float32:16,8 float32:16 float32:8,16" + 3 * " float32:8",
    (QUANTIZED_FEED_FORWARD, BLOCK): BLOCK_TENSORS,
    (QUANTIZED_FEED_FORWARD, BLOCK_IN_INT8): BLOCK_TENSORS,
}
SAID = {
    GROUPS: "num_groups=8 eps=0.5",
    "num_groups=3;eps=0.00001": "num_groups=3 eps=1e-05",
    "num_groups=8;eps=0.00001": "num_groups=8 eps=1e-05",
    RAGGED: "points_per_level=[3,6,1]",
    PACKED: "packed, equal points per level",
    f"{PACKED};{RAGGED}": "packed, points_per_level=[3,6,1]",
    OF_INT8: "value_scale=0.5, equal points per level",
    f"{PACKED};{OF_INT8}": "packed, value_scale=0.5, equal points per level",
    WINDOW: "window_size=4 shift=2",
    WINDOW_TO_INT8: "window_size=4 shift=2 output_scale=0.5",
    "window_size=5;shift=0": "window_size=5 shift=0",
    PRODUCT: "activation=1 add_residual=0 multiply_mask=0 normalise=0 eps=1e-05",
    SUM: "activation=0 add_residual=1 multiply_mask=1 normalise=0 eps=1e-05",
    NORMED: "activation=0 add_residual=1 multiply_mask=0 normalise=1 eps=0.5",
    LEVELS: "num_levels=2 num_groups=8 eps=0.5 next_scale=0",
    LEVELS_TO_INT8: "num_levels=2 num_groups=8 eps=0.5 next_scale=0.5",
    FLOAT_BLOCK: "eps=0.25",
    "eps=0.125": "eps=0.125",
    "count=900": "count=900",
    "count=3": "count=3",
    TO_HALF: "activation=1 add_residual=1 multiply_mask=1 output_type=10 output_scale=1.000000",
    TO_INT8: "activation=0 add_residual=0 multiply_mask=0 output_type=3 output_scale=0.250000",
    TO_FP8: "activation=2 add_residual=1 multiply_mask=0 output_type=17 output_scale=0.500000",
    NORM_TO_INT8: "eps=1e-05 output_type=3 scale=0.25",
    NORM_TO_FP8: "eps=0.5 output_type=17 scale=0.5",
    BLOCK: "x_scale=0.25 hidden_scale=0.5 eps=1e-05 next_scale=0",
    BLOCK_IN_INT8: "x_scale=0.25 hidden_scale=0.5 eps=1e-05 next_scale=0.5",
}
"""The plugins' words for their fields."""
WORK = {
    GROUPS: 2 * 2 * 63 * 8 * 4,
    "num_groups=3;eps=0.00001": 2 * 256 * 3 * 4,
    "num_groups=8;eps=0.00001": 2 * 2 * 63 * 8 * 4,
    LEVELS: 2 * 2 * (63 + 5) * 8 * 4,
}
WORK["count=900"] = 8 * 16384 * 8
"""Bytes of work memory: two floats for each image, part (of 1 cell or more, up to 256) and group; 16,384 keys
for each row of several parts."""
# operator, fields, input to change, its new value, what the message says of it
BAD = [
    (ATTENTION, "-", 0, "float16:2,30,32", "expected [N, S, M, D], got [2, 30, 32]"),
    (ATTENTION, "-", 0, "int8:2,30,4,8", "expected float32, float16 or bfloat16, got int8"),
    (ATTENTION, "-", 1, "int64:3,3", "expected [L, 2], got [3, 3]"),
    (ATTENTION, "-", 1, "float32:3,2", "expected int32 or int64, got float32"),
    (ATTENTION, "-", 2, "int64:4", "expected [L] with L=3 (from spatial_shapes), got [4]"),
    (ATTENTION, "-", 2, "int32:3", "expected int64 (as spatial_shapes), got int32"),
    (ATTENTION, "-", 3, "float32:2,7,4,2,5,2", "with L=3 (from spatial_shapes), got [2, 7, 4, 2, 5, 2]"),
    (ATTENTION, "-", 3, "bfloat16:2,7,4,3,5,2", "expected float16 (the value's) or float32, got bfloat16"),
    (ATTENTION, "-", 4, "float16:2,8,4,3,5", "with Q=7 (from sampling_locations), got [2, 8, 4, 3, 5]"),
    (ATTENTION, RAGGED, 1, "int32:4,2", "expected [L, 2] with L=3 (from points_per_level), got [4, 2]"),
    (ATTENTION, RAGGED, 3, "float32:2,7,4,9,2", "with K=10 (from points_per_level), got [2, 7, 4, 9, 2]"),
    (FUSED_ATTENTION, "-", 3, "float32:2,7,3,3", "expected [N, Q, L, 2 or 4], got [2, 7, 3, 3]"),
    (FUSED_ATTENTION, "-", 3, "bfloat16:2,7,3,2", "expected float32, got bfloat16"),
    (FUSED_ATTENTION, "-", 5, "float32:2,7,4,14", "with L*P=15 (from sampling_offsets), got [2, 7, 4, 14]"),
    (FUSED_ATTENTION, PACKED, 4, "float16:2,7,4,3,5,2", "expected [N, Q, 3*M*L*P], got [2, 7, 4, 3, 5, 2]"),
    (FUSED_ATTENTION, PACKED, 4, "float16:2,7,60", "with M=4 (from value), L=3 (from spatial_shapes)"),
    (FUSED_ATTENTION, PACKED, 4, "float16:2,7,0", "and P of 1 or more, got [2, 7, 0]"),
    (FUSED_ATTENTION, f"{PACKED};{RAGGED}", 4, "float32:2,7,180", "with 3*M*K=120 (from points_per_level"),
    (FUSED_ATTENTION, OF_INT8, 0, "float16:2,30,4,8", "expected int8 (value_scale), got float16"),
    (FUSED_ATTENTION, OF_INT8, 4, "float32:2,7,4,3,5,2", "expected float16 or bfloat16 (value_scale), got"),
    (FUSED_ATTENTION, OF_INT8, 5, "float32:2,7,4,15", "expected float16 (as sampling_offsets), got float32"),
    (WINDOW_ATTENTION, WINDOW, 0, "float16:2,63,96", "expected [N, H, W, 3*C], got [2, 63, 96]"),
    (WINDOW_ATTENTION, WINDOW, 0, "float16:2,9,7,95", "expected [N, H, W, 3*C], got [2, 9, 7, 95]"),
    (WINDOW_ATTENTION, WINDOW, 0, "float16:2,9,7,90", "with C a multiple of heads=4 (from bias), got"),
    (WINDOW_ATTENTION, WINDOW, 0, "int8:2,9,7,96", "expected float32, float16 or bfloat16, got int8"),
    (WINDOW_ATTENTION, WINDOW, 1, "float16:4,16", "expected [heads, L, L], got [4, 16]"),
    (WINDOW_ATTENTION, WINDOW, 1, "float16:4,16,25", "with L=16 (window_size squared), got [4, 16, 25]"),
    (WINDOW_ATTENTION, WINDOW, 1, "float32:4,16,16", "expected float16 (as qkv), got float32"),
    (WINDOW_ATTENTION, WINDOW, 2, "float16:32", "expected [3*C] with 3*C=96 (from qkv), got [32]"),
    (WINDOW_ATTENTION, WINDOW, 2, "bfloat16:96", "expected float16 (as qkv), got bfloat16"),
    (GROUP_NORM, GROUPS, 0, "float16:63,64", "expected [N, H, W, C] or [N, S, C], got [63, 64]"),
    (GROUP_NORM, GROUPS, 0, "float16:2,9,7,60", "with C a multiple of num_groups=8, got [2, 9, 7, 60]"),
    (GROUP_NORM, GROUPS, 0, "int8:2,9,7,64", "expected float32, float16 or bfloat16, got int8"),
    (GROUP_NORM, GROUPS, 1, "float16:1,64", "expected [C], got [1, 64]"),
    (GROUP_NORM, GROUPS, 1, "float32:64", "expected float16 (as x), got float32"),
    (GROUP_NORM, GROUPS, 2, "float16:32", "expected [C] with C=64 (from x), got [32]"),
    (LINEAR_MAX, "-", 0, "int8:2,63,256", "expected float32, float16 or bfloat16, got int8"),
    (LINEAR_MAX, "-", 1, "bfloat16:80,256", "expected float32, got bfloat16"),
    (LINEAR_MAX, "-", 1, "float32:256", "expected [N, K], got [256]"),
    (LINEAR_MAX, "-", 1, "float32:80,255", "expected [N, K] with K=256 (from x), got [80, 255]"),
    (LINEAR_MAX, "-", 1, "float32:0,256", "expected [N, K] with N of 1 or more, got [0, 256]"),
    (LINEAR_MAX, "-", 2, "float32:1,80", "expected [N], got [1, 80]"),
    (LINEAR_MAX, "-", 2, "float32:79", "expected [N] with N=80 (from weight), got [79]"),
    (LINEAR_OF_SUM, "-", 0, "int8:2,63,64", "expected float32, float16 or bfloat16, got int8"),
    (LINEAR_OF_SUM, "-", 1, "float32:2,63,64", "expected float16 (as x), got float32"),
    (LINEAR_OF_SUM, "-", 1, "float16:1,63,64", "expected [..., K] as x, got [1, 63, 64]"),
    (LINEAR_OF_SUM, "-", 1, "float16:63,64", "expected [..., K] as x, got [63, 64]"),
    (LINEAR_OF_SUM, "-", 2, "float16:96", "expected [N, K], got [96]"),
    (LINEAR_OF_SUM, "-", 2, "float16:96,63", "expected [N, K] with K=64 (from x), got [96, 63]"),
    (LINEAR_OF_SUM, "-", 3, "float16:1,96", "expected [N], got [1, 96]"),
    (LINEAR_OF_SUM, "-", 3, "float16:95", "expected [N] with N=96 (from weight), got [95]"),
    (TOP_K_INDICES, "count=3", 0, "float16:2,3", "expected float32, got float16"),
    (TOP_K_INDICES, "count=3", 0, "float32:1,2,3", "expected [N, S], got [1, 2, 3]"),
    (TOP_K_INDICES, "count=3", 0, "float32:2,2", "with S of at least count=3, got [2, 2]"),
    (LINEAR, SUM, 0, "int8:0,63,64", "expected float32, float16 or bfloat16, got int8"),
    (LINEAR, SUM, 1, "bfloat16:24,63", "expected [N, K] with K=64 (from x), got [24, 63]"),
    (LINEAR, SUM, 1, "bfloat16:64", "expected [N, K], got [64]"),
    (LINEAR, SUM, 2, "bfloat16:1,24", "expected [N] with N=24 (from weight), got [1, 24]"),
    (LINEAR, SUM, 3, "bfloat16:0,63,25", "expected [..., N] with N=24 (from weight), got [0, 63, 25]"),
    (LINEAR, SUM, 3, "bfloat16:0,62,24", "expected [..., N] with the other sizes of x, got [0, 62, 24]"),
    (LINEAR, SUM, 3, "float16:0,63,24", "expected bfloat16 (as x), got float16"),
    (LINEAR, SUM, 4, "bfloat16:0,63", "expected [..., 1], got [0, 63]"),
    (LINEAR, SUM, 4, "bfloat16:0,63,24", "expected [..., 1], got [0, 63, 24]"),
    (LINEAR, SUM, 4, "bfloat16:0,62,1", "expected [..., 1] with the other sizes of x, got [0, 62, 1]"),
    (LINEAR, NORMED, 5, "float32:23", "expected [N] with N=24 (from weight), got [23]"),
    (LINEAR, NORMED, 6, "float32:1,24", "expected [N] with N=24 (from weight), got [1, 24]"),
    (LINEAR, NORMED, 6, "float16:24", "expected float32 (as x), got float16"),
    (QUANTIZED_LINEAR, TO_HALF, 0, "float16:2,63,64", "expected int8 or float8_e4m3, got float16"),
    (QUANTIZED_LINEAR, TO_INT8, 0, "float8:0,64", "expected int8 (output_type), got float8_e4m3"),
    (QUANTIZED_LINEAR, TO_FP8, 0, "int8:5,64", "expected float8_e4m3 (output_type), got int8"),
    (QUANTIZED_LINEAR, TO_HALF, 1, "int8:24,64", "expected int32, four numbers of 8 bits each, got int8"),
    (QUANTIZED_LINEAR, TO_HALF, 1, "int32:24,64", "expected [N, K/4] with K=64 (from x), got [24, 64]"),
    (QUANTIZED_LINEAR, TO_HALF, 2, "float16:24", "expected float32, got float16"),
    (QUANTIZED_LINEAR, TO_HALF, 2, "float32:1", "expected [N] with N=24 (from weight), got [1]"),
    (QUANTIZED_LINEAR, TO_HALF, 3, "float32:24,1", "expected [N] with N=24 (from weight), got [24, 1]"),
    (QUANTIZED_LINEAR, TO_HALF, 4, "float16:2,63,25", "expected [..., N] with N=24 (from weight), got"),
    (QUANTIZED_LINEAR, TO_HALF, 5, "float16:2,62,1", "expected [..., 1] with the other sizes of x, got"),
    (QUANTIZED_LINEAR, TO_HALF, 5, "bfloat16:2,63,1", "expected float16 (as residual), got bfloat16"),
    (QUANTIZED_LINEAR, TO_FP8, 4, "float32:5,32", "expected float16 or bfloat16, got float32"),
    (QUANTIZED_LINEAR, TO_INT8, 4, "float16:0,32", "expected float32, got float16"),
    (QUANTIZED_LAYER_NORM, NORM_TO_INT8, 0, "int8:2,63,192", "expected float32, float16 or bfloat16, got"),
    (QUANTIZED_LAYER_NORM, NORM_TO_INT8, 1, "float32:192", "expected float16 (as x), got float32"),
    (QUANTIZED_LAYER_NORM, NORM_TO_INT8, 1, "float16:1,192", "expected [C], got [1, 192]"),
    (QUANTIZED_LAYER_NORM, NORM_TO_FP8, 2, "bfloat16:95", "expected [C] with C=96 (from x), got [95]"),
    (FEED_FORWARD, FLOAT_BLOCK, 0, "int8:2,63,64", "expected float32, float16 or bfloat16, got int8"),
    (FEED_FORWARD, FLOAT_BLOCK, 1, "float32:96,64", "expected float16 (as x), got float32"),
    (FEED_FORWARD, FLOAT_BLOCK, 1, "float16:96", "expected [H, C], got [96]"),
    (FEED_FORWARD, FLOAT_BLOCK, 1, "float16:96,63", "expected [H, C] with C=64 (from x), got [96, 63]"),
    (FEED_FORWARD, FLOAT_BLOCK, 2, "float16:64", "expected [H] with H=96 (from weight1), got [64]"),
    (FEED_FORWARD, FLOAT_BLOCK, 3, "float16:96,64", "expected [C, H] with C=64 (from x), got [96, 64]"),
    (FEED_FORWARD, FLOAT_BLOCK, 3, "float16:64,64", "expected [C, H] with H=96 (from weight1), got [64, 64]"),
    (FEED_FORWARD, FLOAT_BLOCK, 4, "float16:1,64", "expected [C] with C=64 (from x), got [1, 64]"),
    (FEED_FORWARD, FLOAT_BLOCK, 6, "float16:63", "expected [C] with C=64 (from x), got [63]"),
    (GROUP_NORM_LEVELS, LEVELS, 3, "float16:2,64", "expected [N, S, C] or [N, C, H, W], got [2, 64]"),
    (GROUP_NORM_LEVELS, LEVELS, 3, "float16:1,5,64", "with N and C of levels[0], got [1, 5, 64]"),
    (
        GROUP_NORM_LEVELS,
        LEVELS,
        3,
        "float16:2,60,5,5",
        "with C a multiple of num_groups=8, got [2, 60, 5, 5]",
    ),
    (GROUP_NORM_LEVELS, LEVELS, 4, "float16:63", "expected [C] with C=64 (from levels), got [63]"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 0, "float32:2,63,64", "expected float16 or bfloat16, got float32"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 1, "int8:96,64", "expected int32, four numbers of 8 bits each, got int8"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 1, "int32:96,64", "expected [H, C/4] with C=64 (from x), got [96, 64]"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 1, "int32:96", "expected [H, C/4], got [96]"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 2, "float16:96", "expected float32, got float16"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 3, "float32:64", "expected [H] with H=96 (from weight1), got [64]"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 4, "int32:64,16", "expected [C, H/4] with H=96 (from weight1), got"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 4, "int32:60,24", "expected [C, H/4] with C=64 (from x), got [60, 24]"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 6, "float32:1,64", "expected [C] with C=64 (from x), got [1, 64]"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 7, "float32:64", "expected float16 (as x), got float32"),
    (QUANTIZED_FEED_FORWARD, BLOCK, 8, "float16:63", "expected [C] with C=64 (from x), got [63]"),
]


def run_probe(probe: Path, library: Path, operator: str, fields: str, tensors: list[str]):
    """Output lines and errors of the probe, with the libnvinfer that this process uses."""
    folders = {str(Path(path).parent) for path in nvinfer_libraries()[:1]}
    paths = ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])
    command = [str(probe), str(library), operator, fields, *tensors]
    environment = {**os.environ, "LD_LIBRARY_PATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(("operator", "fields"), GOOD)
def test_plugin_survives_serialisation_and_takes_fitting_inputs(probe, library, operator, fields):
    lines, errors = run_probe(probe, library, operator, fields, GOOD[operator, fields].split())
    said = SAID.get(fields, "" if operator in (LINEAR_MAX, LINEAR_OF_SUM) else "equal points per level")
    kept = [f"num_inputs {len(GOOD[operator, fields].split())}"] if operator == WINDOW_ATTENTION else []
    work = [f"work {WORK[fields]}"] if fields in WORK else []
    formats = len(GOOD[operator, fields].split()) + (2 if "next_scale=0.5" in fields else 1)
    checks = ["types 0", "shapes 0", "bounds 0", f"formats {formats}"]
    assert lines == [*checks, f"{operator} 1 {said}", *kept, *work]
    assert not errors


def test_field_tells_the_forms_of_the_fused_plugin_apart(probe, library):
    tensors = GOOD[FUSED_ATTENTION, "-"].split()
    lines, errors = run_probe(probe, library, FUSED_ATTENTION, PACKED, tensors)
    assert lines[:2] == ["types -1", "shapes -1"] and "reference_points, projection), got 6" in errors


NAMES = INPUT_NAMES | {
    WINDOW_ATTENTION: ("qkv", "bias", "padding"),
    GROUP_NORM: ("x", "weight", "bias"),
    LINEAR_MAX: ("x", "weight", "bias"),
    LINEAR_OF_SUM: ("x", "addend", "weight", "bias"),
    TOP_K_INDICES: ("x",),
    LINEAR: ("x", "weight", "bias", "residual", "mask", "norm_weight", "norm_bias"),
    QUANTIZED_LINEAR: ("x", "weight", "scale", "bias", "residual", "mask"),
    QUANTIZED_LAYER_NORM: ("x", "weight", "bias"),
    GROUP_NORM_LEVELS: ("levels[0]", "weights[0]", "biases[0]", "levels[1]", "weights[1]", "biases[1]"),
    FEED_FORWARD: ("x", "weight1", "bias1", "weight2", "bias2", "norm_weight", "norm_bias"),
    QUANTIZED_FEED_FORWARD: (
        "x",
        "weight1",
        "scale1",
        "bias1",
        "weight2",
        "scale2",
        "bias2",
        "norm_weight",
        "norm_bias",
    ),
}


@pytest.mark.parametrize(
    ("operator", "fields", "counts", "expected"),
    [
        (WINDOW_ATTENTION, WINDOW, (1, 4), "2 or 3 inputs"),
        (GROUP_NORM, GROUPS, (2, 4), "3 inputs"),
        (LINEAR_MAX, "-", (2, 4), "3 inputs"),
        (LINEAR_OF_SUM, "-", (3, 5), "4 inputs"),
        (TOP_K_INDICES, "count=3", (2,), "1 input"),
        (LINEAR, SUM, (6, 8), "7 inputs"),
        (QUANTIZED_LINEAR, TO_HALF, (5,), "6 inputs"),
        (QUANTIZED_LAYER_NORM, NORM_TO_INT8, (2, 4), "3 inputs"),
        (GROUP_NORM_LEVELS, LEVELS, (3, 7), "6 inputs"),
        (FEED_FORWARD, FLOAT_BLOCK, (6, 8), "7 inputs"),
        (QUANTIZED_FEED_FORWARD, BLOCK, (8, 10), "9 inputs"),
    ],
)
def test_number_of_inputs(probe, library, operator, fields, counts, expected):
    tensors = GOOD[operator, fields].split()
    for count in counts:
        lines, errors = run_probe(probe, library, operator, fields, [*tensors, tensors[-1]][:count])
        assert lines[:4] == ["types -1", "shapes -1", "bounds -1", "formats 0"]
        assert f"expected {expected} ({', '.join(NAMES[operator])}), got {count}" in errors


@pytest.mark.parametrize(("operator", "fields", "index", "tensor", "message"), BAD)
def test_wrong_input_is_named(probe, library, operator, fields, index, tensor, message):
    tensors = GOOD[operator, fields].split()
    wrong_type = tensors[index].split(":")[0] != tensor.split(":")[0]
    tensors[index] = tensor
    lines, errors = run_probe(probe, library, operator, fields, tensors)
    assert lines[:2] == ["types -1" if wrong_type else "types 0", "shapes -1"]
    names = (*NAMES[operator][:4], "projection") if "packed" in fields else NAMES[operator]
    assert all(line.startswith(f"msda::{operator}: {names[index]}: ") for line in errors.splitlines())
    assert message in errors


# With a GPU.


def run_and_compare(path: Path, inputs, dtype: torch.dtype) -> str:
    """Compares an engine's output with the reference; returns the engine's type of it."""
    with trt_plugin.EngineRunner(path) as runner:
        output, expected = runner(arrays_of(inputs))["output"], truth(inputs)
    assert output.shape == expected.shape
    error = relative_error(torch.from_numpy(output), expected)
    assert error <= TOLERANCE[dtype], error
    return runner.outputs["output"].dtype


@pytest.mark.gpu
@operators
@pytest.mark.parametrize("name", ["boxes", "ragged"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_engine_of_fixed_shapes_equals_the_reference(tmp_path, operator, name, dtype):
    """tests/matrix compares engines of dynamic shapes."""
    inputs = make(BY_NAME[name], operator, dtype, "cpu")
    path = save(tmp_path, build_plan(inputs))
    assert f"torch.{run_and_compare(path, inputs, dtype)}" == str(dtype)


@pytest.mark.gpu
@operators
def test_weakly_typed_16_bit_network_takes_the_16_bit_kernel(tmp_path, operator):
    if not hasattr(import_tensorrt().BuilderFlag, "FP16"):
        pytest.skip("TensorRT 11 has strongly typed networks only")
    inputs = make(BY_NAME["pyramid"], operator, torch.float16, "cpu")
    path = save(tmp_path, build_plan(inputs, strongly_typed=False))
    (layer,) = (layer for layer in read_engine(path)[1].layers if layer.name == "attention")
    assert layer.inputs[0].dtype == layer.outputs[0].dtype == "fp16"
    run_and_compare(path, inputs, torch.float16)


@pytest.mark.gpu
@operators
@pytest.mark.parametrize("case", ["build", "run"])
def test_wrong_shape_stops_build_and_run_and_is_named(tmp_path, operator, case):
    """In a process of its own: plugins report to the first logger that TensorRT was given in a process."""
    arguments = (operator, case, str(tmp_path))
    done = run_python("-c", f"from tests.engines.test_plugin import fail; fail(*{arguments!r})", gpu=True)
    assert done.returncode == 1 and "EngineError: " in done.stderr
    name = "attention_logits" if operator == "fused_attention" else "attention_weights"
    lines = [line for line in done.stderr.splitlines() if f"Attention: {name}: expected" in line]
    assert any("with Q=256 (from " in line for line in lines), done.stderr


def fail(operator: str, case: str, folder: str) -> None:
    """Gives the last input of an engine one query less than the others, when it is built or when it runs."""
    inputs = make(BY_NAME["pyramid"], operator, torch.float32, "cpu")
    last = inputs._fields[-2]
    wrong = inputs._replace(**{last: inputs[-2][:, :-1]})
    if case == "build":
        build_plan(wrong)
    smallest = {name: getattr(inputs, name)[:, :-1].shape for name in inputs._fields[3:-1]}
    path = save(Path(folder), build_plan(inputs, smallest))
    with trt_plugin.EngineRunner(path) as runner:
        runner(arrays_of(wrong))
