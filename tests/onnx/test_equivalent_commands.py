"""The command lines of polygraphy and trtexec that `onnx_path.build` prints, and its own settings."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path

import pytest

from onnx_path.tensorrt.equivalent_commands import equivalent_commands
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from onnx_path.tensorrt.tensorrt_engine import Settings, serialize_engine

EVERYTHING = Settings(
    {
        "images": ShapeRange((1, 3, 320, 320), (2, 3, 640, 640), (8, 3, 1280, 1280)),
        "mask:0": ShapeRange((1, 8), (2, 8), (8, 8)),
    },
    tf32=True,
    workspace_bytes=2**29,
    optimization_level=4,
    timing_cache=Path("my cache"),
    plugins=(Path("/opt/lib a.so"), Path("b.so")),
)


@pytest.mark.parametrize(
    ("settings", "name"), [(EVERYTHING, "a model.bin"), (Settings(), "model.onnx")], ids=["all", "none"]
)
def test_polygraphy_s_line_and_the_build_have_the_settings(tensorrt, tmp_path, monkeypatch, settings, name):
    """Checks the arguments of polygraphy's tool and of its Python API. The builder behind needs a GPU."""
    from polygraphy.backend import trt as backend
    from polygraphy.tools import args
    from polygraphy.tools.convert.convert import Convert

    path, cache = tmp_path / name, tmp_path / "cache"
    path.touch()  # polygraphy warns of a file that is not there
    cache.touch()
    if settings.timing_cache:
        settings = dataclasses.replace(settings, timing_cache=cache)
    line = equivalent_commands(path, tmp_path / "model.plan", settings)["polygraphy"]
    tool, parser = Convert(), argparse.ArgumentParser()
    tool.setup_parser(parser.add_subparsers())
    program, *words = shlex.split(line)
    assert program == "polygraphy"
    parsed = parser.parse_args(words)
    tool.parse(parsed)
    groups = tool.arg_groups
    config = groups[args.TrtConfigArgs]
    assert (parsed.convert_to, parsed.output) == ("trt", str(tmp_path / "model.plan"))
    assert (groups[args.ModelArgs].path, str(groups[args.ModelArgs].model_type)) == (str(path), "onnx")
    assert groups[args.TrtLoadNetworkArgs].strongly_typed is True
    assert (groups[args.TrtLoadPluginsArgs].plugins or []) == list(map(str, settings.plugins))
    assert str(config.profiling_verbosity).endswith("DETAILED")

    calls = []

    def capture(network, **options):
        calls.append((network, options))
        return lambda: b"engine"

    monkeypatch.setattr(backend, "EngineBytesFromNetwork", capture)
    serialize_engine(path, settings, name)
    ((network, options),) = calls
    built = options["config"]
    assert network.strongly_typed is True
    assert built.profiling_verbosity == tensorrt.ProfilingVerbosity.DETAILED

    assert bool(config.tf32) is bool(built.tf32) is settings.tf32
    levels = {config.builder_optimization_level, built.builder_optimization_level}
    assert levels == {settings.optimization_level}
    caches = (config.load_timing_cache, groups[args.TrtLoadEngineBytesArgs].save_timing_cache)
    caches += (built.timing_cache_path, options["save_timing_cache"])
    assert set(caches) == {str(cache) if settings.timing_cache else None}
    pools = [config.memory_pool_limits or {}, built.memory_pool_limits or {}]
    expected = {"WORKSPACE": 2**29} if settings.workspace_bytes else {}
    assert [{str(x).rpartition(".")[2]: size for x, size in pool.items()} for pool in pools] == [expected] * 2
    profiles = [config.profile_dicts or [{}], built.profiles or [{}]]
    for (profile,) in profiles:
        assert {x: tuple(map(tuple, shapes)) for x, shapes in profile.items()} == settings.profiles


def test_trtexec_line():
    """Options as `trtexec --help` of TensorRT 10.6 has them; names with a colon stand between quotes."""
    line = equivalent_commands(Path("a model.onnx"), Path("model.engine"), EVERYTHING)["trtexec"]
    assert shlex.split(line) == [
        "trtexec",
        "--onnx=a model.onnx",
        "--saveEngine=model.engine",
        "--stronglyTyped",
        "--minShapes=images:1x3x320x320,'mask:0':1x8",
        "--optShapes=images:2x3x640x640,'mask:0':2x8",
        "--maxShapes=images:8x3x1280x1280,'mask:0':8x8",
        "--memPoolSize=workspace:536870912B",
        "--builderOptimizationLevel=4",
        "--profilingVerbosity=detailed",
        "--timingCacheFile=my cache",
        "--dynamicPlugins=/opt/lib a.so",
        "--dynamicPlugins=b.so",
        "--skipInference",
    ]
    assert equivalent_commands(Path("m.onnx"), Path("m.engine"), Settings())["trtexec"] == (
        "trtexec --onnx=m.onnx --saveEngine=m.engine --stronglyTyped --noTF32 --profilingVerbosity=detailed "
        "--skipInference"
    )
