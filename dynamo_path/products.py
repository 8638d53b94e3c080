"""Linear layers as products with transposed weights, in a graph on its way to TensorRT.

Torch-TensorRT lets TensorRT transpose a layer's weights as they lie. Then TensorRT 10.6 does not see that what
reads parts of the result, as queries, keys and values do, could be given them by one batched product: it copies
each part out. With weights that lie as the product reads them, as in an ONNX file, it does.
"""

from __future__ import annotations

import operator

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dynamo_path.packing import LINEAR


def transpose_weights(module: torch.fx.GraphModule) -> int:
    """Writes linear layers with constant weights as products and sums, in place.

    Returns:
        How many.
    """
    graph, count = module.graph, 0
    for node in list(graph.nodes):
        if node.target is not LINEAR or node.args[1].op != "get_attr":
            continue
        source, weight, *bias = node.args
        name = f"transposed_{weight.target.replace('.', '_')}"
        with graph.inserting_before(node):
            # Weights have numbers, also while others' sizes alone are traced.
            with torch.no_grad(), unset_fake_temporarily():
                if not hasattr(module, name):
                    lying = operator.attrgetter(weight.target)(module)
                    module.register_buffer(name, lying.detach().t().contiguous())
            transposed = graph.get_attr(name)
            transposed.meta["val"] = getattr(module, name)
            steps = [(torch.ops.aten.matmul.default, transposed)]
            steps += [(torch.ops.aten.add.Tensor, addend) for addend in bias if addend is not None]
            result = source
            for target, operand in steps:
                result = graph.call_function(target, (result, operand))
                result.meta = dict(node.meta)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        count += 1
    graph.eliminate_dead_code()
    module.recompile()
    return count
