"""`python -m onnx_path.surgeon`: one node for each multi-scale deformable attention in an ONNX file.

Exporters write the operator as dozens of GridSample, Slice, Transpose and Reshape nodes. The command finds
these by what they compute, whatever they are called, and replaces them by a node of domain `msda` (see
`onnx_path.operator`), or by NVIDIA's plugin. Every replacement is proven on random numbers in onnxruntime,
and so is the whole model. Exit status: 0 done, also if there was nothing to replace; 1 failed, or not as many
replaced as --expect says; 2 wrong arguments or a file that will not do.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from codetr.cli.command import (
    ArgumentParser,
    UsageError,
    check_file,
    check_writable,
    one_line,
    run_command,
    to_path,
    whole,
)
from onnx_path import requirements

if __name__ == "__main__":
    requirements.stop_without_graph_packages("onnxruntime")

import onnx

from onnx_path.arguments import add_json, write_report
from onnx_path.custom_operators import nodes_of
from onnx_path.operator import OPERATORS
from onnx_path.surgery import bodies, files, runtime
from onnx_path.surgery.check import DISTURBANCE, OutputsDiffer, compare
from onnx_path.surgery.operation import Operation
from onnx_path.surgery.report import NearMiss, Replacement, Report

__all__ = ["NearMiss", "Replacement", "Report", "UnknownOperator", "main", "operate"]

TARGETS = ("msda", "nvidia")


class UnexpectedNumber(ValueError):
    """Another number of attentions was replaced than the caller expected."""


class UnknownOperator(ValueError):
    """The model cannot be compared with its original: onnxruntime does not know an operator in it."""


def operate(
    model: onnx.ModelProto,
    *,
    target: str = "msda",
    fuse: bool = True,
    function_body: bool = True,
    check: bool = True,
    seed: int = 0,
    folder: Path | None = None,
) -> tuple[onnx.ModelProto, Report]:
    """Replaces decomposed multi-scale deformable attention in a model.

    Args:
        model: stays as it is. Weights may lie outside of it (`onnx.load(…, load_external_data=False)`), as
            they must beyond 2 GB.
        target: "msda", nodes of our plugin, or "nvidia", of MultiscaleDeformableAttnPlugin_TRT.
        fuse: use FusedMultiScaleDeformableAttention where softmax and locations stand before the attention as
            it has them. Target nvidia has no such node.
        function_body: give the nodes bodies of standard operators, for runtimes without a plugin.
        check: compare all outputs of the two models on random inputs.
        seed: of all random numbers.
        folder: where weights outside of the model lie.

    Returns:
        The rewritten model, `model` itself if nothing was replaced, and what was done.

    Raises:
        ValueError: `target` is unknown; `UnknownOperator`; `runtime.CannotRun`, onnxruntime refuses the
            model; `OutputsDiffer`, the outputs of the models are not the same.
        ImportError: onnxruntime is missing.
    """
    if target not in TARGETS:
        raise ValueError(f"target: expected one of {', '.join(TARGETS)}, got {target!r}")
    operation = Operation(model, target, fuse, seed, folder)
    operation.run()
    if (
        left_over := operation.left_over()
    ):  # samplers by gathers that no attention took up: they stay as they were
        misses = operation.near_misses
        operation = Operation(model, target, fuse, seed, folder, left_over)
        operation.run()
        operation.near_misses[:0] = [miss for miss in misses if miss.node in left_over]
    nodes, misses = len(model.graph.node), tuple(operation.near_misses)
    already = sum(node.op_type in (*OPERATORS, bodies.NVIDIA) for node in nodes_of(model))
    if not operation.replacements:
        return model, Report((), misses, nodes, nodes, None, already=already)
    if check and operation.unknown:
        raise UnknownOperator(
            f"onnxruntime does not know the operator {operation.unknown[0]}, so the outputs cannot be "
            "compared; --no-check rewrites without"
        )
    result = operation.result(function_body=True)
    error, notes = None, operation.notes
    if check:
        disturbance = max(DISTURBANCE, *(replacement.error for replacement in operation.replacements))
        compared = compare(model, result, operation.inputs, folder, disturbance)
        error = compared.error
        notes += [*compared.notes, *([runtime.STAND_IN] if compared.stand_in else [])]
    if not function_body:
        del result.functions[:]
    nodes_after = len(result.graph.node)
    replacements = tuple(operation.replacements)
    return result, Report(replacements, misses, nodes, nodes_after, error, tuple(notes), already)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_command(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    source, out = arguments.input, arguments.output
    _check_paths(source, out, arguments.json)
    try:
        model = files.load(source)
        files.check_valid(source, model)
        result, report = operate(
            model,
            target=arguments.target,
            fuse=not arguments.no_fuse,
            function_body=not arguments.no_function_body,
            check=not arguments.no_check,
            seed=arguments.seed,
            folder=source.parent,
        )
    except files.BadModel as error:
        raise UsageError(one_line(error)) from error
    except (UnknownOperator, runtime.CannotRun) as error:
        raise UsageError(f"{source}: {one_line(error)}") from error
    except OutputsDiffer as error:
        raise OutputsDiffer(f"{out} is not written: {error}") from error
    if arguments.expect not in (None, len(report.replacements)):
        raise UnexpectedNumber(f"{out} is not written: {_difference(report, arguments.expect)}")
    if result is model:
        files.copy(source, out, model)
    else:
        files.save(result, out, source)
    if arguments.json is not None:
        write_report(arguments.json, dataclasses.asdict(report))
    _print(report, out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="python -m onnx_path.surgeon",
        description="Replace decomposed multi-scale deformable attention in an ONNX file by one node each.",
    )
    parser.add_argument("input", metavar="IN.onnx", type=to_path, help="the file to read")
    parser.add_argument(
        "output", metavar="OUT.onnx", type=to_path, help="the file to write, another than IN.onnx"
    )
    parser.add_argument(
        "--target",
        choices=TARGETS,
        default="msda",
        help="whose nodes to write: our plugin's, or NVIDIA's MultiscaleDeformableAttnPlugin_TRT "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--no-check", action="store_true", help="write without comparing the outputs of both files"
    )
    parser.add_argument(
        "--no-function-body",
        action="store_true",
        help="leave out the standard operators that let any runtime run the nodes",
    )
    parser.add_argument(
        "--no-fuse", action="store_true", help="leave softmax and locations outside of the nodes"
    )
    parser.add_argument(
        "--expect",
        metavar="N",
        type=whole,
        help="fail and write nothing unless N multi-scale deformable attentions were replaced",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: %(default)s)")
    add_json(parser)
    return parser


def _check_paths(source: Path, out: Path, report: Path | None) -> None:
    check_file("IN.onnx", source)
    check_writable("OUT.onnx", out)
    if out.exists() and out.samefile(source):
        raise UsageError(f"OUT.onnx {out}: is the file to read; name another")
    if report is not None:
        check_writable("--json", report)
        if report.absolute() in (source.absolute(), out.absolute()):
            raise UsageError(f"--json {report}: is IN.onnx or OUT.onnx; name another file")


def _print(report: Report, out: Path) -> None:
    for replacement in report.replacements:
        print(f"replaced {replacement}", file=sys.stderr)
    for miss in report.near_misses:
        print(f"kept {miss}", file=sys.stderr)
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    if not report.replacements:
        found = (
            "nothing replaced"
            if report.near_misses
            else "no decomposed multi-scale deformable attention found"
        )
        print(f"{found}{_already(report)}: {out} is a copy of the file read", file=sys.stderr)
        return
    error = (
        "not compared" if report.max_error is None else f"largest relative difference {report.max_error:.1e}"
    )
    print(
        f"wrote {out}: {len(report.replacements)} replaced{_already(report)}, {report.nodes_before} -> "
        f"{report.nodes_after} nodes; outputs: {error}",
        file=sys.stderr,
    )


def _difference(report: Report, expected: int) -> str:
    """Says how many were replaced in place of `expected`, and of the first that was not, why."""
    text = f"{len(report.replacements)} replaced, expected {expected}{_already(report)}"
    return f"{text}; kept {report.near_misses[0]}" if report.near_misses else text


def _already(report: Report) -> str:
    nodes = "1 MSDA node" if report.already == 1 else f"{report.already} MSDA nodes"
    return f" (the file read has {nodes} already)" if report.already else ""


if __name__ == "__main__":
    sys.exit(main())
