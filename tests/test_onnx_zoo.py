"""The zoo's files are what the graph surgery's tests take them for: whole, equal to PyTorch, not degenerate.

The usual run exports every model once and one model in every form.
ONNX_ZOO=all does every model in every form.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx_path.surgery.graph.protobuf import replace_nodes  # noqa: E402
from tests import onnx_zoo  # noqa: E402
from tests.onnx_zoo import OPSETS, ZOO, every  # noqa: E402

# Of the largest number in an output. Pictures of two sizes, two runtimes, a dozen layers in float32.
TOLERANCE = 2e-5
QUICK = "rt_detr_v2"


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return onnx_zoo.session_folder(tmp_path_factory)


@pytest.fixture(params=ZOO)
def name(request) -> str:
    ZOO[request.param].require()
    return request.param


def check(name: str, path: Path, inputs: dict[str, torch.Tensor] | None = None) -> None:
    """Compares a file with PyTorch: same shapes, same infinities, equal numbers."""
    model, example = ZOO[name].build()
    inputs = inputs or example
    expected, found = onnx_zoo.run(model, inputs), onnx_zoo.run_onnx(path, inputs)
    for output, theirs, ours in zip(ZOO[name].outputs, expected, found, strict=True):
        theirs = theirs.numpy()
        assert theirs.shape == ours.shape, output
        largest = np.abs(theirs[np.isfinite(theirs)]).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * largest, err_msg=output)


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_calls_and_sizes_are_the_declared_ones(name):
    entry = ZOO[name]
    model, inputs = entry.build()
    assert onnx_zoo.count_calls(model, inputs) == entry.layers
    for module in onnx_zoo.msda_modules(model):
        samples = entry.heads * sum(entry.points)
        assert module.attention_weights.out_features == samples
        assert module.sampling_offsets.out_features == 2 * samples
        assert module.attention_weights.in_features == entry.heads * entry.head_dim


def test_random_weights_are_not_degenerate(name):
    """Offsets reach other cells and depend on the query, weights differ, and no two queries give the same."""
    model, inputs = ZOO[name].build()
    seen: dict[str, list[torch.Tensor]] = {"sampling_offsets": [], "attention_weights": []}
    for module in onnx_zoo.msda_modules(model):
        for projection, outputs in seen.items():
            layer = getattr(module, projection)
            layer.register_forward_hook(
                lambda _module, _inputs, output, outputs=outputs: outputs.append(output)
            )
    results = onnx_zoo.run(model, inputs)
    for offsets in seen["sampling_offsets"]:
        assert offsets.abs().mean() > 0.3
        assert offsets.std(1).mean() > 0.1
    for logits in seen["attention_weights"]:
        assert logits.std() > 0.1
    assert not any(output.isnan().any() for output in results)
    # One row for each query, or for each detection of ours, which may share its box with another.
    rows = torch.cat([output[0].reshape(len(output[0]), -1).double() for output in results], 1)
    rows = rows[:, rows.isfinite().all(0)]
    distance = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
    assert distance.min() > 1e-3 * rows.std()


def test_export_is_pytorch(name, folder):
    entry = ZOO[name]
    path = onnx_zoo.export(name, folder)
    onnx.checker.check_model(path, full_check=True)
    graph = onnx.load(path).graph
    assert [tensor.name for tensor in graph.input] == list(entry.build()[1])
    assert [tensor.name for tensor in graph.output] == list(entry.outputs)
    assert operators(path).count("GridSample") == entry.layers * len(entry.points)
    check(name, path)


def check_dynamic(name: str, folder: Path) -> None:
    path = onnx_zoo.export(name, folder, dynamic=True)
    check(name, path)
    check(name, path, ZOO[name].other_inputs())


@pytest.mark.parametrize("dynamic_name", [QUICK, "deformable_detr"])
def test_dynamic_export_takes_another_size(dynamic_name, folder):
    """Level sizes read from the picture, and level sizes that pass through a tensor."""
    ZOO[dynamic_name].require()
    check_dynamic(dynamic_name, folder)


@every
def test_every_dynamic_export_takes_another_size(name, folder):
    if ZOO[name].dynamic is None:
        pytest.skip(f"{name} has no dynamic dimensions")
    check_dynamic(name, folder)


@pytest.mark.parametrize("opset", OPSETS["torchscript"])
def test_opsets_of_the_older_exporter(opset, folder):
    ZOO[QUICK].require()
    path = onnx_zoo.export(QUICK, folder, opset=opset)
    assert [entry.version for entry in onnx.load(path).opset_import if not entry.domain] == [opset]
    check(QUICK, path)


@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
def test_simplified_export_is_pytorch(tool, folder):
    pytest.importorskip(tool, reason=f"{tool} is not installed")
    ZOO[QUICK].require()
    path = onnx_zoo.export(QUICK, folder, simplified=tool)
    assert len(operators(path)) < len(operators(onnx_zoo.export(QUICK, folder))) / 2
    check(QUICK, path)


@every
@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
def test_every_simplified_export_is_pytorch(tool, name, folder):
    pytest.importorskip(tool, reason=f"{tool} is not installed")
    check(name, onnx_zoo.export(name, folder, simplified=tool))


def check_gathers(name: str, folder: Path) -> None:
    path = onnx_zoo.export(name, folder, sampling="gather")
    assert "GridSample" not in operators(path)
    assert operators(path).count("GatherElements") >= 4 * ZOO[name].layers * len(ZOO[name].points)
    check(name, path)


def test_export_with_gathers_is_pytorch(folder):
    ZOO[QUICK].require()
    check_gathers(QUICK, folder)


@every
def test_every_export_with_gathers_is_pytorch(name, folder):
    check_gathers(name, folder)


def test_newer_exporter(folder):
    ZOO[QUICK].require()
    path = onnx_zoo.export(QUICK, folder, exporter="dynamo", opset=21)
    assert [entry.version for entry in onnx.load(path).opset_import if not entry.domain] == [21]
    check(QUICK, path)


@every
def test_every_model_by_the_newer_exporter(name, folder):
    if "dynamo" not in ZOO[name].exporters:
        pytest.skip(f"{name} has no whole export by the newer exporter")
    check(name, onnx_zoo.export(name, folder, exporter="dynamo"))


def test_double_grids_are_what_onnxruntime_lacks(folder, tmp_path):
    """The older exporter's own file is right but for the grids' type: with casts it equals PyTorch."""
    ZOO["mask2former"].require()
    path = onnx_zoo.export("mask2former", folder, double_grids=True)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.NotImplemented, match="GridSample"):
        onnx_zoo.run_onnx(path, {})
    model = onnx.load(path)
    nodes = []
    for index, node in enumerate(model.graph.node):
        if node.op_type == "GridSample":
            grid = f"single_grid_{index}"
            nodes.append(onnx.helper.make_node("Cast", [node.input[1]], [grid], to=onnx.TensorProto.FLOAT))
            node.input[1] = grid
        nodes.append(node)
    replace_nodes(model.graph, nodes)
    onnx.save(model, tmp_path / "cast.onnx")
    check("mask2former", tmp_path / "cast.onnx")


def test_export_is_cached(folder):
    ZOO[QUICK].require()
    path = onnx_zoo.export(QUICK, folder)
    written = path.stat().st_mtime_ns
    assert onnx_zoo.export(QUICK, folder).stat().st_mtime_ns == written
    assert onnx_zoo.export(QUICK, folder, opset=18) != path


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("rt_detr", {"opset": 21}, "opset: torchscript writes"),
        ("rt_detr", {"exporter": "dynamo", "opset": 16}, "opset: dynamo writes"),
        ("deformable_detr_two_stage", {"exporter": "dynamo"}, "exporter: deformable_detr_two_stage"),
        ("rf_detr", {"dynamic": True}, "dynamic: rf_detr has no dynamic dimensions"),
    ],
)
def test_what_no_exporter_does_is_refused(model, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        onnx_zoo.export(model, tmp_path, **options)
    assert not list(tmp_path.iterdir())


@every
def test_full_model_has_the_usual_size(name):
    usual = ZOO[name].usual_size
    model, inputs = ZOO[name].build(full=True)
    assert next(iter(inputs.values())).shape == (1, 3, usual.height, usual.width)
    modules = onnx_zoo.msda_modules(model)
    assert len(modules) == usual.layers
    for module in modules:
        assert module.attention_weights.out_features == usual.heads * sum(usual.points)
