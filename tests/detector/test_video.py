"""`codetr detect` for videos: the annotated video, JSON lines, crops, and streams."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from codetr.cli import detect_video
from codetr.cli.detect_video import output_stem
from codetr.detector import video
from codetr.detector.video import VideoReader, VideoWriter, is_video
from tests.detector.detect_runs import CUP, SPOON, detect, error_line, run

av = pytest.importorskip("av", reason="PyAV is not installed")

FRAMES = 12
RATE = 10


def write_clip(path: Path, size: tuple[int, int] = (64, 96), frames: int = FRAMES) -> Path:
    """Writes gray frames that become brighter, 20 levels a frame."""
    writer = VideoWriter(path, Fraction(RATE))
    for index in range(frames):
        writer.write(np.full((*size, 3), 20 * index % 256, dtype=np.uint8), index / RATE)
    writer.close()
    return path


@pytest.fixture
def clip(tmp_path) -> Path:
    return write_clip(tmp_path / "clip.mp4")


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def frames_of(path: Path) -> list[tuple[float, np.ndarray]]:
    with av.open(str(path)) as container:
        return [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


@pytest.mark.parametrize("batch", [1, 5])
def test_annotated_video_and_json_lines(fake, clip, tmp_path, capsys, batch):
    out = tmp_path / "new/out"
    assert run(clip, "--out", out, "--batch", batch) == 0
    assert sorted(path.name for path in out.iterdir()) == ["clip.jsonl", "clip.mp4"]
    rows, frames = rows_of(out / "clip.jsonl"), frames_of(out / "clip.mp4")
    assert [row["frame"] for row in rows] == list(range(FRAMES))
    np.testing.assert_allclose([row["time_s"] for row in rows], np.arange(FRAMES) / RATE, atol=1e-3)
    np.testing.assert_allclose([time for time, _ in frames], np.arange(FRAMES) / RATE, atol=1e-3)
    for index, (row, (_, pixels)) in enumerate(zip(rows, frames, strict=True)):
        cup, spoon = row["detections"]
        assert (cup["category_name"], spoon["category_name"], cup["score"]) == ("cup", "spoon", 0.9)
        np.testing.assert_allclose(cup["bbox"], [0, 0, 48, 64], atol=0.01)
        assert pixels.shape == (64, 96, 3)
        corner = pixels[54:62, 80:94].astype(float)  # outside of all boxes and labels
        assert np.abs(corner - 20 * index).mean() < 6, index
        assert np.ptp(pixels[:, :50].astype(float)) > 60  # the boxes
    captured = capsys.readouterr()
    assert "12 frames, 24 detections: 12 cup, 12 spoon" in captured.out and captured.err == ""
    assert f"wrote {out / 'clip.mp4'} and {out / 'clip.jsonl'}" in captured.out


def test_every_and_no_pictures(fake, clip, tmp_path):
    assert run(clip, "--out", tmp_path / "out", "--every", 5) == 0
    rows, frames = rows_of(tmp_path / "out/clip.jsonl"), frames_of(tmp_path / "out/clip.mp4")
    assert [row["frame"] for row in rows] == [0, 5, 10]
    np.testing.assert_allclose([time for time, _ in frames], [0, 0.5, 1.0], atol=1e-3)
    assert run(clip, "--out", tmp_path / "lines", "--no-pictures") == 0
    assert [path.name for path in (tmp_path / "lines").iterdir()] == ["clip.jsonl"]


def test_classes_at_commas(fake, clip, photos, tmp_path):
    def names(*arguments: object) -> set[str]:
        assert run(clip, "--out", tmp_path / "out", *arguments) == 0
        rows = rows_of(tmp_path / "out/clip.jsonl")
        return {found["category_name"] for row in rows for found in row["detections"]}

    assert names("--classes", "spoon,person") == {"spoon"}
    assert names("--classes", f"{CUP},{SPOON}") == names("--classes", "cup", "spoon") == {"cup", "spoon"}
    assert run(clip, "--classes", "cup,cupp", "--out", tmp_path / "none") == 2


def test_crops(fake, clip, photos, tmp_path):
    """Of a video by frame, of pictures by file, in a folder for each class."""
    assert run(clip, "--out", tmp_path / "out", "--every", 6, "--save-crops") == 0
    crops = sorted((tmp_path / "out/crops/clip").rglob("*.jpg"))
    names = [path.relative_to(tmp_path / "out/crops/clip").as_posix() for path in crops]
    assert names == ["cup/000000_1.jpg", "cup/000006_1.jpg", "spoon/000000_2.jpg", "spoon/000006_2.jpg"]
    with Image.open(crops[1]) as crop:
        assert crop.size == (48, 64) and np.abs(np.asarray(crop).astype(float) - 120).mean() < 6
    assert run(photos, "--out", tmp_path / "pictures", "--save-crops", "--no-pictures") == 0
    written = sorted(path.name for path in (tmp_path / "pictures").rglob("*.jpg"))
    assert written == ["a_1.jpg", "a_2.jpg", "b_1.jpg", "b_2.jpg"]
    with Image.open(tmp_path / "pictures/crops/cup/a_1.jpg") as crop:
        assert crop.size == (45, 60)


def test_odd_sizes(fake, tmp_path):
    """The encoder takes even sizes: the last row and column are scaled away."""
    clip = write_clip(tmp_path / "odd.mp4", (65, 97))
    assert run(clip, "--out", tmp_path / "out") == 0
    assert frames_of(tmp_path / "out/odd.mp4")[0][1].shape == (64, 96, 3)


def test_stream_drops_what_the_network_cannot_take(fake, tmp_path, capsys):
    clip = write_clip(tmp_path / "many.mp4", frames=300)
    assert run(f"file://{clip}", "--out", tmp_path / "out") == 0
    rows = rows_of(tmp_path / "out/many.jsonl")
    indices = [row["frame"] for row in rows]
    assert indices == sorted(set(indices)) and 0 < len(indices) < 300
    assert f"note: {300 - len(indices)} frames came too fast and were dropped" in capsys.readouterr().err


def test_lines_of_a_stream_appear_at_once(fake, clip, tmp_path, monkeypatch):
    lines = tmp_path / "out/clip.jsonl"
    seen = []

    def draw(done, times_ms):
        seen.append(len(rows_of(lines)))
        return done.image

    monkeypatch.setattr("codetr.cli.detect_video._draw", draw)
    assert run(f"file://{clip}", "--out", tmp_path / "out") == 0
    assert len(seen) == len(rows_of(lines)) and 0 < seen[0] <= seen[-1]


def test_interrupted_stream_keeps_its_frames(fake, clip, tmp_path, monkeypatch):
    def add(self, done, workers):
        usual(self, done, workers)
        if done.item.index >= 1:
            raise KeyboardInterrupt

    usual = detect_video._Run.add
    monkeypatch.setattr(detect_video._Run, "add", add)
    assert run(f"file://{clip}", "--out", tmp_path / "out") == 0
    rows, frames = rows_of(tmp_path / "out/clip.jsonl"), frames_of(tmp_path / "out/clip.mp4")
    assert 1 <= len(rows) == len(frames) < FRAMES
    assert run(clip, "--out", tmp_path / "file") == 130
    assert not (tmp_path / "file").exists()


def test_stream_that_breaks_off_keeps_its_frames(fake, tmp_path, capsys, monkeypatch):
    clip = write_clip(tmp_path / "many.mp4")

    def upright(frame):
        if frame.pts >= 3 * 9000:
            raise OSError("Connection reset by peer")
        return frame.to_ndarray(format="rgb24")

    monkeypatch.setattr(video, "_upright", upright)
    assert run(f"file://{clip}", "--out", tmp_path / "out") == 0
    assert 0 < len(rows_of(tmp_path / "out/many.jsonl")) <= 3
    assert "breaks off (Connection reset by peer)" in capsys.readouterr().err
    assert run(clip, "--out", tmp_path / "file") == 2  # a file should be whole
    assert not (tmp_path / "file").exists()


def test_file_that_is_cut(fake, tmp_path, capsys):
    """The command keeps the frames before the cut, and warns."""
    copy = tmp_path / "clip.mkv"
    rng = np.random.default_rng(0)
    with av.open(str(copy), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE, options={"g": "5"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(60):
            noise = rng.integers(0, 256, (64, 96, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        container.mux(stream.encode(None))
    assert run(copy, "--out", tmp_path / "whole", "--no-pictures") == 0
    assert capsys.readouterr().err == ""
    content = copy.read_bytes()
    copy.write_bytes(content[: len(content) // 2])
    assert run(copy, "--out", tmp_path / "cut", "--no-pictures") == 0
    frames = len(rows_of(tmp_path / "cut/clip.jsonl"))
    warning = f"{copy}: the file states 6.0 s, and ends after {frames / RATE:.1f} s"
    assert 0 < frames < 50 and capsys.readouterr().err == f"codetr: warning: {warning}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text.mp4"], "text.mp4: the video cannot be opened (Invalid data found when processing input)"),
        (["cut.mp4"], "cut.mp4: the video cannot be opened"),
        (["absent.mp4"], "absent.mp4: the video cannot be opened (No such file or directory)"),
        (["98765"], "/dev/video98765: the video cannot be opened (No such file or directory)"),
        (["rtsp://127.0.0.1:9/live"], "rtsp://127.0.0.1:9/live: the video cannot be opened"),
        (["clip.mp4", "a.png"], "IMAGE: expected one video, or pictures, got clip.mp4 and others"),
        (["clip.mp4", "--every", "0"], "--every: expected at least 1, got 0"),
        (["a.png", "--every", "2"], "--every: expected a video, got a.png"),
        (["clip.mp4", "--out", "a.png"], "--out: expected a folder to write, got a.png (it is a file)"),
        (["clip.mp4", "--out", "."], "--out: expected another folder, clip.mp4 would be replaced"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors(fake, clip, tmp_path, monkeypatch, capsys, arguments, message):
    """One line, status 2, and no file."""
    monkeypatch.chdir(tmp_path)
    Path("text.mp4").write_text("text")
    Path("cut.mp4").write_bytes(clip.read_bytes()[:300])
    Image.new("RGB", (40, 30)).save("a.png")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    out = [] if "--out" in arguments else ["--out", "out"]
    assert detect(*arguments, *out) == 2
    assert message in error_line(capsys)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_note_of_frames_that_shrank(fake, clip, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(detect_video.Detector, "shrunk_note", "12 images shrank")
    assert run(clip, "--out", tmp_path / "out") == 0
    assert capsys.readouterr().err == "codetr: note: 12 images shrank\n"


def test_failure_of_the_network_leaves_no_file(fake, clip, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tests.detector.detect_runs.FakeBackend.__call__", lambda *_: 1 / 0)
    assert run(clip, "--out", tmp_path / "out") == 1
    assert "ZeroDivisionError" in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_reader_that_is_closed_early(clip):
    """The thread ends, though its frames wait."""
    reader = VideoReader(str(clip))
    frame = next(iter(reader))
    assert (frame.index, frame.time_s, reader.frames, reader.rate) == (0, 0, FRAMES, RATE)
    reader.close()
    assert not reader._thread.is_alive()


def test_rotation():
    """A phone's frame, which players turn by 90 degrees counter-clockwise."""
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    frame = SimpleNamespace(rotation=90, to_ndarray=lambda format: pixels)
    assert (video._upright(frame) == np.rot90(pixels)).all()
    frame.rotation = -180
    assert (video._upright(frame) == pixels[::-1, ::-1]).all()


@pytest.mark.parametrize(
    ("source", "expected", "stem"),
    [
        ("clip.MP4", True, "clip"),
        ("a/b.c/street view.mov", True, "street_view"),
        ("clip.wmv", True, "clip"),
        ("clip.flv", True, "clip"),
        ("clip.3gp", True, "clip"),
        ("00001.MTS", True, "00001"),
        ("rtsp://user:secret@host:554/live/main.sdp?x=1", True, "main"),
        ("rtsp://host", True, "stream"),
        ("0", True, "camera_0"),
        ("photo.jpg", False, "photo"),
        ("photos", False, "photos"),
    ],
)
def test_sources(source, expected, stem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_video(source) is expected and output_stem(source) == stem
    Path("0").mkdir()
    assert not is_video("0")  # a folder of pictures
