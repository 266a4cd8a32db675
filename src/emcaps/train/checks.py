"""Whether a config fits the images that were loaded: told before training or evaluating starts."""

from __future__ import annotations

from emcaps.config import RunConfig
from emcaps.data.prepared import CATEGORIES, Examples
from emcaps.nn.geometry import check_image_size


def check_fits(config: RunConfig, examples: Examples) -> None:
    """Raise ValueError unless the config's crop and classes fit these examples and its network."""
    side, crop, classes = min(examples.images.shape[2:]), config.data.crop, config.network.classes
    if crop > side:
        raise ValueError(f"data.crop must be at most {side}, the side of the images, not {crop}: choose a smaller crop")
    if classes != len(CATEGORIES):
        raise ValueError(
            f"network.classes must be {len(CATEGORIES)}, the categories of the labels, not {classes}: leave it out, or "
            f"set network.classes={len(CATEGORIES)}"
        )
    if config.network.kind == "capsules":
        check_image_size("data.crop", crop, config.network)
