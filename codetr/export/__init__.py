"""The steps that both export paths share: the request, the model to trace, metadata and the comparison."""
