"""Blocks between markers are made anew; a marker that cannot be right is told with its page and line."""

import pytest

from emcaps.documents.markers import fill_blocks

BLOCKS = {"one": lambda: "1\n2", "two": lambda: "3"}


def test_blocks_are_made_anew_and_the_rest_stays():
    text = "# Page\n<!-- made by `make docs`: one -->\nold\n\nolder\n<!-- end -->\n\nwords\n"
    text += "<!-- made by `make docs`: two -->\n<!-- end -->\n"
    made = fill_blocks("page.md", text, BLOCKS)
    assert made == (
        "# Page\n<!-- made by `make docs`: one -->\n1\n2\n<!-- end -->\n\nwords\n"
        "<!-- made by `make docs`: two -->\n3\n<!-- end -->\n"
    )
    assert fill_blocks("page.md", made, BLOCKS) == made


def test_a_page_without_markers_stays_as_it_is():
    assert fill_blocks("page.md", "words\n\n<!-- a remark -->\n", BLOCKS) == "words\n\n<!-- a remark -->\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["<!-- made by `make docs`: on -->", "<!-- end -->"], r"line 2: unknown block 'on': did you mean 'one'\?"),
        (["<!-- made by `make docs`: one -->", "text"], r"line 2: block 'one' is not closed: write <!-- end -->"),
        (
            ["<!-- made by `make docs`: one -->", "<!-- made by `make docs`: two -->", "<!-- end -->"],
            r"line 3: block 'one' of line 2 is still open: write <!-- end -->",
        ),
        (["text", "<!-- end -->"], r"line 3: <!-- end --> closes no block"),
        (
            ["<!-- made by make docs: one -->", "<!-- end -->"],
            r"line 2: a marker is a line of its own, .* not '<!-- made",
        ),
        (["text <!-- made by `make docs`: one -->"], r"line 2: a marker is a line of its own"),
    ],
)
def test_a_wrong_marker_is_told_with_page_and_line(lines, message):
    with pytest.raises(ValueError, match=rf"^docs/page\.md, {message}"):
        fill_blocks("docs/page.md", "\n".join(["# Page", *lines]) + "\n", BLOCKS)
