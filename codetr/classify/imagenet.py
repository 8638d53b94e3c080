"""ImageNet's flat validation set (ILSVRC2012) as class folders. Imports no Torch."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from codetr.errors import ArgumentError, UsageError
from codetr.export.output_folder import staged_folder

_PICTURE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG", re.IGNORECASE)
_WORDNET_ID = re.compile(r"n\d{8}")


def read_wordnet_ids(ground_truth: Path, synsets: Path | None = None) -> list[str]:
    """Reads the WordNet id of each picture, in the order of their numbers.

    Args:
        ground_truth: a text file with one WordNet id a line, or with one number a line as the development
            kit's ILSVRC2012_validation_ground_truth.txt.
        synsets: the table of these numbers: the kit's meta.mat, or a text file with a number and a WordNet id
            a line. The kit's numbers do not follow the order of the WordNet ids.

    Raises:
        ArgumentError: a file cannot be understood, or a number is not in the table.
    """
    words = _lines(ground_truth, "ground_truth")
    if all(_WORDNET_ID.fullmatch(word) for word in words):
        return words
    bad = next((line for line, word in enumerate(words, 1) if not re.fullmatch(r"\d+", word, re.ASCII)), None)
    if bad is not None:
        text = f"expected a number or a WordNet id (n01440764) a line, got {words[bad - 1]!r:.60}"
        raise ArgumentError("ground_truth", f"{text} in line {bad} of {ground_truth}")
    if synsets is None:
        raise ArgumentError("synsets", f"expected the table of the numbers in {ground_truth}, got none")
    table = _mat_table(synsets) if synsets.suffix == ".mat" else _text_table(synsets)
    for line, word in enumerate(words, 1):
        if int(word) not in table:
            text = f"expected numbers of the {len(table)} classes in {synsets}, got {word} in line {line} of"
            raise ArgumentError("ground_truth", f"{text} {ground_truth}")
    return [table[int(word)] for word in words]


def _lines(path: Path, argument: str) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError:
        raise ArgumentError(argument, f"expected a text file, got {path}") from None
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise ArgumentError(argument, f"expected a line for each picture or class, {path} is empty")
    return lines


def _text_table(path: Path) -> dict[int, str]:
    """Reads lines with a number and a WordNet id in any order, such as "1 n02119789 kit fox"."""
    table: dict[int, str] = {}
    for number, line in enumerate(_lines(path, "synsets"), 1):
        found = re.match(r"(?:(\d+)\W+(n\d{8})|(n\d{8})\W+(\d+))\b", line, re.ASCII)
        if found is None:
            text = f"expected a number and a WordNet id (1 n02119789) a line, got {line!r:.60}"
            raise ArgumentError("synsets", f"{text} in line {number} of {path}")
        key = int(found[1] or found[4])
        if table.setdefault(key, found[2] or found[3]) != (found[2] or found[3]):
            raise ArgumentError("synsets", f"expected each number once, got {key} twice in {path}")
    return table


def _mat_table(path: Path) -> dict[int, str]:
    """Reads the development kit's meta.mat."""
    from scipy.io import loadmat

    try:
        rows = loadmat(path, squeeze_me=True)["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows}
    except Exception as error:  # a damaged file raises errors of many classes
        text = f"expected the development kit's meta.mat or a text file, got {path}"
        raise ArgumentError("synsets", f"{text} ({type(error).__name__})") from error


def find_validation_pictures(folder: Path) -> list[Path]:
    """Finds ILSVRC2012_val_00000001.JPEG and so on, in the order of their numbers.

    Raises:
        UsageError: there is no such folder or picture, or a number is missing.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    found = {int(match[1]): path for path in folder.iterdir() if (match := _PICTURE.fullmatch(path.name))}
    if not found:
        raise UsageError(f"{folder}: has no pictures named ILSVRC2012_val_00000001.JPEG and so on")
    missing = next((number for number in range(1, len(found) + 1) if number not in found), None)
    if missing is not None:
        raise UsageError(f"{folder}: has {len(found)} pictures, but no ILSVRC2012_val_{missing:08d}.JPEG")
    return [found[number] for number in range(1, len(found) + 1)]


def arrange(
    pictures: Sequence[Path],
    wordnet_ids: Sequence[str],
    out: Path,
    *,
    copy: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Puts pictures into class folders. `out` appears when all of them are there.

    Args:
        wordnet_ids: of each picture, names of the folders.
        copy: copies the files; by default they are hard links, which take no space.

    Raises:
        ArgumentError: `out` cannot be written.
        UsageError: `out` exists and is not an empty folder, the file system has no hard links, or `out` is on
            another one.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"OUT: expected a new or empty folder, got {out}")
    with staged_folder(out) as folder:
        for name in sorted(set(wordnet_ids)):
            (folder / name).mkdir()
        for picture, name in zip(pictures, wordnet_ids, strict=True):
            target = folder / name / picture.name
            if copy:
                shutil.copy2(picture, target)
            else:
                try:
                    os.link(os.path.realpath(picture), target)
                except OSError as error:
                    text = f"{picture}: no hard link to it in {out} ({error.strerror})"
                    raise UsageError(f"{text}; use --copy") from error
            advance(1)
