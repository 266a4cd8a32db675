"""The explorer's page as one HTML file: code, style, weights and pictures inside, so that it opens from disk."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = files("emcaps.explorer") / "page"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)
GENERATOR = '<meta name="generator" content="emcaps explore">'
"""Stands near the top of every page, so that no other file is taken for one."""
LARGEST_PAGE = 5_000_000
"""Bytes. A page that is larger is refused: it could not be mailed or opened on a phone."""


def page_html(weights: bytes, pictures: Mapping[str, Any], title: str) -> str:
    """The page for a weights file; `pictures` as from explorer.pictures."""
    parts = {
        "STYLE": _read("style.css"),
        "CODE": bundled("main"),
        "WEIGHTS": base64.b64encode(weights).decode(),
        "PICTURES": json.dumps(pictures).replace("<", "\\u003c"),
        "TITLE": _escaped(title),
        "GENERATOR": GENERATOR,
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("index.html"))
    if len(page.encode()) > LARGEST_PAGE:
        raise ValueError(
            f"the page would have {len(page.encode()) / 1e6:.1f} MB, more than {LARGEST_PAGE / 1e6:.0f}: name fewer "
            "images, or a smaller network"
        )
    return page


def bundled(entry: str) -> str:
    """The module of this name after all that it imports, as one script: a page on disk may not load modules."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = _read(f"{name}.js")
        for needed in IMPORT.findall(text):
            add(needed)
        done[name] = EXPORT.sub("", IMPORT.sub("", text))

    add(entry)
    return _in_script("\n".join(done.values()))


def packed(images: npt.NDArray[np.uint8]) -> str:
    """Pixels, deflated, as base64."""
    return base64.b64encode(zlib.compress(images.tobytes(), 9)).decode()


def _read(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _in_script(text: str) -> str:
    """JavaScript that may stand inside a <script>: what would end it in a string is written in another way."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
