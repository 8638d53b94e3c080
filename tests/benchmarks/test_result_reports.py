"""`benchmarks.report`: tables, charts and rooflines of result files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report, roofline

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("stem", "row", "charts"),
    [
        ("co_dino_r50_768x1152_h100", "| timing.median_ms | 49.98 |", 1),
        ("accuracy_co_dino_demo_640x640_h100", "| metrics.ap | 0.8778 | 0.8777 |", 1),
        ("training_h200", "| images_per_second | 15.03 | 4.687 |", 1),
        ("surgery_fp16_h200", "| rewritten.timing.median_ms | 3.486 |", 0),
        ("engines_co_dino_r50_fp16_768x1152_h200", "| plugins.FusedMultiScaleDeformableAttention | ", 1),
        ("sizes_co_dino_swin_l_h200", "| detections_in_its_precision.matched | ", 1),
        ("repeats_h100", "| different | 0 | 0 | 0 |", 0),
        pytest.param("msda_h200", "| fused_plugin |", 9, marks=pytest.mark.slow),
    ],
)
def test_tables_and_pictures(stem: str, row: str, charts: int, tmp_path: Path, capsys) -> None:
    """The result files of the repository are readable."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert report.main([str(RESULTS / f"{stem}.json"), "--pictures", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("NVIDIA H") and "`python -m benchmarks." in printed.out
    assert row in printed.out
    drawn = [Path(line) for line in printed.err.splitlines()]
    assert [path.suffix for path in drawn] == [".png"] * charts
    assert all(path.stat().st_size > 1000 for path in drawn)


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


def test_roofline() -> None:
    """A slope and a horizontal line, which an unknown GPU lacks. A failure is no point.

    Counted by hand: 10 flop a sample and channel, 73,656 queries x 8 heads x (5 x 4) points x 32 channels.
    """
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    content = report.read(RESULTS / "msda_h200.json")
    name = "codino_encoder_768x1152"
    row = next(row for row in content["results"] if row["problem"]["name"] == name and row["dtype"] == "fp16")
    content |= {"results": [row, {**row, "method": "plugin", "failure": "no engine"}]}
    speed = 3.7711872e9 / (row["timing"]["median_ms"] * 1e-3)
    assert roofline.points(content, "fp16") == [(row, 3.7711872e9 / row["bytes_moved"], pytest.approx(speed))]
    assert "| plugin | failed |" in report.markdown(content)
    for capability, roofs in (("9.0", 2), ("99.0", 1)):
        content["gpu"]["compute_capability"] = capability
        (axes,) = roofline.figure(content, "fp16").axes
        assert sum(line.get_linestyle() != "None" for line in axes.lines) == roofs
