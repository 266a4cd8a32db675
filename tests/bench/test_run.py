"""The whole benchmark through the command line, on a CPU."""

import dataclasses
import gc
import os
import re
import sys
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import pytest
import torch

from emcaps.bench import cases, run, timing
from emcaps.bench.agreement import Check
from emcaps.bench.cases import suite
from emcaps.bench.ceilings import Ceilings
from emcaps.bench.implementations import Implementation
from emcaps.bench.rows import read_rows
from emcaps.cli import main

QUICK = ("--suite", "quick", "--device", "cpu", "--seconds", "0.01", "--out", "bench.csv")
SMALLEST = (
    "--network",
    "tiny",
    "--types",
    "2",
    "--size",
    "13",
    "--batch",
    "1",
    "--device",
    "cpu",
    "--seconds",
    "0.01",
    "--impl",
    "reference",
)


@pytest.fixture
def bench(capsys, monkeypatch, tmp_path):
    """Run `emcaps bench ARGUMENTS` in an empty folder; gives (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "measure_ceilings", lambda device: Ceilings(0.1, 20.0))  # they have a test of their own
    monkeypatch.setattr(timing, "LEAST", 2)
    monkeypatch.setattr(timing, "WARM_UP", 1)
    gc.freeze()  # every row looks for garbage: not among what other tests have imported

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["emcaps", "bench", *arguments])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return command


@pytest.fixture
def two(monkeypatch):
    """A second implementation, which is the reference under another name."""
    both = [Implementation("reference", "reference"), Implementation("fused", "reference")]
    monkeypatch.setattr(run, "implementations", lambda wanted, device: (both, []))


def test_quick_on_a_cpu(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    monkeypatch.setattr(cases, "grid", partial(cases.grid, sizes=(13,), types=(2,)))  # a smaller network than its own
    status, out, err = bench(*QUICK)
    assert status == 0, err
    assert "compiled is skipped" in out
    assert re.search(r"tiny, 2 types, 13x13, batch 8, 2 iterations: training step\n  reference +[\d.,]+ ms", out)
    rows = read_rows(tmp_path / "bench.csv")
    assert [(row.batch, row.what, row.implementation, row.status) for row in rows] == [
        (batch, what, implementation, "ok")
        for batch in (1, 8)
        for what in ("forward", "forward+backward", "training step")
        for implementation in ("reference", "fused, 1 core", "fused")
    ]
    assert {(row.implementation, row.threads) for row in rows} >= {("fused, 1 core", 1)}
    assert all(row.p20_ms <= row.median_ms <= row.p80_ms and row.repeats >= 2 for row in rows)
    assert bench("--table", "bench.csv")[1].startswith(
        "| network | what | reference, ms | fused, 1 core, ms | fused, ms | faster"
    )
    assert bench("--plot", "bench.csv", "--out", "bench.svg")[1] == "bench.svg\n"
    assert (tmp_path / "bench.svg").exists()


def test_rows_are_added_to_a_table_and_compared(bench, two, tmp_path):
    for _ in range(2):
        status, out, err = bench(*SMALLEST, "--what", "forward", "--out", "bench.csv")
        assert status == 0, err
        assert "relative errors" in out
        assert re.search(r"faster than +reference", " ".join(out.split()))
    assert [row.implementation for row in read_rows(tmp_path / "bench.csv")] == ["reference", "fused"] * 2


def test_the_suite_of_the_pages_times_each_case_with_its_own_implementations(bench, two, tmp_path, monkeypatch):
    one, other = (dataclasses.replace(case, types=2, size=13, batch=1) for case in suite("quick", ("forward",)))
    other = dataclasses.replace(other, what="forward+backward")
    for module in ("emcaps.cli.benchmark", "emcaps.bench.cases"):
        monkeypatch.setattr(f"{module}.page_rows", lambda: {one: ("reference",), other: ("reference", "fused")})
    asked = []
    monkeypatch.setattr(run, "check", lambda case, each, device: asked.append((case, each)) or [])
    options = ("--suite", "pages", "--device", "cpu", "--seconds", "0.01", "--out", "rows.csv")
    status, _, err = bench(*options)
    assert status == 0, err
    assert [(row.what, row.implementation) for row in read_rows(tmp_path / "rows.csv")] == [
        ("forward", "reference"),
        ("forward+backward", "reference"),
        ("forward+backward", "fused"),
    ]
    assert [(case, [each.name for each in forms]) for case, forms in asked] == [(other, ["fused"])]


def test_a_failing_check_stops_before_anything_is_timed(bench, two, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "check", lambda case, each, device: [Check(case, each[0].name, 17, "pose", 0.02, 1e-6)])
    monkeypatch.setattr(run, "time_row", lambda *_: pytest.fail("something was timed"))
    status, out, err = bench(*SMALLEST)
    assert status == 1
    assert "FAILED" in out
    assert "emcaps: 1 of 1 checks failed, so nothing was timed; the first: fused on tiny, 2 types, 13x13" in err
    assert not (tmp_path / "runs").exists()


def test_a_check_that_breaks_off_stops_too(bench, two, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(run, "check", broken)
    status, _, err = bench(*SMALLEST)
    assert status == 1
    assert "broke off, so nothing was timed: RuntimeError: no such kernel" in err


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        MemoryError(),
        RuntimeError("can't allocate memory"),
        BrokenProcessPool("A process in the process pool was terminated abruptly"),
    ],
)
def test_a_row_that_runs_out_of_memory_is_recorded_as_such_and_is_no_failure(bench, tmp_path, monkeypatch, error):
    real = run.build_work

    def build_work(case, implementation, device):
        if case.what == "forward+backward":
            raise error
        return real(case, implementation, device)

    monkeypatch.setattr(run, "build_work", build_work)
    status, out, err = bench(*SMALLEST)
    assert status == 0, err
    rows = read_rows(tmp_path / "runs" / "bench" / "grid.csv")
    assert [row.status for row in rows] == ["ok", "out of memory", "ok"]
    assert rows[1].median_ms is None
    assert re.search(r"reference +out of memory", out)


def test_a_row_that_fails_is_recorded_with_its_error_and_the_rest_goes_on(bench, tmp_path, monkeypatch):
    real = run.build_work

    def build_work(case, implementation, device):
        if case.what == "forward":
            raise RuntimeError("no\nsuch kernel" + " " * 5 + "x" * 400)
        return real(case, implementation, device)

    monkeypatch.setattr(run, "build_work", build_work)
    status, _, err = bench(*SMALLEST)
    assert status == 1
    assert "emcaps: 1 of 3 rows failed; they are in runs/bench/grid.csv with their errors" in err
    rows = read_rows(tmp_path / "runs" / "bench" / "grid.csv")
    assert rows[0].status.startswith("error: RuntimeError: no such kernel x")
    assert len(rows[0].status) < 320
    assert [row.status for row in rows[1:]] == ["ok", "ok"]


def test_an_interrupted_run_keeps_its_rows(bench, tmp_path, monkeypatch):
    real = run.build_work

    def build_work(case, implementation, device):
        if case.what == "training step":
            raise KeyboardInterrupt
        return real(case, implementation, device)

    monkeypatch.setattr(run, "build_work", build_work)
    status, _, err = bench(*SMALLEST, "--out", "rows.csv")
    assert status == 130
    assert "interrupted; the rows that are done are in rows.csv" in err
    assert len(read_rows(tmp_path / "rows.csv")) == 2


def test_a_table_of_another_kind_is_refused_before_anything_is_timed(bench, tmp_path):
    (tmp_path / "bench.csv").write_text("name,value\n")
    status, _, err = bench(*QUICK)
    assert status == 1
    assert "bench.csv is no table of this version's benchmark" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "quik"], "emcaps: unknown suite 'quik': did you mean 'quick'?"),
        (["--what", "forwards", "--batch", "1"], "emcaps: unknown --what 'forwards': did you mean 'forward'?"),
        (["--seconds", "0", "--batch", "1"], "emcaps: --seconds must be above 0, not 0.0"),
        (["--size", "12"], "emcaps: --size must be at least 13 for a capsule network"),
        (["--plot", "missing.csv"], "emcaps: No such file or directory: missing.csv"),
    ],
)
def test_mistakes_are_one_line(bench, arguments, message):
    status, _, err = bench(*arguments)
    assert status == 1
    assert err.strip().startswith(message)


def test_precision_is_set_for_all_and_put_back():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    for tf32 in (True, False):
        with run._precision(tf32):
            assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (tf32, tf32)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_help_has_examples(bench):
    out = bench("--help")[1]
    assert "Examples:" in out
    assert "emcaps bench --suite headline" in out


def test_the_plain_reference_runs_in_a_process_of_its_own(bench, monkeypatch):
    monkeypatch.setattr(run, "_measure", process_that_measured)
    status, _out, err = bench(*SMALLEST[:-1], "plain", "--what", "forward", "--out", "bench.csv")
    assert not status, err
    (row,) = read_rows("bench.csv")
    assert (row.implementation, row.routing, row.status) == ("plain", "reference", "ok")
    assert row.median_ms not in (0, os.getpid())


def process_that_measured(*_arguments):
    return timing.Timing(os.getpid(), 1.0, 2.0, 2, 0.1, None)
