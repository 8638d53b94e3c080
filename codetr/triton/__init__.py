"""Model repositories for Triton. `steps` are the Python models that a repository carries."""
