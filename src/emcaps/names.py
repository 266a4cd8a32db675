"""Messages about unknown names: they say what was given, what is allowed, and the nearest allowed name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def unknown_name(what: str, given: object, allowed: Iterable[str]) -> str:
    """A one-line message such as "unknown preset 'smal': did you mean 'small'? (allowed: cnn, full, small, tiny)"."""
    options = list(allowed)
    nearest = difflib.get_close_matches(str(given), options, n=1)
    hint = f": did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown {what} {given!r}{hint} (allowed: {', '.join(options)})"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first few names in words, such as "a, b, c and 7 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_name(what: str, given: str, allowed: Iterable[str]) -> None:
    """Raise ValueError unless `given` is one of `allowed`."""
    options = list(allowed)
    if given not in options:
        raise ValueError(unknown_name(what, given, options))
