"""Markdown tables, as a page shows them."""

import pytest

from emcaps.report.markdown import markdown_link, markdown_table


def test_the_first_column_is_aligned_left_and_the_others_right():
    assert markdown_table(("row", "a"), [("x", "1"), ("y", "2")]) == "| row | a |\n|---|--:|\n| x | 1 |\n| y | 2 |"


def test_columns_are_aligned_left_where_asked():
    assert markdown_table(("a", "b", "c"), [], left=(0, 2)).splitlines()[1] == "|---|--:|---|"


def test_a_row_with_too_few_cells_is_refused():
    with pytest.raises(ValueError, match="3 cells, one for each column, not 2"):
        markdown_table(("a", "b", "c"), [("1", "2")])


def test_a_link():
    assert markdown_link("98.0", "results/x") == "[98.0](results/x)"
