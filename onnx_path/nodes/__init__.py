"""The operators as ONNX nodes of domain `msda`: names, attributes, translations, bodies."""
