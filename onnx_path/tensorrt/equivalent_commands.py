"""Command lines of polygraphy and trtexec that build the same engine as `onnx_path.build`."""

from __future__ import annotations

import shlex
from pathlib import Path

from onnx_path.tensorrt.optimization_profiles import ShapeRange, format_shape
from onnx_path.tensorrt.tensorrt_engine import Settings


def equivalent_commands(model: Path, engine: Path, settings: Settings) -> dict[str, str]:
    """Returns the command line of each tool by its name, quoted for a shell."""
    polygraphy = ["polygraphy", "convert", str(model)]
    polygraphy += [] if model.suffix == ".onnx" else ["--model-type", "onnx"]
    polygraphy += ["--convert-to", "trt", "-o", str(engine), "--strongly-typed"]
    polygraphy += ["--tf32"] * settings.tf32  # off by default
    trtexec = ["trtexec", f"--onnx={model}", f"--saveEngine={engine}", "--stronglyTyped"]
    trtexec += [] if settings.tf32 else ["--noTF32"]  # on by default
    if settings.profiles:
        for which in ShapeRange._fields:
            shapes = {name: getattr(profile, which) for name, profile in settings.profiles.items()}
            lists = [f"{name}:[{','.join(map(str, shape))}]" for name, shape in shapes.items()]
            polygraphy += [f"--trt-{which}-shapes", *lists]
            texts = (f"{_trtexec_name(name)}:{format_shape(shape)}" for name, shape in shapes.items())
            trtexec.append(f"--{which}Shapes={','.join(texts)}")
    if settings.workspace_bytes is not None:
        polygraphy += ["--pool-limit", f"workspace:{settings.workspace_bytes}"]
        trtexec.append(f"--memPoolSize=workspace:{settings.workspace_bytes}B")
    if settings.optimization_level is not None:
        polygraphy += ["--builder-optimization-level", str(settings.optimization_level)]
        trtexec.append(f"--builderOptimizationLevel={settings.optimization_level}")
    polygraphy += ["--profiling-verbosity", "detailed"]
    trtexec.append("--profilingVerbosity=detailed")
    if settings.timing_cache is not None:
        cache = str(settings.timing_cache)
        polygraphy += ["--load-timing-cache", cache, "--save-timing-cache", cache]
        trtexec.append(f"--timingCacheFile={cache}")
    if settings.plugins:
        polygraphy += ["--plugins", *map(str, settings.plugins)]
        trtexec += [f"--dynamicPlugins={library}" for library in settings.plugins]
    return {"polygraphy": shlex.join(polygraphy), "trtexec": shlex.join([*trtexec, "--skipInference"])}


def _trtexec_name(name: str) -> str:
    """Quotes a name with the characters by which trtexec separates inputs and shapes."""
    return f"'{name}'" if set(name) & set(":,") else name
