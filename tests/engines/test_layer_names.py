"""Names of nodes and layers say which module of the model they come from, on both paths."""

from __future__ import annotations

from types import SimpleNamespace

import onnx_ir
import pytest
import torch

from dynamo_path import layer_names
from onnx_path import node_names
from trt_plugin.inspection import module_names


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Inner(), Inner()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * 2


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return torch.export.export(Outer(), (torch.zeros(2, 4),), strict=True)


def test_names_of_a_traced_graph(program):
    names = layer_names.node_names(program.graph)
    named = {node.name: name for node, name in names.items() if node.op == "call_function"}
    assert named == {
        "linear": "/layers.0/linear/linear",
        "relu": "/layers.0/relu",
        "add": "/layers.0/add",
        "linear_1": "/layers.1/linear/linear_1",
        "relu_1": "/layers.1/relu_1",
        "add_1": "/layers.1/add_1",
        "mul": "/mul",
    }


def test_node_that_a_pass_made_belongs_to_what_it_takes(program):
    graph = torch.fx.Graph()
    graph.graph_copy(program.graph, {})
    (relu,) = (node for node in graph.nodes if node.name == "relu_1")
    with graph.inserting_after(relu):
        made = graph.call_function(torch.neg, (relu,))
    assert layer_names.node_names(graph)[made] == "/layers.1/neg"


class StandInLayer:
    def __init__(self, kind: str) -> None:
        self.type, self.name, self.metadata = SimpleNamespace(name=kind), "theirs", ""


class Network:
    """Stands in for tensorrt.INetworkDefinition, which exists only where there is a GPU."""

    def __init__(self) -> None:
        self.layers: list[StandInLayer] = []

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def get_layer(self, index: int) -> StandInLayer:
        return self.layers[index]


class Interpreter(torch.fx.Interpreter):
    """Adds layers as Torch-TensorRT's interpreter does, and takes the nodes' notes apart as that does."""

    KINDS = {"linear": ("CONSTANT", "CONSTANT", "MATRIX_MULTIPLY"), "relu": ("ACTIVATION",)}  # noqa: RUF012

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.ctx = SimpleNamespace(net=Network())

    def run_node(self, n):
        if stack := n.meta.get("nn_module_stack"):
            stack.popitem()
        self.ctx.net.layers += map(StandInLayer, self.KINDS.get(n.name.split("_")[0], ()))
        return super().run_node(n)


def test_layers_of_the_dynamo_path_carry_the_module(program):
    class Named(layer_names.NamedLayers, Interpreter):
        pass

    module = program.module()
    interpreter = Named(module)
    output = interpreter.run(torch.ones(2, 4))
    torch.testing.assert_close(output, module(torch.ones(2, 4)))
    layers = interpreter.ctx.net.layers
    assert [layer.name for layer in layers] == [
        f"/layers.{i}/{name}"
        for i, suffix in ((0, ""), (1, "_1"))
        for name in (
            f"linear/linear{suffix} [CONSTANT]",
            f"linear/linear{suffix} [CONSTANT 2]",
            f"linear/linear{suffix} [MATRIX_MULTIPLY]",
            f"relu{suffix} [ACTIVATION]",
        )
    ]
    assert layers[-1].metadata == "[Torch Node: /layers.1/relu_1]"
    assert module_names.node_names(layers[-1].metadata) == ("/layers.1/relu_1",)
    assert module_names.split(layers[2].name) == (("layers", "0", "linear"), "linear")


def node(operator: str, inputs: list, note: str | None) -> onnx_ir.Node:
    made = onnx_ir.Node("", operator, inputs)
    if note is not None:
        made.metadata_props[node_names.SCOPES] = note
    return made


def test_names_of_an_exported_graph():
    value = onnx_ir.Value(name="x")
    first = node("MatMul", [value], "['', 'encoder', 'encoder.layers.0', 'linear']")
    second = node("MatMul", [first.outputs[0]], "['', 'encoder', 'encoder.layers.0', 'linear_1']")
    without = node("Split", [None, second.outputs[0]], None)
    top = node("Add", [value], "['', 'add']")
    alone = node("Range", [], None)
    nodes = [first, second, without, top, alone]
    node_names.name_by_modules(onnx_ir.Graph([value], [without.outputs[0]], nodes=nodes))
    assert [x.name for x in nodes] == [
        "/encoder/layers.0/MatMul",
        "/encoder/layers.0/MatMul_1",
        "/encoder/layers.0/Split",
        "/Add",
        "/Range",
    ]


@pytest.mark.parametrize(
    ("name", "path", "operator"),
    [
        ("/backbone/stages.2/blocks.5/attn/qkv/MatMul_3", "backbone.stages.2.blocks.5.attn.qkv", "MatMul"),
        ("/encoder/layers.0/ffn/fc1/linear_12 [MATRIX_MULTIPLY]", "encoder.layers.0.ffn.fc1", "linear"),
        ("[CONVOLUTION]-[aten_ops.convolution]-[neck.conv/convolution]", "neck.conv", "convolution"),
        ("FusedAttention-[encoder.layers.3/fused_attention_3]", "encoder.layers.3", "fused_attention"),
        ("[MATRIX_MULTIPLY]_[aten_ops_linear]_[encoder_fc1/linear_matmul]", "(top)", "linear_matmul"),
        ("node_topk__0", "(top)", "topk"),
        ("/Reshape", "(top)", "Reshape"),
        ("", "(top)", ""),
    ],
)
def test_module_and_operator_of_a_node(name, path, operator):
    found = module_names.split(name)
    assert (module_names.path_text(found[0]), found[1]) == (path, operator)


def test_names_are_read_as_they_are_written():
    scopes = ["", "backbone", "backbone.stages.2", "backbone.stages.2.blocks.5"]
    name = module_names.node_name(scopes, "MatMul_4")
    assert name == "/backbone/stages.2/blocks.5/MatMul_4"
    assert module_names.split(name) == (("backbone", "stages", "2", "blocks", "5"), "MatMul")
    assert module_names.node_name([], "Add") == module_names.node_name([""], "Add") == "/Add"
    assert module_names.node_name(["a.b", "c"], "Add") == "/a.b/c/Add"


@pytest.mark.parametrize("separator", ["", "\x1e", "\x1f"])
def test_nodes_in_metadata(separator):
    entries = (
        "[ONNX Layer: /a/Add]",
        "[Torch Node: /b.0/mul_2]",
        "[ONNX Layer: x [y]]",
        "[ONNX Layer: /a/Add]",
    )
    assert module_names.node_names(separator.join(entries)) == ("/a/Add", "/b.0/mul_2", "x [y]")


def test_origin_is_the_module_of_most_nodes():
    origin = module_names.origin_of(["/a.0/norm/Add", "/a.0/attn/MatMul_1", "/a.0/attn/Add + /a.0/attn/Mul"])
    assert origin.path == ("a", "0", "attn")
    assert origin.operators == ("Add", "MatMul", "Mul")
    assert module_names.origin_of([]).path == ()
