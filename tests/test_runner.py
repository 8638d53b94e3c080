"""The engine runner, its command line and the metadata: errors and arrays without a GPU, engines with one."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import trt_plugin
from benchmarks.problems import BY_NAME
from tests.plugin_engines import FUSED_ATTENTION, INPUT_NAMES, build, define_plugin, missing_plugin, save
from trt_plugin import engine_tensors
from trt_plugin.engine_error import EngineError
from trt_plugin.engine_file import built_with
from trt_plugin.run import main

REPOSITORY = Path(__file__).resolve().parents[1]

METADATA = trt_plugin.ArtifactMetadata(
    model="co_dino_r50",
    inputs=[{"name": "images", "shape": [1, 3, 64, 96], "dtype": "float32"}],
    outputs=[{"name": "boxes", "shape": [1, 300, 4], "dtype": "float32"}],
    class_names=["person", "Fahrrad", "飞机"],
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    resize={"height": 64, "width": 96, "mode": "fit_pad"},
    max_per_img=300,
    nms={"method": "soft", "iou_threshold": 0.8},
    precision="fp16",
    batch=1,
    tensorrt_version="10.6.0",
    plugin_version="1",
    gpu="NVIDIA H200",
    torch_version="2.11.0",
    source_weights="co_dino_r50",
)


def plan_header(version: tuple[int, int, int, int] = (10, 6, 0, 26)) -> bytes:
    """The beginning of an engine file."""
    return struct.pack("<II", 0x74727466, 0) + bytes(16) + bytes(version) + bytes(100)


def npz(save=np.savez, **arrays: np.ndarray) -> bytes:
    """The content of an .npz file, or with `np.save` of an .npy file."""
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def without_gpu(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs Python in the source tree, where CUDA shows no GPU."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
    )


def hide_package(folder: Path, package: str) -> str:
    """The PYTHONPATH of a process without this package; where that is not TensorRT, it has TensorRT."""
    if package != "tensorrt":
        pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    # A module of that name which is no package hides the real one.
    (folder / f"{package}.py").write_text("raise ImportError('hidden by a test')")
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


# Without a GPU.


def test_import_brings_no_torch_tensorrt_or_cuda():
    modules = (
        "{'torch', 'tensorrt', 'cuda', 'tensorrt_bindings'} & {name.split('.')[0] for name in sys.modules}"
    )
    code = f"import sys, trt_plugin, trt_plugin.run; trt_plugin.EngineRunner; assert not {modules}, {modules}"
    done = without_gpu("-c", code)
    assert done.returncode == 0, done.stderr


def test_metadata_comes_back_as_it_was(tmp_path):
    path = tmp_path / "model.json"
    METADATA.save(path)
    assert trt_plugin.ArtifactMetadata.load(path) == METADATA
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", None),
        ("inputs", []),
        ("inputs", METADATA.inputs * 2),
        ("outputs", [{"name": "boxes", "shape": "1x300x4", "dtype": "float32"}]),
        ("outputs", [{"name": "boxes", "shape": [1, -2], "dtype": "float32"}]),
        ("class_names", "person"),
        ("mean", [1.0, 2.0]),
        ("std", [1.0, 0.0, 1.0]),
        ("resize", {"height": 64, "width": 96}),
        ("resize", {"height": 0, "width": 96, "mode": "fit_pad"}),
        ("max_per_img", 0),
        ("max_per_img", 1.5),
        ("batch", True),
        ("nms", []),
        ("precision", "float16"),
        ("build_seconds", "90 s"),
        ("build_seconds", -1.0),
        ("build_seconds", True),
    ],
)
def test_wrong_metadata_names_the_field(tmp_path, field, value):
    with pytest.raises(ValueError, match=f"^{field}: expected .*, got "):
        dataclasses.replace(METADATA, **{field: value})
    path = tmp_path / "model.json"
    METADATA.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(EngineError, match=f"model.json is wrong: {field}: expected"):
        trt_plugin.ArtifactMetadata.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("{", "cannot be read"),
        ("[]", 'expected an object with "format": 1'),
        ('{"format": 2}', 'expected an object with "format": 1'),
        ('{"format": 1, "model": "x"}', "has wrong fields: missing .*'batch'"),
    ],
)
def test_unreadable_metadata_is_one_line(tmp_path, content, message):
    path = tmp_path / "model.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EngineError, match=message) as caught:
        trt_plugin.ArtifactMetadata.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_bfloat16_rounds_like_torch():
    values = np.concatenate(
        [
            np.random.default_rng(0).normal(size=10_000).astype(np.float32) * 1e3,
            np.float32([0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1e-40]),
            np.uint32([0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF]).view(np.float32),
        ]
    )
    stored = engine_tensors.to_storage(values, "bfloat16", "x")
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(engine_tensors.from_storage(stored, "bfloat16"), expected)


@pytest.mark.parametrize(
    ("array", "dtype", "expected"),
    [
        (np.float64([[0.1, 70000.0]]), "float16", np.float16([[0.1, np.inf]])),
        (np.arange(6, dtype=np.int64).reshape(2, 3).T, "int32", np.int32([[0, 3], [1, 4], [2, 5]])),
        (np.float32([1.5]), "float32", np.float32([1.5])),
        (np.bool_([True]), "bool", np.bool_([True])),
        (np.zeros((0, 4), np.float32), "float16", np.zeros((0, 4), np.float16)),
    ],
)
def test_inputs_are_converted(array, dtype, expected):
    stored = engine_tensors.to_storage(array, dtype, "x")
    assert stored.dtype == expected.dtype
    assert stored.flags.c_contiguous
    np.testing.assert_array_equal(stored, expected)


@pytest.mark.parametrize(
    ("array", "dtype", "error", "message"),
    [
        (np.int64([1]), "float32", TypeError, "x: expected float32, got int64"),
        (np.float32([1]), "int64", TypeError, "x: expected int64, got float32"),
        (np.bool_([1]), "int32", TypeError, "x: expected int32, got bool"),
        (
            np.int64([1, 2**31]),
            "int32",
            ValueError,
            "x: expected numbers that fit into int32, got 1 to 2147483648",
        ),
        (np.array(["1"]), "float32", TypeError, "x: expected float32, got str"),
    ],
)
def test_wrong_inputs_are_named(array, dtype, error, message):
    with pytest.raises(error, match=message):
        engine_tensors.to_storage(array, dtype, "x")


def test_header_tells_the_version():
    assert built_with(plan_header((10, 3, 0, 1))) == (10, 3, 0, 1)
    assert built_with(plan_header()[:20]) is None
    assert built_with(b"PK" + plan_header()) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"\x08\x07\x12\x07pytorch" * 10, "is not a TensorRT engine"),
        (plan_header()[:27], "is not a TensorRT engine"),
    ],
    ids=["missing", "empty", "other", "short"],
)
def test_wrong_file_is_one_line(tmp_path, content, message):
    path = tmp_path / "model.engine"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineError, match=message) as caught:
        trt_plugin.EngineRunner(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def run_command(folder: Path, engine: Path, **environment: str) -> subprocess.CompletedProcess:
    inputs, out = folder / "x.npz", folder / "y.npz"
    if not inputs.exists():
        np.savez(inputs, x=np.zeros(1, np.float32))
    return without_gpu(
        "-m", "trt_plugin.run", str(engine), "--inputs", str(inputs), "--out", str(out), **environment
    )


def assert_one_line_error(done: subprocess.CompletedProcess, message: str, folder: Path) -> None:
    assert done.returncode == 1, (done.returncode, done.stderr)
    errors = [line for line in done.stderr.splitlines() if "experimental in TensorRT" not in line]
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("error: ")
    assert message in errors[0]
    assert not (folder / "y.npz").exists()


def test_command_without_a_gpu_ends_in_one_line(tmp_path):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    pytest.importorskip("cuda.bindings", reason="cuda-python is not installed", exc_type=ImportError)
    done = run_command(tmp_path, save(tmp_path, plan_header()))
    assert_one_line_error(done, "TensorRT needs an NVIDIA GPU, and CUDA finds none", tmp_path)


@pytest.mark.parametrize("package", ["tensorrt", "cuda"])
def test_missing_package_is_named(tmp_path, package):
    path = hide_package(tmp_path, package)
    done = run_command(tmp_path, save(tmp_path, plan_header()), PYTHONPATH=path)
    assert_one_line_error(done, "pip install 'codetr-tensorrt[tensorrt]'", tmp_path)


def test_warnings_of_tensorrt_are_not_shown(tmp_path):
    """Python 3.12 and newer warn of strings in its bindings when it compiles them."""
    code = "import warnings; warnings.warn('invalid escape', SyntaxWarning); raise ImportError('hidden')"
    (tmp_path / "tensorrt.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run_command(tmp_path, save(tmp_path, plan_header()), PYTHONPATH=path)
    assert_one_line_error(done, "TensorRT cannot be imported (hidden)", tmp_path)
    check = "import sys, warnings; sys.path.insert(0, sys.argv[1]); from trt_plugin.engine_error import *\n"
    check += "try: import_tensorrt()\nexcept EngineError: warnings.warn('mine', SyntaxWarning)"
    assert "mine" in without_gpu("-c", check, str(tmp_path)).stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "x.npz: No such file or directory"),
        (b"", "x.npz: cut off, or not an .npz file with arrays ("),
        (b"text", "x.npz: cut off, or not an .npz file with arrays ("),
        (npz(x=np.zeros(99))[:200], "x.npz: cut off, or not an .npz file with arrays ("),
        (npz(x=np.array([{}], object)), "x.npz: cut off, or not an .npz file with arrays ("),
        (npz(np.save, arr=np.zeros(3)), "(it holds a single array without a name)"),
    ],
    ids=["missing", "empty", "text", "cut", "objects", "npy"],
)
def test_wrong_inputs_file_is_one_line(tmp_path, capsys, content, message):
    inputs = tmp_path / "x.npz"
    if content is not None:
        inputs.write_bytes(content)
    assert main(["model.engine", "--inputs", str(inputs), "--out", str(tmp_path / "y.npz")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --inputs {inputs}: ") and message in line
    assert not (tmp_path / "y.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            [],
            2,
            "the following arguments are required: engine, --inputs, --out (see python -m trt_plugin.run --",
        ),
        (["--time", "-1"], 2, "--time: expected a number of runs, got '-1'"),
        (["--inputs", ""], 2, "--inputs: expected a path, got ''"),
        (["--out", "folder"], 1, "folder: Is a directory"),
        (["--out", "y.npz"], 1, "the engine model.engine does not exist"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_line(tmp_path, capsys, monkeypatch, arguments, status, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    np.savez("x.npz", x=np.zeros(1))
    required = ["model.engine", "--inputs", "x.npz", "--out", "y.npz"] if arguments else []
    assert main([*required, *arguments]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["folder", "x.npz"]


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (MemoryError("too\nlarge"), 1, "error: MemoryError: too large"),
        (OSError(28, "No space left on device"), 1, "error: y.npz: No space left on device"),
    ],
    ids=str,
)
def test_failure_of_the_run_is_one_line(tmp_path, capsys, monkeypatch, error, status, line):
    def runner(*_arguments, **_options):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trt_plugin.run.EngineRunner", runner)
    np.savez("x.npz", x=np.zeros(1))
    assert main(["model.engine", "--inputs", "x.npz", "--out", "y.npz"]) == status
    assert capsys.readouterr().err == f"{line}\n"
    assert [file.name for file in tmp_path.iterdir()] == ["x.npz"]


def test_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MSDA_TRT_PLUGIN", str(tmp_path / "nowhere.so"))
    with pytest.raises(EngineError, match=r"nowhere.so, named by \$MSDA_TRT_PLUGIN, does not exist"):
        trt_plugin.library_path()


def test_wrong_library_is_named(tmp_path):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    library = tmp_path / "plugin.so"
    library.write_text("not a library")
    done = without_gpu("-c", "import trt_plugin; trt_plugin.load()", MSDA_TRT_PLUGIN=str(library))
    assert f"EngineError: the TensorRT plugin library {library} cannot be loaded" in done.stderr


# With a GPU.


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    problem = BY_NAME["pyramid"].fused_inputs()
    return {name: x.numpy() for name, x in zip(INPUT_NAMES[FUSED_ATTENTION], problem[:-1], strict=True)}


@pytest.fixture(scope="module")
def plan(inputs) -> bytes:
    """An engine of the fused plugin: N from 1 to 2, and 100 to 256 queries."""
    reason = missing_plugin()
    if reason:
        pytest.skip(reason)
    shapes, ranges = {}, {}
    for name, array in inputs.items():
        shape = array.shape
        smallest, largest = shape, shape
        if name == "value":
            smallest = (1, *shape[1:])
        elif name in INPUT_NAMES[FUSED_ATTENTION][3:]:
            smallest = (1, 100, *shape[2:])
        shapes[name] = tuple(-1 if low < high else low for low, high in zip(smallest, largest, strict=True))
        if -1 in shapes[name]:
            ranges[name] = (smallest, shape, largest)
    dtypes = {name: array.dtype.name for name, array in inputs.items()}
    return build(define_plugin(FUSED_ATTENTION, shapes, dtypes), ranges)


def cut(inputs: dict[str, np.ndarray], batch: int, queries: int) -> dict[str, np.ndarray]:
    """The first images and queries."""
    taken = {"value": inputs["value"][:batch]}
    taken |= {name: inputs[name][:batch, :queries] for name in INPUT_NAMES[FUSED_ATTENTION][3:]}
    return {**inputs, **taken}


@pytest.mark.gpu
def test_graph_replay_equals_enqueueing(tmp_path, plan, inputs):
    path = save(tmp_path, plan)
    with trt_plugin.EngineRunner(path, cuda_graph=False) as runner:
        expected = runner(inputs)["output"]
        assert not runner.uses_cuda_graph
    with trt_plugin.EngineRunner(path) as runner:
        first = runner(inputs)["output"]
        assert runner.uses_cuda_graph
        replayed = runner(inputs)["output"]
        other = runner({**inputs, "value": 2 * inputs["value"]})["output"]
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(replayed, expected)
    np.testing.assert_array_equal(other, 2 * expected)
    assert np.abs(expected).sum() > 0


@pytest.mark.gpu
def test_shapes_take_turns(tmp_path, plan, inputs):
    sizes = [(1, 100), (2, 256), (1, 256), (2, 101)]
    with trt_plugin.EngineRunner(save(tmp_path, plan), max_sessions=3) as runner:
        whole = runner(inputs)["output"]
        for batch, queries in sizes * 3:
            output = runner(cut(inputs, batch, queries))["output"]
            np.testing.assert_allclose(output, whole[:batch, :queries], rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_runner_describes_the_engine(tmp_path, plan, inputs):
    path = save(tmp_path, plan)
    METADATA.save(path.with_suffix(".json"))
    with trt_plugin.EngineRunner(path) as runner:
        assert runner.metadata == METADATA
        assert list(runner.inputs) == list(inputs)
        assert runner.inputs["spatial_shapes"] == ((4, 2), "int64")
        assert runner.inputs["value"] == ((-1, *inputs["value"].shape[1:]), "float32")
        assert runner.outputs == {"output": ((-1, -1, 256), "float32")}
        samples = runner.time(inputs, iterations=7, warmup=2)
    assert len(samples) == 7
    assert min(samples) > 0
    with pytest.raises(EngineError, match="closed"):
        runner(inputs)
    assert built_with(plan) is not None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda x: {k: v for k, v in x.items() if k != "value"},
            ValueError,
            r"missing \['value'\], unknown \[\]",
        ),
        (lambda x: {**x, "image": x["value"]}, ValueError, r"missing \[\], unknown \['image'\]"),
        (
            lambda x: {**x, "value": x["value"][0]},
            ValueError,
            r"value: expected shape \[1 to 2, 256, 8, 32\]",
        ),
        (
            lambda x: cut(x, 2, 99),
            ValueError,
            r"reference_points: expected shape \[1 to 2, 100 to 256, 4, 2\]",
        ),
        (lambda x: {**x, "value": x["value"].astype(int)}, TypeError, "value: expected float32, got int64"),
    ],
    ids=["missing", "unknown", "rank", "range", "type"],
)
def test_wrong_call_is_named_and_the_runner_goes_on(tmp_path, plan, inputs, change, error, message):
    with trt_plugin.EngineRunner(save(tmp_path, plan)) as runner:
        with pytest.raises(error, match=message):
            runner(change(inputs))
        assert runner(inputs)["output"].shape == (2, 256, 256)


def on_gpu(folder: Path, plan: bytes, *options: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs the command on an engine and x.npz, and prints which of Torch's modules it imported."""
    command = [
        "run",
        str(save(folder, plan)),
        "--inputs",
        str(folder / "x.npz"),
        "--out",
        str(folder / "y.npz"),
    ]
    code = (
        "import sys\nfrom trt_plugin.run import main\n"
        f"status = main({[*command[1:], *options]!r})\n"
        "print('torch imported:', 'torch' in sys.modules)\nsys.exit(status)"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
    )


@pytest.mark.gpu
def test_command_runs_an_engine_without_torch(tmp_path, plan, inputs):
    np.savez(tmp_path / "x.npz", **inputs)
    done = on_gpu(tmp_path, plan, "--time", "5")
    assert done.returncode == 0, done.stderr
    assert "torch imported: False" in done.stdout
    assert "GPU time of 5 runs (CUDA graph): median" in done.stdout
    with trt_plugin.EngineRunner(save(tmp_path, plan)) as runner:
        expected = runner(inputs)["output"]
    with np.load(tmp_path / "y.npz") as file:
        np.testing.assert_array_equal(file["output"], expected)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("change", "environment", "message"),
    [
        (lambda plan: plan[: len(plan) // 2], {}, "is truncated or damaged: export it again (TensorRT: "),
        (lambda plan: plan[:200], {}, "is truncated or damaged: export it again (TensorRT: "),
        (
            # Cut off too: TensorRT reads an engine of which only these bytes differ.
            lambda plan: plan[:24] + bytes([9, 9, 9, 9]) + plan[28 : len(plan) // 2],
            {},
            "was built by TensorRT 9.9.9.9, and this is",
        ),
        (
            lambda plan: plan,
            {"MSDA_TRT_PLUGIN": "/nowhere.so"},
            "needs a plugin that is not registered: the TensorRT",
        ),
    ],
    ids=["half", "header", "version", "plugin"],
)
def test_command_on_a_wrong_engine_ends_in_one_line(tmp_path, plan, inputs, change, environment, message):
    np.savez(tmp_path / "x.npz", **inputs)
    done = on_gpu(tmp_path, change(plan), **environment)
    assert_one_line_error(done, message, tmp_path)


@pytest.mark.parametrize(
    ("version", "message", "expected"),
    [
        (
            b"\x0a\x05\x00\x12",
            "The engine plan file is not compatible with this version of TensorRT, expecting library version "
            "10.6.0.26 got 10.5.0.18, please rebuild.",
            "was built by TensorRT 10.5.0.18, and this is TensorRT 10.6.0: export it again",
        ),
        (
            b"\x0a\x06\x00\x1a",
            "Version tag does not match. Note: Current Version: 239, Serialized Engine Version: 238",
            "and this is TensorRT 10.6.0: export it again",
        ),
        (b"\x0a\x06\x00\x1a", "assertion plan->header.size == blobSize failed", "is truncated or damaged"),
    ],
    ids=["library version", "version tag", "truncated"],
)
def test_reason_of_a_refused_engine(monkeypatch, version, message, expected):
    """TensorRT's own words for an engine of another version, of which there is none to try."""
    from trt_plugin import engine_file

    monkeypatch.setattr(engine_file, "import_tensorrt", lambda: SimpleNamespace(__version__="10.6.0"))
    content = plan_header()
    reason = engine_file._reason(content[:24] + version + content[28:], message, "")
    assert expected in reason
