"""The shell of pages, its escaping, and the checker that the tests of pages rely on."""

import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from emcaps.report.html import STYLE, Html, cell, details, escape, json_data, page, picture, section, table, tag, tiles
from emcaps.report.png import png_bytes
from report.structure import check_page

NASTY = "<script>alert('x')</script> & \"quotes\"\nsecond line \x00 \udcff"


def whole(*content):
    body = Html(f'<main id="content">{tag("h1", "Title")}{"".join(content)}</main>')
    return page(NASTY, body, generator="test")


def test_every_text_is_escaped():
    text = whole(
        section("part", NASTY, tag("p", NASTY, title=NASTY)),
        table(NASTY, [NASTY, "b"], [[NASTY, cell(NASTY, "bar", 0.5)]]),
        tiles({NASTY: NASTY}),
        details(NASTY, NASTY),
        picture(np.zeros((2, 3), np.uint8), NASTY, 30),
    )
    found = check_page(text)
    assert "<script>alert" not in text
    assert "\x00" not in text
    text.encode()  # no half of a letter is left
    assert found.tables[0]["caption"].startswith("<script>alert('x')</script> & \"quotes\"\nsecond line")
    assert found.images[0]["alt"].startswith("<script>alert")


def test_html_is_escaped_once():
    assert escape(escape("<")) == "&lt;"
    assert tag("b", tag("i", "&")) == "<b><i>&amp;</i></b>"


def test_data_for_scripts_cannot_end_its_element():
    text = json_data({"name": "</script><b>"})
    assert "</script><b>" not in text
    content = text.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert json.loads(content) == {"name": "</script><b>"}


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (1, 1), (48, 96)])
def test_png_bytes_are_what_pillow_reads(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png_bytes(pixels)))), pixels)


@pytest.mark.parametrize("pixels", [np.zeros((2, 2)), np.zeros((2, 2, 2), np.uint8), np.zeros((0, 2), np.uint8)])
def test_png_bytes_refuses_what_is_no_picture(pixels):
    with pytest.raises(ValueError, match="pixels must be uint8"):
        png_bytes(pixels)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("<p>", "never closed|closes"),
        ("</p>", "closes"),
        ('<p id="content"></p>', "an id twice"),
        ('<a href="#nowhere"></a>', "lead nowhere"),
        ('<img src="https://example.org/a.png" alt="a">', "loads"),
        ('<img src="data:image/png;base64,AA">', "without a text"),
        ("<table></table>", "without a caption"),
        ("<h3></h3>", "level is left out"),
        ('<p onclick="x()"></p>', "script of its own"),
        ("<svg></svg>", "drawing without"),
    ],
)
def test_the_checker_of_pages_finds_what_is_wrong(content, complaint):
    check_page(whole())
    with pytest.raises(AssertionError, match=complaint):
        check_page(whole(Html(content)))


def colours(block):
    return {name: tuple(bytes.fromhex(value)) for name, value in re.findall(r"--([\w-]+): #([0-9a-f]{6})", block)}


def contrast(one, other):
    """The ratio of the luminances of two colours, as WCAG 2 defines it."""

    def luminance(colour):
        parts = [value / 255 for value in colour]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(scheme):
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    found = colours(light) if scheme == "light" else colours(dark.partition("*, ::before")[0])
    assert len(found) == 18
    for ground in ("ground", "surface", "good", "bad", "warning", "bar"):
        assert contrast(found["text"], found[ground]) >= 4.5, ground
    for name in ("quiet", "accent"):
        for ground in ("ground", "surface"):
            assert contrast(found[name], found[ground]) >= 4.5, (name, ground)
    for number in range(1, 9):
        assert contrast(found[f"line-{number}"], found["ground"]) >= 4.5, number
    assert contrast((255, 255, 255), (0, 0, 0)) == pytest.approx(21)
