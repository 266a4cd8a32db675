"""Tables and links in Markdown, for the pages of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table whose columns are aligned right, but for those with the numbers in `left`."""
    lines = [_line(header), "|" + "".join("---|" if number in left else "--:|" for number in range(len(header)))]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row of this table has {len(header)} cells, one for each column, not {len(row)}: {row}")
        lines.append(_line(row))
    return "\n".join(lines)


def markdown_link(text: str, target: str) -> str:
    return f"[{text}]({target})"


def two_digits(value: float) -> str:
    """Such as 0.15, 7.4 or 715: two significant digits, but whole numbers in full."""
    return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
