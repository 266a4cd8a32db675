"""The ablations: what each row changes, and a short run of all of them."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from emcaps.config import preset
from emcaps.experiments import ablations
from emcaps.experiments.published import ABLATIONS
from emcaps.experiments.records import Record
from emcaps.experiments.runner import Training
from emcaps.experiments.table2 import ROWS as TABLE2
from experiments.short_rows import SHORT


@pytest.mark.parametrize("network", ["tiny", "small"])
def test_each_row_changes_what_its_name_says(network):
    rows = ablations.rows_on("smallnorb", network)
    assert rows.keys() == ABLATIONS.keys()
    base = rows["it3"]
    assert (base.network.iterations, base.network.pose, base.network.coordinate_scale) == (3, "matrix", 1.0)
    assert base.train.loss == "spread"
    for row, changes in {
        "it5": {"network.iterations": 5},
        "it3-vector-no-coordinates": {"network.pose": "vector", "network.coordinate_scale": 0.0},
        "it3-margin": {"train.loss": "margin"},
        "it3-cross-entropy": {"train.loss": "cross_entropy"},
    }.items():
        assert rows[row] == base.override(changes)
    assert preset(network).network.conv1_types == base.network.conv1_types


def test_the_base_of_the_small_network_is_the_row_of_table_2():
    ours = ablations.rows_on("smallnorb", "small")["it3"]
    assert ours.override({"train.eval_every": 2400}) == TABLE2["best-stereo-it3"]
    with pytest.raises(ValueError, match="unknown network 'smal': did you mean 'small'"):
        ablations.rows_on("toys", "smal")


def test_every_row_trains_and_is_found_again(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(ablations.SETTINGS, "tiny", ablations.SETTINGS["tiny"] | SHORT)
    console = Console(file=io.StringIO(), width=160)
    how = Training([0, 1], device="cpu", data_folder=data)
    ablations.run_ablations(tmp_path, console, "toys", train=how)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(ablations.VARIANTS)
    cells = {line.split("]")[0][3:]: [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]}
    assert cells["it5"][:4] == ["5", "matrix", "spread", "yes"]
    assert cells["it3-vector-no-coordinates"][:4] == ["3", "vector", "spread", "no"]
    assert cells["it3-cross-entropy"][2] == "cross entropy"
    parameters = {row: int(found[6].replace(",", "")) for row, found in cells.items()}
    assert parameters["it3-vector"] > 8 * parameters["it3"] == 8 * parameters["it3-no-coordinates"]
    assert all(found[5] == "2" for found in cells.values())
    assert "it3-vector-no-coordinates" in console.file.getvalue()


def test_failed_runs_are_counted_and_left_out_of_the_error():
    def record(accuracy, failed_by=None):
        return Record(Path("runs/it3/seed0"), 0, accuracy, 90.0, (), failed_by=failed_by)

    config = ablations.rows_on("toys")["it3"]
    cells = ablations.row_cells(config, [record(97.0), record(99.0), record(math.nan, 40)])
    assert cells[4:6] == ["2.00 ± 1.41", "3, 1 failed"]
    assert ablations.row_cells(config, [record(math.nan, 40)])[4:] == ["-", "1, 1 failed", cells[6], "-"]
    table = ablations.markdown_ablations({"it3": []}, {"it3": config}, "runs/")
    assert table.splitlines()[-1] == f"| it3 | 3 | matrix | spread | yes | - | 0 | {cells[6]} | - | 1.8 |"
