"""Plausible results.json of sweeps that no machine ran, for the tests of their report."""

from __future__ import annotations

import random

SPEED = {
    ("torch", "fp32"): 1,
    ("torch", "tf32"): 1.6,
    ("torch", "fp16"): 2.3,
    ("torch-compile", "fp16"): 2.9,
    ("onnxruntime", "fp32"): 1.1,
    ("tensorrt", "fp32"): 1.3,
    ("tensorrt", "fp16"): 3.9,
    ("tensorrt", "int8"): 5.2,
    ("tensorrt", "fp8"): 5.0,
}
"""Runtimes and precisions, and how many times as fast as PyTorch fp32 they are."""

LOSS = {"fp32": 1e-7, "tf32": 1e-4, "fp16": 2e-4, "bf16": 1e-3, "int8": 5e-3, "fp8": 8e-3}

Series = tuple[str, str]


def sample_results(networks: dict[str, str], batches: list[int], series: list[Series] | None = None) -> dict:
    """Returns the content of a results.json.

    Args:
        networks: names and tasks. Each further network is 1.7 times as slow as the one before.
        batches: batch sizes; TensorRT has static and dynamic cells.
        series: runtimes and precisions. Default: all of SPEED.
    """
    chance = random.Random(0)
    cells = []
    for i, (network, task) in enumerate(networks.items()):
        for runtime, precision in series or SPEED:
            for shapes in ("static", "dynamic") if runtime == "tensorrt" else ("any",):
                for batch in batches:
                    name = f"{network}-{runtime}-{precision}-b{batch}-{shapes}"
                    cell = {"id": name, "network": network, "runtime": runtime, "precision": precision}
                    cell |= {"batch": batch, "shapes": shapes, "status": "ok", "reason": None}
                    ms = 1.7**i * (2 + 0.5 * batch) / SPEED[runtime, precision]
                    cell |= _measurements(
                        cell, task, ms * (2 if shapes == "dynamic" and batch == 1 else 1), chance
                    )
                    cells.append(cell)
    return {
        "version": 1,
        "command": f"codetr sweep {' '.join(networks)} --dataset photos --out sweep",
        "machine": {"gpu": "NVIDIA H200", "cpu": "Xeon", "driver": "580.1", "memory_mib": 143771},
        "versions": {"torch": "2.11.0", "tensorrt": "10.6.0"},
        "networks": [
            {"name": name, "source": "detector" if task == "detect" else "torchvision", "task": task,
             "parameters": 11689512, "input": [3, 224, 224], "weights": "pretrained"}
            for name, task in networks.items()
        ],
        "cells": cells,
    }  # fmt: skip


def empty_cell(cell: dict, status: str, reason: str | None) -> None:
    """Turns a cell into one without a measurement."""
    kept = ("id", "network", "runtime", "precision", "batch", "shapes")
    for key in cell:
        cell[key] = cell[key] if key in kept else None
    cell |= {"status": status, "reason": reason}


def statistics(ms: float) -> dict:
    """Returns statistics of a time around a median."""
    tail = {"mean": 1.02 * ms, "median": ms, "p95": 1.1 * ms, "p99": 1.2 * ms, "max": 1.5 * ms}
    return {**tail, "ci95": [1.01 * ms, 1.03 * ms], "samples": 200, "warmup": 20}


def _measurements(cell: dict, task: str, ms: float, chance: random.Random) -> dict:
    loss, batch = LOSS[cell["precision"]] * chance.uniform(0.8, 1.2), cell["batch"]
    power = 250 + 80 * SPEED[cell["runtime"], cell["precision"]]
    samples = [
        [t / 5, 97 - 60 * (t < 6) + chance.uniform(-2, 2), 900 + 14 * batch * min(t, 6) / loss**0.1,
         power * min(1, 0.3 + t / 8) + chance.uniform(-9, 9), 1980, 55 + t / 4]
        for t in range(40)
    ]  # fmt: skip
    if task == "detect":
        accuracy = {"AP": 0.52 - loss, "AP50": 0.7 - loss, "AP75": 0.57, "APs": 0.3, "APm": 0.55, "APl": 0.7}
        by_rank = [{"rank": r, "box_px": 40 * loss * r, "score": loss * r} for r in range(1, 11)]
        agreement = {"inputs": 100, "data": "dataset", "matched": 1 - loss, "by_rank": by_rank}
    else:
        accuracy = {"top1": 0.81 - loss, "top5": 0.95 - loss / 2}
        errors = {r: {"mean_abs_error": loss / r, "disagreement": min(1, 2 * loss * r)} for r in range(1, 11)}
        by_rank = [{"rank": r, **error} for r, error in errors.items()]
        labels = ["tabby", "tiger cat", "Egyptian cat", "lynx", "<script>alert(1)</script>"]
        example = {
            "reference": [[label, 0.6 / 2**i] for i, label in enumerate(labels)],
            "got": [[label, 0.6 / 2**i - loss] for i, label in enumerate(labels)],
        }
        agreement = {"inputs": 5000, "data": "random", "rtol": 1e-3, "atol": 1e-8, "close": 1 - loss,
                     "by_rank": by_rank, "example": example}  # fmt: skip
    tensorrt = cell["runtime"] == "tensorrt"
    return {
        "model_ms": {"eager": statistics(ms), "graph": statistics(0.9 * ms) if tensorrt else None},
        "total_ms": statistics(1.3 * ms + 0.02 * batch),
        "images_per_s": 1000 * batch / (0.9 * ms if tensorrt else ms),
        "images_per_s_total": 1000 * batch / (1.3 * ms + 0.02 * batch),
        "file": f"engines/{cell['id']}.engine" if tensorrt else None,
        "file_bytes": 24_000_000 if tensorrt else None,
        "weights_bytes": 23_000_000 if tensorrt else None,
        "context_bytes": 1_000_000 * batch if tensorrt else None,
        "peak_gpu_bytes": 900_000_000 + 14_000_000 * batch,
        "layers": 57 if tensorrt else None,
        "parameters": 11689512,
        "build_s": 34.5 if tensorrt else None,
        "seconds": 60.2,
        "accuracy": {"images": 500, "bad_images": 0, **accuracy},
        "agreement": agreement,
        "gpu": {"throttled": False, "reasons": [], "sm_mhz": [1980, 1980], "samples": samples},
    }
