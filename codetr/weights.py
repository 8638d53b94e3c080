"""Weights by name or URL: from the package, or downloaded once, verified and cached. Imports no Torch.

The cache is `$CODETR_CACHE`, else `~/.cache/codetr`.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import urllib.parse
from pathlib import Path

from codetr.config import Config, config_file, load_config
from codetr.errors import ArgumentError, one_line
from trt_plugin.atomic_files import new_folder

DEMO = "co_dino_demo"
"""Name of the model in the package, for the twenty classes of `tools.scenes`."""

_UPSTREAM = "https://download.openmmlab.com/mmdetection/v3.0/codetr"

KNOWN_WEIGHTS: dict[str, Path | str] = {
    DEMO: Path(__file__).parent / "demo" / f"{DEMO}.safetensors",
    "co_dino_swin_l": f"{_UPSTREAM}/co_dino_5scale_swin_large_16e_o365tococo-614254c9.pth",
    "co_dino_r50": f"{_UPSTREAM}/co_dino_5scale_r50_1x_coco-7481f903.pth",
}
"""Published weights by the name of their configuration: a file of the package, or upstream's URL."""


def model_config(model: str | os.PathLike) -> Config:
    """Loads the configuration that an argument `model` names, see `codetr.load_config`.

    Raises:
        ArgumentError: `model` names no configuration.
    """
    try:
        return load_config(model)
    except (ValueError, OSError) as error:
        raise ArgumentError("model", one_line(error)) from error


def choose_weights(model: object, config: Config, weights: str | os.PathLike | None) -> str:
    """Checks the argument `weights`: a known name, a URL or a file.

    The default is the safetensors file beside the model's configuration, as in the folder of a run, else the
    name of the published weights.

    Args:
        model: what `codetr.load_config` takes, or a configuration.

    Raises:
        ArgumentError: `weights` is none of these, or it is None and the model has no default.
    """
    known = ", ".join(KNOWN_WEIGHTS)
    chosen = weights
    if weights is None and isinstance(model, (str, os.PathLike)):
        beside = config_file(model).with_suffix(".safetensors")
        chosen = beside if beside.is_file() else None
    if chosen is None and config.name in KNOWN_WEIGHTS:
        chosen = config.name
    if chosen is None:
        name = config.name if isinstance(model, Config) else model
        raise ArgumentError(
            "weights", f"expected weights: none lie beside {name}, which is none of {known}; got none"
        )
    chosen = str(chosen)
    if chosen not in KNOWN_WEIGHTS and not is_url(chosen) and not Path(chosen).is_file():
        raise ArgumentError("weights", f"expected a file, a URL, or one of {known}, got {chosen!r}")
    return chosen


def is_url(source: object) -> bool:
    """Whether weights are given as a URL."""
    return isinstance(source, str) and source.startswith(("https://", "http://", "file://"))


def cache_folder() -> Path:
    """Returns the folder of downloads."""
    return Path(os.environ.get("CODETR_CACHE") or Path.home() / ".cache" / "codetr")


def weights_file(source: str | os.PathLike) -> Path:
    """Returns the file of weights: the one that `fetch` finds, or the caller's own, which may be missing.

    Args:
        source: a name of `KNOWN_WEIGHTS`, a URL or a file. A file precedes a name.

    Raises:
        ValueError: see `fetch`.
    """
    known = source in KNOWN_WEIGHTS and not Path(source).is_file()
    return fetch(source) if known or is_url(source) else Path(source)


def fetch(source: str) -> Path:
    """Finds weights in the package or the cache, or downloads them into the cache.

    Args:
        source: a name of `KNOWN_WEIGHTS`, or a URL. A file name that ends in `-<8 or more hexadecimal
            digits>` states the beginning of the file's SHA-256.

    Returns:
        The file's path.

    Raises:
        ValueError: the download failed, or the file has another hash. No file stays behind.
    """
    url = KNOWN_WEIGHTS.get(source, source)
    if isinstance(url, Path):
        return url
    name = Path(urllib.parse.urlsplit(url).path).name
    match = re.search(r"-([0-9a-f]{8,64})\.\w+$", name)
    # URLs without a hash in their name may share the name, so the hash of the URL tells them apart.
    path = cache_folder() / (name if match else f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{name}")
    if path.is_file():
        return path  # only verified files are moved here
    from torch.hub import download_url_to_file

    terminal = sys.stderr.isatty()
    try:
        with new_folder(path.parent):
            download_url_to_file(url, str(path), match[1] if match else None, progress=terminal)
    except Exception as error:  # urllib, http.client and torch.hub have errors of many classes
        raise ValueError(
            f"{url}: download to {path.parent} failed ({one_line(error)}); --weights takes a local file too"
        ) from None
    if not terminal:
        print(f"downloaded {path}, {path.stat().st_size / 2**20:.0f} MiB", file=sys.stderr, flush=True)
    return path
