import dataclasses
import io

import pytest
from rich.console import Console

from emcaps.bench.cases import suite
from emcaps.bench.rows import OUT_OF_MEMORY
from emcaps.bench.tables import (
    FLOOR_TITLES,
    compare,
    comparison_table,
    floor_cells,
    floor_table,
    markdown_headline,
    milliseconds,
    ratio,
)

CASE = suite("headline")[1]


@pytest.fixture
def rows(row_of):
    return [
        row_of(CASE, "reference", 12.0),
        row_of(CASE, "compiled", 3.0),
        row_of(CASE, "fused", 0.75),
        row_of(CASE, "fused, graph", 0.5),
        row_of(suite("quick")[0], "reference", 9.0),
    ]


def test_markdown_is_the_headline_with_ratios_of_the_quickest_fused_row(rows):
    lines = markdown_headline(rows).splitlines()
    assert lines[2] == (
        "| small, 32x32, batch 64, 2 iterations | forward+backward | 12.0 | 3.00 | 0.750 | 0.500 | 24x | 6.0x |"
    )
    assert lines[3] == ""
    assert lines[4].startswith("Measured on cpu")
    assert "tf32 off" in lines[4]


def test_markdown_is_in_the_order_of_the_headline_whatever_was_timed_first(row_of):
    cases = suite("headline")
    lines = markdown_headline([row_of(case, "fused", 1.0) for case in reversed(cases)]).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:-2]] == [[f"| {case}", case.what] for case in cases]


def test_markdown_shows_the_columns_that_are_asked_for(rows, row_of):
    rows += [row_of(CASE, "graphed", 0.6), row_of(CASE, "bf16, graph", 0.4)]
    assert "| graphed, ms |" in markdown_headline(rows)
    assert markdown_headline(rows, ("fused", "fused, graph")).splitlines()[0] == (
        "| network | what | fused, ms | fused, graph, ms |"
    )


def test_fused_rows_with_gradients_stand_beside_the_limits(rows):
    found = [row for row in rows if floor_cells(row)]
    assert [(row.implementation, row.what) for row in found] == [
        ("fused", "forward+backward"),
        ("fused, graph", "forward+backward"),
    ]
    assert floor_cells(found[1]) == ("0.500", "28.9", "93", "327", "0.145", "3.5")
    assert not floor_cells(found[1]._replace(what="forward"))
    assert not floor_cells(found[1]._replace(routing="numba"))
    assert not floor_cells(found[1]._replace(ceiling_tflops=None))
    assert floor_cells(found[1]._replace(what="training step"))


def test_the_tables_of_a_run_have_a_line_for_each_case_or_row(rows, row_of):
    assert comparison_table(rows).row_count == 2
    table = floor_table([*rows, row_of(CASE, "fused, graph", status=OUT_OF_MEMORY)])
    assert table.row_count == 2
    assert [column.header for column in table.columns] == ["case", "what", "by", *FLOOR_TITLES]


def test_the_table_of_floors_fits_a_terminal(row_of):
    large = row_of(dataclasses.replace(CASE, network="full", types=64, batch=4096), "fused, graph", 1234.5)
    console = Console(width=80, file=io.StringIO())
    console.print(floor_table([large]))
    shown = console.file.getvalue()
    assert all(cell in shown for cell in floor_cells(large))


def test_without_a_headline_every_case_is_shown(rows):
    assert markdown_headline(rows[-1:]).splitlines()[2] == "| tiny, 32x32, batch 1, 2 iterations | forward | 9.00 |"


def test_what_did_not_run_has_no_ratio(rows, row_of):
    rows += [row_of(CASE, "reference", status=OUT_OF_MEMORY), row_of(CASE, "compiled", status="error: x")]
    line = markdown_headline(rows).splitlines()[2]
    assert line.endswith("| out of memory | failed | 0.750 | 0.500 | - | - |")
    assert compare(rows)[0].faster_than("reference") is None


def test_no_rows_is_told():
    with pytest.raises(ValueError, match="no rows"):
        markdown_headline([])


def test_three_digits():
    assert [milliseconds(value) for value in (0.0412, 0.412, 3.294, 12.04, 1234.5)] == [
        "0.041",
        "0.412",
        "3.29",
        "12.0",
        "1,234",
    ]
    assert [ratio(value) for value in (0.5, 9.94, 38.2)] == ["0.5x", "9.9x", "38x"]
