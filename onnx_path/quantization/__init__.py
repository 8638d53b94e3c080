"""Quantises ONNX files to 8 bits by Q/DQ nodes (QuantizeLinear and DequantizeLinear).

`products` finds the layers with weights, `policy` decides which of them become 8 bits, `ranges` measures
their inputs, `placement` inserts the nodes, and `quantizer` joins these. `sensitivity` tries groups of
layers.
"""
