#!/usr/bin/env bash
# The story of a user who has an ONNX file of a DETR: bash tests/project/stories/onnx.sh FOLDER
# FOLDER takes the files. A machine without TensorRT or GPU stops at the engine, with one line.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../../.." && pwd)
export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$1"
cd "$1"

# The user's own export: a small Deformable DETR with random weights, which calls the attention three times.
python -c "
from pathlib import Path
from tests.onnx.zoo_files import write
write('deformable_detr', Path(), full=False)"

codetr surgeon deformable_detr.onnx rewritten.onnx --expect 3

# Any ONNX runtime runs the new file.
python - <<'PYTHON'
import numpy as np
import onnxruntime as ort

random = np.random.default_rng(0)
before, after = (ort.InferenceSession(f"{name}.onnx") for name in ("deformable_detr", "rewritten"))
image, mask = before.get_inputs()
inputs = {image.name: random.standard_normal(image.shape, np.float32), mask.name: np.ones(mask.shape, np.int64)}
outputs = [session.run(None, inputs) for session in (before, after)]
print("onnxruntime: largest difference", max(abs(x - y).max() for x, y in zip(*outputs)))
assert all(np.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(*outputs))
PYTHON

# A second time there is nothing to replace, and --expect fails.
codetr surgeon rewritten.onnx again.onnx
if codetr surgeon rewritten.onnx unexpected.onnx --expect 3; then exit 1; fi

if codetr build rewritten.onnx --out engines; then
    codetr compare deformable_detr.onnx engines/rewritten.engine
fi
