"""The graph surgery on every model of the zoo: the file is right, every attention becomes one node.

On a GPU, engines of the rewritten files equal onnxruntime on the files as exported.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from onnx_path import build, surgeon
from onnx_path.nodes import attention
from onnx_path.nodes.linear import LINEAR
from onnx_path.surgeon import operate
from onnx_path.surgery.graph.onnx_session import STAND_IN
from tests.onnx import model_zoo
from tests.onnx.model_zoo import ZOO
from tests.onnx.surgery_checks import check_engine, operators
from tests.onnx.zoo_exporters import msda_modules, run, run_onnx

TOLERANCE = 2e-5  # of the largest number of an output: two runtimes, a dozen layers in float32

PLAIN = {
    # Simplifiers fold to constants what follows from learned queries alone.
    ("deformable_detr", "onnxslim"): 1,
    ("deformable_detr", "onnxsim"): 1,
}
"""The number of attentions whose softmax and locations stay outside, by model and simplifier."""

VARIANTS = ("deformable_detr_two_stage", "co_dino_swin", "rt_detr")
"""Models that share their attention's structure with another one. They are tested in fewer forms."""

FORMS = (
    {"sampling": "GridSample"},
    {"dynamic": True},
    {"exporter": "dynamo"},
    {"simplified": "onnxslim"},
    {"simplified": "onnxsim"},
    {"sampling": "gather"},
)
"""Options of `model_zoo.export`; the first two are those of `VARIANTS`."""

slow = pytest.mark.slow


def check_file(name: str, path: Path, inputs: dict[str, torch.Tensor] | None = None) -> None:
    """Compares a file with PyTorch: same shapes, same infinities, equal numbers."""
    model, example = ZOO[name].build()
    inputs = inputs or example
    for output, theirs, ours in zip(
        ZOO[name].outputs, run(model, inputs), run_onnx(path, inputs), strict=True
    ):
        theirs = theirs.numpy()
        assert theirs.shape == ours.shape, output
        largest = np.abs(theirs[np.isfinite(theirs)]).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * largest, err_msg=output)


def check_surgery(
    name: str, path: Path, form: str = "GridSample", simplified: str | None = None, exporter: str = ""
) -> None:
    """Asserts that all attentions and masks are replaced; `operate` compares the outputs of both files."""
    entry = ZOO[name]
    result, report = operate(onnx.load(path), only=("msda", "padding-mask"))
    found = [(x.heads, x.head_dim, x.points, x.form) for x in report.of("msda")]
    assert found == [(entry.heads, entry.head_dim, points, form) for points in entry.attentions], report
    counts, plain = operators(result), PLAIN.get((name, simplified), entry.plain)
    assert counts[attention.ATTENTION] == plain, report.notes
    assert counts[attention.FUSED_ATTENTION] == entry.layers - plain
    # Our own module masks by a product while torch.export traces it.
    masks = 0 if entry.package is None and exporter == "dynamo" else entry.masks
    assert len(report.of("padding-mask")) == counts[LINEAR] == masks and not report.near_misses
    assert all(x.error == 0 for x in report.of("padding-mask"))
    assert report.max_error <= 1e-5
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize("name", [pytest.param(x, marks=slow if x in VARIANTS else ()) for x in ZOO])
def test_model(name: str, zoo_folder: Path):
    path = model_zoo.export(name, zoo_folder)
    samplers = sum(len(points) for points in ZOO[name].attentions)
    assert operators(onnx.load(path))["GridSample"] == samplers
    check_surgery(name, path)


@slow
@pytest.mark.parametrize(
    ("options", "name"),
    [
        pytest.param(options, name, id="-".join(map(str, [*next(iter(options.items())), name])))
        for options in FORMS
        for name in ZOO
        if name not in VARIANTS or options in FORMS[:2]
    ],
)
def test_model_in_every_form(name: str, options: dict, zoo_folder: Path):
    entry = ZOO[name]
    if options.get("exporter", "torchscript") not in entry.exporters:
        pytest.skip(f"{name} is not exported by {options['exporter']}")
    if options.get("dynamic") and entry.dynamic is None:
        pytest.skip(f"{name} has no dynamic dimensions")
    path = model_zoo.export(name, zoo_folder, **options)
    check_file(name, path)
    if options.get("dynamic"):
        check_file(name, path, entry.other_inputs())
    if options != {"sampling": "GridSample"}:  # `test_model` operates on this form
        sampling, tool = options.get("sampling", "GridSample"), options.get("simplified")
        check_surgery(name, path, sampling, tool, options.get("exporter", ""))


@slow
@pytest.mark.parametrize("opset", (16, 18, 19, 20))
def test_opsets_of_the_older_exporter(opset: int, zoo_folder: Path):
    path = model_zoo.export("rt_detr_v2", zoo_folder, opset=opset)
    assert {x.domain: x.version for x in onnx.load(path).opset_import}[""] == opset
    check_file("rt_detr_v2", path)
    check_surgery("rt_detr_v2", path)


@slow
def test_grids_in_float64(zoo_folder: Path):
    path = model_zoo.export("deformable_detr", zoo_folder, exporter="torchscript", double_grids=True)
    _, report = operate(onnx.load(path))
    assert len(report.of("msda")) == ZOO["deformable_detr"].layers
    assert STAND_IN in report.notes


@slow
@pytest.mark.parametrize("name", ZOO)
def test_random_weights_are_not_degenerate(name: str):
    """Offsets reach other cells and depend on the query, weights differ, and no two queries give the same."""
    entry = ZOO[name]
    entry.require()
    model, inputs = entry.build()
    seen: dict[str, list[torch.Tensor]] = {"sampling_offsets": [], "attention_weights": []}
    for module in msda_modules(model):
        for projection, outputs in seen.items():
            layer = getattr(module, projection)
            layer.register_forward_hook(lambda _, __, output, outputs=outputs: outputs.append(output))
    results = run(model, inputs)
    assert len(seen["sampling_offsets"]) == entry.layers
    for offsets in seen["sampling_offsets"]:
        assert offsets.abs().mean() > 0.3
        assert offsets.std(1).mean() > 0.1
    for logits in seen["attention_weights"]:
        assert logits.std() > 0.1
    assert not any(output.isnan().any() for output in results)
    # One row for each query, or for each detection of ours, which may share its box with another.
    first = [x[0].reshape(len(x[0]), -1).double() for x in results]
    rows = torch.cat([x for x in first if len(x) == len(first[0])], 1)
    rows = rows[:, rows.isfinite().all(0)]
    distance = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
    assert distance.min() > 1e-3 * rows.std()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ZOO)
def test_engine_of_the_rewritten_file_equals_onnxruntime_on_the_original(
    tensorrt, name, quick_build, zoo_folder, tmp_path, capsys
):
    original, rewritten = model_zoo.export(name, zoo_folder), tmp_path / "rewritten.onnx"
    assert surgeon.main([str(original), str(rewritten)]) == 0, capsys.readouterr().err
    report = tmp_path / "report.json"
    options = ["--out", str(tmp_path), "--json", str(report)]
    assert build.main([str(rewritten), *options, *quick_build]) == 0, capsys.readouterr().err
    assert len(json.loads(report.read_text())["report"]["plugin_layers"]) == ZOO[name].layers
    check_engine(original, tmp_path / "rewritten.engine", capsys)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ZOO)
def test_engine_in_bfloat16(tensorrt, name, quick_build, zoo_folder, tmp_path, capsys):
    """Files of opset 17 are raised to 22, whose convolutions are bfloat16 too."""
    operated = tmp_path / "operated.onnx"
    onnx.save(model_zoo.operated(name, zoo_folder), operated)
    options = ["--out", str(tmp_path), "--precision", "bf16", "--tell-selections"]
    assert build.main([str(operated), *options, *quick_build]) == 0, capsys.readouterr().err
    check_engine(operated, tmp_path / "operated.engine", capsys)
