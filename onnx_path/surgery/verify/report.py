"""The report of the graph surgery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Kind = Literal[
    "msda",
    "padding-mask",
    "window-attention",
    "long-attention",
    "masked-attention",
    "group-norm",
    "linear",
]
"""What the surgeon replaces."""


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Nodes that became others, which TensorRT runs faster.

    Attributes:
        noun: the kind in words.
        kind: what they computed.
        output: the tensor that they make.
        nodes_removed: by how many nodes the graph became smaller, negative if it grew. Replacements may share
            nodes; the first of these counts them. 0 until the graph is rewritten.
        error: largest relative difference between the nodes before and after, on random tensors.
    """

    noun: ClassVar[str]
    kind: Kind = field(init=False)
    output: str
    nodes_removed: int = 0
    error: float


@dataclass(frozen=True, kw_only=True)
class AttentionReplacement(Replacement):
    """One decomposed MSDA that became one node.

    The node makes `output`, perhaps through a Reshape and Transpose.

    Attributes:
        op_type: of the node.
        levels: L.
        points: of each level.
        heads: M.
        head_dim: D.
        form: of the sampling in the file: "GridSample" or "gather".
    """

    noun = "MSDA"
    kind: Kind = field(default="msda", init=False)
    op_type: str
    levels: int
    points: tuple[int, ...]
    heads: int
    head_dim: int
    form: str

    def __str__(self) -> str:
        points = self.points[0] if len(set(self.points)) == 1 else "+".join(map(str, self.points))
        return (
            f"{self.output}: {self.op_type}, {self.levels} levels, {points} points, "
            f"{self.heads} heads x {self.head_dim} channels ({self.form})"
        )


@dataclass(frozen=True, kw_only=True)
class WindowReplacement(Replacement):
    """One window attention that became one node. `output` is the map that the windows were joined to.

    Attributes:
        window_size: in cells.
        shift: of the windows, in cells.
        heads: M.
        head_dim: D.
    """

    noun = "window attention"
    kind: Kind = field(default="window-attention", init=False)
    window_size: int
    shift: int
    heads: int
    head_dim: int

    def __str__(self) -> str:
        return (
            f"{self.output}: WindowAttention, {self.window_size}x{self.window_size} cells, "
            f"shift {self.shift}, {self.heads} heads x {self.head_dim} channels"
        )


@dataclass(frozen=True, kw_only=True)
class LongAttentionReplacement(Replacement):
    """The softmax and the product of one attention over many keys, written as other standard operators.

    Attributes:
        queries, keys: of each head.
        parts: of the keys, whose products are summed.
    """

    noun = "long attention"
    kind: Kind = field(default="long-attention", init=False)
    queries: int
    keys: int
    parts: int

    def __str__(self) -> str:
        parts = f", product in {self.parts} parts" if self.parts > 1 else ""
        return f"{self.output}: {self.queries} queries, {self.keys} keys, softmax written out{parts}"


@dataclass(frozen=True, kw_only=True)
class MaskedAttentionReplacement(Replacement):
    """One attention with a mask and an odd number of keys, which were padded to a multiple of 8.

    Attributes:
        queries, keys: of each head, without the padding.
    """

    noun = "masked attention"
    kind: Kind = field(default="masked-attention", init=False)
    queries: int
    keys: int

    def __str__(self) -> str:
        return f"{self.output}: {self.queries} queries, {self.keys} keys, padded to a multiple of 8"


@dataclass(frozen=True, kw_only=True)
class MaskReplacement(Replacement):
    """One padding mask in front of MSDA that became part of a linear layer. `output` is the masked values.

    Attributes:
        inputs, outputs: channels of the linear layer.
    """

    noun = "padding mask"
    kind: Kind = field(default="padding-mask", init=False)
    inputs: int
    outputs: int

    def __str__(self) -> str:
        return f"{self.output}: Linear, {self.inputs} -> {self.outputs} channels, with its mask"


@dataclass(frozen=True, kw_only=True)
class GroupNormReplacement(Replacement):
    """One group normalisation that became one node. `output` is its result, with channels innermost.

    Attributes:
        num_groups, channels: of the map.
    """

    noun = "group normalisation"
    kind: Kind = field(default="group-norm", init=False)
    num_groups: int
    channels: int

    def __str__(self) -> str:
        return f"{self.output}: GroupNorm, {self.channels} channels in {self.num_groups} groups"


@dataclass(frozen=True, kw_only=True)
class LinearReplacement(Replacement):
    """One linear layer that became one node with its activation or residual. `output` is the result.

    Attributes:
        inputs, outputs: channels.
        activation: "none", "gelu" or "relu".
        residual: whether the node adds a residual.
    """

    noun = "linear layer"
    kind: Kind = field(default="linear", init=False)
    inputs: int
    outputs: int
    activation: str
    residual: bool

    def __str__(self) -> str:
        form = "a residual" if self.residual else self.activation
        return f"{self.output}: Linear, {self.inputs} -> {self.outputs} channels, with {form}"


@dataclass(frozen=True)
class NearMiss:
    """Nodes that look like something to replace and stay as they are.

    Attributes:
        kind: what they look like.
        node: the first node that samples, the Where of a mask, the Softmax of an attention, the node that
            normalises, or the product of a linear layer.
        reason: why they stay.
    """

    kind: Kind
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node} as it was: {self.reason}"


@dataclass(frozen=True)
class SurgeryReport:
    """The result of the graph surgery on one model.

    Attributes:
        replacements: by kind, each in the order of the graph.
        near_misses: likewise.
        nodes_before, nodes_after: number of nodes of the main graph, without function bodies.
        max_error: largest relative difference of the model's outputs, None if not compared.
        notes: further information for the user.
        already: the number of nodes of the wanted kinds that the model had before, by operator.
    """

    replacements: tuple[Replacement, ...]
    near_misses: tuple[NearMiss, ...]
    nodes_before: int
    nodes_after: int
    max_error: float | None
    notes: tuple[str, ...] = ()
    already: Mapping[str, int] = field(default_factory=dict)

    def of(self, kind: Kind) -> tuple[Replacement, ...]:
        """Returns the replacements of a kind."""
        return tuple(one for one in self.replacements if one.kind == kind)
