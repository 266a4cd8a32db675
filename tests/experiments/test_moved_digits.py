"""Changed digits: what each change does to an image, what is recorded, and the tables."""

import io
import json
import re

import pytest
import torch
from rich.console import Console

from emcaps.experiments import moved_digits
from emcaps.experiments.moved_digits import CHANGES, ROWS, cases, changed, read_moved
from emcaps.experiments.records import Record
from emcaps.experiments.runner import Training
from emcaps.experiments.table2 import BEST_BY_ITERATIONS
from emcaps.nn.summary import parameters_of

SIDE = 29


def bars(count=200):
    """An upright bar in the middle of each image."""
    images = torch.zeros(count, 1, SIDE, SIDE, dtype=torch.uint8)
    images[:, :, 10:19, 13:16] = 200
    return images


def generator():
    return torch.Generator().manual_seed(1)


def moments(images):
    """Centre of mass (rows, columns) from the middle, and the covariance of the mass, for each image."""
    mass = images[:, 0].double()
    mass = mass / mass.sum((1, 2), keepdim=True)
    place = torch.arange(SIDE).double() - (SIDE - 1) / 2
    down, across = (mass.sum(2) * place).sum(1), (mass.sum(1) * place).sum(1)
    rows, columns = place[:, None] - down[:, None, None], place - across[:, None, None]
    spread = [(mass * one * other).sum((1, 2)) for one, other in ((rows, rows), (rows, columns), (columns, columns))]
    return down, across, *spread


def test_an_image_that_is_not_changed_stays_as_it_is():
    torch.testing.assert_close(changed(bars(), "shift", 0.0, generator()), bars().float(), rtol=0, atol=1e-3)


def test_a_shift_moves_every_image_as_far_into_directions_of_their_own():
    down, across, *_ = moments(changed(bars(), "shift", 4.0, generator()))
    torch.testing.assert_close(torch.hypot(down, across), torch.full_like(down, 4.0), rtol=0, atol=0.01)
    for one in (down, across):
        assert one.min() < -3.5
        assert one.max() > 3.5


def test_a_turn_turns_either_way_by_its_degrees():
    *_, rows, both, columns = moments(changed(bars(), "turn", 30.0, generator()))
    angle = 0.5 * torch.atan2(2 * both, rows - columns)  # of the main axis, from upright
    torch.testing.assert_close(angle.abs().rad2deg(), torch.full_like(angle, 30.0), rtol=0, atol=1.0)
    assert 0.3 < (angle > 0).double().mean() < 0.7


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_a_zoom_changes_the_size_by_its_factor(factor):
    """Of a smooth blob, which pixels show as it is."""
    place = torch.arange(SIDE) - (SIDE - 1) / 2
    blob = 200 * torch.exp(-(place[:, None].square() + place.square()) / 18)[None, None]
    *_, before, _, _ = moments(blob)
    *_, after, _, _ = moments(changed(blob, "zoom", factor, generator()))
    assert float(after / before) == pytest.approx(factor**2, rel=0.03)


def test_a_slant_moves_rows_sideways_by_their_distance_from_the_middle():
    *_, rows, both, _ = moments(changed(bars(), "slant", 0.4, generator()))
    torch.testing.assert_close((both / rows).abs(), torch.full_like(rows, 0.4), rtol=0, atol=0.03)
    assert 0.3 < (both > 0).double().mean() < 0.7


def test_together_stays_within_its_bounds_and_uses_them():
    down, across, *_ = moments(changed(bars(1000), "together", 0.0, generator()))
    distance = torch.hypot(down, across)
    assert distance.max() < 3.3  # zoom and slant move the centre of a bar hardly
    assert distance.max() > 2.7
    assert (distance > 1.5).double().mean() == pytest.approx(0.75, abs=0.06)  # a circle's area beyond half its radius


def test_the_same_seed_changes_images_alike_and_another_does_not():
    one, same = (changed(bars(), "together", 0.0, generator()) for _ in range(2))
    other = changed(bars(), "together", 0.0, torch.Generator().manual_seed(2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_every_amount_is_a_case_once():
    assert len(cases()) == 2 + sum(len(amounts) - 1 for amounts in CHANGES.values())
    assert next(iter(cases())) == "unchanged"


@pytest.mark.parametrize("cnn", ["small-cnn", "pooled-cnn"])
def test_small_cnns_have_about_the_parameters_of_the_capsules(cnn):
    capsules, small = (parameters_of(moved_digits.ROWS[f"centred-{name}"]) for name in ("capsules", cnn))
    assert small == pytest.approx(capsules, rel=0.01)


def test_rows_differ_in_their_network_and_in_how_training_images_vary():
    for name, config in ROWS.items():
        images, network = name.split("-", 1)
        assert (config.data.turn > 0) == (images == "varied")
        assert (config.network.kind == "capsules") == network.startswith("capsules")
        assert (config.train.steps, config.data.split) == (moved_digits.STEPS, "standard")


def test_capsules_differ_in_their_iterations_and_in_what_table_2_changes_for_them():
    by_iterations = {1: "centred-capsules-it1", 2: "centred-capsules", 3: "centred-capsules-it3"}
    for number, row in by_iterations.items():
        assert ROWS[row].network.iterations == number
        assert ROWS[row] == ROWS["centred-capsules"].override(
            {"network.iterations": number} | BEST_BY_ITERATIONS[number]
        )


def test_rows_are_trained_tested_shown_and_drawn(digits, monkeypatch, capsys):
    short = {"train.steps": 2, "train.log_every": 1}
    tiny = {"centred-capsules": {"network.conv1_types": 2}, "varied-small-cnn": {}}
    for row, changes in tiny.items():
        monkeypatch.setitem(moved_digits.ROWS, row, ROWS[row].override(short | changes))
    console = Console(file=io.StringIO(), width=120)
    how = Training([0, 1], device="cpu", data_folder=digits)
    picture = digits / "moved.png"
    moved_digits.run_moved(digits / "runs", console, list(tiny), train=how, figure=picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert re.search(r"together +\d+\.\d ± \d+\.\d +\d+\.\d ± \d+\.\d", console.file.getvalue())
    printed = capsys.readouterr().out
    assert re.search(r"\| seeds \| 2 \| 2 \|", printed)
    record = json.loads((digits / "runs/centred-capsules/seed1/moved.json").read_text())
    assert (record["step"], record["images"], record["right"].keys()) == (2, 20, cases().keys())


def test_a_damaged_record_is_refused(tmp_path):
    assert read_moved(tmp_path) == {}
    whole = {"images": 10, "right": dict.fromkeys(cases(), 5)}
    for content, reason in (
        (whole | {"right": {}}, "unchanged"),
        (whole | {"images": 0}, "division by zero"),
        (whole | {"images": 4}, "more right answers than images"),
    ):
        (tmp_path / "moved.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=rf"moved.json is damaged \(.*{reason}.*restore it"):
            read_moved(tmp_path)
    (tmp_path / "moved.json").write_text(json.dumps(whole))
    assert read_moved(tmp_path)["together"] == 50


def test_a_figure_without_tested_runs_is_refused(tmp_path):
    runs = {"centred-cnn": [Record(tmp_path, 0, 99.0, 1.0, ())]}
    with pytest.raises(ValueError, match="there are none: add --train"):
        moved_digits.draw_moved(runs, tmp_path / "figure.png")
