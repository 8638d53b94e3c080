"""`benchmarks.report`: tables, charts and rooflines of result files."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import pictures, report, roofline
from benchmarks.problems import BY_NAME

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
KINDS = {
    "msda": ("msda_h200", "| fused_plugin |"),
    "detector": ("co_dino_r50_768x1152_h200", "| TensorRT engine fp16 |"),
    "accuracy": ("accuracy_co_dino_demo_640x640_h200", "| PyTorch fp32 |"),
    "training": ("training_h200", "| co_dino_r50 768x1152, batch 2, bf16, kernels |"),
    "surgery": ("surgery_fp16_h200", "| rt_detr ("),
    "engines": ("engines_co_dino_r50_fp16_768x1152_h200", "| GPU time, ms |"),
}


@pytest.fixture
def operator() -> dict:
    """A small result of `benchmarks.msda`: forward, backward, and a failure."""
    content = report.read(RESULTS / "msda_h200.json")
    row = {
        "problem": asdict(BY_NAME["ragged"]),
        "distribution": "near",
        "dtype": "fp16",
        "method": "attention",
        "bytes_moved": 134_400,
        "floor_us": 50.0,
        "relative_error": 2e-4,
        "timing": {"median_ms": 0.2},
    }
    failed = {**row, "method": "plugin", "failure": "no engine", "relative_error": None}
    del failed["timing"]
    gpu = {"compute_capability": "9.0", "multiprocessors": 10, "clocks": "1000 MHz, 2000 MHz"}
    rows = [row, {**row, "method": "attention_backward"}, failed]
    return {
        **content,
        "gpu": {**content["gpu"], **gpu},
        "copy_bandwidth_bytes_per_second": 1e12,
        "results": rows,
    }


def test_every_kind_of_result_file_has_a_case() -> None:
    assert set(KINDS) == set(report.TABLES) == set(pictures.FIGURES)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind == "msda" else ()) for kind in KINDS]
)
def test_tables_and_pictures(kind: str, tmp_path: Path, capsys) -> None:
    """The result files of the repository are readable, and give the same SVG twice."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    stem, row = KINDS[kind]
    assert report.main([str(RESULTS / f"{stem}.json"), "--pictures", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("NVIDIA H200, driver ") and f"`python -m benchmarks.{kind} " in printed.out
    assert row in printed.out
    drawn = [Path(line) for line in printed.err.splitlines()]
    assert drawn and {path.suffix for path in drawn} == {".svg", ".png"}
    assert all(path.stat().st_size > 1000 for path in drawn)
    if kind != "msda":
        assert [path.name for path in drawn] == [f"{stem}.svg", f"{stem}.png"]
        again, _ = report.draw(report.read(RESULTS / f"{stem}.json"), tmp_path / "again", stem)
        assert again.read_bytes() == drawn[0].read_bytes()


def test_failures_stand_in_tables_and_pictures(operator, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    text = report.markdown(operator)
    assert "| attention | 200.0 | 2.0e-04 |" in text and "| plugin | failed |" in text
    names = [file.name for file in report.draw(operator, tmp_path, "x")]
    assert names == [f"x_fp16_{kind}.{suffix}" for kind in ("near", "roofline") for suffix in ("svg", "png")]
    operator["results"] = operator["results"][1:]  # no forward pass, hence no roofline
    assert len(report.draw(operator, tmp_path, "x")) == 2

    training = report.read(RESULTS / "training_h200.json")
    row = training["results"][0]
    for name in ("timing", "images_per_second"):
        del row[name]
    row["out_of_memory"] = True
    assert "| out of memory |  |  |  |" in report.markdown(training)
    surgery = report.read(RESULTS / "surgery_fp16_h200.json")
    lost = {"model": "lost", "configuration": "x", "expected_attentions": 2, "failure": "no"}
    surgery["results"] = [surgery["results"][0], lost]
    assert "| lost (x) |  | failed | failed |" in report.markdown(surgery)
    assert len(report.draw(training, tmp_path, "t")) == len(report.draw(surgery, tmp_path, "s")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema_version": 99}', "schema version"),
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ('{"schema_version": 1, "kind": "repeats"}', "kind repeats"),
        ('{"schema_version": 1, "kind": "msda"}', "not a whole result file (KeyError: "),
    ],
)
def test_other_files(text: str, words: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert report.main([str(path)]) == 1
    printed = capsys.readouterr()
    assert words in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_result_file_without_bandwidth(operator, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    del operator["copy_bandwidth_bytes_per_second"]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(operator))
    assert report.main([str(path), "--pictures", str(tmp_path)]) == 1
    assert "not a whole result file (KeyError: " in capsys.readouterr().err


def test_forward_flop() -> None:
    """Counted by hand: 10 a sample and channel; 2 x 21 queries x 4 heads x (3 + 6 + 1) points x 32 channels,
    and 73,656 x 8 x 20 x 32."""
    assert roofline.forward_flop(asdict(BY_NAME["ragged"])) == 537_600
    assert roofline.forward_flop(asdict(BY_NAME["codino_encoder_768x1152"])) == 3_771_187_200


def test_peak() -> None:
    """The data sheets of H200 and T4 say 66.9 and 8.1 TFLOP/s. Too little is known of the other GPUs."""
    h200 = {"compute_capability": "9.0", "multiprocessors": 132, "clocks": "1980 MHz, 3201 MHz"}
    t4 = {"compute_capability": "7.5", "multiprocessors": 40, "clocks": "1590 MHz, 5001 MHz"}
    assert roofline.peak_flop_per_second(h200) == pytest.approx(66.9e12, rel=1e-3)
    assert roofline.peak_flop_per_second(t4) == pytest.approx(8.14e12, rel=1e-3)
    for unknown in ({"compute_capability": "99.0"}, {"clocks": ""}, {"clocks": "[N/A], [N/A]"}):
        assert roofline.peak_flop_per_second({**h200, **unknown}) is None
    assert roofline.peak_flop_per_second({}) is None


def test_points_of_the_roofline(operator) -> None:
    """537,600 flop over 134,400 bytes, in 0.2 ms; no backward pass, no failure, no other type."""
    points = roofline.points(operator, "fp16")
    assert points == [("ragged", "near", "attention", 4.0, pytest.approx(2.688e9, rel=1e-9))]
    assert roofline.points(operator, "fp32") == []


def test_roofs(operator) -> None:
    """The copy bandwidth is a slope up to the peak of 2.56 TFLOP/s. An unknown GPU has no peak."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")

    def roofs(content: dict) -> list:
        (axes,) = roofline.figure(content, "fp16", pictures.COLOURS).axes
        return [line for line in axes.lines if line.get_linestyle() != "None"]

    slope, peak = roofs(operator)
    assert slope.get_xdata()[-1] == peak.get_xdata()[0] == pytest.approx(2.56)
    assert [y / x for x, y in slope.get_xydata()] == pytest.approx([1.0, 1.0])
    assert list(peak.get_ydata()) == pytest.approx([2.56, 2.56])
    unknown = copy.deepcopy(operator)
    unknown["gpu"]["compute_capability"] = "99.0"
    (slope,) = roofs(unknown)
    assert slope.get_xdata()[-1] > 4.0
