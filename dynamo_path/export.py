"""`python -m dynamo_path.export`: a detector as model.ep, model.engine and model.json, compared with PyTorch.

model.ep is the exported program (torch.export), model.engine what Torch-TensorRT makes of it: one TensorRT
engine that needs neither of them. Without a GPU it stops after model.ep.

Exit status: 0 done, 1 failed, 2 wrong arguments.
"""

from __future__ import annotations

import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from codetr.command import run_command
from codetr.exporting import (
    Request,
    compare_engine,
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_command(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = make_parser("python -m dynamo_path.export", __doc__.partition("\n")[0].partition(": ")[2])
    request = request_from(parser.parse_args(argv))
    device = pick_device(request.device)
    if device.type == "cuda":
        import_requirements()
    with staged_folder(request.out) as folder:
        subject = prepare(request)
        model, inputs = exported_module(subject).to(device), example_inputs(subject, device)
        with stage("export model.ep"):
            program = export_program(model, inputs)
            _save_program(program, folder / "model.ep")
        if device.type == "cuda":
            with stage("build model.engine with Torch-TensorRT") as seconds:
                engine = build_engine(program, inputs, request)
                (folder / "model.engine").write_bytes(engine)
            write_metadata(subject, request, folder, build_seconds=seconds[0])
            with stage("compare with PyTorch"):
                compare_engine(subject, request, folder / "model.engine")
    if device.type != "cuda":
        print(f"wrote {request.out / 'model.ep'}; stopped there: no GPU to build a TensorRT engine for")
    else:
        print(f"wrote model.ep, model.engine and model.json in {request.out}")
    return 0


def import_requirements() -> None:
    """Imports what a build and running its engine need, registers the converters and the plugins.

    Raises:
        ImportError: naming what to install.
        trt_plugin.EngineError: TensorRT, cuda-python or the plugin library is missing or cannot be loaded.
    """
    import trt_plugin
    from dynamo_path import converter
    from trt_plugin.errors import import_cudart

    converter.register()
    import_cudart()
    trt_plugin.load()


def export_program(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """Traces a detector strictly, with the inputs' sizes."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(model, inputs, strict=True)


class _Archive(io.BufferedWriter):
    """A file for Torch's writer of archives, which ends the process when a write fails: fails afterwards."""

    error: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.error is None:
            try:
                super().write(data)
            except OSError as error:
                self.error = error
        return len(data)


def _save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    # Given a path, Torch wants it to end in .pt2.
    with _Archive(io.FileIO(path, "w")) as file:
        torch.export.save(program, file)
        if file.error is not None:
            raise file.error


def build_engine(
    program: torch.export.ExportedProgram, inputs: tuple[torch.Tensor, ...], request: Request
) -> bytes:
    """Builds one strongly typed engine of a program: the model's types are the engine's, and TF32 is off.

    Args:
        program: of `export_program`, on the GPU.
        inputs: as given to it.
        request: names of the outputs, timing cache and optimisation level.

    Raises:
        RuntimeError: an operator has no converter, or TensorRT cannot build the engine.
    """
    import tensorrt as trt
    from torch_tensorrt import dynamo

    with (
        tempfile.TemporaryDirectory() as folder,
        _quiet_log(),
        _named_outputs(request.output_names) as errors,
    ):
        timing_cache = request.timing_cache or Path(folder) / "timing.cache"
        try:
            return dynamo.convert_exported_program_to_serialized_trt_engine(
                program,
                arg_inputs=list(inputs),
                use_explicit_typing=True,
                disable_tf32=True,
                require_full_compilation=True,
                truncate_double=False,
                immutable_weights=True,
                # Torch-TensorRT writes attention as a layer that older TensorRT lacks, and takes every mask
                # for a causal one unless told otherwise.
                decompose_attention=not hasattr(trt.INetworkDefinition, "add_attention"),
                attn_bias_is_causal=False,
                optimization_level=request.optimization_level,
                timing_cache_path=str(timing_cache.absolute()),
            )
        except Exception as error:
            # Torch-TensorRT logs what went wrong and then fails over the missing result.
            cause = errors[0] if errors else error
            raise RuntimeError(
                f"Torch-TensorRT cannot build the engine: {type(cause).__name__}: {cause}"
            ) from cause


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Keeps Torch-TensorRT's log to itself: a warning for each layer, and every error's stack."""
    logger = logging.getLogger("torch_tensorrt")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _named_outputs(names: Sequence[str]) -> Iterator[list[Exception]]:
    """Lets Torch-TensorRT build engines with these output names (its own are output0, …) and full profiles.

    It has no setting for either, so its interpreter is replaced by a subclass while the block runs.

    Yields:
        A list that collects the errors of the interpreter.
    """
    import tensorrt as trt
    from torch_tensorrt.dynamo.conversion import _conversion

    from dynamo_path.layer_names import NamedLayers

    original = _conversion.TRTInterpreter
    errors: list[Exception] = []

    class Interpreter(NamedLayers, original):
        def output(self, target: str, args: Any, kwargs: Any) -> list[Any]:
            outputs = super().output(target, args, kwargs)
            for index, name in enumerate(names):
                self.ctx.net.get_output(index).name = name
            self._output_names = list(names)
            return outputs

        def _populate_trt_builder_config(self, *args: Any, **kwargs: Any) -> Any:
            config = super()._populate_trt_builder_config(*args, **kwargs)
            config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
            return config

        def run(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().run(*args, **kwargs)
            except Exception as error:
                errors.append(error)
                raise

    _conversion.TRTInterpreter = Interpreter
    try:
        yield errors
    finally:
        _conversion.TRTInterpreter = original


if __name__ == "__main__":
    sys.exit(main())
