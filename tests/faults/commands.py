"""`emcaps` commands in forked processes: an interpreter that has loaded torch starts one in milliseconds.

The parent never computes gradients: torch starts threads for that, and a forked process has none of its parent's.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from emcaps.provenance import commit
from faults.injected import Fault, Seen, inject

SECONDS = 60.0
"""A command that takes longer hangs: it needs a second, or a few beside others."""
LAYOUT = "4q"


class Ended(NamedTuple):
    status: int
    """The exit status, or minus the number of the signal that ended it."""
    hung: bool
    said: str
    """What it wrote to standard output and error."""
    seen: Seen
    seconds: float


class Started(NamedTuple):
    process: int
    output: int
    """A pipe: what limits the size of files does not limit it."""
    counters: mmap.mmap
    at: float


class _Counters:
    """Numbers in shared memory, by index."""

    def __init__(self, shared: mmap.mmap) -> None:
        self.view = memoryview(shared).cast("q")

    def __getitem__(self, index: int) -> int:
        return self.view[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.view[index] = value


def load() -> None:
    """Import what the commands need, so that forked processes need not."""
    torch.set_num_threads(1)
    os.environ["EMCAPS_COMMIT"] = commit() or "none"  # else every run asks git three times
    import emcaps.cli
    import emcaps.data.sources
    import emcaps.data.toy_set
    import emcaps.report.pictures
    import emcaps.report.progress
    import emcaps.report.tables
    import emcaps.train

    emcaps.data.toy_set.QUICK = emcaps.data.toy_set.Views((0,), (0,), (0,))  # what `data make --quick` renders
    argv, sys.argv = sys.argv, ["emcaps", "train", "tiny", "--data", os.devnull + "/none"]
    errors, sys.stderr = sys.stderr, open(os.devnull, "w")  # noqa: SIM115
    try:
        emcaps.cli.main()  # it ends at once, with an error, and has loaded the parser of arguments by then
    except SystemExit:
        pass
    finally:
        sys.stderr.close()
        sys.argv, sys.stderr = argv, errors


def start(arguments: list[str], folder: Path, fault: Fault | None = None) -> Started:
    """Fork a process that runs `emcaps` with these arguments; the fault comes at its touches of files in `folder`."""
    shared = mmap.mmap(-1, struct.calcsize(LAYOUT))
    sys.stdout.flush()
    sys.stderr.flush()
    readable, writable = os.pipe()
    process = os.fork()
    if process:
        os.close(writable)
        return Started(process, readable, shared, time.monotonic())
    status = 70
    try:
        os.dup2(writable, 1)
        os.dup2(writable, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        inject(fault, folder, _Counters(shared))
        status = _emcaps(arguments)
    finally:
        os._exit(status)


def _emcaps(arguments: list[str]) -> int:
    import emcaps.cli

    sys.argv = ["emcaps", *arguments]
    try:
        emcaps.cli.main()
    except SystemExit as end:
        status: Any = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    else:
        status = 0
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


def finish(started: Started, seconds: float = SECONDS, signals: dict[float, int] | None = None) -> Ended:
    """Wait for the process; `signals` says what to send it after how many seconds."""
    waiting = sorted((signals or {}).items())
    hung = False
    while True:
        ended, status = os.waitpid(started.process, os.WNOHANG)
        passed = time.monotonic() - started.at
        if ended:
            break
        if waiting and passed > waiting[0][0]:
            os.kill(started.process, waiting.pop(0)[1])
        elif passed > seconds and not hung:
            hung = True
            os.kill(started.process, signal.SIGKILL)
        time.sleep(0.002)
    seen = Seen(*struct.unpack(LAYOUT, started.counters[:]))
    os.set_blocking(started.output, False)  # a process of its own that it started may still hold the other end
    said = bytearray()
    with suppress(BlockingIOError):
        while more := os.read(started.output, 2**16):
            said += more
    os.close(started.output)
    return Ended(os.waitstatus_to_exitcode(status), hung, said.decode(errors="replace"), seen, passed)
