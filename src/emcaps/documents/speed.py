"""The page on speed: what `emcaps bench` recorded on one H200 and on two CPU cores.

A GPU's row that was not timed is a dash, and a line of a table without any time is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from emcaps.bench.cases import (
    BACKWARD,
    BFLOAT16_GRAPH,
    COMPILED,
    FORWARD,
    FUSED,
    FUSED_COMPILED,
    FUSED_GRAPH,
    FUSED_ONE_THREAD,
    GRAPHED,
    HEADLINE,
    PLAIN,
    REFERENCE,
    STEP,
    SWEPT,
    Case,
    preset_types,
)
from emcaps.bench.floors import floor_of
from emcaps.bench.peers import OURS, REPLAYED, THEIRS
from emcaps.bench.rows import Row, newest
from emcaps.bench.tables import floor_cells, markdown_headline, milliseconds, ratio
from emcaps.documents.recorded import RESULTS, bench_rows
from emcaps.files import read_json
from emcaps.report.markdown import markdown_table

SIZE = 32
"""Side of the images."""
COLUMNS = (REFERENCE, COMPILED, FUSED, FUSED_GRAPH)
"""The implementations that the first table and the picture compare."""


def gpu(_results: str) -> str:
    return markdown_headline(bench_rows("h200"), COLUMNS)


def gpu_loops(_results: str) -> str:
    """What a training loop sees: forward and backward by the ways of running the fused layers, and the alternative."""
    columns = {
        "plain loop, ms": FUSED,
        "emcaps.nn.graphed, ms": GRAPHED,
        "torch.compile around the layers, ms": FUSED_COMPILED,
        "all replayed, ms": FUSED_GRAPH,
        "torch.compile of the reference, ms": COMPILED,
    }
    cases = [_case(network, 64, iterations, BACKWARD) for network, iterations in HEADLINE]
    lines = [(str(case), *(_ms(_timed("h200", case, name)) for name in columns.values())) for case in cases]
    return markdown_table((BACKWARD, *columns), _known(lines))


def gpu_throughput(_results: str) -> str:
    """Images a second of a training step and of an evaluation, each replayed as one CUDA graph, and memory."""
    lines = []
    for network, iterations in SWEPT:
        for batch in (64, 1024, 4096):
            training, evaluation = (_case(network, batch, iterations, what) for what in (STEP, FORWARD))
            step = _timed("h200", training, FUSED_GRAPH)
            speeds = (_images(step), _images(_timed("h200", evaluation, FUSED_GRAPH)))
            lines.append((str(training), *speeds, _mib(step), _mib(_timed("h200", training, REFERENCE))))
    header = (
        "replayed graph",
        "training, images/s",
        "evaluation, images/s",
        "GPU memory in training, MiB",
        "of the reference, MiB",
    )
    return markdown_table(header, _known(lines))


def gpu_one_image(_results: str) -> str:
    cases = [_case("small", 1, 2, what) for what in (FORWARD, BACKWARD)]
    names = (FUSED_GRAPH, FUSED, REFERENCE)
    lines = [(case.what, *(_ms(_timed("h200", case, name)) for name in names)) for case in cases]
    header = ("one image", "replayed graph, ms", "launched kernel by kernel, ms", "reference, ms")
    return markdown_table(header, _known(lines))


def gpu_floor(_results: str) -> str:
    """The replayed rows of the headline that have gradients, beside what the machine allows."""
    cases = [_case(network, 64, iterations, what) for network, iterations in HEADLINE for what in (BACKWARD, STEP)]
    found = {case: _timed("h200", case, FUSED_GRAPH) for case in cases}
    lines = [(str(case), case.what, *floor_cells(row)) for case, row in found.items() if row is not None]
    header = (
        "network",
        "what",
        "ms",
        "share of arithmetic, %",
        "fewest bytes, MB",
        "edge numbers, MB",
        "floor, ms",
        "time over floor",
    )
    return markdown_table(header, lines, left=(0, 1))


def bf16(_results: str) -> str:
    cases = [_case(network, 64, 2, BACKWARD) for network in ("small", "full")]
    together = all(_timed("h200", case, BFLOAT16_GRAPH) for case in cases)
    file = "h200" if together else "h200-bf16"
    lines = [(str(case), *(_ms(_timed(file, case, name)) for name in (FUSED_GRAPH, BFLOAT16_GRAPH))) for case in cases]
    return markdown_table(("forward+backward, replayed graph", "float32, ms", "bfloat16, ms"), _known(lines))


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
        floor = floor_of(row)
        share = "-" if floor is None else f"{100 * floor.share:.0f}"
        lines.append((f"batch {case.batch}, {case.what}", label, _ms(row), _images(row), share, _mib(row)))
    header = ("what", "implementation", "ms", "images/s", "share of the cores' arithmetic, %", "process grows by, MiB")
    return markdown_table(header, lines, left=(0, 1))


def peers(_results: str) -> str:
    """Another implementation beside this one, on each kind of device that was recorded."""
    lines = []
    for path in sorted((RESULTS / "bench").glob("peers-*.json")):
        found = read_json(path)
        rows = {(row["network"], row["iterations"], row["implementation"]): row for row in found["rows"]}
        for network, iterations in dict.fromkeys((network, iterations) for network, iterations, _ in rows):
            theirs = rows[network, iterations, THEIRS]
            ours = rows.get((network, iterations, REPLAYED)) or rows[network, iterations, OURS]
            what = f"{network}, batch {found['batch']}, {iterations} iteration{'s' * (iterations > 1)}"
            times = (milliseconds(row["median_ms"]) for row in (theirs, ours))
            memory = (f"{row['peak_mib']:,.0f}" for row in (theirs, ours))
            faster = ratio(theirs["median_ms"] / ours["median_ms"])
            lines.append((found["environment"]["device"], what, *times, faster, *memory))
    header = ("device", "forward+backward", "yl-1993, ms", "emcaps, ms", "faster", "yl-1993, MiB", "emcaps, MiB")
    return markdown_table(header, lines, left=(0, 1))


def _case(network: str, batch: int, iterations: int, what: str) -> Case:
    return Case(network, preset_types(network), SIZE, batch, iterations, what)


def _timed(file: str, case: Case, implementation: str) -> Row | None:
    """The newest row, if it has a time."""
    found = newest(bench_rows(file)).get((case, implementation))
    return None if found is None or found.median_ms is None else found


def _row(file: str, case: Case, implementation: str) -> Row:
    found = _timed(file, case, implementation)
    if found is None:
        raise ValueError(f"results/bench/{file}.csv has no time of {case}, {case.what}, {implementation}: restore it")
    return found


def _known(lines: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The lines that have a figure after their name."""
    return [line for line in lines if set(line[1:]) != {"-"}]


def _ms(row: Row | None) -> str:
    return "-" if row is None or row.median_ms is None else milliseconds(row.median_ms)


def _images(row: Row | None) -> str:
    return "-" if row is None or row.images_per_s is None else f"{row.images_per_s:,.0f}"


def _mib(row: Row | None) -> str:
    return "-" if row is None or row.peak_mib is None else f"{row.peak_mib:,.0f}"


BLOCKS = {
    "gpu": gpu,
    "gpu-loops": gpu_loops,
    "gpu-throughput": gpu_throughput,
    "gpu-one-image": gpu_one_image,
    "gpu-floor": gpu_floor,
    "bf16": bf16,
    "cpu": cpu,
    "cpu-facts": cpu_facts,
    "peers": peers,
}
