"""The graph surgery: one node for each decomposed MSDA and each window attention in an ONNX graph.

`pipeline.operate` runs four steps. Each step returns new immutable objects; the last line writes a new model.

    find     `find.samplers` lists the bilinear samplers: GridSample nodes, and gathers that compute the same.
             `find.regions` follows the samples to their weighted sum.
    roles    `find.recognise_msda` decides whether a region is MSDA, and which tensor has which role.
             `find.recognise_fused_inputs` looks for softmax and locations in front of it.
             `find.recognise_windows` does both for window attention: it starts at a Softmax, and goes through
             `find.window_paths` to the maps in front and behind.
    draft    `rewrite.operator_nodes` and `rewrite.window_nodes` draft the replacement: the operator, its
             inputs, its result.
    verify   `verify.proof` runs region and draft on random numbers; `verify.model_comparison` runs both
    models.

Two rooms lie beneath. `graph` reads, measures, cuts and runs ONNX graphs. `layouts` tells where each element
of a tensor comes from.
"""
