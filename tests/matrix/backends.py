"""The registry of backends: everything that computes the operators, held against the same truth.

A backend is one row: what it can compute, whether it can run here (and if not, what is missing), and how it
computes results and gradients. The CUDA kernels have rows on a GPU, through Torch, and on the CPU, through
the emulator.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

import msda
from benchmarks.problems import AttentionInputs, FusedInputs, Problem
from msda import derivatives
from tests.engines.plugin_engines import no_plugin
from tests.matrix import drawn_cases, emulated_kernels
from tests.matrix.against_reference import autograd_gradients, operator_of, run_msda
from tests.matrix.cuda_emulator import compile_for_cpu

Inputs = AttentionInputs | FusedInputs

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OPERATORS = ("attention", "fused_attention")
operators = pytest.mark.parametrize("operator", OPERATORS)

run_unchecked = operator_of(torch.ops.msda)
"""The registered operator, without the public function's checks."""

run_formulas = operator_of(derivatives)
"""The formulas of forward mode and second derivatives."""


def no_gpu(dtype: torch.dtype = torch.float32) -> str | None:
    """Returns the reason why the CUDA operator cannot run with a type, or None."""
    if not torch.cuda.is_available():
        return "no NVIDIA GPU"
    if not msda.build_info().has_cuda:
        return "msda was built without CUDA"
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        return "no GPU of compute capability 8.0 or newer, which bfloat16 needs"
    return None


def no_sm90(dtype: torch.dtype) -> str | None:
    """Returns the reason why the kernels of CUTLASS cannot run with a type, or None."""
    if reason := no_gpu(dtype):
        return reason
    if torch.cuda.get_device_capability() != (9, 0):
        return "the kernels of CUTLASS need compute capability 9.0"
    architectures = msda.build_info().cuda_architectures
    return None if "90" in architectures else f"msda was built for {architectures}"


def no_tensorrt(dtype: torch.dtype = torch.float32) -> str | None:
    """Returns the reason why the TensorRT plugin cannot run, or None."""
    return no_gpu(dtype) or no_plugin()


@functools.cache
def _engine(key):
    from benchmarks.trt_engines import PluginEngine

    return PluginEngine(key)


def run_tensorrt(inputs: Inputs) -> torch.Tensor:
    """The plugin in an engine with dynamic shapes, built once a session for each combination of types.

    Offsets and logits that are columns of one tensor are one input.
    """
    from benchmarks.trt_engines import ATTENTION, FUSED_ATTENTION, EngineKey

    fused = isinstance(inputs, FusedInputs)
    *tensors, points, weights = inputs[:-1]
    packed = fused and points.untyped_storage().data_ptr() == weights.untyped_storage().data_ptr()
    key = EngineKey(
        operator=FUSED_ATTENTION if fused else ATTENTION,
        dtype=inputs.value.dtype,
        location_dtype=weights.dtype,
        # Both index types are tested without twice as many engines: each location type has one.
        index_dtype=torch.int32 if weights.dtype == torch.float16 else torch.int64,
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
    """Returns the reason why onnxruntime cannot run the ONNX function bodies, or None."""
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

    from onnx_path.nodes import attention, domain

    codes = {torch.float32: "float", torch.float16: "float16", torch.int32: "int32", torch.int64: "int64"}
    names = (FusedInputs if fused else AttentionInputs)._fields[:-1]
    inputs = ", ".join(
        f"{codes[dtype]}[{', '.join(f'{name}_{axis}' for axis in range(rank))}] {name}"
        for name, dtype, rank in zip(names, types, ranks, strict=True)
    )
    node = f"{attention.DOMAIN}.{attention.FUSED_ATTENTION if fused else attention.ATTENTION}"
    attributes = f"<points_per_level: ints = {list(points)}>" if points else ""
    standard = next(
        entry.version for entry in attention.function_bodies()[0].opset_import if not entry.domain
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {standard}, "{domain.DOMAIN}": {domain.DOMAIN_VERSION}]>\n'
        f"one_node ({inputs}) => ({codes[types[0]]}[n, q, c] output) {{\n"
        f"output = {node}{attributes}({', '.join(names)})\n}}"
    )
    attention.add_function_bodies(model)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def run_onnx(inputs: Inputs) -> torch.Tensor:
    """The ONNX function body in onnxruntime on the CPU."""
    tensors = inputs[:-1]
    session = _onnx_session(
        isinstance(inputs, FusedInputs),
        tuple(tensor.dtype for tensor in tensors),
        tuple(tensor.dim() for tensor in tensors),
        tuple(inputs.points_per_level or ()),
    )
    arrays = {
        name: tensor.contiguous().numpy() for name, tensor in zip(inputs._fields[:-1], tensors, strict=True)
    }
    return torch.from_numpy(session.run(None, arrays)[0])


@dataclass(frozen=True)
class Backend:
    """One way to compute the operators.

    Attributes:
        name: in test ids.
        device: of its inputs: "cpu" or "cuda".
        run: inputs -> [N, Q, M * D].
        dtypes: value types.
        missing: tells what is missing to run here for a type, or returns None.
        gradients: (inputs, grad_output) -> the gradients by the inputs' names; None without gradients.
        unchecked: as `run`, without the checks of the level sizes; None if there is no such way.
        ragged: the ragged lists that it can run; None for any.
        forward, backward: the kernels that it forces (MSDA_FORWARD, MSDA_BACKWARD).
        form: what these run, one of `drawn_cases.FORMS`.
        emulated: whether it is the emulator, which is slow and takes the order of threads.
    """

    name: str
    device: str
    run: Callable[..., torch.Tensor]
    dtypes: tuple[torch.dtype, ...] = tuple(DTYPES.values())
    missing: Callable[[torch.dtype], str | None] = lambda dtype: None
    gradients: Callable[..., dict[str, torch.Tensor]] | None = None
    unchecked: Callable[[Inputs], torch.Tensor] | None = None
    ragged: tuple[tuple[int, ...], ...] | None = None
    forward: str | None = None
    backward: str | None = None
    form: str = "any"
    emulated: bool = False

    def cases(self, operator: str, smooth: bool = False) -> st.SearchStrategy[drawn_cases.Case]:
        """Calls of an operator, one of OPERATORS, that the backend takes."""
        forms = ("any", "one_of_heads") if self.form == "any" else (self.form,)
        return st.sampled_from(forms).flatmap(
            lambda form: drawn_cases.cases(operator == "fused_attention", self.ragged, smooth, form)
        )

    def examples(self) -> settings:
        """The number of cases to draw: the emulator draws a quarter."""
        return settings(max_examples=settings.default.max_examples // (4 if self.emulated else 1))

    def takes(self, problem: Problem) -> bool:
        """Whether it can run a problem of this size and form."""
        ragged = self.ragged is None or problem.points_per_level in (None, *self.ragged)
        return ragged and drawn_cases.takes(self.form, problem)

    def skip_unless_ready(self, dtype: torch.dtype) -> None:
        """Skips the test where the backend cannot run a type here."""
        if reason := self.missing(dtype):
            pytest.skip(reason)

    def compute(self, inputs: Inputs, order: int = 0, unchecked: bool = False) -> torch.Tensor:
        """The result [N, Q, M * D]; `order` of threads and blocks: see `emulated_kernels`."""
        run = self.unchecked if unchecked else self.run
        with self._forced():
            return run(inputs, order) if self.emulated else run(inputs)

    def differentiate(
        self, inputs: Inputs, grad_output: torch.Tensor, order: int = 0, deterministic: bool = False
    ) -> dict[str, torch.Tensor]:
        """The gradients of every floating input, by name. `deterministic`: of the emulator."""
        options = (order, deterministic) if self.emulated else ()
        with self._forced():
            return self.gradients(inputs, grad_output, *options)

    @contextlib.contextmanager
    def _forced(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for variable, kernel in (("MSDA_FORWARD", self.forward), ("MSDA_BACKWARD", self.backward)):
                if kernel:
                    patch.setenv(variable, kernel)
            yield


FORCED = (("many", "group"), ("few", "tile"))
KNOWN = {"forward": "medium", "form": "known_levels"}
SIXTEEN_BIT = (torch.float16, torch.bfloat16)
GROUP_DTYPES = (torch.float32, *SIXTEEN_BIT)


def _kernels(prefix: str, **options) -> Iterator[Backend]:
    """The library's choice of the CUDA kernels, and each kernel forced."""
    yield Backend(prefix, **options)
    yield Backend(f"{prefix}-general", **options, forward="general", backward="general")
    for forward, backward in FORCED:
        named = {"forward": forward, "backward": backward, "form": "one_of_heads", "dtypes": GROUP_DTYPES}
        yield Backend(f"{prefix}-{forward}-{backward}", **options, **named)
    yield Backend(f"{prefix}-medium", **{**options, "gradients": None}, dtypes=SIXTEEN_BIT, **KNOWN)


ALL = (
    Backend("torch-cpu", "cpu", run_msda, gradients=autograd_gradients, unchecked=run_unchecked),
    *_kernels(
        "torch-cuda",
        device="cuda",
        run=run_msda,
        missing=no_gpu,
        gradients=autograd_gradients,
        unchecked=run_unchecked,
    ),
    *_kernels(
        "emulator",
        device="cpu",
        run=emulated_kernels.forward,
        missing=lambda dtype: compile_for_cpu.missing(),
        gradients=emulated_kernels.backward,
        unchecked=emulated_kernels.forward,
        emulated=True,
    ),
    *(
        Backend(
            f"formulas-{device}",
            device,
            run_formulas,
            missing=missing,
            gradients=functools.partial(autograd_gradients, run=run_formulas),
        )
        for device, missing in (("cpu", lambda dtype: None), ("cuda", no_gpu))
    ),
    Backend(
        "tensorrt", "cuda", run_tensorrt, dtypes=GROUP_DTYPES, missing=no_tensorrt, ragged=drawn_cases.RAGGED
    ),
    # NumPy, through which onnxruntime takes its inputs, has no bfloat16.
    Backend(
        "onnxruntime-cpu",
        "cpu",
        run_onnx,
        dtypes=(torch.float32, torch.float16),
        missing=no_onnx,
        ragged=drawn_cases.RAGGED,
    ),
)


def matrix(condition: Callable[[Backend], object] = lambda backend: True, problems: Sequence[Problem] = ()):
    """Parametrises a test by backend, operator and type, and by those of `problems` that the backend takes.

    Args:
        condition: which backends have rows.
        problems: sizes; without any, the test has no argument `problem`.
    """
    short = {dtype: name for name, dtype in DTYPES.items()}
    rows = []
    for backend in filter(condition, ALL):
        marks = [pytest.mark.gpu] if backend.device == "cuda" else []
        for operator, dtype in itertools.product(OPERATORS, backend.dtypes):
            name = f"{backend.name}-{operator}-{short[dtype]}"
            if not problems:
                rows.append(pytest.param(backend, operator, dtype, id=name, marks=marks))
            for problem in filter(backend.takes, problems):
                row = backend, operator, dtype, problem
                rows.append(pytest.param(*row, id=f"{name}-{problem.name}", marks=marks))
    names = ("backend", "operator", "dtype", "problem") if problems else ("backend", "operator", "dtype")
    return pytest.mark.parametrize(names, rows)
