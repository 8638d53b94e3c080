"""Writes a sweep's results.json, to which all sweeps of the same kind of machine add their cells."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_path.sweeping.cells import Cell
from onnx_path.sweeping.networks import Network
from trt_plugin.atomic_files import locked, write_json

RESULTS_VERSION = 1

_OF_NETWORK = ("parameters", "input")


class ResultsFile:
    """The results.json of a folder.

    Args:
        out: the folder.
        networks, planned: of this sweep. Other networks and cells in the file stay.
        machine, versions: of this sweep, see `onnx_path.sweeping.machine.describe_machine`. A file of another
            GPU or other versions is replaced.
    """

    def __init__(
        self,
        out: Path,
        networks: Sequence[Network],
        planned: Sequence[Cell],
        machine: Mapping[str, Any],
        versions: Mapping[str, Any],
    ) -> None:
        self._out, self._networks, self._machine, self._versions = out, networks, machine, versions
        self._planned = {cell.id for cell in planned}

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes this sweep's rows beside those of other sweeps, which may write at the same time."""
        with locked(self._out):
            earlier = self._read_earlier()
            cells = [*earlier["cells"], *rows]
            words = sys.argv[2:] if sys.argv[1:2] == ["sweep"] else sys.argv[1:]
            commands = [*earlier["command"].splitlines(), shlex.join(["codetr", "sweep", *words])]
            content = {
                "version": RESULTS_VERSION,
                "command": "\n".join(dict.fromkeys(commands)),
                "machine": self._machine,
                "versions": self._versions,
                "networks": [*earlier["networks"], *(_describe(x, cells) for x in self._networks)],
                "cells": cells,
            }
            write_json(self._out / "results.json", content, allow_nan=False)

    def _read_earlier(self) -> dict[str, Any]:
        """Returns what other sweeps measured in the folder and this one does not."""
        nothing = {"command": "", "networks": [], "cells": []}
        path = self._out / "results.json"
        if not path.is_file():
            return nothing
        content = json.loads(path.read_text(encoding="utf-8"))
        same_kind = (
            content["machine"]["gpu"] == self._machine["gpu"] and content["versions"] == self._versions
        )
        if content["version"] != RESULTS_VERSION or not same_kind:
            return nothing
        keys = {network.name: network.key for network in self._networks}
        networks = {
            x["name"]: x
            for x in content["networks"]
            if x["name"] not in keys or keys[x["name"]] == x.get("key")
        }
        return {
            "command": content["command"],
            "networks": [x for name, x in networks.items() if name not in keys],
            "cells": [
                x for x in content["cells"] if x["network"] in networks and x["id"] not in self._planned
            ],
        }


def _describe(network: Network, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a network's entry; its cells know the number of parameters and the input."""
    measured = [x for x in cells if x["network"] == network.name and x["status"] == "ok"]
    known = {field: next((x[field] for x in measured if x.get(field)), None) for field in _OF_NETWORK}
    return {**{x: getattr(network, x) for x in ("name", "source", "task", "weights", "key")}, **known}
