"""`benchmarks.report`: tables, charts and rooflines of result files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import pictures, report, roofline
from benchmarks.problems import BY_NAME

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


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
    bandwidth = {"copy_bandwidth_bytes_per_second": 1e12}
    return {**content, "gpu": {**content["gpu"], **gpu}, **bandwidth, "results": rows}


@pytest.mark.parametrize(
    ("stem", "row", "charts"),
    [
        ("co_dino_r50_768x1152_h200", "| timing.median_ms | 48.5 |", 1),
        ("accuracy_co_dino_demo_640x640_h200", "| PyTorch fp32 | 0.", 1),
        ("training_h200", "| images_per_second | 15.03 | 4.687 |", 1),
        ("surgery_fp16_h200", "| rewritten.timing.median_ms | 3.486 |", 0),
        ("engines_co_dino_r50_fp16_768x1152_h200", "| plugins.FusedMultiScaleDeformableAttention | ", 1),
        ("sizes_co_dino_swin_l_h200", "| detections_in_its_precision.matched | ", 1),
        ("repeats_h200", "| different | 0 | 0 | 7 | 173 |", 0),
        pytest.param("msda_h200", "| fused_plugin |", 9, marks=pytest.mark.slow),
    ],
)
def test_tables_and_pictures(stem: str, row: str, charts: int, tmp_path: Path, capsys) -> None:
    """The result files of the repository are readable. Drawn twice, an SVG has the same bytes."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert report.main([str(RESULTS / f"{stem}.json"), "--pictures", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("NVIDIA H200, driver ") and "`python -m benchmarks." in printed.out
    assert row in printed.out
    drawn = [Path(line) for line in printed.err.splitlines()]
    assert [path.suffix for path in drawn] == [".svg", ".png"] * charts
    assert all(path.stat().st_size > 1000 for path in drawn)
    if stem.startswith("co_dino"):
        again, _ = report.draw(report.read(RESULTS / f"{stem}.json"), tmp_path / "again", stem)
        assert again.read_bytes() == drawn[0].read_bytes()


def test_failures_stand_in_tables_and_pictures(operator, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    text = report.markdown(operator)
    assert "| attention | 200 | 2.0e-04 |" in text and "| plugin | failed |" in text
    names = [file.name for file in report.draw(operator, tmp_path, "x")]
    assert names == [f"x_fp16_{kind}.{suffix}" for kind in ("near", "roofline") for suffix in ("svg", "png")]
    operator["results"] = operator["results"][1:]  # no forward pass, hence no roofline
    assert len(report.draw(operator, tmp_path, "x")) == 2
    lost = {"model": "lost", "failure": "no"}
    surgery = {**operator, "kind": "surgery", "results": [lost]}
    assert "| failure | no |" in report.markdown(surgery)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema_version": 99}', "schema version"),
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ('{"schema_version": 1, "kind": "msda"}', "not a whole result file (KeyError: "),
    ],
)
def test_other_files(text: str, words: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert report.main([str(path)]) == 1
    printed = capsys.readouterr()
    assert words in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_peak() -> None:
    """The data sheets of H200 and T4 say 66.9 and 8.1 TFLOP/s. Too little is known of other GPUs."""
    h200 = {"compute_capability": "9.0", "multiprocessors": 132, "clocks": "1980 MHz, 3201 MHz"}
    t4 = {"compute_capability": "7.5", "multiprocessors": 40, "clocks": "1590 MHz, 5001 MHz"}
    assert roofline.peak_flop_per_second(h200) == pytest.approx(66.9e12, rel=1e-3)
    assert roofline.peak_flop_per_second(t4) == pytest.approx(8.14e12, rel=1e-3)
    for unknown in ({"compute_capability": "99.0"}, {"clocks": "[N/A], [N/A]"}):
        assert roofline.peak_flop_per_second({**h200, **unknown}) is None


def test_roofline(operator) -> None:
    """A point for the forward pass alone, below a slope and a horizontal line. An unknown GPU has no peak.

    Counted by hand: 10 flop a sample and channel, 2 x 21 queries x 4 heads x (3 + 6 + 1) points x 32
    channels, so 537,600 flop over 134,400 bytes in 0.2 ms. The peak is 2.56 TFLOP/s.
    """
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert roofline.points(operator, "fp16") == [
        (operator["results"][0], 4.0, pytest.approx(2.688e9, rel=1e-9))
    ]
    assert roofline.points(operator, "fp32") == []

    def roofs() -> list:
        (axes,) = roofline.figure(operator, "fp16", pictures.COLOURS).axes
        return [line for line in axes.lines if line.get_linestyle() != "None"]

    slope, peak = roofs()
    assert slope.get_xdata()[-1] == peak.get_xdata()[0] == pytest.approx(2.56)
    assert [y / x for x, y in slope.get_xydata()] == pytest.approx([1.0, 1.0])
    assert list(peak.get_ydata()) == pytest.approx([2.56, 2.56])
    operator["gpu"]["compute_capability"] = "99.0"
    (slope,) = roofs()
    assert slope.get_xdata()[-1] > 4.0
