"""The shell of every page that emcaps writes: one file that opens from disk and loads nothing from anywhere.

`Html` is text that is markup already. Every other text is escaped when it is put into a page, so a class that is called
"<b>" is shown as that.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emcaps.report.png import png_bytes

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #ffffff; --surface: #f4f6f8; --edge: #d3d9df; --text: #1b1f23; --quiet: #55606b; --accent: #1d5fa8;
  --good: #b4dfc5; --bad: #f4b9a7; --warning: #fdeccb; --bar: #bcd5f0;
  --line-1: #1d5fa8; --line-2: #b3450e; --line-3: #1b7a4b; --line-4: #9c2f7f;
  --line-5: #6d5d00; --line-6: #007080; --line-7: #7548b3; --line-8: #5a5f64;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14181c; --surface: #1d2329; --edge: #3a434c; --text: #e8ecef; --quiet: #a9b4bf; --accent: #86b9f2;
    --good: #1f5638; --bad: #7a3324; --warning: #4d3a12; --bar: #2c4c70;
    --line-1: #86b9f2; --line-2: #f2a26b; --line-3: #70cf98; --line-4: #eb92d1;
    --line-5: #d9c654; --line-6: #60d0df; --line-7: #c0a4f2; --line-8: #b9bec3;
  }
}
*, ::before, ::after { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--text); overflow-wrap: anywhere;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
.skip { position: absolute; left: -100vw; }
.skip:focus { left: 1rem; top: .5rem; background: var(--ground); padding: .25rem .5rem; z-index: 1; }
header, main, footer { max-width: 78rem; margin: 0 auto; padding: 0 clamp(.9rem, 3vw, 2rem); }
footer { padding-block: 1rem 2rem; color: var(--quiet); font-size: .875rem; }
h1 { font-size: clamp(1.5rem, 1.1rem + 1.6vw, 2.3rem); line-height: 1.2; margin: 1.5rem 0 .5rem; }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 2.5rem 0 .6rem; padding-top: .7rem; }
h2 { border-top: 1px solid var(--edge); }
h3 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
p { max-width: 46rem; margin: .5rem 0; }
a { color: var(--accent); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.quiet { color: var(--quiet); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0; margin: .8rem 0 0; }
nav a { display: inline-block; padding: .2rem 0; }
.note { background: var(--warning); border-left: .3rem solid var(--line-2); padding: .5rem .8rem; margin: .6rem 0; }
.tiles { display: grid; gap: .7rem; margin: 1rem 0; padding: 0;
  grid-template-columns: repeat(auto-fit, minmax(min(8.5rem, 100%), 1fr)); }
.tiles div { background: var(--surface); border: 1px solid var(--edge); border-radius: .5rem; padding: .55rem .8rem; }
.tiles dt { color: var(--quiet); font-size: .85rem; }
.tiles dd { margin: 0; font-size: 1.1rem; font-variant-numeric: tabular-nums; }
.tiles .main dd { font-size: 1.7rem; font-weight: 650; line-height: 1.25; }
.tiles small { display: block; font-size: .85rem; font-weight: 400; line-height: 1.4; }
.scroll { overflow-x: auto; max-width: 100%; margin: .7rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--quiet); padding: .2rem 0 .4rem; max-width: min(46rem, 100vw - 2rem); }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--edge); text-align: left; vertical-align: top; }
th { font-weight: 600; }
th, td { overflow-wrap: break-word; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.number { overflow-wrap: normal; }
td.right { background: color-mix(in srgb, var(--good) calc(var(--share) * 100%), var(--ground)); }
td.wrong { background: color-mix(in srgb, var(--bad) calc(var(--share) * 100%), var(--ground)); }
td.bar { background: linear-gradient(to right, var(--bar) calc(var(--share) * 100%), transparent 0); }
td img { display: block; }
details { margin: .7rem 0; }
summary { cursor: pointer; color: var(--accent); padding: .2rem 0; }
img { image-rendering: pixelated; max-width: 100%; height: auto; }
code { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; font-size: .92em; }
@media (max-width: 30rem) { .tiles .main { grid-column: span 2; } .tiles dd { font-size: 1rem; } }
@media (min-width: 110rem) { html { font-size: 118.75%; } }
@media print {
  :root { --ground: #fff; --surface: #fff; --text: #000; }
  nav, .skip { display: none; }
  h2, h3, caption { break-after: avoid; }
  figure, tr, .tiles { break-inside: avoid; }
  td, .tiles div { print-color-adjust: exact; }
}
"""
"""Colours (light and dark), type and tables of all pages. A page adds its own rules to these."""


class Html(str):
    """Text that is markup already, so that it is not escaped again."""

    __slots__ = ()


def escape(value: object) -> Html:
    """The value as it may stand between tags and in quoted attributes; what is Html already stays as it is."""
    if isinstance(value, Html):
        return value
    text = str(value).encode("utf-8", "replace").decode()  # names of files may hold bytes that are no text
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", "\ufffd", text)
    return Html(html.escape(text))


def join(parts: Iterable[object], between: str = "\n") -> Html:
    """The parts, escaped if need be, one after the other."""
    return Html(between.join(escape(part) for part in parts))


def tag(name: str, content: object = "", **attributes: object) -> Html:
    """An element. `class_` and `for_` become class and for, aria_label becomes aria-label; None leaves one out."""
    texts = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{texts}>{escape(content)}</{name}>")


def page(title: str, body: Html, *, generator: str, style: str = "", script: str = "") -> str:
    """A whole page. It allows no request at all, no other script than `script`, and pictures as data URIs alone.

    `generator` says which command made it, so that the command recognises its own pages.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            generator_mark(generator),
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            tag("title", title),
            f"<style>{STYLE}{style}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#content">Skip to the content</a>',
            body,
            f"<script>{script}</script>" if script else "",
            "</body>",
            "</html>",
            "",
        )
    )


def generator_mark(generator: str) -> str:
    """The line near the top of a page that says which command made it."""
    return f'<meta name="generator" content="{escape(generator)}">'


def section(identity: str, title: object, *content: object, level: int = 2) -> Html:
    """A part of the page with a heading, to which #identity leads."""
    return tag("section", join([tag(f"h{level}", title), *content]), id=identity)


def details(summary: object, *content: object) -> Html:
    """Content that is shown on request."""
    return tag("details", join([tag("summary", summary), *content]))


def tiles(values: Mapping[str, object], main: str = "") -> Html:
    """Names and values side by side; that of the name `main` is larger."""
    cells = [
        tag("div", join([tag("dt", name), tag("dd", value)], ""), class_="main" if name == main else None)
        for name, value in values.items()
    ]
    return tag("dl", join(cells), class_="tiles")


def cell(value: object, kind: str = "number", share: float | None = None) -> Html:
    """A cell of a table; `share`, 0 to 1, shades it ("right", "wrong") or draws a bar in it ("bar")."""
    style = None if share is None else f"--share:{min(1.0, max(0.0, share)):.3f}"
    return tag("td", value, class_=kind if share is None else f"number {kind}", style=style)


def table(caption: str, header: Sequence[object], rows: Iterable[Sequence[object]], left: Sequence[int] = (0,)) -> Html:
    """A table with a caption. The first cell of a row is its heading; columns are right-aligned, but for `left`.

    Cells are texts, or cells that `cell` made.
    """
    sides = ["" if number in left else "number" for number in range(len(header))]
    head = [tag("th", name, scope="col", class_=side or None) for name, side in zip(header, sides, strict=True)]
    lines = [tag("tr", join(head, ""))]
    for row in rows:
        cells = [tag("th", row[0], scope="row")]
        for value, side in zip(row[1:], sides[1:], strict=True):
            made = isinstance(value, Html) and value.startswith("<td")
            cells.append(escape(value) if made else tag("td", value, class_=side or None))
        lines.append(tag("tr", join(cells, "")))
    whole = tag(
        "table", join([tag("caption", caption), tag("thead", lines[0]), tag("tbody", join(["", *lines[1:], ""]))])
    )
    return tag("div", whole, class_="scroll", tabindex=0, role="group", aria_label=caption)


def picture(pixels: npt.NDArray[np.uint8], alt: str, width: int) -> Html:
    """An image (H, W) or (H, W, 3) inside the page, shown `width` CSS pixels wide."""
    content = base64.b64encode(png_bytes(pixels)).decode()
    height = round(width * pixels.shape[0] / pixels.shape[1])
    return Html(
        f'<img src="data:image/png;base64,{content}" alt="{escape(alt)}" width="{width}" height="{height}" '
        'decoding="async">'
    )


def json_data(value: Any, **attributes: object) -> Html:
    """A value for the page's script, which cannot end its element."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return tag("script", Html(content), type="application/json", **attributes)
