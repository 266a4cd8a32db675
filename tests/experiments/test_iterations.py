"""The experiment on three iterations: its variants, and a short run."""

from __future__ import annotations

from rich.console import Console

from emcaps.experiments import iterations
from emcaps.experiments.iterations import rows_on
from emcaps.experiments.runner import Training
from emcaps.train.run_folder import read_metrics
from experiments.short_rows import SHORT


def test_the_variants_are_what_their_names_say():
    rows = rows_on("smallnorb")
    assert [rows[f"it{n}"].network.iterations for n in (1, 2, 3)] == [1, 2, 3]
    plain, soft = rows["it3"], rows["it3-soft"]
    assert soft.network.pose_scale == 0.5
    assert soft.network.variance_floor == 1.0
    assert soft.network.betas == "half_active"
    assert soft.train == plain.train
    assert (plain.data.dataset, plain.data.split) == ("smallnorb", "validation")
    assert rows_on("toys")["it3"].data.dataset == "toys"


def test_run_iterations_trains_prints_and_draws(tmp_path, data, monkeypatch):
    monkeypatch.setattr(iterations, "SETTINGS", iterations.SETTINGS | SHORT)
    monkeypatch.setattr(iterations, "VARIANTS", {name: iterations.VARIANTS[name] for name in ("it2", "it3")})
    console = Console(record=True, width=120)
    arguments = (tmp_path / "runs", console, "toys")
    how = Training((0, 1), device="cpu", data_folder=data)
    iterations.run_iterations(*arguments, train=how, figures=tmp_path / "images")
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        f"three-iterations-{name}.png" for name in ("learning", "gradients", "routing")
    }
    rows = read_metrics(tmp_path / "runs/it3/seed1")
    iterations.run_iterations(*arguments)
    assert read_metrics(tmp_path / "runs/it3/seed1") == rows, "the second time nothing is trained"
    text = console.export_text()
    assert text.count("it3") == 2
    assert text.count("figure:") == 3
