"""The ONNX path: the detector as an ONNX file with MSDA nodes, and TensorRT engines built from it.

`python -m onnx_path.export` does both. `operator` describes the nodes, `build` makes an engine of a file.
"""
