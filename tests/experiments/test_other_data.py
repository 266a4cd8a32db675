"""MNIST and Fashion-MNIST by the small network: what the rows ask for, and the tables."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from emcaps.data.arrays import parts_of_arrays
from emcaps.data.builtin import NAMES
from emcaps.data.prepared import prepared_path, save_prepared
from emcaps.experiments import other_data
from emcaps.experiments.records import Record
from emcaps.experiments.runner import Training


@pytest.fixture
def digits(tmp_path):
    """A folder of prepared images like MNIST's, two of each digit."""
    images = np.random.default_rng(0).integers(256, size=(20, 28, 28), dtype=np.uint8)
    labels = np.arange(20) % 10
    parts = parts_of_arrays(images, labels, images, labels, names=NAMES["mnist"])
    save_prepared({prepared_path("mnist", part, tmp_path): found for part, found in parts.items()})
    return tmp_path


def test_a_row_is_trained_as_it_stands_and_found_again(digits, monkeypatch, capsys):
    """What a run fills in from its images is in the row already: else its record would be refused."""
    short = {"train.steps": 2, "train.eval_every": 1, "train.log_every": 1, "network.conv1_types": 2}
    monkeypatch.setitem(other_data.ROWS, "mnist", other_data.ROWS["mnist"].override(short))
    console = Console(file=io.StringIO(), width=120)
    how = Training([0, 5], device="cpu", data_folder=digits)
    other_data.run_other_data(digits / "runs", console, ["mnist"], train=how)
    assert re.search(r"mnist +2 +\d+\.\d\d ± \d+\.\d\d +\d+\.\d", console.file.getvalue())
    assert "| mnist | 2 | [" in capsys.readouterr().out


def test_the_table_has_every_seed_and_the_time_of_the_fastest_run():
    def record(seed, accuracy, seconds):
        return Record(Path(f"runs/mnist/seed{seed}"), seed, accuracy, seconds, ())

    found = {"mnist": [record(0, 99.0, 90.0), record(3, 98.0, 60.0)], "fashion-mnist": []}
    line = (
        "| mnist | 60,000 | [98.50 ± 0.71](runs/mnist) (n = 2) | [99.00](runs/mnist/seed0), [98.00](runs/mnist/seed3)"
    )
    assert f"{line} | 1.0 |" in other_data.markdown_rows(found, "runs/")
    assert "fashion" not in other_data.markdown_rows(found, "runs/")
