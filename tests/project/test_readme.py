"""README and docs: options, files, folders, figures and install commands that exist."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pydoc
import re

from tests.project.doc_pages import PAGES, REASONS, ROOT, blocks, commands, own_program

README = PAGES["README.md"].read_text(encoding="utf-8")
FOLDERS = re.findall(r"^([\w/]+)/ ", README, re.MULTILINE)
REFERENCE = re.compile(r"^::: (\S+)\n(?:    options:\n      members: \[(.+)\])?", re.MULTILINE)
BASH = [block for page in PAGES for block in blocks(page) if block.language == "bash"]


def test_readme_is_short():
    assert len(README.splitlines()) <= 150
    assert re.findall(r"^## (.+)", README, re.MULTILINE)[0] == "Install"


def test_marks_give_a_reason():
    for page in PAGES:
        for block in blocks(page):
            assert not block.mark or (block.mark in REASONS and block.reason), block


def help_of(program: tuple[str, ...], monkeypatch, capsys) -> str:
    """The help of a program, with lines long enough for every option."""
    kind, *names = program
    name = names[0]
    monkeypatch.setenv("COLUMNS", "200")
    module, arguments = ("codetr.cli", names) if kind == "codetr" else (name, [])
    if kind == "python" and importlib.util.find_spec(name).submodule_search_locations:
        module = f"{name}.__main__"
    with contextlib.suppress(SystemExit):
        importlib.import_module(module).main([*arguments, "--help"])
    return capsys.readouterr().out


def test_commands_have_their_options(monkeypatch, capsys):
    named: dict[tuple[str, ...], set[str]] = {}
    for block in BASH:
        for words in commands(block.code):
            if own := own_program(words):
                named.setdefault(own[0], set()).update(word for word in own[1] if re.match(r"--?[a-z]", word))
    assert len(named) > 10
    for program, options in named.items():
        text = help_of(program, monkeypatch, capsys)
        known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
        assert options <= known, (program, options - known)


def test_generated_pages_are_current():
    from tools.docs import commands as commands_page
    from tools.docs import links, tables

    assert tables.main(["--check"]) == 0
    assert links.main() == 0
    assert commands_page.main(["--check"]) == 0


def test_documented_names_exist():
    """mkdocs leaves out a member that does not exist."""
    names = []
    for page in PAGES.values():
        for owner, members in REFERENCE.findall(page.read_text(encoding="utf-8")):
            names += [owner, *(f"{owner}.{member}" for member in members.split(", ") if member)]
    assert "codetr.Detector.detect" in names
    assert [name for name in names if pydoc.locate(name) is None] == []


def test_folders():
    assert len(FOLDERS) == 11 and all((ROOT / folder).is_dir() for folder in FOLDERS)


def test_make_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", "\n".join(block.code for block in BASH)))
    assert {"demo", "test", "docs"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def expanded(word: str) -> list[str]:
    """A word with a shell's braces, such as a-{b,c}, as the words that it stands for."""
    parts = re.fullmatch(r"(.*)\{(.+)\}(.*)", word)
    return [parts[1] + choice + parts[3] for choice in parts[2].split(",")] if parts else [word]


def test_install_commands_work_from_a_clone():
    """The project is on no package index: they install a wheel, or the folder after what its build needs."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    optional = project[project.index("[project.optional-dependencies]") : project.index("[project.scripts]")]
    extras = set(re.findall(r"^(\w+) = \[", optional, re.MULTILINE))
    documented = re.findall(r"^\| `(\w+)` \|", PAGES["install.md"].read_text(encoding="utf-8"), re.MULTILINE)
    assert extras - {"nvcc"} == set(documented)

    found = [words[2:] for block in BASH for words in commands(block.code) if words[:2] == ["pip", "install"]]
    found.remove(["dist/codetr_tensorrt-*.whl"])  # of `make wheel`
    build, *installs = [[word for pattern in line for word in expanded(pattern)] for line in found]
    assert len(installs) >= 2
    for words in installs:
        assert words[:2] == ["--no-build-isolation", "-e"]
        assert set(re.fullmatch(r"\.\[([\w,]+)\]", words[2])[1].split(",")) <= extras
    needed = json.loads(re.search(r"^requires = (\[.+\])$", project, re.MULTILINE)[1])
    cmake = re.search(r'cmake\.version = "(.+)"', project)[1]
    assert {*needed, f"cmake{cmake}", "ninja"} <= set(build)
    compiler = re.search(r"^nvcc = \[(.+?)\]", optional, re.MULTILINE | re.DOTALL)[1]
    for package, version in re.findall(r'"(.+)==(.+)\.\*"', compiler):
        assert f"{package}~={version}.0" in build
