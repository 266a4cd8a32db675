"""The page on speed: what `emcaps bench` recorded on one H200 and on two CPU cores."""

from __future__ import annotations

from emcaps.bench.cases import (
    BACKWARD,
    BFLOAT16_GRAPH,
    FORWARD,
    FUSED,
    FUSED_GRAPH,
    FUSED_ONE_THREAD,
    PLAIN,
    REFERENCE,
    STEP,
    Case,
)
from emcaps.bench.rows import Row, newest
from emcaps.bench.tables import markdown_headline, milliseconds, ratio
from emcaps.config import preset
from emcaps.documents.recorded import bench_rows
from emcaps.report.markdown import markdown_table

SIZE = 32
"""Side of the images."""


def gpu(_results: str) -> str:
    return markdown_headline(bench_rows("h200"))


def gpu_throughput(_results: str) -> str:
    """Images a second and memory of the training step that is replayed as one CUDA graph."""
    lines = []
    for case in (_case("small", 64, 2, STEP), _case("small", 4096, 2, STEP), _case("full", 64, 3, STEP)):
        row, reference = _row("h200", case, FUSED_GRAPH), newest(bench_rows("h200")).get((case, REFERENCE))
        lines.append((str(case), f"{row.images_per_s:,.0f}", _mib(row), _mib(reference)))
    return markdown_table(("training step", "images/s", "GPU memory, MiB", "of the reference, MiB"), lines)


def gpu_one_image(_results: str) -> str:
    case = _case("small", 1, 2, BACKWARD)
    cells = [_ms(_row("h200", case, name)) for name in (FUSED_GRAPH, FUSED, REFERENCE)]
    header = ("forward+backward", "replayed graph, ms", "launched kernel by kernel, ms", "reference, ms")
    return markdown_table(header, [(str(case), *cells)])


def bf16(_results: str) -> str:
    lines = []
    for case in (_case("small", 64, 2, BACKWARD), _case("full", 64, 2, BACKWARD)):
        lines.append((str(case), *(_ms(_row("h200-bf16", case, name)) for name in (FUSED_GRAPH, BFLOAT16_GRAPH))))
    return markdown_table(("forward+backward, replayed graph", "float32, ms", "bfloat16, ms"), lines)


def cpu(_results: str) -> str:
    """The small network, forward and backward, batch 16, by iterations."""
    names = (PLAIN, REFERENCE, FUSED_ONE_THREAD, FUSED)
    lines = []
    for iterations in (2, 3):
        found = [_row("cpu", _case("small", 16, iterations, BACKWARD), name) for name in names]
        plain, reference, _, fused = (row.median_ms or 0.0 for row in found)
        lines.append((str(iterations), *map(_ms, found), ratio(plain / fused), ratio(reference / fused)))
    header = (
        "iterations",
        "reference in a plain process, ms",
        "reference, ms",
        "fused, one core, ms",
        "fused, ms",
        "faster than plain",
        "faster than reference",
    )
    return markdown_table(header, lines, left=())


def cpu_facts(_results: str) -> str:
    """What the table of times leaves out: images a second, the share of what the cores can do, and memory."""
    batch, one = _case("small", 16, 2, BACKWARD), _case("small", 1, 2, FORWARD)
    lines = []
    for case, name, label in (
        (batch, FUSED, "fused"),
        (batch, REFERENCE, "reference"),
        (batch, PLAIN, "reference in a plain process"),
        (one, FUSED_ONE_THREAD, "fused, one core"),
    ):
        row = _row("cpu", case, name)
        share = f"{100 * (row.share_of_ceiling or 0):.0f}"
        lines.append(
            (f"batch {case.batch}, {case.what}", label, _ms(row), f"{row.images_per_s:,.0f}", share, _mib(row))
        )
    header = ("what", "implementation", "ms", "images/s", "share of the cores' arithmetic, %", "process grows by, MiB")
    return markdown_table(header, lines, left=(0, 1))


def _case(network: str, batch: int, iterations: int, what: str) -> Case:
    return Case(network, preset(network).network.conv1_types, SIZE, batch, iterations, what)


def _row(file: str, case: Case, implementation: str) -> Row:
    found = newest(bench_rows(file)).get((case, implementation))
    if found is None or found.median_ms is None:
        raise ValueError(f"results/bench/{file}.csv has no time of {case}, {case.what}, {implementation}: restore it")
    return found


def _ms(row: Row) -> str:
    assert row.median_ms is not None
    return milliseconds(row.median_ms)


def _mib(row: Row | None) -> str:
    return "-" if row is None or row.peak_mib is None else f"{row.peak_mib:,.0f}"


BLOCKS = {
    "gpu": gpu,
    "gpu-throughput": gpu_throughput,
    "gpu-one-image": gpu_one_image,
    "bf16": bf16,
    "cpu": cpu,
    "cpu-facts": cpu_facts,
}
