"""ONNX files on their way to TensorRT: what its parser and fusions need, profiles, builds."""
