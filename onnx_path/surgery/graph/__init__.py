"""Reading, measuring, cutting and running ONNX graphs."""
