"""The recorded rows: each is one line of CSV, with everything that its numbers may depend on."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from emcaps.bench.cases import VIEW, Case
from emcaps.bench.ceilings import Ceilings
from emcaps.bench.flops import case_flops
from emcaps.bench.implementations import Implementation
from emcaps.bench.timing import Timing
from emcaps.files import append_line, check_regular, write_text

OK, OUT_OF_MEMORY, ERROR = "ok", "out of memory", "error"


class Conditions(NamedTuple):
    """What all rows of one run share."""

    device: torch.device
    tf32: bool
    ceilings: Ceilings
    environment: dict[str, Any]
    """What provenance.environment found."""


class Row(NamedTuple):
    """The columns of the CSV. Those of the measurement are empty if it failed."""

    network: str
    types: int
    view: str
    size: int
    batch: int
    iterations: int
    what: str
    implementation: str
    """One of cases.NAMES: fused (launched kernel by kernel); fused, graph (a replayed CUDA graph); fused, 1 core;
    graphed (forward and backward captured by emcaps.nn.graphed); fused+compile (torch.compile around the fused layers,
    with reduce-overhead); bf16, graph; reference; compiled (the reference by torch.compile); plain (the reference in a
    process that does not keep freed memory)."""
    routing: str
    """The setting network.impl: triton, numba or reference."""
    status: str
    """ok, out of memory, or "error: " and the message."""
    median_ms: float | None
    p20_ms: float | None
    p80_ms: float | None
    repeats: int | None
    images_per_s: float | None
    peak_mib: float | None
    """See timing.Timing."""
    gflop: float
    """The arithmetic of the definition, without what an implementation recomputes: see flops.py."""
    tflops: float | None
    """gflop over the median."""
    share_of_ceiling: float | None
    """tflops over ceiling_tflops."""
    ceiling_tflops: float | None
    ceiling_gb_per_s: float | None
    """See ceilings.Ceilings."""
    warmup_s: float | None
    """Building and warming up, compilation included."""
    tf32: str
    """on or off, for matrix products and convolutions alike."""
    device: str
    threads: int
    emcaps: str
    commit: str
    python: str
    torch: str
    triton: str
    cuda: str
    date: str
    """When the run started."""

    @property
    def case(self) -> Case:
        return Case(self.network, self.types, self.size, self.batch, self.iterations, self.what)


def make_row(
    case: Case, implementation: Implementation, status: str, timing: Timing | None, conditions: Conditions
) -> Row:
    flops = case_flops(case)
    tflops = flops / timing.median_ms / 1e9 if timing else None
    ceilings, found = conditions.ceilings, conditions.environment
    return Row(
        network=case.network,
        types=case.types,
        view=VIEW,
        size=case.size,
        batch=case.batch,
        iterations=case.iterations,
        what=case.what,
        implementation=implementation.name,
        routing=implementation.routing,
        status=status,
        median_ms=timing.median_ms if timing else None,
        p20_ms=timing.p20_ms if timing else None,
        p80_ms=timing.p80_ms if timing else None,
        repeats=timing.repeats if timing else None,
        images_per_s=1000 * case.batch / timing.median_ms if timing else None,
        peak_mib=timing.peak_mib if timing else None,
        gflop=flops / 1e9,
        tflops=tflops,
        share_of_ceiling=tflops / ceilings.tflops if tflops and ceilings.tflops else None,
        ceiling_tflops=ceilings.tflops,
        ceiling_gb_per_s=ceilings.gb_per_s,
        warmup_s=timing.warmup_s if timing else None,
        tf32="on" if conditions.tf32 else "off",
        device=found["device"],
        threads=implementation.threads or found["threads"],
        emcaps=found["emcaps"],
        commit=found["commit"] or "",
        python=found["python"],
        torch=found["torch"],
        triton=_triton_version(),
        cuda=torch.version.cuda or "",
        date=found["started"],
    )


def append_row(path: Path, row: Row) -> None:
    """Add a line; a new file starts with the header."""
    if not path.exists():
        write_text(path, _line(Row._fields) + "\n")
    append_line(path, _line(_cell(value) for value in row))


def read_rows(path: Path) -> list[Row]:
    """Every row of a file that `append_row` wrote."""
    check_regular(path)
    with open(path, encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    if not lines or tuple(lines[0]) != Row._fields:
        raise ValueError(
            f"{path} is no table of this version's benchmark: its first line must be the columns {Row._fields[0]}, "
            f"{Row._fields[1]}, ... {Row._fields[-1]}; name another file"
        )
    kinds = typing.get_type_hints(Row)
    rows = []
    for number, cells in enumerate(lines[1:], start=2):
        try:
            pairs = zip(Row._fields, cells, strict=True)
            rows.append(Row(*(_value(kinds[name], cell) for name, cell in pairs)))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is damaged ({error}): delete that line") from error
    return rows


def newest(rows: Iterable[Row]) -> dict[tuple[Case, str], Row]:
    """The last row of each case and implementation, of those with the same device and precision as the last of all."""
    rows = list(rows)
    return {
        (row.case, row.implementation): row
        for row in rows
        if (row.device, row.tf32) == (rows[-1].device, rows[-1].tf32)
    }


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def _value(kind: Any, cell: str) -> Any:
    wanted = next(part for part in (typing.get_args(kind) or (kind,)) if part is not type(None))
    if wanted is not str and cell == "" and type(None) in typing.get_args(kind):
        return None
    return wanted(cell)


def _triton_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""
