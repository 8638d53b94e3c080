"""`python -m dynamo_path.export`: a detector as model.engine, model.ep and model.ts, compared with PyTorch.

model.pt2 is the program that torch.export gives, in PyTorch's operators. model.engine is what Torch-TensorRT
makes of it: one TensorRT engine that needs neither of them; model.json beside it tells the rest. model.ep (an
exported program) and model.ts (a TorchScript module) hold the same engine, for programs that run it by
Torch-TensorRT. Without a GPU it stops after model.pt2.

Exit status: 0 done, 1 failed, 2 wrong arguments.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from codetr.cli.command import complain, run_command
from codetr.export.engine_check import compare, compare_engine
from codetr.export.request import (
    Request,
    Subject,
    dynamic_shapes,
    example_inputs,
    exported_module,
    make_parser,
    pick_device,
    prepare,
    request_from,
    stage,
    staged_folder,
    write_metadata,
)
from dynamo_path.engine import UnsupportedOperators, build_engine, build_with_fallback
from dynamo_path.runners import (
    program_runner,
    save_program,
    save_torchscript,
    torchscript_runner,
    write_program,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_command(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = make_parser("python -m dynamo_path.export", __doc__.partition("\n")[0].partition(": ")[2])
    parser.add_argument(
        "--allow-fallback",
        action="store_true",
        help="leave operators that TensorRT lacks to PyTorch: model.ep and model.ts then hold several "
        "engines, and there is no model.engine (default: fail and name them)",
    )
    arguments = parser.parse_args(argv)
    request = request_from(arguments)
    device = pick_device(request.device)
    if device.type == "cuda":
        import_requirements()
    with staged_folder(request.out) as folder:
        subject = prepare(request)
        model, inputs = exported_module(subject).to(device), example_inputs(request, device)
        with stage("export model.pt2"):
            program = export_program(model, inputs, dynamic_shapes(request))
            write_program(program, folder / "model.pt2")
        if device.type == "cuda":
            _compile(program, subject, request, folder, arguments.allow_fallback)
        written = sorted(file.name for file in folder.iterdir())
    if device.type != "cuda":
        print(f"wrote {request.out / 'model.pt2'}; stopped there: no GPU to build a TensorRT engine for")
    else:
        print(f"wrote {', '.join(written)} in {request.out}")
    return 0


def _compile(
    program: torch.export.ExportedProgram,
    subject: Subject,
    request: Request,
    folder: Path,
    allow_fallback: bool,
) -> None:
    """Builds once, writes model.engine, model.ep, model.ts and model.json, and compares all with PyTorch."""
    inputs = example_inputs(request, "cuda")
    engine, compiled, script = (folder / name for name in ("model.engine", "model.ep", "model.ts"))
    try:
        with stage("build model.engine with Torch-TensorRT") as seconds:
            plan = build_engine(program, inputs, request)
            engine.write_bytes(plan)
    except UnsupportedOperators as error:
        if not allow_fallback:
            raise
        complain("warning", f"{error}; they are left to PyTorch, and there is no model.engine")
        with stage("build model.ep and model.ts with Torch-TensorRT") as seconds:
            build_with_fallback(program, inputs, request, compiled, script)
    else:
        with stage("save model.ep and model.ts"):
            save_program(plan, program, inputs, request, compiled)
            save_torchscript(plan, request.output_names, script)
    write_metadata(subject, request, folder, build_seconds=seconds[0])
    with stage("compare with PyTorch"):
        if engine.is_file():
            compare_engine(subject.checks, request, engine)
        compare(subject.checks, request, "model.ep", program_runner(compiled, request))
        compare(subject.checks, request, "model.ts", torchscript_runner(script, request))


def import_requirements() -> None:
    """Imports what a build and running its engine need, registers the converters and the plugins.

    Raises:
        ImportError: naming what to install.
        trt_plugin.EngineError: TensorRT, cuda-python or the plugin library is missing or cannot be loaded.
    """
    import trt_plugin
    from dynamo_path import converter
    from trt_plugin.engine_error import import_cudart

    converter.register()
    import_cudart()
    trt_plugin.load()


def export_program(
    model: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    dynamic: tuple[dict, dict] | None = None,
) -> torch.export.ExportedProgram:
    """Traces a detector strictly, with the inputs' sizes where `dynamic` names none."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(model, inputs, dynamic_shapes=dynamic, strict=True)


if __name__ == "__main__":
    sys.exit(main())
