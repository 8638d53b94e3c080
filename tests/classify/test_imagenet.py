"""`codetr dataset imagenet`: the flat validation set becomes class folders, whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from codetr.classify.class_folders import load_class_folders
from codetr.cli import main
from tests.classify.class_pictures import write_classes

IDS = ("n02119789", "n01440764", "n02100735")  # the kit's numbers do not follow this order
TRUTH = (2, 1, 3, 1, 2)


@pytest.fixture
def flat(tmp_path, monkeypatch):
    """Five pictures and the files of the development kit."""
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "all", len(TRUTH), names=("red",))
    (tmp_path / "flat").mkdir()
    for number, path in enumerate(sorted((tmp_path / "all" / "red").iterdir()), 1):
        path.rename(tmp_path / "flat" / f"ILSVRC2012_val_{number:08d}.JPEG")
    (tmp_path / "truth.txt").write_text("".join(f"{number}\n" for number in TRUTH))
    (tmp_path / "ids.txt").write_text("\n".join(IDS[number - 1] for number in TRUTH))
    (tmp_path / "synsets.txt").write_text("".join(f"{n} {wnid} a name\n" for n, wnid in enumerate(IDS, 1)))
    (tmp_path / "map.txt").write_text("".join(f"{wnid} {n} a_name\n" for n, wnid in enumerate(IDS, 1)))
    rows = np.zeros(3, [("ILSVRC2012_ID", object), ("WNID", object)])
    rows["ILSVRC2012_ID"], rows["WNID"] = (1, 2, 3), IDS
    pytest.importorskip("scipy.io").savemat(tmp_path / "meta.mat", {"synsets": rows})
    return tmp_path


@pytest.mark.parametrize("synsets", ["synsets.txt", "map.txt", "meta.mat", None])
@pytest.mark.parametrize("copy", [False, True])
def test_arranges(flat, synsets, copy, capsys):
    options = ["--ground-truth", "truth.txt" if synsets else "ids.txt"]
    options += ["--synsets", synsets] if synsets else []
    assert main(["dataset", "imagenet", "flat", "out/val", *options, *(["--copy"] if copy else [])]) == 0
    assert "5 pictures of 3 classes to out/val" in capsys.readouterr().out
    dataset = load_class_folders(flat / "out" / "val")
    assert dataset.class_names == tuple(sorted(IDS))
    found = {picture.path.name: picture.path for picture in dataset.pictures}
    assert len(found) == 5
    for number, label in enumerate(TRUTH, 1):
        name = f"ILSVRC2012_val_{number:08d}.JPEG"
        assert found[name].parent.name == IDS[label - 1]
        assert found[name].samefile(flat / "flat" / name) != copy


@pytest.mark.parametrize(
    ("name", "content", "truth", "words"),
    [
        ("truth.txt", "1\n2\n", "truth.txt", "a line for each of the 5 pictures in flat, got 2 lines in"),
        ("truth.txt", "1\n9\n1\n1\n1\n", "truth.txt", "3 classes in synsets.txt, got 9 in line 2"),
        ("truth.txt", "1\ncat\n", "truth.txt", "got 'cat' in line 2 of truth.txt"),
        ("truth.txt", "", "truth.txt", "expected a line for each picture or class"),
        ("synsets.txt", "n01440764 tench\n", "truth.txt", "got 'n01440764 tench' in line 1 of synsets.txt"),
        ("synsets.txt", "1 n01440764\n1 n02119789\n", "truth.txt", "each number once, got 1 twice"),
        ("flat/ILSVRC2012_val_00000009.JPEG", "", "ids.txt", "6 pictures, but no ILSVRC2012_val_00000006"),
        ("out/val/old.txt", "", "ids.txt", "OUT: expected a new or empty folder, got out/val"),
    ],
)
def test_errors_in_one_line(flat, capsys, name, content, truth, words):
    (flat / name).parent.mkdir(parents=True, exist_ok=True)
    (flat / name).write_text(content)
    before = sorted(flat.rglob("*"))
    options = ["--ground-truth", truth, "--synsets", "synsets.txt"]
    assert main(["dataset", "imagenet", "flat", "out/val", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert sorted(flat.rglob("*")) == before


def test_numbers_need_their_table(flat, capsys):
    for options, words in (
        ([], "--synsets: expected the table of the numbers in truth.txt, got none"),
        (["--synsets", "flat/ILSVRC2012_val_00000001.JPEG"], "--synsets: expected a text file"),
    ):
        assert main(["dataset", "imagenet", "flat", "out", "--ground-truth", "truth.txt", *options]) == 2
        assert words in capsys.readouterr().err


def test_no_hard_links(flat, capsys, monkeypatch):
    def refuse(*paths):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    assert main(["dataset", "imagenet", "flat", "out", "--ground-truth", "ids.txt"]) == 2
    assert "(Invalid cross-device link); use --copy" in capsys.readouterr().err
    assert not (flat / "out").exists()
