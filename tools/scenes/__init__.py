"""Scenes with twenty classes of drawn objects, made from a seed: what the demo detector is trained on.

    python -m tools.scenes --out scenes --train 20000 --val 500 --seed 0

writes a dataset in COCO's layout; `make_scene` makes one scene. Everything that is drawn comes from this code
or from files of installed packages, see `tools.scenes.sources` for them and their licences. The two splits
share neither fonts nor photographs nor textures.
"""

from __future__ import annotations

from tools.scenes.classes import CLASS_NAMES
from tools.scenes.dataset import annotation_file, write_split
from tools.scenes.scene import Scene, make_scene
from tools.scenes.sources import MissingSourceError

__all__ = ["CLASS_NAMES", "MissingSourceError", "Scene", "annotation_file", "make_scene", "write_split"]
