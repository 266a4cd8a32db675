"""Takes the README's picture: the explorer in Chromium, with a toy turned half round.

Run it as `.venv/bin/python docs/site/screenshot.py` when the page has changed; it needs Chromium and playwright.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from emcaps.cli.explore import DEFAULT
from emcaps.explorer.explore import explorer_page

PICTURE = Path(__file__).resolve().parents[1] / "images/explorer.png"
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "explorer.html"
        file.write_text(explorer_page(DEFAULT), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        page = browser.new_page(viewport={"width": 1400, "height": 1130})
        page.goto(file.as_uri())
        page.get_by_role("button", name="airplane", exact=True).first.click()
        page.get_by_label("Turn (azimuth)").fill("3")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
