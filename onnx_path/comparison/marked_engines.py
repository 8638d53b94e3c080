"""The engine's side of a comparison, and engines with tensors between layers as outputs. Needs a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from codetr.cli.command import complain, one_line
from onnx_path import custom_operators as plugins
from onnx_path import model_for_tensorrt as preparation
from onnx_path import optimization_profiles as profiles
from onnx_path import requirements
from onnx_path import tensorrt_engine as builder
from onnx_path.comparison.comparable_tensors import Tensors
from onnx_path.tensorrt_engine import Settings

Results = dict[str, tuple[np.ndarray, str]]
"""Array and name of the engine's type, by name of the tensor."""


def check_machine(libraries: Sequence[Path], built: onnx.ModelProto | None) -> None:
    """Checks packages, plugins and the GPU: without a GPU, loading an engine would end the process.

    Args:
        libraries: of plugins, which are registered.
        built: a model that engines will be built of, or None.

    Raises:
        plugins.PluginMissing: a library cannot be loaded, or an operator of the model has no plugin.
        trt_plugin.EngineError: packages, our plugin library or a GPU are missing; names all that is.
    """
    missing = requirements.packages("onnxruntime", "tensorrt", "cuda")
    if built is not None:
        missing += requirements.packages("polygraphy")
        missing += requirements.plugin_library() if plugins.needs_ours(built) else []
    if not missing and built is not None:
        plugins.register(libraries, built)
    elif not missing:
        plugins.load_libraries(libraries)
    requirements.require([*missing, *requirements.gpu()])


def run(path: Path, inputs: Mapping[str, np.ndarray]) -> Results:
    """Loads an engine and runs it once.

    Args:
        path: of the engine.
        inputs: an array for every input.

    Raises:
        trt_plugin.EngineError: it cannot be loaded or does not run.
        TypeError, ValueError: an input is not what the engine takes.
    """
    from trt_plugin.runner import EngineRunner

    with EngineRunner(path, cuda_graph=False) as runner:
        outputs = runner(inputs)
        return {name: (array, runner.outputs[name].dtype) for name, array in outputs.items()}


class MarkedEngines:
    """Engines of one file with tensors between its nodes as outputs, built and run one after the other.

    What they need on disk lies in a temporary folder until `close`: the weights once, the graph and engine of
    the moment, and a timing cache, so that later builds take less time.

    Args:
        model: to build; bodies of MSDA nodes and its outputs' number change, its weights go to the folder.
        path: that it was read from; weights outside of it lie beside it.
        tensors: of the model.
        inputs: what all engines run on; their shapes are the only ones that the engines take.
        tf32: multiply float32 matrices with 10 bits of mantissa.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        path: Path,
        tensors: Tensors,
        inputs: Mapping[str, np.ndarray],
        tf32: bool,
    ) -> None:
        dynamic = [x.name for x in profiles.inputs_of(model) if x.dynamic]
        self._temporary = tempfile.TemporaryDirectory(prefix="onnx-path-compare-")
        self._folder = Path(self._temporary.name)
        self._settings = Settings(
            profiles={name: profiles.Profile(*[inputs[name].shape] * 3) for name in dynamic},
            tf32=tf32,
            timing_cache=self._folder / "timing.cache",
        )
        self._model, self._name, self._tensors, self._inputs = model, path.name, tensors, inputs
        try:
            preparation.take_out_bodies(model)
            onnx.load_external_data_for_model(model, str(path.parent))
            # Writes the weights and leaves references to them in the model.
            onnx.save(model, self._folder / "model.onnx", save_as_external_data=True, location="weights")
        except BaseException:
            self.close()
            raise

    def __call__(self, marks: Sequence[str]) -> Results:
        """Builds an engine that also gives `marks`, runs it and removes it.

        Where TensorRT refuses, each half of the marks gets an engine of its own, and so on: one tensor that
        cannot be an output does not end a search.

        Returns:
            Its outputs; marks that cannot be outputs, or that TensorRT gives under another name, are missing.

        Raises:
            RuntimeError: the file cannot be built without marks either; with TensorRT's words.
            trt_plugin.EngineError: the engine without marks cannot be loaded or does not run.
        """
        own = {x.name for x in self._model.graph.output}
        added = [name for name in dict.fromkeys(marks) if name not in own]
        try:
            return self._run(added)
        except RuntimeError as error:
            if not added:
                raise
            results = self._run([])  # raises where the marks are not the reason
            return results | self._halves(added, error)

    def _halves(self, added: Sequence[str], reason: RuntimeError) -> Results:
        """What engines of fewer marks give, after one of all of them was refused."""
        if len(added) == 1:
            complain("warning", f"{added[0]} cannot be compared: {one_line(reason)}")
            return {}
        results: Results = {}
        for half in (added[: len(added) // 2], added[len(added) // 2 :]):
            try:
                results |= self._run(half)
            except RuntimeError as error:
                results |= self._halves(half, error)
        return results

    def _run(self, added: Sequence[str]) -> Results:
        """One engine with these outputs added."""
        outputs = self._model.graph.output
        own = len(outputs)
        # TensorRT's parser wants the type, and does not mind a missing shape.
        outputs.extend(
            onnx.helper.make_tensor_value_info(name, self._tensors.types[name], None) for name in added
        )
        source, engine = self._folder / "marked.onnx", self._folder / "marked.engine"
        try:
            source.write_bytes(self._model.SerializeToString())
            engine.write_bytes(builder.serialize_engine(source, self._settings, self._name))
            return run(engine, self._inputs)
        finally:
            del outputs[own:]
            engine.unlink(missing_ok=True)

    def close(self) -> None:
        """Removes the temporary folder."""
        self._temporary.cleanup()

    def __enter__(self) -> MarkedEngines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
