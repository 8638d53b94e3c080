"""The engine runner: engine files that it refuses, and with a GPU engines that it runs."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import trt_plugin
from benchmarks.problems import BY_NAME, FusedInputs
from tests.engines.engine_samples import METADATA, lines_of, plan_header, run_python
from tests.engines.plugin_engines import arrays_of, build_plan, plugin_or_skip, save
from trt_plugin import EngineError, cuda_runtime, engine_file
from trt_plugin.cuda_runtime import CudaBuffer, CudaStream, TurnTaker
from trt_plugin.engine_file import built_with
from trt_plugin.runner import DeviceInput

# Without a GPU.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"\x08\x07\x12\x07pytorch" * 10, "is not a TensorRT engine"),
        (plan_header()[:27], "is not a TensorRT engine"),
    ],
    ids=["missing", "other", "short"],
)
def test_wrong_file_is_one_line(tmp_path, content, message):
    path = tmp_path / "model.engine"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineError, match=message) as caught:
        trt_plugin.EngineRunner(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "message", "expected"),
    [
        ((10, 5, 0, 18), "expecting library version 10.6.0.26", "was built by TensorRT 10.5.0.18"),
        ((10, 6, 0, 26), "Version tag does not match. Note: Current Version: 239", "this is TensorRT 10.6.0"),
        ((10, 6, 0, 26), "cannot find plugin: x", "needs a plugin that is not registered: TensorRT: cannot"),
        ((10, 6, 0, 26), "plan->header.size == blobSize failed", "is truncated or damaged"),
    ],
)
def test_reason_of_a_refused_engine(monkeypatch, version, message, expected):
    """TensorRT's own messages about an engine of another version, which no machine here could build."""
    monkeypatch.setattr(engine_file, "import_tensorrt", lambda: SimpleNamespace(__version__="10.6.0"))
    assert expected in engine_file._reason(plan_header(version), message, "")


def test_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MSDA_TRT_PLUGIN", str(tmp_path / "nowhere.so"))
    with pytest.raises(EngineError, match=r"nowhere.so does not exist; .*MSDA_TRT_PLUGIN"):
        trt_plugin.library_path()


def test_wrong_library_is_named(tmp_path):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    library = tmp_path / "plugin.so"
    library.write_text("not a library")
    done = run_python("-c", "import trt_plugin; trt_plugin.load()", MSDA_TRT_PLUGIN=str(library))
    assert f"EngineError: the plugin library {library} cannot be loaded" in done.stderr


def test_runs_take_turns(monkeypatch):
    """Each run waits for the end of the last run of any stream."""
    calls: list[tuple] = []

    def call(name: str, *arguments: object) -> str:
        calls.append((name, *arguments))
        return "event"

    def stream(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            wait=lambda event: calls.append((name, "waits for", event)),
            record=lambda event: calls.append((name, "marks", event)),
        )

    monkeypatch.setattr(cuda_runtime, "call", call)
    monkeypatch.setattr(cuda_runtime, "import_cudart", lambda: SimpleNamespace(cudaEventDisableTiming=2))
    turns, a, b = TurnTaker(), stream("a"), stream("b")
    for one in (a, b, b, a):
        turns.enqueue(one, lambda: calls.append(("work",)))
    del turns
    runs = [((x, "waits for", "event"), ("work",), (x, "marks", "event")) for x in "abba"]
    assert calls == [
        ("cudaEventCreateWithFlags", 2),
        *itertools.chain(*runs),
        ("cudaEventDestroy", "event"),
    ]


# With a GPU.


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return arrays_of(BY_NAME["pyramid"].fused_inputs())


@pytest.fixture(scope="module")
def plan(inputs) -> bytes:
    """An engine of the fused plugin: N from 1 to 2, and 100 to 256 queries."""
    plugin_or_skip()
    smallest = {name: array.shape for name, array in cut(inputs, 1, 100).items()}
    return build_plan(BY_NAME["pyramid"].fused_inputs(), smallest)


def cut(inputs: dict[str, np.ndarray], batch: int, queries: int) -> dict[str, np.ndarray]:
    """The first images and queries."""
    taken = {"value": inputs["value"][:batch]}
    taken |= {name: inputs[name][:batch, :queries] for name in FusedInputs._fields[3:-1]}
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
        assert len(runner.time(inputs, 3, 1, cuda_graph=False)) == 3
        timed = runner(inputs)["output"]
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(replayed, expected)
    np.testing.assert_array_equal(other, 2 * expected)
    np.testing.assert_array_equal(timed, expected)
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
def test_forks_run_beside_each_other(tmp_path, plan, inputs):
    """Two threads, each with a runner and inputs of its own. A fork outlives the runner that made it."""
    runner = trt_plugin.EngineRunner(save(tmp_path, plan))
    expected = runner(inputs)["output"]
    forks = [runner, runner.fork()]

    def work(index: int) -> list[np.ndarray]:
        own = {**inputs, "value": (index + 1) * inputs["value"]}
        return [forks[index](own)["output"] for _ in range(50)]

    with ThreadPoolExecutor(2) as pool:
        for index, outputs in enumerate(pool.map(work, range(2))):
            for output in outputs:
                np.testing.assert_array_equal(output, (index + 1) * expected)
    runner.close()
    with forks[1] as fork:
        np.testing.assert_array_equal(fork(inputs)["output"], expected)


@pytest.mark.gpu
def test_input_that_is_written_on_the_gpu(tmp_path, plan, inputs):
    value = np.ascontiguousarray(inputs["value"])
    memory = CudaBuffer(value.nbytes)
    memory.view(value.shape, value.dtype)[:] = value

    def write(address: int, dtype: str, stream: CudaStream) -> None:
        assert dtype == "float32"
        stream.copy(address, memory.host, value.nbytes)

    with trt_plugin.EngineRunner(save(tmp_path, plan)) as runner:
        expected = runner(inputs)["output"]
        runner({**inputs, "value": 0 * value})
        written = DeviceInput(value.shape, ("float32",), write)
        np.testing.assert_array_equal(runner({**inputs, "value": written})["output"], expected)
        with pytest.raises(ValueError, match=r"value: expected shape \[1 to 2, "):
            runner({**inputs, "value": written._replace(shape=(3, *value.shape[1:]))})
        with pytest.raises(TypeError, match="value: expected float32, got one of float16"):
            runner({**inputs, "value": written._replace(dtypes=("float16",))})
    memory.close()


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
    assert len(samples) == 7 and min(samples) > 0
    with pytest.raises(EngineError, match="closed"):
        runner(inputs)
    assert built_with(plan).count(".") == 3


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: {"image": x["value"]}, ValueError, r"missing \['value', .*unknown \['image'\]"),
        (lambda x: x | {"value": x["value"][0]}, ValueError, r"value: expected shape \[1 to 2, 256, 8, 32\]"),
        (lambda x: cut(x, 2, 99), ValueError, r"reference_points: expected shape \[1 to 2, 100 to 256, 4, 2"),
        (lambda x: x | {"value": x["value"].astype(int)}, TypeError, "value: expected float32, got int64"),
    ],
    ids=["names", "rank", "range", "type"],
)
def test_wrong_call_is_named_and_the_runner_goes_on(tmp_path, plan, inputs, change, error, message):
    with trt_plugin.EngineRunner(save(tmp_path, plan)) as runner:
        with pytest.raises(error, match=message):
            runner(change(inputs))
        assert runner(inputs)["output"].shape == (2, 256, 256)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan[: len(plan) // 2], "is truncated or damaged: export it again (TensorRT: "),
        # Cut off too: TensorRT reads an engine of which only these bytes differ.
        (
            lambda plan: plan[:24] + bytes([9, 9, 9, 9]) + plan[28 : len(plan) // 2],
            "was built by TensorRT 9.9.9.9, and this is",
        ),
    ],
    ids=["half", "version"],
)
def test_refused_engine_is_one_line(tmp_path, plan, change, message):
    """In a process of its own: TensorRT and the plugins of this process stay as they are."""
    path = save(tmp_path, change(plan))
    code = f"import trt_plugin\ntry: trt_plugin.EngineRunner({str(path)!r})\n"
    code += "except trt_plugin.EngineError as error: print(error)"
    done = run_python("-c", code, gpu=True)
    (line,) = lines_of(done.stdout)
    assert message in line, done.stderr


@pytest.mark.gpu
def test_command_runs_an_engine_without_torch(tmp_path, plan, inputs):
    path = save(tmp_path, plan)
    np.savez(tmp_path / "x.npz", **inputs)
    command = [str(path), "--inputs", f"{tmp_path}/x.npz", "--out", f"{tmp_path}/y.npz", "--time", "5"]
    code = f"import sys\nfrom trt_plugin.run import main\nassert main({command!r}) == 0\n"
    done = run_python("-c", f"{code}print('torch imported:', 'torch' in sys.modules)", gpu=True)
    assert done.returncode == 0, done.stderr
    assert "torch imported: False" in done.stdout
    assert "GPU time of 5 runs (CUDA graph): median" in done.stdout
    with trt_plugin.EngineRunner(path) as runner:
        expected = runner(inputs)["output"]
    with np.load(tmp_path / "y.npz") as file:
        np.testing.assert_array_equal(file["output"], expected)
