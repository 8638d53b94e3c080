"""Parts of `onnx_path.surgeon`: finding decomposed MSDA in an ONNX graph, proving what it is, replacing it.

In the order of the work: `files` reads and writes, `probe` measures shapes, `gathers` turns sampling by
gathers into GridSample, `regions` follows samples to their weighted sum, `roles` tells what the region's
tensors are, `fusion` takes softmax and locations in, `levels` and `rewrite` draft the nodes, `proof` compares
numbers, `operation` does all this, `check` compares whole models, `report` says what was done.

Beneath: `layouts` tells where each element of a tensor comes from, `movement` that of ONNX nodes, `origins`
looks upstream by it; `graph` walks and cuts, `draft` holds nodes that are not in the graph yet, `bodies` are
those of our nodes, `runtime` and `precision` run models.
"""
