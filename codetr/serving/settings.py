"""Settings of the server: options of `codetr serve`, and arguments in the configuration of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group
from cyclopts.types import PositiveFloat, PositiveInt
from pydantic import ConfigDict, TypeAdapter

from codetr.cli.argument_types import Parameter
from codetr.detector.network_options import NetworkOptions
from codetr.errors import ArgumentError


@Parameter(name="*", group=Group("Limits", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    max_bytes: Annotated[PositiveInt, Parameter(metavar="N")] = 32 * 1024 * 1024
    """Bytes of a request's body."""
    max_pixels: Annotated[PositiveInt, Parameter(metavar="N")] = 50_000_000
    """Pixels of an image, as its header says."""
    max_images: Annotated[PositiveInt, Parameter(metavar="N")] = 16
    """Images of a request."""
    queue: Annotated[PositiveInt, Parameter(metavar="N")] = 64
    """Images of each replica that wait or run. The server refuses more."""
    deadline: Annotated[PositiveFloat, Parameter(metavar="S")] = 30.0
    """Seconds to receive the body of a request, and then seconds to answer it."""

    def __post_init__(self) -> None:
        if self.queue < self.max_images:
            problem = f"expected at least the {self.max_images} of --max-images, got {self.queue}"
            raise ArgumentError("queue", problem)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of the application.

    Attributes:
        network: its files must be at the same path on every node.
        batch: pictures in one run of the network. Default: what an exported file allows, else 8.
        wait_ms: milliseconds that an incomplete batch waits for more pictures.
        replicas: processes with a network, one on each GPU.
        gateways: processes that take requests. Default: as many.
        gpu: whether each replica takes a GPU.
        api_key_file: text file of accepted keys, one a line. Default: no key is needed.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    network: NetworkOptions = field(default_factory=NetworkOptions)
    limits: Limits = field(default_factory=Limits)
    batch: int | None = None
    wait_ms: float = 2.0
    replicas: int = 1
    gateways: int | None = None
    gpu: bool = False
    api_key_file: Path | None = None

    @classmethod
    def from_json(cls, arguments: Any) -> Settings:
        """Parses what `to_json` wrote; raises `pydantic.ValidationError`."""
        return TypeAdapter(cls).validate_python(arguments)

    def to_json(self) -> dict[str, Any]:
        """Returns the settings that differ from their defaults, as JSON types."""
        return TypeAdapter(type(self)).dump_python(self, mode="json", exclude_defaults=True)

    def api_keys(self) -> tuple[bytes, ...]:
        """Reads the accepted keys.

        Raises:
            ArgumentError: the file cannot be read, has no key, or has a line of several words.
        """
        if self.api_key_file is None:
            return ()
        try:
            lines = [line.split() for line in self.api_key_file.read_bytes().splitlines()]
        except OSError as error:
            problem = f"{self.api_key_file} cannot be read ({error.strerror})"
            raise ArgumentError("api_key_file", problem) from error
        for number, words in enumerate(lines, 1):
            if len(words) > 1:  # such as a comment, whose words must not become keys
                problem = f"got {len(words)} words in line {number} of {self.api_key_file}"
                raise ArgumentError("api_key_file", f"expected a key a line, {problem}")
        keys = tuple(words[0] for words in lines if words)
        if not keys:
            raise ArgumentError("api_key_file", f"expected a key a line, got none in {self.api_key_file}")
        return keys
