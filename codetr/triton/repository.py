"""Writes a model repository for Triton: an ensemble of decoding, engine and post-processing.

    image files -> NAME_preprocess -> NAME_engine -> NAME_postprocess -> boxes, scores, labels, names

The first and the last step are Python models. They carry copies of this project's own modules, so that they
compute what `codetr detect` computes.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import codetr
import trt_plugin
from codetr.detector.sizes import InputSizes
from codetr.detector.tensorrt_backend import TensorRTBackend
from codetr.errors import ArgumentError, UsageError
from codetr.export.output_folder import staged_folder
from codetr.triton.model_config import Enum, map_of, tensor, to_text
from trt_plugin.engine_error import EngineError
from trt_plugin.engine_file import HEADER_BYTES, read_plan
from trt_plugin.metadata import ArtifactMetadata

_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "int32": "TYPE_INT32", "int64": "TYPE_INT64"}
_QUEUE_DELAY_US = 1000  # that a request waits for others to share its run
_MODULES = (
    "codetr/__init__.py",
    "codetr/coco_classes.py",
    "codetr/config.py",
    "codetr/errors.py",
    "codetr/detector/__init__.py",
    "codetr/detector/postprocess.py",
    "codetr/detector/preprocess.py",
    "codetr/detector/sizes.py",
    "trt_plugin/__init__.py",
    "trt_plugin/schema_errors.py",
)
"""Modules that the Python models import. They also need the packages numpy, opencv, pillow and pydantic."""


class Repository:
    """A model repository.

    Args:
        engine: its metadata <stem>.json lies beside it.
        name: of the ensemble, and first part of the names of its steps.
        instances: of the engine on each GPU. They run at the same time.
        workers: processes of the first and of the last step.

    Attributes:
        metadata: of the engine.

    Raises:
        ArgumentError: an argument is wrong, or Triton cannot serve the engine.
        EngineError: the plugin library is missing.
    """

    def __init__(self, engine: Path, name: str, *, instances: int, workers: int) -> None:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name) is None:
            raise ArgumentError("name", f"expected letters, digits, _, - and ., got {name!r}")
        for argument, number in (("instances", instances), ("workers", workers)):
            if number < 1:
                raise ArgumentError(argument, f"expected at least 1, got {number}")
        self.metadata: ArtifactMetadata = TensorRTBackend(engine).metadata
        try:
            read_plan(engine, HEADER_BYTES)
        except EngineError as error:  # such as an ONNX file, which may have the same metadata
            raise ArgumentError("engine", str(error)) from error
        self._sizes = InputSizes.of_artifact(self.metadata)
        if self._sizes.batch.dynamic and self._sizes.batch.min > 1:
            expected = "a batch that begins at 1, Triton may have a single request"
            raise ArgumentError("engine", f"expected {expected}, got {self._sizes.batch} in {engine}")
        for entry in (*self.metadata.inputs, *self.metadata.outputs):
            if entry["dtype"] not in _TYPES:
                problem = f"expected {', '.join(_TYPES)}, got {entry['dtype']} for {entry['name']}"
                raise ArgumentError("engine", f"{engine}: {problem}")
        self._plan, self._name = engine, name
        self._instances, self._workers = instances, workers
        self._plugin = trt_plugin.library_path()

    def write(self, out: Path) -> None:
        """Writes models/ and the plugin library, whole or not at all.

        Raises:
            UsageError: the folder is not new or empty.
            ArgumentError, OSError: it cannot be written.
        """
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"OUT: expected a new or empty folder, got {out}")
        with staged_folder(out) as folder:
            shutil.copyfile(self._plugin, folder / self._plugin.name)
            models = folder / "models"
            self._write_model(models, "", self._ensemble())
            (models / self._name / "labels.txt").write_text(
                "".join(f"{name}\n" for name in self.metadata.class_names), encoding="utf-8"
            )
            engine = self._write_model(models, "_engine", self._engine())
            shutil.copyfile(self._plan, engine / "model.plan")
            (engine.parent / "warmup").mkdir()
            self._warm_up_shapes().tofile(engine.parent / "warmup" / "image_shapes")
            for step, config in (("preprocess", self._preprocess()), ("postprocess", self._postprocess())):
                self._write_step(self._write_model(models, f"_{step}", config), step)

    def command(self, out: Path) -> str:
        """Returns the command that starts the server, for a shell."""
        plugin = (out / self._plugin.name).absolute()
        models = (out / "models").absolute()
        options = f"--model-repository={models}", f"--backend-config=tensorrt,plugins={plugin}"
        return shlex.join(("tritonserver", *options))

    def _write_model(self, models: Path, ending: str, config: Mapping[str, Any]) -> Path:
        """Writes a configuration; returns the folder of the model's version 1."""
        version = models / (self._name + ending) / "1"
        version.mkdir(parents=True)
        text = to_text({"name": self._name + ending, **config})
        (version.parent / "config.pbtxt").write_text(text, encoding="utf-8")
        return version

    def _write_step(self, version: Path, step: str) -> None:
        package = Path(codetr.__file__).parent
        shutil.copyfile(package / "triton" / "steps" / f"{step}.py", version / "model.py")
        self.metadata.save(version / "engine.json")
        for module in _MODULES:
            target = version / module
            target.parent.mkdir(parents=True, exist_ok=True)
            source = Path((trt_plugin if module.startswith("trt_plugin") else codetr).__file__).parents[1]
            shutil.copyfile(source / module, target)

    @property
    def _batching(self) -> dict[str, int]:
        """Triton adds the batch to the shapes of models with batching, for which it must be dynamic."""
        return {"max_batch_size": self._sizes.batch.max if self._sizes.batch.dynamic else 0}

    def _tensor(self, name: str, data_type: str, *dims: int, count: int = -1) -> dict[str, Any]:
        """Returns a tensor of [images, *dims].

        Args:
            count: images of a model without batching; -1 for as many as the client sends.
        """
        return tensor(name, data_type, [*dims] if self._sizes.batch.dynamic else [count, *dims])

    def _engine_tensors(self, entries: list[Any], *names: str) -> list[dict[str, Any]]:
        return [
            self._tensor(entry["name"], _TYPES[entry["dtype"]], *entry["shape"][1:], count=entry["shape"][0])
            for entry in entries
            if not names or entry["name"] in names
        ]

    def _image(self) -> dict[str, Any]:
        # With batching a request has the shape [images, 1], else [images].
        return self._tensor("image", "TYPE_STRING", *([1] if self._sizes.batch.dynamic else []))

    def _original_shapes(self) -> dict[str, Any]:
        return self._tensor("original_shapes", "TYPE_INT64", 2)

    def _detections(self) -> list[dict[str, Any]]:
        rows = self.metadata.max_per_img
        return [
            self._tensor("boxes", "TYPE_FP32", rows, 4),
            self._tensor("scores", "TYPE_FP32", rows),
            self._tensor("labels", "TYPE_INT64", rows),
            self._tensor("names", "TYPE_STRING", rows),
        ]

    def _ensemble(self) -> dict[str, Any]:
        outputs = ("boxes", "scores", "labels")
        # Tensors inside of the ensemble have names of their own: the engine's boxes are not the results.
        raw = {name: f"engine_{name}" for name in outputs}
        inputs = {name: name for name in ("images", "image_shapes")}
        shapes = {name: name for name in ("image_shapes", "original_shapes")}
        results = {name: name for name in (*outputs, "names")}
        steps = (
            ("preprocess", {"image": "image"}, {**inputs, **shapes}),
            ("engine", inputs, raw),
            ("postprocess", {**raw, **shapes}, results),
        )
        detections = self._detections()
        detections[outputs.index("labels")]["label_filename"] = "labels.txt"
        return {
            "platform": "ensemble",
            **self._batching,
            "input": self._image(),
            "output": detections,
            "ensemble_scheduling": {
                "step": [
                    {
                        "model_name": f"{self._name}_{step}",
                        "model_version": -1,
                        "input_map": map_of(taken),
                        "output_map": map_of(given),
                    }
                    for step, taken, given in steps
                ]
            },
        }

    def _preprocess(self) -> dict[str, Any]:
        return {
            "backend": "python",
            **self._batching,
            "input": self._image(),
            "output": [
                *self._engine_tensors(self.metadata.inputs, "images", "image_shapes"),
                self._original_shapes(),
            ],
            "instance_group": {"count": self._workers, "kind": Enum("KIND_CPU")},
        }

    def _postprocess(self) -> dict[str, Any]:
        return {
            "backend": "python",
            **self._batching,
            "input": [
                *self._engine_tensors(self.metadata.outputs, "boxes", "scores", "labels"),
                *self._engine_tensors(self.metadata.inputs, "image_shapes"),
                self._original_shapes(),
            ],
            "output": self._detections(),
            "instance_group": {"count": self._workers, "kind": Enum("KIND_CPU")},
        }

    def _engine(self) -> dict[str, Any]:
        config = {
            "backend": "tensorrt",
            "default_model_filename": "model.plan",
            **self._batching,
            "input": self._engine_tensors(self.metadata.inputs),
            "output": self._engine_tensors(self.metadata.outputs),
            "instance_group": {"count": self._instances, "kind": Enum("KIND_GPU")},
        }
        if self._sizes.batch.dynamic:
            config["dynamic_batching"] = {"max_queue_delay_microseconds": _QUEUE_DELAY_US}
        graphs = [
            {
                "batch_size": batch,
                "input": map_of({entry["name"]: {"dim": entry["dims"]} for entry in self._usual_inputs()}),
            }
            for batch in self._graph_batches()
        ]
        config["optimization"] = {"cuda": {"graphs": True, "graph_spec": graphs}}
        config["model_warmup"] = [
            {"name": f"batch of {batch}", "batch_size": batch or 1, "inputs": map_of(self._warm_up_inputs())}
            for batch in self._graph_batches()
        ]
        return config

    def _usual_inputs(self) -> list[dict[str, Any]]:
        """The engine's inputs, with dynamic heights and widths at their usual size."""
        usual = {"images": (3, self._sizes.height.opt, self._sizes.width.opt), "image_shapes": (2,)}
        return [
            self._tensor(
                entry["name"], _TYPES[entry["dtype"]], *usual[entry["name"]], count=entry["shape"][0]
            )
            for entry in self.metadata.inputs
        ]

    def _graph_batches(self) -> list[int]:
        """Batches with a CUDA graph: powers of two, the usual and the largest; 0 for a fixed batch."""
        _, usual, largest = self._sizes.batch
        if not self._sizes.batch.dynamic:
            return [0]
        return sorted({usual, largest, *(2**power for power in range(largest.bit_length()))})

    def _warm_up_inputs(self) -> dict[str, dict[str, Any]]:
        """Black images. Their sizes come from a file, for a size of 0 x 0 is none."""
        inputs = {entry.pop("name"): {**entry, "zero_data": True} for entry in self._usual_inputs()}
        del inputs["image_shapes"]["zero_data"]
        inputs["image_shapes"]["input_data_file"] = "image_shapes"
        return inputs

    def _warm_up_shapes(self) -> np.ndarray:
        """Sizes of a largest batch. A smaller one reads the beginning of the file."""
        dtype = next(entry["dtype"] for entry in self.metadata.inputs if entry["name"] == "image_shapes")
        usual = (self._sizes.height.opt, self._sizes.width.opt)
        return np.tile(np.array(usual, dtype=dtype), (self._sizes.batch.max, 1))
