"""The short form of `make faults`, in a process that has computed no gradients, and what its judge must find."""

import subprocess
import sys
from pathlib import Path

import pytest

from faults.commands import Ended
from faults.injected import KILL, Seen
from faults.scenarios import Scenario
from faults.suite import (
    CLEAN,
    DIFFERENT,
    HANG,
    LEFT_OVER,
    LOST,
    REFUSED,
    TRACEBACK,
    Case,
    Judged,
    _badly_ended,
    _compare,
    counts_of,
    table,
)

TESTS = Path(__file__).resolve().parent.parent


def test_commands_that_are_killed_or_refused_are_mended_to_the_same_bits():
    command = [sys.executable, "-m", "faults", "--seed", "11", "--cases", "30"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n30 of 30 cases, " in done.stdout
    assert done.stdout.rstrip().endswith(" 0 bad")


ROWS = [{"step": 5, "loss": 0.5}]
WANTED = {"run/weights.safetensors": b"weights", "run/metrics.jsonl": ROWS, "run/config.json": b"{}"}


@pytest.mark.parametrize(
    ("found", "damaged", "outcome"),
    [
        ({}, False, CLEAN),
        ({"run/.x.part": b""}, False, LEFT_OVER),
        ({"run/weights.safetensors": b"others"}, False, DIFFERENT),
        ({"run/weights.safetensors": b"others"}, True, DIFFERENT),
        ({"run/metrics.jsonl": []}, False, DIFFERENT),
        ({"run/metrics.jsonl": []}, True, CLEAN),  # rows that were taken away are not made again
        ({"run/metrics.jsonl": [{"step": 5, "loss": 0.4}]}, True, DIFFERENT),
    ],
)
def test_a_result_that_differs_is_found(found, damaged, outcome):
    scenario = Scenario("train", Path(), list, list, WANTED, ended(0), {}, ROWS)
    assert _compare(WANTED | found, scenario, damaged)[0] == outcome
    missing = {name: value for name, value in WANTED.items() if "weights" not in name}
    assert _compare(missing, scenario, False)[0] == LOST


def ended(status, said="", hung=False):
    return Ended(status, hung, said, Seen(1, 1, 0, 0), 0.1)


@pytest.mark.parametrize(
    ("end", "fault", "outcome"),
    [
        (ended(0), "full disk", None),
        (ended(130), "SIGINT", None),
        (ended(-9), KILL, None),
        (ended(-9), "full disk", TRACEBACK),
        (ended(-7), "file truncated", TRACEBACK),
        (ended(1, "run: r\nemcaps: no space left"), "full disk", None),
        (ended(1, "run: r\n"), "full disk", TRACEBACK),
        (ended(1, "Traceback (most recent call last)\nOSError"), "full disk", TRACEBACK),
        (ended(-9, hung=True), KILL, HANG),
    ],
)
def test_a_command_that_ends_badly_is_found(end, fault, outcome):
    found = _badly_ended([end], fault)
    assert (found and found[0]) == outcome


def test_counts_are_by_fault_and_add_up():
    judged = [Judged(Case("train", KILL, number), CLEAN, "", True) for number in range(3)]
    counts = counts_of([*judged, Judged(Case("import", "file removed", 0), REFUSED, "", False)])
    assert counts[KILL][CLEAN] == 3
    assert counts["file removed"][REFUSED] == 1
    assert table(counts).splitlines()[-1].split()[:3] == ["all", "3", "1"]
