"""Values in messages, and unknown names: what was given, what is allowed, and the nearest allowed name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def shown(value: object) -> str:
    """The value as a message shows it, at most one line long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; lists in lists in lists
        return f"a value of type {type(value).__name__} that is too long to show"
    return text if len(text) <= 200 else f"{text[:100]}...{text[-20:]}"


def unknown_name(what: str, given: object, allowed: Iterable[str]) -> str:
    """A one-line message such as "unknown preset 'smal': did you mean 'small'? (allowed: cnn, full, small, tiny)"."""
    options = list(allowed)
    meant = nearest(given, options) if isinstance(given, str) else None
    hint = f": did you mean {meant!r}?" if meant else ""
    return f"unknown {what} {shown(given)}{hint} (allowed: {', '.join(options)})"


def nearest(given: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that is most like the given one; None if none is."""
    return next(iter(difflib.get_close_matches(given, list(allowed), n=1)), None)


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first few names in words, such as "a, b, c and 7 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_name(what: str, given: str, allowed: Iterable[str]) -> None:
    """Raise ValueError unless `given` is one of `allowed`."""
    options = list(allowed)
    if given not in options:
        raise ValueError(unknown_name(what, given, options))
