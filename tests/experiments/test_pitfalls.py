"""The experiment on the three pitfalls: its variants, what it measures, runs that fail."""

from __future__ import annotations

import io
import itertools
import json
from functools import partial

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from emcaps import cli
from emcaps.config import preset
from emcaps.experiments import measured, pitfalls, processes
from emcaps.experiments.inside import LAYERS, layer_statistics, position_statistics
from emcaps.experiments.measured import Run, read_run, train_and_measure
from emcaps.nn import ClassCaps, ConvCaps
from emcaps.routing import RoutingOutput
from emcaps.train import loop
from emcaps.train.evaluate import NotFiniteScoresError
from patterns import write_patterns

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHORT = {
    "network.conv_channels": 8,
    "network.primary_types": 2,
    "data.crop": 16,
    "train.steps": 4,
    "train.batch_size": 4,
    "train.log_every": 1,
    "train.checkpoint_every": 2,
}


def test_each_mistake_is_the_one_that_its_name_says():
    for count, network in itertools.product((2, 3), ("tiny", "small")):
        config_of = partial(pitfalls.variant_config, seed=0, dataset="toys", network=network)
        correct = config_of(f"correct-it{count}")
        assert correct.network == preset(network).override({"network.iterations": count}).network
        for name, changes in (
            ("no-floor", {"network.variance_floor": 0.0}),
            ("no-scaling", {"network.data_scaling": "none"}),
            ("no-competition", {"network.competition": "types"}),
        ):
            assert config_of(f"{name}-it{count}") == correct.override(changes)
        every = config_of(f"all-three-it{count}").network
        assert (every.variance_floor, every.data_scaling, every.competition) == (0.0, "none", "types")


@pytest.mark.parametrize("competition", ["all", "types"])
def test_a_child_gives_itself_once_if_positions_compete_and_to_each_of_them_if_not(competition):
    """5x5 children under 3x3 windows; only the corners are read by one window alone."""
    layer = ConvCaps(2, 3, kernel=3, stride=1, iterations=2, competition=competition)
    children = torch.rand(1, 5, 5, 2)
    trace = layer.trace(RoutingOutput(torch.randn(1, 5, 5, 2, 4, 4), children))
    readers = torch.tensor([1, 2, 3, 2, 1])
    readers = (readers[:, None] * readers).flatten()
    mean = float(readers[readers > 1].double().mean())
    start, end = (position_statistics(layer, step.assignment, children) for step in trace)
    assert (start["assigned"], start["positions"]) == pytest.approx((1.0, mean)), "the start is even over all parents"
    if competition == "all":
        assert end["assigned"] == pytest.approx(1.0)
        assert end["positions"] < mean
    else:
        assert (end["assigned"], end["positions"], end["positions_part"]) == pytest.approx((mean, mean, 1.0))


def test_a_class_layer_has_one_position():
    assert position_statistics(ClassCaps(2, 4), torch.rand(1, 3, 3, 2, 4), torch.rand(1, 3, 3, 2)) == {}


def test_useful_logits_are_those_between_minus_five_and_five():
    layer, children = ClassCaps(2, 4, iterations=1), torch.rand(3, 3, 3, 2)
    trace = layer.trace(RoutingOutput(torch.randn(3, 3, 3, 2, 4, 4), children))
    (row,) = layer_statistics(layer, trace, children)
    logit = torch.logit(trace[0].activation.detach().double())
    assert row["logit_useful"] == pytest.approx(float((logit.abs() <= 5).double().mean()))
    assert row["logit_quantiles"][3] == pytest.approx(float(logit.quantile(0.5)), abs=1e-3)
    assert row["logit_quantiles"] == sorted(row["logit_quantiles"])


def test_children_to_a_parent_are_those_of_the_paper_with_as_many_types():
    tiny = {"conv_caps1": 2.61, "conv_caps2": 1.96, "class_caps": 40}
    assert pitfalls.mean_data(8, "tiny") == pytest.approx(tiny, abs=0.005)
    assert pitfalls.mean_data(2, "tiny")["conv_caps1"] == 4 * pitfalls.mean_data(8, "tiny")["conv_caps1"]
    small = {"conv_caps1": 2.61, "conv_caps2": 1.96, "class_caps": 80}
    assert pitfalls.mean_data(16, "small") == pytest.approx(small, abs=0.005)


def test_a_run_whose_loss_is_no_longer_finite_is_recorded_and_not_repeated(tmp_path):
    data = write_patterns(tmp_path / "data")
    config = pitfalls.variant_config("correct-it2", 0, "toys").override(SHORT | {"train.learning_rate": 1e30})
    train_and_measure(config, tmp_path / "run", device="cpu", data_folder=data)
    failed = json.loads((tmp_path / "run/failure.json").read_text())
    assert 1 <= failed["step"] <= 4
    run = read_run(tmp_path / "run")
    assert run.failed_by == failed["step"]
    assert run.routing[0]["step"] == 0
    train_and_measure(config, tmp_path / "run", device="cpu", data_folder=tmp_path / "no data")


def test_a_run_whose_answers_are_not_finite_has_failed_too(tmp_path, monkeypatch):
    """The loss of the last batch may still be finite when a test image is answered with NaN."""

    def no_answers(*_, **__):
        raise NotFiniteScoresError

    data = write_patterns(tmp_path / "data")
    config = pitfalls.variant_config("correct-it2", 0, "toys").override(SHORT)
    monkeypatch.setattr(loop, "evaluate_split", no_answers)
    train_and_measure(config, tmp_path / "run", device="cpu", data_folder=data)
    assert read_run(tmp_path / "run").failed_by == 4
    assert measured.is_complete(tmp_path / "run", config)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_routing_is_measured_where_the_run_trains(tmp_path, device):
    data = write_patterns(tmp_path / "data")
    config = pitfalls.variant_config("correct-it3", 0, "toys").override(SHORT)
    train_and_measure(config, tmp_path / "run", device=device, data_folder=data)
    assert [found["step"] for found in read_run(tmp_path / "run").routing] == [0, 2, 4]


def test_the_command_hands_its_options_on(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr(pitfalls, "run_pitfalls", lambda *values, train_first: given.update(enumerate(values)))
    command = ["emcaps", "experiment", "pitfalls", "--network", "small", "--jobs", "8", "--runs", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert list(given.values())[-2:] == ["small", 8]


def run_of(accuracy, *lone_parents):
    """A whole run whose layers have the same numbers: parents with one child at the start and at the end."""
    layer = {"logit_useful": 0.5, "assigned": 1.0, "positions": 1.5}
    routing = [
        {"step": step, "layers": {name: [layer | {"lone_parents": share}] for name in LAYERS}}
        for step, share in zip((0, 500), lone_parents, strict=True)
    ]
    return Run(None, [], 0.9, accuracy, routing, None)


def test_failures_are_counted_and_left_out_of_the_means():
    whole = [run_of(0.5, 0.0, 0.1), run_of(0.7, 0.0, 0.1)]
    failed = Run(None, [], float("nan"), float("nan"), [], 40)
    expected = ["1 of 3", "60.0 ± 14.1", "10.0, 10.0", "50, 50, 50", "1.00", "1.50"]
    assert pitfalls.accuracy_row([*whole, failed]) == expected
    assert pitfalls.accuracy_row([failed]) == ["1 of 1", "-", "-", "-", "-", "-"]
    found = {f"types-{types}": [failed] for types in pitfalls.TYPES}
    rows = pitfalls.ratio_rows(found | {"types-8": [run_of(0.5, 0.02, 0.1), run_of(0.7, 0.04, 0.3), failed]}, "small")
    assert rows[0] == ["8", "60.0 ± 14.1", "conv_caps1", "5.22", "20.0", "3.0"]
    assert [row[2] for row in rows] == ["conv_caps1", "conv_caps2"]


def test_a_short_experiment_trains_measures_and_draws_and_goes_on(tmp_path, monkeypatch):
    data = write_patterns(tmp_path / "data")
    monkeypatch.setitem(pitfalls.SETTINGS, "tiny", pitfalls.SETTINGS["tiny"] | SHORT)
    monkeypatch.setattr(pitfalls, "SEEDS", (0,))
    monkeypatch.setattr(pitfalls, "TYPES", (2,))
    names = [f"{mistake}-it2" for mistake in pitfalls.MISTAKES] + [
        "correct-it3",
        "no-competition-it3",
        "types-2",
    ]
    monkeypatch.setattr(pitfalls, "VARIANTS", {name: pitfalls.VARIANTS[name] for name in names})
    console = Console(file=io.StringIO(), width=120)
    arguments = (tmp_path / "runs", data, "cpu", "toys", console)
    with pytest.raises(ValueError, match=r"no complete runs of correct-it2, .* and 7 more .* train them with --train"):
        pitfalls.run_pitfalls(*arguments, tmp_path, train_first=False)
    pitfalls.run_pitfalls(*arguments, tmp_path, train_first=True)
    text = console.file.getvalue()
    for variant in names[:-1]:
        assert variant in text
    for name in ("logits", "one-child", "positions"):
        assert (tmp_path / f"pitfalls-tiny-{name}.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(measured, "train_and_measure", None)
    for train_first in (True, False):
        pitfalls.run_pitfalls(*arguments, None, train_first=train_first)


def test_processes_divide_the_runs_among_them(tmp_path, monkeypatch):
    """Every second run is left to a helper; all together are done, and one process does what is left."""
    data = write_patterns(tmp_path / "data")
    config = pitfalls.variant_config("correct-it2", 0, "toys").override(SHORT)
    monkeypatch.setattr(processes, "_work_here", lambda _work: None)  # here, not in the helper, which starts afresh
    names = ("one", "two", "three")
    config_of = partial(_same_for_all, config)
    measured.measure_missing(tmp_path / "runs", names, (0,), config_of, "cpu", data, jobs=2)
    folders = [tmp_path / "runs" / name / "seed0" for name in names]
    assert [measured.is_complete(folder, config) for folder in folders] == [False, True, False]
    monkeypatch.undo()
    measured.measure_missing(tmp_path / "runs", names, (0,), config_of, "cpu", data)
    assert all(measured.is_complete(folder, config) for folder in folders)
    first, helped = (load_file(folder / "weights.safetensors") for folder in folders[:2])
    torch.testing.assert_close(first, helped, rtol=1e-3, atol=1e-5)  # threads may change the last bits


def _same_for_all(config, _name, _seed):
    return config
