"""The parts of `python -m onnx_path.compare`.

`inputs`: given and random; `reference`: onnxruntime; `engine`: TensorRT; `errors`: of one tensor; `tensors`:
which of two files can be compared; `search`: the first that differs.
"""
