"""What is inside an engine: its layers, their kinds and times, as text, tables and pictures.

`engine` asks TensorRT; all else works on what its inspector wrote as JSON, without TensorRT and GPU.
"""
