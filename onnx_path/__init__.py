"""The ONNX path: a detector as an ONNX file with nodes of domain `msda`, and TensorRT engines of ONNX files.

Commands: `export`, `surgeon`, `quantize`, `build`, `compare`, `refit`, `sweep`. `nodes` has the operators as
ONNX nodes, `tensorrt` prepares files for TensorRT, `surgery`, `quantization`, `comparison` and `sweeping`
serve the command of that name. `fp16_exceptions` lists the nodes that stay float32.
"""
