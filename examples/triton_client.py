"""Detects objects in a photo by a Triton server with a repository of `codetr triton-repository`:

pip install 'tritonclient[grpc]'
python examples/triton_client.py photo.jpg --url localhost:8001 --threshold 0.5
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput


def detect(client: InferenceServerClient, photo: bytes, model: str) -> list[tuple[str, float, list[float]]]:
    """Sends a photo; returns (class name, score, [x1, y1, x2, y2] in pixels), the best score first.

    Args:
        photo: the content of a JPEG, PNG, WebP, BMP or TIFF file.
        model: name of the ensemble.

    Raises:
        tritonclient.utils.InferenceServerException: the photo is damaged, or the server has no such model.
    """
    # A model with batching takes [images, 1], one without [images].
    batching = client.get_model_config(model).config.max_batch_size > 0
    files = np.array([photo], dtype=object).reshape([1, 1] if batching else [1])
    image = InferInput("image", list(files.shape), "BYTES")
    image.set_data_from_numpy(files)
    wanted = [InferRequestedOutput(name) for name in ("names", "scores", "boxes")]
    answer = client.infer(model, [image], outputs=wanted)
    names, scores, boxes = (answer.as_numpy(name.name())[0].tolist() for name in wanted)
    # Rows behind the last detection have no name.
    return [(name.decode(), score, box) for name, score, box in zip(names, scores, boxes) if name]


def main() -> None:
    parser = argparse.ArgumentParser(description="Detect objects in a photo by a Triton server.")
    parser.add_argument("photo", type=Path)
    parser.add_argument("--url", default="localhost:8001", help="host and port of gRPC")
    parser.add_argument("--model", default="codetr")
    parser.add_argument("--threshold", type=float, default=0.3, help="least score")
    options = parser.parse_args()
    client = InferenceServerClient(options.url)
    for name, score, box in detect(client, options.photo.read_bytes(), options.model):
        if score >= options.threshold:
            print(f"{score:.3f}  {name}  {', '.join(f'{side:.1f}' for side in box)}")


if __name__ == "__main__":
    main()
