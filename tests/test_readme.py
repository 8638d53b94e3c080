"""What the README says: options that exist, folders that exist, an example that runs."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.problems import Problem

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (
    ("codetr.cli.detect", "detect"),
    ("codetr.cli.detect", "train"),
    ("codetr.cli.detect", "evaluate"),
    ("tools.scenes.__main__",),
    ("onnx_path.build",),
    ("onnx_path.compare",),
    ("onnx_path.export",),
    ("onnx_path.refit",),
    ("onnx_path.surgeon",),
    ("dynamo_path.export",),
    ("dynamo_path.refit",),
    ("trt_plugin.run",),
    ("trt_plugin.inspect",),
    ("benchmarks.accuracy",),
    ("benchmarks.msda",),
    ("benchmarks.detector",),
    ("benchmarks.engines",),
    ("benchmarks.report",),
)
FOREIGN = {
    *("--no-build-isolation", "--onnx", "--stronglyTyped", "--dynamicPlugins", "--staticPlugins"),
    *("--tool", "--error-exitcode", "--nproc-per-node", "--build", "--target"),
    *("--loadEngine", "--exportLayerInfo", "--exportProfile", "--profilingVerbosity", "--separateProfileRun"),
    *("--show", "--trace", "--output", "--report", "--cuda-graph-trace"),
}
"""Options of pip, trtexec, compute-sanitizer, torchrun, cmake, polygraphy and nsys."""
CPP_PROGRAMS = (
    ROOT / "trt_plugin/csrc/detect/arguments.cpp",
    ROOT / "trt_plugin/csrc/detect/main.cpp",
    ROOT / "dynamo_path/csrc/detect_torch.cpp",
)
"""Where the options of codetr_detect and codetr_detect_torch stand."""


FOLDERS = re.findall(r"^(\w+)/ ", README, re.MULTILINE)
SOURCES = (".py", ".md", ".cpp", ".h", ".cu", ".cuh", ".cmake", ".txt", ".toml", ".sh", "Makefile")


def test_options(capsys: pytest.CaptureFixture) -> None:
    for module, *arguments in COMMANDS:
        with pytest.raises(SystemExit):
            importlib.import_module(module).main([*arguments, "--help"])
    known = FOREIGN | set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    for source in CPP_PROGRAMS:
        known |= set(re.findall(r'"(--[a-z][a-z-]+)"', source.read_text(encoding="utf-8")))
    named = set(re.findall(r"--[a-zA-Z][a-zA-Z-]+", README))
    assert len(named) > 10
    assert named <= known


def test_folders() -> None:
    assert len(FOLDERS) == 8
    for folder in FOLDERS:
        assert (ROOT / folder).is_dir(), folder


def test_results() -> None:
    """Files that figures and pictures come from, the second of a list by its name alone."""
    named = set(re.findall(r"benchmarks/results/([\w*./]+)[`)]", README))
    named |= set(re.findall(r"`(\w+_h\d+\w*\.\w+)`", README))
    assert len(named) > 20
    results = ROOT / "benchmarks" / "results"
    assert not [name for name in named if not any(results.glob(name))]


def install_lines() -> list[list[str]]:
    """The words after `pip install` of every such command, in a block or in a sentence; braces expanded."""
    text = README.replace("\\\n", " ")
    found = re.findall(r"^pip install (.+)$", text, re.MULTILINE) + re.findall(r"`pip install ([^`]+)`", text)
    lines = [shlex.split(line, comments=True) for line in found]
    return [[word for pattern in line for word in expanded(pattern)] for line in lines]


def expanded(word: str) -> list[str]:
    """A word with a shell's braces, such as a-{b,c}, as the words that it stands for."""
    parts = re.fullmatch(r"(.*)\{(.+)\}(.*)", word)
    return [parts[1] + choice + parts[3] for choice in parts[2].split(",")] if parts else [word]


def test_install_lines_work_from_a_clone() -> None:
    """The project is on no package index: they install the folder, after what its build needs."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    optional = project[project.index("[project.optional-dependencies]") : project.index("[project.scripts]")]
    extras = set(re.findall(r"^(\w+) = \[", optional, re.MULTILINE))
    build, *installs = install_lines()
    assert len(installs) >= 7 and "train" in extras
    for words in installs:
        options, target = words[:-1], words[-1]
        named = re.fullmatch(r"\.(?:\[([\w,]+)\])?", target)
        assert named, words
        assert set((named[1] or "").split(",")) <= extras | {""}, words
        assert options == (["--no-build-isolation", "-e"] if named[1] else []), words
    needed = json.loads(re.search(r"^requires = (\[.+\])$", project, re.MULTILINE)[1])
    cmake = re.search(r'cmake\.version = "(.+)"', project)[1]
    assert {*needed, f"cmake{cmake}", "ninja"} <= set(build)
    compiler = re.search(r"^nvcc = \[(.+?)\]", optional, re.MULTILINE | re.DOTALL)[1]
    for package, version in re.findall(r'"(.+)==(.+)\.\*"', compiler):
        assert f"{package}~={version}.0" in build


def test_installing_comes_first() -> None:
    sections = re.findall(r"^## (.+)", README, re.MULTILINE)
    assert sections[0] == "Installing"


def test_messages_quote_extras() -> None:
    """A shell such as zsh takes brackets for a pattern of file names."""
    folders = [ROOT / name for name in (*FOLDERS, "cmake")]
    files = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    files = [path for path in files if path.name.endswith(SOURCES)]
    assert len(files) > 200
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip install (-\S+ )*[\w.-]+\[", line)
    ]
    assert not found


def test_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("form", ["attention", "fused_attention"])
def test_operator_example(form: str) -> None:
    problem = Problem("readme", 1, ((4, 6), (2, 3)), 5)
    inputs = problem.fused_inputs() if form == "fused_attention" else problem.attention_inputs()
    block = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "msda" in block)
    line = next(line for line in block.splitlines() if f"msda.{form}(" in line)
    names: dict = inputs._asdict()
    exec(f"import msda\n{line}", names)
    assert names["out"].shape == (1, 5, 256)
