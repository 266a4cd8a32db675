"""Several processes that work on one experiment: they divide its runs among them and stop together."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import get_context, parent_process

import torch

from emcaps.interrupts import sigterm_like_ctrl_c
from emcaps.report.progress import training_bar
from emcaps.train import Progress
from emcaps.train.run_folder import HAS_LOCKS

Bar = Callable[[str, int], AbstractContextManager[Callable[[Progress], None]]]
"""`with bar(title, steps) as show:` and then show(progress)."""
Work = Callable[[int, Bar], None]
"""`work(number, bar)` does the part of process `number`; it must be a function of a module, or a partial of one."""


def work_together(work: Work, jobs: int) -> None:
    """Do part 0 of the work here, with progress bars, and parts 1 to jobs - 1 in processes of their own, without.

    Whatever stops this process stops the others, which save as they do after Ctrl-C.
    """
    if jobs > 1 and not HAS_LOCKS:
        raise ValueError("several jobs need file locks, which this system does not have: train with --jobs 1")
    with sigterm_like_ctrl_c():
        _work_with_helpers(work, jobs)


def _work_with_helpers(work: Work, jobs: int) -> None:
    helpers = [get_context("spawn").Process(target=_help, args=(work, number, jobs)) for number in range(1, jobs)]
    try:
        for helper in helpers:
            helper.start()
        with _share_of_threads(jobs):
            _work_here(work)
        if helpers:
            print("waiting for the runs of the other processes", file=sys.stderr)
        for helper in helpers:
            helper.join()
    except BaseException:
        for helper in helpers:
            if helper.pid is not None:
                helper.terminate()  # it saves, as after Ctrl-C
        raise
    finally:
        for helper in helpers:
            if helper.pid is not None:
                helper.join()
    if failed := [helper.exitcode for helper in helpers if helper.exitcode]:
        raise ValueError(
            f"{len(failed)} of {jobs} processes ended early, exit code {failed[0]}: see above, or try with --jobs 1"
        )


def _work_here(work: Work) -> None:
    work(0, training_bar)


def _help(work: Work, number: int, jobs: int) -> None:
    """Do the part of a helping process, until the first process stops it or is gone."""
    if hasattr(os, "setsid"):
        os.setsid()  # a Ctrl-C goes to the first process alone: two signals would stop this one before it has saved

    def stop_if_alone(_progress: Progress) -> None:
        first = parent_process()
        if first is not None and not first.is_alive():
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        with sigterm_like_ctrl_c(), _share_of_threads(jobs):
            work(number, lambda _title, _steps: nullcontext(stop_if_alone))
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


@contextmanager
def _share_of_threads(jobs: int) -> Iterator[None]:
    """Give each process its share of torch's threads, so that they do not wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // jobs))
    try:
        yield
    finally:
        torch.set_num_threads(before)
