"""The step of a batch job that runs the network: a table of pictures becomes a table of detections."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from codetr.detector.decoding import make_decoder
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions
from codetr.detector.pipeline import Pipeline, Processed, keep_collections_short
from codetr.detector.preprocess import ImageFile
from codetr.errors import one_line

COLUMNS = pa.schema(
    {
        "width": pa.int32(),  # pixels
        "height": pa.int32(),
        "boxes": pa.list_(pa.list_(pa.float32(), 4)),  # x1, y1, x2, y2 in pixels of the picture
        "scores": pa.list_(pa.float32()),
        "labels": pa.list_(pa.int32()),
        "names": pa.list_(pa.string()),
        "error": pa.string(),
    }
)
"""Columns of a result beside the picture's id. All but `error` are null for a picture with an error."""


class FindObjects:
    """Runs the detector's pipeline in an actor of Ray. Several threads may call it at the same time.

    Args:
        network: must be valid on the machine of the actor.
        options: arguments of `Detector.detect_batch`, checked.
        batch: pictures in one run of the network.
        id_column, bytes_column: of the tables.
    """

    def __init__(
        self,
        network: NetworkOptions,
        options: Mapping[str, Any],
        batch: int,
        id_column: str,
        bytes_column: str,
    ) -> None:
        detector = Detector(backend=network.make_backend(), labels=network.labels)
        detector.backend.load()
        decoder = make_decoder(detector.backend)
        ahead = decoder.batches_ahead(batch)
        self._pipeline = Pipeline(detector, options, decoder.start, batch=batch, ahead=ahead)
        if self._pipeline.contexts > 1:  # an engine
            self._pipeline.warm_up()
        self._id_column, self._bytes_column = id_column, bytes_column
        self._turn = threading.Lock()
        keep_collections_short()

    def __call__(self, table: pa.Table) -> pa.Table:
        """Maps rows of ids and files to rows of ids and `COLUMNS`."""
        ids, contents = table[self._id_column], table[self._bytes_column]
        pictures = (ImageFile(str(name), content) for name, content in zip(ids, _views(contents)))
        rows = [_row(done) for done in self._pipeline.run(self._in_turn(pictures))]
        found = pa.Table.from_pylist(rows, COLUMNS)
        # Ray hands over a chunk for each row, and would serialize each alone.
        return found.add_column(0, self._id_column, ids.combine_chunks())

    def _in_turn(self, pictures: Iterable[ImageFile]) -> Iterator[ImageFile]:
        """Lets a table begin once all pictures of the last one have begun.

        Tables that take turns at each picture would all end at the same time, and the network would wait for
        the next ones.
        """
        with self._turn:
            yield from pictures


def _views(column: pa.ChunkedArray) -> Iterator[memoryview]:
    """Yields the files of a binary column, an empty one for null.

    `as_py` would copy each file, and all threads of the actor would wait meanwhile.
    """
    kind = np.dtype(np.int64 if pa.types.is_large_binary(column.type) else np.int32)
    for chunk in column.fill_null(b"").chunks:
        _, offsets, data = chunk.buffers()
        ends = np.frombuffer(offsets, kind, len(chunk) + 1, chunk.offset * kind.itemsize).tolist()
        content = memoryview(data)
        yield from (content[begin:end] for begin, end in itertools.pairwise(ends))


def _row(done: Processed) -> dict[str, Any]:
    if done.error is not None:
        return {"error": one_line(done.error)}
    found = done.found
    return {
        "width": found.width,
        "height": found.height,
        "boxes": found.boxes_xyxy_px.tolist(),
        "scores": found.scores.tolist(),
        "labels": found.labels.tolist(),
        "names": found.names(),
    }
