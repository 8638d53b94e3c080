"""Finding window attention as Swin Transformers write it: a map cut into windows, each attending to itself.

Letters: N images of H x W cells, C channels, B windows of all images, M heads, D channels of a head, L cells
of a window. Exporters write these steps: pad and roll the map; cut it into windows [B, L, C]; linear layers
to queries, keys and values; attention with a bias; a linear layer; the movements in reverse.

Masks, scales, biases and the order of channels are read from numbers: parts of the graph run on zeros, on
ones, and on numbers that tell channels or cells apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.find.window_paths import (
    columns,
    exact,
    linear_bias,
    linear_weight,
    moves,
    moving_inputs,
    readers,
    results,
    run,
    scales,
    sources,
)
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import attribute, is_op

FAST_HEAD_DIMS = (16, 32, 64)
FAST_WINDOW_SIZES = (7, 8, 12, 16)
"""Sizes of the tensor-core kernel, see kernels/include/msda/window_choice.h."""

_MASKED = -50.0  # exp(-50) is below the last digit of a softmax in float32


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear layer.

    Attributes:
        weight: [in, out].
        bias: [out].
    """

    weight: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True, eq=False)
class Windows:
    """A window attention with the linear layers around it, at one probe.

    Attributes:
        map: the tensor that the windows are cut from, [N, H, W, C] or [N, H · W, C].
        end: the tensor that they are joined to, of as many cells.
        size: (N, H, W).
        window_size, shift: in cells.
        heads, head_dim: M and D.
        qkv: to queries, keys and values, 3 · M · D columns.
        bias: [M, L, L].
        projection: of the result, None if there is none.
    """

    map: ir.Value
    end: ir.Value
    size: tuple[int, int, int]
    window_size: int
    shift: int
    heads: int
    head_dim: int
    qkv: Linear
    bias: np.ndarray
    projection: Linear | None


def window_softmaxes(graph: ir.Graph, probes: Sequence[Probe]) -> Iterator[ir.Node]:
    """Yields the Softmax nodes whose rows and columns could be the cells of square windows."""
    for node in graph:
        if is_op(node, "Softmax"):
            shapes = [probe.shape(node.outputs[0]) for probe in probes]
            last = attribute(node, "axis", -1) in (-1, len(shapes[0] or ()) - 1)
            if last and all(shape and _is_square(shape) for shape in shapes):
                yield node


def is_cut(softmax: ir.Node, probe: Probe) -> bool:
    """Returns True if a Softmax has more rows of windows than the model has images."""
    images = [shape[0] for x in probe.model.graph.inputs if (shape := probe.shape(x)) and len(shape) == 4]
    return bool(images) and math.prod(probe.shape(softmax.outputs[0])[:-3]) > images[0]


def _is_square(shape: Sequence[int]) -> bool:
    return len(shape) >= 4 and shape[-1] == shape[-2] >= 4 and math.isqrt(shape[-1]) ** 2 == shape[-1]


def recognise_windows(softmax: ir.Node, ends: Collection[ir.Value], probe: Probe) -> Windows:
    """Finds maps, linear layers and bias of the attention that a Softmax belongs to.

    Args:
        softmax: the node.
        ends: maps of the window attentions before, which become their nodes' results.
        probe: gives the sizes.

    Raises:
        NotAttention: it is no window attention.
        NotClosed, onnx_session.CannotRun: onnxruntime cannot run a part of it.
    """
    logits = softmax.inputs[0]
    product = _product(logits, probe)
    value, attended = _attended(softmax.outputs[0], probe)
    query, key = product.inputs
    heads, cells, _ = probe.shape(logits)[-3:]
    head_dim = probe.shape(query)[-1]
    if probe.shape(query)[-3:] != (heads, cells, head_dim):
        raise NotAttention("its queries are not [..., heads, cells, channels]")
    if probe.shape(key)[-3:] != (heads, head_dim, cells) or probe.shape(value) != probe.shape(query):
        raise NotAttention("its keys or values have other sizes than its queries")

    def rows(array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, heads, cells, head_dim).swapaxes(1, 2).reshape(-1, heads * head_dim)

    def key_rows(array: np.ndarray) -> np.ndarray:
        return rows(array.reshape(-1, heads, head_dim, cells).swapaxes(2, 3))

    roles = ((query, "the queries", rows), (key, "the keys", key_rows), (value, "the values", rows))
    inputs, layers, factors = zip(*(linear_layer(x, name, arrange, probe) for x, name, arrange in roles))
    if len({(x.weight.shape[0], probe.shape(given)) for x, given in zip(layers, inputs)}) > 1:
        raise NotAttention("its queries, keys and values come from windows of other sizes")
    scale, bias, mask = _bias(product.outputs[0], logits, probe)
    # The operator divides by sqrt(D). Another scale goes into the weights of the queries.
    scale = exact(scale * factors[0] * factors[1] * math.sqrt(head_dim))
    if scale != 1 and inputs[0].dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        raise NotAttention(
            f"its scale is {scale:.5f} / sqrt({head_dim}), and weights in {inputs[0].dtype.name.lower()} "
            "are too coarse to hold the factor"
        )
    shares = [scale, 1.0, factors[2]]
    qkv = Linear(
        np.concatenate([x.weight * share for x, share in zip(layers, shares)], axis=1),
        np.concatenate([x.bias * share for x, share in zip(layers, shares)]),
    )
    window_size = math.isqrt(cells)
    reasons = []
    for start, size, shifts, numbers in _maps(list(dict.fromkeys(inputs)), window_size, ends, probe):
        shift = shifts[0]
        whole = math.prod(-(-side // window_size) for side in size[1:]) == 1
        if whole and not bias.any() and not mask.any():
            raise NotAttention("it has one window and no bias: it attends to the whole map")
        if shift != shifts[1]:
            reasons.append(f"its rows are shifted by {shift} cells, its columns by {shifts[1]}")
        elif not np.array_equal(mask, _shift_mask(size, window_size, shift, heads)):
            reasons.append(f"its mask is not that of windows of {window_size} cells, shifted by {shift}")
        elif (joined := _joined(attended, size, numbers, (heads, head_dim), probe)) is None:
            reasons.append("its windows are not joined to the map that they were cut from")
        else:
            return Windows(start, joined[0], size, window_size, shift, heads, head_dim, qkv, bias, joined[1])
    raise NotAttention(reasons[0] if reasons else "its cells form no square windows of a map")


# From the Softmax to the linear layers


def _product(logits: ir.Value, probe: Probe) -> ir.Node:
    """Returns the product of queries and keys."""
    value = logits
    while True:
        node = value.producer()
        found = moving_inputs(node, probe)
        if is_op(node, "MatMul") and len(found) == 2:
            return node
        if len(found) != 1 or not (scales(node, probe) or is_op(node, "Where")):
            raise NotAttention(f"its logits come from {node_name(node)}, not from queries and keys")
        value = found[0]


def _attended(weights: ir.Value, probe: Probe) -> tuple[ir.Value, ir.Value]:
    """Returns the values, and the result of the product with them."""
    while True:
        found = readers(weights, probe)
        if weights.is_graph_output() or len(found) != 1:
            raise NotAttention(f"{weights.name}, which is on the way, is read elsewhere too")
        (node,) = found
        product = is_op(node, "MatMul") and node.inputs[0] is weights and not probe.is_static(node.inputs[1])
        if product and probe.shape(node.outputs[0]) is not None:
            return node.inputs[1], node.outputs[0]
        if not moves(node, probe):
            raise NotAttention(f"its weights go to {node_name(node)}, not to a product with values")
        weights = node.outputs[0]


def linear_layer(
    value: ir.Value, name: str, rows: Callable[[np.ndarray], np.ndarray], probe: Probe
) -> tuple[ir.Value, Linear, float]:
    """Returns the input of the linear layer that makes a tensor, the layer, and the factor behind it.

    Args:
        value: the tensor.
        name: what it is, for errors.
        rows: reshapes it to [cells, columns].
        probe: gives the sizes.

    Raises:
        NotAttention: no linear layer makes the tensor.
        NotClosed, onnx_session.CannotRun: onnxruntime cannot run a part of it.
    """
    at = value
    while (weight := linear_weight(at.producer(), probe)) is None:
        found = moving_inputs(at.producer(), probe)
        if is_op(at.producer(), "Div") and len(found) == 2:
            raise NotAttention(f"{name} are quotients, as in the cosine attention of SwinV2")
        if not scales(at.producer(), probe) or len(found) != 1:
            raise NotAttention(f"{name} come from {node_name(at.producer())}, not from a linear layer")
        at = found[0]
    found = columns(probe, at, value, rows, name)
    own = linear_bias(at.producer(), probe)
    bias = own[found.source] + found.added / found.factor
    return at.producer().inputs[0], Linear(weight[:, found.source], bias), found.factor


def _bias(product: ir.Value, logits: ir.Value, probe: Probe) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the factor of a product in the logits, the bias [M, L, L] and the mask [B, M, L, L]."""
    shape = (-1, *probe.shape(logits)[-3:])
    added = run(probe, product, np.zeros(1), logits).reshape(shape)
    bias = added.max(0)
    bias[bias < _MASKED] = 0  # such a pair is masked in all windows
    mask = added - bias < _MASKED
    kept = ~mask
    if not kept.any():
        raise NotAttention("all its cells are masked")
    if not np.allclose((added - bias)[kept], 0, atol=1e-5):
        raise NotAttention("its windows have biases of their own")
    factors = run(probe, product, np.ones(1), logits).reshape(shape)[kept] - added[kept]
    factor = float(factors.mean())
    if not np.allclose(factors, factor, rtol=1e-3):
        raise NotAttention("its logits have scales of their own")
    return factor, bias, mask


def node_name(node: ir.Node | None) -> str:
    """Names a node in an error."""
    return "an input of the model" if node is None else f"{node.op_type} {node.name or ''}".strip()


# From the windows to the maps


def _maps(
    inputs: Sequence[ir.Value], window_size: int, ends: Collection[ir.Value], probe: Probe
) -> Iterator[tuple[ir.Value, tuple[int, int, int], tuple[int, int], np.ndarray]]:
    """Yields tensors that windows are cut from, in the order of preference.

    Tensors [N, H, W, C] come before [N, H · W, C], and among these the most upstream before others. Each
    comes with its (N, H, W), the shifts of rows and columns, and the numbers of the windows' cells [B, L].
    These are 1 to N · H · W in the map, and 0 in the padding.

    Args:
        inputs: of the linear layers, each [..., C].
        window_size: in cells.
        ends: maps of other window attentions, beyond which no map is searched.
        probe: gives the sizes.
    """
    channels = probe.shape(inputs[0])[-1]
    if math.prod(probe.shape(inputs[0])[:-1]) % window_size**2:
        return
    chains = [list(sources(x, probe)) for x in inputs]
    shared = [x for x in chains[0] if all(x in chain for chain in chains[1:])]
    shared = shared[: next((i + 1 for i, x in enumerate(shared) if x in ends), None)]
    shared = [x for x in reversed(shared) if len(probe.shape(x)) in (3, 4) and probe.shape(x)[-1] == channels]
    for start in sorted(shared, key=lambda x: -len(probe.shape(x))):
        sides = probe.shape(start)[:-1]
        numbers = 1 + np.arange(math.prod(sides)).reshape(*sides, 1)  # 0 is left for padding
        cells = [run(probe, start, numbers, x).reshape(-1, window_size**2, channels) for x in inputs]
        if any(np.ptp(x, axis=2).any() or not np.array_equal(x, cells[0]) for x in cells):
            continue
        windows = cells[0][..., 0].astype(np.int64)
        size = sides
        if len(sides) == 2:
            width = max(int(windows[0, window_size] - windows[0, 0]), 1)
            size = (sides[0], sides[1] // width, width)
        if math.prod(size) != numbers.size:
            continue
        down, right = divmod(int(windows[0, 0]) - 1, size[2])
        expected = _cut(numbers.reshape(size), window_size, (down, right))
        if np.array_equal(windows, expected.reshape(-1, window_size**2)):
            yield start, size, (down, right), windows


def _cut(numbers: np.ndarray, window_size: int, shifts: tuple[int, int]) -> np.ndarray:
    """Pads [N, H, W] with zeros, rolls it back by two shifts and cuts it: [N, windows, L]."""
    sides = [(0, -side % window_size) for side in numbers.shape[1:]]
    padded = np.roll(np.pad(numbers, ((0, 0), *sides)), [-x for x in shifts], (1, 2))
    images, height, width = padded.shape
    cut = padded.reshape(images, height // window_size, window_size, width // window_size, window_size)
    return cut.swapaxes(2, 3).reshape(images, -1, window_size**2)


def _shift_mask(size: tuple[int, int, int], window_size: int, shift: int, heads: int) -> np.ndarray:
    """Returns where the operator masks pairs of cells, as `msda.window_reference.mask`: [B, M, L, L]."""
    bands = []
    for side in size[1:]:
        whole = -(-side // window_size) * window_size
        place = np.arange(whole)
        bands.append((place >= whole - window_size).astype(int) + (place >= whole - shift))
    region = _cut((3 * bands[0][:, None] + bands[1])[None], window_size, (0, 0))[0]
    apart = region[:, None, :, None] != region[:, None, None]
    return np.tile(apart, (size[0], heads, 1, 1))


def _joined(
    attended: ir.Value,
    size: tuple[int, int, int],
    numbers: np.ndarray,
    widths: tuple[int, int],
    probe: Probe,
) -> tuple[ir.Value, Linear | None] | None:
    """Returns the map that windows are joined to, and the linear layer before; None if there is no map.

    A map [N, H, W, C] is preferred to [N, H · W, C].

    Args:
        attended: result of the attention, [..., M, L, D].
        size: (N, H, W) of the map.
        numbers: of the windows' cells, see `_maps`.
        widths: (M, D).
        probe: gives the sizes.
    """
    found = list(_ends(attended, size, numbers, widths, probe))
    return max(found, key=lambda pair: len(probe.shape(pair[0])), default=None)


def _ends(
    attended: ir.Value,
    size: tuple[int, int, int],
    numbers: np.ndarray,
    widths: tuple[int, int],
    probe: Probe,
) -> Iterator[tuple[ir.Value, Linear | None]]:
    """Yields the map before a linear layer, and the one behind it, as `_joined`."""
    channels = np.arange(math.prod(widths)).reshape(widths[0], 1, widths[1])
    cells = np.broadcast_to(
        numbers[:, None, :, None], (len(numbers), widths[0], numbers.shape[1], widths[1])
    ).reshape(probe.shape(attended))
    moved = list(results(attended, probe))
    for end in _of_size(moved, size, channels.size, probe):
        found = columns(probe, attended, end, _rows(channels.size), "the map", channels)
        in_order = np.array_equal(found.source, channels.reshape(-1)) and not found.added.any()
        if in_order and found.factor == 1 and _is_whole_map(run(probe, attended, cells, end)):
            yield end, None
            break
    given = moved[-1]
    layer = next(iter(readers(given, probe)), None)
    weight = linear_weight(layer, probe)
    if weight is None or len(readers(given, probe)) > 1 or probe.shape(given)[-1] != channels.size:
        return
    before = columns(probe, attended, given, _rows(channels.size), "the windows", channels)
    rows = run(probe, attended, cells, given)[..., :1]
    output, width = layer.outputs[0], weight.shape[1]
    for end in _of_size(list(results(output, probe, scales)), size, width, probe):
        after = columns(probe, output, end, _rows(width), "the map")
        if _is_whole_map((run(probe, output, rows, end) - after.added) / after.factor):
            weight = weight[np.argsort(before.source)][:, after.source] * after.factor
            bias = linear_bias(layer, probe)[after.source] * after.factor + after.added
            yield end, Linear(weight, bias)
            break


def _rows(width: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array.reshape(-1, width)


def _is_whole_map(numbers: np.ndarray) -> bool:
    """Returns True if [N, ..., C] holds 1 to N · H · W in this order, in every channel."""
    found = numbers.reshape(-1, numbers.shape[-1])
    return np.array_equal(np.rint(found), np.broadcast_to(1 + np.arange(len(found))[:, None], found.shape))


def _of_size(
    values: Sequence[ir.Value], size: tuple[int, int, int], channels: int, probe: Probe
) -> list[ir.Value]:
    """Returns the tensors that could be a map, [N, H, W, C] before [N, H · W, C], the last before others."""
    four, three = (*size, channels), (size[0], size[1] * size[2], channels)
    return [x for shape in (four, three) for x in reversed(values) if probe.shape(x) == shape]
