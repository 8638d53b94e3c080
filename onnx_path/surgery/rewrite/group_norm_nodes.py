"""Drafting the replacement of a group normalisation: a transposition, rows of cells, the node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_path.nodes import group_norm
from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.surgery.find.recognise_group_norms import GroupNorm
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.rewrite.draft import Draft, DraftBuilder


def draft_group_norm(norm: GroupNorm, probes: Sequence[Probe]) -> Draft:
    """Drafts the node of a group normalisation.

    Raises:
        LayoutError: sizes that change with the model's inputs cannot be computed.
    """
    prefix = f"{norm.end.name}/msda"
    draft = DraftBuilder(prefix)
    x = draft.source(norm.map, "normal")
    weights = [
        draft.initializer(f"{prefix}/{name}", np.ascontiguousarray(array, x.dtype.numpy()))
        for name, array in (("weight", norm.weight), ("bias", norm.bias))
    ]
    sizes = [probe.shape(norm.map) for probe in probes]
    maps = [(images, *sides, channels) for images, channels, *sides in sizes]
    cells = draft.add("Transpose", [x], perm=[0, 2, 3, 1])
    # In front of the node TensorRT joins the Reshape with the Transpose. Behind it, it copies the result.
    cells = draft.reshape(cells, maps, [probe.shape(norm.end) for probe in probes])
    numbers = {"num_groups": norm.num_groups, "eps": norm.eps}
    result = draft.add(group_norm.GROUP_NORM, [cells, *weights], DOMAIN, **numbers, **PLUGIN_ATTRIBUTES)
    return draft.finish(result, norm.end)
