"""Names of nodes and layers say which module of the model they come from, on both paths."""

from __future__ import annotations

from types import SimpleNamespace

import onnx_ir
import pytest
import torch

from dynamo_path import layer_names
from onnx_path import node_names
from trt_plugin.inspection import module_names


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x * 2


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return torch.export.export(Model(), (torch.zeros(2, 4),), strict=True)


def test_names_of_a_traced_graph(program):
    graph = torch.fx.Graph()
    graph.graph_copy(program.graph, {})
    (linear,) = (node for node in graph.nodes if node.name == "linear_1")
    with graph.inserting_after(linear):  # as a pass does, without metadata
        graph.call_function(torch.neg, (linear,))
    names = layer_names.node_names(graph)
    assert [name for node, name in names.items() if node.op == "call_function"] == [
        "/layers.0/linear",
        "/relu",
        "/layers.1/linear_1",
        "/layers.1/neg",
        "/relu_1",
        "/mul",
    ]


class Network(list):
    """Stands in for tensorrt.INetworkDefinition, which exists only where there is a GPU."""

    num_layers = property(len)
    get_layer = list.__getitem__


class Interpreter(torch.fx.Interpreter):
    """Adds layers as Torch-TensorRT's interpreter does, and takes the nodes' notes apart as that does."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.ctx = SimpleNamespace(net=Network())

    def run_node(self, n):
        if stack := n.meta.get("nn_module_stack"):
            stack.popitem()
        kinds = ("CONSTANT", "CONSTANT", "MATRIX_MULTIPLY") if n.name.startswith("linear") else ()
        self.ctx.net += [SimpleNamespace(type=SimpleNamespace(name=kind)) for kind in kinds]
        return super().run_node(n)


def test_layers_of_the_dynamo_path_carry_the_module(program):
    class Named(layer_names.NamedLayers, Interpreter):
        pass

    module = program.module()
    interpreter = Named(module)
    torch.testing.assert_close(interpreter.run(torch.ones(2, 4)), module(torch.ones(2, 4)))
    layers = interpreter.ctx.net
    assert [layer.name for layer in layers] == [
        f"/layers.{name} [{kind}]"
        for name in ("0/linear", "1/linear_1")
        for kind in ("CONSTANT", "CONSTANT 2", "MATRIX_MULTIPLY")
    ]
    assert module_names.node_names(layers[-1].metadata) == ("/layers.1/linear_1",)
    assert module_names.split(layers[2].name) == (("layers", "0"), "linear")


def test_names_of_an_exported_graph():
    def node(operator: str, inputs: list, note: str | None) -> onnx_ir.Node:
        made = onnx_ir.Node("", operator, inputs)
        made.metadata_props.update({node_names.SCOPES: note} if note else {})
        return made

    value = onnx_ir.Value(name="x")
    first = node("MatMul", [value], "['', 'encoder', 'encoder.layers.0', 'linear']")
    second = node("MatMul", [first.outputs[0]], "['', 'encoder', 'encoder.layers.0', 'linear_1']")
    without = node("Split", [None, second.outputs[0]], None)
    top = node("Add", [value], "['', 'add']")
    graph = onnx_ir.Graph([value], [without.outputs[0]], nodes=[first, second, without, top])
    node_names.name_by_modules(graph)
    layer = "/encoder/layers.0"
    assert [x.name for x in graph] == [f"{layer}/MatMul", f"{layer}/MatMul_1", f"{layer}/Split", "/Add"]


@pytest.mark.parametrize(
    ("name", "path", "operator"),
    [
        ("/backbone/stages.2/blocks.5/attn/qkv/MatMul_3", "backbone.stages.2.blocks.5.attn.qkv", "MatMul"),
        ("/encoder/layers.0/ffn/fc1/linear_12 [MATRIX_MULTIPLY]", "encoder.layers.0.ffn.fc1", "linear"),
        ("[CONVOLUTION]-[aten_ops.convolution]-[neck.conv/convolution]", "neck.conv", "convolution"),
        ("FusedAttention-[encoder.layers.3/fused_attention_3]", "encoder.layers.3", "fused_attention"),
        ("[MATRIX_MULTIPLY]_[aten_ops_linear]_[encoder_fc1/linear_matmul]", "(top)", "linear_matmul"),
        ("node_topk__0", "(top)", "topk"),
        ("", "(top)", ""),
    ],
)
def test_module_and_operator_of_a_node(name, path, operator):
    found = module_names.split(name)
    assert (module_names.path_text(found[0]), found[1]) == (path, operator)


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


def test_quantised_tensors_are_no_modules():
    weights, conv = "neck.convs.0.conv.weight", "/neck/convs.0/conv/Conv"
    for nodes in ([f"{weights}/int8 + {conv}"], [conv, "layer_norm_6/dequantized", f"{weights}/dequantize"]):
        assert module_names.origin_of(nodes) == module_names.Origin(("neck", "convs", "0", "conv"), ("Conv",))
    assert module_names.origin_of(["relu_1/fp8"]).path == ("relu_1",)
