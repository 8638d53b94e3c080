"""Class names: the 80 categories of COCO, their category ids, and names for any other number of classes.

Imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence

COCO_CLASSES: tuple[str, ...] = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat",
    "traffic light", "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse",
    "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie",
    "suitcase", "frisbee", "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove",
    "skateboard", "surfboard", "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon",
    "bowl", "banana", "apple", "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut",
    "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse",
    "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book",
    "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
# Some of COCO's listed categories were never annotated.
_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
COCO_CATEGORY_IDS: tuple[int, ...] = tuple(number for number in range(1, 91) if number not in _GAPS)


def class_names_for(num_classes: int) -> tuple[str, ...]:
    """Returns COCO's names for 80 classes, else "class 0", "class 1", …"""
    if num_classes == len(COCO_CLASSES):
        return COCO_CLASSES
    return tuple(f"class {label}" for label in range(num_classes))


def category_ids_for(class_names: Sequence[str]) -> tuple[int, ...]:
    """Returns the category id of each label: COCO's own for COCO's 80 names, else the label index itself."""
    if tuple(class_names) == COCO_CLASSES:
        return COCO_CATEGORY_IDS
    return tuple(range(len(class_names)))
