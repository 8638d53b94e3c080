"""The ONNX path: a detector as an ONNX file with nodes of domain `msda`, and TensorRT engines of ONNX files.

Commands: `export`, `surgeon`, `build`, `compare`, `refit`. `operator` describes the MSDA nodes,
`fp16_exceptions` lists the nodes that stay float32.
"""
