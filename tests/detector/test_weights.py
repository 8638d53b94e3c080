"""Published weights: known names, downloads and their cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

import codetr
from codetr import weights
from tests.golden_models import GOLDEN


def test_known():
    assert set(weights.KNOWN_WEIGHTS) == {"co_dino_demo", "co_dino_swin_l", "co_dino_r50"}
    assert all(codetr.load_config(name).name == name for name in weights.KNOWN_WEIGHTS)
    assert weights.fetch("co_dino_demo").stat().st_size <= 15_000_000


def test_url_is_downloaded_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CODETR_CACHE", str(tmp_path / "cache"))
    model = codetr.CoDino(codetr.load_config(GOLDEN / "codino_resnet_tiny.json"))
    expected = codetr.seeded_state_dict(model)
    path = tmp_path / "model.pth"
    torch.save(expected, path)
    path = path.rename(tmp_path / f"model-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pth")
    url = path.as_uri()
    for _ in range(2):
        codetr.load_checkpoint(model, url)
        assert torch.equal(model.neck.convs[0].conv.weight, expected["neck.convs.0.conv.weight"])
        path.unlink(missing_ok=True)
    assert [file.name for file in (tmp_path / "cache").iterdir()] == [path.name]
    assert capsys.readouterr().err == f"downloaded {tmp_path / 'cache' / path.name}, 3 MiB\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model-00000000.pth", 'expected "00000000", got "2d711642'),
        ("gone.pth", r"gone\.pth: download to .* failed \("),
    ],
)
def test_failed_downloads_leave_nothing(tmp_path, monkeypatch, capsys, name, message):
    monkeypatch.setenv("CODETR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model-00000000.pth").write_bytes(b"x")
    with pytest.raises(ValueError, match=message):
        weights.fetch((tmp_path / name).as_uri())
    assert capsys.readouterr().err == "" and not (tmp_path / "cache").exists()


def test_damaged_file_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODETR_CACHE", str(tmp_path))
    name = Path(weights.KNOWN_WEIGHTS["co_dino_r50"]).name
    (tmp_path / name).write_bytes(b"PK\x03\x04 and no more")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "co_dino_r50").mkdir()  # a folder with the name of known weights does not replace them
    model = codetr.CoDino(codetr.load_config(GOLDEN / "codino_resnet_tiny.json"))
    with pytest.raises(ValueError, match=rf"{name}: cut off, .*; delete it to download it again$"):
        codetr.load_checkpoint(model, "co_dino_r50")
