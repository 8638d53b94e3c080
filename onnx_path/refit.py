"""`python -m onnx_path.refit`: gives an engine the weights of an ONNX file, without a build.

The engine comes from `onnx_path.export --refittable`, the ONNX file from the same command with other weights
(`--onnx-only`). Every weight of the engine gets its new value, or nothing is written.
"""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from codetr.cli.argument_types import InputFile, OutputFile, Parameter
from codetr.cli.program import run_program
from codetr.export.output_folder import check_output, stage
from codetr.export.refit_options import refittable_metadata
from trt_plugin import ArtifactMetadata
from trt_plugin.atomic_files import atomic_write


def refit(
    engine: Annotated[InputFile, Parameter(metavar="ENGINE")],
    model: Annotated[InputFile, Parameter(metavar="MODEL.onnx")],
    /,
    *,
    out: OutputFile,
) -> int:
    """Put the weights of an ONNX file into an engine. Needs a GPU.

    Metadata beside the engine is copied to the new one, with the weights and classes that the file's metadata
    names.

    Args:
        engine: engine of `onnx_path.export --refittable`.
        model: ONNX file of the same export with other weights.
        out: engine to write.
    """
    from trt_plugin.cuda_runtime import require_gpu

    check_output("out", out, [out.with_suffix(".json")])
    metadata, beside_model = None, model.with_suffix(".json")
    if engine.with_suffix(".json").is_file():
        own = refittable_metadata(engine)
        told = ArtifactMetadata.load(beside_model) if beside_model.is_file() else None
        weights, names = (told.source_weights, told.class_names) if told else ("", own.class_names)
        metadata = dataclasses.replace(own, source_weights=weights or str(model), class_names=names)
    require_gpu()
    with stage(f"refit {engine.name}"):
        content = refit_plan(engine, model)
    with atomic_write(out) as temporary:
        temporary.write_bytes(content)
    if metadata is not None:
        metadata.save(out.with_suffix(".json"))
    print(f"wrote {out}" + (f" and {out.with_suffix('.json').name}" if metadata else ""))
    return 0


def refit_plan(engine_path: Path, onnx_path: Path) -> bytes:
    """Gives every weight of a refittable engine that of an ONNX file; returns the new engine, serialised.

    Raises:
        RuntimeError: a weight is missing in the file or has another size, or TensorRT cannot refit.
        trt_plugin.EngineError: the engine cannot be loaded.
    """
    from onnx_path.tensorrt.model_for_tensorrt import parsed_file
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


main = partial(run_program, refit, program="python -m onnx_path.refit")

if __name__ == "__main__":
    sys.exit(main())
