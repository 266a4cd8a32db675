"""Runs work in as many threads as torch uses and, if possible, in torch's own threads.

When their work is done, torch's OpenMP threads do not sleep at once: they spin for some milliseconds in case there is
more. Threads of our own would have to share the cores with them. So chunks of work are given to the same OpenMP team.
Plain threads take its place in builds without OpenMP, and after a fork, which no OpenMP team survives.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

Chunk = TypeVar("Chunk")
TeamWork = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_forked = False


def in_threads(work: Callable[[Chunk], None], chunks: Sequence[Chunk]) -> None:
    """Call `work` with each chunk, in any order, and raise what it raises. `work` should release Python's lock."""
    if min(torch.get_num_threads(), len(chunks)) <= 1:
        for chunk in chunks:
            work(chunk)
    elif _forked or (team := _openmp_team()) is None:
        list(_pool(torch.get_num_threads()).map(work, chunks))
    else:
        _in_team(team, work, chunks)


def _in_team(team: Any, work: Callable[[Chunk], None], chunks: Sequence[Chunk]) -> None:
    remaining = _SharedIterator(chunks)
    members, errors = list[int](), list[BaseException]()

    def member(_: object) -> None:
        try:
            members.append(threading.get_ident())
            for chunk in remaining:
                work(chunk)
        except BaseException as error:  # it cannot be raised through the C code of the team
            errors.append(error)
            remaining.stop()

    team(TeamWork(member), None, min(torch.get_num_threads(), len(chunks)), 0)
    if errors:
        raise errors[0]
    if threading.get_ident() not in members:  # Ctrl-C came before `try`, and ctypes only printed it
        raise KeyboardInterrupt


class _SharedIterator(Iterator[Chunk]):
    """An iterator that several threads can share."""

    def __init__(self, items: Iterable[Chunk]) -> None:
        self.items, self.lock = iter(items), threading.Lock()

    def __next__(self) -> Chunk:
        with self.lock:
            return next(self.items)

    def stop(self) -> None:
        with self.lock:
            self.items = iter(())


@functools.cache
def _openmp_team() -> Any:
    """The function GOMP_parallel(function, its argument, threads, flags) of torch's OpenMP library, or None."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        function = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = (TeamWork, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    return function


@functools.lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "emcaps")


def _after_fork() -> None:
    """Forget pool and team: a forked process does not have their threads, and would wait for them for ever."""
    global _forked
    _forked = True
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
