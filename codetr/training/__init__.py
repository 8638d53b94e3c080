"""Training: losses, data, the loop."""
