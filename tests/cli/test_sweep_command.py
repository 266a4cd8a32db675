"""`emcaps sweep` hands on what it was asked for; the sweep itself is in experiments/test_sweep.py."""

import pytest
from commands import TINY

from emcaps.cli.sweep import read_grid, read_part


def test_a_sweep_of_two_values_and_two_seeds(emcaps, data, tmp_path):
    words = ("sweep", "tiny", *TINY, "--steps", 2, "--set", "train.log_every=1")
    words += ("--grid", "network.iterations=1,2", "--seeds", 2, "--runs", "out", "--device", "cpu")
    status, out, err = emcaps(*words)
    assert status == 0, err
    assert sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "out").glob("*/seed*")) == [
        f"out/iterations={iterations}/seed{seed}" for iterations in (1, 2) for seed in (0, 1)
    ]
    assert "network.iterations" in out
    assert emcaps(*words, "--look")[1] == out


def test_a_sweep_takes_the_shortcuts_of_train(emcaps, monkeypatch):
    from emcaps.experiments import sweep

    given = []
    monkeypatch.setattr(sweep, "run_sweep", lambda base, grid, *_, **__: given.append((base, grid)))
    shortcuts = ("--data", "smallnorb", "--split", "azimuth", "--stereo", "--iterations", 3, "--batch-size", 7)
    words = ("sweep", "tiny", "--runs", "out", "--steps", 9, "--grid", "data.crop=24,28", *shortcuts)
    status, _, err = emcaps(*words)
    assert status == 0, err
    ((base, grid),) = given
    assert (base.data.dataset, base.data.split, base.data.view) == ("smallnorb", "azimuth", "stereo")
    assert (base.network.iterations, base.train.batch_size, base.train.steps) == (3, 7, 9)
    assert grid == {"data.crop": ["24", "28"]}


def test_a_sweep_has_a_grid_or_several_seeds(emcaps, tmp_path, monkeypatch):
    from emcaps.experiments import sweep

    given = []
    monkeypatch.setattr(sweep, "run_sweep", lambda *_, **__: given.append(True))
    for options in ((), ("--seed", 3), ("--seed", 3, "--seed", 3), ("--seeds", 1)):
        status, _, err = emcaps("sweep", "tiny", "--runs", "out", *options)
        assert status == 1
        assert err.startswith("emcaps: a sweep compares several runs: add --grid, such as --grid train.learning_rate=")
    assert not given
    for options in (("--seeds", 2), ("--seed", 3, "--seed", 4), ("--look",)):
        assert emcaps("sweep", "tiny", "--runs", "out", *options)[0] == 0
    assert len(given) == 3


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
