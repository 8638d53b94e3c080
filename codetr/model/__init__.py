"""The network of Co-DINO in PyTorch: backbone, neck, transformer and head, built from a configuration."""

from codetr.model.co_dino import CoDino, TrainingOutputs

__all__ = ["CoDino", "TrainingOutputs"]
