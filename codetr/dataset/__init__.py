"""Datasets in COCO format: their files, and images that cannot be read."""
