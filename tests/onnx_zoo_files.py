"""`python -m tests.onnx_zoo_files DIR`: the zoo's models in their published configurations, as ONNX files.

Random weights, one image of the usual size, static shapes. The files' metadata say what they are; see
`benchmarks.surgery`, which measures them. A file that is there is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import onnx

from codetr.cli.command import ArgumentParser, run_command, to_path
from tests.onnx_zoo import USUAL_OPSET, ZOO, export_module

MODELS = (
    *("deformable_detr", "deformable_detr_two_stage", "rt_detr", "rt_detr_v2", "d_fine"),
    *("grounding_dino", "mask2former", "omdet_turbo", "rf_detr", "co_dino_r50", "co_dino_swin"),
)
"""Each model once."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_command(lambda: _main(arguments), "tests.onnx_zoo_files")


def _main(arguments: Sequence[str] | None) -> int:
    parser = ArgumentParser(prog="python -m tests.onnx_zoo_files", description=__doc__.split("\n")[0])
    parser.add_argument("folder", metavar="DIR", type=to_path)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        print(write(name, options.folder), flush=True)
    return 0


def write(name: str, folder: Path, full: bool = True) -> Path:
    """Exports a model, unless the folder holds its file already.

    Args:
        name: a key of the zoo.
        folder: for <name>.onnx.
        full: the published configuration, not the small one.
    """
    entry, path = ZOO[name], folder / f"{name}.onnx"
    if path.exists():
        return path
    usual = entry.usual_size
    said = {
        "configuration": f"{usual.configuration}, {usual.height}x{usual.width}" if full else "small",
        "attentions": str(usual.layers if full else entry.layers),
    }
    model, inputs = entry.build(full)
    partial = path.with_suffix(".partial")
    opset = USUAL_OPSET[entry.exporter]
    export_module(model, inputs, partial, outputs=entry.outputs, exporter=entry.exporter, opset=opset)
    content = onnx.load(partial)
    onnx.helper.set_model_props(content, said)
    onnx.save(content, partial)
    partial.replace(path)
    return path


if __name__ == "__main__":
    sys.exit(main())
