"""The command lines of polygraphy and trtexec that `onnx_path.build` prints, and its own settings."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path

import pytest

from onnx_path.equivalent_commands import equivalent_commands
from onnx_path.optimization_profiles import ShapeRange
from onnx_path.tensorrt_engine import Settings, serialize_engine

pytest_plugins = ("tests.onnx.build_fixtures",)

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


@pytest.mark.parametrize("model", ["a model.onnx", "model.bin"])
@pytest.mark.parametrize("settings", [EVERYTHING, Settings()], ids=["everything", "nothing"])
def test_polygraphy_reads_its_line(tensorrt, tmp_path, settings, model):
    from polygraphy.tools import args
    from polygraphy.tools.convert.convert import Convert

    path = tmp_path / model  # polygraphy warns of a file that is not there
    path.touch()
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
    assert bool(config.tf32) is settings.tf32
    expected = {name: tuple(map(list, profile)) for name, profile in settings.profiles.items()}
    assert (config.profile_dicts or [{}]) == [expected]
    limits = {str(pool): size for pool, size in (config.memory_pool_limits or {}).items()}
    assert limits == ({"trt.MemoryPoolType.WORKSPACE": 2**29} if settings.workspace_bytes else {})
    assert config.builder_optimization_level == settings.optimization_level
    assert str(config.profiling_verbosity).endswith("DETAILED")
    cache = str(settings.timing_cache) if settings.timing_cache else None
    assert config.load_timing_cache == groups[args.TrtLoadEngineBytesArgs].save_timing_cache == cache
    assert (groups[args.TrtLoadPluginsArgs].plugins or []) == [str(path) for path in settings.plugins]


def test_the_build_has_the_same_settings(tensorrt, tmp_path, monkeypatch):
    """Checks the arguments of polygraphy's Python API. The builder behind it needs a GPU."""
    from polygraphy.backend import trt as backend

    calls = []

    class Captured:
        def __init__(self, network, config, save_timing_cache) -> None:
            calls.append((network, config, save_timing_cache))

        def __call__(self) -> bytes:
            return b"engine"

    monkeypatch.setattr(backend, "EngineBytesFromNetwork", Captured)
    cache = tmp_path / "cache"
    cache.touch()
    settings = dataclasses.replace(EVERYTHING, timing_cache=cache)
    assert serialize_engine(tmp_path / "model.onnx", settings, "model.onnx") == b"engine"
    network, config, saved = calls.pop()
    assert network.strongly_typed is True
    assert config.tf32 is True
    assert config.memory_pool_limits == {tensorrt.MemoryPoolType.WORKSPACE: 2**29}
    assert config.profiling_verbosity == tensorrt.ProfilingVerbosity.DETAILED
    assert config.builder_optimization_level == 4
    assert config.timing_cache_path == saved == str(cache)
    (profile,) = config.profiles
    assert {name: tuple(shapes) for name, shapes in profile.items()} == EVERYTHING.profiles
    serialize_engine(tmp_path / "model.onnx", Settings(), "model.onnx")
    _, config, saved = calls.pop()
    assert not config.tf32
    assert config.memory_pool_limits is config.timing_cache_path is saved is None


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
