"""Shows an engine's layers, their kinds and times as tables and pictures.

`engine_summary` asks TensorRT and needs a GPU. The other modules read the JSON of TensorRT's inspector and
need neither.
"""
