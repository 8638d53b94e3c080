"""Drafting the replacement of a padding mask: a node `Linear`, which multiplies by the mask."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_path.surgery.find.recognise_masks import MaskedLinear
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.rewrite.draft import Draft, DraftBuilder
from onnx_path.surgery.rewrite.linear_nodes import add_linear


def draft_mask(masked: MaskedLinear, probes: Sequence[Probe]) -> Draft:
    """Drafts the node of a linear layer with a mask.

    Raises:
        LayoutError: sizes that change with the model's inputs cannot be computed.
    """
    end = masked.end
    draft = DraftBuilder(f"{end.name}/msda")
    x, mask = draft.source(masked.x, "normal"), draft.source(masked.mask, "mask")
    if not masked.keeps:
        mask = draft.add("Not", [mask])
    rows = [probe.shape(masked.x)[:-1] for probe in probes]
    given = [probe.shape(masked.mask) for probe in probes]
    mask = draft.cast(draft.reshape(mask, given, [(*sizes, 1) for sizes in rows]), x.dtype)
    result = add_linear(draft, x, masked.layer, mask=mask)
    made = [(*sizes, len(masked.layer.bias)) for sizes in rows]
    result = draft.reshape(result, made, [probe.shape(end) for probe in probes])
    return draft.finish(result, end)
