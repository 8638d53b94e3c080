"""Python model of Triton: turns image files into the inputs of the engine.

Runs beside the project's own modules, from which `codetr triton-repository` copied the arithmetic.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import triton_python_backend_utils as pb_utils

from codetr.detector.preprocess import ImageFile, Preprocessor, load_image
from codetr.detector.sizes import InputSizes


class TritonPythonModel:
    """Each request is answered alone, so that a damaged image fails its own request."""

    def initialize(self, _args):
        content = json.loads(Path(__file__).with_name("engine.json").read_text(encoding="utf-8"))
        metadata = SimpleNamespace(**content)
        self._preprocessor = Preprocessor.of_artifact(metadata)
        batch = InputSizes.of_artifact(metadata).batch
        self._fixed_batch = None if batch.dynamic else batch.opt
        self._types = {tensor["name"]: tensor["dtype"] for tensor in metadata.inputs}

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "image").as_numpy().reshape(-1)
        try:
            images = [load_image(ImageFile(f"image {i}", file)) for i, file in enumerate(files)]
            inputs = self._inputs(images)
        except ValueError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def _inputs(self, images):
        original_shapes = np.array([image.shape[:2] for image in images], dtype=np.int64)
        if self._fixed_batch is not None:
            if len(images) > self._fixed_batch:
                raise ValueError(f"image: expected at most {self._fixed_batch}, got {len(images)}")
            # Copies of the last image fill the batch. The last step leaves them out.
            images += images[-1:] * (self._fixed_batch - len(images))
        batch = self._preprocessor.batch(images)
        return {
            "images": batch.images.astype(self._types["images"], copy=False),
            "image_shapes": batch.image_shapes.astype(self._types["image_shapes"], copy=False),
            "original_shapes": original_shapes,
        }
