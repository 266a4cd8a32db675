"""The short form of `make fuzz`: the same few hundred damaged files every time, and those that were once a problem."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fuzz.mutations import MUTATIONS
from fuzz.runner import BAD, EQUAL, HANG, MEMORY, OTHER, REFUSED, TRACEBACK, WRONG, judge, run
from fuzz.targets import Target, make_targets, same

SEED, INPUTS = 7, 880


def test_damaged_files_are_refused_or_read_as_they_are():
    counts, bad = run(SEED, INPUTS, seconds=60)
    assert not bad
    outcomes = Counter[str]()
    for (_, outcome), count in counts.items():
        outcomes[outcome] += count
    assert sum(outcomes.values()) == INPUTS
    assert min(outcomes[outcome] for outcome in (EQUAL, OTHER, REFUSED)) > 20  # the damage is of every kind


def test_inputs_that_were_once_a_problem_stay_solved():
    lines = (Path(__file__).parent / "once_bad.txt").read_text(encoding="utf-8").splitlines()[1:]
    for line in lines:
        seed, target, number = line.split()
        assert run(int(seed), 0, seconds=60, only=[(target, int(number))])[1] == []


def fake(read, checksum=False):
    return Target("a.bin", b"good", read, lambda value, content: "" if value.sum() else "no structure", checksum)


def hang(_path):
    while True:
        pass


def bomb(_path):
    """Even if the process was larger than this before."""
    np.ones(300 * 2**20, np.uint8)
    raise ValueError("a.bin is a bomb")


@pytest.mark.parametrize(
    ("read", "checksum", "outcome"),
    [
        (lambda path: np.ones(3), False, EQUAL),
        (lambda path: np.full(3, 2.0), False, OTHER),
        (lambda path: np.full(3, 2.0), True, WRONG),
        (lambda path: np.zeros(3), False, WRONG),
        (lambda path: {}["key"], False, TRACEBACK),
        (lambda path: int("x"), False, TRACEBACK),  # which does not name the file
        (hang, False, HANG),
        (bomb, False, MEMORY),
    ],
)
def test_a_reader_that_does_wrong_is_found(tmp_path, monkeypatch, read, checksum, outcome):
    np.ones(400 * 2**20 if outcome == MEMORY else 1, np.uint8)
    monkeypatch.setattr("fuzz.runner.SECONDS", 0.2 if outcome == HANG else 5.0)
    found, _ = judge(fake(read, checksum), np.ones(3), tmp_path / "a.bin", b"damaged", checksum)
    assert found == outcome
    assert (outcome in BAD) == (outcome not in (EQUAL, OTHER))


def test_every_mutation_changes_every_kind_of_file(tmp_path):
    import random

    for target in make_targets(tmp_path):
        for mutation in MUTATIONS:
            changed = {mutation(random.Random(seed), target.good) for seed in range(20)} - {target.good}
            assert len(changed) >= 3, (target.name, mutation.__name__)
        assert same(target.good, target.good)
