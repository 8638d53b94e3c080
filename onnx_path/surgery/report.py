"""What surgery did and did not do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Replacement:
    """One MSDA that became one node.

    Attributes:
        output: the tensor that the node, or what follows it, now makes.
        op_type: of the node.
        levels: L.
        points: of each level.
        heads: M.
        head_dim: D.
        nodes_removed: how many nodes less the graph has for it; the first of several that share nodes has
            fewer.
        form: how the sampling was written: "GridSample" or "gather".
        error: largest relative difference of the node's result from the decomposed one's, on random tensors.
    """

    output: str
    op_type: str
    levels: int
    points: tuple[int, ...]
    heads: int | None
    head_dim: int | None
    nodes_removed: int
    form: str
    error: float

    def __str__(self) -> str:
        points = self.points[0] if len(set(self.points)) == 1 else "+".join(map(str, self.points))
        return (
            f"{self.output}: {self.op_type}, {self.levels} levels, {points} points, "
            f"{self.heads} heads x {self.head_dim} channels ({self.form})"
        )


@dataclass(frozen=True)
class NearMiss:
    """Something that looked like MSDA and stayed as it was.

    Attributes:
        node: the first sampling node of it.
        reason: why it stayed.
    """

    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node} as it was: {self.reason}"


@dataclass(frozen=True)
class Report:
    """The whole of it.

    Attributes:
        replacements, near_misses: in the order of the graph.
        nodes_before, nodes_after: of the main graph, bodies of functions not counted.
        max_error: largest relative difference of the model's outputs, None if not compared.
        notes: what else a user should know.
        already: MSDA nodes, ours and NVIDIA's, that the model had before.
    """

    replacements: tuple[Replacement, ...]
    near_misses: tuple[NearMiss, ...]
    nodes_before: int
    nodes_after: int
    max_error: float | None
    notes: tuple[str, ...] = ()
    already: int = 0
