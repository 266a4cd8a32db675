"""A linear readout of the viewpoint from numbers that a network computes: ridge regression in closed form.

The strength of the ridge is chosen on training objects that are left out one by one, never on the views that are
tested. Azimuths are read as sine and cosine, so that 350 and 10 degrees are near each other.

Dims: N images, F features, T targets, K components.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

RIDGES = tuple(10.0**power for power in range(-6, 2))
"""The strengths that are tried, relative to the number of images: the features have variance 1."""
PERIODS = {"azimuth": 360.0, "azimuth modulo 180": 180.0}
"""After how many degrees an azimuth repeats. Modulo 180, front and back are the same."""
QUANTITIES = (*PERIODS, "elevation")
PARTS = 5
"""Into how many parts the views of one object are divided to choose the ridge for it."""


class Views(NamedTuple):
    """Features of N images of one class, and what they show."""

    features: Numbers  # (N, F)
    azimuth: Numbers  # (N,), degrees
    elevation: Numbers  # (N,), degrees
    instance: npt.NDArray[Any]  # (N,): which object

    def select(self, chosen: npt.NDArray[Any]) -> Views:
        """The views that a mask or a list of numbers chooses."""
        return Views(*(values[chosen] for values in self))

    def shuffled(self, seed: int) -> Views:
        """The same features with the viewpoints of other images."""
        order = np.random.default_rng(seed).permutation(len(self.azimuth))
        return self._replace(azimuth=self.azimuth[order], elevation=self.elevation[order])


class Score(NamedTuple):
    """How well a quantity can be read."""

    r2: float
    """1 if it is read exactly, 0 if a constant would do as well, below 0 if a constant would do better."""
    error: float
    """The mean absolute error in degrees. For a guess it is 90 for an azimuth, and 45 modulo 180."""


class Readout(NamedTuple):
    """A linear map from features to targets."""

    mean: Numbers  # (F,)
    scale: Numbers  # (F,)
    weight: Numbers  # (F, T)
    offset: Numbers  # (T,)

    def __call__(self, features: Numbers) -> Numbers:
        """The targets (N, T) that are read from features (N, F)."""
        read: Numbers = (features - self.mean) / self.scale @ self.weight + self.offset
        return read


def read_new_objects(train: Views, test: Views, quantity: str) -> Score:
    """Fit a readout on the objects of `train`, and score it on those of `test`."""
    readout = fit(train.features, encode(train, quantity), train.instance)
    return _score(readout, train, test, quantity)


def read_same_object(views: Views, quantity: str) -> Score:
    """Fit a readout on half of the views of each object, and score it on the other half; the mean over the objects.

    It does not need the angles of different objects to be measured from the same side.
    """
    scores = []
    for number in np.unique(views.instance):
        drawn = np.random.default_rng(int(number)).permutation(np.flatnonzero(views.instance == number))
        shown, tested = views.select(drawn[::2]), views.select(drawn[1::2])
        readout = fit(shown.features, encode(shown, quantity), np.arange(len(drawn[::2])) % PARTS)
        scores.append(_score(readout, shown, tested, quantity))
    return Score(*(float(np.mean(values)) for values in zip(*scores, strict=True)))


def _score(readout: Readout, train: Views, test: Views, quantity: str) -> Score:
    """What is read is kept within what the training views have, as any reader would."""
    known, wanted = encode(train, quantity), encode(test, quantity)
    read = np.clip(readout(test.features), known.min(0), known.max(0))
    if quantity == "elevation":
        return Score(r_squared(wanted, read), float(np.abs(wanted - read).mean()))
    period = PERIODS[quantity]
    angle = np.degrees(np.arctan2(read[:, 0], read[:, 1])) * period / 360
    return Score(r_squared(wanted, read), float(degrees_apart(test.azimuth, angle, period).mean()))


def encode(views: Views, quantity: str) -> Numbers:
    """The targets (N, T) of a quantity: the elevation itself, or sine and cosine of the azimuth."""
    if quantity == "elevation":
        return views.elevation[:, None]
    return circle(views.azimuth, PERIODS[quantity])


def circle(azimuth: Numbers, period: float = 360) -> Numbers:
    """Sine and cosine (N, 2) of azimuths in degrees that repeat after the period."""
    turned = azimuth * 2 * np.pi / period
    return np.stack([np.sin(turned), np.cos(turned)], 1)


def degrees_apart(one: Numbers, other: Numbers, period: float = 360) -> Numbers:
    """How far apart azimuths are that repeat after the period, 0 to half of it."""
    apart: Numbers = np.abs((one - other + period / 2) % period - period / 2)
    return apart


def r_squared(wanted: Numbers, read: Numbers) -> float:
    """One minus the squared error as a share of that of the mean, over all targets (N, T) together."""
    return float(1 - np.square(wanted - read).sum() / np.square(wanted - wanted.mean(0)).sum())


def fit(features: Numbers, targets: Numbers, instance: npt.NDArray[Any]) -> Readout:
    """The readout whose ridge makes the smallest error on instances that are left out one by one."""
    objects = np.unique(instance)
    if len(objects) < 2:
        raise ValueError(
            f"a readout needs views of at least 2 training instances of each class, to leave one out, not of "
            f"{len(objects)}: read more images, or prepare data with more instances"
        )
    errors = np.zeros(len(RIDGES))
    for left_out in objects:
        kept = instance != left_out
        readouts = fit_ridges(features[kept], targets[kept], RIDGES)
        errors += [np.square(targets[~kept] - readout(features[~kept])).sum() for readout in readouts]
    return fit_ridges(features, targets, (RIDGES[int(errors.argmin())],))[0]


def fit_ridges(features: Numbers, targets: Numbers, ridges: tuple[float, ...]) -> list[Readout]:
    """The readout of each strength: the closed form, by one singular value decomposition for all of them."""
    mean, scale, offset = features.mean(0), features.std(0), targets.mean(0)
    scale = np.where(scale > 0, scale, 1.0)  # a feature that never changes tells nothing
    left, size, right = np.linalg.svd((features - mean) / scale, full_matrices=False)
    projected = left.T @ (targets - offset)
    found = []
    for ridge in ridges:
        shrunk = size / (np.square(size) + ridge * len(features))
        found.append(Readout(mean, scale, right.T @ (shrunk[:, None] * projected), offset))
    return found


def principal_components(train: Numbers, test: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """Both sets of features (N, F) reduced to (N, K) by the K directions in which `train` varies most."""
    mean = train.mean(0)
    _, _, directions = np.linalg.svd(train - mean, full_matrices=False)
    kept = directions[:count].T
    return (train - mean) @ kept, (test - mean) @ kept


def correlations(features: Numbers, targets: Numbers) -> Numbers:
    """The correlation (F, T) of each feature with each target; 0 where one of both never changes."""
    sides = []
    for values in (features, targets):
        centred = values - values.mean(0)
        length = np.sqrt(np.square(centred).sum(0))
        sides.append(centred / np.where(length > 0, length, 1.0))
    found: Numbers = sides[0].T @ sides[1]
    return found
