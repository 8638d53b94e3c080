"""Weights by name or URL: from the package, or downloaded once, verified, cached. No Torch.

The cache is `$CODETR_CACHE`, else `~/.cache/codetr`.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from codetr.config import Config, config_file, load_config
from codetr.errors import ArgumentError, one_line
from trt_plugin.atomic_files import atomic_write

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Weights:
    """A published checkpoint.

    Attributes:
        name: the configuration it belongs to.
        url: where upstream keeps it; empty if it comes with the package.
        sha256_prefix: the first hexadecimal digits of a download's SHA-256.
        file: where it lies in the package, if it does.
    """

    name: str
    url: str = ""
    sha256_prefix: str = ""
    file: Path | None = None


DEMO = "co_dino_demo"
"""The model that comes with the package: it knows the twenty classes of `tools.scenes`."""

_UPSTREAM = "https://download.openmmlab.com/mmdetection/v3.0/codetr"

KNOWN_WEIGHTS = {
    weights.name: weights
    for weights in (
        Weights(DEMO, file=Path(__file__).parent / "demo" / f"{DEMO}.safetensors"),
        Weights(
            "co_dino_swin_l",
            f"{_UPSTREAM}/co_dino_5scale_swin_large_16e_o365tococo-614254c9.pth",
            "614254c9",
        ),
        Weights("co_dino_r50", f"{_UPSTREAM}/co_dino_5scale_r50_1x_coco-7481f903.pth", "7481f903"),
    )
}


def default_weights(model: object, config: Config) -> str | None:
    """Names the weights of a model where a caller gives none.

    Args:
        model: what `codetr.load_config` takes, or a configuration.
        config: the model's.

    Returns:
        The safetensors file beside the model's configuration, as in the folder of a run; else the name of the
        published weights; None if there are neither.
    """
    if isinstance(model, (str, os.PathLike)):
        beside = config_file(model).with_suffix(".safetensors")
        if beside.is_file():
            return str(beside)
    return config.name if config.name in KNOWN_WEIGHTS else None


def model_config(model: str | os.PathLike) -> Config:
    """Loads the configuration that an argument `model` names, see `codetr.load_config`.

    Raises:
        ArgumentError: `model` names no configuration.
    """
    try:
        return load_config(model)
    except (ValueError, OSError) as error:
        raise ArgumentError("model", one_line(error)) from error


def choose_weights(model: str | os.PathLike, weights: str | None) -> str:
    """Checks the argument `weights`: a known name, a URL or a file; default: `default_weights`.

    Raises:
        ArgumentError: `weights` is none of these, or it is None and the model has no default.
    """
    config, known = model_config(model), ", ".join(KNOWN_WEIGHTS)
    if weights is None:
        weights = default_weights(model, config)
        if weights is None:
            raise ArgumentError(
                "weights", f"expected weights: none lie beside {model}, which is none of {known}; got none"
            )
    elif weights not in KNOWN_WEIGHTS and not is_url(weights) and not Path(weights).is_file():
        raise ArgumentError("weights", f"expected a file, a URL, or one of {known}, got {weights!r}")
    return weights


def is_url(source: object) -> bool:
    return isinstance(source, str) and source.startswith(("https://", "http://", "file://"))


def cache_folder() -> Path:
    return Path(os.environ.get("CODETR_CACHE") or Path.home() / ".cache" / "codetr")


def fetch(source: str, progress: bool = True) -> Path:
    """Finds weights in the package or the cache, or downloads them into the cache.

    Args:
        source: a name of `KNOWN_WEIGHTS`, or a URL. A file name that ends in `-<8 or more hexadecimal
            digits>` states the SHA-256 that the file must begin with.
        progress: draw a bar on stderr; where that is no terminal, print a line when the file is there.

    Returns:
        The file's path.

    Raises:
        ValueError: unknown name, or no URL; the download failed, or the file is not what its hash says.
            Nothing stays behind.
    """
    if source in KNOWN_WEIGHTS:
        packaged = KNOWN_WEIGHTS[source].file
        if packaged is not None:
            if not packaged.is_file():
                raise ValueError(f"{packaged}: missing, the installation is not whole")
            return packaged
        url, prefix = KNOWN_WEIGHTS[source].url, KNOWN_WEIGHTS[source].sha256_prefix
    elif is_url(source):
        try:
            url, prefix = source, _hash_prefix(source)
        except ValueError as error:
            raise ValueError(f"weights {source!r}: not a URL ({error})") from None
    else:
        raise ValueError(f"weights {source!r}: expected one of {', '.join(KNOWN_WEIGHTS)}, or a URL")
    name = Path(urllib.parse.urlsplit(url).path).name
    # URLs without a hash in their name may share the name: the URL itself keeps them apart.
    path = cache_folder() / (name if prefix else f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{name}")
    if path.is_file():
        return path  # files appear here only after they were verified
    try:
        with atomic_write(path) as temporary:
            digest = _download(url, temporary, name, bar=progress and sys.stderr.isatty())
            if not digest.startswith(prefix):
                raise ValueError(
                    f"{url}: the file's SHA-256 begins with {digest[: len(prefix)]}, not {prefix}: it is "
                    "damaged or another file"
                )
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error  # of a URLError: words or another error
        reason = getattr(reason, "strerror", None) or reason
        raise ValueError(
            f"{url}: download to {path.parent} failed ({reason}); a file that you have goes as well"
        ) from None
    if progress and not sys.stderr.isatty():
        print(f"downloaded {path}, {path.stat().st_size / 2**20:.0f} MiB", file=sys.stderr, flush=True)
    return path


def _hash_prefix(url: str) -> str:
    match = re.search(r"-([0-9a-f]{8,64})\.\w+$", urllib.parse.urlsplit(url).path)
    return match[1] if match else ""


def _download(url: str, path: Path, name: str, bar: bool) -> str:
    """Returns the SHA-256 of what was written."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=60) as response, path.open("wb") as file:
        length = response.headers.get("Content-Length") or ""
        total, done = int(length) if length.isdecimal() else 0, 0
        try:
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if bar:
                    _draw_progress(name, done, total)
        finally:
            if bar and done:
                print(file=sys.stderr)
    if total and done != total:
        raise urllib.error.URLError(f"got {done} of {total} bytes")
    return digest.hexdigest()


def _draw_progress(name: str, done: int, total: int) -> None:
    mebibytes = f"{done / 2**20:.0f}"
    if total:
        filled = 30 * done // total
        bar = "#" * filled + "-" * (30 - filled)
        print(f"\r{name} [{bar}] {mebibytes} / {total / 2**20:.0f} MiB", end="", file=sys.stderr, flush=True)
    else:
        print(f"\r{name} {mebibytes} MiB", end="", file=sys.stderr, flush=True)
