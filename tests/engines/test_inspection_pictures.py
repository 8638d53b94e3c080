"""Blocks of layers, the picture of the graph and the chart of times, on parts of real engines."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from html import unescape
from itertools import chain

import pytest

from tests.engines.engine_samples import needs_dot, recorded
from trt_plugin import EngineError
from trt_plugin.inspection import layer_graph
from trt_plugin.inspection.engine_layers import Layer, LayerList, LayerTensor, layers_by_kind
from trt_plugin.inspection.layer_kinds import IDLE_TYPES, KIND_COLOURS
from trt_plugin.inspection.module_blocks import LayerBlock, blocks_of, join_equal
from trt_plugin.inspection.time_chart import write_chart

SIGNATURES = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


def engine(*nodes: str, tensors: list[str] | None = None) -> LayerList:
    """An engine with a layer for each node, which reads a tensor and writes the next."""
    names = tensors or [f"t{i}" for i in range(len(nodes) + 1)]
    found = [LayerTensor(name, (1, 4), "fp16") for name in names]
    return LayerList(
        tuple(
            Layer(f"layer {i}", "kgen", (found[i],), (found[i + 1],), nodes=(node,), time_ms=1.0, index=i)
            for i, node in enumerate(nodes)
        )
    )


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
        ({f"/a/b.{i}": A if i < 4 else B for i in range(5)}, ["a.b.0, 1, …, 3", "a.b.4"]),
        ({f"/a/b.{i}": B if i % 2 else A for i in range(4)}, ["a.b.0, 2", "a.b.1, 3"]),
        ({f"/a.{i}/b.0": A for i in range(2)}, ["a.0.b.0", "a.1.b.0"]),
        ({"/a/b.0": A, "/a/b.0/c.1": "Conv", "/d/e.0": "Add", "/d": "Mul"}, ["a.b.0", "d"]),
    ],
    ids=["equal", "alternating", "another module", "small modules join"],
)
def test_blocks(modules, expected):
    nodes = chain.from_iterable(in_modules(module, operators=x) for module, x in modules.items())
    assert titles(engine(*nodes)) == expected


def test_layer_without_a_name_joins_the_block_before():
    found = engine(*in_modules("/a.0", "/b.0"))
    copy = Layer("Reformatting CopyNode for Input Tensor 0 to c", "Reformat")
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
    again = engine(*in_modules("/a.0", "/b.0", "/c.0"), tensors=list("xabtcdtefy"))
    assert list(layer_graph.edges_of(drawn_blocks(again))) == [(0, 1), (1, 2)]


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
    write(path, engine(*in_modules("/a.0", "/b.0")), "title")
    assert path.read_bytes().startswith(SIGNATURES[suffix])


def test_missing_program_dot_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="program dot, which is not on PATH: apt-get install graphviz"):
        layer_graph.write_graph(tmp_path / "graph.svg", engine("/a.0/Add"), "title")
    assert list(tmp_path.iterdir()) == []


def test_chart_shows_every_kind_and_part(tmp_path):
    found, path = recorded("onnx"), tmp_path / "chart.svg"
    write_chart(path, found, "title", gpu_ms=11.2)
    text = path.read_text()
    for kind, members in layers_by_kind(found.layers).items():
        time = sum(layer.time_ms for layer in members)
        assert f"{time:.3f} ms ({time / found.time_ms:.1%})" in text and KIND_COLOURS[kind] in text
    assert all(f">{part}<" in text for part in ("backbone", "neck", "encoder", "query_selection", "decoder"))
    assert "a run takes 11.200 ms" in text
