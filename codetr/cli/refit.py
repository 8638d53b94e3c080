"""The command `codetr refit`: gives an engine other weights without a build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from codetr.cli.argument_types import InputFile, OutputFile, Parameter
from codetr.errors import ArgumentError, UsageError
from codetr.export.refit_options import CheckpointOptions

_DEFAULTS = CheckpointOptions()


def refit(
    engine: Annotated[InputFile, Parameter(metavar="ENGINE")],
    weights: Annotated[str, Parameter(metavar="WEIGHTS")],
    /,
    *,
    out: OutputFile,
    checkpoint: CheckpointOptions = _DEFAULTS,
) -> int:
    """Put other weights into an engine of --refittable. Needs a GPU.

    Args:
        engine: engine to copy.
        weights: for an engine of the ONNX path, the ONNX file of the same export with other weights. For one
            of the dynamo path, a checkpoint: a known name, a file or a URL.
        out: engine to write, with its metadata beside it.
    """
    if not weights.endswith(".onnx"):
        from dynamo_path import refit as dynamo_refit

        return dynamo_refit.refit(engine, weights, out=out, checkpoint=checkpoint)
    for name, given in vars(checkpoint).items():
        if given:
            raise ArgumentError(name, f"expected a checkpoint with it, got the ONNX file {weights}")
    if not Path(weights).is_file():
        raise UsageError(f"WEIGHTS: expected an ONNX file, got {weights}, no such file")
    from onnx_path import refit as onnx_refit

    return onnx_refit.refit(engine, Path(weights), out=out)
