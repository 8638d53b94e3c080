"""Compiles CUDA sources for the CPU: as plain C++, by g++, with the emulator of this folder.

CUDA's headers come from CUDA_HOME, the Python packages that bring nvcc (`nvidia-cuda-*`), or /usr/local/cuda.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[2] / "kernels"

FLAGS = (
    "-std=c++20",
    "-fPIC",
    "-g1",  # line numbers for messages
    # CUDA sources read the same bits through several types, which nvcc accepts.
    "-fno-strict-aliasing",
    # Every a * b + c is two roundings, on all processors.
    "-ffp-contract=off",
    # Two libraries in one process keep their own variables.
    "-fno-gnu-unique",
)
TRAPS = (
    # Large frames touch all of their pages, and so the one that ends a stack.
    "-fstack-clash-protection",
    "-fsanitize=alignment,bounds,object-size,shift,signed-integer-overflow,integer-divide-by-zero",
    "-fsanitize-undefined-trap-on-error",
)
PATTERN = "-ftrivial-auto-var-init=pattern"
"""Variables begin with a pattern, not with what the last thread left on the stack (g++ 12 and newer)."""

HEADERS = ("cuda_runtime_api.h", "cuda_fp16.h", "cuda_bf16.h", "crt/host_defines.h", "nv/target")
EMULATOR = ("emulator.cpp", "guarded.cpp")


class BuildError(RuntimeError):
    """The sources do not compile; the message is the compiler's."""


def compiler() -> str | None:
    """The C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "g++"))


def include_folders() -> list[Path] | None:
    """Folders that have all of HEADERS between them, or None."""
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [[Path(home, "include")] for home in homes]
    candidates += [sorted(packages.glob("*/include")), [Path("/usr/local/cuda/include")]]
    for roots in candidates:
        # CUDA 13 keeps the C++ library, of which nv/target is part, in a folder of its own.
        folders = [folder for root in roots for folder in (root, root / "cccl")]
        found = [folder for folder in folders if any((folder / header).is_file() for header in HEADERS)]
        if all(any((folder / header).is_file() for folder in found) for header in HEADERS):
            return found
    return None


def missing() -> str | None:
    """Returns the reason why the sources cannot be compiled and run, or None."""
    if platform.machine() != "x86_64":
        return f"the emulator switches stacks of x86-64, not of {platform.machine()}"
    if compiler() is None:
        return f"no C++ compiler: {os.environ.get('CXX', 'g++')}"
    if include_folders() is None:
        return "no CUDA headers: set CUDA_HOME, or pip install 'codetr-tensorrt[nvcc]'"
    return None


@functools.cache
def _has_pattern() -> bool:
    command = [compiler(), PATTERN, "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


def _command(source: Path) -> list[str]:
    """The compiler's arguments for one source, without its output."""
    arguments = [f"-I{HERE}", f"-I{KERNELS / 'include'}"]
    arguments += [f"-isystem{folder}" for folder in include_folders()]
    if source.suffix != ".cu":
        return [compiler(), *FLAGS, "-O2", *arguments, "-c", str(source)]
    pattern = [PATTERN] if _has_pattern() else []
    emulated = ["-x", "c++", "-include", "cuda.h", "-Wno-unknown-pragmas"]
    return [compiler(), *FLAGS, *TRAPS, *pattern, "-O1", *arguments, *emulated, "-c", str(source)]


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise BuildError(f"{' '.join(command)}\n{result.stderr[:8000]}")


def build(sources: Sequence[Path], cache: Path) -> Path:
    """Compiles sources and the emulator into a shared library, unless the cache has it.

    Args:
        sources: .cu files, which run on the emulator, and .cpp files.
        cache: a folder to keep the library in, under the name of the last source; processes may share it.

    Returns:
        The library.

    Raises:
        BuildError: with the compiler's message.
    """
    library = cache / f"{sources[-1].stem}.so"
    sources = [*sources, *(HERE / name for name in EMULATOR)]
    commands = [_command(source) for source in sources]
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True).stdout
    hashed = hashlib.sha256(repr((commands, version)).encode())
    headers = [*HERE.glob("*.h"), *(KERNELS / "include").rglob("*.*h")]
    for path in sorted({*sources, *headers}):
        hashed.update(path.read_bytes())
    cache.mkdir(parents=True, exist_ok=True)
    with open(library.with_suffix(".sha256"), "a+") as made_of:
        fcntl.flock(made_of, fcntl.LOCK_EX)  # released when the file is closed
        made_of.seek(0)
        if made_of.read() != hashed.hexdigest() or not library.exists():
            _compile(sources, commands, library)
            made_of.truncate(0)
            made_of.write(hashed.hexdigest())
    return library


def _compile(sources: Sequence[Path], commands: Sequence[list[str]], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects = [str(Path(folder, f"{index}_{source.stem}.o")) for index, source in enumerate(sources)]
        # The large ones first.
        jobs = sorted(zip(commands, objects, strict=True), key=lambda job: job[0][0] + job[0][-1])
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: _run([*job[0], "-o", job[1]]), jobs))
        made = str(Path(folder, "made.so"))
        _run([compiler(), "-shared", "-Wl,-Bsymbolic,--no-undefined", *objects, "-o", made, "-ldl"])
        os.replace(made, library)
