"""`python -m benchmarks.engines`: rows of engines, the table and the picture; on engines with a GPU."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import engines, report, result_files
from tests.engines.engine_samples import METADATA, SUMMARY, recorded
from tests.engines.plugin_engines import save
from tests.engines.test_inspect_command import plan
from trt_plugin.inspection.engine_summary import EngineTimes
from trt_plugin.inspection.layer_kinds import LAYER_KINDS, MSDA


def row(name: str, gpu_ms: float, build_seconds: float | None) -> dict:
    """Returns the benchmark's row of a sample."""
    metadata = dataclasses.replace(METADATA, build_seconds=build_seconds)
    return engines.row(
        name, SUMMARY, recorded(name), EngineTimes([gpu_ms - 1, gpu_ms, gpu_ms + 1], True, {}), metadata
    )


@pytest.fixture
def result(tmp_path):
    """A result file of both samples."""
    content = {
        **result_files.describe("benchmarks.engines", ["--engine", "onnx=model.engine"]),
        "gpu": {"name": "NVIDIA H0", "driver": "1.2"},
        "kind": "engines",
        "results": [row("onnx", 11.2, 89.9), row("dynamo", 11.4, None)],
    }
    path = tmp_path / "engines_h0.json"
    result_files.write_json(path, content)
    return path


def test_row_of_an_engine():
    found = row("onnx", 11.2, 89.9)
    layers = recorded("onnx")
    assert found["timing"]["median_ms"] == 11.2 and found["build_seconds"] == 89.9
    assert found["layers"] == 102 and found["plugins"] == {"FusedMultiScaleDeformableAttention": 3}
    assert found["inputs"] == {"images": [2, 3, 8, 8]}
    assert sum(part["layers"] for part in found["kinds"].values()) == 102
    assert sum(part["ms"] for part in found["kinds"].values()) == pytest.approx(layers.time_ms, abs=1e-3)
    assert list(found["kinds"]) == [kind for kind in LAYER_KINDS if kind in found["kinds"]]
    assert "11.200 ms, 102 layers, 3.0 MiB" in engines.line(found)


def test_table_puts_engines_side_by_side(result, capsys):
    assert report.main([str(result)]) == 0
    text = capsys.readouterr().out
    assert "|  | onnx | dynamo |" in text
    assert "| GPU time, ms | 11.20 | 11.40 |" in text
    assert "| build, s | 90 |  |" in text
    assert "| layers | 102 | 107 |" in text
    assert "| weights and code on the GPU, MiB | 7 | 7 |" in text
    assert f"| {MSDA} | 0.37 (3 layers) | 0.59 (9 layers) |" in text
    total = recorded("dynamo").time_ms
    assert f"| sum of the layers, ms | {recorded('onnx').time_ms:.2f} | {total:.2f} |" in text


@pytest.mark.gpu
def test_engines_are_measured(tmp_path, capsys):
    path = save(tmp_path, plan("DETAILED"))
    out = tmp_path / "engines.json"
    arguments = ["--engine", f"a={path}", "--iterations", "5", "--out", str(out)]
    assert engines.main(arguments) == 0
    (found,) = json.loads(out.read_text())["results"]
    assert found["plugins"] == {"FusedMultiScaleDeformableAttention": 1}
    assert found["kinds"][MSDA]["ms"] > 0 and found["timing"]["samples"] == 5
    assert report.main([str(out)]) == 0
    assert "| of plugins | 1 FusedMultiScaleDeformableAttention |" in capsys.readouterr().out
    assert engines.main(["--engine", f"a={save(tmp_path, plan('NONE'))}", "--out", str(out)]) == 2
    assert "--engine: expected detailed profiling verbosity, a was built" in capsys.readouterr().err
