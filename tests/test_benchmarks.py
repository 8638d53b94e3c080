"""The benchmarks without a GPU: problem sizes, statistics, the compiled reference, result files, tables,
pictures, and the lack of a GPU."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks import (
    detector,
    environment,
    errors,
    msda,
    pictures,
    repeats,
    report,
    roofline,
    sanitize,
    sizes,
    timing,
)
from benchmarks.problems import BY_NAME, REAL, SMALL, Problem, pyramid
from codetr.export.engine_check import detect_with_torch
from tests.golden_models import GOLDEN, load_golden, save_weights

ROOT = Path(__file__).parent.parent


def test_level_sizes() -> None:
    """S of Co-DINO's five levels at the three image sizes, and a size that no stride divides."""
    cells = {problem.name: problem.num_cells for problem in REAL}
    for size, expected in (("608x608", 30_785), ("768x1152", 73_656), ("1280x1920", 204_600)):
        assert cells[f"codino_encoder_{size}"] == cells[f"codino_decoder_{size}"] == expected
        assert BY_NAME[f"codino_encoder_{size}"].num_queries == expected
    assert pyramid(801, 1333) == ((201, 334), (101, 167), (51, 84), (26, 42), (13, 21))


def test_bytes_moved() -> None:
    """Every input read once and every output written once, counted from the tensors themselves."""
    for problem in (*REAL[1::2], *SMALL):
        inputs = problem.fused_inputs(torch.float16)
        tensors = [x for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
        output = 2 * problem.batch * problem.num_queries * problem.num_heads * problem.head_dim
        moved = sum(tensor.nbytes for tensor in tensors) + output
        assert problem.bytes_moved(torch.float16, fused=True) == moved
        assert problem.bytes_moved(torch.float16, fused=True, backward=True) == 2 * moved - output


def test_both_forms_sample_the_same_places() -> None:
    """The inputs of attention are those of fused_attention after softmax and with locations computed."""
    for problem in SMALL:
        given, fused = problem.attention_inputs(seed=3), problem.fused_inputs(seed=3)
        assert torch.equal(given.value, fused.value)
        locations = problem.to_points(fused.reference_points[..., :2])
        offsets = fused.sampling_offsets.reshape(*fused.attention_logits.shape, 2)
        locations = locations + offsets * problem.cells_to_unit(fused.reference_points)
        torch.testing.assert_close(given.sampling_locations.reshape(locations.shape), locations)


def test_wrong_problems() -> None:
    with pytest.raises(ValueError, match=r"^points_per_level: expected 1 numbers .*got \(1, 2\)"):
        Problem("wrong", 1, ((2, 2),), 1, points_per_level=(1, 2))
    with pytest.raises(ValueError, match=r"^reference_dim: expected 2 or 4, got 3"):
        Problem("wrong", 1, ((2, 2),), 1, reference_dim=3)
    with pytest.raises(ValueError, match=r"^distribution: expected one of .*got 'far'"):
        SMALL[0].attention_inputs(distribution="far")


def test_statistics() -> None:
    found = timing.summarise([float(sample) for sample in range(100, -1, -1)])
    assert found == {"median_ms": 50.0, "p05_ms": 5.0, "p95_ms": 95.0, "min_ms": 0.0, "samples": 101}
    with pytest.raises(ValueError, match=r"^samples_ms"):
        timing.summarise([])


SIZES_OF = ["--weights", "co_dino_swin_l", "--engine"]


@pytest.mark.parametrize("module", ["msda", "detector", "sanitize"])
def test_without_gpu(module: str) -> None:
    """One line on the standard error output, and a status that is not 0."""
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"benchmarks.{module}: ") and "needs an NVIDIA GPU" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (msda.main, ["--bad"], "unrecognized arguments: --bad"),
        (msda.main, ["--iterations", "0"], "--iterations: expected a whole number above 0, got '0'"),
        (msda.main, ["--out", "."], "--out .: is a folder, not a file"),
        (detector.main, ["--model", "nope"], "--model: model 'nope': expected one of"),
        (detector.main, ["--weights", "nowhere.pth"], "--weights nowhere.pth: no such file"),
        (detector.main, ["--photo", "nowhere.jpg"], "--photo nowhere.jpg: no such file"),
        (detector.main, ["--engine", "fp32"], "--engine: expected LABEL=FILE, got 'fp32'"),
        (detector.main, ["--engine", "fp32=nowhere"], "--engine fp32 nowhere: no such file"),
        (detector.main, ["--out", "/proc/x/y.json"], "--out /proc/x/y.json: cannot write there"),
        (sanitize.main, ["--bad"], "unrecognized arguments: --bad"),
        (sizes.main, [*SIZES_OF, "e=no"], "--engine e no: no such file"),
        (
            sizes.main,
            [*SIZES_OF, "e=x", "--sizes", "768"],
            "--sizes: expected HEIGHTxWIDTH, such as 768x1152",
        ),
        (sizes.main, [*SIZES_OF, "e=x", "--batches", "0"], "--batches: expected a whole number above 0"),
        (repeats.main, [], "the following arguments are required: --engine"),
        (repeats.main, ["--engine", "e=pyproject.toml"], "--engine e: the metadata beside it pyproject.json"),
        (report.main, [], "the following arguments are required: results"),
        (report.main, ["--pictures", "", "x.json"], "--pictures: expected a path, got ''"),
    ],
)
def test_wrong_arguments_are_one_line(main, arguments: list[str], message: str, capsys) -> None:
    """Before anything is measured, and with no GPU."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("benchmarks.") and message in printed.err


def test_repeats_counts_runs_with_other_bits() -> None:
    def outputs(score: float, left: float = 10.0) -> dict[str, np.ndarray]:
        boxes = np.array([[[left, 10, 50, 50], [100, 100, 200, 150]]], np.float32)
        scores, labels = np.array([[0.9, score]], np.float32), np.array([[3, 5]])
        return {"boxes": boxes, "scores": scores, "labels": labels}

    # A first result that is none of the usual ones.
    given = [outputs(0.5, 10.5), *[outputs(0.5)] * 5, outputs(0.502), outputs(0.5)]
    calls = iter(given)
    found = repeats.repeat(lambda: next(calls), len(given))
    assert {key: found[key] for key in ("runs", "distinct", "different", "detections", "matches")} == {
        "runs": 8,
        "distinct": 3,
        "different": 2,
        "detections": 2,
        "matches": 2,
    }
    assert found["max_score_difference"] == pytest.approx(0.002, rel=1e-3)
    assert found["max_box_difference_px"] == 0.5
    text = repeats.line({"variant": "fp16", **found})
    assert text == "fp16: 2 of 8 runs give other bits, 3 results: scores by 0.002, boxes by 0.5 px"
    same = repeats.repeat(lambda: outputs(0.5), 3)
    assert (same["different"], same["matches"], same["max_score_difference"]) == (0, 2, 0)
    assert repeats.line({"variant": "fp32", **same}) == "fp32: 0 of 3 runs give other bits"


def test_repeats_writes_a_row_for_every_engine(tmp_path, monkeypatch, capsys) -> None:
    """With stand-ins for the GPU and the engines."""
    for name in ("a.engine", "a.json"):
        (tmp_path / name).touch()
    row = {"different": 0, "runs": 7}
    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(environment, "describe", lambda module, arguments: {"gpu": {"name": "NVIDIA H0"}})
    monkeypatch.setattr(repeats, "measure", lambda label, path, photo, runs: {"variant": label, **row})
    monkeypatch.chdir(tmp_path)
    assert repeats.main(["--engine", "x=a.engine", "--engine", "y=a.engine"]) == 0
    path = Path("benchmarks/results/repeats_h0.json")
    content = json.loads(path.read_text())
    assert (content["kind"], content["photo"]) == ("repeats", "coffee.jpg")
    assert content["results"] == [{"variant": label, **row} for label in "xy"]
    lines = [f"{label}: 0 of 7 runs give other bits" for label in "xy"]
    assert capsys.readouterr().out.splitlines() == [*lines, str(path)]


def test_sizes_compares_every_size_and_batch_in_the_engines_precision(tmp_path, monkeypatch, capsys) -> None:
    """With a stand-in for the engine, which finds what PyTorch finds in its precision."""
    name = "codino_swin_tiny"
    weights, config = save_weights(tmp_path)[name], str(GOLDEN / f"{name}.json")
    seen = []

    def measure(label, path, batch, iterations):
        seen.append((label, batch.images.shape, [tuple(shape) for shape in batch.image_shapes.tolist()]))
        found = detect_with_torch(sizes.on_gpu(model, "fp16"), batch, sizes.DEVICE, tf32=False)
        row = {"variant": label, "engine_precision": "fp16", "timing": {"median_ms": 1.0}}
        return row, found, None

    model, _ = load_golden(name)
    monkeypatch.setattr(sizes, "measure_engine", measure)
    monkeypatch.setattr(sizes, "DEVICE", torch.device("cpu"))
    (tmp_path / "e").touch()
    given = ["--model", config, "--weights", str(weights), "--engine", f"a={tmp_path / 'e'}"]
    given += ["--sizes", "96x128", "128x96", "--batches", "1", "2"]
    options = sizes.parse(given)
    rows = sizes.run(options, given)["results"]
    assert [(row["height"], row["width"], row["batch"]) for row in rows] == [
        (96, 128, 1),
        (96, 128, 2),
        (128, 96, 1),
        (128, 96, 2),
    ]
    assert seen[1][1] == (2, 3, 96, 128) and len(set(seen[1][2])) == 2, "images differ in size"
    for row in rows:
        exact, rounded = row["detections_in_its_precision"], row["detections"]
        assert exact["matched"] == exact["expected"] and exact["max_box_difference_px"] == 0.0
        assert rounded["max_box_difference_px"] > 0.0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_sanitize_spoils_some_samples_only() -> None:
    inputs = sanitize.spoil(BY_NAME["pyramid"].attention_inputs())
    finite = inputs.sampling_locations.isfinite().double().mean()
    assert 0.8 < finite < 1.0


def test_methods() -> None:
    """Each is treated as what it is, a slow baseline or a forward pass, and has a colour of its own."""
    assert set(msda.REFERENCES) == {method for method in msda.METHODS if method.startswith("reference")}
    assert set(msda.REFERENCES) < set(msda.NO_BFLOAT16) < set(msda.METHODS)
    assert set(roofline.MARKERS) == {method for method in msda.METHODS if not method.endswith("_backward")}
    assert len(set(roofline.MARKERS.values())) == len(roofline.MARKERS)
    assert len(set(pictures.COLOURS)) >= max(len(msda.METHODS), len(msda.PROBLEMS))


@pytest.fixture
def compiled_by_aot_eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.compile` traces both passes, but needs no C++ compiler and none of its time."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    msda.compiled_reference.cache_clear()
    torch.compiler.reset()
    yield
    msda.compiled_reference.cache_clear()
    torch.compiler.reset()


@pytest.mark.usefixtures("compiled_by_aot_eager")
@pytest.mark.parametrize("name", ["boxes", "ragged_skipped_level"])
def test_compiled_reference(name: str) -> None:
    """It is compiled (nothing falls back to eager PyTorch) and right, the timed calls have nothing left to
    compile, and the backward pass can be repeated."""
    inputs = BY_NAME[name].attention_inputs()
    before = counters["stats"]["unique_graphs"]
    (forward,) = msda.make_calls("reference_compiled", [inputs], None, torch.float32)
    (backward,) = msda.make_calls("reference_compiled_backward", [inputs], None, torch.float32)
    compiled = counters["stats"]["unique_graphs"]
    assert compiled == before + 4  # locations, and levels; each without gradients and with them
    assert msda.relative_error(forward(), errors.truth(inputs)) < 1e-6
    expected = msda.backward_of_reference(errors.in_float64(inputs))()
    for _ in range(2):
        for gradient, wanted in zip(backward(), expected):
            assert errors.relative_error(gradient, wanted) < 1e-4
    assert counters["stats"]["unique_graphs"] == compiled


@pytest.mark.parametrize("method", ["reference_compiled", "reference_compiled_backward"])
def test_compiler_that_fails(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error becomes one that `measure` writes into the row, whatever class it has."""

    class CompilationError(Exception):
        """As Triton's, which is no RuntimeError."""

    def broken(*_):
        raise CompilationError("no compiler")

    monkeypatch.setattr(msda, "compiled_reference", lambda: broken)
    inputs = BY_NAME["boxes"].attention_inputs()
    with pytest.raises(RuntimeError, match=r"^torch\.compile: CompilationError: no compiler$"):
        msda.make_calls(method, [inputs], None, torch.float32)


def test_forward_flop() -> None:
    """Counted by hand: 10 a sample and channel; 2 x 21 queries x 4 heads x (3 + 6 + 1) points x 32 channels,
    and 73,656 x 8 x 20 x 32."""
    assert roofline.forward_flop(asdict(BY_NAME["ragged"])) == 537_600
    assert roofline.forward_flop(asdict(BY_NAME["codino_encoder_768x1152"])) == 3_771_187_200


def test_peak() -> None:
    """An H200 and a T4 by their data sheets (66.9 and 8.1 TFLOP/s), and GPUs of which too little is known."""
    h200 = {"compute_capability": "9.0", "multiprocessors": 132, "clocks": "1980 MHz, 3201 MHz"}
    t4 = {"compute_capability": "7.5", "multiprocessors": 40, "clocks": "1590 MHz, 5001 MHz"}
    assert roofline.peak_flop_per_second(h200) == pytest.approx(66.9e12, rel=1e-3)
    assert roofline.peak_flop_per_second(t4) == pytest.approx(8.14e12, rel=1e-3)
    for unknown in ({"compute_capability": "99.0"}, {"clocks": ""}, {"clocks": "[N/A], [N/A]"}):
        assert roofline.peak_flop_per_second({**h200, **unknown}) is None
    assert roofline.peak_flop_per_second({}) is None


def result_file(folder: Path) -> Path:
    """A result file of two measurements, one of them of a backward pass, and one failure."""
    timed = timing.Timing([0.1, 0.2, 0.3], 2, 1, "cold").as_dict()
    row = {
        "problem": asdict(BY_NAME["ragged"]),
        "distribution": "near",
        "dtype": "fp16",
        "method": "attention",
        "bytes_moved": 134_400,
        "floor_us": 50.0,
        "relative_error": 2e-4,
        "timing": timed,
    }
    failed = {name: row[name] for name in row if name not in ("relative_error", "timing")}
    gpu = {
        "name": "NVIDIA H0",
        "driver": "1.2",
        "compute_capability": "9.0",
        "multiprocessors": 10,
        "clocks": "1000 MHz, 2000 MHz",
    }
    content = {
        **environment.describe("benchmarks.msda", ["--dtypes", "fp16"]),
        "gpu": gpu,
        "kind": "msda",
        "copy_bandwidth_bytes_per_second": 1e12,
        "methods": {method: msda.METHODS[method] for method in ("attention", "attention_backward", "plugin")},
        "results": [
            row,
            {**row, "method": "attention_backward"},
            {**failed, "method": "plugin", "failure": "no engine"},
        ],
    }
    path = folder / "results" / "msda_h0.json"
    environment.write_json(path, content)
    return path


def test_report(tmp_path: Path) -> None:
    path = result_file(tmp_path)
    text = report.markdown(report.read(path))
    assert "NVIDIA H0, driver 1.2" in text
    assert "`python -m benchmarks.msda --dtypes fp16`" in text
    assert "| attention | 200.0 | 2.0e-04 |" in text
    assert "| plugin | failed |" in text
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_points_of_the_roofline(tmp_path: Path) -> None:
    """537,600 flop over 134,400 bytes, in 0.2 ms; no backward pass, no failure, no other type."""
    content = report.read(result_file(tmp_path))
    assert roofline.points(content, "fp16") == [
        ("ragged", "near", "attention", 4.0, pytest.approx(2.688e9, rel=1e-9))
    ]
    assert roofline.points(content, "fp32") == []


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    content = report.read(result_file(tmp_path))
    pictures = report.draw(content, tmp_path / "pictures", "msda_h0")
    names = [f"msda_h0_fp16_{kind}.{suffix}" for kind in ("near", "roofline") for suffix in ("svg", "png")]
    assert [picture.name for picture in pictures] == names
    assert all(picture.stat().st_size > 1000 for picture in pictures)
    content["results"] = content["results"][1:]  # no forward pass, hence no roofline
    assert len(report.draw(content, tmp_path / "others", "msda_h0")) == 2


def test_roofs(tmp_path: Path) -> None:
    """The copy bandwidth up to the peak of 2.56 TFLOP/s, and the peak; the former alone on an unknown GPU."""
    pytest.importorskip("matplotlib")
    content = report.read(result_file(tmp_path))
    slope, peak = roof_lines(content)
    assert slope.get_xdata()[-1] == peak.get_xdata()[0] == pytest.approx(2.56)
    assert [y / x for x, y in slope.get_xydata()] == pytest.approx([1.0, 1.0])
    assert list(peak.get_ydata()) == pytest.approx([2.56, 2.56])
    content["gpu"]["compute_capability"] = "99.0"
    (slope,) = roof_lines(content)
    assert slope.get_xdata()[-1] > 4.0


def roof_lines(content: dict) -> list:
    (axes,) = roofline.figure(content, "fp16", pictures.COLOURS).axes
    return [line for line in axes.lines if line.get_linestyle() != "None"]


def test_result_file_without_bandwidth(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("matplotlib")
    path = result_file(tmp_path)
    content = report.read(path)
    del content["copy_bandwidth_bytes_per_second"]
    environment.write_json(path, content)
    assert report.main([str(path), "--pictures", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "not a whole result file (KeyError: " in printed.err and printed.err.count("\n") == 1


def training_file(folder: Path) -> Path:
    """What `benchmarks.training` writes: two measurements, and a problem that the GPU had no memory for."""
    timed = timing.Timing([40.0, 50.0, 60.0], 1, 5, "warm").as_dict()
    row = {"model": "co_dino_r50", "height": 768, "width": 1152, "batch": 2, "precision": "bf16"}
    numbers = {"images_per_second": 40.0, "peak_memory_bytes": 3 * 2**29, "timing": timed}
    content = {
        **environment.describe("benchmarks.training", []),
        "gpu": {"name": "NVIDIA H0", "driver": "1.2"},
        "kind": "training",
        "results": [
            {**row, "attention": "kernels", **numbers},
            {**row, "attention": "grid_sample", "out_of_memory": True},
            {**row, "model": "runs/my.json", "attention": "grid_sample", **numbers},
        ],
    }
    path = folder / "training_h0.json"
    environment.write_json(path, content)
    return path


def test_report_of_training(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert report.main([str(training_file(tmp_path))]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA H0, driver 1.2" in text and "`python -m benchmarks.training`" in text
    assert "| co_dino_r50 768x1152, batch 2, bf16, kernels | 50.0 | 40.0 to 60.0 | 40.0 | 1.5 |" in text
    assert "| co_dino_r50 768x1152, batch 2, bf16, grid_sample | out of memory |  |  |  |" in text
    assert "| my 768x1152, batch 2, bf16, grid_sample | 50.0 |" in text


def test_picture_of_training(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = report.draw(report.read(training_file(tmp_path)), tmp_path / "pictures", "training_h0")
    assert [picture.name for picture in pictures] == ["training_h0.svg", "training_h0.png"]
    assert all(picture.stat().st_size > 1000 for picture in pictures)


def test_report_of_another_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Another schema version, or no JSON at all, is one clear line."""
    for text, words in (
        ('{"schema_version": 99}', "schema version"),
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ('{"schema_version": 1, "kind": "msda"}', "not a whole result file (KeyError: "),
    ):
        path = tmp_path / "other.json"
        path.write_text(text)
        assert report.main([str(path)]) == 1
        printed = capsys.readouterr()
        assert words in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_result_file_is_whole_or_missing(tmp_path: Path) -> None:
    """A number that JSON has not leaves nothing behind."""
    with pytest.raises(ValueError):
        environment.write_json(tmp_path / "result.json", {"error": float("nan")})
    assert list(tmp_path.iterdir()) == []
    environment.write_json(tmp_path / "result.json", {"error": 1.5})
    assert json.loads((tmp_path / "result.json").read_text()) == {"error": 1.5}
