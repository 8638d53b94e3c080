"""`codetr batch` on the CPU: rows, resuming after kills, pictures with errors, and wrong arguments."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from codetr.batch.source import BYTES, PATH, Place, Source
from codetr.cli.app import main
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions, for_ray, ray_gpus
from codetr.errors import ArgumentError
from tests.detector.detect_runs import ROOT, error_line
from tests.detector.exported_metadata import write_onnx

ray = pytest.importorskip("ray", reason="Ray is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet")
find_objects = pytest.importorskip("codetr.batch.find_objects")
job = pytest.importorskip("codetr.batch.job")
FindObjects, _views = find_objects.FindObjects, find_objects._views


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[str]]:
    """Option with the address of a Ray head, with a token of its own. Jobs must leave the head running."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        code = (
            "import ray; head = ray.init('local', include_dashboard=False);"
            " print(head.address_info['gcs_address'], flush=True); input()"
        )
        head = subprocess.Popen(
            [sys.executable, "-c", code], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        address = next(line for line in map(str.strip, head.stdout) if re.fullmatch(r"[\d.]+:\d+", line))
        yield ["--address", address]
        assert head.poll() is None
        head.communicate("done\n", timeout=60)
        assert head.returncode == 0


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> list[str]:
    """Options of a network for onnxruntime that finds a dog as large as each picture."""
    return ["--onnx", str(write_onnx(tmp_path_factory.mktemp("network"))), "--device", "cpu"]


def write_pictures(folder: Path, count: int) -> None:
    """Neighbours have different sizes."""
    folder.mkdir(parents=True)
    for i in range(count):
        Image.new("RGB", (20 + i % 50, 30)).save(folder / f"{i:03}.png")


def command(*arguments: object) -> list[str]:
    run = "import sys; from codetr.cli.app import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", run, "batch", *map(str, arguments)]


def start(*arguments: object) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        command(*arguments), env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def batch(*arguments: object) -> str:
    """Runs `codetr batch`; returns what it prints."""
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def rows(out: Path) -> list[dict]:
    return sorted(parquet.read_table(out).to_pylist(), key=lambda row: row["path"])


def kill_after_parts(out: Path, count: int, *arguments: object) -> None:
    """Starts a run, and kills it as soon as so many parts are written."""
    process = start(*arguments)
    committed = out.with_name(f"{out.name}.checkpoint")
    end = time.monotonic() + 300
    while sum(not path.name.endswith(".pending.parquet") for path in committed.glob("*.parquet")) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_rows_of_a_folder(network, tmp_path):
    """A picture that is damaged, empty, or unfit for the network has a row with the reason."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    write_pictures(photos / "deep", 3)
    whole = photos / "whole.jpg"
    Image.effect_noise((90, 60), 90).save(whole)
    (photos / "truncated.jpg").write_bytes(whole.read_bytes()[:-500])
    (photos / "empty.webp").touch()
    (photos / "notes.txt").write_text("no picture")
    (photos / "table.parquet").touch()
    process = start(photos, out, *network, "--batch", 4)
    printed, notes = process.communicate(timeout=300)
    assert process.returncode == 0 and "6 pictures, 2 of them with an error" in printed
    assert f"codetr: note: Parquet files beside pictures are left out: 1 in {photos}\n" in notes
    found = {Path(row["path"]).name: row for row in rows(out)}
    assert sorted(found) == ["000.png", "001.png", "002.png", "empty.webp", "truncated.jpg", "whole.jpg"]
    row = found["whole.jpg"]
    assert row.pop("path") == str(whole)
    np.testing.assert_allclose(row.pop("boxes"), [[0, 0, 90, 60]], atol=1e-3)
    np.testing.assert_allclose(row.pop("scores"), [0.8])
    assert row == {"width": 90, "height": 60, "labels": [1], "names": ["dog"], "error": None}
    for name, reason in (("empty.webp", "the file is empty"), ("truncated.jpg", "truncated or damaged")):
        row = found[name]
        assert name in row["error"] and reason in row["error"]
        assert {value for key, value in row.items() if key not in ("path", "error")} == {None}


@pytest.mark.parametrize("kind", ["binary", "large_binary"])
def test_files_are_views_of_their_column(kind):
    """Also of a table that is a part of another one, and of nulls."""
    files = pa.array([b"first", None, b"", b"second", b"third"], kind)
    parts = files.slice(1, 3), files.slice(4), files.slice(0, 0), pa.nulls(2, kind), files
    column = pa.chunked_array([*parts])
    views = [*_views(column)]
    assert [bytes(view) for view in views] == [file.as_py() or b"" for file in column]
    assert np.shares_memory(np.frombuffer(views[3], np.uint8), np.frombuffer(files.buffers()[2], np.uint8))


def test_tables_take_turns():
    """A table begins once all pictures of the last one have begun: two do not end at the same time."""
    step = FindObjects.__new__(FindObjects)
    step._turn = threading.Lock()
    first, second = step._in_turn("ab"), step._in_turn("cd")
    assert next(first) == "a"
    begun = []
    other = threading.Thread(target=lambda: begun.extend(second))
    other.start()
    time.sleep(0.05)
    assert not begun and [*first] == ["b"]
    other.join(10)
    assert begun == ["c", "d"]


def test_tables_fill_runs_of_the_network(tmp_path):
    """No run of the network lacks pictures, though Ray itself would read 400 files in 200 tasks."""
    write_pictures(tmp_path / "photos", 400)
    folder = str(tmp_path)

    class Recorded(FindObjects):
        def __init__(self, *arguments: object) -> None:
            pass

        def __call__(self, table: pa.Table) -> pa.Table:
            Path(folder, f"rows_{secrets.token_hex(8)}").write_text(str(len(table)))
            empty = pa.Table.from_pylist([{}] * len(table), find_objects.COLUMNS)
            return empty.add_column(0, PATH, table[PATH].combine_chunks())

    places = Place.parse("SOURCE", f"{folder}/photos"), Place.parse("OUT", f"{folder}/out")
    with job.ray_session(None):
        source = Source.find(places[0], PATH, BYTES)
        job.run_job(source, places[1], NetworkOptions(), {}, batch=80, part_rows=1000, step=Recorded)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert [int(path.read_text()) for path in tmp_path.glob("rows_*")] == [80] * 5


def test_killed_twice_and_resumed(network, cluster, tmp_path):
    """The rows are those of one run, none twice. What the kills left is a part of them."""
    photos, once, out = tmp_path / "photos", tmp_path / "once", tmp_path / "out"
    write_pictures(photos, 639)
    (photos / "bad.png").write_bytes(b"no picture")
    options = [*network, "--batch", 2, "--part-rows", 100]
    assert "640 pictures, 1 of them with an error" in batch(photos, once, *options, *cluster)
    kill_after_parts(out, 1, photos, out, *options)
    kill_after_parts(out, 3, photos, out, *options, "--resume")
    assert 0 < sum(parquet.read_metadata(path).num_rows for path in out.glob("*.parquet")) < 640
    printed = batch(photos, out, *options, "--resume", *cluster)
    assert "640 pictures, 1 of them with an error" in printed and not printed.startswith("640 pictures in")
    found = [(Path(row["path"]).name, row["width"]) for row in rows(out)]
    assert found == [*((f"{i:03}.png", 20 + i % 50) for i in range(639)), ("bad.png", None)]
    assert rows(out) == rows(once)
    assert batch(photos, out, *options, "--resume", *cluster).startswith("0 pictures in")


@pytest.mark.gpu
def test_rows_of_an_engine(quick_build, tmp_path):
    """On each GPU of the machine, with files that both ways decode to the same pixels."""
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    export = ["--model", "co_dino_demo", "--height", 480, "--width", 640, "--batch", "1-4"]
    assert main(["export", *map(str, export), "--out", str(tmp_path / "engine"), *quick_build]) == 0
    engine = tmp_path / "engine" / "model.engine"
    photos = tmp_path / "photos"
    photos.mkdir()
    for scene in sorted((ROOT / "tests/scenes/val").glob("*.jpg"))[:6]:
        Image.open(scene).save(photos / f"{scene.stem}.png")
    batch(photos, tmp_path / "out", "--engine", engine, "--batch", 4, "--threshold", 0.5)
    found = rows(tmp_path / "out")
    with Detector(backend="tensorrt", engine=engine) as detector:
        expected = detector.detect([row["path"] for row in found], threshold=0.5, batch=4)
    assert len(found) == 6 and sum(map(len, expected)) > 6
    for row, detections in zip(found, expected, strict=True):
        assert row["names"] == detections.names()
        boxes = np.reshape(row["boxes"], (-1, 4))
        np.testing.assert_allclose(boxes, detections.boxes_xyxy_px, atol=0.1)


def test_rows_of_parquet(network, cluster, tmp_path):
    write_pictures(tmp_path / "photos", 2)
    files = [(tmp_path / "photos" / f"{i:03}.png").read_bytes() for i in range(2)]
    table = pa.table({"key": [7, 8, 9], "file": [*files, None], "more": ["a", "b", "c"]})
    parquet.write_table(table, tmp_path / "photos.parquet")
    columns = ["--id-column", "key", "--bytes-column", "file"]
    out = tmp_path / "out"
    printed = batch(tmp_path / "photos.parquet", out, *network, *columns, *cluster)
    assert "has 3 pictures, 1 of them with an error" in printed
    found = sorted(parquet.read_table(out).to_pylist(), key=lambda row: row["key"])
    assert [(row["key"], row["width"], row["error"]) for row in found] == [
        (7, 20, None),
        (8, 21, None),
        (9, None, "9: the file is empty"),
    ]
    columns[1] = "more"
    process = start(tmp_path / "photos.parquet", out, *network, *columns, *cluster, "--resume")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert f"codetr: error: --id-column: expected key, as in {out}.checkpoint, got more\n" in err


def test_parquet_without_rows(network, cluster, tmp_path):
    columns = {"path": pa.array([], pa.string()), "bytes": pa.array([], pa.binary())}
    parquet.write_table(pa.table(columns), tmp_path / "none.parquet")
    printed = batch(tmp_path / "none.parquet", tmp_path / "out", *network, *cluster)
    assert "has 0 pictures, 0 of them with an error" in printed


def test_network_that_fails(cluster, tmp_path):
    """An error of the actor on one line. No part is left."""
    write_pictures(tmp_path / "photos", 1)
    weights = tmp_path / "damaged.safetensors"
    weights.write_bytes(b"no weights")
    options = ["--model", "co_dino_r50", "--weights", weights, "--device", "cpu", *cluster]
    process = start(tmp_path / "photos", tmp_path / "out", *options)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    line = err.splitlines()[-1]
    assert line.startswith("codetr: error: ") and "damaged.safetensors" in line
    assert not list(tmp_path.glob("out/*.parquet"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["empty", "out"], "SOURCE: expected pictures"),
        (["missing", "out"], "SOURCE: missing: no such file or folder"),
        (["", "out"], "SOURCE: expected a path or URI, got ''"),
        (["nosuch://bucket", "out"], "SOURCE: expected a path or URI, got nosuch://bucket"),
        (["photos", "full"], "OUT: expected a new or empty folder, or --resume, got full"),
        (["photos", "text.parquet"], "OUT: expected a folder, got text.parquet (Cannot list directory"),
        (
            ["photos", "out", "--id-column", "key"],
            "--id-column: expected none for pictures, as in photos, got key",
        ),
        (["photos", "out", "--bytes-column", "file"], "--bytes-column: expected none for pictures"),
        (["photos", "out", "--part-rows", "0"], "--part-rows: expected at least 1, got 0"),
        (["photos", "out", "--batch", "0"], "--batch: expected at least 1, got 0"),
        (
            ["photos", "out", "--address", "127.0.0.1:9"],
            "--address: expected a Ray cluster, got 127.0.0.1:9 (",
        ),
        (["photos", "out", "--address", "nonsense"], "--address: expected a Ray cluster, got nonsense ("),
        (
            ["photos", "out", "--device", "cuda:1"],
            "--device: expected auto, cpu or cuda, Ray chooses the GPUs",
        ),
        (["text.parquet", "out"], "text.parquet cannot be read"),
        (["table.parquet", "out"], "table.parquet: expected a column path, got id, bytes"),
        (
            ["table.parquet", "out", "--id-column", "id"],
            "table.parquet: expected binary data in the column bytes, got string",
        ),
    ],
)
def test_wrong_arguments(network, arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_pictures(tmp_path / "photos", 1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "text.parquet").write_text("no table")
    parquet.write_table(pa.table({"id": [1], "bytes": ["text"]}), "table.parquet")
    before = sorted(tmp_path.rglob("*"))
    network = network[:2] if "--device" in arguments else network
    assert main(["batch", *network, *arguments]) == 2
    assert message in error_line(capsys)
    assert sorted(tmp_path.rglob("*")) == before


def test_paths_for_ray(tmp_path, monkeypatch):
    """A file is absolute, and the name of a model, which is no file, stays."""
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").touch()
    network = for_ray(NetworkOptions(model="co_dino_demo", onnx="model.onnx"))
    assert (network.model, network.onnx) == ("co_dino_demo", tmp_path / "model.onnx")


def test_gpus_of_ray(monkeypatch):
    resources = {"GPU": 2.0}
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    devices = ("auto", "cpu", "cuda")
    assert [ray_gpus(NetworkOptions(device=device)) for device in devices] == [2, 0, 2]
    resources.clear()
    assert ray_gpus(NetworkOptions()) == 0
    for option, value in (("device", "cuda"), ("engine", Path("model.engine"))):
        with pytest.raises(ArgumentError, match=f"{option}: expected a machine with a GPU, Ray found none"):
            ray_gpus(NetworkOptions(**{option: value}))
