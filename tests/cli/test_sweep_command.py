"""`emcaps sweep` hands on what it was asked for; the sweep itself is in experiments/test_sweep.py."""

import pytest
from commands import TINY

from emcaps.cli.sweep import read_grid, read_part


def test_a_sweep_of_two_values_and_two_seeds(emcaps, data, tmp_path):
    words = ("sweep", "tiny", *TINY[:-2], "--set", "train.batch_size=8", "--steps", 2, "--set", "train.log_every=1")
    words += ("--grid", "network.iterations=1,2", "--seeds", 2, "--runs", "out", "--device", "cpu")
    status, out, err = emcaps(*words)
    assert status == 0, err
    assert sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "out").glob("*/seed*")) == [
        f"out/iterations={iterations}/seed{seed}" for iterations in (1, 2) for seed in (0, 1)
    ]
    assert "network.iterations" in out
    assert emcaps(*words, "--look")[1] == out


def test_values_are_separated_by_commas_or_semicolons():
    assert read_grid(["a.b=1,2", "network.layers = 4:3:2, 8 ; 8"]) == {
        "a.b": ["1", "2"],
        "network.layers": ["4:3:2, 8", "8"],
    }
    for wrong, message in (
        (["a.b"], "--grid takes NAME=A,B"),
        (["a.b=1,"], "--grid takes NAME=A,B"),
        (["a.b=1", "a.b=2"], "names a.b twice"),
        (["train.seed=1,2"], "use --seed or --seeds"),
    ):
        with pytest.raises(ValueError, match=message):
            read_grid(wrong)


def test_a_part_is_one_of_so_many():
    assert read_part("2/8") == (2, 8)
    for wrong in ("0/8", "9/8", "2", "a/b", "/"):
        with pytest.raises(ValueError, match=r"--part takes I/N, from 1/N to N/N, such as 2/8, not"):
            read_part(wrong)
