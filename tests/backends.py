"""The registry of backends: everything that computes the operators, held against the same truth.

A backend is one row: what it can compute, whether it can run here (and if not, what is missing), and how far
it may be from `msda.reference` in float64 on the same inputs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch

import msda
from benchmarks.problems import AttentionInputs, FusedInputs, Problem
from msda import derivatives
from tests import strategies
from tests.comparison import run_msda


@dataclass(frozen=True)
class Backend:
    """One way to compute the operators.

    Attributes:
        name: in test ids.
        device: where it wants its inputs: "cpu" or "cuda".
        dtypes: value types.
        missing: says what is missing to run here for a type, or None.
        run: inputs -> [N, Q, M * D].
        gradients: whether its result is differentiable.
        ragged: the ragged lists it can run; None for any.
        forced: environment variables that force a kernel (kernels/include/msda/choose.h).
        form: what that takes, one of `strategies.FORMS`.
    """

    name: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    missing: Callable[[torch.dtype], str | None]
    run: Callable[[AttentionInputs | FusedInputs], torch.Tensor]
    gradients: bool = False
    ragged: tuple[tuple[int, ...], ...] | None = None
    forced: tuple[tuple[str, str], ...] = ()
    form: str = "any"

    def can_run(self, dtype: torch.dtype) -> str | None:
        """None when the backend can run here with a type, else the reason why not."""
        if dtype not in self.dtypes:
            return f"{self.name} has no {dtype}"
        return self.missing(dtype)

    def cases(self, operator: str, smooth: bool = False):
        """The hypothesis strategy of calls of an operator, "attention" or "fused", that the backend takes."""
        return strategies.cases(operator == "fused", self.ragged, smooth, self.form)

    def takes(self, problem: Problem) -> bool:
        """Whether it can run a problem of this size and form."""
        ragged = self.ragged is None or problem.points_per_level in (None, *self.ragged)
        return ragged and strategies.takes(self.form, problem)

    @contextlib.contextmanager
    def chosen(self) -> Iterator[None]:
        """Its kernel is forced inside."""
        with pytest.MonkeyPatch.context() as patch:
            for variable, kernel in self.forced:
                patch.setenv(variable, kernel)
            yield


def run_formulas(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """The formulas that forward mode and second derivatives come from."""
    fused = isinstance(inputs, FusedInputs)
    return (derivatives.fused_attention if fused else derivatives.attention)(*inputs)


def no_gpu(dtype: torch.dtype = torch.float32) -> str | None:
    """What is missing to run the CUDA operator with a type, or None."""
    if not torch.cuda.is_available():
        return "no NVIDIA GPU"
    if not msda.build_info().has_cuda:
        return "msda was built without CUDA"
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        return "no GPU of compute capability 8.0 or newer, which bfloat16 needs"
    return None


def no_tensorrt(dtype: torch.dtype = torch.float32) -> str | None:
    """What is missing to run the TensorRT plugin, or None."""
    return no_gpu(dtype) or _no_plugin()


@functools.cache
def _no_plugin() -> str | None:
    try:
        import tensorrt  # noqa: F401

        import trt_plugin

        trt_plugin.load()
    except Exception as error:
        return f"no TensorRT plugin: {error}".splitlines()[0]
    return None


@functools.cache
def _engine(key):
    from benchmarks.trt_engines import PluginEngine

    return PluginEngine(key)


def run_tensorrt(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """The plugin in an engine with dynamic shapes, built once a session for each combination of types.

    Offsets and logits that are columns of one tensor are one input.
    """
    from benchmarks.trt_engines import ATTENTION, FUSED_ATTENTION, EngineKey

    fused = isinstance(inputs, FusedInputs)
    *tensors, points, weights = inputs[:-1]
    location_dtype = weights.dtype
    packed = fused and points.untyped_storage().data_ptr() == weights.untyped_storage().data_ptr()
    key = EngineKey(
        operator=FUSED_ATTENTION if fused else ATTENTION,
        dtype=inputs.value.dtype,
        location_dtype=location_dtype,
        # The plugin takes both; both are tested without twice as many engines: the types share them out.
        index_dtype=torch.int32 if location_dtype == torch.float16 else torch.int64,
        points_per_level=None if inputs.points_per_level is None else tuple(inputs.points_per_level),
        packed=packed,
    )
    last = [torch.cat([points.flatten(2), weights.flatten(2)], -1)] if packed else [points, weights]
    engine = _engine(key)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        output = engine(engine.prepare([*tensors, *last]))
    stream.synchronize()
    return output


@functools.cache
def no_onnx(dtype: torch.dtype = torch.float32) -> str | None:
    """What is missing to run the ONNX function bodies in onnxruntime, or None."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        return f"no {error.name}: pip install 'codetr-tensorrt[onnx]'"
    return None


@functools.cache
def _onnx_session(
    fused: bool, types: tuple[torch.dtype, ...], ranks: tuple[int, ...], points: tuple[int, ...]
):
    """A session of one node whose function body the file carries; every size is dynamic."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    from onnx_path import operator

    codes = {
        torch.float32: TensorProto.FLOAT,
        torch.float16: TensorProto.FLOAT16,
        torch.int32: TensorProto.INT32,
        torch.int64: TensorProto.INT64,
    }
    names = (FusedInputs if fused else AttentionInputs)._fields[:-1]
    inputs = [
        helper.make_tensor_value_info(name, codes[dtype], [None] * rank)
        for name, dtype, rank in zip(names, types, ranks, strict=True)
    ]
    attributes = {"points_per_level": list(points)} if points else {}
    name = operator.FUSED_ATTENTION if fused else operator.ATTENTION
    node = helper.make_node(name, list(names), ["output"], domain=operator.DOMAIN, **attributes)
    output = helper.make_tensor_value_info("output", codes[types[0]], [None] * 3)
    standard = next(entry.version for entry in operator.function_bodies()[0].opset_import if not entry.domain)
    opsets = [
        helper.make_opsetid("", standard),
        helper.make_opsetid(operator.DOMAIN, operator.DOMAIN_VERSION),
    ]
    model = helper.make_model(
        helper.make_graph([node], "one_node", inputs, [output]), opset_imports=opsets, ir_version=10
    )
    operator.add_function_bodies(model)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def run_onnx(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """The ONNX function body in onnxruntime on the CPU."""
    tensors = dict(zip(inputs._fields, inputs[:-1], strict=False))
    types = tuple(tensor.dtype for tensor in tensors.values())
    ranks = tuple(tensor.dim() for tensor in tensors.values())
    points = tuple(inputs.points_per_level or ())
    session = _onnx_session(isinstance(inputs, FusedInputs), types, ranks, points)
    arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    return torch.from_numpy(session.run(None, arrays)[0])


ALL = (
    Backend(
        "torch-cpu",
        "cpu",
        (torch.float64, torch.float32, torch.float16, torch.bfloat16),
        missing=lambda dtype: None,
        run=run_msda,
        gradients=True,
    ),
    *(
        Backend(
            f"formulas-{device}",
            device,
            (torch.float64, torch.float32, torch.float16, torch.bfloat16),
            missing=missing,
            run=run_formulas,
            gradients=True,
        )
        for device, missing in (("cpu", lambda dtype: None), ("cuda", no_gpu))
    ),
    Backend(
        "torch-cuda",
        "cuda",
        (torch.float64, torch.float32, torch.float16, torch.bfloat16),
        missing=no_gpu,
        run=run_msda,
        gradients=True,
    ),
    *(
        Backend(
            f"torch-cuda-{forward}-{backward}",
            "cuda",
            (torch.float32, torch.float16, torch.bfloat16),
            missing=no_gpu,
            run=run_msda,
            gradients=True,
            forced=(("MSDA_FORWARD", forward), ("MSDA_BACKWARD", backward)),
            form="usual",
        )
        for forward, backward in (("many", "group"), ("few", "tile"), ("general", "general"))
    ),
    Backend(
        "torch-cuda-medium",
        "cuda",
        (torch.float16, torch.bfloat16),
        missing=no_gpu,
        run=run_msda,
        forced=(("MSDA_FORWARD", "medium"),),
        form="compiled",
    ),
    Backend(
        "tensorrt",
        "cuda",
        (torch.float32, torch.float16, torch.bfloat16),
        missing=no_tensorrt,
        run=run_tensorrt,
        ragged=strategies.RAGGED,
    ),
    Backend(
        "onnxruntime-cpu",
        "cpu",
        # NumPy, through which onnxruntime takes its inputs, has no bfloat16.
        (torch.float32, torch.float16),
        missing=no_onnx,
        run=run_onnx,
        ragged=strategies.RAGGED,
    ),
)
