"""Calls of one function spread over processes of our own.

The processes start from a command line instead of through `multiprocessing`, because that imports the caller's script
again in each of them, and a script without an `if __name__ == "__main__"` guard would then start over.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, BinaryIO

Job = dict[str, Any]


def call_in_processes(function: Callable[..., Any], jobs: Sequence[Job], workers: int) -> Iterator[tuple[int, Any]]:
    """(index, function(**jobs[index])) for every job as it is done; the function is one that can be imported."""
    processes = [_start(function) for _ in range(workers)]
    idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    for process in processes:
        idle.put(process)

    def call(index: int) -> tuple[int, Any]:
        process = idle.get()
        try:
            return index, _ask(process, jobs[index])
        finally:
            idle.put(process)

    threads = ThreadPoolExecutor(workers)
    try:
        for done in as_completed([threads.submit(call, index) for index in range(len(jobs))]):
            yield done.result()
    finally:
        for process in processes:  # before the threads, which wait for their answers
            process.kill()
        threads.shutdown(cancel_futures=True)
        for process in processes:
            process.communicate()


def serve(function: Callable[..., Any], requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer jobs until there are no more."""
    while True:
        try:
            job = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(function(**job), answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


def serve_standard_streams(function: Callable[..., Any]) -> None:
    """What a process that `call_in_processes` starts does all its life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    sys.stdout = sys.stderr  # a stray print must not end up among the answers
    serve(function, sys.stdin.buffer, answers)


def _start(function: Callable[..., Any]) -> subprocess.Popen[bytes]:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from {__name__} import serve_standard_streams\n"
        f"from {function.__module__} import {function.__name__}\n"
        f"serve_standard_streams({function.__name__})"
    )
    # The arrays are too small for threads of the linear algebra library to help; they would get in each other's way.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )


def _ask(process: subprocess.Popen[bytes], job: Job) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(job, process.stdin)
        process.stdin.flush()
        return pickle.load(process.stdout)
    except (EOFError, OSError, pickle.UnpicklingError) as error:
        raise ChildProcessError(
            f"a process that was helping ended before its work was done (exit status {process.wait()}); "
            "its own message, if any, is above; -9 is mostly a lack of memory: close other programs, "
            "or make fewer toys (--quick)"
        ) from error
