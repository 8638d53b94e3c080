"""Pictures of coloured boxes, a tiny model, command lines and comparisons for the tests of training."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

import codetr
from codetr.cli import main
from codetr.training.run_weights import config_for, make_network
from codetr.training.training_log import read_table
from codetr.training.training_plan import make_scales

SUBPROCESS = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    ),
    "OMP_NUM_THREADS": "1",
}
"""Environment of a training run in a process of its own, which finds this checkout from any folder."""
MODEL = {
    "backbone": {"type": "ResNet", "depth": 18, "base_channels": 8},
    "neck": {"in_channels": [8, 16, 32, 64], "out_channels": 32, "num_outs": 4, "gn_groups": 8},
    "num_levels": 4,
    "num_queries": 20,
    "embed_dims": 32,
    "num_heads": 4,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "feedforward_channels": 64,
    "max_per_img": 20,
    "positional_encoding": {"num_feats": 16},
    "resize_scale": [96, 64],
}
COLOURS = {"green": (40, 230, 40), "red": (230, 40, 40)}


def write_boxes(folder: Path, split: str, count: int, seed: int) -> None:
    """Writes a split of pictures with one to three coloured rectangles. Every third is upright."""
    draws = np.random.default_rng(seed)
    images, annotations = [], []
    (folder / split).mkdir(parents=True)
    (folder / "annotations").mkdir(exist_ok=True)
    for index in range(count):
        width, height = (96, 64) if index % 3 else (64, 96)
        pixels = draws.integers(0, 80, (height, width, 3)).astype(np.uint8)
        for _ in range(draws.integers(1, 4)):
            w, h = (int(side) for side in draws.integers(12, 30, 2))
            x, y, label = (int(draws.integers(end)) for end in (width - w, height - h, 2))
            pixels[y : y + h, x : x + w] = list(COLOURS.values())[label]
            annotations.append(
                {"id": len(annotations), "image_id": index, "category_id": label + 5, "bbox": [x, y, w, h]}
            )
        name = f"{index:03d}.png"
        Image.fromarray(pixels).save(folder / split / name)
        images.append({"id": index, "file_name": name, "width": width, "height": height})
    categories = [{"id": label + 5, "name": name} for label, name in enumerate(COLOURS)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(document))


def arguments(folder: Path, out: Path, **options) -> list[str]:
    """Returns a command line. Options are added or replaced; None removes one; "" is a flag."""
    given = {
        "data": folder,
        "model": folder / "model.json",
        "init": "none",
        "out": out,
        "steps": 12,
        "batch": 2,
        "denoising": 10,
        "lr": 1e-3,
        "log_every": 3,
        "save_every": 4,
        "evaluate_every": 0,
        "workers": 0,
        "device": "cpu",
    }
    given |= options
    command = ["train"]
    for name, value in given.items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", *([str(value)] if value != "" else [])]
    return command


def train(folder: Path, out: Path, **options) -> int:
    """Runs `codetr train` in this process; returns the exit status."""
    return main(arguments(folder, out, **options))


def logged(out: Path) -> list[dict[str, str]]:
    """Returns the rows of log.csv without the columns of a clock."""
    clocks = ("seconds", "images_per_second", "waiting_for_data")
    return [{k: v for k, v in row.items() if k not in clocks} for row in read_table(out / "log.csv")]


def assert_same_run(out: Path, expected: Path) -> None:
    weights, wanted = load_file(out / "model.safetensors"), load_file(expected / "model.safetensors")
    assert weights.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(weights[name], wanted[name])] == []
    assert logged(out) == logged(expected)


def scales_of(folder: Path) -> tuple[tuple[int, int], ...]:
    return make_scales(codetr.load_config(folder / "model.json").resize_scale, 0.6)


def tiny_network(data, source="none", known=(), **options):
    """Returns the network that a run on `data` starts with, and the origin of its weights."""
    config = config_for(codetr.load_config(_model_file(data)), data, None)
    network, words = make_network(
        config, str(source), known, **{"pairs": 10, "thawed": True, "seed": 0, **options}
    )
    return network, words


def _model_file(data) -> Path:
    return data.annotation_file.parents[1] / "model.json"
