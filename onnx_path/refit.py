"""`python -m onnx_path.refit ENGINE MODEL.onnx --out NEW`: a file's weights in an engine, without a build.

The engine is one of `onnx_path.export --refittable`, MODEL.onnx what the same command writes with other
weights (`--onnx-only`). Every weight of the engine gets its new value, or nothing is written. Metadata that
lies beside the engine goes along, with the weights that are said beside MODEL.onnx. Needs a GPU.

Exit status: 0 done, 1 failed, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codetr.cli.command import (
    ArgumentParser,
    UsageError,
    check_file,
    one_line,
    run_command,
    to_path,
)
from codetr.export.refit_options import check_new_engine, require_refittable
from codetr.export.request import stage
from onnx_path.builder import parsed_file
from trt_plugin.atomic_files import atomic_write

if TYPE_CHECKING:
    from trt_plugin import ArtifactMetadata


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_command(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    engine, model, out = arguments.engine, arguments.model, arguments.out
    metadata = _check(arguments)
    from trt_plugin.cuda_runtime import require_gpu

    require_gpu()
    with stage(f"refit {engine.name}"):
        content = refit(engine, model)
    with atomic_write(out) as temporary:
        temporary.write_bytes(content)
    if metadata is not None:
        metadata.save(out.with_suffix(".json"))
    print(f"wrote {out}" + (f" and {out.with_suffix('.json').name}" if metadata else ""))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="python -m onnx_path.refit", description="Put an ONNX file's weights into an engine."
    )
    parser.add_argument("engine", metavar="ENGINE", type=to_path, help="of onnx_path.export --refittable")
    parser.add_argument("model", metavar="MODEL.onnx", type=to_path, help="the same export of other weights")
    parser.add_argument("--out", metavar="NEW", type=to_path, required=True, help="engine to write")
    return parser


def _check(arguments: argparse.Namespace) -> ArtifactMetadata | None:
    """Checks the files; returns the new engine's metadata, if the old one has any.

    Raises:
        UsageError: a file is not there, cannot be written, or the engine cannot be refitted.
    """
    from trt_plugin import ArtifactMetadata, EngineError

    check_file("ENGINE", arguments.engine)
    check_file("MODEL.onnx", arguments.model)
    check_new_engine(arguments.out)
    beside = [path.with_suffix(".json") for path in (arguments.engine, arguments.model)]
    if not beside[0].is_file():
        return None
    try:
        metadata = ArtifactMetadata.load(beside[0])
        weights = ArtifactMetadata.load(beside[1]).source_weights if beside[1].is_file() else ""
    except EngineError as error:
        raise UsageError(one_line(error)) from error
    require_refittable(arguments.engine, metadata)
    return dataclasses.replace(metadata, source_weights=weights or str(arguments.model))


def refit(engine_path: Path, onnx_path: Path) -> bytes:
    """Gives every weight of an engine that of an ONNX file.

    Args:
        engine_path: a refittable engine.
        onnx_path: a file as the engine was built of; external weights lie beside it.

    Returns:
        The new engine, serialised.

    Raises:
        RuntimeError: a weight is missing in the file or has another size, or TensorRT cannot refit.
        trt_plugin.EngineError: the engine cannot be loaded.
    """
    from trt_plugin.engine_error import import_tensorrt
    from trt_plugin.engine_refit import refit_engine
    from trt_plugin.tensorrt_log import describe, tensorrt_logger

    trt = import_tensorrt()

    def give(refitter: Any, messages: list[str]) -> object:
        reader = trt.OnnxParserRefitter(refitter, tensorrt_logger())
        if not reader.refit_from_file(str(parsed)):
            errors = [reader.get_error(index).desc() for index in range(reader.num_errors)]
            reason = "; ".join(errors) or describe(messages)
            raise RuntimeError(f"{onnx_path.name}: its weights are not those of {engine_path}: {reason}")
        missing = refitter.get_missing_weights()
        if missing:
            raise RuntimeError(
                f"{onnx_path.name}: {len(missing)} weights of {engine_path} are not in it: {missing[0]}, …"
            )
        return reader

    with parsed_file(onnx_path) as parsed:
        return refit_engine(engine_path, give)


if __name__ == "__main__":
    sys.exit(main())
