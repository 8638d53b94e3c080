"""A small detector, a dataset of objects that it finds, and `codetr evaluate`, for tests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import save_file

import codetr
from codetr.cli import main
from codetr.coco_classes import COCO_CLASSES
from codetr.detector.preprocess import load_image
from tests.evaluation.coco_folders import write_dataset

GOLDEN = Path(__file__).parents[1] / "golden"
PHOTO = Path(__file__).parents[2] / "codetr/demo/coffee.jpg"
HEIGHT, WIDTH = 128, 96


def command(*arguments: object) -> int:
    """Runs `codetr evaluate`; returns the exit status."""
    return main(["evaluate", *map(str, arguments)])


def results(folder: Path) -> tuple[dict, list]:
    """Reads metrics.json and detections.json of a folder."""
    return tuple(json.loads((folder / f"{name}.json").read_text()) for name in ("metrics", "detections"))


@dataclasses.dataclass
class Tiny:
    """A small model with random weights, and pictures annotated with its detections."""

    config: codetr.Config
    config_file: Path
    weights: Path
    data: Path

    def network(self) -> list[object]:
        """Returns its command-line options."""
        network = ["--model", self.config_file, "--weights", self.weights]
        return [*network, "--height", HEIGHT, "--width", WIDTH]


def make_tiny(folder: Path) -> Tiny:
    """Makes the model, and a dataset of four pictures in the same folder."""
    fields = json.loads((GOLDEN / "codino_swin_tiny.json").read_text())
    fields["backbone"]["depths"] = [1, 1, 1, 1]  # exports faster
    fields |= {"name": "tiny", "encoder_layers": 1, "decoder_layers": 1}
    config_file, weights = folder / "tiny.json", folder / "tiny.safetensors"
    config_file.write_text(json.dumps(fields))
    config = codetr.load_config(config_file)
    save_file(codetr.seeded_state_dict(codetr.CoDino(config), 0), weights)

    photo, random = load_image(PHOTO), np.random.default_rng(0)
    contents = {"images": [], "annotations": []}
    contents["categories"] = [{"id": 3 * label, "name": name} for label, name in enumerate(COCO_CLASSES)]
    (folder / "val").mkdir()
    with codetr.Detector(config, weights, height=HEIGHT, width=WIDTH) as detector:
        for image_id in range(4):
            height, width = random.integers(90, 200, 2)
            y, x = random.integers(0, photo.shape[0] - height), random.integers(0, photo.shape[1] - width)
            crop = np.ascontiguousarray(photo[y : y + height, x : x + width])
            Image.fromarray(crop).save(folder / f"val/{image_id}.png")
            size = {"width": int(width), "height": int(height)}
            contents["images"].append({"id": image_id, "file_name": f"{image_id}.png", **size})
            (found,) = detector.detect([crop], threshold=0.0, nms="hard", nms_iou=0.5, top=12)
            for row, label in zip(found.as_dicts(), found.labels.tolist()):
                place = {"id": len(contents["annotations"]), "image_id": image_id, "category_id": 3 * label}
                contents["annotations"].append({**place, "bbox": row["bbox"]})
    write_dataset(folder, contents, "annotations/instances_val.json", names=(), sizes=())
    return Tiny(config, config_file, weights, folder)
