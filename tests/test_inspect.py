"""`python -m trt_plugin.inspect`: files and errors without a GPU, engines with one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import trt_plugin
from tests.plugin_engines import FUSED_ATTENTION, build, define_plugin, missing_plugin, save
from tests.test_inspection_layers import SAMPLES, sample
from tests.test_runner import METADATA, hide_package, plan_header, without_gpu
from trt_plugin import inspect
from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import engine_summary, layer_kinds, text_report
from trt_plugin.inspection.engine_layers import read_file
from trt_plugin.inspection.engine_summary import Summary, TensorReport, Times
from trt_plugin.inspection.layer_kinds import MSDA
from trt_plugin.profiler import nvtx_ranges

LAYERS, TIMES = SAMPLES / "onnx_layers.json", SAMPLES / "onnx_times.json"
SUMMARY = Summary(
    engine_bytes=3 * 2**20,
    built_with="10.6.0.26",
    tensorrt_version="10.6.0.post1",
    gpu="NVIDIA H0",
    verbosity="DETAILED",
    layers=102,
    inputs=(TensorReport("images", (-1, 3, 8, 8), "float32", (1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8)),),
    outputs=(TensorReport("boxes", (-1, 300, 4), "float32"),),
    profiles=2,
    device_memory_bytes=5 * 2**20,
    loaded_bytes=7 * 2**20,
    streamable_weights_bytes=0,
    auxiliary_streams=1,
)


def run(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    """Exit status, output and errors of the command."""
    status = inspect.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


# Without a GPU.


def test_layer_information_needs_no_tensorrt(tmp_path):
    """Nor Torch, nor cuda-python."""
    arguments = ["--layer-info", str(LAYERS), "--times", str(TIMES), "--graph", str(tmp_path / "graph.svg")]
    code = (
        f"import sys\nfrom trt_plugin.inspect import main\nassert main({arguments!r}) == 0\n"
        "print({'torch', 'tensorrt', 'cuda', 'matplotlib'} & {name.split('.')[0] for name in sys.modules})"
    )
    done = without_gpu("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"
    assert (tmp_path / "graph.svg").stat().st_size > 10_000


def test_command_prints_kinds_and_slowest_layers(capsys):
    status, out, err = run(capsys, "--layer-info", LAYERS, "--times", TIMES)
    assert (status, err) == (0, "")
    assert "102 layers, of plugins: 3 FusedMultiScaleDeformableAttention" in out
    assert all(kind in out for kind in layer_kinds.KINDS)
    assert "query_selection: TopK" in out
    rows = [line for line in out.splitlines() if line.startswith("0.")]
    assert len(rows) == inspect.SLOWEST
    times = [float(row.split()[0]) for row in rows]
    assert times == sorted(times, reverse=True)
    assert times[0] == round(max(layer.time_ms for layer in sample("onnx").layers), 3)


def test_command_without_times(capsys):
    _, out, _ = run(capsys, "--layer-info", LAYERS)
    assert "slowest" not in out and " ms" not in out


def test_table_has_a_row_for_every_layer(capsys):
    _, out, _ = run(capsys, "--layer-info", LAYERS, "--table")
    for layer in sample("onnx").layers:
        assert sum(line.endswith(f"  {layer.name}") for line in out.splitlines()) == 1, layer.name


def test_json_holds_everything(tmp_path, capsys):
    path = tmp_path / "report.json"
    status, out, _ = run(capsys, "--layer-info", LAYERS, "--times", TIMES, "--json", path)
    assert status == 0 and f"wrote {path}" in out
    content = json.loads(path.read_text())
    found = sample("onnx")
    assert [layer["name"] for layer in content["layers"]] == [layer.name for layer in found.layers]
    assert content["precision"] == "fp16"
    assert content["kinds"][MSDA] == {"layers": 3, "ms": pytest.approx(0.367, abs=0.001)}
    assert sum(kind["layers"] for kind in content["kinds"].values()) == len(found.layers)
    plugin = next(layer for layer in content["layers"] if layer["type"] == "PluginV3")
    assert plugin["kind"] == MSDA and plugin["module"] == "encoder.layers.1.self_attn"


def test_pictures_are_written(tmp_path, capsys):
    names = [tmp_path / name for name in ("graph.svg", "chart.png")]
    status, out, _ = run(
        capsys, "--layer-info", LAYERS, "--times", TIMES, "--graph", names[0], "--chart", names[1]
    )
    assert status == 0
    assert all(path.stat().st_size > 10_000 and f"wrote {path}" in out for path in names)
    assert sorted(tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either an engine or --layer-info FILE"),
        (["a.engine", "--layer-info", "b.json"], "expected either an engine or --layer-info FILE"),
        (["a.engine", "--graph", "a.pdf"], "--graph a.pdf: expected a name that ends in .svg or .png"),
        (["a.engine", "--chart", "a.svg"], "--chart: shows times, so it needs --profile"),
        (["--layer-info", "a.json", "--chart", "a.svg"], "or --layer-info with --times"),
        (["--layer-info", "a.json", "--profile"], "--profile: needs an engine, and --layer-info is none"),
        (["--layer-info", "a.json", "--plugins", "a.so"], "--plugins: needs an engine"),
        (["--layer-info", "a.json", "--save-layer-info", "b.json"], "--save-layer-info: needs an engine"),
        (["a.engine", "--times", "a.json"], "--times: goes with --layer-info"),
        (["a.engine", "--inputs", "a.npz"], "--inputs: goes with --profile"),
        (["a.engine", "--nvtx"], "--nvtx: goes with --profile"),
        (["a.engine", "--profile", "--runs", "0"], "--runs: expected at least 1, got 0"),
        (["a.engine", "--profile", "--runs", "x"], "--runs: expected a number of runs, got 'x'"),
        (["a.engine", "--device", "-1"], "argument --device: "),
        (["a.engine", "--json", "a.json"], "--json a.json: is where the engine's metadata lie"),
        ([""], "expected a path, got ''"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err


def test_wrong_files_are_one_line(tmp_path, capsys):
    for arguments, message in (
        (["--layer-info", tmp_path / "no.json"], "no.json cannot be read: No such file or directory"),
        (["--layer-info", TIMES], "onnx_times.json: expected {"),
        (["--layer-info", LAYERS, "--times", LAYERS], "onnx_layers.json: expected [{"),
        (["--layer-info", LAYERS, "--times", SAMPLES / "dynamo_times.json"], "are those of another engine"),
        ([tmp_path / "no.engine"], "no.engine does not exist"),
    ):
        status, _, err = run(capsys, *arguments)
        assert status == 1 and message in err and err.count("\n") == 1, err
    assert list(tmp_path.iterdir()) == []


def test_names_alone_are_a_warning_and_make_no_picture(tmp_path, capsys):
    path = tmp_path / "names.json"
    path.write_text('{"Layers": ["/encoder/Add", "/encoder/MatMul"], "Bindings": ["x"]}')
    status, out, err = run(capsys, "--layer-info", path, "--table")
    assert status == 0 and "2 layers" in out and "/encoder/MatMul" in out
    assert err == (
        f"warning: {path} tells names only of its layers: build it with profiling verbosity DETAILED "
        "(trtexec --profilingVerbosity=detailed)\n"
    )
    status, _, err = run(capsys, "--layer-info", path, "--graph", tmp_path / "graph.svg")
    assert status == 1 and err.startswith("error: ") and err.count("\n") == 1
    assert "tells names only of its layers: build it with" in err


@pytest.mark.parametrize("package", ["tensorrt", "cuda"])
def test_missing_package_is_named(tmp_path, package):
    path = hide_package(tmp_path, package)
    done = without_gpu("-m", "trt_plugin.inspect", str(save(tmp_path, plan_header())), PYTHONPATH=path)
    (line,) = errors_of(done)
    assert done.returncode == 1 and "pip install 'codetr-tensorrt[tensorrt]'" in line


def test_machine_without_a_gpu_is_one_line(tmp_path):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    pytest.importorskip("cuda.bindings", reason="cuda-python is not installed", exc_type=ImportError)
    done = without_gpu("-m", "trt_plugin.inspect", str(save(tmp_path, plan_header())))
    (line,) = errors_of(done)
    assert done.returncode == 1 and "TensorRT needs an NVIDIA GPU, and CUDA finds none" in line


def errors_of(done) -> list[str]:
    return [line for line in done.stderr.splitlines() if "experimental in TensorRT" not in line]


@pytest.fixture
def machine(monkeypatch) -> list[dict]:
    """Stands for a machine with a GPU that has the sample's engine; lists what was measured."""
    asked = []

    def read_engine(path, device, libraries):
        return SUMMARY, read_file(LAYERS), '{"Layers": []}'

    def measure(path, **options):
        asked.append(options)
        return Times([11.0, 12.0, 13.0], True, {x.name: x.time_ms for x in sample("onnx").layers})

    monkeypatch.setattr(inspect, "read_engine", read_engine)
    monkeypatch.setattr(inspect, "measure", measure)
    return asked


def test_engine_is_described(tmp_path, capsys, machine):
    path = save(tmp_path, b"")
    METADATA.save(path.with_suffix(".json"))
    status, out, err = run(capsys, path, "--save-layer-info", tmp_path / "layers.json")
    assert (status, err) == (0, "")
    for row in (
        "TensorRT              built by 10.6.0.26, loaded by 10.6.0.post1 on NVIDIA H0",
        "engine                3.0 MiB",
        "precision             fp16",
        "input images          [1 to 4, 3, 8, 8] float32, best at [2, 3, 8, 8]",
        "output boxes          [?, 300, 4] float32",
        "profiles              2",
        "intermediate results  5.0 MiB of GPU memory a context",
        "weights and code      7.0 MiB of GPU memory taken by loading",
        "auxiliary streams     1",
    ):
        assert f"  {row}\n" in out, out
    assert "GPU time" not in out and machine == []
    assert (tmp_path / "layers.json").read_text() == '{"Layers": []}'


def test_engine_is_profiled(tmp_path, capsys, machine):
    path = save(tmp_path, b"")
    np.savez(tmp_path / "x.npz", images=np.zeros(3))
    chart = tmp_path / "chart.svg"
    options = ("--profile", "--runs", "7", "--inputs", tmp_path / "x.npz", "--device", "1", "--chart", chart)
    status, out, _ = run(capsys, path, *options)
    assert status == 0
    assert "GPU time of a run: 12.000 ms (CUDA graph, median of 3); sum of the layers" in out
    assert "a run takes 12.000 ms" in chart.read_text()
    assert "test.engine, fp16, ?x3x8x8: NVIDIA H0" in chart.read_text()
    (asked,) = machine
    assert (asked["device"], asked["runs"], asked["nvtx"], list(asked["inputs"])) == (1, 7, False, ["images"])


def test_metadata_of_something_else_is_a_warning(tmp_path, capsys, machine):
    path = save(tmp_path, b"")
    path.with_suffix(".json").write_text("{}")
    status, out, err = run(capsys, path)
    assert status == 0 and "102 layers" in out
    assert err.startswith("warning: the metadata ") and err.count("\n") == 1


def test_engine_that_tells_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(inspect, "read_engine", lambda *_: (SUMMARY, None, ""))
    path = save(tmp_path, b"")
    status, out, err = run(capsys, path)
    assert status == 0 and "engine                3.0 MiB" in out
    assert "tells nothing of its layers: build it with profiling verbosity DETAILED" in err
    status, _, err = run(capsys, path, "--graph", tmp_path / "graph.svg")
    assert status == 1 and "tells nothing of its layers" in err


def test_build_time_is_shown():
    lines = text_report.summary_lines(SUMMARY, "fp16", 89.94)
    assert any(line.split() == ["build", "89.9", "s"] for line in lines)


class Runner:
    """Stands in for `trt_plugin.EngineRunner`."""

    uses_cuda_graph = True
    inputs = {  # noqa: RUF012
        "images": trt_plugin.TensorInfo((-1, 3, 8, 12), "float16"),
        "image_shapes": trt_plugin.TensorInfo((-1, 2), "int64"),
        "mask": trt_plugin.TensorInfo((4,), "bool"),
    }

    def __init__(self, path, **options):
        self.options = options

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def best_shape(self, name):
        return tuple(2 if size < 0 else size for size in self.inputs[name].shape)

    def time(self, inputs, iterations, warmup):
        return [3.0, 1.0, 2.0][:iterations]

    def profile(self, inputs, iterations):
        return [{"a": 1.0, "b": 5.0}, {"a": 3.0}, {"a": 2.0, "b": 6.0}]


def test_inputs_to_time_an_engine_on():
    arrays = engine_summary.example_inputs(Runner("x"))
    assert arrays["images"].shape == (2, 3, 8, 12) and 0.8 < arrays["images"].std() < 1.2
    np.testing.assert_array_equal(arrays["image_shapes"], [[8, 12], [8, 12]])
    assert arrays["image_shapes"].dtype == np.int64 and arrays["mask"].all()


def test_measured_times_are_medians(monkeypatch):
    monkeypatch.setattr(engine_summary, "EngineRunner", Runner)
    times = engine_summary.measure(Path("x"), runs=3)
    assert times.gpu_ms == 2.0 and times.cuda_graph
    assert times.layer_ms == {"a": 2.0, "b": 5.0}  # a layer that a run does not report took nothing in it


def test_ranges_need_nvtx(monkeypatch):
    named = []

    def annotate(name, domain):
        named.append((name, domain))
        return f"range {name}"

    with nvtx_ranges(False)("anything"):
        pass
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=annotate))
    assert nvtx_ranges(True)("upload") == "range upload"
    assert named == [("upload", "trt_plugin")]
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(EngineError, match=r"NVTX ranges need the package nvtx .*pip install"):
        nvtx_ranges(True)


# On the GPU.

SHAPES = {
    "value": (1, 20, 8, 32),
    "spatial_shapes": (2, 2),
    "level_start_index": (2,),
    "reference_points": (1, 20, 2, 2),
    "sampling_offsets": (1, 20, 8, 2, 4, 2),
    "attention_logits": (1, 20, 8, 8),
}


def arrays_of_an_encoder() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    arrays = {name: random.random(shape, np.float32) for name, shape in SHAPES.items()}
    arrays["spatial_shapes"] = np.array([[4, 4], [2, 2]], np.int64)
    arrays["level_start_index"] = np.array([0, 16], np.int64)
    return arrays


def plan(verbosity: str) -> bytes:
    reason = missing_plugin()
    if reason:
        pytest.skip(reason)
    dtypes = {name: array.dtype.name for name, array in arrays_of_an_encoder().items()}
    return build(define_plugin(FUSED_ATTENTION, SHAPES, dtypes), verbosity=verbosity)


@pytest.mark.gpu
def test_engine_with_a_plugin(tmp_path, capsys):
    path = save(tmp_path, plan("DETAILED"))
    np.savez(tmp_path / "x.npz", **arrays_of_an_encoder())
    pictures = [tmp_path / name for name in ("graph.svg", "chart.png")]
    files = ["--graph", pictures[0], "--chart", pictures[1], "--json", tmp_path / "report.json"]
    profile = ["--profile", "--runs", "5", "--inputs", tmp_path / "x.npz", "--table"]
    status, out, err = run(capsys, path, *profile, *files, "--save-layer-info", tmp_path / "layers.json")
    assert (status, err) == (0, "")
    assert "of plugins: 1 FusedMultiScaleDeformableAttention" in out
    assert "GPU time of a run: " in out and "(CUDA graph, median of 5)" in out
    content = json.loads((tmp_path / "report.json").read_text())
    (attention,) = (layer for layer in content["layers"] if layer["kind"] == MSDA)
    assert attention["name"] == "attention" and attention["time_ms"] > 0
    assert content["summary"]["verbosity"] == "DETAILED" and content["gpu_ms"] > 0
    assert all(path.stat().st_size > 1000 for path in pictures)
    status, out, _ = run(capsys, "--layer-info", tmp_path / "layers.json")
    assert status == 0 and "1 FusedMultiScaleDeformableAttention" in out


@pytest.mark.gpu
def test_profile_names_the_layers_of_the_inspector(tmp_path):
    path = save(tmp_path, plan("DETAILED"))
    _, found, _ = engine_summary.read_engine(path)
    with trt_plugin.EngineRunner(path) as runner:
        expected = runner(arrays_of_an_encoder())["output"]
        runs = runner.profile(arrays_of_an_encoder(), iterations=4, warmup=1)
        np.testing.assert_array_equal(runner(arrays_of_an_encoder())["output"], expected)
    assert len(runs) == 4
    assert all(run["attention"] > 0 for run in runs)
    assert {name for run in runs for name in run} <= {layer.name for layer in found.layers}


@pytest.mark.gpu
@pytest.mark.parametrize(("verbosity", "words"), [("LAYER_NAMES_ONLY", "names only"), ("NONE", "nothing")])
def test_engine_that_tells_little(tmp_path, capsys, verbosity, words):
    path = save(tmp_path, plan(verbosity))
    status, out, err = run(capsys, path)
    assert status == 0 and "intermediate results" in out
    assert f"tells {words} of its layers" in err and err.count("\n") == 1


@pytest.mark.gpu
def test_engine_without_its_plugin_is_one_line(tmp_path):
    path = save(tmp_path, plan("DETAILED"))
    done = with_gpu("-m", "trt_plugin.inspect", str(path), MSDA_TRT_PLUGIN="/nowhere.so")
    (line,) = errors_of(done)
    assert done.returncode == 1 and "needs a plugin that is not registered" in line
    assert line.endswith("; name its library with --plugins FILE")
    library = str(trt_plugin.library_path())
    command = ("-m", "trt_plugin.inspect", str(path), "--plugins", library)
    done = with_gpu(*command, MSDA_TRT_PLUGIN="/nowhere.so")
    assert done.returncode == 0, done.stderr


def with_gpu(*arguments: str, **environment: str):
    """As `without_gpu`, with the GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return without_gpu(*arguments, CUDA_VISIBLE_DEVICES=visible, **environment)
