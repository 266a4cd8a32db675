"""MNIST, Fashion-MNIST and CIFAR-10 by capsules and by a CNN: what the rows ask for, and the tables."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from emcaps.experiments import other_data
from emcaps.experiments.records import Record
from emcaps.experiments.runner import Training
from emcaps.nn.summary import parameters_of


def test_a_row_is_trained_as_it_stands_and_found_again(digits, monkeypatch, capsys):
    """What a run fills in from its images is in the row already: else its record would be refused."""
    short = {"train.steps": 2, "train.eval_every": 1, "train.log_every": 1, "network.conv1_types": 2}
    monkeypatch.setitem(other_data.ROWS, "mnist", other_data.ROWS["mnist"].override(short))
    console = Console(file=io.StringIO(), width=120)
    how = Training([0, 5], device="cpu", data_folder=digits)
    other_data.run_other_data(digits / "runs", console, ["mnist"], train=how)
    assert re.search(r"mnist +[\d,]+ +2 +\d+\.\d\d ± \d+\.\d\d +\d+\.\d", console.file.getvalue())
    assert re.search(r"\| mnist \| [\d,]+ \| 2 \| \[", capsys.readouterr().out)


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "cifar10"])
def test_the_networks_of_a_set_have_the_same_images_and_steps(dataset):
    rows = [config for config in other_data.ROWS.values() if config.data.dataset == dataset and config.train.eval_every]
    assert {config.network.kind for config in rows} == {"capsules", "cnn"}
    assert len({config.data for config in rows}) == 1
    assert len({config.train.steps for config in rows}) == 1


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_the_quick_networks_of_a_set_have_the_same_images_and_steps(dataset):
    rows = {name: config for name, config in other_data.ROWS.items() if name.startswith(f"{dataset}-quick")}
    assert {config.network.kind for config in rows.values()} == {"capsules", "cnn"}
    assert len({config.data for config in rows.values()}) == 1
    assert len({config.train.steps for config in rows.values()}) == 1


def test_the_small_cnn_has_as_many_parameters_as_the_capsules():
    capsules, cnn = (parameters_of(other_data.ROWS[f"cifar10-quick{ending}"]) for ending in ("", "-small-cnn"))
    assert abs(cnn / capsules - 1) < 0.01


def test_hintons_network_for_cifar_is_the_full_one_with_more_channels():
    full, wide = (other_data.ROWS[f"cifar10-{name}"] for name in ("full", "wide"))
    assert wide.network.conv_channels == 256
    assert replace(wide, network=replace(wide.network, conv_channels=full.network.conv_channels)) == full


def test_the_table_has_every_seed_and_the_time_of_the_fastest_run():
    def record(seed, accuracy, seconds):
        return Record(Path(f"runs/mnist/seed{seed}"), seed, accuracy, seconds, ())

    found = {"mnist": [record(0, 99.0, 90.0), record(3, 98.0, 60.0)], "fashion-mnist": []}
    each = "[99.00](runs/mnist/seed0), [98.00](runs/mnist/seed3)"
    line = f"| mnist | 68,444 | 60,000 | [98.50 ± 0.71](runs/mnist) (n = 2) | {each}"
    assert f"{line} | 1.0 |" in other_data.markdown_rows(found, "runs/")
    assert "fashion" not in other_data.markdown_rows(found, "runs/")
