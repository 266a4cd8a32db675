"""Faults that a process meets at its n-th touch of a file: it is killed, told to stop, or refused by the system.

Python announces every open, rename and removal to an audit hook just before it happens, so a fault can be put between
any two of them. fsync is announced to nobody and is replaced here; it returns at once, since a kill loses nothing that
was written, only a failure of power does.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from emcaps import interrupts

KILL, TORN = "kill", "kill in a write"
STOP_TERM, STOP_ECHO, STOP_INT, STOP_TWICE = "SIGTERM", "SIGTERM and its echo", "SIGINT", "SIGINT twice"
FULL, CUT_SHORT, READ_ONLY = "full disk", "full disk in a write", "read-only folder"
REMOVED, TRUNCATED = "file removed", "file truncated"
AT_ANY_TOUCH = (KILL, TORN, STOP_TERM, STOP_ECHO, STOP_INT, STOP_TWICE, CUT_SHORT, REMOVED, TRUNCATED)
AT_A_CHANGE = (FULL, READ_ONLY)
"""Faults that only a call can meet that changes the disk."""

CHANGES = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "tempfile.mkstemp"})
TOUCHES = CHANGES | {"open", "os.listdir", "os.scandir", "fcntl.flock"}


class Fault(NamedTuple):
    kind: str
    at: int
    """The touch, or the change, at which it comes; counted from 1."""
    seed: str = ""


class Seen(NamedTuple):
    """What the process counted, in memory that it shares with its parent and that outlives it."""

    touches: int
    changes: int
    saved: int
    """The step of the last checkpoint that was written whole, plus 1; 0 if there is none."""
    first_saved: int
    """The touch at which the first checkpoint was whole."""


def inject(fault: Fault | None, folder: Path, counters: Any) -> None:
    """From now on count the touches of files in `folder`, and let the fault come. It cannot be undone: call it in a
    process that is made for it."""
    inside = str(folder)
    busy = False
    if fault is not None and fault.kind == STOP_TWICE:
        interrupts.ECHO_SECONDS = 0.0  # else the second would have to wait for a second

    def touch(changes: bool) -> None:
        nonlocal busy
        counters[0] += 1
        counters[1] += changes
        if fault is None or busy:
            return
        busy = True
        try:
            if fault.kind in AT_ANY_TOUCH and counters[0] == fault.at:
                _come(fault, folder)
            elif fault.kind == FULL and changes and counters[1] == fault.at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            elif fault.kind == READ_ONLY and changes and counters[1] >= fault.at:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        finally:
            busy = False

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in TOUCHES:
            return
        if event != "fcntl.flock" and not any(_is_in(inside, argument) for argument in arguments[:2]):
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        touch(bool(event in CHANGES or writes))

    def flush(_descriptor: int) -> None:
        touch(True)

    os.fsync = flush  # type: ignore[assignment]
    _count_checkpoints(counters)
    sys.addaudithook(hear)


def _is_in(folder: str, argument: object) -> bool:
    return isinstance(argument, str | os.PathLike) and str(argument).startswith(folder)


def _come(fault: Fault, folder: Path) -> None:
    rng = random.Random(fault.seed)
    if fault.kind == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind in (TORN, CUT_SHORT):
        # The kernel writes up to the limit and then sends a signal, which kills, or reports an error if it is ignored.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fault.kind == TORN else signal.SIG_IGN)
        most = round(2 ** rng.uniform(0, 14))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    elif fault.kind in (STOP_TERM, STOP_ECHO):
        for _ in range(1 + (fault.kind == STOP_ECHO)):
            os.kill(os.getpid(), signal.SIGTERM)
    elif fault.kind in (STOP_INT, STOP_TWICE):
        for _ in range(1 + (fault.kind == STOP_TWICE)):
            os.kill(os.getpid(), signal.SIGINT)
    else:
        damage(folder, fault.kind, rng)


def damage(folder: Path, kind: str, rng: random.Random) -> str:
    """Remove or cut one file of a run or data set; gives its name, or "" if there is none."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not found:
        return ""
    path = rng.choice(found)
    if kind == REMOVED:
        path.unlink()
    else:
        os.truncate(path, rng.randrange(max(1, path.stat().st_size)))
    return path.name


def _count_checkpoints(counters: Any) -> None:
    from emcaps.train import checkpoint

    save: Callable[..., None] = checkpoint.save_checkpoint

    def counted(*arguments: Any) -> None:
        save(*arguments)
        counters[2] = arguments[-1] + 1
        if not counters[3]:
            counters[3] = counters[0]

    checkpoint.save_checkpoint = counted
