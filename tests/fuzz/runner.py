"""Damaged files, one after another: each must be read as what it is, or refused by one clear error, soon and in little
memory.

An input is known by its target, the seed and its number, from which it can be made again.
"""

from __future__ import annotations

import ctypes
import random
import resource
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.mutations import mutated
from fuzz.targets import Target, make_targets, same

EQUAL, OTHER, REFUSED = "accepted, equal", "accepted, other content", "refused"
WRONG, TRACEBACK, HANG, MEMORY = "WRONGLY ACCEPTED", "TRACEBACK", "HANG", "MEMORY"
BAD = (WRONG, TRACEBACK, HANG, MEMORY)
SECONDS = 5.0
"""An input that takes longer hangs."""
MEGABYTES = 200
"""An input that lets the process grow by more at once is a bomb: the good files have a few kilobytes."""
BELOW_THE_CHECKSUM = 0.5


class Found(NamedTuple):
    target: str
    number: int
    outcome: str
    message: str


class TooSlowError(BaseException):
    """Not an Exception, so that no reader takes it for damage."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(_number: int, _frame: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def damaged(target: Target, seed: int, number: int) -> tuple[bytes, bool]:
    """The content of one input, and whether a checksum covers the damage."""
    start = f"{seed} {target.name} {number}"
    rng = random.Random(start)
    if target.inner is not None and rng.random() < BELOW_THE_CHECKSUM:
        return target.inner(target.good, lambda content: mutated(random.Random(start + " inner"), content)), False
    return mutated(rng, target.good), target.checksum


def judge(target: Target, wanted: Any, path: Path, content: bytes, covered: bool) -> tuple[str, str]:
    """The outcome of one input, and a message that says more."""
    path.write_bytes(content)
    before = _reset_peak()
    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            value = target.read(path)
    except (ValueError, OSError) as error:
        outcome, message = REFUSED, " ".join(str(error).split())
        # The size of a network is judged by its config, wherever that comes from.
        named = path.name in message or isinstance(error, OSError) or "the network of this config" in message
        if not named:
            outcome, message = TRACEBACK, f"an error that does not name the file: {message}"
    except TooSlowError:
        outcome, message = HANG, f"more than {SECONDS} seconds"
    except Exception as error:
        outcome, message = TRACEBACK, f"{type(error).__name__}: {error}"
    else:
        if same(value, wanted):
            outcome, message = EQUAL, ""
        elif covered:
            outcome, message = WRONG, "other content in spite of a checksum"
        else:
            message = target.structure(value, content)
            outcome = WRONG if message else OTHER
    grown = _peak_megabytes() - before
    return (MEMORY, f"{grown:.0f} MB") if grown > MEGABYTES else (outcome, message)


def run(
    seed: int, inputs: int, seconds: float, only: list[tuple[str, int]] | None = None
) -> tuple[Counter[tuple[str, str]], list[Found]]:
    """Counts by (target, outcome), and the bad ones. It ends after so many inputs or seconds."""
    counts, bad = Counter[tuple[str, str]](), list[Found]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        targets = make_targets(folder)
        wanted: dict[str, Any] = {}
        for target in targets:
            (folder / "in").mkdir(exist_ok=True)
            (folder / "in" / target.name).write_bytes(target.good)
            wanted[target.name] = target.read(folder / "in" / target.name)
        by_name = {target.name: target for target in targets}
        numbers = only or [(targets[n % len(targets)].name, n // len(targets)) for n in range(inputs)]
        started = time.monotonic()
        for target_name, number in numbers:
            if time.monotonic() - started > seconds:
                break
            target = by_name[target_name]
            content, covered = damaged(target, seed, number)
            outcome, message = judge(target, wanted[target.name], folder / "in" / target.name, content, covered)
            counts[target.name, outcome] += 1
            if outcome in BAD:
                bad.append(Found(target.name, number, outcome, message))
    return counts, bad


def by_target(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """How many inputs of each target had each outcome."""
    names = list(dict.fromkeys(name for name, _ in counts))
    return {name: {outcome: counts[name, outcome] for outcome in (EQUAL, OTHER, REFUSED, *BAD)} for name in names}


def table(counts: Counter[tuple[str, str]]) -> str:
    outcomes = (EQUAL, OTHER, REFUSED, *BAD)
    names = list(dict.fromkeys(name for name, _ in counts))
    lines = [f"{'':18}" + "".join(f"{outcome:>25}" for outcome in outcomes)]
    for name in names:
        lines.append(f"{name:18}" + "".join(f"{counts[name, outcome]:25,}" for outcome in outcomes))
    totals = [sum(counts[name, outcome] for name in names) for outcome in outcomes]
    return "\n".join([*lines, f"{'all':18}" + "".join(f"{total:25,}" for total in totals)])


def _reset_peak() -> float:
    """Forget the process's peak of memory, where the system can, and give the present one.

    Freed memory goes back to the system first: a process that has trained keeps it, and a bomb would not make it grow.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_megabytes()


def _peak_megabytes() -> float:
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
