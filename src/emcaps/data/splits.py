"""Which examples are trained on and which are tested on: the published split, novel viewpoints, and validation.

Novel viewpoints follow Hinton et al. 2018: training sees a third of the azimuths or elevations, and the test instances
are asked at the other two thirds ("test") and, for comparison, at the trained third ("familiar").
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.config import DataConfig
from emcaps.data.prepared import CATEGORIES, Examples, load_prepared, prepared_path

TRAINED_VIEWPOINTS = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}
"""Codes that training sees: azimuths 300 to 40 degrees, or the three lowest elevations."""


class Split(NamedTuple):
    train: Examples
    test: Examples
    familiar: Examples | None
    """For novel viewpoints: the test instances at the viewpoints of training."""


def load_split(config: DataConfig, folder: str | Path | None = None) -> Split:
    """The split that `config` names, from the prepared parts in `folder`; validation never opens the test part."""
    train = load_prepared(prepared_path(config.dataset, "train", folder))
    if config.split == "validation":
        return make_split(train, None, config)
    return make_split(train, load_prepared(prepared_path(config.dataset, "test", folder)), config)


def make_split(train: Examples, test: Examples | None, config: DataConfig) -> Split:
    """The split that `config` names, from the training and the test part; validation needs the training part alone."""
    if config.split == "validation":
        held_out = _held_out(train, config.fold)
        return _not_empty(Split(_select(train, ~held_out), _select(train, held_out), None), config)
    if test is None:
        raise ValueError(
            f"split {config.split!r} needs the test part, and none was given: load it, or use 'validation'"
        )
    if config.split == "standard":
        return _not_empty(Split(train, test, None), config)
    codes = TRAINED_VIEWPOINTS[config.split]
    trained = np.isin(getattr(train, config.split), codes)
    familiar = np.isin(getattr(test, config.split), codes)
    return _not_empty(Split(_select(train, trained), _select(test, ~familiar), _select(test, familiar)), config)


def _held_out(train: Examples, fold: int) -> npt.NDArray[np.bool_]:
    """True for the examples of the instance with the fold-th smallest number of its category."""
    held_out = np.zeros(len(train.category), np.bool_)
    for category in np.unique(train.category):
        of_category = train.category == category
        instances = np.unique(train.instance[of_category])
        if len(instances) < max(2, fold + 1):
            raise ValueError(
                f"split 'validation' with fold {fold} needs at least {max(2, fold + 1)} training instances of each "
                f"category, and {CATEGORIES[category]} has {len(instances)}: choose a smaller fold, or prepare data "
                "with more instances"
            )
        held_out |= of_category & (train.instance == instances[fold])
    return held_out


def _select(examples: Examples, chosen: npt.NDArray[np.bool_]) -> Examples:
    return Examples(**{name: array[chosen] for name, array in examples._asdict().items()})


def _not_empty(split: Split, config: DataConfig) -> Split:
    for name, examples in split._asdict().items():
        if examples is not None and len(examples.category) == 0:
            raise ValueError(
                f"split {config.split!r} leaves no {name} examples: the prepared {config.dataset} data lack the "
                "viewpoints or instances that it needs; prepare them again in full, or choose split 'standard'"
            )
    return split
