"""`benchmarks.pipeline` with a network that always finds the same: its stages and its file."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from benchmarks import pipeline as benchmark
from codetr.detector import network_options
from codetr.detector.pipeline import Span
from tests.detector.detect_runs import FakeBackend


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(network_options, "TorchBackend", FakeBackend)
    benchmark.make_pictures(tmp_path / "pictures", 72, 128, count=3)
    return tmp_path / "pictures"


def test_stages(pictures, tmp_path, capsys):
    out, timeline = tmp_path / "out.json", tmp_path / "timeline.json"
    options = [
        "--timeline",
        str(timeline),
        "--count",
        "10",
        "--batch",
        "1",
        "4",
        "--contexts",
        "1",
        "--decoder",
        "pillow",
        "--draw",
    ]
    assert benchmark.main(["--pictures", str(pictures), "--out", str(out), *options]) == 0
    content = json.loads(out.read_text())
    stages = [(row["stage"], row["batch"]) for row in content["results"]]
    both = ("network", "decode", "detect")
    assert stages == [
        *((stage, batch) for stage in both for batch in (1, 4)),
        ("draw", 1),
        ("pipeline", 1),
        ("pipeline", 4),
    ]
    assert all(row["images_per_second"] > 0 for row in content["results"])
    assert all(
        0 <= row[name] <= 1 for row in content["results"][-2:] for name in ("waits_for_pictures", "idle")
    )
    events = json.loads(timeline.read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["wait for pictures", "detect"] * 3  # 10 pictures by 4
    assert all(event["dur"] >= 0 for event in events)
    assert (content["pictures"], content["distinct"]) == (10, 3)
    assert "pipeline, batch 4: " in capsys.readouterr().out


def test_idle_share():
    """Two threads that overlap, a gap, and a wait, which is not work."""
    spans = [Span("a", 0.0, 1.0, 4.0), Span("b", 0.0, 3.0, 5.0), Span("a", 4.0, 8.0, 9.0)]
    assert benchmark.idle_share(spans, 0.0, 10.0) == pytest.approx(0.5)
    assert benchmark.idle_share([], 0.0, 10.0) == 1


def test_made_pictures_differ(pictures):
    files = sorted(pictures.iterdir())
    assert len({path.read_bytes() for path in files}) == len(files) == 3
    for path in files:
        with Image.open(path) as picture:
            assert picture.size == (128, 72)


def test_wrong_decoder(pictures, tmp_path, capsys):
    options = ["--pictures", str(pictures), "--count", "2", "--decoder", "nvimagecodec"]
    assert benchmark.main([*options, "--out", str(tmp_path / "out.json")]) == 2
    assert "--decoder: expected best or pillow without --engine" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
