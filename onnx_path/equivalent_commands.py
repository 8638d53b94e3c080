"""Command lines of polygraphy and trtexec that build the same engine as `onnx_path.build` does."""

from __future__ import annotations

import shlex
from pathlib import Path

from onnx_path.optimization_profiles import OPTIONS, Profile, format_shape
from onnx_path.tensorrt_engine import Settings


def polygraphy_line(model: Path, engine: Path, settings: Settings) -> str:
    """Returns the `polygraphy convert` line, quoted for a shell.

    Args:
        model: what TensorRT parses.
        engine: to write.
        settings: of the build.
    """
    words = ["polygraphy", "convert", str(model)]
    words += [] if model.suffix == ".onnx" else ["--model-type", "onnx"]
    words += ["--convert-to", "trt", "-o", str(engine), "--strongly-typed"]
    words += ["--tf32"] * settings.tf32  # off without
    for option, which in zip(OPTIONS, Profile._fields):
        shapes = [
            f"{name}:[{','.join(map(str, getattr(profile, which)))}]"
            for name, profile in settings.profiles.items()
        ]
        words += [f"--trt-{option[2:]}-shapes", *shapes] if shapes else []
    if settings.workspace_bytes is not None:
        words += ["--pool-limit", f"workspace:{settings.workspace_bytes}"]
    if settings.optimization_level is not None:
        words += ["--builder-optimization-level", str(settings.optimization_level)]
    words += ["--profiling-verbosity", "detailed"]
    if settings.timing_cache is not None:
        cache = str(settings.timing_cache)
        words += ["--load-timing-cache", cache, "--save-timing-cache", cache]
    if settings.plugins:
        words += ["--plugins", *map(str, settings.plugins)]
    return shlex.join(words)


def trtexec_line(model: Path, engine: Path, settings: Settings) -> str:
    """Returns the `trtexec` line, quoted for a shell; arguments as `polygraphy_line`'s."""
    words = ["trtexec", f"--onnx={model}", f"--saveEngine={engine}", "--stronglyTyped"]
    words += [] if settings.tf32 else ["--noTF32"]  # on without
    for option, which in zip(OPTIONS, Profile._fields):
        shapes = ",".join(
            f"{_trtexec_name(name)}:{format_shape(getattr(profile, which))}"
            for name, profile in settings.profiles.items()
        )
        words += [f"{option}Shapes={shapes}"] if shapes else []
    if settings.workspace_bytes is not None:
        words.append(f"--memPoolSize=workspace:{settings.workspace_bytes}B")
    if settings.optimization_level is not None:
        words.append(f"--builderOptimizationLevel={settings.optimization_level}")
    words.append("--profilingVerbosity=detailed")
    if settings.timing_cache is not None:
        words.append(f"--timingCacheFile={settings.timing_cache}")
    words += [f"--dynamicPlugins={library}" for library in settings.plugins]
    return shlex.join([*words, "--skipInference"])


def _trtexec_name(name: str) -> str:
    """trtexec separates inputs by commas and shapes by colons, unless they stand between single quotes."""
    return f"'{name}'" if set(name) & set(":,") else name
