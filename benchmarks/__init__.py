"""Benchmarks: the registry of problem sizes, timing, accuracy, result files and their pictures.

May import every room but `tests`. Results lie in `results/`, one JSON a run, with the machine named inside.
"""
