"""The graph surgery: one node for each decomposed MSDA and for what is near it in an ONNX graph.

`pipeline.operate` runs four steps for each kind of node; `kinds` has a function for each. The last line
writes a new model. Linear layers come last: the steps find them in the model that has all other nodes.

    find     `find.samplers` lists the bilinear samplers: GridSample nodes, and gathers that compute the same.
             `find.regions` follows the samples to their weighted sum.
    roles    `find.recognise_msda` decides whether a region is MSDA, and which tensor has which role.
             `find.recognise_fused_inputs` looks for softmax and locations in front of it.
             `find.recognise_windows` does both for window attention: it starts at a Softmax, and goes through
             `find.window_paths` to the maps in front and behind.
             `find.recognise_long_attention` goes from a Softmax over many keys to the product behind it, and
             `find.recognise_masked_attention` to the mask and the product in front, too.
             `find.recognise_masks` goes from the values of MSDA to the mask in front of them.
             `find.recognise_group_norms` goes from a node that normalises groups to map and result.
             `find.recognise_linears` goes from a matrix product to its activation or residual.
    draft    `rewrite.operator_nodes`, `rewrite.mask_nodes`, `rewrite.window_nodes`,
             `rewrite.group_norm_nodes` and `rewrite.linear_nodes` draft the replacement: the operator, its
             inputs, its result. `rewrite.long_attention_nodes` and `rewrite.masked_attention_nodes` draft
             standard operators.
    verify   `verify.proof` runs region and draft on random numbers; `verify.model_comparison` runs both
    models.

Two rooms lie beneath. `graph` reads, measures, cuts and runs ONNX graphs. `layouts` tells where each element
of a tensor comes from.
"""
