"""The pictures of a batch job and the folder of its results: local, or in S3 and other object stores."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from codetr.detector.preprocess import IMAGE_SUFFIXES
from codetr.errors import ArgumentError, UsageError, one_line

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

PATH, BYTES = "path", "bytes"
"""Columns of Ray Data's `read_binary_files`."""


@dataclass(frozen=True)
class Place:
    """A file or folder.

    Attributes:
        given: as the caller wrote it.
        path: in its file system, without "s3://".
    """

    given: str
    path: str
    filesystem: FileSystem

    @classmethod
    def parse(cls, argument: str, given: str) -> Place:
        """Reads a path or a URI such as s3://bucket/folder.

        Raises:
            UsageError: naming the argument.
        """
        from pyarrow import fs

        if not given:
            raise UsageError(f"{argument}: expected a path or URI, got ''")
        if re.match(r"[a-z][a-z0-9+.-]*://", given) is None:
            return cls(given, os.path.abspath(given), fs.LocalFileSystem())
        try:
            filesystem, path = fs.FileSystem.from_uri(given)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{argument}: expected a path or URI, got {given} ({one_line(error)})"
            ) from error
        return cls(given, path.rstrip("/"), filesystem)

    def files(self) -> list[FileInfo]:
        """Returns the files in the folder and its subfolders, sorted; none of a missing folder.

        Raises:
            OSError: the folder cannot be read.
        """
        from pyarrow import fs

        found = self.filesystem.get_file_info(
            fs.FileSelector(self.path, allow_not_found=True, recursive=True)
        )
        return sorted((info for info in found if info.is_file), key=lambda info: info.path)


@dataclass(frozen=True)
class Source:
    """The files to read: pictures, or Parquet files with a picture in each row.

    Attributes:
        id_column: the column that names a picture.
        bytes_column: the column of its file's content.
        left_out: number of Parquet files beside pictures, which are not read.
    """

    paths: list[str]
    filesystem: FileSystem
    parquet: bool
    id_column: str = PATH
    bytes_column: str = BYTES
    left_out: int = 0

    @classmethod
    def find(cls, place: Place, id_column: str, bytes_column: str) -> Source:
        """Lists the files of a folder, or takes a single one.

        Raises:
            UsageError: there are none, they cannot be read, or Parquet lacks a column.
            ArgumentError: a column is given for pictures.
        """
        from pyarrow.fs import FileType

        try:
            info = place.filesystem.get_file_info(place.path)
            if info.type == FileType.NotFound:
                raise UsageError(f"SOURCE: {place.given}: no such file or folder")
            names = [info.path] if info.is_file else [file.path for file in place.files()]
        except OSError as error:
            raise UsageError(f"SOURCE: {place.given} cannot be read ({one_line(error)})") from error
        visible = [name for name in names if not PurePosixPath(name).name.startswith(".")]
        pictures = [name for name in visible if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES]
        tables = [name for name in visible if name.lower().endswith(".parquet")]
        if pictures:
            columns = ("id_column", id_column, PATH), ("bytes_column", bytes_column, BYTES)
            for argument, column, usual in columns:
                if column != usual:
                    problem = f"expected none for pictures, as in {place.given}, got {column}"
                    raise ArgumentError(argument, problem)
            return cls(pictures, place.filesystem, parquet=False, left_out=len(tables))
        if not tables:
            kinds = ", ".join(sorted(IMAGE_SUFFIXES))
            raise UsageError(
                f"SOURCE: expected pictures ({kinds}) or Parquet files, got {place.given} with none"
            )
        source = cls(tables, place.filesystem, True, id_column, bytes_column)
        source._check_columns()
        return source

    def _check_columns(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            schema = parquet.read_schema(self.paths[0], filesystem=self.filesystem)
        except (OSError, pa.ArrowInvalid) as error:
            raise UsageError(f"SOURCE: {self.paths[0]} cannot be read ({one_line(error)})") from error
        for column in (self.id_column, self.bytes_column):
            if column not in schema.names:
                problem = f"expected a column {column}, got {', '.join(schema.names)}"
                raise UsageError(f"SOURCE: {self.paths[0]}: {problem}")
        kind = schema.field(self.bytes_column).type
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            problem = f"expected binary data in the column {self.bytes_column}, got {kind}"
            raise UsageError(f"SOURCE: {self.paths[0]}: {problem}")

    def without(self, done: set[Any]) -> Source:
        """Leaves out pictures that need not be read. Rows of Parquet stay."""
        if self.parquet:
            return self
        return replace(self, paths=[path for path in self.paths if path not in done])

    def read(self, rows: int) -> Any:
        """Returns a `ray.data.Dataset` with the two columns.

        Args:
            rows: pictures that a task reads. Ray's own number is no multiple of the network's batch.
        """
        import ray

        if self.parquet:
            columns = [self.id_column, self.bytes_column]
            return ray.data.read_parquet(self.paths, filesystem=self.filesystem, columns=columns)
        tasks = -(-len(self.paths) // rows)
        return ray.data.read_binary_files(
            self.paths, filesystem=self.filesystem, include_paths=True, override_num_blocks=tasks
        )
