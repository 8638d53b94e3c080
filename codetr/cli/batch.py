"""The command `codetr batch`. It imports Ray when it runs."""

from __future__ import annotations

from typing import Annotated

from codetr.batch.job import checkpoint_of, ray_session, run_job
from codetr.batch.source import BYTES, PATH, Place, Source
from codetr.cli.argument_types import Parameter
from codetr.cli.detection_options import DetectionOptions
from codetr.cli.program import complain
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions, for_ray
from codetr.errors import ArgumentError, UsageError, one_line

_NETWORK, _DETECTIONS = NetworkOptions(), DetectionOptions()


def batch(
    source: Annotated[str, Parameter(metavar="SOURCE")],
    out: Annotated[str, Parameter(metavar="OUT")],
    /,
    *,
    resume: bool = False,
    batch: Annotated[int, Parameter(metavar="N")] = 1,
    network: NetworkOptions = _NETWORK,
    detections: DetectionOptions = _DETECTIONS,
    address: Annotated[str | None, Parameter(metavar="HOST:PORT")] = None,
    id_column: Annotated[str, Parameter(metavar="NAME")] = PATH,
    bytes_column: Annotated[str, Parameter(metavar="NAME")] = BYTES,
    part_rows: Annotated[int, Parameter(metavar="N")] = 1000,
) -> int:
    """Detect objects in any number of pictures, on every GPU of a machine or cluster, into Parquet files.

    A row of OUT has the picture's path or id, its size, the boxes, scores, labels and class names, or the
    error of a picture that cannot be read. Ray Data does the work.

    ```
    codetr batch photos found --engine model.engine --batch 8
    codetr batch s3://bucket/photos s3://bucket/found --engine model.engine --batch 8 --resume
    codetr batch photos.parquet found --id-column key --onnx model.onnx --device cpu
    codetr batch /shared/photos /shared/found --engine /shared/model.engine --address head:6379
    ```

    Exit status: 0, every picture has a row; 1, a failure; 2, wrong options or no pictures.

    Args:
        source: Folder of pictures or Parquet files, with its subfolders, or one file. Also a URI, such as
            s3://…. Beside pictures, Parquet files are left out.
        out: New or empty folder for the Parquet files, also a URI. OUT.checkpoint beside it keeps the ids
            that are done.
        resume: Go on with a job that was interrupted, or to which pictures were added: skip those with a row
            in OUT.
        batch: Pictures in one run of the network.
        address: A Ray cluster. Default: Ray starts on this machine.
        id_column: Of Parquet files, the column with a unique id of each picture.
        bytes_column: Of Parquet files, the column with the pictures' files.
        part_rows: Rows of a Parquet file in OUT. An interrupted job loses at most the parts in progress.
    """
    network = for_ray(network)
    detector = Detector(backend=network.make_backend(), labels=network.labels)
    options = detections.for_detector(detector, batch)
    if part_rows < 1:
        raise ArgumentError("part_rows", f"expected at least 1, got {part_rows}")
    results = Place.parse("OUT", out)
    pictures = Source.find(Place.parse("SOURCE", source), id_column, bytes_column)
    if pictures.left_out:
        note = f"Parquet files beside pictures are left out: {pictures.left_out} in {source}"
        complain("note", note, "codetr")
    try:
        written = results.files() or checkpoint_of(results).files()
    except OSError as error:
        raise UsageError(f"OUT: expected a folder, got {out} ({one_line(error)})") from error
    if written and not resume:
        raise UsageError(f"OUT: expected a new or empty folder, or --resume, got {out} and its checkpoint")
    with ray_session(address):
        done = run_job(pictures, results, network, options, batch=batch, part_rows=part_rows)
    print(f"{done.new} pictures in {done.seconds:.1f} s, {done.new / done.seconds:.1f} a second")
    print(f"{out} has {done.rows} pictures, {done.errors} of them with an error")
    return 0
