"""Reads and writes videos by PyAV (FFmpeg): files, network streams and cameras. Imports no Torch."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from codetr.errors import UsageError, one_line

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".mov", ".mkv", ".avi", ".webm", ".m4v", ".ts", ".mpg", ".mpeg", ".mts", ".wmv", ".flv", ".3gp"}
)
_USUAL_RATE = Fraction(25)  # frames a second of a source that does not tell
_CLOCK = Fraction(1, 90000)  # time base of the output, seconds
_AHEAD = 4  # decoded frames that wait for the network
_TIMEOUT_S = 20.0  # of a network stream
_CUT_S = 1.0  # that a file lacks of its stated duration if it is cut; durations are not exact


class Frame(NamedTuple):
    """A picture of a video."""

    index: int  # counted from 0, also over frames that were left out
    time_s: float  # since the first frame
    image: np.ndarray  # uint8 [H, W, 3], RGB, upright


def is_stream(source: str) -> bool:
    """Whether a source is a URL, such as rtsp://host/path, or the number of a camera."""
    return re.match(r"[a-z][a-z0-9+.-]*://", source) is not None or re.fullmatch(r"\d+", source) is not None


def is_video(source: str) -> bool:
    """Whether a source is a stream, or has the suffix of a video file."""
    path = Path(source)
    if path.exists():
        return path.is_file() and path.suffix.lower() in VIDEO_SUFFIXES
    return is_stream(source) or path.suffix.lower() in VIDEO_SUFFIXES


class VideoReader:
    """Decodes a video in a thread of its own.

    A reader of a stream drops a waiting frame when the next one comes. A reader of a file waits.

    Args:
        source: path of a file, a URL, or the number of a camera (/dev/video0 is 0).
        every: yield every such frame, beginning with the first.

    Attributes:
        live: whether the source is a stream.
        rate: frames a second of the source.
        frames: number of frames, if the file tells.
        dropped: frames of a stream that were dropped.
        damaged: packets that could not be decoded.
        broken: why the video ended early, or None.

    Raises:
        ImportError: PyAV is not installed.
        UsageError: the source cannot be opened, or has no video.
    """

    def __init__(self, source: str, every: int = 1) -> None:
        av = _import_av()
        self.source, self.live = source, is_stream(source) and not Path(source).exists()
        camera = self.live and source.isdecimal()
        path, form = (f"/dev/video{source}", "v4l2") if camera else (source, None)
        options = {"rtsp_transport": "tcp"} if source.startswith("rtsp") else {}
        try:
            self._container = av.open(path, format=form, options=options, timeout=_TIMEOUT_S)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise UsageError(f"{path}: the video cannot be opened ({_reason(error)})") from error
        if not self._container.streams.video:
            self._container.close()
            raise UsageError(f"{source}: the file has no video")
        self._stream = self._container.streams.video[0]
        self._stream.thread_type = "AUTO"
        self._every = every
        self.rate = self._stream.average_rate or self._stream.guessed_rate or _USUAL_RATE
        self.frames = None if self.live else self._stream.frames or None
        self.dropped = self.damaged = 0
        self.broken: str | None = None
        self._decoded: queue.Queue[Frame | Exception | None] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._decode, name="video", daemon=True)

    def __iter__(self) -> Iterator[Frame]:
        """Yields the frames.

        Raises:
            UsageError: no frame can be decoded, or a file breaks off.
        """
        self._thread.start()
        while (frame := self._decoded.get()) is not None:
            if isinstance(frame, Exception):
                raise frame
            yield frame

    def _decode(self) -> None:
        """Decodes until the end of the video, an error or `close`."""
        av = _import_av()
        last: Exception | None = None
        index, first, end = -1, None, 0.0
        try:
            for packet in self._container.demux():  # sound too, which may last longer than the pictures
                if (time := packet.dts if packet.pts is None else packet.pts) is not None:
                    end = max(end, float((time + (packet.duration or 0)) * packet.time_base))
                if packet.stream != self._stream:
                    continue
                try:
                    frames = packet.decode()
                except av.error.InvalidDataError:
                    self.damaged += 1
                    continue
                for frame in frames:
                    index += 1
                    time_s = frame.time if frame.time is not None else index / float(self.rate)
                    first = time_s if first is None else first
                    if index % self._every == 0:
                        self._put(Frame(index, time_s - first, _upright(frame)))
                if self._closed.is_set():
                    return
            if index < 0:
                last = UsageError(f"{self.source}: the video has no frame that can be decoded")
            end -= (self._container.start_time or 0) / 1e6  # microseconds, as the duration
            stated = (self._container.duration or 0) / 1e6
            if not self.live and stated - end > _CUT_S:  # FFmpeg reports no error for a cut file
                self.broken = f"{self.source}: the file states {stated:.1f} s, and ends after {end:.1f} s"
        except Exception as error:
            broken = f"{self.source}: the video breaks off ({_reason(error)})"
            if self.live and index >= 0:
                self.broken = broken
            else:
                last = UsageError(broken)
        self._put(last, drop=False)
        if last is not None:
            self._put(None, drop=False)

    def _put(self, item: Frame | Exception | None, drop: bool = True) -> None:
        while not self._closed.is_set():
            try:
                return self._decoded.put(item, timeout=0 if self.live and drop else 0.2)
            except queue.Full:
                if self.live and drop:
                    try:
                        self._decoded.get_nowait()
                        self.dropped += 1
                    except queue.Empty:
                        continue

    def close(self) -> None:
        """Ends the thread, and closes the source."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT_S)
        self._container.close()

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class VideoWriter:
    """Writes an MP4 file, H.264 where FFmpeg has its encoder.

    Args:
        path: the file.
        rate: frames a second, for players that ask. Each frame has a time of its own.

    Raises:
        ImportError: PyAV is not installed.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, rate: Fraction) -> None:
        self._av = _import_av()
        self._container = self._av.open(str(path), "w", format="mp4")
        self._rate, self._stream, self._last = rate, None, -1

    def write(self, pixels: np.ndarray, time_s: float) -> None:
        """Encodes a frame, uint8 [H, W, 3], RGB. One of another size is scaled to the first frame's."""
        if self._stream is None:
            self._stream = self._open(*pixels.shape[:2])
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        frame = frame.reformat(self._stream.width, self._stream.height, "yuv420p")
        self._last = max(self._last + 1, round(time_s / _CLOCK))  # times ascend
        frame.pts, frame.time_base = self._last, _CLOCK
        self._container.mux(self._stream.encode(frame))

    def _open(self, height: int, width: int) -> object:
        codec = "libx264" if "libx264" in self._av.codecs_available else "mpeg4"
        stream = self._container.add_stream(codec, rate=Fraction(self._rate).limit_denominator(1001))
        # Chroma is stored for two by two pixels.
        stream.width, stream.height = max(2, width // 2 * 2), max(2, height // 2 * 2)
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = _CLOCK
        if codec == "libx264":
            stream.options = {"crf": "20", "preset": "veryfast"}
        return stream

    def close(self) -> None:
        """Ends the file."""
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))
        self._container.close()


def _upright(frame: object) -> np.ndarray:
    """Returns the pixels of a frame as a player shows them: phones store the rotation beside them."""
    pixels = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) % 4  # counter-clockwise
    return np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or one_line(error)  # without FFmpeg's number and path


def _import_av() -> ModuleType:
    import av

    return av
