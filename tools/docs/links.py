"""Checks the names of files in README and docs: python tools/docs/links.py

MkDocs checks links between pages. This checks links that leave docs/, and paths in backticks.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
QUOTED = re.compile(r"`([\w.-]+(?:/[\w.*-]+)+/?)`")
"""A path with a slash in backticks, such as `codetr/cli/app.py`."""
RESULTS = ("build/", "out/", "trt_plugin/codetr_detect")
"""Beginnings of paths that a clone lacks before the build or the first run."""


def missing(page: Path) -> list[str]:
    """Names in a page that are neither files nor folders."""
    text = page.read_text(encoding="utf-8")
    names = [name for name in LINK.findall(text) if not (page.parent / name).exists()]
    for name in QUOTED.findall(text):
        known = not name.startswith(RESULTS) and (ROOT / name.split("/")[0]).is_dir()
        if known and not any(ROOT.glob(name.rstrip("/"))):
            names.append(name)
    return names


def main() -> int:
    """Command line; returns the exit status."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("kernels/**/*.md"))]
    found = [f"{page.relative_to(ROOT)}: {name} does not exist" for page in pages for name in missing(page)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
