"""Hook of MkDocs: pages that lie in other folders, and links that leave docs/.

Links of a page are relative to its file, as GitHub has them. In the site a link to a page or picture is
rewritten, and a link to a source file becomes its text. Reports of HTML are copied.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"kernels.md": ROOT / "kernels" / "README.md", "lab.md": ROOT / "kernels" / "lab" / "README.md"}
PICTURES_AND_REPORTS = [
    path
    for folder in ("assets", "benchmarks/results")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".jpg", ".png", ".svg", ".html")
]
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages, pictures and reports of other folders."""
    added = PAGES | {path.relative_to(ROOT).as_posix(): path for path in PICTURES_AND_REPORTS}
    for name, path in added.items():
        if path.is_file():
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page from its file's folder to the site's."""
    in_site = {os.path.realpath(file.abs_src_path): file.src_uri for file in files if file.abs_src_path}
    source = Path(page.file.abs_src_path)

    def rewritten(link: re.Match) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = os.path.realpath(source.parent / target)
        if ":" in target or not os.path.exists(path):
            return link[0]
        if path in in_site:
            return f"{text}({in_site[path]}{anchor})"
        return text.strip("![]")

    return LINK.sub(rewritten, markdown)
