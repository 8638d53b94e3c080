"""`benchmarks.pipeline` with a network that always finds the same: its stages and its file."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from benchmarks import pipeline as benchmark
from codetr.detector import network_options
from tests.detector.detect_runs import FakeBackend


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(network_options, "TorchBackend", FakeBackend)
    benchmark.make_pictures(tmp_path / "pictures", 72, 128, count=3)
    return tmp_path / "pictures"


def test_stages(pictures, tmp_path, capsys):
    out = tmp_path / "out.json"
    options = ["--count", "10", "--batch", "1", "4", "--contexts", "1", "--decoder", "pillow", "--draw"]
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
    assert all(0 <= row["waits_for_pictures"] <= 1 for row in content["results"][-2:])
    assert (content["pictures"], content["distinct"]) == (10, 3)
    assert "pipeline, batch 4: " in capsys.readouterr().out


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
