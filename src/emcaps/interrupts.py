"""Ctrl-C and SIGTERM: training finishes its step and saves; everything else stops by KeyboardInterrupt.

One request to stop may come as several signals: `timeout` sends its own to a process and then to the group of that
process, and torchrun passes on what its processes may have got already, as from SLURM. So a signal that follows soon
after another is its echo.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ECHO_SECONDS = 1.0
"""A person who wants to stop at once presses Ctrl-C again later than this."""

_heard_at = -math.inf
"""When the last signal came that was no echo."""


@contextmanager
def asked_to_stop(echo_seconds: float = ECHO_SECONDS) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C or SIGTERM has come; a second one, if no echo, stops at once.

    Only the main thread hears signals.
    """
    asked = False

    def handle(_number: int, _frame: object) -> None:
        nonlocal asked  # plain assignments, since a second signal may come in the middle of this
        again, asked = asked, True
        if not _is_echo(echo_seconds) and again:
            raise KeyboardInterrupt

    with _handling(handle, signal.SIGINT, signal.SIGTERM):
        yield lambda: asked


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Within the `with` block SIGTERM raises KeyboardInterrupt, so that files are closed and advice is given.

    Echoes of either signal raise nothing, since they would disturb that. SIGINT stays ignored if it was, as in a
    shell's background job.
    """

    def handle(_number: int, _frame: object) -> None:
        if not _is_echo(ECHO_SECONDS):
            raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with _handling(handle, signal.SIGTERM, *([] if ignored else [signal.SIGINT])):
        yield


def _is_echo(seconds: float) -> bool:
    global _heard_at
    now = time.monotonic()
    if now < _heard_at + seconds:
        return True
    _heard_at = now
    return False


@contextmanager
def _handling(handle: Callable[[int, object], None], *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # it was not set by Python
                signal.signal(number, handler)
