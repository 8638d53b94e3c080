"""Draws scenes with objects of twenty classes from a seed, the training data of the demo detector.

    python -m tools.scenes --out scenes --train 20000 --val 500 --seed 0

writes a dataset in COCO's layout, and `make_scene` makes one scene. The drawings come from this code and from
files of installed packages; `tools.scenes.sources` lists them with their licences. The two splits share
neither fonts nor photographs nor textures.
"""

from __future__ import annotations

from tools.scenes.object_classes import CLASS_NAMES
from tools.scenes.scene import Scene, make_scene
from tools.scenes.scene_dataset import annotation_file, write_split
from tools.scenes.sources import MissingSourceError

__all__ = ["CLASS_NAMES", "MissingSourceError", "Scene", "annotation_file", "make_scene", "write_split"]
