"""Blocks of layers, the picture of the graph, the chart of times: on parts of real engines."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest
from PIL import Image

from tests.test_inspection_layers import sample
from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import engine_layers, layer_graph, layer_kinds, module_blocks, time_chart
from trt_plugin.inspection.canvas import Canvas, shorten, text_width

SAMPLES = ("onnx", "dynamo")


def engine(*nodes: str, shape: tuple[int, ...] = (1, 4), times: bool = False) -> engine_layers.LayerList:
    """An engine with one layer for each node, each taking what the one before gives."""
    tensors = [
        {"Name": f"t{i}", "Dimensions": list(shape), "Format/Datatype": "Half"} for i in range(len(nodes) + 1)
    ]
    entries = [
        {
            "Name": f"layer {index}",
            "LayerType": "kgen",
            "Inputs": [tensors[index]],
            "Outputs": [tensors[index + 1]],
            "Metadata": f"[ONNX Layer: {node}]",
        }
        for index, node in enumerate(nodes)
    ]
    found = engine_layers.parse(json.dumps({"Layers": entries, "Bindings": ["t0"]}))
    return found.with_times({layer.name: 1.0 for layer in found.layers}) if times else found


def block(path: str, *operators: str) -> list[str]:
    return [f"{path}/{operator}" for operator in operators]


def titles(found: engine_layers.LayerList) -> list[str]:
    return [repeated.title for repeated in module_blocks.collapse(module_blocks.blocks_of(found.layers))]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_working_layer_is_in_one_block(name):
    found = sample(name)
    repeated = module_blocks.collapse(module_blocks.blocks_of(found.layers))
    shown = Counter(layer.name for one in repeated for layer in one.layers)
    assert shown == Counter(x.name for x in found.layers if x.type not in module_blocks.IDLE_TYPES)
    assert max(shown.values()) == 1


def test_blocks_of_a_real_engine():
    """Swin's blocks take turns between windows that are shifted and windows that are not."""
    found = titles(sample("onnx"))
    assert "backbone.stages.2.blocks.4, 6" in found and "backbone.stages.2.blocks.5, 7" in found
    assert "encoder.layers.1, 2" in found
    assert {"neck.convs.0", "decoder.layers.0", "query_selection"} <= set(found)


def test_equal_blocks_are_drawn_once():
    a, b = ("Add", "MatMul", "Relu"), ("Conv", "Add", "Mul")
    nodes = [node for i in range(5) for node in block(f"/body/blocks.{i}", *(a if i < 4 else b))]
    assert titles(engine(*nodes)) == ["body.blocks.0, 1, …, 3", "body.blocks.4"]
    nodes = [node for i in range(4) for node in block(f"/body/blocks.{i}", *(b if i % 2 else a))]
    assert titles(engine(*nodes)) == ["body.blocks.0, 2", "body.blocks.1, 3"]
    other = [node for stage in (0, 1) for node in block(f"/stages.{stage}/blocks.0", *a)]
    assert titles(engine(*other)) == ["stages.0.blocks.0", "stages.1.blocks.0"]


def test_fused_nodes_may_come_in_any_order():
    one, other = (
        engine_layers.Layer("x", nodes=nodes)
        for nodes in (("/a.0/Add", "/a.0/Mul"), ("/a.0/Mul", "/a.0/Add"))
    )
    assert module_blocks.Block(("a", "0"), (one,)).form == module_blocks.Block(("a", "0"), (other,)).form


def test_small_modules_belong_to_the_block_around_them():
    nodes = [*block("/a/layers.0", "Add", "Mul"), "/a/layers.0/heads.1/Conv", "/b/norms.0/Add", "/b/Mul"]
    assert titles(engine(*nodes)) == ["a.layers.0", "b"]


def test_layer_without_a_name_belongs_to_the_block_before():
    found = engine(*block("/a.0", "Add", "Mul", "Sub"), *block("/b.0", "Add", "Mul", "Sub"))
    copy = engine_layers.Layer("Reformatting CopyNode for Input Tensor 0 to c", "Reformat")
    first, second = module_blocks.blocks_of([*found.layers[:3], copy, *found.layers[3:]])
    assert first.layers[3] is copy and len(first.layers) == 4 and len(second.layers) == 3


def test_engine_without_names_is_cut_into_blocks():
    found = engine(*(f"node_add_{i}" for i in range(60)))
    assert [len(one.layers) for one in module_blocks.blocks_of(found.layers)] == [24, 24, 12]
    assert titles(found) == ["(top), 2 times", "(top)"]


def boxes_of(found: engine_layers.LayerList) -> list[layer_graph.Box]:
    made = [
        layer_graph.Box(one, layer_graph.rows_of(one))
        for one in module_blocks.collapse(module_blocks.blocks_of(found.layers))
    ]
    layer_graph._place(made)
    return made


@pytest.mark.parametrize("name", SAMPLES)
def test_boxes_do_not_overlap(name):
    found = sample(name)
    canvas = layer_graph.draw(found, "title")
    made = boxes_of(found)
    for box in made:
        assert box.x > 0 and box.x + layer_graph.WIDTH < canvas.width
        assert box.y >= layer_graph.TOP and box.y + box.height < canvas.height
    for one, other in itertools.combinations(made, 2):
        if one.column == other.column:
            assert one.y + one.height < other.y or other.y + other.height < one.y
        else:
            assert abs(one.x - other.x) >= layer_graph.WIDTH


def test_arrows_are_tensors_between_blocks():
    a, b, c = ([f"/{name}.0/{x}" for x in ("Add", "Mul", "Sub")] for name in "abc")
    made = boxes_of(engine(*a, *b, *c))
    assert layer_graph.edges_of(made) == {(0, 1): {"t3": 8}, (1, 2): {"t6": 8}}


def test_a_name_stands_for_the_tensor_written_last():
    """TensorRT's compiler of subgraphs uses the same names again."""
    content = [("a.0", "x", "t"), ("b.0", "t", "u"), ("c.0", "u", "t"), ("d.0", "t", "y")]
    tensor = {"Dimensions": [4], "Format/Datatype": "Float"}
    entries = [
        {
            "Name": f"/{module}/Add_{i}",
            "Inputs": [{"Name": source, **tensor}],
            "Outputs": [{"Name": target if i == 2 else f"{target}{module}{i}", **tensor}],
        }
        for module, source, target in content
        for i in range(3)
    ]
    made = boxes_of(engine_layers.parse(json.dumps({"Layers": entries, "Bindings": ["x"]})))
    assert list(layer_graph.edges_of(made)) == [(0, 1), (1, 2), (2, 3)]


def test_large_block_sums_small_steps_up():
    found = engine(*(f"/a.0/{'MatMul' if i % 6 == 0 else 'Reshape'}_{i}" for i in range(36)))
    (one,) = module_blocks.collapse(module_blocks.blocks_of(found.layers))
    rows = layer_graph.rows_of(one)
    assert len(rows) < 26 and sum(len(row.layers) for row in rows) == 36
    assert {row.label for row in rows if len(row.layers) > 1} == {"5 steps"} or len(rows) == 1


@pytest.mark.parametrize("name", SAMPLES)
def test_graph_as_svg(name, tmp_path):
    found = sample(name)
    path = tmp_path / "graph.svg"
    layer_graph.draw(found, "Schnabel & <Co>").save(path)
    tree = ElementTree.parse(path)
    space = "{http://www.w3.org/2000/svg}"
    texts = ["".join(element.itertext()) for element in tree.iter(f"{space}text")]
    tips = "\n".join(element.text for element in tree.iter(f"{space}title"))
    assert "Schnabel & <Co>" in texts
    colours = {element.get("fill") for element in tree.iter(f"{space}rect")}
    assert {layer_kinds.COLOURS[layer.kind] for layer in found.layers} <= colours
    shown = [row for box in boxes_of(found) for row in box.rows]
    for row in shown:
        assert row.layers[0].name in tips
    assert len(list(tree.iter(f"{space}polygon"))) == len(layer_graph.edges_of(boxes_of(found)))


def test_pictures_are_the_same_every_time():
    assert layer_graph.draw(sample("onnx"), "a").svg() == layer_graph.draw(sample("onnx"), "a").svg()


def test_graph_as_png(tmp_path):
    found = engine(*block("/a.0", "Add", "Mul", "Sub"), *block("/b.0", "Add", "Mul", "Sub"), times=True)
    path = tmp_path / "graph.png"
    canvas = layer_graph.draw(found, "title")
    canvas.save(path)
    with Image.open(path) as image:
        assert image.size == (round(2 * canvas.width), round(2 * canvas.height))
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    kind = layer_kinds.COLOURS[found.layers[0].kind]
    assert tuple(int(kind[i : i + 2], 16) for i in (1, 3, 5)) in colours


def test_chart_shows_every_kind_and_part(tmp_path):
    found = sample("onnx")
    text = time_chart.draw(found, "title", gpu_ms=11.2).svg()
    for kind in {layer.kind for layer in found.layers}:
        time = sum(layer.time_ms for layer in found.layers if layer.kind == kind)
        assert f"{time:.3f} ms ({time / found.time_ms:.1%})" in text
    for part in ("backbone", "neck", "encoder", "query_selection", "decoder"):
        assert f">{part}</text>" in text
    assert "a run takes 11.200 ms" in text
    time_chart.draw(found, "title").save(tmp_path / "chart.png")
    with Image.open(tmp_path / "chart.png") as image:
        assert image.width > 1000


def test_chart_of_an_engine_without_names_has_no_parts():
    assert "by part" not in time_chart.draw(engine("add", "mul", times=True), "title").svg()


def test_only_two_formats(tmp_path):
    with pytest.raises(EngineError, match=r"graph.pdf: expected a name that ends in .svg or .png"):
        Canvas(10, 10).save(tmp_path / "graph.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["a", "encoder.layers.3.self_attn.FusedMultiScaleDeformableAttention", "mmmmmmmmm", ""]
)
def test_text_is_cut_in_the_middle(text):
    for width in (20, 60, 300):
        cut = shorten(text, 10, width)
        assert text_width(cut, 10) <= width
        assert cut == text or (text_width(text, 10) > width and "…" in cut)
