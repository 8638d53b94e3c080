"""The parts of `onnx_path.compare`.

`input_arrays`: given and random inputs. `onnxruntime_reference`: the reference. `marked_engines`: TensorRT.
`tensor_errors`: errors of one tensor. `comparable_tensors`: tensors that two files share. `first_difference`:
the search for the first tensor that differs. `comparison_report`: the result.
"""
