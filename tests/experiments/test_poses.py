"""What can be read of the viewpoint from a network: which numbers are read, of which images, and the tables."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from emcaps.analysis.drawings import make_drawings
from emcaps.config import DataConfig, preset
from emcaps.data.crops import evaluation_crops
from emcaps.data.prepared import Examples, prepared_path, save_prepared
from emcaps.data.splits import load_split
from emcaps.experiments import poses
from emcaps.experiments.pose_drawings import pictures_of
from emcaps.nn import build_network
from emcaps.train import load_network, train
from emcaps.train.run_folder import WEIGHTS

TINY = {
    "network.conv_channels": 4,
    "network.primary_types": 2,
    "network.conv1_types": 2,
    "network.conv2_types": 2,
    "network.iterations": 1,
    "data.crop": 16,
    "train.steps": 1,
    "train.batch_size": 4,
}
CNN = {key: value for key, value in TINY.items() if not key.startswith("network.")} | {
    "network.cnn_channels": 2,
    "network.cnn_hidden": 20,
}


def turning_bars(instances, seed):
    """Two classes of bars that turn with the azimuth and get brighter with the elevation."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:48, :48] - 23.5
    images, labels = [], []
    for category in (0, 1):
        for instance in instances:
            for azimuth in range(0, 36, 4):
                for elevation in (0, 4, 8):
                    angle = np.radians(10 * azimuth)
                    along, across = rows * np.cos(angle) + columns * np.sin(angle), rows * np.sin(angle)
                    bar = (np.abs(across - columns * np.cos(angle)) < 3 + 2 * category) & (along > -2)
                    noise = random.normal(0, 4, (2, 48, 48))
                    images.append(np.clip(60 + (60 + 15 * elevation) * bar + noise, 0, 255).astype(np.uint8))
                    labels.append((category, instance, elevation, azimuth, 0))
    return Examples(np.stack(images), *np.array(labels, np.int16).T)


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bars")
    parts = {"train": turning_bars((4, 6, 7), 1), "test": turning_bars((0, 1), 2)}
    save_prepared({prepared_path("toys", part, folder): examples for part, examples in parts.items()})
    return folder


@pytest.fixture(scope="module")
def runs(bars):
    """A capsule network and a CNN, hardly trained."""
    for name, config in (("tiny", preset("tiny").override(TINY)), ("cnn", preset("cnn").override(CNN))):
        train(config.override({"data.view": "stereo"}), bars / name, device="cpu", data_folder=bars)
    return bars


def test_the_command_reads_both_networks_and_records_what_it_found(runs):
    console = Console(file=io.StringIO(), width=120)
    names = [str(runs / "tiny"), str(runs / "cnn")]
    poses.run_poses(names, console, json=runs / "p.json", figures=runs, device="cpu", data_folder=runs)
    capsules, cnn = poses.read_poses(runs / "p.json")
    assert list(capsules["readouts"]) == ["pose", "pose, shuffled", "scores", "pixels, 16"]
    assert list(cnn["readouts"]) == ["hidden, 16", "hidden, 16, shuffled", "hidden, all", "scores", "pixels, 16"]
    assert (capsules["name"], cnn["name"]) == ("tiny", "cnn")
    assert capsules["images"] == {"train": 2 * 3 * 27, "test": 2 * 2 * 27}
    # The pixels do not depend on the network, and tell how the bars lie; what is shuffled tells nothing.
    assert capsules["readouts"]["pixels, 16"] == cnn["readouts"]["pixels, 16"]
    assert cnn["readouts"]["pixels, 16"]["azimuth"]["r2"] > 0.8
    assert cnn["readouts"]["hidden, all"]["azimuth"]["r2"] > 0.5
    for one, kind in ((capsules, "pose, shuffled"), (cnn, "hidden, 16, shuffled")):
        assert one["readouts"][kind]["azimuth"]["r2"] < 0.1
    assert list(capsules["correlations"]) == list(capsules["by class"]) == ["animal", "human"]
    assert "correlations" not in cnn
    assert (runs / "poses-tiny.png").stat().st_size > 10_000
    assert "hidden, all" in console.file.getvalue()
    table = poses.markdown_readouts([capsules, cnn]).splitlines()
    assert len(table) == 2 + 4 + 5
    assert len(poses.component_rows(capsules)) == 16


@pytest.fixture(scope="module")
def drawing(bars):
    """A capsule network with a decoder, hardly trained."""
    config = preset("tiny").override({**TINY, "network.decoder": 4, "data.view": "stereo"})
    train(config, bars / "drawing", device="cpu", data_folder=bars)
    return bars


def test_a_network_with_a_decoder_draws_from_its_poses(drawing):
    console = Console(file=io.StringIO(), width=120)
    poses.run_poses(
        [str(drawing / "drawing")], console, json=drawing / "d.json", figures=drawing, device="cpu", data_folder=drawing
    )
    (found,) = poses.read_poses(drawing / "d.json")
    record = found["drawings"]
    assert record["classes"] == ["animal", "human"]
    assert pictures_of(record, "images").shape == pictures_of(record, "drawn").shape == (2, 16, 16)
    assert pictures_of(record, "variations").shape == (16 * 5, 16, 16)
    assert (drawing / "poses-drawing-drawn.png").stat().st_size > 10_000


def test_what_is_drawn_does_not_depend_on_how_many_images_are_computed_at_a_time(drawing, monkeypatch):
    network, config, _ = load_network(drawing / "drawing" / WEIGHTS, "cpu")
    examples = load_split(config.data, drawing).test
    images = torch.from_numpy(examples.images)
    crops = evaluation_crops(images, config.data.crop, 1, config.data.standardise)[:, 0]
    labels = torch.from_numpy(examples.category).long()
    every = poses.features_of(network.eval(), crops, labels)["pose"]
    first = [int((labels == label).nonzero()[0]) for label in (0, 1)]
    spread = torch.stack([every[labels == label].std(0, correction=0) for label in (0, 1)])
    given = []

    def watched(*arguments):
        given.append(arguments[1:])
        return make_drawings(*arguments)

    monkeypatch.setattr(poses, "make_drawings", watched)
    for size in (7, 1000):
        monkeypatch.setattr(poses, "images_at_a_time", lambda *_, size=size: size)
        poses.measure_poses(str(drawing / "drawing"), device="cpu", data_folder=drawing)
        assert torch.equal(given[-1][0], crops[first])
        assert given[-1][1].tolist() == [0, 1]
        torch.testing.assert_close(given[-1][2], spread)
    assert len(given) == 2


def test_the_pose_that_is_read_is_that_of_the_true_class():
    torch.manual_seed(0)
    network = build_network(preset("tiny").override(TINY).network, 1, 16).eval()
    crops, labels = torch.randn(3, 1, 16, 16), torch.tensor([4, 0, 2])
    found = poses.features_of(network, crops, labels)
    with torch.no_grad():
        output = network(crops)
    for number, label in enumerate(labels.tolist()):
        torch.testing.assert_close(found["pose"][number], output.pose[number, label].flatten())
    torch.testing.assert_close(found["scores"].exp(), output.activation.clamp_min(1e-6))


def test_the_hidden_layer_of_a_cnn_is_what_its_output_reads():
    network = build_network(preset("cnn").override(CNN).network, 1, 16).eval()
    crops = torch.randn(3, 1, 16, 16)
    hidden = poses.features_of(network, crops, torch.tensor([0, 0, 0]))["hidden"]
    assert hidden.shape == (3, 20)
    torch.testing.assert_close(network.output(hidden), network(crops))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("standard", "standard"),
        ("azimuth", "standard"),
        ("elevation", "standard"),
        ("validation", "validation"),
        ("azimuth-validation", "validation"),
    ],
)
def test_a_run_that_never_opened_the_test_part_is_not_read_on_it(split, expected):
    assert poses.all_viewpoints(DataConfig(split=split)).split == expected


def test_mono_reads_each_camera_with_the_labels_of_its_pair(runs):
    config = preset("tiny").override(TINY)
    network = build_network(config.network, 1, 16).eval()
    examples = turning_bars((0,), 0)
    part = poses._computed(network, config, examples, torch.device("cpu"))
    assert part.features["pose"].shape == (2 * len(examples.category), 16)
    np.testing.assert_array_equal(part.azimuth[::2], 10 * examples.azimuth)
    np.testing.assert_array_equal(part.azimuth[1::2], 10 * examples.azimuth)
    assert set(part.elevation.tolist()) == {30, 50, 70}


def test_a_set_without_viewpoints_is_refused(tmp_path):
    images = np.random.default_rng(0).integers(256, size=(12, 1, 28, 28), dtype=np.uint8)
    labels = np.arange(12) % 2
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    config = preset("tiny").override(TINY | {"data.dataset": str(tmp_path / "mine.npz"), "network.classes": 2})
    train(config, tmp_path / "run", device="cpu")
    with pytest.raises(ValueError, match="no labelled viewpoints: name a run on toys or smallnorb"):
        poses.measure_poses(str(tmp_path / "run"), device="cpu")


def test_what_rounds_to_zero_has_no_sign():
    assert poses._cell({"r2": -0.004, "error": 89.6}) == "0.00 (90°)"
    assert poses._cell({"r2": -0.106, "error": 4.4}) == "-0.11 (4°)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("small-stereo", "small-stereo"), ("runs/it2/seed4", "it2-seed4"), ("a/b.safetensors", "b"), ("a/run", "run")],
)
def test_a_run_is_called_by_what_tells_it_apart(name, expected):
    assert poses.label_of(name) == expected


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"step": 3}))
    with pytest.raises(ValueError, match="holds no measurements of poses"):
        poses.read_poses(tmp_path / "x.json")
