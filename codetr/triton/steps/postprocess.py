"""Python model of Triton: turns the outputs of the engine into detections in pixels of the photos.

Runs beside the project's own modules, from which `codetr triton-repository` copied the arithmetic.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from codetr.detector.postprocess import apply_nms
from codetr.detector.preprocess import BatchSizes


class TritonPythonModel:
    """Writes K rows for each image, the best first. Rows without a detection have label -1."""

    def initialize(self, _args):
        metadata = json.loads(Path(__file__).with_name("engine.json").read_text(encoding="utf-8"))
        self._nms = {"method": "none"} if metadata["nms_in_graph"] else metadata["nms"]
        self._names = [*metadata["class_names"], ""]  # of label -1

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        def read(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        original_shapes = read("original_shapes")
        sizes = BatchSizes((0, 0), read("image_shapes"), original_shapes)
        count, rows = len(original_shapes), read("scores").shape[1]
        found = {
            "boxes": np.zeros((count, rows, 4), np.float32),
            "scores": np.zeros((count, rows), np.float32),
            "labels": np.full((count, rows), -1, np.int64),
        }
        outputs = zip(read("boxes")[:count], read("scores")[:count], read("labels")[:count])
        for index, (boxes, scores, labels) in enumerate(outputs):
            real = np.isfinite(scores) & np.isfinite(boxes).all(axis=-1) & (labels >= 0)
            kept = apply_nms(sizes.restore_boxes(index, boxes[real]), scores[real], labels[real], **self._nms)
            for output, values in zip(found.values(), kept):
                output[index, : len(values)] = values
        found["names"] = np.array(self._names, dtype=object)[found["labels"]]
        tensors = [pb_utils.Tensor(name, array) for name, array in found.items()]
        return pb_utils.InferenceResponse(output_tensors=tensors)
