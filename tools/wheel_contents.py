"""Prints the sizes of a wheel's compiled libraries, by CUDA architecture.

python tools/wheel_contents.py dist/codetr_tensorrt-0.1.0-py3-none-manylinux_2_34_x86_64.whl
"""

from __future__ import annotations

import struct
import sys
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

LIBRARIES = ("msda/libmsda_torch.so", "trt_plugin/libmsda_trt_plugin.so")

_FAT_BINARY = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""How nvcc begins the kernels of a source file: magic number, version, bytes of the header."""
_PTX, _MACHINE_CODE = 1, 2


def kernel_bytes(library: bytes) -> dict[str, int]:
    """Returns the bytes of a library's kernels by architecture: `sm_90`, or `compute_120` for PTX."""
    sizes: Counter[str] = Counter()
    start = library.find(_FAT_BINARY)
    while start >= 0:
        position = start + 16
        end = position + struct.unpack_from("<Q", library, start + 8)[0]
        while position < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", library, position)
            architecture = struct.unpack_from("<I", library, position + 28)[0]
            prefix = {_PTX: "compute", _MACHINE_CODE: "sm"}[kind]
            sizes[f"{prefix}_{architecture}"] += header + size
            position += header + size
        start = library.find(_FAT_BINARY, end)
    return dict(sorted(sizes.items(), key=lambda item: int(item[0].split("_")[1])))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report of the wheels in `argv` (default: sys.argv[1:])."""
    for path in map(Path, sys.argv[1:] if argv is None else argv):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
        with zipfile.ZipFile(path) as wheel:
            for name in LIBRARIES:
                library = wheel.read(name)
                kernels = ", ".join(f"{key} {size / 1e6:.1f}" for key, size in kernel_bytes(library).items())
                print(f"  {name}: {len(library) / 1e6:.1f} MB, of which kernels: {kernels}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
