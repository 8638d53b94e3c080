"""`python -m tests.onnx.zoo_files DIR`: the zoo's models in their published configurations, as ONNX files."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import onnx
from cyclopts.types import PositiveInt

from codetr.cli.argument_types import Folder, Parameter
from codetr.cli.program import run_program
from tests.onnx.model_zoo import USUAL_OPSET, ZOO
from tests.onnx.swin_models import SWINS
from tests.onnx.zoo_exporters import export_module

MODELS = (
    *("deformable_detr", "deformable_detr_two_stage", "rt_detr", "rt_detr_v2", "d_fine"),
    *("grounding_dino", "mask2former", "omdet_turbo", "rf_detr", "co_dino_r50", "co_dino_swin"),
)
"""Each published DETR once."""


def zoo_files(
    folder: Annotated[Folder, Parameter(metavar="DIR")],
    /,
    *,
    models: Annotated[tuple[Literal[(*MODELS, *SWINS)], ...], Parameter(consume_multiple=True)] = MODELS,
    batch: PositiveInt = 1,
) -> int:
    """Export the zoo's models in their published configurations, for benchmarks of ONNX files.

    The files have random weights, images of the usual size and static shapes. A file that exists is kept.

    Args:
        folder: folder for MODEL.onnx, or MODEL_bN.onnx with N images.
        models: models to export; default: the DETRs.
        batch: number of images.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in models:
        print(write(name, folder, batch=batch), flush=True)
    return 0


def write(name: str, folder: Path, full: bool = True, batch: int = 1) -> Path:
    """Exports a model with metadata that tell its configuration, unless the folder holds its file already.

    Args:
        name: a key of the zoo, or of `SWINS`.
        folder: for <name>.onnx, or <name>_b<batch>.onnx with several images.
        full: the published configuration, not the small one.
        batch: number of images.
    """
    path = folder / (f"{name}.onnx" if batch == 1 else f"{name}_b{batch}.onnx")
    if path.exists():
        return path
    entry = (ZOO | SWINS)[name]
    model, inputs = entry.build(full, batch)
    height, width = next(iter(inputs.values())).shape[-2:]
    metadata = {
        "configuration": f"{entry.published}, {height}x{width}" if full else "small",
        "attentions": str(entry.published_layers if full else entry.layers),
    }
    partial = path.with_suffix(".partial")
    form = {"exporter": "torchscript", "opset": USUAL_OPSET["torchscript"]}
    export_module(model, inputs, partial, outputs=entry.outputs, **form)
    content = onnx.load(partial)
    onnx.helper.set_model_props(content, metadata)
    onnx.save(content, partial)
    partial.replace(path)
    return path


main = partial(run_program, zoo_files, program="python -m tests.onnx.zoo_files")

if __name__ == "__main__":
    sys.exit(main())
