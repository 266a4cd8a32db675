"""Whether a config fits the images that were loaded, told before training starts, and what it learns from them."""

from __future__ import annotations

from pathlib import Path

from emcaps.config import DATASETS, PLAIN_DATASETS, DataConfig, NetworkConfig, RunConfig
from emcaps.data.prepared import SIDE, Examples, class_names
from emcaps.data.sources import source_path
from emcaps.names import first_of, shown
from emcaps.nn.geometry import check_image_size


def check_is_run_config(config: object) -> None:
    """Raise ValueError for what is easily given instead of a RunConfig: a preset's name, or a network's config."""
    if not isinstance(config, RunConfig):
        raise ValueError(
            f'the config of a run must be a RunConfig, such as preset("tiny"), not {shown(config)}: a NetworkConfig '
            "becomes one by RunConfig(network)"
        )


def fill_in(config: RunConfig, examples: Examples, folder: str | Path | None = None) -> RunConfig:
    """The config with what a trained network must know of its data: classes, their names, channels and size.

    Toys and smallNORB are known, and their configs stay as they are. A crop that is left at its default shrinks to the
    size of smaller images. A second call changes nothing. `folder` is that of the prepared data.
    """
    if examples.has_viewpoints:
        return config
    side, channels = examples.images.shape[2], examples.images.shape[1]
    crop = config.data.crop
    if crop == DataConfig.crop:
        crop = min(crop, side)
    source = source_path(config.data.dataset, folder)
    classes, from_data = config.network.classes, (NetworkConfig.classes, len(config.data.names))
    return config.override(
        {
            "data.dataset": config.data.dataset if source is None else str(source.resolve()),
            "data.names": examples.names,
            "data.channels": channels,
            "data.size": side,
            "data.fit": examples.fit,
            "data.crop": crop,
            "network.classes": len(examples.names) if classes in from_data else classes,
        }
    )


def check_fits(config: RunConfig, examples: Examples) -> None:
    """Raise ValueError unless the config's class names, image size, crop, classes and channels fit these examples and
    its network."""
    side, crop, classes = min(examples.images.shape[2:]), config.data.crop, config.network.classes
    names = class_names(config.data)
    if names != examples.names:  # first, since no import mends that
        raise ValueError(
            f"the network tells {first_of(names)} apart, and the images show {first_of(examples.names)}: use images of "
            "the network's classes, named alike"
        )
    built_in = config.data.dataset in (*DATASETS, *PLAIN_DATASETS)  # which no option of an import changes
    remedy = f"use a network that was trained on {config.data.dataset}" if built_in else ""
    trained_on = config.data.size or SIDE
    if not examples.has_viewpoints and examples.images.shape[2] != trained_on:
        raise ValueError(
            f"the network reads images of {trained_on} pixels, and these have {examples.images.shape[2]}: "
            + (remedy or f"import them with --size {trained_on}")
        )
    if crop > side:
        raise ValueError(f"data.crop must be at most {side}, the side of the images, not {crop}: choose a smaller crop")
    if classes != len(examples.names):
        raise ValueError(
            f"network.classes must be {len(examples.names)}, the categories of the labels, not {classes}: leave it "
            f"out, or set network.classes={len(examples.names)}"
        )
    channels = examples.images.shape[1]
    if examples.has_viewpoints:
        channels = 2 if config.data.view == "stereo" else 1
    if channels != config.data.image_channels:
        raise ValueError(
            f"the network reads images of {config.data.image_channels} channels, and these have {channels}: "
            + (remedy or "import them with --grey or --colour, as the network's own were")
        )
    if config.network.kind == "capsules":
        check_image_size("data.crop", crop, config.network)
