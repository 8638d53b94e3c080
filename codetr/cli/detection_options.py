"""The options of detections, which `codetr detect` and `codetr batch` have."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from cyclopts import Group

from codetr.cli.argument_types import Parameter
from codetr.detector.detector import Detector, split_at_commas


@Parameter(name="*", group=Group("Detections", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class DetectionOptions:
    """Which detections a command returns. See `codetr.Detector.detect`."""

    threshold: Annotated[float, Parameter(alias="--conf", metavar="S")] = 0.3
    """Least score."""
    classes: Annotated[list[str] | None, Parameter(consume_multiple=True, metavar="CLASS")] = None
    """Detect only these classes, by name or by number from 0."""
    top: Annotated[int | None, Parameter(metavar="K")] = None
    """Largest number of detections in a picture."""
    nms: Literal["soft", "hard", "none"] | None = None
    """Non-maximum suppression. Default: as the model was published."""
    nms_iou: Annotated[float | None, Parameter(metavar="IOU")] = None
    """Overlap from which boxes of a class suppress each other."""

    def for_detector(self, detector: Detector, batch: int) -> dict[str, Any]:
        """Returns the arguments of the detector's methods, with a class for each name in "person,car".

        Raises:
            ArgumentError: an option is wrong, or `batch`, the number of pictures in one run of the network.
        """
        options = asdict(self)
        if self.classes is not None:
            options["classes"] = split_at_commas(self.classes, detector.class_names)
        detector.check_options(**options, batch=batch)
        return options
