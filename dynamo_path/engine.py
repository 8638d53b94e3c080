"""Builds an engine of an exported program with Torch-TensorRT. Needs a GPU."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from codetr.export.request import INPUT_NAMES, ExportRequest
from codetr.export.traced_model import dynamic_shapes
from dynamo_path.packing import pack_projections
from dynamo_path.quiet import quiet
from dynamo_path.reshapes import simplify_reshapes

Result = TypeVar("Result")

LOGGER = "torch_tensorrt"
"""Warns of each layer, and gives every error's stack."""


class UnsupportedOperators(RuntimeError):
    """Torch-TensorRT has no converter for an operator; the message names all of them."""


def build_engine(
    program: torch.export.ExportedProgram, inputs: tuple[torch.Tensor, ...], request: ExportRequest
) -> bytes:
    """Builds one strongly typed engine of a program: the model's types are the engine's.

    Args:
        program: of `export_program`, on the GPU.
        inputs: as given to it.
        request: names of the outputs, sizes, TF32, whether weights can be exchanged, timing cache and
            optimisation level.

    Raises:
        UnsupportedOperators: naming them.
        RuntimeError: TensorRT cannot build the engine.
    """
    from torch_tensorrt import dynamo

    with (
        tempfile.TemporaryDirectory() as folder,
        quiet(LOGGER),
        patched_interpreter(request.output_names) as errors,
    ):
        try:
            return dynamo.convert_exported_program_to_serialized_trt_engine(
                program,
                arg_inputs=_input_specifications(inputs, request),
                require_full_compilation=True,
                **_settings(request, Path(folder)),
            )
        except Exception as error:
            # Torch-TensorRT logs what went wrong and then fails over the missing result.
            cause = errors[0] if errors else error
            if isinstance(cause, UnsupportedOperators):
                raise cause from None
            raise RuntimeError(
                f"Torch-TensorRT cannot build the engine: {type(cause).__name__}: {cause}"
            ) from cause


def build_with_fallback(
    program: torch.export.ExportedProgram,
    inputs: tuple[torch.Tensor, ...],
    request: ExportRequest,
    compiled: Path,
    script: Path,
) -> None:
    """Writes a program of engines and of the operators between that TensorRT lacks.

    Args:
        program, inputs, request: as `build_engine`.
        compiled: to write as an exported program.
        script: to write as a TorchScript module.

    Raises:
        RuntimeError: TensorRT cannot build one of the engines.
    """
    import torch_tensorrt

    with tempfile.TemporaryDirectory() as folder, quiet(LOGGER):
        try:
            module = torch_tensorrt.dynamo.compile(
                program,
                arg_inputs=_input_specifications(inputs, request),
                require_full_compilation=False,
                **_settings(request, Path(folder)),
            )
            given = {"arg_inputs": list(inputs), "dynamic_shapes": dynamic_shapes(request)}
            torch_tensorrt.save(module, f"{folder}/program.pt2", **given)
            shutil.move(f"{folder}/program.pt2", compiled)
            torch_tensorrt.save(module, str(script), output_format="torchscript", arg_inputs=list(inputs))
        except Exception as error:
            raise RuntimeError(
                f"Torch-TensorRT cannot build the program: {type(error).__name__}: {error}"
            ) from error


def _settings(request: ExportRequest, folder: Path) -> dict[str, Any]:
    """Torch-TensorRT's settings for a request; the timing cache lies in `folder` if it names none."""
    import tensorrt as trt

    timing_cache = request.timing_cache or folder / "timing.cache"
    return {
        "use_explicit_typing": True,
        "disable_tf32": request.precision != "tf32",
        "truncate_double": False,
        "immutable_weights": not request.refittable,
        # Torch-TensorRT writes attention as a layer that older TensorRT lacks, and takes every mask for a
        # causal one unless told otherwise.
        "decompose_attention": not hasattr(trt.INetworkDefinition, "add_attention"),
        "attn_bias_is_causal": False,
        "optimization_level": request.optimization_level,
        "timing_cache_path": str(timing_cache.absolute()),
    }


def _input_specifications(inputs: tuple[torch.Tensor, ...], request: ExportRequest) -> list[Any]:
    """The inputs as Torch-TensorRT takes them: tensors, or ranges of shapes where a size is dynamic."""
    from torch_tensorrt import Input

    profiles = request.sizes.profiles()
    specifications: list[Any] = []
    for name, tensor in zip(INPUT_NAMES, inputs, strict=True):
        shapes = {f"{which}_shape": shape for which, shape in profiles.get(name, {}).items()}
        specifications.append(Input(**shapes, dtype=tensor.dtype, name=name) if shapes else tensor)
    return specifications


@contextmanager
def patched_interpreter(
    names: Sequence[str], use: Callable[[Any], None] | None = None
) -> Iterator[list[Exception]]:
    """Lets Torch-TensorRT build engines as we want them while the block runs.

    Output names are given (its own are output0, …), profiles are full, reshapes compute few sizes, offsets
    and logits are one projection, and what has no converter is an error before the build. It has no settings
    for these, so its interpreter is replaced by a subclass.

    Args:
        names: of the outputs.
        use: called with the network instead of a build.

    Yields:
        A list that collects the errors of the interpreter.
    """
    import tensorrt as trt
    from torch_tensorrt.dynamo.conversion import _conversion

    from dynamo_path.layer_names import NamedLayers

    original = _conversion.TRTInterpreter
    errors: list[Exception] = []

    class Interpreter(NamedLayers, original):
        def __init__(self, module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
            pack_projections(module)
            simplify_reshapes(module)
            super().__init__(module, *args, **kwargs)
            missing = self.validate_conversion()
            if missing:
                errors.append(UnsupportedOperators(_unsupported(module.graph, missing)))
                raise errors[-1]

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

        def _save_weight_mapping(self) -> None:
            """Leaves out a search for each weight, whose result only Torch-TensorRT's own refit uses."""
            self.weight_name_map = None

        def run(self, *args: Any, **kwargs: Any) -> Any:
            try:
                if use is None:
                    return super().run(*args, **kwargs)
                self._construct_trt_network_def()
                use(self.ctx.net)
                raise _Used
            except Exception as error:
                errors.append(error)
                raise

    _conversion.TRTInterpreter = Interpreter
    try:
        yield errors
    finally:
        _conversion.TRTInterpreter = original


class _Used(Exception):
    """Ends a conversion whose network was wanted, not its engine."""


def with_network(
    program: torch.export.ExportedProgram,
    inputs: tuple[torch.Tensor, ...],
    request: ExportRequest,
    use: Callable[[Any], Result],
) -> Result:
    """Makes the network that `build_engine` would build, but does not build it.

    Args:
        program, inputs, request: as `build_engine`.
        use: called with the tensorrt.INetworkDefinition, which is gone afterwards.

    Returns:
        What `use` does.

    Raises:
        RuntimeError: as `build_engine`; what `use` raises is passed on.
    """
    from torch_tensorrt import dynamo

    results: list[Result] = []

    def keep(network: Any) -> None:
        results.append(use(network))

    with (
        tempfile.TemporaryDirectory() as folder,
        quiet(LOGGER),
        patched_interpreter(request.output_names, keep) as errors,
    ):
        try:
            dynamo.convert_exported_program_to_serialized_trt_engine(
                program,
                arg_inputs=_input_specifications(inputs, request),
                require_full_compilation=True,
                **_settings(request, Path(folder)),
            )
        except Exception as error:
            cause = errors[0] if errors else error
            if not isinstance(cause, _Used):
                raise cause from None
    return results[0]


def _unsupported(graph: torch.fx.Graph, missing: Iterable[str]) -> str:
    """Names operators without a converter, with a module that has them."""
    places: dict[str, str] = {}
    for node in graph.nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        for name in missing:
            if node.op == "call_function" and name.endswith(_qualified_name(node.target)):
                places.setdefault(str(node.target), stack[-1][0] if stack else "")
    names = places or dict.fromkeys(missing, "")
    listed = ", ".join(f"{name} (in {place})" if place else name for name, place in sorted(names.items()))
    return f"Torch-TensorRT has no converter for {listed}"


def _qualified_name(target: Any) -> str:
    from torch.fx.node import _get_qualified_name

    return _get_qualified_name(target) if callable(target) else str(target)
