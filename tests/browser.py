"""A real Chromium for the tests of pages: Debian's package, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
QUIET += ("--disable-component-update", "--disable-sync")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the tests are skipped without one, unless EMCAPS_BROWSER=required, as in CI."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    required = os.environ.get("EMCAPS_BROWSER") == "required"
    if program is None and not required:
        pytest.skip("needs a Chromium, such as Debian's package chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright") if not required else None
    if playwright is None:
        import playwright.sync_api as playwright
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(QUIET), timeout=60_000)
        try:
            yield browser
        finally:
            browser.close()
