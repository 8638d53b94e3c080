"""Runs a batch job on Ray Data: read, find objects on every GPU, write Parquet.

Ray Data distributes the work, keeps memory bounded, and remembers which pictures are written. A kill at any
moment loses the pictures in flight alone: Ray Data writes their ids, then the part, and then commits the ids.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from codetr.batch.source import Place, Source
from codetr.detector.network_options import NetworkOptions, ray_gpus
from codetr.errors import ArgumentError, one_line

_CONNECT_S = 5.0  # to the head of a cluster
_CALLS = 4  # tables that an actor works on, so that the network never waits for the next one
_CALL_ROWS = 64  # least size of such a table. Its last run of the network may lack pictures


@dataclass(frozen=True)
class Summary:
    """Counts of a job's results.

    Attributes:
        rows: pictures in the results.
        errors: pictures among them that could not be read.
        new: pictures among them that this run wrote.
        seconds: time of this run, with the loading of the network.
    """

    rows: int
    errors: int
    new: int
    seconds: float


@contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Starts Ray on this machine, or connects to a cluster, for the length of the block.

    In the block SIGTERM raises KeyboardInterrupt. With Ray's handler the process aborts and leaves actors.

    Args:
        address: "auto", HOST:PORT or ray://HOST:PORT. None starts Ray.

    Raises:
        ArgumentError: there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray.data

    _check_reachable(address)
    on_terminate = signal.getsignal(signal.SIGTERM)
    try:
        try:
            # A dashboard takes seconds to start, and the command does not print its address.
            ray.init(
                address or "local",
                include_dashboard=None if address else False,
                logging_level="CRITICAL",
                log_to_driver=False,
            )
        except (ConnectionError, ValueError) as error:
            raise _no_cluster(address, error) from error
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # an error is raised, too
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        yield
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, on_terminate)


def _check_reachable(address: str | None) -> None:
    """Ray itself tries for more than a minute, and then ends the process."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str | None, error: Exception) -> ArgumentError:
    return ArgumentError("address", f"expected a Ray cluster, got {address} ({one_line(error)})")


def run_job(
    source: Source,
    out: Place,
    network: NetworkOptions,
    options: Mapping[str, Any],
    *,
    batch: int,
    part_rows: int,
    step: type | None = None,
) -> Summary:
    """Detects objects in the pictures that `out` lacks, in a `ray_session`.

    Args:
        options: arguments of `Detector.detect_batch`, checked.
        batch: pictures in one run of the network.
        part_rows: least number of rows of a Parquet file, but the last.
        step: a subclass of `FindObjects` to run instead of it.

    Raises:
        ArgumentError: the network needs a GPU, and Ray has none; or `out` has ids of another column.
        RuntimeError: the network cannot be loaded or fails.
    """
    started = time.perf_counter()
    gpus = ray_gpus(network)
    done = _done(checkpoint_of(out), source.id_column)
    source = source.without(done)
    if source.paths:
        _write(source, out, network, options, batch=batch, part_rows=part_rows, gpus=gpus, step=step)
    rows, errors = _count(out)
    return Summary(rows, errors, rows - len(done), time.perf_counter() - started)


def _write(
    source: Source,
    out: Place,
    network: NetworkOptions,
    options: Mapping[str, Any],
    *,
    batch: int,
    part_rows: int,
    gpus: int,
    step: type | None,
) -> None:
    from ray.data import ActorPoolStrategy
    from ray.data.checkpoint import CheckpointConfig
    from ray.exceptions import RayError

    from codetr.batch.find_objects import FindObjects

    rows = -(-_CALL_ROWS // batch) * batch
    pictures = source.read(rows)
    pictures.context.enable_progress_bars = sys.stderr.isatty()
    pictures.context.checkpoint_config = CheckpointConfig(
        source.id_column,
        checkpoint_of(out).path,
        override_filesystem=out.filesystem,
        delete_checkpoint_on_success=False,
    )
    found = pictures.map_batches(
        step or FindObjects,
        fn_constructor_args=(network, options, batch, source.id_column, source.bytes_column),
        batch_size=rows,
        batch_format="pyarrow",
        # An actor takes no core from Ray's count: reading and writing must go on beside it on few cores.
        num_cpus=0,
        num_gpus=1 if gpus else 0,
        compute=ActorPoolStrategy(
            size=gpus or 1, max_concurrent_calls_per_actor=_CALLS, enable_true_multi_threading=True
        ),
    )
    try:
        found.write_parquet(out.path, filesystem=out.filesystem, min_rows_per_file=part_rows)
    except RayError as error:
        raise RuntimeError(_reason(error)) from error


def checkpoint_of(out: Place) -> Place:
    """Returns the folder beside the results in which Ray Data keeps the ids of written pictures."""
    return replace(out, given=f"{out.given.rstrip('/')}.checkpoint", path=f"{out.path}.checkpoint")


def _done(checkpoint: Place, id_column: str) -> set[Any]:
    """Returns the ids of written pictures. Ids without a commit are of parts that Ray Data will delete.

    Raises:
        ArgumentError: the ids are those of another column.
    """
    from pyarrow import parquet

    committed = (file.path for file in checkpoint.files() if not file.path.endswith(".pending.parquet"))
    done = set()
    for path in committed:
        table = parquet.read_table(path, filesystem=checkpoint.filesystem)
        if id_column not in table.column_names:
            known = ", ".join(table.column_names)
            raise ArgumentError("id_column", f"expected {known}, as in {checkpoint.given}, got {id_column}")
        done.update(table[id_column].to_pylist())
    return done


def _count(out: Place) -> tuple[int, int]:
    """Returns the number of rows, and of those with an error."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    parts = [file.path for file in out.files() if file.path.endswith(".parquet")]
    schema = pa.schema({"error": pa.string()})  # also of no parts
    rows = ds.dataset(parts, schema, filesystem=out.filesystem, format="parquet")
    return rows.count_rows(), rows.count_rows(filter=ds.field("error").is_valid())


def _reason(error: Exception) -> str:
    """Returns the first error of a task. Ray hands it on as the text of a traceback."""
    lines = str(error).partition("\n\nThe above exception")[0].splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    return " ".join(lines[frames[-1] + 1 if frames else 0 :])
