"""README and docs as the tests read them: blocks of code, each with the mark above it."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
REASONS = ("gpu", "install", "download", "long")
"""Marks of blocks that a test does not run; `gpu` runs where there is a GPU."""

_BLOCK = re.compile(r"(?:<!-- ([a-z]+)(?:: ([^>]+))? -->\n)?```(bash|python)\n(.*?)```", re.DOTALL)


class Block(NamedTuple):
    """A block of code in a page.

    Attributes:
        page: file name.
        mark: one of `REASONS`, or None for a block that a test runs.
        reason: the text behind the mark.
        language: "bash" or "python".
        code: the text.
    """

    page: str
    mark: str | None
    reason: str | None
    language: str
    code: str


def blocks(page: str) -> list[Block]:
    """The Bash and Python blocks of a page, in order."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [Block(page, *found.groups()) for found in _BLOCK.finditer(text)]


def commands(code: str) -> Iterator[list[str]]:
    """The words of each command in a Bash block."""
    for line in code.replace("\\\n", " ").splitlines():
        tokens = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
        tokens.whitespace_split = True
        for ends, words in itertools.groupby(tokens, lambda token: not token.strip(";&|()")):
            if not ends:
                yield list(words)


def own_program(words: list[str]) -> tuple[tuple[str, ...], list[str]] | None:
    """The program of this repository that a command runs, such as ("codetr", "detect"), and its arguments.

    A command of another program, such as torchrun or nsys, may start it.
    """
    for index, word in enumerate(words):
        if word == "codetr" and words[index + 1 :] and "-" not in words[index + 1][:1]:
            last = index + (3 if words[index + 1] == "dataset" else 2)  # codetr dataset imagenet
            return ("codetr", *words[index + 1 : last]), words[last:]
        if word == "-m" and words[index + 1] != "codetr" and (ROOT / words[index + 1].split(".")[0]).is_dir():
            return ("python", words[index + 1]), words[index + 2 :]
    return None
