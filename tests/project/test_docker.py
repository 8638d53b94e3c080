"""The start command of the image, and the options that its files and its page name."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from codetr.cli import main

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
START = re.search(r"<<'EOF' /usr/local/bin/serve-engine\n(.*?)^EOF$", DOCKERFILE, re.DOTALL | re.MULTILINE)[1]
# Stands for codetr: it writes down its arguments, and an export makes an engine if there is a GPU.
CODETR = """#!/bin/sh
echo "$@" >> calls
[ "$1" = serve ] || { [ -n "$GPU" ] && mkdir -p "$3" && touch "$3/model.engine"; }
"""


@pytest.fixture
def start(tmp_path):
    """Function that starts the container's command, with or without a GPU; returns the calls of codetr."""
    for name, text in (("codetr", CODETR), ("start", START.replace("/var/lib/codetr", "engines"))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(gpu: str) -> list[str]:
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "GPU": gpu, "CODETR_EXPORT_MODEL": "demo"}
        subprocess.run([tmp_path / "start"], cwd=tmp_path, env=variables, check=False)
        calls = (tmp_path / "calls").read_text().splitlines()
        (tmp_path / "calls").unlink()
        return calls

    return run


def test_first_start_builds_the_engine(start):
    serve = "serve --engine engines/demo/model.engine --host 0.0.0.0"
    assert start(gpu="1") == ["export --out engines/demo", serve]
    assert start(gpu="1") == [serve]


def test_failed_build_serves_nothing(start):
    assert start(gpu="") == ["export --out engines/demo"]


def test_variables_are_options(capsys):
    pages = [ROOT / name for name in ("Dockerfile", "compose.yaml", "docs/docker.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    variables = set(re.findall(r"CODETR_(EXPORT|SERVE)_([A-Z_]+)", text))
    assert {("EXPORT", "MODEL"), ("EXPORT", "PRECISION"), ("SERVE", "API_KEY_FILE")} <= variables
    for command, option in variables:
        assert main([command.lower(), "--help"]) == 0
        assert f"--{option.lower().replace('_', '-')} " in capsys.readouterr().out


def test_key_file_is_mounted():
    """The page's lines for API keys name a secret that Compose mounts at the path of the option."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    page = (ROOT / "docs/docker.md").read_text(encoding="utf-8")
    blocks = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    (content,) = (block for block in blocks if "CODETR_SERVE_API_KEY_FILE" in str(block))
    service = content["services"]["codetr"]
    (name,) = content["secrets"]
    assert service["secrets"] == [name]
    assert service["environment"]["CODETR_SERVE_API_KEY_FILE"] == f"/run/secrets/{name}"
