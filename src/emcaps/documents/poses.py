"""The page on what the pose of a class capsule tells of the viewpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from emcaps.documents.recorded import poses_of
from emcaps.experiments.poses import markdown_classes, markdown_components, markdown_readouts


def readouts(dataset: str, _results: str) -> str:
    return markdown_readouts(poses_of(dataset))


def classes(dataset: str, _results: str) -> str:
    """By class, for the first network."""
    return markdown_classes(poses_of(dataset)[0])


def components(dataset: str, _results: str) -> str:
    """The numbers of the first network's poses."""
    return markdown_components(poses_of(dataset)[0])


BLOCKS: dict[str, Callable[[str], str]] = {
    "smallnorb": partial(readouts, "smallnorb"),
    "smallnorb-classes": partial(classes, "smallnorb"),
    "smallnorb-numbers": partial(components, "smallnorb"),
    "toys": partial(readouts, "toys"),
}
