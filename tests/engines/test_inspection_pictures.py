"""Blocks of layers, the picture of the graph and the chart of times, on parts of real engines."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html import unescape
from itertools import chain

import pytest

from tests.engines.engine_samples import needs_dot, recorded
from trt_plugin import EngineError
from trt_plugin.inspection import engine_layers, layer_graph
from trt_plugin.inspection.engine_layers import LayerList
from trt_plugin.inspection.layer_kinds import IDLE_TYPES, KIND_COLOURS
from trt_plugin.inspection.module_blocks import LayerBlock, blocks_of, join_equal
from trt_plugin.inspection.time_chart import write_chart

SIGNATURES = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


def engine(*nodes: str, tensors: list[str] | None = None, times: bool = False) -> LayerList:
    """An engine with a layer for each node, which reads a tensor and writes the next."""
    names = tensors or [f"t{i}" for i in range(len(nodes) + 1)]
    described = [{"Name": name, "Dimensions": [1, 4], "Format/Datatype": "Half"} for name in names]
    entries = [
        {
            "Name": f"layer {index}",
            "LayerType": "kgen",
            "Inputs": [described[index]],
            "Outputs": [described[index + 1]],
            "Metadata": f"[ONNX Layer: {node}]",
        }
        for index, node in enumerate(nodes)
    ]
    found = engine_layers.parse(json.dumps({"Layers": entries, "Bindings": [names[0]]}))
    return found.with_times({layer.name: 1.0 for layer in found.layers}) if times else found


def in_modules(*modules: str, operators: str = "Add Mul Sub") -> list[str]:
    """A node for each operator in each module."""
    return [f"{module}/{operator}" for module in modules for operator in operators.split()]


def drawn_blocks(found: LayerList) -> list[LayerBlock]:
    return join_equal(blocks_of(found.layers))


def titles(found: LayerList) -> list[str]:
    return [block.title for block in drawn_blocks(found)]


@pytest.mark.parametrize("name", ["onnx", "dynamo"])
def test_every_working_layer_is_in_one_block(name):
    found = recorded(name)
    shown = Counter(layer.name for block in drawn_blocks(found) for layer in block.all_layers)
    assert shown == Counter(x.name for x in found.layers if x.type.lower() not in IDLE_TYPES)
    assert max(shown.values()) == 1


def test_blocks_of_a_real_engine():
    """Swin's blocks alternate between windows that are shifted and windows that are not."""
    found = titles(recorded("onnx"))
    assert "backbone.stages.2.blocks.4, 6" in found and "backbone.stages.2.blocks.5, 7" in found
    assert "encoder.layers.1, 2" in found
    assert {"neck.convs.0", "decoder.layers.0", "query_selection"} <= set(found)


A, B = "Add MatMul Relu", "Conv Add Mul"


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (
            {f"/body/blocks.{i}": A if i < 4 else B for i in range(5)},
            ["body.blocks.0, 1, …, 3", "body.blocks.4"],
        ),
        (
            {f"/body/blocks.{i}": B if i % 2 else A for i in range(4)},
            ["body.blocks.0, 2", "body.blocks.1, 3"],
        ),
        ({f"/stages.{i}/blocks.0": A for i in range(2)}, ["stages.0.blocks.0", "stages.1.blocks.0"]),
        (
            {"/a/layers.0": A, "/a/layers.0/heads.1": "Conv", "/b/norms.0": "Add", "/b": "Mul"},
            ["a.layers.0", "b"],
        ),
    ],
    ids=["equal", "alternating", "another module", "small modules join"],
)
def test_blocks(modules, expected):
    nodes = chain.from_iterable(in_modules(module, operators=x) for module, x in modules.items())
    assert titles(engine(*nodes)) == expected


def test_fused_nodes_may_come_in_any_order():
    nodes = [f"/a.{i}/{x}" for i in (0, 1) for x in ("Conv", "Add", "Mul")]
    nodes[1], nodes[4] = "/a.0/Add]" + "[ONNX Layer: /a.0/Relu", "/a.1/Relu]" + "[ONNX Layer: /a.1/Add"
    assert titles(engine(*nodes)) == ["a.0, 1"]


def test_layer_without_a_name_joins_the_block_before():
    found = engine(*in_modules("/a.0", "/b.0"))
    copy = engine_layers.Layer("Reformatting CopyNode for Input Tensor 0 to c", "Reformat")
    first, second = blocks_of([*found.layers[:3], copy, *found.layers[3:]])
    assert first.layers[3] is copy and len(first.layers) == 4 and len(second.layers) == 3


def test_engine_without_names_is_cut_into_blocks():
    found = engine(*(f"node_add_{i}" for i in range(60)))
    assert [len(block.layers) for block in blocks_of(found.layers)] == [24, 24, 12]
    assert titles(found) == ["(top), 2 times", "(top)"]


def test_arrows_are_tensors_between_blocks():
    blocks = drawn_blocks(engine(*in_modules("/a.0", "/b.0", "/c.0")))
    assert layer_graph.edges_of(blocks) == {(0, 1): {"t3": 8}, (1, 2): {"t6": 8}}
    # TensorRT's compiler of subgraphs uses the same names again.
    again = engine(
        *in_modules("/a.0", "/b.0", "/c.0"), tensors=["x", "a", "b", "t", "c", "d", "t", "e", "f", "y"]
    )
    assert list(layer_graph.edges_of(drawn_blocks(again))) == [(0, 1), (1, 2)]


def test_columns_have_similar_heights_and_keep_the_order():
    columns = layer_graph.columns_of([10.0] * 40)
    assert list(chain(*columns)) == list(range(40))
    assert len(columns) > 2 and max(map(len, columns)) - min(map(len, columns)) <= 1


@needs_dot
@pytest.mark.parametrize("name", ["onnx", "dynamo"])
def test_graph_shows_every_kind_row_and_arrow(name, tmp_path):
    found, path = recorded(name), tmp_path / "graph.svg"
    layer_graph.write_graph(path, found, "Schnabel & <Co>")
    text, tree = path.read_text(), ElementTree.parse(path)
    assert "Schnabel & <Co>" in unescape(text).replace("\xa0", " ")
    assert all(KIND_COLOURS[layer.kind] in text for layer in found.layers)
    blocks = drawn_blocks(found)
    tips = "\n".join(x for element in tree.iter() for key, x in element.items() if key.endswith("}title"))
    for block in blocks:
        assert all(layer.name in tips for layer in block.layers)
    arrows = [x for x in tree.iter("{http://www.w3.org/2000/svg}g") if x.get("class") == "edge"]
    assert len(arrows) == len(layer_graph.edges_of(blocks))


@needs_dot
@pytest.mark.parametrize("suffix", SIGNATURES)
@pytest.mark.parametrize("write", [layer_graph.write_graph, write_chart])
def test_formats_of_pictures(tmp_path, suffix, write):
    path = tmp_path / f"picture.{suffix}"
    write(path, engine(*in_modules("/a.0", "/b.0"), times=True), "title")
    assert path.read_bytes().startswith(SIGNATURES[suffix])


def test_missing_program_dot_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        EngineError, match="Graphviz's program dot, which is not on PATH: apt-get install graphviz"
    ):
        layer_graph.write_graph(tmp_path / "graph.svg", engine("/a.0/Add"), "title")
    assert list(tmp_path.iterdir()) == []


def test_chart_shows_every_kind_and_part(tmp_path):
    found, path = recorded("onnx"), tmp_path / "chart.svg"
    write_chart(path, found, "title", gpu_ms=11.2)
    text = path.read_text()
    for kind, members in engine_layers.layers_by_kind(found.layers).items():
        time = sum(layer.time_ms for layer in members)
        assert f"{time:.3f} ms ({time / found.time_ms:.1%})" in text and KIND_COLOURS[kind] in text
    assert all(f">{part}<" in text for part in ("backbone", "neck", "encoder", "query_selection", "decoder"))
    assert "a run takes 11.200 ms" in text
