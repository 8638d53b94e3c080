"""Runs a network in PyTorch, onnxruntime or TensorRT on NumPy arrays, and times it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from codetr.detector.onnxruntime_backend import session_options
from onnx_path.sweeping.latency import FEWEST_SAMPLES, WARM_UP, summarise, time_calls

Arrays = Mapping[str, np.ndarray]


class Runtime(Protocol):
    """Runs a network."""

    facts: dict[str, Any]
    """Fields of the result: layers, weights_bytes, context_bytes, file, …"""

    def __call__(self, inputs: Arrays) -> list[np.ndarray]:
        """Copies the inputs to the device, runs the network, and returns its outputs."""

    def time_model(self, inputs: Arrays, iterations: int, seconds: float) -> dict[str, dict | None]:
        """Times the network alone, without ("eager") and with ("graph") a CUDA graph.

        Args:
            iterations: number of samples.
            seconds: limit of their time.
        """

    def close(self) -> None:
        """Frees the network."""


def file_bytes(file: Path) -> int:
    """Returns the size of an ONNX file or engine, with the weights beside it."""
    weights = file.with_name(f"{file.name}.data")
    return file.stat().st_size + (weights.stat().st_size if weights.is_file() else 0)


class TorchRuntime:
    """Runs a module, on the GPU if there is one.

    Args:
        module: in float32; takes the inputs in order. It is changed.
        precision: "fp32", "tf32", "fp16" or "bf16".
        compiled: whether `torch.compile` compiles it.
        narrow: turns the module's weights to 16 bits; default: all of them.
    """

    def __init__(
        self,
        module: Any,
        precision: str,
        compiled: bool,
        narrow: Callable[[Any, str], object] | None = None,
    ) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._tf32 = precision == "tf32"
        self._dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
        self._casts = narrow is None
        if precision in ("fp16", "bf16"):
            module.to(self._dtype) if narrow is None else narrow(module, precision)
        module.to(self._device)
        leaves = [x for x in module.modules() if not any(x.children())]
        self.facts = {
            "layers": len(leaves),
            "parameters": sum(x.numel() for x in module.parameters()),
            "weights_bytes": sum(x.nbytes for x in module.parameters()),
            "context_bytes": None,
            "file": None,
            "build_s": None,
        }
        self.facts["file_bytes"] = self.facts["weights_bytes"]
        self._module = torch.compile(module) if compiled else module

    def __call__(self, inputs: Arrays) -> list[np.ndarray]:
        with self._settings():
            outputs = self._run(self._upload(inputs))
            return [x.float().cpu().numpy() if x.is_floating_point() else x.cpu().numpy() for x in outputs]

    def time_model(self, inputs: Arrays, iterations: int, seconds: float) -> dict[str, dict | None]:
        with self._settings():
            tensors = self._upload(inputs)
            if self._device.type == "cpu":
                return {"eager": time_calls(lambda: self._run(tensors), iterations, seconds), "graph": None}
            cuda = self._torch.cuda

            def wait(call: Callable[[], object]) -> None:
                call()
                cuda.synchronize()

            eager = time_calls(lambda: wait(lambda: self._run(tensors)), iterations, seconds)
            try:
                graph = cuda.CUDAGraph()
                with cuda.graph(graph):
                    self._run(tensors)
            except RuntimeError:  # a network that waits for the GPU cannot be captured
                return {"eager": eager, "graph": None}
            return {"eager": eager, "graph": time_calls(lambda: wait(graph.replay), iterations, seconds)}

    def close(self) -> None:
        self._module = None

    def _upload(self, inputs: Arrays) -> list[Any]:
        tensors = [self._torch.from_numpy(x).to(self._device) for x in inputs.values()]
        return [x.to(self._dtype) if self._casts and x.is_floating_point() else x for x in tensors]

    def _run(self, tensors: list[Any]) -> list[Any]:
        outputs = self._module(*tensors)
        return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]

    @contextlib.contextmanager
    def _settings(self) -> Any:
        from codetr.detector.torch_backend import allow_tf32

        with self._torch.inference_mode(), allow_tf32(self._torch, self._tf32):
            yield


class OnnxRuntime:
    """Runs an ONNX file in onnxruntime, on the GPU if onnxruntime has its CUDA provider."""

    def __init__(self, file: Path, precision: str) -> None:
        import onnx
        import onnxruntime

        self._cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        providers: list[Any] = ["CPUExecutionProvider"]
        if self._cuda:
            providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": 0}))
        self._session = onnxruntime.InferenceSession(file, session_options(precision), providers=providers)
        model = onnx.load(file, load_external_data=False)
        self.facts = {
            "layers": len(model.graph.node),
            "weights_bytes": file_bytes(file),
            "context_bytes": None,
        }

    def __call__(self, inputs: Arrays) -> list[np.ndarray]:
        outputs = self._session.run(None, self._cast(inputs))
        return [x.astype(np.float32) if x.dtype == np.float16 else x for x in outputs]

    def time_model(self, inputs: Arrays, iterations: int, seconds: float) -> dict[str, dict | None]:
        import onnxruntime

        binding = self._session.io_binding()
        device = "cuda" if self._cuda else "cpu"
        for name, array in self._cast(inputs).items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0))
        for output in self._session.get_outputs():
            binding.bind_output(output.name, device, 0)

        def run() -> None:
            self._session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return {"eager": time_calls(run, iterations, seconds), "graph": None}

    def close(self) -> None:
        self._session = None

    def _cast(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Returns the inputs in the types of the file."""
        half = {x.name for x in self._session.get_inputs() if x.type == "tensor(float16)"}
        return {name: x.astype(np.float16) if name in half else x for name, x in inputs.items()}


class TensorRTRuntime:
    """Runs an engine."""

    def __init__(self, engine: Path) -> None:
        from trt_plugin import EngineRunner
        from trt_plugin.inspection.engine_summary import read_engine

        summary, _, _ = read_engine(engine)
        self.facts = {
            "layers": summary.layers,
            "weights_bytes": summary.loaded_bytes,
            "context_bytes": summary.device_memory_bytes,
        }
        self._runner = EngineRunner(engine)

    def __call__(self, inputs: Arrays) -> list[np.ndarray]:
        return list(self._runner(inputs).values())

    def time_model(self, inputs: Arrays, iterations: int, seconds: float) -> dict[str, dict | None]:
        return {
            name: self._time(inputs, iterations, seconds, cuda_graph=name == "graph")
            for name in ("eager", "graph")
        }

    def close(self) -> None:
        self._runner.close()

    def _time(self, inputs: Arrays, iterations: int, seconds: float, cuda_graph: bool) -> dict:
        once = self._runner.time(inputs, 3, 1, cuda_graph=cuda_graph)[-1] / 1e3
        count = max(FEWEST_SAMPLES, min(iterations, int(seconds / once)))
        warm_up = max(1, round(WARM_UP * count))
        return summarise(self._runner.time(inputs, count, warm_up, cuda_graph=cuda_graph), warm_up)
