"""Work in as many threads as torch uses, and if possible in the very threads that torch uses.

Torch's OpenMP threads do not sleep when their work is done, but spin for some milliseconds in case there is more.
Threads of our own would have to share the cores with them. So chunks of work are given to the same OpenMP team; where
there is none, as in builds without OpenMP, or after a fork, which no OpenMP team survives, plain threads do.
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
    """`work` on each chunk, in any order; what it raises is raised. It lets go of Python's lock and calls no other."""
    if min(torch.get_num_threads(), len(chunks)) <= 1:
        for chunk in chunks:
            work(chunk)
    elif _forked or (team := _openmp_team()) is None:
        list(_pool(torch.get_num_threads()).map(work, chunks))
    else:
        _in_team(team, work, chunks)


def _in_team(team: Any, work: Callable[[Chunk], None], chunks: Sequence[Chunk]) -> None:
    remaining = _Shared(chunks)
    members, errors = list[int](), list[BaseException]()

    def member(_: object) -> None:
        try:
            members.append(threading.get_ident())
            for chunk in remaining:
                work(chunk)
        except BaseException as error:  # no exception gets through the team's own code
            errors.append(error)
            remaining.stop()

    team(TeamWork(member), None, min(torch.get_num_threads(), len(chunks)), 0)
    if errors:
        raise errors[0]
    if threading.get_ident() not in members:  # Ctrl-C came before the `try`, where it can only be printed
        raise KeyboardInterrupt


class _Shared(Iterator[Chunk]):
    """An iterator that several threads take from."""

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
    """GOMP_parallel(function, its argument, threads, flags) of the OpenMP that torch is linked to, or None."""
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
    """A forked process has the pool and the team, but not their threads, and would wait for them for ever."""
    global _forked
    _forked = True
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
