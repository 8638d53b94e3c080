"""Draws how the threads of the forward group kernels share the work, for kernels/README.md:

python kernels/lab/draw_mapping.py assets/thread_mapping.png
"""

from __future__ import annotations

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, Rectangle

HEADS = ("#4c72b0", "#dd8452")
PALE = ("#c5d3ea", "#f5d5c0")
GREY = "#d9d9d9"


def box(
    axes, x: float, y: float, width: float, height: float, colour: str, text: str = "", size: int = 8
) -> None:
    """A filled rectangle with a text in it."""
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="white", linewidth=1))
    if text:
        axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)


def arrow(axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From one panel to the next."""
    style = {"arrowstyle": "-|>", "mutation_scale": 12, "color": "#555555", "linewidth": 1.2}
    axes.add_patch(FancyArrowPatch(start, end, **style))


def title(axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="left", va="bottom", fontsize=9, fontweight="bold")


def draw(path: str) -> None:
    """Writes the picture."""
    figure, axes = plt.subplots(figsize=(11, 5.4))
    axes.set_xlim(0, 44)
    axes.set_ylim(-1.6, 20)
    axes.set_aspect("equal")
    axes.axis("off")

    title(axes, 0, 18.2, "Block: a tile of 8 x 8 queries,\ntwo neighbouring heads")
    for row in range(8):
        for column in range(8):
            first = row == 0 and column < 4
            box(axes, column * 1.2, 16.4 - row * 1.2, 1.15, 1.15, "#ffe08a" if first else GREY)
    axes.text(
        0, 6.6, "16 warps of 4 queries; each block goes\nfrom tile to tile, heads last", va="top", fontsize=8
    )
    arrow(axes, (5.2, 17.0), (12.6, 17.0))

    title(axes, 13, 18.2, "Warp: 4 queries x 2 heads x 4 lanes")
    for query in range(4):
        for head in range(2):
            for lane in range(4):
                x = 13 + query * 4.6 + lane * 1.05
                box(axes, x, 16.2 - head * 1.3, 1.0, 1.15, PALE[head], str(query * 8 + head * 4 + lane), 7)
        axes.text(15.1 + query * 4.6, 14.4, f"query {query}", ha="center", fontsize=8)
    axes.text(32.0, 16.7, "head m", fontsize=8, va="center", color=HEADS[0])
    axes.text(32.0, 15.4, "head m + 1", fontsize=8, va="center", color=HEADS[1])

    title(axes, 13, 11.9, "Four lanes, a group: each works out the four samples of one level ...")
    for lane in range(4):
        box(axes, 13 + lane * 4.2, 10.2, 4.0, 1.2, PALE[0], f"lane {lane}: level {lane}", 8)
        for point in range(4):
            box(axes, 13 + lane * 4.2 + point * 1.0, 9.0, 0.95, 1.05, GREY, f"s{point}", 7)
    axes.text(
        30.2, 10.2, "softmax, cell, corner weights;\na fifth level: one sample each", fontsize=8, va="center"
    )
    arrow(axes, (21, 8.8), (21, 7.6))
    axes.text(21.5, 8.2, "three shuffles for a sample", fontsize=8, va="center")

    title(axes, 13, 6.3, "... and takes its 16 bytes of the four corners of all of them")
    for cell, (x, y) in enumerate(((13, 4.1), (24, 4.1), (13, 1.9), (24, 1.9))):
        name = ("top left", "top right", "bottom left", "bottom right")[cell]
        for chunk in range(8):
            head = chunk // 4
            text = f"{chunk}" if head == 0 else ""
            box(axes, x + chunk * 1.3, y, 1.25, 1.1, PALE[head], text, 7)
        axes.text(x, y + 1.2, f"{name}: lanes", fontsize=8, va="bottom")
    axes.text(
        13,
        1.2,
        "A cell of two heads is one 128-byte line. Lanes 4 to 7 read the other half of another line: "
        "eight lanes meet\nno bank twice, and L1 serves them in one clock.",
        fontsize=8,
        va="top",
    )
    axes.text(36.0, 4.3, "blend in packed\n16-bit arithmetic,\nadd in float32", fontsize=8, va="center")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    draw(sys.argv[1])
