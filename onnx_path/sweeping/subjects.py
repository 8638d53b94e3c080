"""A network as a cell sees it: its files, runtimes, inputs, accuracy and the outputs to compare with."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from codetr.classify.class_folders import ClassPicture, load_class_folders
from codetr.classify.pictures import read_batches
from codetr.classify.top_k import TopK
from codetr.dataset.bad_pictures import BadPictures
from codetr.detector.detector import Detector
from codetr.detector.network_options import FILE_BACKENDS
from codetr.detector.preprocess import ImageError, Preprocessor, load_image
from codetr.detector.sizes import ChosenSize, InputSizes
from codetr.errors import ArgumentError, UsageError
from onnx_path.quantization.calibration_data import find_pictures
from onnx_path.sweeping import output_differences, runtimes
from onnx_path.sweeping.cell_files import IMAGES, ClassifierFiles, DetectorFiles, GivenFile, file_shapes
from onnx_path.sweeping.cells import CellSpec
from onnx_path.sweeping.networks import hash_of
from onnx_path.sweeping.stored_pictures import StoredPictures, store_pictures

if TYPE_CHECKING:
    import onnx_ir as ir

Inputs = dict[str, np.ndarray]


class Subject(Protocol):
    """A network under measurement."""

    def open_runtime(self) -> runtimes.Runtime:
        """Makes the files of the cell and loads them."""

    def open_reference(self) -> runtimes.Runtime:
        """Loads the network in fp32, whose outputs all others are compared with."""

    def batches(self, count: int) -> Iterator[Inputs]:
        """Yields the inputs to compare on, `count` images in the cell's batches; the last may be smaller."""

    def differences(self) -> Any:
        """Returns a collector of differences, see `onnx_path.sweeping.output_differences`."""

    def outputs(self, runtime: runtimes.Runtime, inputs: Inputs) -> list[np.ndarray]:
        """Runs a batch and returns the outputs to compare."""

    def accuracy(self, runtime: runtimes.Runtime) -> dict:
        """Evaluates the network on the dataset."""


def open_subject(spec: CellSpec) -> Subject:
    """Opens the network of a cell."""
    network = spec.network
    if network.task == "classify":
        return ClassifierSubject(spec)
    if network.task == "detect":
        return DetectorSubject(spec)
    return FileSubject(spec)


def random_images(count: int, batch: int, shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields normal random images [N, *shape]. An image does not depend on the batch size."""
    for start in range(0, count, batch):
        numbers = range(start, min(start + batch, count))
        yield np.stack([np.random.default_rng(i).standard_normal(shape, np.float32) for i in numbers])


def run_padded(runtime: runtimes.Runtime, inputs: Inputs, batch: int) -> list[np.ndarray]:
    """Runs inputs that may be fewer than the batch size, which an engine of static shapes needs."""
    count = len(next(iter(inputs.values())))
    return [output[:count] for output in runtime(fill(inputs, batch))]


def fill(inputs: Inputs, batch: int) -> Inputs:
    """Repeats the last image until there are as many as the batch size."""
    missing = batch - len(next(iter(inputs.values())))
    return (
        {name: np.concatenate([x, *[x[-1:]] * missing]) for name, x in inputs.items()} if missing else inputs
    )


class ClassifierSubject:
    """A classifier; its inputs are images [N, 3, H, W] and its outputs logits [N, classes]."""

    def __init__(self, spec: CellSpec) -> None:
        from onnx_path.sweeping.classifiers import load_classifier

        self._spec = spec
        self._classifier = load_classifier(spec.network)
        side = self._classifier.preprocessing.crop
        self._shape = (3, side, side)
        self._files = ClassifierFiles(spec, self._classifier, self._calibration)

    def open_runtime(self) -> runtimes.Runtime:
        cell, module = self._spec.cell, self._classifier.module
        if cell.runtime.startswith("torch"):
            return runtimes.TorchRuntime(module, cell.precision, cell.runtime == "torch-compile")
        return _open_file(self._spec, self._files, sum(x.numel() for x in module.parameters()))

    def open_reference(self) -> runtimes.Runtime:
        return runtimes.TorchRuntime(self._classifier.module, "fp32", compiled=False)

    def batches(self, count: int) -> Iterator[Inputs]:
        if self._spec.dataset is None:
            images = random_images(count, self._spec.cell.batch, self._shape)
        else:
            images = (x for x, _ in self._pictures.batches(count, self._spec.cell.batch))
        return ({IMAGES: x} for x in images)

    def differences(self) -> output_differences.ClassifierDifferences:
        spec = self._spec
        return output_differences.ClassifierDifferences(spec.rtol, spec.atol, self._classifier.class_names)

    def outputs(self, runtime: runtimes.Runtime, inputs: Inputs) -> list[np.ndarray]:
        return run_padded(runtime, inputs, self._spec.cell.batch)

    def accuracy(self, runtime: runtimes.Runtime) -> dict:
        counts = TopK()
        for images, labels in self._pictures.batches(self._spec.limit, self._spec.cell.batch):
            (logits,) = self.outputs(runtime, {IMAGES: images})
            counts.update(logits, labels)
        numbers = {"top1": counts.top1, "top5": counts.top5}
        return {"images": counts.images, "bad_images": self._pictures.bad, **numbers}

    @cached_property
    def _pictures(self) -> StoredPictures:
        """The images to evaluate and to compare on."""
        spec, preprocessing = self._spec, self._classifier.preprocessing
        folder = _split(Path(spec.dataset), "val")
        dataset = load_class_folders(folder, self._classifier.folder_names)
        classes, found = len(self._classifier.class_names), len(dataset.class_names)
        if found != classes:  # of weights without names, whose labels are the sorted folders
            expected = f"expected a class folder for each of the network's {classes} classes"
            raise ArgumentError("dataset", f"{expected}, got {found} in {folder}")
        count = None if spec.limit is None else max(spec.limit, spec.compare)
        made_of = (spec.dataset_key, dataset.class_names, preprocessing.as_dict(), count)
        path = Path(spec.folder) / "pictures" / f"{hash_of(*made_of)[:16]}.rgb"
        return store_pictures(dataset, preprocessing, count, path)

    def _calibration(self) -> Iterator[np.ndarray]:
        spec = self._spec
        if spec.calibration is None:
            return random_images(spec.calibration_images, 8, self._shape)
        folder = _split(Path(spec.calibration), "train")
        files = find_pictures(folder, "train", spec.calibration_images, argument="calibration")
        pictures = [ClassPicture(i, file, 0) for i, file in enumerate(files)]
        return (images for images, _ in read_batches(pictures, self._classifier.preprocessing, 8))


class DetectorSubject:
    """A detector of this package, by name or as an exported file with its metadata."""

    def __init__(self, spec: CellSpec) -> None:
        from codetr.export.request import own_size
        from codetr.weights import model_config

        self._spec, network = spec, spec.network
        self._exported = network.source in ("onnx", "engine")
        if self._exported:
            runtime = "onnxruntime" if network.source == "onnx" else "tensorrt"
            backend = FILE_BACKENDS[runtime](network.architecture)  # reads the metadata only
            sizes = InputSizes.of_artifact(backend.metadata)
            self._size = sizes.height.opt, sizes.width.opt
            if sizes.resizable and network.size is not None:
                self._size, chosen = network.size, ChosenSize(None, *network.size, None)
                backend = FILE_BACKENDS[runtime](network.architecture, size=chosen)
            self._nms, self._names = backend.nms, backend.class_names
            self._preprocessor, self._files = backend.preprocessor, GivenFile(spec)
            return
        self._config = model_config(network.architecture)
        self._size = network.size or own_size(self._config)
        self._nms, self._names = dataclasses.asdict(self._config.nms), self._config.label_names
        self._preprocessor = Preprocessor.of_config(self._config, ChosenSize(None, *self._size, None))
        self._files = DetectorFiles(spec, self._size)

    def open_runtime(self) -> runtimes.Runtime:
        cell = self._spec.cell
        if cell.runtime.startswith("torch"):
            return self._torch(cell.precision, cell.runtime == "torch-compile")
        return _open_file(self._spec, self._files)

    def open_reference(self) -> runtimes.Runtime:
        if self._exported:
            return runtimes.OnnxRuntime(Path(self._spec.network.architecture), "fp32")
        return self._torch("fp32", compiled=False)

    def batches(self, count: int) -> Iterator[Inputs]:
        if self._spec.dataset is None:
            for images in random_images(count, self._spec.cell.batch, (3, *self._size)):
                yield {IMAGES: images, "image_shapes": np.tile(np.int64(self._size), (len(images), 1))}
            return
        readable = self._readable(find_pictures(Path(self._spec.dataset), "val", count, argument="dataset"))
        while images := list(itertools.islice(readable, self._spec.cell.batch)):
            made = self._preprocessor.batch(images)
            yield {IMAGES: made.images, "image_shapes": made.image_shapes}

    def _readable(self, files: Sequence[Path]) -> Iterator[np.ndarray]:
        """Yields the pixels of pictures without those that are damaged, which `accuracy` counts."""
        for file in files:
            with contextlib.suppress(ImageError):
                yield load_image(file)

    def differences(self) -> output_differences.DetectorDifferences:
        return output_differences.DetectorDifferences()

    def outputs(self, runtime: runtimes.Runtime, inputs: Inputs) -> list[np.ndarray]:
        return run_padded(runtime, inputs, self._spec.cell.batch)[:3]

    def accuracy(self, runtime: runtimes.Runtime) -> dict:
        from codetr.dataset.coco_files import load_coco
        from codetr.evaluation import evaluate

        data = load_coco(Path(self._spec.dataset), "val")
        bad = BadPictures(dataclasses.replace(data, pictures=data.pictures[: self._spec.limit]))
        bad.check()
        data = bad.usable()
        batch = self._spec.cell.batch
        backend = _RuntimeBackend(runtime, self._preprocessor, self._names, self._nms, batch)
        with Detector(backend=backend) as detector:
            metrics = evaluate(detector, data, batch=batch, bad_pictures=bad)
        return {"images": metrics.pictures, "bad_images": len(bad.errors), **metrics.precisions()}

    def _torch(self, precision: str, compiled: bool) -> runtimes.TorchRuntime:
        from codetr.detector.torch_backend import TorchBackend

        network = self._spec.network
        model = TorchBackend(network.architecture, self._files.weights(), "cpu").load().model
        return runtimes.TorchRuntime(model, precision, compiled, lambda x, form: x.set_precision(form))


class _RuntimeBackend:
    """A `codetr.detector.backend.Backend` of a runtime."""

    def __init__(
        self,
        runtime: runtimes.Runtime,
        preprocessor: Preprocessor,
        names: Sequence[str],
        nms: Any,
        batch: int,
    ) -> None:
        self._runtime, self._size = runtime, batch
        self.preprocessor, self.class_names, self.nms = preprocessor, tuple(names), nms
        self.batch = None
        self.description = "a cell of a sweep"

    def __call__(self, images: np.ndarray, image_shapes: np.ndarray) -> tuple[np.ndarray, ...]:
        inputs = {IMAGES: images, "image_shapes": image_shapes}
        return tuple(run_padded(self._runtime, inputs, self._size)[:3])

    def load(self) -> _RuntimeBackend:
        return self

    def close(self) -> None:
        """The cell closes its runtime."""


class FileSubject:
    """An ONNX file or engine that may compute anything; its inputs are random numbers."""

    def __init__(self, spec: CellSpec) -> None:
        if spec.dataset is not None:
            problem = "expected a file with metadata for --dataset: this one may compute anything"
            raise UsageError(f"{spec.network.architecture}: {problem}")
        self._spec, self._path = spec, Path(spec.network.architecture)

    def open_runtime(self) -> runtimes.Runtime:
        return _open_file(self._spec, GivenFile(self._spec))

    def open_reference(self) -> runtimes.Runtime:
        return runtimes.OnnxRuntime(self._path, "fp32")

    def batches(self, count: int) -> Iterator[Inputs]:
        batch = self._spec.cell.batch
        for start in range(0, count, batch):
            yield self._draw(range(start, min(start + batch, count)))

    def differences(self) -> output_differences.OutputDifferences:
        return output_differences.OutputDifferences(self._spec.rtol, self._spec.atol)

    def outputs(self, runtime: runtimes.Runtime, inputs: Inputs) -> list[np.ndarray]:
        return run_padded(runtime, inputs, self._spec.cell.batch)

    def accuracy(self, runtime: runtimes.Runtime) -> dict:
        raise NotImplementedError

    def _draw(self, numbers: range) -> Inputs:
        """Draws the inputs of these numbers. An input does not depend on the batch size."""
        if self._spec.network.source == "engine":
            from trt_plugin import EngineRunner
            from trt_plugin.inspection.engine_summary import example_inputs

            with EngineRunner(self._path) as runner:
                inputs, batch = example_inputs(runner), self._spec.cell.batch
                for name, info in runner.inputs.items():
                    if info.shape[:1] == (-1,):
                        inputs[name] = np.resize(inputs[name], (batch, *inputs[name].shape[1:]))
            own = len(next(iter(inputs.values())))
            if own != batch:
                raise UsageError(f"{self._path}: expected --batch {own}, the engine's own, got {batch}")
            return inputs
        from onnx_path.surgery.verify.random_inputs import random_inputs

        in_batches = {name for name, shape in self._shapes.items() if shape[:1] == (self._spec.cell.batch,)}
        shapes = {name: (1, *x[1:]) if name in in_batches else x for name, x in self._shapes.items()}
        common = random_inputs(self._model, shapes, 0)
        drawn = [random_inputs(self._model, shapes, number) for number in numbers]
        return {
            name: np.concatenate([x[name] for x in drawn]) if name in in_batches else array
            for name, array in common.items()
        }

    @cached_property
    def _model(self) -> ir.Model:
        import onnx_ir as ir

        return ir.load(self._path)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return file_shapes(self._spec, self._model, self._spec.cell.batch)


def _split(folder: Path, split: str) -> Path:
    """Returns the part of a dataset, or the folder itself if it has no such part."""
    return folder / split if (folder / split).is_dir() else folder


def _open_file(spec: CellSpec, files: Any, parameters: int | None = None) -> runtimes.Runtime:
    """Makes the file of a cell of onnxruntime or TensorRT, and loads it.

    Args:
        files: a class of `onnx_path.sweeping.cell_files`.
    """
    seconds = None
    if spec.cell.runtime == "onnxruntime":
        path = files.onnx()
        runtime: runtimes.Runtime = runtimes.OnnxRuntime(path, spec.cell.precision)
    else:
        path, seconds = files.engine()
        runtime = runtimes.TensorRTRuntime(path)
    size = runtimes.file_bytes(path)
    runtime.facts |= {"file": str(path), "file_bytes": size, "parameters": parameters, "build_s": seconds}
    return runtime


def reference_file(spec: CellSpec) -> Path:
    """Returns where the outputs in fp32 are kept that cells are compared with."""
    return spec.files / f"reference-{hash_of(spec.dataset_key, spec.compare, spec.limit)[:8]}.npz"
