import io

from rich.console import Console

from emcaps.bench.cases import suite
from emcaps.bench.screen import row_line, screen

CASE = suite("headline")[0]


def test_the_longest_line_fits_a_terminal(row_of):
    row = row_of(CASE, "fused, graph", 99_999.4)._replace(images_per_s=9_999_999.0, peak_mib=143_771.0)
    line = row_line(row._replace(share_of_ceiling=0.999, p20_ms=9.99, p80_ms=99_999.0))
    assert len(line) <= 80
    assert line.startswith("  fused, graph  ")


def test_a_pipe_gets_the_lines_and_no_bar(row_of):
    row = row_of(CASE, "fused", 0.4123)
    for terminal in (False, True):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=80, highlight=False)
        with screen(console, 1) as shown:
            shown.heading(CASE)
            shown.announce("fused")
            shown.row(row)
        assert "0.412 ms (0.371 to 0.618)" in text.getvalue()
        assert ("1/1 rows" in text.getvalue()) is terminal
