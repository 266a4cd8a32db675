"""The suite "pages" has every row that the documentation shows, and a page can be made without some of them."""

import pytest

from emcaps.bench.cases import FUSED_ONE_THREAD, NAMES, PLAIN, STEP, Case, page_rows
from emcaps.bench.implementations import base_name
from emcaps.bench.plots import sweeps
from emcaps.documents import scale, smallnorb, speed
from emcaps.documents.recorded import table2_records
from emcaps.experiments import cost
from emcaps.experiments.table2 import ROWS

ON_A_GPU = [name for name in NAMES if name not in (PLAIN, FUSED_ONE_THREAD)]


@pytest.fixture
def record(monkeypatch):
    """Lets the documents find these rows, and no others."""

    def give(rows):
        for module in (scale, smallnorb, speed):
            monkeypatch.setattr(module, "bench_rows", lambda name: rows if name == "h200" else [])

    return give


@pytest.fixture
def rows(row_of, record):
    """The rows of a run of the suite on a GPU."""
    found = [
        row_of(case, name, 0.01 * case.batch * case.iterations + 0.2)._replace(routing="triton")
        for case, names in page_rows().items()
        for name in ON_A_GPU
        if name in names or base_name(name) in names
    ]
    record(found)
    return found


def cells(made):
    """The lines of a table in Markdown, without its header."""
    return [line.strip("| ").split(" | ") for line in made.splitlines()[2:] if line.startswith("|")]


@pytest.mark.parametrize(("block", "lines"), [("gpu-loops", 3), ("gpu-one-image", 2), ("gpu-floor", 6), ("bf16", 2)])
def test_one_run_of_the_suite_fills_the_table(rows, block, lines):
    found = cells(speed.BLOCKS[block](""))
    assert len(found) == lines
    assert not any("-" in line for line in found)


def test_one_run_of_the_suite_fills_the_headline_but_for_the_compiled_reference(rows):
    found = cells(speed.gpu(""))
    assert len(found) == 9
    empty = [number for line in found for number, cell in enumerate(line) if cell == "-"]
    assert set(empty) == {3, 7}  # the column "compiled", and how much faster than that
    assert len(empty) == 2 * 6  # in all but the three rows of forward+backward


def test_one_run_of_the_suite_has_training_and_evaluation_at_three_batches(rows):
    found = cells(speed.gpu_throughput(""))
    assert [line[0].split(", ")[2] for line in found] == ["batch 64", "batch 1024", "batch 4096"] * 2
    assert not any("-" in line[:4] for line in found)


def test_one_run_of_the_suite_has_what_the_other_pages_count_with(rows):
    assert len(cells(scale.gpus(""))) == 12
    assert "steps times the benchmark's step" in smallnorb.time_to_accuracy("")
    steps = {(row.network, row.iterations) for row in rows if row.what == STEP and row.batch == 64}
    assert steps == {("small", 1), ("small", 2), ("small", 3), ("small", 5), ("full", 2), ("full", 3)}
    capsules = {name: found for name, found in table2_records().items() if ROWS[name].network.kind == "capsules"}
    assert all(point.minutes for point in cost.our_points(capsules, rows).values())
    assert [(sweep.network, sweep.axis) for sweep in sweeps(rows)] == [
        *(("small", axis) for axis in ("batch", "iterations", "size", "types")),
        *(("full", axis) for axis in ("batch", "iterations")),
    ]


def test_what_was_not_timed_is_a_dash_or_left_out(record, row_of):
    step = row_of(Case("small", 16, 32, 1024, 2, STEP), "fused, graph", 8.0)
    record([step, row_of(Case("full", 32, 32, 64, 3, STEP), "fused, graph", status="out of memory")])
    assert cells(speed.gpu_throughput("")) == [["small, 32x32, batch 1024, 2 iterations", "128,000", "-", "1,000", "-"]]
    assert cells(speed.gpu_loops("")) == []
