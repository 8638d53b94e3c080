"""Average precision of a detector on a dataset in COCO format, by pycocotools.

    dataset = codetr.dataset.coco_files.load_coco("coco", "val")
    with codetr.Detector("co_dino_swin_l", device="cuda", precision="fp16") as detector:
        print(evaluate(detector, dataset, batch=4).ap)

Importing the package does not import Torch.
"""

from codetr.evaluation.coco_metrics import ClassMetrics, Metrics, coco_metrics
from codetr.evaluation.detect_dataset import Run, detect_all, evaluate
from codetr.evaluation.live_model import LiveModel

__all__ = ["ClassMetrics", "LiveModel", "Metrics", "Run", "coco_metrics", "detect_all", "evaluate"]
