"""Which examples are trained on and which are tested on: the published split, novel viewpoints, and validation.

Novel viewpoints follow Hinton et al. 2018: training sees a third of the azimuths or elevations, and the test instances
are shown at the other two thirds ("test") and, for comparison, at the trained third ("familiar"). Sets without
viewpoints have the standard split and validation, which then holds out a tenth of the training images.

A recipe for novel viewpoints is chosen on "azimuth-validation" or "elevation-validation". Both see nothing but what
training on "azimuth" or "elevation" sees, and hold out one instance of each category and some of the viewpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.config import ARRAYS, DataConfig
from emcaps.data.hold_out import fold_of
from emcaps.data.prepared import CATEGORIES, Examples, load_prepared, prepared_path
from emcaps.data.sources import Options, read_source, source_path

TRAINED_VIEWPOINTS = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}
"""The codes of the viewpoints that training sees: azimuths 300 to 40 degrees, or the three lowest elevations."""
HELD_OUT_VIEWPOINTS = {"azimuth": (30, 4), "elevation": (2,)}
"""The trained viewpoints that validation holds out. They lie outside those that are kept, as novel ones do."""
VALIDATIONS = ("validation", *(f"{name}-validation" for name in TRAINED_VIEWPOINTS))
"""The splits that never open the test part."""


class Split(NamedTuple):
    train: Examples
    test: Examples
    familiar: Examples | None
    """For novel viewpoints: the test instances at the viewpoints of training."""

    @property
    def tested(self) -> dict[str, Examples]:
        """What is evaluated, by name: "test" and, if there are any, "familiar" examples."""
        return {"test": self.test} | ({} if self.familiar is None else {"familiar": self.familiar})


def load_split(config: DataConfig, folder: str | Path | None = None, *, everything: bool = False) -> Split:
    """The split that `config` names, from the prepared parts in `folder`; validations never open the test part.

    Where `config` names a folder of pictures or an .npz file, that is read instead.
    """
    source = find_source(config, folder)
    if source is not None:
        # A folder is read as the images of the network were; an .npz file holds images as they are to be.
        as_trained = Options(config.size or None, config.fit, {1: False, 3: True}.get(config.channels))
        options = (as_trained if source.is_dir() else Options())._replace(everything=everything)
        parts = read_source(source, options).parts
        return make_split(parts["train"], parts["test"], config)
    train = load_prepared(prepared_path(config.dataset, "train", folder))
    if config.split in VALIDATIONS:
        return make_split(train, None, config)
    return make_split(train, load_prepared(prepared_path(config.dataset, "test", folder)), config)


def load_tested(
    config: DataConfig, folder: str | Path | None = None, *, everything: bool = False
) -> dict[str, Examples]:
    """What is evaluated with the split that `config` names, as Split.tested has it.

    Only the prepared part that holds these examples is opened: the training part for validation, else the test part.
    With `everything`, it is all images of a folder or an .npz file that has no test part of its own.
    """
    if config.split in VALIDATIONS or find_source(config, folder) is not None:
        return load_split(config, folder, everything=everything).tested
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
    """The split that `config` names, from the training and the test part; validations need the training part alone."""
    _check_labels(train, config)
    _check_fold(train, config)
    if config.split == "validation":
        held_out = _held_out(train, config.fold)
        trained, tested = train.select(~held_out), {"test": train.select(held_out)}
    elif config.split in VALIDATIONS:
        held_out, familiar = _held_out(train, config.fold), _is_familiar(train, config.split)
        kind = turned(config.split)
        novel = np.isin(getattr(train, kind), HELD_OUT_VIEWPOINTS[kind])
        trained = train.select(familiar & ~held_out)
        tested = {"test": train.select(novel & held_out), "familiar": train.select(familiar & held_out)}
    elif test is None:
        raise ValueError(
            f"split {config.split!r} needs the test part, and none was given: load it, or use 'validation'"
        )
    else:
        tested = _tested_of(test, config)
        trained = train if config.split == "standard" else train.select(_is_familiar(train, config.split))
    _not_empty({"train": trained} | tested, config)
    return Split(trained, tested["test"], tested.get("familiar"))


def _tested_of(test: Examples, config: DataConfig) -> dict[str, Examples]:
    """What is evaluated of the test part, with any split but the validations."""
    if config.split == "standard":
        return {"test": test}
    _check_labels(test, config)
    familiar = _is_familiar(test, config.split)
    return {"test": test.select(~familiar), "familiar": test.select(familiar)}


def _check_labels(examples: Examples, config: DataConfig) -> None:
    """Raise ValueError if the config needs labelled viewpoints or two cameras, which the examples lack."""
    if examples.has_viewpoints:
        return
    needs = {
        "split": config.split not in ("standard", "validation"),
        "splice": config.splice > 0,
        "view": config.view == "stereo",
    }
    for setting, wanted in needs.items():
        if wanted:
            raise ValueError(
                f"data.{setting} {getattr(config, setting)!r} needs two cameras at labelled viewpoints, and "
                f"{config.dataset} has none: leave it out, or use toys or smallnorb"
            )


def turned(split: str) -> str:
    """What differs between the familiar and the novel views of a split: "azimuth" or "elevation"."""
    name = split.removesuffix("-validation")
    if name not in TRAINED_VIEWPOINTS:
        raise ValueError(f"split {split!r} has no novel viewpoints: choose {' or '.join(TRAINED_VIEWPOINTS)}")
    return name


def trained_viewpoints(split: str) -> tuple[int, ...]:
    """The codes of the azimuths or elevations that training sees with this split."""
    name = turned(split)
    left_out = HELD_OUT_VIEWPOINTS[name] if split in VALIDATIONS else ()
    return tuple(code for code in TRAINED_VIEWPOINTS[name] if code not in left_out)


def _is_familiar(examples: Examples, split: str) -> npt.NDArray[np.bool_]:
    """True for the examples at the viewpoints that training sees."""
    return np.isin(getattr(examples, turned(split)), trained_viewpoints(split))


def _check_fold(train: Examples, config: DataConfig) -> None:
    """Raise ValueError unless every category has an instance of the fold's number, and for validation another one."""
    if not train.has_viewpoints or train.instance is None:
        return
    needed = max(2 if config.split in VALIDATIONS else 1, config.fold + 1)
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
