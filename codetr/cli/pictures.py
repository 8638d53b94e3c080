"""Which pictures a command reads (files, folders, globs) and where it writes (the output folder)."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from codetr.cli.command import UsageError
from codetr.detector.preprocess import IMAGE_SUFFIXES
from trt_plugin.atomic_files import atomic_write, new_folder

_JPEG_QUALITY = 92


@dataclass(frozen=True)
class Picture:
    """One input.

    Attributes:
        path: where it is read.
        name: its path below the folder that all inputs share, with "/": the file_name in detections.json.
        output_name: file name of the annotated picture.
    """

    path: Path
    name: str
    output_name: str


def find_pictures(arguments: Sequence[str]) -> list[Picture]:
    """Expands files, folders and globs ("**" reaches subfolders), in order, each file once.

    Of a folder or glob, files with a picture's suffix are taken; a file named itself, whatever its suffix.

    Raises:
        UsageError: no such file, a folder without pictures, a glob that matches none.
    """
    paths: dict[Path, Path] = {}
    for argument in arguments:
        for path in _expand(argument):
            paths.setdefault(path.resolve(), path)
    absolute = [Path(os.path.abspath(path)) for path in paths.values()]
    shared = Path(os.path.commonpath([path.parent for path in absolute])) if _one_drive(absolute) else None
    taken: set[str] = set()
    pictures = []
    for path, full in zip(paths.values(), absolute, strict=True):
        name = _printable((full.relative_to(shared) if shared else full).as_posix())
        pictures.append(Picture(path, name, _free_name(path.stem, taken)))
    return pictures


def _expand(argument: str) -> list[Path]:
    path = Path(argument)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [entry for entry in sorted(path.iterdir()) if _is_picture(entry)]
        missing = f"{argument}: the folder holds no picture (looked for {', '.join(sorted(IMAGE_SUFFIXES))})"
    elif glob.has_magic(argument):
        found = [
            Path(match) for match in sorted(glob.glob(argument, recursive=True)) if _is_picture(Path(match))
        ]
        missing = f"{argument}: no picture matches"
    else:
        raise UsageError(f"{argument}: {'not a file' if path.exists() else 'no such file'}")
    if not found:
        raise UsageError(missing)
    return found


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()


def _one_drive(paths: Sequence[Path]) -> bool:
    return len({path.drive for path in paths}) == 1


def _printable(path: str) -> str:
    """Replaces what is no UTF-8 in a file's name, which neither a terminal nor JSON takes."""
    return os.fsencode(path).decode("utf-8", "replace")


def _free_name(stem: str, taken: set[str]) -> str:
    """Returns <stem>.jpg, or <stem>_2.jpg, … where that is taken (some file systems do not tell A from a)."""
    number = 1
    while True:
        name = f"{stem}.jpg" if number == 1 else f"{stem}_{number}.jpg"
        if name.lower() not in taken:
            taken.add(name.lower())
            return name
        number += 1


class OutputFolder:
    """The folder that results go to, a context manager: made at the start, gone again if nothing was written.

    Args:
        path: the folder.
        pictures: the inputs, none of which an output may replace.

    Raises:
        UsageError: on entering, if the folder is not writable or an output would replace an input.
    """

    def __init__(self, path: str | Path, pictures: Sequence[Picture]) -> None:
        self.path = Path(path)
        self._pictures = pictures
        self._made = contextlib.ExitStack()
        self._written: list[Path] = []

    def __enter__(self) -> OutputFolder:
        inputs = {picture.path.resolve() for picture in self._pictures}
        for picture in self._pictures:
            target = self.path / picture.output_name
            if target.resolve() in inputs:
                raise UsageError(f"--out {self.path}: {target} would replace an input, choose another folder")
        try:
            with contextlib.ExitStack() as made:
                made.enter_context(new_folder(self.path))
                probe = self.path / f".codetr-{os.getpid()}"
                probe.touch()
                probe.unlink()
                self._made = made.pop_all()
        except OSError as error:
            reason = "is a file, not a folder" if self.path.is_file() else error.strerror
            raise UsageError(f"--out {self.path}: cannot write there ({reason})") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._made.__exit__(kind, error, trace)

    def save_picture(self, picture: Picture, image: Any) -> None:
        """Writes the annotated picture, uint8 [H, W, 3], as JPEG."""
        from PIL import Image

        target = self.path / picture.output_name
        with atomic_write(target) as temporary:
            # Without chroma subsampling, or thin coloured lines smear.
            Image.fromarray(image).save(temporary, format="JPEG", quality=_JPEG_QUALITY, subsampling=0)
        self._written.append(target)

    def summary(self) -> str:
        """Returns what was written, for the last line printed."""
        pictures = str(self._written[0]) if len(self._written) == 1 else f"{len(self._written)} pictures"
        return _printable(f"{pictures} and {self.path / 'detections.json'}")
