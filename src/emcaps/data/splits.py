"""Which examples are trained on and which are tested on: the published split, novel viewpoints, and validation.

Novel viewpoints follow Hinton et al. 2018: training sees a third of the azimuths or elevations, and the test instances
are shown at the other two thirds ("test") and, for comparison, at the trained third ("familiar"). Sets without
viewpoints have the standard split and validation, which then holds out a tenth of the training images.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.config import ARRAYS, DataConfig
from emcaps.data.hold_out import fold_of
from emcaps.data.prepared import CATEGORIES, Examples, load_prepared, prepared_path
from emcaps.data.sources import read_source, source_path

TRAINED_VIEWPOINTS = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}
"""The codes of the viewpoints that training sees: azimuths 300 to 40 degrees, or the three lowest elevations."""


class Split(NamedTuple):
    train: Examples
    test: Examples
    familiar: Examples | None
    """For novel viewpoints: the test instances at the viewpoints of training."""

    @property
    def tested(self) -> dict[str, Examples]:
        """What is evaluated, by name: "test" and, if there are any, "familiar" examples."""
        return {"test": self.test} | ({} if self.familiar is None else {"familiar": self.familiar})


def load_split(config: DataConfig, folder: str | Path | None = None) -> Split:
    """The split that `config` names, from the prepared parts in `folder`; validation never opens the test part.

    Where `config` names a folder of pictures or an .npz file, that is read instead.
    """
    source = find_source(config, folder)
    if source is not None:
        parts = read_source(source).parts
        return make_split(parts["train"], parts["test"], config)
    train = load_prepared(prepared_path(config.dataset, "train", folder))
    if config.split == "validation":
        return make_split(train, None, config)
    return make_split(train, load_prepared(prepared_path(config.dataset, "test", folder)), config)


def load_tested(config: DataConfig, folder: str | Path | None = None) -> dict[str, Examples]:
    """What is evaluated with the split that `config` names, as Split.tested has it.

    Only the prepared part that holds these examples is opened: the training part for validation, else the test part.
    """
    if config.split == "validation" or find_source(config, folder) is not None:
        return load_split(config, folder).tested
    test = load_prepared(prepared_path(config.dataset, "test", folder))
    return _not_empty(_tested_of(test, config), config)


def find_source(config: DataConfig, folder: str | Path | None = None) -> Path | None:
    """The folder of pictures or .npz file that the config names; None if it names a set that is prepared."""
    if config.dataset == ARRAYS:
        raise ValueError(
            "this run's images were given as arrays from Python, and are not stored: resume it with "
            "emcaps.train.train(..., data=...), or name other data"
        )
    return source_path(config.dataset, folder)


def make_split(train: Examples, test: Examples | None, config: DataConfig) -> Split:
    """The split that `config` names, from the training and the test part; validation needs the training part alone."""
    _check_labels(train, config)
    _check_fold(train, config)
    if config.split == "validation":
        held_out = _held_out(train, config.fold)
        trained, tested = train.select(~held_out), {"test": train.select(held_out)}
    elif test is None:
        raise ValueError(
            f"split {config.split!r} needs the test part, and none was given: load it, or use 'validation'"
        )
    else:
        tested = _tested_of(test, config)
        trained = train if config.split == "standard" else train.select(_is_familiar(train, config))
    _not_empty({"train": trained} | tested, config)
    return Split(trained, tested["test"], tested.get("familiar"))


def _tested_of(test: Examples, config: DataConfig) -> dict[str, Examples]:
    """What is evaluated of the test part, with any split but validation."""
    if config.split == "standard":
        return {"test": test}
    _check_labels(test, config)
    familiar = _is_familiar(test, config)
    return {"test": test.select(~familiar), "familiar": test.select(familiar)}


def _check_labels(examples: Examples, config: DataConfig) -> None:
    """Raise ValueError if the config needs labelled viewpoints or two cameras, which the examples lack."""
    if examples.has_viewpoints:
        return
    needs = {
        "split": config.split in TRAINED_VIEWPOINTS,
        "splice": config.splice > 0,
        "view": config.view == "stereo",
    }
    for setting, wanted in needs.items():
        if wanted:
            raise ValueError(
                f"data.{setting} {getattr(config, setting)!r} needs two cameras at labelled viewpoints, and "
                f"{config.dataset} has none: leave it out, or use toys or smallnorb"
            )


def _is_familiar(examples: Examples, config: DataConfig) -> npt.NDArray[np.bool_]:
    """True for the examples at the viewpoints that training sees."""
    return np.isin(getattr(examples, config.split), TRAINED_VIEWPOINTS[config.split])


def _check_fold(train: Examples, config: DataConfig) -> None:
    """Raise ValueError unless every category has an instance of the fold's number, and for validation another one."""
    if not train.has_viewpoints or train.instance is None:
        return
    needed = max(2 if config.split == "validation" else 1, config.fold + 1)
    for category in np.unique(train.category):
        found = len(np.unique(train.instance[train.category == category]))
        if found < needed:
            raise ValueError(
                f"split {config.split!r} with data.fold {config.fold} needs at least {needed} training instances of "
                f"each category, and {CATEGORIES[category]} has {found}: choose a smaller fold, or prepare data with "
                "more instances"
            )


def _held_out(train: Examples, fold: int) -> npt.NDArray[np.bool_]:
    """True for the examples of the fold-th smallest instance of each category or, without viewpoints, of one tenth."""
    if not train.has_viewpoints or train.instance is None:
        return fold_of(train.category, train.instance, fold)
    held_out = np.zeros(len(train.category), np.bool_)
    for category in np.unique(train.category):
        of_category = train.category == category
        held_out |= of_category & (train.instance == np.unique(train.instance[of_category])[fold])
    return held_out


def _not_empty(parts: dict[str, Examples], config: DataConfig) -> dict[str, Examples]:
    """The parts as they are; ValueError if one has no examples."""
    for name, examples in parts.items():
        if len(examples.category) == 0:
            raise ValueError(
                f"split {config.split!r} leaves no {name} examples: the prepared {config.dataset} data lack the "
                "viewpoints or instances that it needs; prepare them again in full, or choose split 'standard'"
            )
    return parts
