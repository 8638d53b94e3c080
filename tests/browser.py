"""A page in Chromium, that of Playwright or of the system."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def open_page(**options: Any) -> Iterator[Any]:
    """Opens an empty page, with options of Playwright's `new_page`. Without a browser the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as driver:
        own = Path(driver.chromium.executable_path)
        program = own if own.exists() else shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            pytest.skip("needs Chromium")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser.new_page(**options)
        browser.close()
