"""Builds an engine of an exported program with Torch-TensorRT. Needs a GPU."""

from __future__ import annotations

import contextlib
import operator
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.fx.node import _get_qualified_name
from torch.fx.passes.dialect.common.cse_pass import CSEPass

from codetr.export.quiet_logs import quiet
from codetr.export.request import INPUT_NAMES, ExportRequest
from codetr.export.traced_model import dynamic_shapes
from dynamo_path.constant_reshapes import simplify_reshapes
from dynamo_path.fused_feed_forwards import fuse_feed_forwards
from dynamo_path.fused_quantized_feed_forwards import fuse_quantized_feed_forwards
from dynamo_path.fused_quantized_layer_norms import fuse_quantized_layer_norms
from dynamo_path.fused_quantized_linears import fuse_quantized_linears
from dynamo_path.fused_quantized_values import fuse_quantized_values
from dynamo_path.fused_quantized_windows import fuse_quantized_windows
from dynamo_path.joined_group_norms import join_group_norms
from dynamo_path.packed_projections import pack_projections
from dynamo_path.quantized_layers import quantize_layers
from dynamo_path.written_out_linears import calls_in_8_bits, write_out_for_tensorrt

Result = TypeVar("Result")

LOGGER = "torch_tensorrt"
"""Logger that warns about each layer and prints the stack of every error."""


class UnsupportedOperators(RuntimeError):
    """Torch-TensorRT has no converter for some operators, which the message names."""


def build_engine(
    program: torch.export.ExportedProgram,
    inputs: tuple[torch.Tensor, ...],
    request: ExportRequest,
    ranges: Mapping[str, float] | None = None,
) -> bytes:
    """Builds one strongly typed engine of a program: the model's types are the engine's.

    Args:
        program: result of `export_program`, on the GPU. Its calls of linear layers change, see
            `write_out_for_tensorrt`.
        inputs: its example inputs.
        request: output names, sizes, TF32, refitting, timing cache and optimization level.
        ranges: ranges of the layers that become 8 bits, see `quantized_layers.quantize_layers`.

    Raises:
        UnsupportedOperators: Torch-TensorRT has no converter for some operators.
        RuntimeError: TensorRT cannot build the engine.
    """
    try:
        return _convert(program, inputs, request, ranges=ranges)
    except UnsupportedOperators:
        raise
    except Exception as error:
        raise RuntimeError(
            f"Torch-TensorRT cannot build the engine: {type(error).__name__}: {error}"
        ) from error


def with_network(
    program: torch.export.ExportedProgram,
    inputs: tuple[torch.Tensor, ...],
    request: ExportRequest,
    use: Callable[[Any], Result],
) -> Result:
    """Makes the network that `build_engine` would build, without building it, and returns `use` of it.

    `use` gets the tensorrt.INetworkDefinition, which lives during the call only.

    Raises:
        UnsupportedOperators: Torch-TensorRT has no converter for some operators.
    """
    results: list[Result] = []

    def keep(network: Any) -> None:
        results.append(use(network))
        raise _NetworkUsed

    with contextlib.suppress(_NetworkUsed):
        _convert(program, inputs, request, keep)
    return results[0]


class _NetworkUsed(Exception):
    """Ends a conversion before its build."""


def _convert(
    program: torch.export.ExportedProgram,
    inputs: tuple[torch.Tensor, ...],
    request: ExportRequest,
    use: Callable[[Any], None] | None = None,
    ranges: Mapping[str, float] | None = None,
) -> bytes:
    """Runs Torch-TensorRT's conversion and raises the error that its interpreter met."""
    from torch_tensorrt import dynamo

    _fit_linears(program, ranges or ())
    with (
        tempfile.TemporaryDirectory() as folder,
        quiet(LOGGER),
        patched_interpreter(request, use, ranges) as errors,
    ):
        try:
            return dynamo.convert_exported_program_to_serialized_trt_engine(
                program,
                arg_inputs=_input_specifications(inputs, request),
                require_full_compilation=True,
                **_settings(request, Path(folder)),
            )
        except Exception as error:
            # Torch-TensorRT logs an interpreter's error, and then fails because the result is missing.
            raise (errors[0] if errors else error) from None


def _fit_linears(program: torch.export.ExportedProgram, eight_bits: Iterable[str] = ()) -> None:
    """Brings calls of linear layers into the forms that TensorRT runs fastest, in place.

    Args:
        eight_bits: names of the layers that become 8 bits, see `Quantizer.ranges_by_weights`.
    """
    narrow = calls_in_8_bits(program, eight_bits)
    fuse_feed_forwards(program, narrow)
    write_out_for_tensorrt(program, narrow)


def build_with_fallback(
    program: torch.export.ExportedProgram,
    inputs: tuple[torch.Tensor, ...],
    request: ExportRequest,
    compiled: Path,
    script: Path,
) -> None:
    """Writes model.ep and model.ts of engines, with PyTorch's operators where TensorRT lacks one.

    Raises:
        RuntimeError: TensorRT cannot build one of the engines.
    """
    import torch_tensorrt

    _fit_linears(program)
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
    """Returns Torch-TensorRT's settings for a request, whose default timing cache lies in `folder`."""
    import tensorrt as trt

    timing_cache = request.timing_cache or folder / "timing.cache"
    return {
        "use_explicit_typing": True,
        "disable_tf32": request.precision != "tf32",
        "truncate_double": False,
        "immutable_weights": not request.refittable,
        # Torch-TensorRT writes attention as a layer that older TensorRT lacks. By default it takes every mask
        # for a causal one.
        "decompose_attention": not hasattr(trt.INetworkDefinition, "add_attention"),
        "attn_bias_is_causal": False,
        "optimization_level": request.optimization_level,
        "timing_cache_path": str(timing_cache.absolute()),
    }


def _input_specifications(inputs: tuple[torch.Tensor, ...], request: ExportRequest) -> list[Any]:
    """Returns the inputs in Torch-TensorRT's form: tensors, or ranges of shapes where a size is dynamic."""
    from torch_tensorrt import Input

    profiles = request.sizes.profiles()
    specifications: list[Any] = []
    for name, tensor in zip(INPUT_NAMES, inputs, strict=True):
        shapes = {f"{which}_shape": shape for which, shape in profiles.get(name, {}).items()}
        specifications.append(Input(**shapes, dtype=tensor.dtype, name=name) if shapes else tensor)
    return specifications


@contextmanager
def patched_interpreter(
    request: ExportRequest,
    use: Callable[[Any], None] | None = None,
    ranges: Mapping[str, float] | None = None,
) -> Iterator[list[Exception]]:
    """Replaces Torch-TensorRT's interpreter by a subclass while the block runs, where it lacks settings.

    The subclass names the outputs, keeps detailed layer information, merges equal nodes, simplifies reshapes,
    packs the projections of offsets and logits, quantises layers, and joins group normalisations. Equal nodes
    are those of each attention that make the mask of padded cells. The subclass calls `use` with the network
    before the build, and raises if an operator has no converter. The yielded list collects the interpreter's
    errors.
    """
    import tensorrt as trt
    from torch_tensorrt.dynamo.conversion import _conversion

    from dynamo_path.layer_names import NamedLayers

    original = _conversion.TRTInterpreter
    errors: list[Exception] = []

    class Interpreter(NamedLayers, original):
        def __init__(self, module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
            module = CSEPass()(module).graph_module
            pack_projections(module)
            simplify_reshapes(module)
            if ranges is not None:
                quantize_layers(module, ranges, request.precision)
                fuse_quantized_linears(module, request.precision)
                fuse_quantized_layer_norms(module)
                fuse_quantized_windows(module)
                fuse_quantized_feed_forwards(module)
                fuse_quantized_values(module)
            join_group_norms(module)  # with the quantize calls that are left
            super().__init__(module, *args, **kwargs)
            missing = self.validate_conversion()
            if missing:
                errors.append(UnsupportedOperators(_unsupported(module.graph, missing)))
                raise errors[-1]

        def output(self, target: str, args: Any, kwargs: Any) -> list[Any]:
            outputs = super().output(target, args, kwargs)
            for index, name in enumerate(request.output_names):
                self.ctx.net.get_output(index).name = name
            self._output_names = list(request.output_names)
            return outputs

        def _populate_trt_builder_config(self, *args: Any, **kwargs: Any) -> Any:
            config = super()._populate_trt_builder_config(*args, **kwargs)
            config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
            return config

        def _save_weight_mapping(self) -> None:
            """Skips a search for each weight: only Torch-TensorRT's own refit uses the result."""
            self.weight_name_map = None

        def run(self, *args: Any, **kwargs: Any) -> Any:
            try:
                if use is not None:
                    self._construct_trt_network_def()
                    use(self.ctx.net)
                return super().run(*args, **kwargs)
            except Exception as error:
                errors.append(error)
                raise

    _conversion.TRTInterpreter = Interpreter
    try:
        yield errors
    finally:
        _conversion.TRTInterpreter = original


def _unsupported(graph: torch.fx.Graph, missing: Iterable[str]) -> str:
    """Returns a message that names operators without a converter, each with a module that has it."""
    places: dict[str, str] = {}
    for node in graph.nodes:
        # A getitem lacks a converter because the operator whose result it reads does.
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        if any(name.endswith(_get_qualified_name(node.target)) for name in missing):
            places.setdefault(str(node.target), stack[-1][0] if stack else "")
    names = places or dict.fromkeys(missing, "")
    listed = ", ".join(f"{name} (in {place})" if place else name for name, place in sorted(names.items()))
    return f"Torch-TensorRT has no converter for {listed}"
