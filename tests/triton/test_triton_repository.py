"""`codetr triton-repository`: configurations by Triton's schema, and Python models as Triton runs them."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from codetr.cli.app import main
from codetr.detector.detector import Detector
from codetr.detector.preprocess import Preprocessor
from tests.detector.detect_runs import FakeBackend, error_line
from tests.detector.exported_metadata import dynamic_metadata, fixed_metadata
from trt_plugin import ArtifactMetadata


def dynamic() -> ArtifactMetadata:
    metadata = dynamic_metadata([1333, 800])
    outputs = [{**entry, "shape": [-1, *entry["shape"][1:]]} for entry in metadata.outputs]
    return dataclasses.replace(metadata, outputs=outputs)


KINDS = {"fixed": fixed_metadata, "dynamic": dynamic}

PLAN = b"ftrt".ljust(28, b"\0")
"""The beginning of an engine."""

INT32, INT64, FP32 = 8, 9, 11
"""Numbers of Triton's DataType."""

# What Triton's Python backend gives to a model: of this module, the models use only these names.
STUB = """
class Tensor:
    def __init__(self, name, array): self.name, self.array = name, array
    def as_numpy(self): return self.array
class TritonError:
    def __init__(self, message): self.message = message
class InferenceResponse:
    def __init__(self, output_tensors=(), error=None): self.tensors, self.error = output_tensors, error
def get_input_tensor_by_name(request, name): return Tensor(name, request[name])
"""
# Runs a model with the packages of Triton's image and those of the documentation, but without this project.
RUN = """
import pickle, sys
model, packages = sys.argv[1:]
sys.path[:0] = [model]
sys.path.append(packages)
import model
state = model.TritonPythonModel()
state.initialize({})
answers = state.execute(pickle.load(sys.stdin.buffer))
read = lambda answer: answer.error.message if answer.error else {t.name: t.array for t in answer.tensors}
pickle.dump([read(answer) for answer in answers], sys.stdout.buffer)
assert not {"torch", "msda", "cyclopts"} & set(sys.modules)
own = [module.__file__ for name, module in sys.modules.items() if name.startswith(("codetr", "trt_plugin"))]
assert own and all(file.startswith(sys.argv[1]) for file in own)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "libmsda_trt_plugin.so"
    path.write_bytes(b"plugins")
    monkeypatch.setenv("MSDA_TRT_PLUGIN", str(path))
    return path


@pytest.fixture
def engine(tmp_path, plugin, request) -> Path:
    """A file in place of an engine, with the metadata of one."""
    path = tmp_path / "some.engine"
    path.write_bytes(PLAN)
    KINDS[getattr(request, "param", "fixed")]().save(path.with_suffix(".json"))
    return path


def write(engine: Path, out: Path, *options: object) -> Path:
    """Writes a repository; returns the folder of its models."""
    assert main(["triton-repository", str(out), "--engine", str(engine), *map(str, options)]) == 0
    return out / "models"


def read_configs(models: Path) -> dict[str, object]:
    """The configurations by the model's name, parsed by Triton's schema."""
    model_config = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="no tritonclient")
    from google.protobuf import text_format

    configs = {}
    for path in models.glob("*/config.pbtxt"):
        config = text_format.Parse(path.read_text(encoding="utf-8"), model_config.ModelConfig())
        assert config.name == path.parent.name
        configs[config.name] = config
    return configs


def run_model(model: Path, requests: list[dict[str, np.ndarray]]) -> list:
    """Runs a Python model; the answer to a request is its tensors or the error."""
    (model / "triton_python_backend_utils.py").write_text(STUB)
    packages = Path(np.__file__).parents[1]
    done = subprocess.run(
        # -S: the project's own finder is not there.
        [sys.executable, "-I", "-S", "-c", RUN, str(model), str(packages)],
        input=pickle.dumps(requests),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def files(*sizes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


def encoded(images: list[np.ndarray]) -> np.ndarray:
    """Files without loss, as Triton hands them to a model: [images, 1] of bytes."""
    contents = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        contents.append([file.getvalue()])
    return np.array(contents, dtype=object)


@pytest.mark.parametrize("engine", KINDS, indirect=True)
def test_files(engine, plugin, tmp_path, capsys):
    models = write(engine, tmp_path / "folder with spaces", "--name", "street")
    out = models.parent
    assert sorted(path.name for path in out.iterdir()) == [plugin.name, "models"]
    assert sorted(path.name for path in models.iterdir()) == [
        "street",
        "street_engine",
        "street_postprocess",
        "street_preprocess",
    ]
    assert (out / plugin.name).read_bytes() == b"plugins"
    assert (models / "street_engine/1/model.plan").read_bytes() == PLAN
    assert (models / "street/labels.txt").read_text() == "cat\ndog\n"
    assert (models / "street/1").is_dir() and (models / "street_preprocess/1/model.py").is_file()
    *_, command = capsys.readouterr().out.splitlines()
    assert shlex.split(command) == [
        "tritonserver",
        f"--model-repository={models}",
        f"--backend-config=tensorrt,plugins={out / plugin.name}",
    ]


def shapes_of(config, tensors) -> dict[str, tuple]:
    """Types and whole shapes, with the batch of models that Triton batches."""
    batch = [-1] if config.max_batch_size else []
    return {tensor.name: (tensor.data_type, (*batch, *tensor.dims)) for tensor in tensors}


@pytest.mark.parametrize("engine", KINDS, indirect=True)
def test_configurations(engine, tmp_path):
    """The engine's tensors are those of its metadata, and the steps of the ensemble fit together."""
    configs = read_configs(write(engine, tmp_path / "out", "--instances", 3, "--workers", 5))
    metadata = ArtifactMetadata.load(engine.with_suffix(".json"))
    network = configs["codetr_engine"]
    types = {"float32": FP32, "int32": INT32, "int64": INT64}
    for entries, tensors in ((metadata.inputs, network.input), (metadata.outputs, network.output)):
        found = shapes_of(network, tensors)
        assert found == {entry["name"]: (types[entry["dtype"]], tuple(entry["shape"])) for entry in entries}

    ensemble = configs["codetr"]
    known = shapes_of(ensemble, ensemble.input)
    for step in ensemble.ensemble_scheduling.step:
        model = configs[step.model_name]
        taken, given = shapes_of(model, model.input), shapes_of(model, model.output)
        assert {key: known[name] for key, name in step.input_map.items()} == taken
        assert set(step.output_map) <= set(given)
        for key, name in step.output_map.items():
            assert name not in known
            known[name] = given[key]
    assert shapes_of(ensemble, ensemble.output).items() <= known.items()

    group = network.instance_group[0]
    assert (group.count, group.Kind.Name(group.kind)) == (3, "KIND_GPU")
    assert configs["codetr_preprocess"].instance_group[0].count == 5
    batches = [0] if network.max_batch_size == 0 else [1, 2, 4, 8]
    assert {config.max_batch_size for config in configs.values()} == {batches[-1]}
    assert network.HasField("dynamic_batching") == (batches != [0])
    assert network.optimization.cuda.graphs
    assert [graph.batch_size for graph in network.optimization.cuda.graph_spec] == batches
    assert [sample.batch_size for sample in network.model_warmup] == [batch or 1 for batch in batches]


@pytest.mark.parametrize("engine", KINDS, indirect=True)
def test_graphs_and_warm_up_have_whole_shapes(engine, tmp_path):
    models = write(engine, tmp_path / "out")
    network = read_configs(models)["codetr_engine"]
    whole = {"fixed": {"images": [2, 3, 64, 96], "image_shapes": [2, 2]}}
    whole["dynamic"] = {"images": [3, 768, 1152], "image_shapes": [2]}
    expected = whole["dynamic" if network.max_batch_size else "fixed"]
    for graph in network.optimization.cuda.graph_spec:
        assert {name: list(shape.dim) for name, shape in graph.input.items()} == expected
    for sample in network.model_warmup:
        assert {name: list(data.dims) for name, data in sample.inputs.items()} == expected
        assert sample.inputs["images"].zero_data
        path = models / "codetr_engine/warmup" / sample.inputs["image_shapes"].input_data_file
        dtype = np.int64 if sample.inputs["image_shapes"].data_type == INT64 else np.float32
    shapes = np.fromfile(path, dtype)
    usual = (64, 96) if expected is whole["fixed"] else (768, 1152)
    np.testing.assert_array_equal(shapes.reshape(-1, 2), [usual] * (network.max_batch_size or 2))


@pytest.mark.parametrize("engine", KINDS, indirect=True)
def test_first_step(engine, tmp_path):
    """The inputs are those of the project's own preprocessing. A damaged image fails its request alone."""
    metadata = ArtifactMetadata.load(engine.with_suffix(".json"))
    model = write(engine, tmp_path / "out") / "codetr_preprocess/1"
    images = files((300, 400), (90, 60))
    damaged = np.array([[b"no image"]], dtype=object)
    many = encoded(images[:1] * 3)
    requests = [{"image": array} for array in (encoded(images), damaged, encoded(images[1:]), many)]
    both, error, one, three = run_model(model, requests)
    assert error == "image 0: not an image that Pillow can read (unknown format)"
    fixed = len(metadata.profiles) == 0
    preprocessor = Preprocessor.of_artifact(metadata)
    for answer, given in ((both, images), (one, images[1:])):
        expected = preprocessor.batch([*given, given[-1]][:2] if fixed else given)
        types = {entry["name"]: np.dtype(entry["dtype"]) for entry in metadata.inputs}
        assert {name: answer[name].dtype for name in types} == types
        np.testing.assert_array_equal(answer["images"], expected.images)
        np.testing.assert_array_equal(answer["image_shapes"], expected.image_shapes)
        np.testing.assert_array_equal(answer["original_shapes"], [image.shape[:2] for image in given])
    if fixed:
        assert three == "image: expected at most 2, got 3"
    else:
        assert len(three["images"]) == 3


class Recorded(FakeBackend):
    """Keeps its inputs and outputs. One box is no number."""

    def __call__(self, images, image_shapes):
        boxes, scores, labels = super().__call__(images, image_shapes)
        boxes[1, 2] = np.nan
        self.image_shapes = image_shapes
        self.outputs = {"boxes": boxes, "scores": scores, "labels": labels}
        return boxes, scores, labels


@pytest.mark.parametrize("nms", ["soft", "hard", "in the graph"])
def test_last_step(engine, tmp_path, nms):
    """The detections are those of `codetr.Detector` with the same outputs of the network."""
    path = engine.with_suffix(".json")
    content = json.loads(path.read_text())
    content |= {"class_names": list(FakeBackend.class_names), "nms_in_graph": nms == "in the graph"}
    content["nms"] = {"method": nms if nms != "in the graph" else "hard", "iou_threshold": 0.8}
    path.write_text(json.dumps(content))
    model = write(engine, tmp_path / "out") / "codetr_postprocess/1"
    images = files((300, 400), (90, 60))
    backend = Recorded(fixed=True)
    backend.nms = None if content["nms_in_graph"] else content["nms"]
    expected = Detector(backend=backend).detect(images, threshold=0, batch=2)
    request = {**backend.outputs, "image_shapes": backend.image_shapes}
    shapes = np.array([image.shape[:2] for image in images])
    both, first = run_model(model, [{**request, "original_shapes": part} for part in (shapes, shapes[:1])])
    for i, found in enumerate(expected):
        count = len(found)
        np.testing.assert_array_equal(both["boxes"][i, :count], found.boxes_xyxy_px)
        np.testing.assert_array_equal(both["scores"][i, :count], found.scores)
        np.testing.assert_array_equal(both["labels"][i], [*found.labels, *[-1] * (3 - count)])
        assert both["names"][i].tolist() == [*found.names(), *[""] * (3 - count)]
    assert {name: len(array) for name, array in first.items()} == dict.fromkeys(first, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--name", "a/b"], "--name: expected letters, digits, _, - and ., got 'a/b'"),
        (["--instances", "0"], "--instances: expected at least 1, got 0"),
        (["--workers", "0"], "--workers: expected at least 1, got 0"),
    ],
)
def test_wrong_options(engine, tmp_path, capsys, options, message):
    assert main(["triton-repository", str(tmp_path / "new/out"), "--engine", str(engine), *options]) == 2
    assert message in error_line(capsys)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"inputs": [{"name": "images", "shape": [2, 3, 64, 96], "dtype": "bfloat16"}]},
            "got bfloat16 for images",
        ),
        (
            {"profiles": {"images": {"min": [2, 3, 64, 96], "opt": [2, 3, 64, 96], "max": [4, 3, 64, 96]}}},
            "begins at 1",
        ),
    ],
)
def test_unfit_engines(engine, tmp_path, capsys, changed, message):
    path = engine.with_suffix(".json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert main(["triton-repository", str(tmp_path / "out"), "--engine", str(engine)]) == 2
    assert message in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_empty_path(engine, capsys):
    assert main(["triton-repository", "", "--engine", str(engine)]) == 2
    assert "error: Invalid value for OUT: expected a path, got ''" in error_line(capsys)


def test_file_that_is_no_engine(engine, tmp_path, capsys):
    engine.write_bytes(b"ONNX".ljust(100))
    assert main(["triton-repository", str(tmp_path / "out"), "--engine", str(engine)]) == 2
    assert f"error: --engine: {engine} is not a TensorRT engine" in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_nothing_half_written(engine, plugin, tmp_path, capsys):
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    assert main(["triton-repository", str(full), "--engine", str(engine)]) == 2
    assert "OUT: expected a new or empty folder" in error_line(capsys)
    assert main(["triton-repository", str(plugin / "out"), "--engine", str(engine)]) == 2
    assert f"error: OUT: expected a folder to write, got {plugin / 'out'}" in error_line(capsys)
    plugin.unlink()
    assert main(["triton-repository", str(tmp_path / "out"), "--engine", str(engine)]) == 1
    assert str(plugin) in error_line(capsys)
    plugin.mkdir()
    assert not (tmp_path / "out").exists() and [path.name for path in full.iterdir()] == ["file"]
