"""`python -m trt_plugin.inspect`: files and errors without a GPU, engines with one."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import trt_plugin
from benchmarks.problems import Problem
from tests.engines.engine_samples import (
    METADATA,
    RECORDED,
    SUMMARY,
    needs_dot,
    only_error,
    plan_header,
    recorded,
    run_python,
)
from tests.engines.plugin_engines import arrays_of, build_plan, plugin_or_skip, save
from trt_plugin import EngineError, inspect
from trt_plugin.inspection import engine_summary, layer_kinds
from trt_plugin.inspection.engine_layers import read_file, read_times
from trt_plugin.inspection.engine_summary import EngineTimes
from trt_plugin.inspection.layer_kinds import MSDA, WINDOW_ATTENTION
from trt_plugin.profiler import nvtx_ranges

LAYERS, TIMES = RECORDED / "onnx_layers.json", RECORDED / "onnx_times.json"


def run(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    """Exit status, output and errors of the command."""
    status = inspect.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


# Without a GPU.


@needs_dot
def test_layer_information_needs_no_torch_and_no_tensorrt(tmp_path):
    graph = tmp_path / "graph.svg"
    arguments = ["--layer-info", str(LAYERS), "--times", str(TIMES), "--graph", str(graph)]
    code = (
        f"import sys\nfrom trt_plugin.inspect import main\nassert main({arguments!r}) == 0\n"
        "print({'torch', 'tensorrt', 'cuda'} & {name.split('.')[0] for name in sys.modules})"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"
    assert graph.stat().st_size > 10_000


def test_kinds_slowest_layers_and_json(tmp_path, capsys):
    path, found = tmp_path / "report.json", recorded("onnx")
    status, out, err = run(capsys, "--layer-info", LAYERS, "--times", TIMES, "--json", path)
    assert (status, err) == (0, "") and f"wrote {path}" in out
    assert "102 layers, of plugins: 3 FusedMultiScaleDeformableAttention" in out
    assert {layer.kind for layer in found.layers} == {*layer_kinds.LAYER_KINDS} - {WINDOW_ATTENTION}
    assert all(layer.kind in out for layer in found.layers)
    times = [float(line.split()[0]) for line in out.splitlines() if line.startswith("0.")]
    assert len(times) == inspect.SLOWEST and times == sorted(times, reverse=True)
    assert times[0] == round(max(layer.time_ms for layer in found.layers), 3)

    content = json.loads(path.read_text())
    assert [layer["name"] for layer in content["layers"]] == [layer.name for layer in found.layers]
    assert content["precision"] == "fp16"
    assert content["kinds"][MSDA] == {"layers": 3, "ms": pytest.approx(0.367, abs=0.001)}
    plugin = next(layer for layer in content["layers"] if layer["type"] == "PluginV3")
    assert plugin["kind"] == MSDA and plugin["module"] == "encoder.layers.1.self_attn"


def test_table_has_a_row_for_every_layer(capsys):
    _, out, _ = run(capsys, "--layer-info", LAYERS, "--table")
    lines = [line.rstrip() for line in out.splitlines()]
    for layer in recorded("onnx").layers:
        assert sum(line.endswith(f"   {layer.name}") for line in lines) == 1, layer.name


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        ([], 2, "expected either an engine or --layer-info"),
        (["test.engine", "--layer-info", LAYERS], 2, "expected either an engine or --layer-info"),
        (["--layer-info", LAYERS, "--graph", "a.jpg"], 2, "--graph"),
        (["--layer-info", LAYERS, "--chart", "a.svg"], 2, "--chart: expected --profile"),
        (["--layer-info", LAYERS, "--profile"], 2, "--profile: expected an engine"),
        (["test.engine", "--times", TIMES], 2, "--times: expected --layer-info"),
        (["test.engine", "--nvtx"], 2, "--nvtx: expected --profile"),
        (["test.engine", "--runs", "9"], 2, "--runs: expected --profile"),
        (["test.engine", "--json", "test.json"], 2, "--json: expected a file of its own"),
        (
            ["test.engine", "--save-layer-info", "test.json"],
            2,
            "--save-layer-info: expected a file of its own",
        ),
        (["--layer-info", LAYERS, "--json", LAYERS], 2, "--json: expected a file of its own"),
        (
            ["--layer-info", LAYERS, "--times", TIMES, "--graph", "a.svg", "--chart", "a.svg"],
            2,
            "--chart: expected a file of its own, got a.svg",
        ),
        (["--layer-info", LAYERS, "--json", "test.engine/a.json"], 2, "--json: expected a file that can be"),
        (["no.engine"], 2, "no.engine"),
        (["--layer-info", TIMES], 1, "onnx_times.json: expected {"),
        (["--layer-info", LAYERS, "--times", LAYERS], 1, "onnx_layers.json: expected [{"),
        (["--layer-info", LAYERS, "--times", RECORDED / "dynamo_times.json"], 1, "belong to another engine"),
    ],
)
def test_wrong_arguments_are_one_line(tmp_path, monkeypatch, capsys, arguments, status, named):
    monkeypatch.chdir(tmp_path)
    save(tmp_path, plan_header())
    found, _, err = run(capsys, *arguments)
    assert found == status
    assert "error: " in err and err.count("\n") == 1 and named in err
    assert [path.name for path in tmp_path.iterdir()] == ["test.engine"]


@pytest.mark.parametrize(
    ("content", "tells"),
    [('{"Layers": ["/encoder/Add"], "Bindings": ["x"]}', "only the names"), ('{"Layers": []}', "nothing")],
)
def test_layers_without_details_are_a_warning_and_make_no_graph(tmp_path, capsys, content, tells):
    path = tmp_path / "layers.json"
    path.write_text(content)
    status, out, err = run(capsys, "--layer-info", path, "--table")
    assert status == 0 and ("/encoder/Add" in out) == (tells != "nothing")
    assert err.startswith(f"warning: {path} tells {tells} of its layers: build it") and err.count("\n") == 1
    status, _, err = run(capsys, "--layer-info", path, "--graph", tmp_path / "graph.svg")
    assert status == 1 and f"tells {tells} of its layers: build it with" in err


@pytest.fixture
def machine(monkeypatch) -> list[dict]:
    """Stands in for a machine with a GPU and the recorded engine; lists what was measured."""
    asked = []

    def measure(path, **options):
        asked.append(options)
        return EngineTimes([11.0, 12.0, 13.0], True, read_times(TIMES))

    answer = (SUMMARY, read_file(LAYERS), '{"Layers": []}')
    monkeypatch.setattr(engine_summary, "read_engine", lambda path, device, libraries: answer)
    monkeypatch.setattr(engine_summary, "measure", measure)
    return asked


def test_engine_is_described(tmp_path, capsys, machine):
    path = save(tmp_path, b"")
    METADATA.save(path.with_suffix(".json"))
    status, out, err = run(capsys, path, "--save-layer-info", tmp_path / "layers.json")
    assert (status, err) == (0, "") and machine == [] and "GPU time" not in out
    shown = [" ".join(line.split()) for line in out.splitlines()]
    assert shown[2:11] == [
        "TensorRT built by 10.6.0.26, loaded by 10.6.0.post1 on NVIDIA H0",
        "engine 3.0 MiB",
        "precision fp16",
        "input images [1 to 4, 3, 8, 8] float32, best at [2, 3, 8, 8]",
        "output boxes [?, 300, 4] float32",
        "profiles 2",
        "intermediate results 5.0 MiB of GPU memory a context",
        "weights and code 7.0 MiB of GPU memory taken by loading",
        "auxiliary streams 1",
    ]
    assert (tmp_path / "layers.json").read_text() == '{"Layers": []}'


def test_engine_is_profiled(tmp_path, capsys, machine):
    path, chart = save(tmp_path, b""), tmp_path / "chart.svg"
    path.with_suffix(".json").write_text("{}")  # of something else: a warning
    np.savez(tmp_path / "x.npz", images=np.zeros(3))
    options = ("--profile", "--runs", "7", "--inputs", tmp_path / "x.npz", "--device", "1", "--chart", chart)
    status, out, err = run(capsys, path, *options)
    assert status == 0 and err.startswith("warning: the metadata ") and err.count("\n") == 1
    assert "GPU time of a run: 12.000 ms (CUDA graph, median of 3); sum of the layers" in out
    assert "a run takes 12.000 ms" in chart.read_text()
    assert "test.engine, fp16, ?x3x8x8: NVIDIA H0" in chart.read_text()
    (asked,) = machine
    assert (asked["device"], asked["runs"], asked["nvtx"], list(asked["inputs"])) == (1, 7, False, ["images"])


def test_inputs_to_time_an_engine_on():
    inputs = {
        "images": trt_plugin.TensorInfo((-1, 3, 8, 12), "float16"),
        "image_shapes": trt_plugin.TensorInfo((-1, 2), "int64"),
        "mask": trt_plugin.TensorInfo((4,), "bool"),
    }
    shapes = {"images": (2, 3, 8, 12), "image_shapes": (2, 2), "mask": (4,)}
    arrays = engine_summary.example_inputs(SimpleNamespace(inputs=inputs, best_shape=shapes.get))
    assert arrays["images"].shape == (2, 3, 8, 12) and 0.8 < arrays["images"].std() < 1.2
    np.testing.assert_array_equal(arrays["image_shapes"], [[8, 12], [8, 12]])
    assert arrays["image_shapes"].dtype == np.int64 and arrays["mask"].all()


def test_ranges_need_nvtx(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(EngineError, match=r"NVTX ranges need the package nvtx .*pip install"):
        nvtx_ranges(True)


# On the GPU.


ENCODER = Problem("encoder", 1, ((4, 4), (2, 2)), 20).fused_inputs()


def plan(verbosity: str) -> bytes:
    """An engine of one plugin node."""
    plugin_or_skip()
    return build_plan(ENCODER, verbosity=verbosity)


@needs_dot
@pytest.mark.gpu
def test_engine_with_a_plugin(tmp_path, capsys):
    path = save(tmp_path, plan("DETAILED"))
    np.savez(tmp_path / "x.npz", **arrays_of(ENCODER))
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
@pytest.mark.parametrize(
    ("verbosity", "tells"), [("LAYER_NAMES_ONLY", "only the names"), ("NONE", "nothing")]
)
def test_engine_that_tells_little(tmp_path, capsys, verbosity, tells):
    status, out, err = run(capsys, save(tmp_path, plan(verbosity)))
    assert status == 0 and "intermediate results" in out
    assert f"tells {tells} " in err and err.count("\n") == 1


@pytest.mark.gpu
def test_engine_without_its_plugin_is_one_line(tmp_path):
    command = ("-m", "trt_plugin.inspect", str(save(tmp_path, plan("DETAILED"))))
    line = only_error(run_python(*command, gpu=True, MSDA_TRT_PLUGIN="/nowhere.so"))
    assert "needs a plugin that is not registered" in line and "/nowhere.so does not exist" in line
    library = str(trt_plugin.library_path())
    done = run_python(*command, "--plugins", library, gpu=True, MSDA_TRT_PLUGIN="/nowhere.so")
    assert done.returncode == 0, done.stderr
