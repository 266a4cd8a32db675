"""The benchmark itself: check, then time every case with every implementation, side by side in one process."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from emcaps.bench.agreement import Check, check, checked_case
from emcaps.bench.cases import Case
from emcaps.bench.ceilings import measure_ceilings
from emcaps.bench.implementations import Implementation, base_name, implementations
from emcaps.bench.rows import ERROR, OK, OUT_OF_MEMORY, Conditions, Row, append_row, make_row, read_rows
from emcaps.bench.screen import screen
from emcaps.bench.tables import check_table, comparison_table, floor_cells, floor_table
from emcaps.bench.timing import Timing, measure
from emcaps.bench.work import build_work
from emcaps.nn.geometry import check_image_size
from emcaps.provenance import environment
from emcaps.report.progress import counting_bar
from emcaps.train.device import start_work


def run_bench(
    cases: Sequence[Case],
    wanted: Sequence[str],
    out: Path,
    console: Console,
    *,
    device: str = "auto",
    seconds: float = 0.5,
    tf32: bool = False,
    only: Mapping[Case, Sequence[str]] | None = None,
) -> list[Row]:
    """Time the cases and append their rows to `out`; ValueError if a check fails, or if a row did, at the end.

    `wanted` are the implementations. `only` says which of them, or which forms of one, are timed of each case, if not
    all are.
    """
    if not seconds > 0:
        raise ValueError(f"--seconds must be above 0, not {seconds}")
    for case in cases:
        check_image_size("--size", case.size, case.config())
    place = start_work(device)
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"the benchmark knows how to time cpu and cuda, not {place.type!r}")
    if out.exists():
        read_rows(out)  # so that a file of another kind is refused before the work, not after it
    if only is not None and not wanted:
        wanted = list(dict.fromkeys(base_name(name) for case in cases for name in only[case]))
    chosen, skipped = implementations(wanted, place)
    for line in skipped:
        console.print(line, markup=False)  # it may hold square brackets
    timed = {case: [each for each in chosen if only is None or each.is_named(only[case])] for case in cases}
    with _current(place), _precision(tf32):
        _check_all(timed, place, console)
        conditions = Conditions(place, tf32, measure_ceilings(place), environment(place))
        console.print(_conditions_line(conditions), markup=False)
        rows = []
        with screen(console, sum(map(len, timed.values()))) as shown:
            for case, forms in timed.items():
                if forms:
                    shown.heading(case)
                for implementation in forms:
                    shown.announce(implementation.name)
                    row = time_row(case, implementation, conditions, seconds)
                    append_row(out, row)
                    shown.row(row)
                    rows.append(row)
    if len(chosen) > 1:
        console.print(comparison_table(rows))
    if any(map(floor_cells, rows)):
        console.print(floor_table(rows))
    console.print(f"rows: {out}", markup=False)
    failed = [row for row in rows if row.status.startswith(ERROR)]
    if failed:
        raise ValueError(f"{len(failed)} of {len(rows)} rows failed; they are in {out} with their errors")
    return rows


def time_row(case: Case, implementation: Implementation, conditions: Conditions, seconds: float) -> Row:
    """Measure one row. An error becomes the row's status, and does not keep the next row from being measured."""
    device = conditions.device
    timing, status = None, OK
    try:
        _clean(device)
        if implementation.plain:
            timing = _measure_in_new_process(case, implementation, device, seconds)
        else:
            timing = _measure(case, implementation, device, seconds)
    except Exception as error:
        status = OUT_OF_MEMORY if is_out_of_memory(error) else f"{ERROR}: {_short(error)}"
    if implementation.compiled:
        torch.compiler.reset()  # the graphs that it captured hold memory, which would count as the next row's
    return make_row(case, implementation, status, timing, conditions)


def _measure(case: Case, implementation: Implementation, device: torch.device, seconds: float) -> Timing:
    with _threads(implementation.threads):
        return measure(
            lambda: build_work(case, implementation, device), device, seconds, captured=implementation.keeps_graphs
        )


def _measure_in_new_process(case: Case, implementation: Implementation, device: torch.device, seconds: float) -> Timing:
    as_here = implementation._replace(threads=implementation.threads or torch.get_num_threads())
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_measure, case, as_here, device, seconds).result()


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, on a GPU or a CPU, even if a compiler reports it, or if the system killed the process."""
    return isinstance(error, MemoryError | BrokenProcessPool) or any(
        text in str(error).lower() for text in ("out of memory", "can't allocate memory", "cannot allocate memory")
    )


def _check_all(timed: Mapping[Case, Sequence[Implementation]], device: torch.device, console: Console) -> None:
    to_check: dict[Case, list[Implementation]] = {}
    for case, forms in timed.items():
        found = to_check.setdefault(checked_case(case), [])
        found += [each for each in forms if each.checked and each not in found]
    to_check = {case: found for case, found in to_check.items() if found}
    if not to_check:
        return
    checks: list[Check] = []
    with counting_bar("checking", "networks") as on_progress:
        for done, (case, fused) in enumerate(to_check.items(), start=1):
            _clean(device)
            try:
                checks += check(case, fused, device)
            except Exception as error:
                raise ValueError(f"the check of {case} broke off, so nothing was timed: {_short(error)}") from error
            on_progress(done, len(to_check))
    console.print(check_table(checks))
    failed = [each for each in checks if not each.passed]
    if failed:
        worst = failed[0]
        raise ValueError(
            f"{len(failed)} of {len(checks)} checks failed, so nothing was timed; the first: {worst.implementation} on "
            f"{worst.case}: {worst.worst} is off by {worst.error:.2g}, the limit is {worst.limit:.2g}"
        )


def _conditions_line(conditions: Conditions) -> str:
    ceilings = conditions.ceilings
    tflops = "not measured" if ceilings.tflops is None else f"{ceilings.tflops:.3g} TFLOP/s"
    return (
        f"{conditions.environment['device']}: float32 arithmetic {tflops}, memory {ceilings.gb_per_s:,.0f} GB/s, "
        f"tf32 {'on' if conditions.tf32 else 'off'}"
    )


def _short(error: Exception) -> str:
    """One line of at most 300 letters: a compiler's error can fill pages."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:297] + "..."


def _clean(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        # Every stream that ever ran a matrix product keeps 32 MiB for the next, also those of earlier rows' graphs.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Make the device current: events, streams and Triton's kernels go to the current GPU."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        yield


@contextmanager
def _precision(tf32: bool) -> Iterator[None]:
    """Set the precision of products and convolutions for all implementations, and make convolutions reproducible."""
    before = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.deterministic,
    )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        (
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.deterministic,
        ) = before
