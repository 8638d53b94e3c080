"""Configurations of Triton's models in the text form of Protocol Buffers (config.pbtxt)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Enum(str):
    """A name without quotation marks, such as KIND_GPU."""


def to_text(message: Mapping[str, Any], indent: str = "") -> str:
    """Writes a message.

    Args:
        message: field by field. A list is a repeated field, a mapping a message. A map of Protocol Buffers is
            a list of {"key": …, "value": …}.
    """
    lines = []
    for name, value in message.items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, Mapping):
                lines.append(f"{indent}{name} {{\n{to_text(item, indent + '  ')}{indent}}}\n")
            else:
                text = item if isinstance(item, Enum) else json.dumps(item)
                lines.append(f"{indent}{name}: {text}\n")
    return "".join(lines)


def tensor(name: str, data_type: str, dims: list[int]) -> dict[str, Any]:
    """Returns a ModelInput or ModelOutput."""
    return {"name": name, "data_type": Enum(data_type), "dims": dims}


def map_of(entries: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the entries of a map."""
    return [{"key": key, "value": value} for key, value in entries.items()]
