"""The machine and the versions that a sweep's results hold for."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from importlib import metadata
from pathlib import Path

from onnx_path.sweeping.gpu_monitor import import_nvml, visible_gpu

PACKAGES = (
    "codetr-tensorrt",
    "torch",
    "torchvision",
    "timm",
    "ultralytics",
    "onnx",
    "onnxruntime",
    "tensorrt",
    "numpy",
)


@cache
def gpu_name() -> str | None:
    """Returns the name of the first visible GPU, or None without one. Neither Torch nor CUDA is loaded."""
    nvml = import_nvml()
    handle = visible_gpu(nvml)
    if handle is None:
        return None
    name = nvml.nvmlDeviceGetName(handle)
    return name.decode() if isinstance(name, bytes) else name


@cache
def version_of(package: str) -> str | None:
    """Returns the version of a package that is installed, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
    if package == "tensorrt":
        for name in ("tensorrt-cu12-bindings", "tensorrt-cu13-bindings"):
            version = version_of(name)
            if version is not None:
                return version
    if package == "onnxruntime":
        return version_of("onnxruntime-gpu")
    return None


def cpu_name() -> str:
    """Returns the name of the CPU."""
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.processor()


def describe_machine() -> tuple[dict, dict[str, str]]:
    """Returns the machine and the versions of the packages, for results.json."""
    nvml = import_nvml()
    driver = None if nvml is None else nvml.nvmlSystemGetDriverVersion()
    machine = {
        "gpu": gpu_name(),
        "driver": driver.decode() if isinstance(driver, bytes) else driver,
        "cpu": cpu_name(),
        "cpu_threads": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    versions = {name: version_of(name) for name in PACKAGES}
    return machine, {name: version for name, version in versions.items() if version is not None}
