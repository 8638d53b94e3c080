"""What the README says: options that exist, folders that exist, an example that runs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from benchmarks.problems import Problem

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (
    ("codetr.cli", "detect"),
    ("codetr.cli", "train"),
    ("codetr.cli", "evaluate"),
    ("codetr.scenes.__main__",),
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
    folders = re.findall(r"^(\w+)/ ", README, re.MULTILINE)
    assert len(folders) == 8
    for folder in folders:
        assert (ROOT / folder).is_dir(), folder


def test_results() -> None:
    """Files that figures and pictures come from, the second of a list by its name alone."""
    named = set(re.findall(r"benchmarks/results/([\w*./]+)[`)]", README))
    named |= set(re.findall(r"`(\w+_h\d+\w*\.\w+)`", README))
    assert len(named) > 20
    results = ROOT / "benchmarks" / "results"
    assert not [name for name in named if not any(results.glob(name))]


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
