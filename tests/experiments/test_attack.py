"""`emcaps experiment attack`: what is counted, for capsules and a CNN, whatever the batch."""

import io
import json

import pytest
import torch
from rich.console import Console

from emcaps import cli
from emcaps.config import preset
from emcaps.experiments import attack, attack_tables
from emcaps.experiments.attack import AttackSettings, measure_attacks, run_attack
from emcaps.experiments.attack_tables import attack_markdown
from emcaps.train import train
from emcaps.train.run_folder import EVALUATION, read_evaluation
from experiments.short_rows import ROWS, SHORT

CNN_SHORT = {key: value for key, value in SHORT.items() if not key.startswith("network")}
QUICK = AttackSettings(images=30, epsilons=(0.1, 0.4), targeted=(0.4,), bim_steps=2, pgd_steps=3, starts=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data):
    """Capsules that learned a little, a CNN, and a CNN that reads pairs."""
    folder = tmp_path_factory.mktemp("runs")
    learned = {"train.steps": 60, "train.margin_schedule": "linear", "train.margin_steps": 30}
    rows = {
        "capsules": ROWS["two"].override(learned | {"data.standardise": "background"}),
        "cnn": preset("cnn").override(CNN_SHORT | {"train.steps": 20}),
        "stereo": preset("cnn").override(CNN_SHORT | {"data.view": "stereo"}),
    }
    for name, config in rows.items():
        train(config, folder / name, device="cpu", data_folder=data)
    return folder


def victims(runs, data, names, settings=QUICK):
    return [attack._load(str(runs / name), settings, torch.device("cpu"), data) for name in names]


@pytest.fixture(scope="module")
def found(runs, data):
    return measure_attacks(victims(runs, data, ["capsules", "cnn", "stereo"]), QUICK)


def share(found, made_for, shown_to, goal, loss, kind, epsilon):
    (one,) = [
        row["share"]
        for row in found["rows"]
        if (row["made_for"].endswith(f"/{made_for}") and row["shown_to"].endswith(f"/{shown_to}"))
        and (row["goal"], row["loss"], row["attack"], row["epsilon"]) == (goal, loss, kind, epsilon)
    ]
    return one


def test_clean_accuracy_is_that_of_the_evaluation(runs, data):
    everything = QUICK._replace(images=10_000, epsilons=(), targeted=())
    found = measure_attacks(victims(runs, data, ["capsules", "cnn"], everything), everything)
    for name in ("capsules", "cnn"):
        accuracy, _ = read_evaluation(runs / name / EVALUATION)
        assert found["networks"][str(runs / name)]["accuracy"] == pytest.approx(accuracy, abs=0.006)  # 1 of 200 images


@pytest.mark.parametrize("name", ["capsules", "cnn"])
def test_the_worst_of_all_attacks_is_no_better_than_any_of_them(found, name):
    for epsilon in QUICK.epsilons:
        worst = share(found, name, name, "untargeted", "all", "worst", epsilon)
        for loss in attack.LOSSES:
            for kind in ("fgsm", "bim", "pgd"):
                assert worst <= share(found, name, name, "untargeted", loss, kind, epsilon)
    large, small = (share(found, name, name, "untargeted", "logit", "pgd", size) for size in (0.4, 0.1))
    assert large <= small
    noise = share(found, name, name, "untargeted", "none", "noise", 0.4)
    assert share(found, name, name, "untargeted", "logit", "bim", 0.4) < noise, "a gradient does more than random signs"


def test_images_are_shown_to_every_network_that_reads_the_same(found):
    pairs = {(row["made_for"].rpartition("/")[2], row["shown_to"].rpartition("/")[2]) for row in found["rows"]}
    assert pairs == {
        ("capsules", "capsules"),
        ("capsules", "cnn"),
        ("cnn", "capsules"),
        ("cnn", "cnn"),
        ("stereo", "stereo"),
    }
    for kind in ("fgsm", "bim"):
        assert 0 <= share(found, "cnn", "capsules", "untargeted", "logit", kind, 0.1) <= 1


def test_results_depend_on_the_seed_and_not_on_the_batch(runs, data, found, monkeypatch):
    monkeypatch.setattr(attack, "MOST_AT_ONCE", 7)
    again = measure_attacks(victims(runs, data, ["capsules"]), QUICK)
    before = [row for row in found["rows"] if row["made_for"] == row["shown_to"] == str(runs / "capsules")]
    assert len(before) == 2 * 8 + 4
    for one, other in zip(before, again["rows"], strict=True):
        # One image: rounding may turn the sign of a gradient of almost zero.
        assert one | {"share": 0} == other | {"share": 0}
        assert one["share"] == pytest.approx(other["share"], abs=1.01 / 30)
    (network,) = again["networks"].values()
    expected = found["networks"][str(runs / "capsules")]
    assert network["accuracy"] == expected["accuracy"]
    assert network["gradients"]["logit"] == pytest.approx(expected["gradients"]["logit"], rel=1e-4)
    one, other = (victims(runs, data, ["cnn"], QUICK._replace(seed=seed))[0] for seed in (0, 1))
    assert not torch.equal(one.crops, other.crops)
    first = attack._random(one, slice(0, 9), 0, "signs")
    assert torch.equal(first[3:5], attack._random(one, slice(3, 5), 0, "signs"))
    assert not torch.equal(first, attack._random(one, slice(0, 9), 1, "signs"))


def test_radius_is_in_deviations_of_the_whole_image(runs, data):
    (victim,) = victims(runs, data, ["capsules"])
    slopes = {"logit": torch.ones_like(victim.crops)}
    which = slice(0, 4)
    radius = 0.1 * victim.deviation[which]
    settings = QUICK._replace(starts=1)
    losses = {"logit": lambda crops: crops.sum()}
    _, _, (attacked,) = next(
        attack._untargeted(victim, which, losses, {"logit": slopes["logit"][which]}, radius, settings)
    )
    whole = attack.load_tested(victim.config.data, data)["test"].images.reshape(-1, 48 * 48)
    change = (attacked - victim.crops[which]).amax((1, 2, 3))
    for one in change:
        assert (abs(0.1 * whole.std(1) - one.item()) < 1e-3).any()


def test_gradient_statistics_call_zero_gradients_by_their_name():
    gradients = torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 2.0]])
    assert attack._gradient_statistics(gradients) == {
        "median_norm": 3.0,
        "zero_pixels": pytest.approx(7 / 12),
        "zero_images": pytest.approx(1 / 3),
    }


def test_a_spread_loss_beyond_its_margin_has_no_gradient_and_the_logits_have(runs, data):
    (victim,) = victims(runs, data, ["capsules"])
    assert victim.config.train.loss == "spread"
    torch.nn.init.constant_(victim.network.class_caps.beta_a, 1e4)
    with torch.no_grad():
        victim.network.class_caps.beta_a[1:] = -1e4  # every image is category 0, without any doubt
    only = torch.zeros(4, dtype=torch.int64)
    slope = attack.gradient_of(
        lambda crops: attack._loss_against(victim, slice(0, 4), "training", only, crops), victim.crops[:4]
    )
    assert not slope.any()
    slope = attack.gradient_of(
        lambda crops: attack._loss_against(victim, slice(0, 4), "logit", only, crops), victim.crops[:4]
    )
    assert slope.any(1).all(0).any()


def test_the_command_writes_tables_a_record_and_a_picture(runs, data, tmp_path, monkeypatch, capsys):
    options = ["--images", "20", "--epsilon", "0.2", "--targeted", "0.2", "--bim-steps", "2", "--pgd-steps", "2"]
    options += ["--starts", "1", "--json", str(tmp_path / "a.json"), "--figure", str(tmp_path / "a.png")]
    names = [str(runs / "capsules"), str(runs / "cnn")]
    command = ["emcaps", "experiment", "attack", *names, *options, "--device", "cpu", "--folder", str(data)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["settings"]["epsilons"] == [0.2]
    assert found["networks"][names[0]]["images"] == 20
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    text = capsys.readouterr().out
    for title in ("untargeted attacks", "targeted attacks", "Gradients on clean images", "made for another network"):
        assert title in text
    table = attack_markdown(found, "untargeted").splitlines()
    worst = share(found, "cnn", "cnn", "untargeted", "all", "worst", 0.2)
    assert table[-1].endswith(f" {100 * worst:.1f} |")
    assert len(table) == 2 + 2 * 2


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["small-mono", "full-stereo"], ["small-mono", "full-stereo"]),
        (["/long/way/to/capsules", "runs/cnn"], ["capsules", "cnn"]),
        (["runs/a/seed0", "runs/b/seed0", "runs/b/seed1"], ["a/seed0", "b/seed0", "b/seed1"]),
        (["/runs/a", "runs/a"], ["/runs/a", "runs/a"]),
        (["a", "./a"], ["a", "./a"]),
    ],
)
def test_a_picture_names_networks_by_what_tells_them_apart(names, shown):
    assert attack_tables._short_names(names) == dict(zip(names, shown, strict=True))


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (["small-mono", "small-mono"], QUICK, "each network must be named once"),
        (["small-mono"], QUICK._replace(epsilons=(0.0,)), "epsilon must be above 0 and at most 10"),
        (["small-mono"], QUICK._replace(targeted=(float("nan"),)), "epsilon must be above 0"),
        (["no-such-network"], QUICK, "there is no file no-such-network"),
    ],
)
def test_mistakes_are_named_before_any_work(names, settings, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run_attack(names, Console(file=io.StringIO()), settings)
