"""Reads a page as a browser would, and raises AssertionError if its structure is wrong."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "input", "link", "hr", "line", "polyline"}  # the last two close themselves in our SVG
REFERENCES = ("src", "href", "action", "data", "poster", "srcset", "xlink:href")


class Page(HTMLParser):
    """The elements of a page; `check_page` makes one."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self.tables: list[dict[str, object]] = []
        self.images: list[dict[str, str | None]] = []
        self.charts: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, name, attributes):
        values = dict(attributes)
        assert len(values) == len(attributes), f"<{name}> has an attribute twice"
        if "id" in values:
            self.ids.append(values["id"])
        for reference in REFERENCES:
            if reference in values:
                address = values[reference]
                assert address.startswith(("#", "data:image/png;base64,")), f"{name} loads {address!r}"
                if address.startswith("#"):
                    self.links.append(address[1:])
        assert not any(key.startswith("on") for key in values), f"<{name}> has a script of its own: {values}"
        if name == "img":
            assert values.get("alt"), "an image without a text"
            self.images.append(values)
        if name == "svg":
            assert values.get("aria-label") or values.get("aria-hidden"), "a drawing without a text"
            self.charts.append(values.get("aria-label") or "")
        if name == "table":
            self.tables.append({"caption": "", "cells": []})
        if name == "caption":
            assert self._open[-1] == "table"
        if name == "th":
            assert values.get("scope") in ("col", "row"), "a heading of a table without a scope"
        if re.fullmatch("h[1-6]", name):
            self.headings.append((int(name[1]), ""))
        if name in ("td", "th"):
            self.tables[-1]["cells"].append("")
        if name not in VOID:
            self._open.append(name)

    def handle_startendtag(self, name, attributes):
        assert name in VOID, f"<{name}/> is not closed in HTML"
        self.handle_starttag(name, attributes)

    def handle_endtag(self, name):
        assert self._open, f"</{name}> closes nothing"
        assert self._open[-1] == name, f"</{name}> closes <{self._open[-1]}>"
        self._open.pop()

    def handle_data(self, data):
        if set(self._open) & {"style", "script"}:
            return
        self.text += data
        if self.headings and re.fullmatch("h[1-6]", self._open[-1] if self._open else ""):
            level, text = self.headings[-1]
            self.headings[-1] = (level, text + data)
        if "caption" in self._open:
            self.tables[-1]["caption"] += data
        if {"td", "th"} & set(self._open):
            self.tables[-1]["cells"][-1] += data


def check_page(text: str) -> Page:
    """The page, if all elements are closed, ids differ, links lead somewhere, nothing is loaded and all has a text."""
    page = Page(text)
    assert text.startswith("<!doctype html>")
    assert len(set(page.ids)) == len(page.ids), "an id twice"
    assert set(page.links) <= set(page.ids), f"links that lead nowhere: {set(page.links) - set(page.ids)}"
    assert all(table["caption"] for table in page.tables), "a table without a caption"
    levels = [level for level, _ in page.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), "a level is left out"
    for style in re.findall(r"<style>(.*?)</style>", text, re.DOTALL) + re.findall(r'style="(.*?)"', text):
        assert "url(" not in style
        assert "@import" not in style
    assert "default-src &#x27;none&#x27;" in text, "a page that may load something"
    assert len(text.encode()) <= 5_000_000
    return page
