"""`python -m onnx_path.surgeon`: replaces MSDA, window attention and what is near them by one node each.

Exporters write MSDA as dozens of GridSample, Slice, Transpose and Reshape nodes, and the window attention of
Swin Transformers as dozens of others. The surgeon finds them by what they compute, not by their names.
`operate` does the same to a model in memory; `onnx_path.surgery` tells how.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts.types import NonNegativeInt

from codetr.cli.argument_types import InputFile, OutputFile, Parameter
from codetr.cli.program import complain, run_program
from codetr.errors import UsageError, one_line
from codetr.export.output_folder import check_output, check_positional_output
from onnx_path.surgery.verify.report import Kind, NearMiss, Replacement, SurgeryReport
from trt_plugin.atomic_files import write_json

if TYPE_CHECKING:
    from onnx_path.surgery.pipeline import OutputsDiffer, UnknownOperator, operate

__all__ = ["NearMiss", "OutputsDiffer", "Replacement", "SurgeryReport", "UnknownOperator", "operate"]


def __getattr__(name: str):
    """Imports the public names when they are used, so that the command's help needs no ONNX packages."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("onnx_path.surgery.pipeline"), name)


def surgeon(
    model: Annotated[InputFile, Parameter(metavar="IN.onnx")],
    out: Annotated[OutputFile, Parameter(metavar="OUT.onnx")],
    /,
    *,
    target: Literal["msda", "nvidia"] = "msda",
    only: Annotated[tuple[Kind, ...] | None, Parameter(consume_multiple=True)] = None,
    no_check: bool = False,
    no_function_body: bool = False,
    no_fuse: bool = False,
    expect: NonNegativeInt | None = None,
    seed: int = 0,
    json: OutputFile | None = None,
) -> int:
    """Replace MSDA, window attention and what is near them in an ONNX file by one node each.

    Onnxruntime proves every replacement on random numbers, and compares the outputs of both files.

    Exit status: 0, done, also if there was nothing to replace; 1, failed, or not as many replaced as
    expected; 2, wrong options or an unusable file.

    Args:
        model: file to read.
        out: file to write, another than MODEL.
        target: nodes of our plugin, or of NVIDIA's MultiscaleDeformableAttnPlugin_TRT.
        only: replace only these; padding-mask needs msda, or a file that has its nodes already. Default:
            msda, window-attention, long-attention and masked-attention, and linear if a window attention was
            replaced. NVIDIA's target: msda.
        no_check: write without comparing the outputs of both files.
        no_function_body: leave out the standard operators that let any runtime run the nodes.
        no_fuse: leave softmax and locations outside the MSDA nodes.
        expect: write nothing unless so many MSDA were replaced.
        seed: seed of the random numbers.
        json: write the report to this file.
    """
    check_positional_output("OUT.onnx", out, (model,))
    check_output("json", json, (model, out))
    from onnx_path.surgery.graph import model_files
    from onnx_path.surgery.graph.onnx_session import CannotRun
    from onnx_path.surgery.pipeline import OutputsDiffer, UnknownOperator, operate

    original = model_files.load(model)
    model_files.check_valid(model, original)
    try:
        result, report = operate(
            original,
            target=target,
            only=only,
            fuse=not no_fuse,
            function_body=not no_function_body,
            check=not no_check,
            seed=seed,
            folder=model.parent,
        )
    except (UnknownOperator, CannotRun) as error:
        raise UsageError(f"{model}: {one_line(error)}") from error
    except OutputsDiffer as error:
        raise OutputsDiffer(f"{out} is not written: {error}") from error
    if expect not in (None, (attentions := len(report.of("msda")))):
        found = f"{attentions} MSDA replaced, expected {expect}{_already(report)}"
        why = next((f"; kept {miss}" for miss in report.near_misses if miss.kind == "msda"), "")
        raise ValueError(f"{out} is not written: {found}{why}")
    model_files.save(result, out, model)
    if json is not None:
        write_json(json, dataclasses.asdict(report), indent=2, allow_nan=False)
    _print(report, out)
    return 0


def _print(report: SurgeryReport, out: Path) -> None:
    for replacement in report.replacements:
        print(f"replaced {replacement}", file=sys.stderr)
    for miss in report.near_misses:
        print(f"kept {miss}", file=sys.stderr)
    for note in report.notes:
        complain("note", note)
    if not report.replacements:
        found = "nothing replaced" if report.near_misses else "found nothing to replace"
        print(f"{found}{_already(report)}: {out} is a copy of the file read", file=sys.stderr)
        return
    error = "not compared"
    if report.max_error is not None:
        error = f"largest relative difference {report.max_error:.1e}"
    nouns = Counter(replacement.noun for replacement in report.replacements)
    counts = [f"{count} {noun}{'s' if count > 1 and noun != 'MSDA' else ''}" for noun, count in nouns.items()]
    print(
        f"wrote {out}: {', '.join(counts)} replaced{_already(report)}, {report.nodes_before} -> "
        f"{report.nodes_after} nodes; outputs: {error}",
        file=sys.stderr,
    )


def _already(report: SurgeryReport) -> str:
    nodes = ", ".join(f"{count} {op_type}" for op_type, count in report.already.items())
    return f" (already in the file read: {nodes})" if nodes else ""


main = partial(run_program, surgeon, program="python -m onnx_path.surgeon")

if __name__ == "__main__":
    sys.exit(main())
