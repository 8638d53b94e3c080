"""Upstream's checkpoints: names of their tensors, reading, and seeded random weights with the same names.

The names of MMDetection's Co-DINO appear in this file only. `upstream_name` maps each of our names to one of
them.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from codetr import weights
from codetr.model.backbones.swin import relative_position_index
from codetr.pth import read_pth
from msda.module import star

_TRANSFORMER = "query_head.transformer"
# (our name, upstream's); every rule that matches applies once, in this order.
_RENAMES: tuple[tuple[str, str | Callable[[re.Match], str]], ...] = (
    (r"^backbone\.norms\.(\d+)\.", r"backbone.norm\1."),
    (r"^(backbone\.stages\.\d+\.blocks\.\d+\.attn)\.", r"\1.w_msa."),
    (r"^(backbone\.stages\.\d+\.blocks\.\d+)\.mlp\.fc1\.", r"\1.ffn.layers.0.0."),
    (r"^(backbone\.stages\.\d+\.blocks\.\d+)\.mlp\.fc2\.", r"\1.ffn.layers.1."),
    (r"^(neck\.(?:extra_)?convs\.\d+)\.norm\.", r"\1.gn."),
    (r"^encoder\.level_embeds$", f"{_TRANSFORMER}.level_embeds"),
    (r"^decoder\.query_embed$", f"{_TRANSFORMER}.query_embed.weight"),
    (r"^decoder\.(norm|ref_point_head)\.", rf"{_TRANSFORMER}.decoder.\1."),
    (r"^query_selection\.output\.", f"{_TRANSFORMER}.enc_output."),
    (r"^query_selection\.norm\.", f"{_TRANSFORMER}.enc_output_norm."),
    (r"^decoder\.class_branches\.", "query_head.cls_branches."),
    (r"^decoder\.box_branches\.", "query_head.reg_branches."),
    (r"^(encoder|decoder)\.layers\.", rf"{_TRANSFORMER}.\1.layers."),
    (r"(encoder\.layers\.\d+)\.self_attn\.", r"\1.attentions.0."),
    (r"(decoder\.layers\.\d+)\.self_attn\.", r"\1.attentions.0.attn."),
    (r"(decoder\.layers\.\d+)\.cross_attn\.", r"\1.attentions.1."),
    (r"(coder\.layers\.\d+)\.ffn\.fc1\.", r"\1.ffns.0.layers.0.0."),
    (r"(coder\.layers\.\d+)\.ffn\.fc2\.", r"\1.ffns.0.layers.1."),
    (r"(coder\.layers\.\d+)\.norm(\d)\.", lambda found: f"{found[1]}.norms.{int(found[2]) - 1}."),
    # Upstream counts the activations between the linear layers too.
    (r"(reg_branches\.\d+|ref_point_head)\.fc(\d)\.", lambda found: f"{found[1]}.{2 * int(found[2]) - 2}."),
)

# Tensors of a checkpoint that inference does not need.
_IGNORED = re.compile(
    r"^(rpn_head|roi_head|bbox_head)\."  # auxiliary heads
    r"|^ema_"  # averaged copies of older training runs
    r"|^data_preprocessor\."
    r"|^query_head\.(dn_generator|downsample)\."  # training-only parts of the query head
    r"|^query_head\.transformer\.(aux_pos_trans|aux_pos_trans_norm|pos_feats_trans|pos_feats_norm)\."
    r"|\.relative_position_index$"  # follows from the window size
    r"|\.num_batches_tracked$"  # a frozen norm has no use for it
)

UPSTREAM_LABEL_EMBEDDING = "query_head.dn_generator.label_embedding.weight"
"""Weight of `codetr.training.denoising.Denoising.label_embedding`, which only training uses."""

_LISTED = 10  # names of each kind in an error


class MisfitError(ValueError):
    """Weights do not fit a model.

    The first line of the message is the verdict; lists of names follow. `summary` is the verdict with
    examples in one line.

    Args:
        problems: names of tensors by kind: "missing", "unexpected", "misshapen".
    """

    def __init__(self, label: str, model_name: str, problems: Mapping[str, list[str]]) -> None:
        problems = {kind: names for kind, names in problems.items() if names}
        counts = ", ".join(f"{len(names)} {kind}" for kind, names in problems.items())
        lines = [f"{label}: the weights are not those of model {model_name} ({counts} tensors)"]
        for kind, names in problems.items():
            more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            lines.append(f"  {kind}: {', '.join(names[:_LISTED])}{more}")
        super().__init__("\n".join(lines))
        examples = ", ".join(f"{kind} {names[0]}" for kind, names in list(problems.items())[:2])
        self.summary = f"{lines[0]}: {examples}"


@dataclass(frozen=True)
class LoadReport:
    """Names of a checkpoint's tensors that were loaded, and of those that were ignored."""

    loaded: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.loaded)} tensors loaded, {len(self.ignored)} of training-only parts ignored"


def upstream_name(name: str, decoder_layers: int) -> str:
    """Returns the name of one of our parameters or buffers in upstream's checkpoints."""
    # In upstream the branches of the query selection follow those of the decoder's layers.
    name = name.replace("query_selection.class_branch.", f"decoder.class_branches.{decoder_layers}.")
    name = name.replace("query_selection.box_branch.", f"decoder.box_branches.{decoder_layers}.")
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def load_checkpoint(model: nn.Module, source: str | os.PathLike | Mapping[str, Tensor]) -> LoadReport:
    """Loads upstream's weights into a detector. On an error the model keeps its weights.

    Args:
        model: a `codetr.CoDino`; its precision and device stay.
        source: a `.pth` file (no code of its pickle runs), a `.safetensors` file, a URL of either, the name
            of known weights (`codetr.weights`), or a mapping from upstream's names to tensors. A `state_dict`
            container and a `module.` prefix are unwrapped.

    Returns:
        The names of loaded tensors and of ignored ones (auxiliary heads and other training-only parts).

    Raises:
        ValueError: no such file, a damaged file, or (`MisfitError`) tensors that do not fit the model. The
            message of the latter lists missing, unexpected and misshapen tensors.
    """
    label, tensors = read_checkpoint(source)
    ours = model.state_dict()
    layers = model.config.decoder_layers
    targets = {upstream_name(name, layers): tensor for name, tensor in ours.items()}

    ignored = tuple(name for name in tensors if name not in targets and _IGNORED.search(name))
    missing = [name for name in targets if name not in tensors]
    unexpected = [name for name in tensors if name not in targets and not _IGNORED.search(name)]
    misshapen = [
        f"{name} {list(tensors[name].shape)} instead of {list(target.shape)}"
        for name, target in targets.items()
        if name in tensors and tensors[name].shape != target.shape
    ]
    if missing or unexpected or misshapen:
        problems = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
        raise MisfitError(label, model.config.name, problems)
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[name])  # state_dict's tensors share the parameters' memory
    return LoadReport(loaded=tuple(targets), ignored=ignored)


def read_checkpoint(source: str | os.PathLike | Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """Reads a checkpoint of any model.

    Returns:
        Name of the source for messages, and its tensors by upstream's names.

    Raises:
        ValueError: no such file, a damaged file, or one without tensors by name.
    """
    if isinstance(source, Mapping):
        label, content = "checkpoint", source
    else:
        path = weights.weights_file(source)
        if not path.is_file():
            raise ValueError(f"{path}: {'is a folder, not a' if path.is_dir() else 'no such'} weights file")
        label = str(path)
        try:
            content = load_file(path) if path.suffix == ".safetensors" else read_pth(path)
        except (SafetensorError, ValueError) as error:
            damaged = f"{path}: cut off, or not a safetensors file ({error})"
            reason = damaged if isinstance(error, SafetensorError) else str(error)
            again = "; delete it to download it again" if path.parent == weights.cache_folder() else ""
            raise ValueError(reason + again) from None
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping):
        raise ValueError(f"{label}: expected a checkpoint with tensors by name, got {type(content).__name__}")
    tensors = {
        str(name).removeprefix("module."): tensor
        for name, tensor in content.items()
        if isinstance(tensor, Tensor)
    }
    if not tensors:
        raise ValueError(f"{label}: the checkpoint holds no tensors by name")
    return label, tensors


def seeded_state_dict(source: Mapping[str, list[int]] | nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Draws random weights under upstream's names for benchmarks and tests.

    The model behaves like a trained one: activations keep their size through the layers, class scores are
    spread, samples lie near their reference points, and boxes move in every decoder layer. All queries have
    the same content, so that two backends with different orders of nearly equal scores give the same set of
    boxes.

    Args:
        source: shapes by upstream's names, or a `codetr.CoDino`.
        seed: seed, name and shape of a tensor determine its values, drawn by PyTorch's CPU generator.

    Returns:
        Tensors by upstream's names, fp32 (int64 for counters and indices).
    """
    if isinstance(source, nn.Module):
        layers = source.config.decoder_layers
        source = {upstream_name(name, layers): list(x.shape) for name, x in source.state_dict().items()}
    tensors = {name: _seeded_tensor(name, shape, seed) for name, shape in source.items()}
    _sink_unusable_cells(tensors)
    return tensors


# (pattern, factor on the usual deviation 1 / sqrt(fan in)); the first match counts. Norms are not among them.
_GAINS = (
    (r"reg_branches\.\d+\.4\.weight", 0.3),  # box deltas of some tenths
    (r"cls_branches", 1.2),  # logits of a deviation above 1
    (r"attention_weights", 0.5),
    (r"attentions\.1\.output_proj", 2.0),  # attended features, not the common content, tell queries apart
    # before an activation
    (r"backbone\.(conv1|layer\d)|reg_branches|ffns?\.|ref_point_head", math.sqrt(2.0)),
)
# Weights after an activation, whose output is positive on average. Rows that sum to zero keep this average
# from becoming the same large vector in every cell.
_AFTER_ACTIVATION = (
    r"(ffns?\.(0\.)?layers\.1|backbone\.layer\d\.\d+\.(conv\d|downsample\.0)"
    r"|reg_branches\.\d+\.[24]|ref_point_head\.2)\.weight$"
)


def _seeded_tensor(name: str, shape: list[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))

    def normal(deviation: float = 1.0, mean: float = 0.0) -> Tensor:
        return torch.empty(shape).normal_(mean, deviation, generator=generator)

    if name.endswith("num_batches_tracked"):
        return torch.zeros(shape, dtype=torch.int64)
    if name.endswith("relative_position_index"):
        return relative_position_index(math.isqrt(shape[0]))
    if name.endswith("running_var"):
        return torch.empty(shape).uniform_(0.5, 1.5, generator=generator)
    if name.endswith("query_embed.weight"):
        return torch.empty(shape[1]).normal_(generator=generator).repeat(shape[0], 1)
    if name.endswith("sampling_offsets.bias"):
        levels = shape[0] // 64  # 8 heads of 4 points, each with x and y
        return star(8, [4] * levels).flatten() + normal(0.3)
    if re.search(r"query_head\.cls_branches\.\d+\.bias$", name):
        return normal(0.3, mean=-math.log(99.0))  # a score of 0.01, the prior of focal losses
    if name.endswith("relative_position_bias_table"):
        return normal(0.5)
    if name.endswith((".bias", "running_mean")):
        return normal(0.05)
    if name.endswith("bn3.weight"):
        return normal(0.05, mean=0.3)  # the residual stream of ResNet grows by a tenth per block
    if len(shape) <= 1:  # scales of norms
        return normal(0.05, mean=1.0)
    if name.endswith("level_embeds"):
        return normal()
    gain = next((gain for pattern, gain in _GAINS if re.search(pattern, name)), 1.0)
    weight = normal(gain / math.sqrt(math.prod(shape[1:])))
    if re.search(_AFTER_ACTIVATION, name):
        weight -= weight.flatten(1).mean(dim=1).view(-1, *[1] * (len(shape) - 1))
    return weight


def _sink_unusable_cells(tensors: dict[str, Tensor]) -> None:
    """Gives cells that cannot be proposals low class logits, as training does; in place.

    Their features are zero before `enc_output`, so all of them have the same logit and would fill the
    selection with ties. The bias points fully in one direction, the output of usable cells by less than half,
    and the class weights oppose this direction.
    """
    bias = tensors.get("query_head.transformer.enc_output.bias")
    branches = [name for name in tensors if re.match(r"query_head\.cls_branches\.\d+\.weight$", name)]
    if bias is None or not branches:
        return
    direction = torch.ones_like(bias)
    direction[1::2] = -1.0
    bias += 0.5 * direction
    selection = max(branches, key=lambda name: int(name.split(".")[2]))  # the decoder's branches come first
    share = 0.5 / math.sqrt(1.0 + 0.5**2)  # for a usable cell, whose features have variance 1
    tensors[selection] -= 12.0 * direction / len(direction)
    tensors[selection.replace(".weight", ".bias")] += 12.0 * share
