"""The experiment on the three pitfalls: its variants, its tables and a short run."""

from __future__ import annotations

import io
import itertools
import math
import shutil

import pytest
from rich.console import Console

from emcaps.analysis.sharpness import LAYERS
from emcaps.config import preset
from emcaps.experiments import pitfalls, runner
from emcaps.experiments.records import Record
from emcaps.experiments.runner import Training
from experiments.short_rows import SHORT


def test_each_mistake_is_the_one_that_its_name_says():
    for count, network in itertools.product((2, 3), ("tiny", "small")):
        rows = pitfalls.rows_on("toys", network)
        correct = rows[f"correct-it{count}"]
        assert correct.network == preset(network).override({"network.iterations": count}).network
        for name, changes in (
            ("no-floor", {"network.variance_floor": 0.0}),
            ("no-scaling", {"network.data_scaling": "none"}),
            ("no-competition", {"network.competition": "types"}),
        ):
            assert rows[f"{name}-it{count}"] == correct.override(changes)
        every = rows[f"all-three-it{count}"].network
        assert (every.variance_floor, every.data_scaling, every.competition) == (0.0, "none", "types")
    with pytest.raises(ValueError, match="unknown network 'smal': did you mean 'small'"):
        pitfalls.rows_on("toys", "smal")


def test_children_to_a_parent_are_those_of_the_paper_with_as_many_types():
    tiny = {"conv_caps1": 2.61, "conv_caps2": 1.96, "class_caps": 40}
    assert pitfalls.mean_data(8, "tiny") == pytest.approx(tiny, abs=0.005)
    assert pitfalls.mean_data(2, "tiny")["conv_caps1"] == 4 * pitfalls.mean_data(8, "tiny")["conv_caps1"]
    small = {"conv_caps1": 2.61, "conv_caps2": 1.96, "class_caps": 80}
    assert pitfalls.mean_data(16, "small") == pytest.approx(small, abs=0.005)


def run_of(accuracy, *lone_parents):
    """A whole run whose layers have the same numbers: parents with one child at the start and at the end."""
    layer = {"logit_useful": 0.5, "assigned": 1.0, "positions": 1.5}
    routing = [
        {"step": step, "layers": {name: [layer | {"lone_parents": share}] for name in LAYERS}}
        for step, share in zip((0, 500), lone_parents, strict=True)
    ]
    return Record(None, 0, accuracy, 60.0, (), routing=tuple(routing))


def test_failures_are_counted_and_left_out_of_the_means():
    whole = [run_of(50, 0.0, 0.1), run_of(70, 0.0, 0.1)]
    failed = Record(None, 0, math.nan, 60.0, (), failed_by=40)
    expected = ["1 of 3", "60.0 ± 14.1", "10.0, 10.0", "50, 50, 50", "1.00", "1.50"]
    assert pitfalls.accuracy_row([*whole, failed]) == expected
    assert pitfalls.accuracy_row([failed]) == ["1 of 1", "-", "-", "-", "-", "-"]
    found = {f"types-{types}": [failed] for types in pitfalls.TYPES}
    rows = pitfalls.ratio_rows(found | {"types-8": [run_of(50, 0.02, 0.1), run_of(70, 0.04, 0.3), failed]}, "small")
    assert rows[0] == ["8", "60.0 ± 14.1", "conv_caps1", "5.22", "20.0", "3.0"]
    assert [row[2] for row in rows] == ["conv_caps1", "conv_caps2"]


def test_a_short_experiment_trains_measures_and_draws_and_trains_nothing_twice(tmp_path, data, monkeypatch):
    short = {name: value for name, value in SHORT.items() if name != "train.eval_every"}
    monkeypatch.setitem(pitfalls.SETTINGS, "tiny", pitfalls.SETTINGS["tiny"] | short)
    monkeypatch.setattr(pitfalls, "TYPES", (2,))
    names = [f"{mistake}-it2" for mistake in pitfalls.MISTAKES] + ["correct-it3", "no-competition-it3", "types-2"]
    monkeypatch.setattr(pitfalls, "VARIANTS", {name: pitfalls.VARIANTS[name] for name in names})
    console = Console(file=io.StringIO(), width=120)
    arguments = (tmp_path / "runs", console, "toys")
    with pytest.raises(ValueError, match=r"there is no folder .*runs: name the folder of runs with --runs"):
        pitfalls.run_pitfalls(*arguments, figures=tmp_path)
    how = Training((7,), device="cpu", data_folder=data)
    pitfalls.run_pitfalls(*arguments, train=how, figures=tmp_path)
    text = console.file.getvalue()
    for variant in names[:-1]:
        assert variant in text
    for name in ("logits", "one-child", "positions"):
        assert (tmp_path / f"pitfalls-tiny-{name}.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(runner, "train_and_measure", None)
    pitfalls.run_pitfalls(*arguments, train=how)
    for left_to_others in ("correct-it3", "types-2"):
        shutil.rmtree(tmp_path / "runs" / left_to_others)
    pitfalls.run_pitfalls(*arguments, figures=tmp_path)
