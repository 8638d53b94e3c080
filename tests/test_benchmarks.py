"""The benchmarks without a GPU: problem sizes, statistics, result files, tables, and the lack of a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import detector, environment, msda, report, sanitize, timing
from benchmarks.problems import BY_NAME, REAL, SMALL, Problem, pyramid

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


def test_sanitize_spoils_some_samples_only() -> None:
    inputs = sanitize.spoil(BY_NAME["pyramid"].attention_inputs())
    finite = inputs.sampling_locations.isfinite().double().mean()
    assert 0.8 < finite < 1.0


def result_file(folder: Path) -> Path:
    """A result file of one measurement and one failure."""
    timed = timing.Timing([0.1, 0.2, 0.3], 2, 1, "cold").as_dict()
    row = {
        "problem": {"name": "small"},
        "distribution": "near",
        "dtype": "fp16",
        "method": "attention",
        "floor_us": 50.0,
        "relative_error": 2e-4,
        "timing": timed,
    }
    gpu = {"name": "NVIDIA H0", "driver": "1.2"}
    content = {
        **environment.describe("benchmarks.msda", ["--dtypes", "fp16"]),
        "gpu": gpu,
        "kind": "msda",
        "methods": {"attention": "ours", "plugin": "ours in an engine"},
        "results": [row, {**row, "method": "plugin", "failure": "no engine", "timing": None}],
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


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    content = report.read(result_file(tmp_path))
    content["results"] = content["results"][:1]
    pictures = report.draw(content, tmp_path / "pictures", "msda_h0")
    assert [picture.name for picture in pictures] == ["msda_h0_fp16_near.svg", "msda_h0_fp16_near.png"]
    assert all(picture.stat().st_size > 1000 for picture in pictures)


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
