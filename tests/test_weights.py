"""The networks that come with the package: they load, say what they are, and are the runs that were recorded."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import emcaps
from emcaps.config import RunConfig
from emcaps.nn.summary import count_parameters
from emcaps.train.checkpoint import load as load_file
from emcaps.weights import SHIPPED, find_weights

ROOT = Path(__file__).parent.parent
CARD = (ROOT / "src/emcaps/weights/README.md").read_text(encoding="utf-8")


RUNS = {
    "full-stereo": "results/table2/long-full-stereo-it2/seed0",
    "small-mono": "results/table2/longest-mono-it2/seed0",
    "small-stereo": "results/table2/long-stereo-it3/seed0",
    "small-toys": "results/toys/small-toys",
}
SMALLNORB = tuple(name for name in RUNS if name != "small-toys")
MOST_PARAMETERS = {"small": 70_000, "full": 320_000}


def test_the_names_are_those_that_are_documented():
    assert tuple(RUNS) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_network_classifies_images(name):
    network = emcaps.load(name)
    assert not network.training
    assert network.config.input == "as_given"  # it was trained on images that had been prepared
    assert count_parameters(network) < MOST_PARAMETERS[name.split("-")[0]]
    assert find_weights(name).stat().st_size < 2e6
    output = network(torch.randn(2, network.image_channels, 32, 32))
    assert output.activation.shape == (2, 5)
    assert output.activation.isfinite().all()
    with pytest.raises(TypeError, match=r"floating-point numbers, not torch\.uint8: emcaps\.crops_for prepares"):
        network(torch.zeros(2, network.image_channels, 32, 32, dtype=torch.uint8))


RECORDED_SCORES = {
    "full-stereo": [0.09039, 0.26615, 0.67348, 0.02391, 0.09526],
    "small-mono": [0.16745, 0.00792, 0.08063, 0.06253, 0.04980],
    "small-stereo": [0.25832, 0.94484, 0.03291, 0.17881, 0.22364],
    "small-toys": [0.16519, 0.40811, 0.19339, 0.04133, 0.07470],
}
"""Of an image of noise, by the reference on a CPU, with Python 3.11 and torch 2.13.0."""


@pytest.mark.parametrize("impl", ["reference", "auto"])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_network_gives_the_scores_that_were_recorded(name, impl):
    """Whatever the versions of Python, torch and the others: `make compat` runs this with many."""
    network = emcaps.load(name, impl=impl)
    image = np.random.default_rng(0).integers(0, 256, (1, network.image_channels, 48, 48), np.uint8)
    scores = network(emcaps.crops_for(name, torch.from_numpy(image))).activation[0]
    torch.testing.assert_close(scores.detach(), torch.tensor(RECORDED_SCORES[name]), rtol=0, atol=1e-4)


def test_load_chooses_the_implementation():
    images = torch.randn(2, 1, 32, 32)
    reference = emcaps.load("small-mono", impl="reference")
    assert [layer.routing["impl"] for layer in reference.routed] == ["reference"] * 3
    assert [layer.routing["impl"] for layer in emcaps.load("small-mono").routed] == ["auto"] * 3
    usual = emcaps.load("small-mono")(images).activation
    torch.testing.assert_close(reference(images).activation, usual, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"unknown impl 'numbra': did you mean 'numba'\?"):
        emcaps.load("small-mono", impl="numbra")


def test_load_refuses_an_implementation_that_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"impl='triton' cannot run: .*not on cpu: use impl='auto' or 'reference'"):
        emcaps.load("small-mono", impl="triton")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_network_is_the_end_of_its_recorded_run(name):
    record = ROOT / RUNS[name]
    shipped = load_file(find_weights(name))
    config = shipped.config
    assert config == RunConfig.from_json((record / "config.json").read_text())
    found = json.loads((record / "evaluation.json").read_text())
    assert (shipped.step, found["step"]) == (config.train.steps,) * 2
    kind = name.split("-")[1]
    assert (config.data.dataset, config.data.view) == (("toys", "mono") if kind == "toys" else ("smallnorb", kind))


@pytest.mark.parametrize("name", SMALLNORB)
def test_a_cpu_counts_the_same_answers_as_the_gpu(name):
    """The run was evaluated on a GPU; `emcaps eval` ran on a CPU. Full-stereo changes one answer."""
    on_cpu = json.loads((ROOT / f"results/weights/{name}-cpu.json").read_text())["test"]["confusion"]
    on_gpu = json.loads((ROOT / RUNS[name] / "evaluation.json").read_text())["test"]["confusion"]
    changed = sum(
        abs(one - other) for row, line in zip(on_cpu, on_gpu, strict=True) for one, other in zip(row, line, strict=True)
    )
    assert changed == (2 if name == "full-stereo" else 0)  # a changed answer leaves one cell for another


@pytest.mark.parametrize("name", SHIPPED)
def test_crops_are_prepared_as_in_training(name):
    config = load_file(find_weights(name)).config.data
    images = torch.randint(256, (3, config.image_channels, 48, 48), dtype=torch.uint8)
    crops = emcaps.crops_for(name, images)
    centre = images[..., 8:40, 8:40].double()
    if name in ("small-mono", "small-toys"):
        rim = torch.ones(48, 48, dtype=torch.bool)
        rim[1:-1, 1:-1] = False
        expected = (centre - images[..., rim].double().mean(-1)[..., None, None]) / 40
    else:
        mean = centre.mean((1, 2, 3), keepdim=True)
        expected = (centre - mean) / centre.std((1, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(crops.double(), expected, rtol=1e-5, atol=1e-5)
    rule = rf"must be a uint8 tensor \(B, {config.image_channels}, 48, 48\), {config.view}, not "
    for wrong, remedy in (
        (images / 255, "torch.float32: give grey levels"),
        (images.repeat(1, 1, 2, 2), ".*96, 96.*: resize them to 48 x 48"),
        (images[0], ".*: one channel a camera"),
        (images.repeat(1, 2, 1, 1), ".*: one channel a camera"),
        (images.numpy(), "ndarray: torch.from_numpy"),
    ):
        with pytest.raises((TypeError, ValueError), match=rule + remedy):
            emcaps.crops_for(name, wrong)


def test_shipped_networks_differ_in_what_they_read():
    assert {load_file(find_weights(name)).config.data.standardise for name in SHIPPED} == {"crop", "background"}


TOLD = {("airplane", 1), ("car", 2), ("car", 5)}
MISSED_MORE = {"small-mono": [("animal", 2)]}
"""Toys that a network misses more often than one of these."""


def test_the_card_names_the_toys_that_make_up_most_errors():
    shares, airplane = {}, {}
    for name in SMALLNORB:
        toys = json.loads((ROOT / f"results/weights/{name}-cpu.json").read_text())["test instances"]
        told = [toy for toy in toys if (toy["category"], toy["instance"]) in TOLD]
        missed_more = [toy for toy in toys if toy["wrong"] > min(one["wrong"] for one in told) and toy not in told]
        assert [(toy["category"], toy["instance"]) for toy in missed_more] == MISSED_MORE.get(name, [])
        shares[name] = 100 * sum(toy["wrong"] for toy in told) / sum(toy["wrong"] for toy in toys)
        (airplane[name],) = [toy for toy in toys if (toy["category"], toy["instance"]) == ("airplane", 1)]
    limits = " ".join(CARD.partition("**Limits.**")[2].split())
    shown = {name: int(percent) for percent, name in re.findall(rf"(\d+) % of ({'|'.join(SHIPPED)})'s", limits)}
    assert shown == {name: round(share) for name, share in shares.items()}
    assert airplane["small-mono"]["mostly"] == "animal"
    percent = 100 * airplane["small-mono"]["times"] / airplane["small-mono"]["images"]
    assert re.findall(r"(\d+) % of that airplane", limits) == [f"{percent:.0f}"]


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(FileNotFoundError, match=r"'small-sterio': did you mean 'small-stereo'\? .* run folder"):
        emcaps.load("small-sterio")


def test_a_run_folder_or_a_file_of_the_same_name_comes_first(tmp_path, monkeypatch):
    """What the user has made is never hidden by what the package brings."""
    monkeypatch.chdir(tmp_path)
    assert find_weights("small-stereo").parent.name == "weights"
    (tmp_path / "small-stereo").mkdir()
    assert find_weights("small-stereo") == Path("small-stereo/weights.safetensors")
    (tmp_path / "small-stereo/checkpoint-1.safetensors").touch()
    assert find_weights("small-stereo") == Path("small-stereo/checkpoint-1.safetensors")
    (tmp_path / "small-stereo/checkpoint.safetensors").touch()
    assert find_weights("small-stereo") == Path("small-stereo/checkpoint.safetensors")


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match=r"there is no file nothing\.safetensors"):
        emcaps.load("nothing.safetensors")


def test_networks_load_whatever_torchs_default_dtype():
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        network = emcaps.load("small-mono")
    finally:
        torch.set_default_dtype(usual)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
