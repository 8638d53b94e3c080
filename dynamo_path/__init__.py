"""The dynamo path: the detector through torch.export and Torch-TensorRT into a TensorRT engine.

Importing this package registers the converters of `torch.ops.msda` with Torch-TensorRT, where that is
installed and there is a GPU (without one, Torch-TensorRT cannot be imported). `python -m dynamo_path.export`
goes the whole way.
"""

import contextlib
import importlib.util

import torch

if importlib.util.find_spec("torch_tensorrt") is not None and torch.cuda.is_available():
    from dynamo_path import converter

    with contextlib.suppress(ImportError):  # the export command reports it
        converter.register()
