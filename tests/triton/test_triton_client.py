"""examples/triton_client.py against a server that checks requests by the ensemble's configuration."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.detector.detect_runs import ROOT

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor  # noqa: E402


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Finds a cup and nothing else. Anything but the file b"photo" is damaged."""

    def __init__(self, max_batch_size: int) -> None:
        self.max_batch_size = max_batch_size

    def ModelConfig(self, request, context):
        assert request.name == "street"
        return service_pb2.ModelConfigResponse(config={"max_batch_size": self.max_batch_size})

    def ModelInfer(self, request, context):
        (image,) = request.inputs
        assert (image.name, image.datatype) == ("image", "BYTES")
        assert list(image.shape) == ([1, 1] if self.max_batch_size else [1])
        if deserialize_bytes_tensor(request.raw_input_contents[0]).tolist() != [b"photo"]:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "image 0: damaged")
        found = {
            "boxes": np.float32([[[1, 2, 3, 4], [0, 0, 0, 0]]]),
            "scores": np.float32([[0.75, 0]]),
            "names": serialize_byte_tensor(np.array([[b"cup", b""]], dtype=object)),
        }
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        for wanted in request.outputs:
            array = found[wanted.name]
            datatype = "BYTES" if wanted.name == "names" else "FP32"
            shape = [1, 2, 4] if wanted.name == "boxes" else [1, 2]
            response.outputs.add(name=wanted.name, datatype=datatype, shape=shape)
            response.raw_output_contents.append(array.tobytes() if datatype == "FP32" else array.item())
        return response


@pytest.fixture(params=[0, 8])
def address(request) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Server(request.param), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_client(address, tmp_path):
    def run(content: bytes, *options: str) -> subprocess.CompletedProcess:
        (tmp_path / "photo.jpg").write_bytes(content)
        command = [sys.executable, ROOT / "examples/triton_client.py", tmp_path / "photo.jpg"]
        command += ["--url", address, "--model", "street", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run(b"photo")
    assert (done.returncode, done.stdout) == (0, "0.750  cup  1.0, 2.0, 3.0, 4.0\n"), done.stderr
    assert run(b"photo", "--threshold", "0.8").stdout == ""
    done = run(b"other")
    assert done.returncode == 1 and "image 0: damaged" in done.stderr
