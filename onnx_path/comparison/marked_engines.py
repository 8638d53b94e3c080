"""Engines with tensors between layers as outputs, built and run one after the other. Needs a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from codetr.cli.program import complain
from codetr.errors import one_line
from onnx_path.comparison.comparable_tensors import ComparableTensors
from onnx_path.nodes.attention import remove_function_bodies
from onnx_path.tensorrt import tensorrt_engine
from onnx_path.tensorrt.graph_passes import run_passes
from onnx_path.tensorrt.optimization_profiles import ShapeRange, inputs_of
from onnx_path.tensorrt.tensorrt_engine import Settings
from onnx_path.tensorrt.written_out_linears import write_out_slow_linears

EngineOutputs = dict[str, tuple[np.ndarray, str]]
"""Array and name of the engine's type, by name of the tensor."""


def run_engine(path: Path, inputs: Mapping[str, np.ndarray]) -> EngineOutputs:
    """Loads an engine and runs it once.

    Raises:
        trt_plugin.EngineError: the engine cannot be loaded or does not run.
        TypeError, ValueError: the engine does not take an input.
    """
    from trt_plugin.runner import EngineRunner

    with EngineRunner(path, cuda_graph=False) as runner:
        outputs = runner(inputs)
        return {name: (array, runner.outputs[name].dtype) for name, array in outputs.items()}


class MarkedEngines:
    """Engines of one file with some of its tensors as outputs.

    Args:
        model: model to build, modified: our nodes lose their bodies, and the weights move to `folder`.
        path: file of the model, with external weights beside it.
        tensors: tensors of the model.
        inputs: inputs of every run. The engines take their shapes only.
        tf32: as `Settings.tf32`.
        folder: temporary folder for the weights, one engine at a time, and a timing cache for later builds.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        path: Path,
        tensors: ComparableTensors,
        inputs: Mapping[str, np.ndarray],
        tf32: bool,
        folder: Path,
    ) -> None:
        dynamic = [one.name for one in inputs_of(model) if one.dynamic]
        profiles = {name: ShapeRange(*[inputs[name].shape] * 3) for name in dynamic}
        self._settings = Settings(profiles=profiles, tf32=tf32, timing_cache=folder / "timing.cache")
        self._folder = folder
        self._model, self._name, self._tensors, self._inputs = model, path.name, tensors, inputs
        remove_function_bodies(model)
        onnx.load_external_data_for_model(model, str(path.parent))
        run_passes(model, path.parent, write_out_slow_linears)
        # Writes the weights once. The model keeps references to them.
        onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights")

    def __call__(self, marks: Sequence[str]) -> EngineOutputs:
        """Builds an engine with the tensors `marks` as further outputs, runs it and removes it.

        If TensorRT refuses an engine, each half of its marks gets an engine of its own, and so on.

        Returns:
            The outputs, without marks that cannot be outputs or that TensorRT renames.

        Raises:
            RuntimeError: the file cannot be built without marks either. The message has TensorRT's reason.
            trt_plugin.EngineError: the engine without marks cannot be loaded or does not run.
        """
        own = {value.name for value in self._model.graph.output}
        added = [name for name in dict.fromkeys(marks) if name not in own]
        try:
            return self._run(added)
        except RuntimeError as error:
            if len(added) > 1:
                return self(added[: len(added) // 2]) | self(added[len(added) // 2 :])
            if not added:
                raise
            results = self._run([])  # raises if the mark is not the reason
            complain("warning", f"{added[0]} cannot be compared: {one_line(error)}")
            return results

    def _run(self, added: Sequence[str]) -> EngineOutputs:
        """Runs one engine with these outputs added."""
        outputs, types = self._model.graph.output, self._tensors.types
        own = len(outputs)
        # TensorRT's parser needs the type and no shape.
        outputs.extend(onnx.helper.make_tensor_value_info(name, types[name], None) for name in added)
        source, engine = self._folder / "marked.onnx", self._folder / "marked.engine"
        try:
            source.write_bytes(self._model.SerializeToString())
            engine.write_bytes(tensorrt_engine.serialize_engine(source, self._settings, self._name))
            return run_engine(engine, self._inputs)
        finally:
            del outputs[own:]
