import pytest

from emcaps.config import NetworkConfig, preset
from emcaps.train import train
from emcaps.train.checks import check_fits
from patterns import pattern_examples

EXAMPLES = pattern_examples((4, 6), views=1, seed=0)
MISFITS = [
    (
        "tiny",
        {"data.crop": 49},
        r"data\.crop must be at most 48, the side of the images, not 49: choose a smaller",
    ),
    ("tiny", {"data.crop": 12}, r"data\.crop must be at least 13 for a capsule network, .*, not 12: choose"),
    ("tiny", {"network.classes": 7}, r"network\.classes must be 5, .*, not 7: leave it out, or set network\.classes=5"),
    ("cnn", {"network.classes": 2}, r"network\.classes must be 5, .*, not 2"),
]


@pytest.mark.parametrize("name", ["tiny", "cnn"])
def test_the_largest_and_the_smallest_crop_fit(name):
    for crop in (48, 13):
        check_fits(preset(name).override({"data.crop": crop}), EXAMPLES)
    check_fits(preset("cnn").override({"data.crop": 8}), EXAMPLES)


def test_images_without_viewpoints_have_the_size_that_training_had():
    """Of toys and smallNORB data.size says nothing: they are what they are."""
    check_fits(preset("tiny").override({"data.size": 32}), EXAMPLES)
    plain = EXAMPLES._replace(images=EXAMPLES.images[:, :1], elevation=None, azimuth=None, lighting=None)
    mine = preset("tiny").override({"data.dataset": "mine"})
    check_fits(mine, plain)
    smaller = plain._replace(images=plain.images[..., :40, :40])
    with pytest.raises(ValueError, match="reads images of 48 pixels, and these have 40: import them with --size 48"):
        check_fits(mine, smaller)
    with pytest.raises(ValueError, match=r"reads images of 48 pixels, and these have 40: use a network .* on mnist"):
        check_fits(mine.override({"data.dataset": "mnist"}), smaller)
    with pytest.raises(ValueError, match=r"tells animal, .* apart, and the images show 0, 1, .* named alike"):
        check_fits(mine, smaller._replace(names=tuple("01234")))


def test_images_have_the_channels_that_training_had():
    plain = EXAMPLES._replace(elevation=None, azimuth=None, lighting=None)
    mine = preset("tiny").override({"data.dataset": "mine", "data.channels": 3})
    with pytest.raises(ValueError, match="of 3 channels, and these have 2: import them with --grey or --colour"):
        check_fits(mine, plain)
    with pytest.raises(ValueError, match="of 3 channels, and these have 2: use a network that was trained on cifar10"):
        check_fits(mine.override({"data.dataset": "cifar10"}), plain)


@pytest.mark.parametrize(("name", "changes", "message"), MISFITS)
def test_what_does_not_fit_is_told_before_a_run_folder_is_made(tmp_path, data_folder, name, changes, message):
    config = preset(name).override(changes)
    with pytest.raises(ValueError, match=message):
        check_fits(config, EXAMPLES)
    with pytest.raises(ValueError, match=message):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    assert not (tmp_path / "run").exists()


def test_a_fold_that_does_not_exist_is_told_before_a_run_folder_is_made(tmp_path, config, data_folder):
    for split in ("standard", "validation"):
        changed = config.override({"data.fold": 5, "data.split": split})
        with pytest.raises(ValueError, match=r"data\.fold 5 needs at least 6 training instances of each category"):
            train(changed, tmp_path / "run", device="cpu", data_folder=data_folder)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", ["tiny", NetworkConfig()])
def test_what_is_no_config_of_a_run_is_refused(tmp_path, given):
    with pytest.raises(
        ValueError, match=r"must be a RunConfig, such as preset\(\"tiny\"\), not (NetworkConfig|'tiny')"
    ):
        train(given, tmp_path / "run")
    assert not (tmp_path / "run").exists()
