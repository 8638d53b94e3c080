"""Layouts of tensors over other tensors, and the ONNX nodes that only move elements."""
