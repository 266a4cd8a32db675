"""The toys data set: every instance, view and lighting of smallNORB's plan, rendered here instead of downloaded.

Labels are smallNORB's: category 0-4 (animal, human, airplane, truck, car), instance 0-9, elevation 0-8 (30 to 70
degrees in steps of 5), azimuth 0, 2, .. 34 (tens of degrees), lighting 0-5.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emcaps.data.prepared import CATEGORIES
from emcaps.data.smallnorb import INSTANCES, area_mean
from emcaps.data.toys.airplanes import build_airplane
from emcaps.data.toys.animals import build_animal
from emcaps.data.toys.cars import build_car
from emcaps.data.toys.humans import build_human
from emcaps.data.toys.render import ELEVATIONS, FULL_SIZE, photographs, pose_scene
from emcaps.data.toys.shapes import Solid
from emcaps.data.toys.trucks import build_truck
from emcaps.data.toys.workers import call_in_processes

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int16]

TRAIN_INSTANCES, TEST_INSTANCES = INSTANCES["train"], INSTANCES["test"]
_BUILDERS: tuple[Callable[[int, np.random.Generator], list[Solid]], ...] = (
    build_animal,
    build_human,
    build_airplane,
    build_truck,
    build_car,
)
_SMALL_JOB = 1000  # views; rendering fewer takes less time than starting other processes


def render_instance(
    category: int,
    instance: int,
    *,
    seed: int = 0,
    elevations: Sequence[int] = range(9),
    azimuths: Sequence[int] = range(0, 36, 2),
    lightings: Sequence[int] = range(6),
    size: int = FULL_SIZE,
) -> tuple[Images, Labels]:
    """One toy's images, uint8 (n, 2, size, size), and labels, int16 (n, 5).

    A row of the labels is category, instance, elevation, azimuth, lighting; rows run over the elevations, within them
    over the azimuths, and within those over the lightings. Each image depends on its labels and the seed alone.
    """
    _check_each("category", [category], range(5))
    _check_each("instance", [instance], range(10))
    _check_plan(seed, elevations, azimuths, lightings, size)
    random = np.random.default_rng([seed, category, instance])
    reflectance = float(random.uniform(0.46, 0.66))
    scene = pose_scene(_BUILDERS[category](instance, random), reflectance)
    full = photographs(scene, [ELEVATIONS[e] for e in elevations], [10 * a for a in azimuths], lightings)
    images = full.reshape(-1, 2, FULL_SIZE, FULL_SIZE)
    if size < FULL_SIZE:
        images = area_mean(images)
    plan = itertools.product([category], [instance], elevations, azimuths, lightings)
    return images, np.array(list(plan), np.int16).reshape(-1, 5)


def make_toys(
    *,
    seed: int = 0,
    elevations: Sequence[int] = range(9),
    azimuths: Sequence[int] = range(0, 36, 2),
    lightings: Sequence[int] = range(6),
    instances: Sequence[int] = range(10),
    size: int = FULL_SIZE // 2,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, tuple[Images, Labels]]:
    """ "train" and "test" images (N, 2, size, size) and labels (N, 5) as of `render_instance`, category by category.

    Instances 4, 6, 7, 8, 9 are for training and 0, 1, 2, 3, 5 for testing, as in smallNORB. `workers` processes share
    the work (None: one per processor, or this one alone if there is little to do); the images do not depend on it.
    `on_progress(done, total)` is told after each toy.
    """
    _check_each("instance", instances, range(10))
    _check_plan(seed, elevations, azimuths, lightings, size)
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}: give 1 to render in this process")
    splits = {
        "train": [k for k in instances if k in TRAIN_INSTANCES],
        "test": [k for k in instances if k in TEST_INSTANCES],
    }
    views = len(elevations) * len(azimuths) * len(lightings)
    made = {}
    places: dict[tuple[int, int], tuple[str, slice]] = {}
    for split, members in splits.items():
        toys = list(itertools.product(range(5), sorted(members)))
        images = np.empty((len(toys) * views, 2, size, size), np.uint8)
        made[split] = images, np.empty((len(toys) * views, 5), np.int16)
        places |= {toy: (split, slice(n * views, (n + 1) * views)) for n, toy in enumerate(toys)}
    if workers is None:
        workers = 1 if views * len(places) <= _SMALL_JOB else os.cpu_count() or 1
    settings = {"seed": seed, "elevations": elevations, "azimuths": azimuths, "lightings": lightings, "size": size}
    jobs = [{"category": category, "instance": instance, **settings} for category, instance in places]
    slots = list(places.values())
    for done, (index, (images, labels)) in enumerate(_render_all(jobs, min(workers, len(jobs))), start=1):
        split, rows = slots[index]
        made[split][0][rows], made[split][1][rows] = images, labels
        if on_progress is not None:
            on_progress(done, len(jobs))
    return made


def _render_all(jobs: Sequence[dict[str, Any]], workers: int) -> Iterator[tuple[int, tuple[Images, Labels]]]:
    """(index, result) of every job, in any order."""
    if workers > 1:
        yield from call_in_processes(render_instance, jobs, workers)
    else:
        yield from ((index, render_instance(**job)) for index, job in enumerate(jobs))


def _check_plan(
    seed: int, elevations: Sequence[int], azimuths: Sequence[int], lightings: Sequence[int], size: int
) -> None:
    if seed < 0:
        raise ValueError(f"the seed must be zero or more, not {seed}")
    _check_each("elevation", elevations, range(9))
    _check_each("azimuth", azimuths, range(0, 36, 2))
    _check_each("lighting", lightings, range(6))
    if size not in (FULL_SIZE, FULL_SIZE // 2):
        raise ValueError(
            f"the size of toys' images is {FULL_SIZE}, or {FULL_SIZE // 2} for means over 2 x 2 pixels, not {size!r}"
        )


_MEANINGS = {
    "category": "0 to 4: " + ", ".join(CATEGORIES),
    "instance": "0 to 9",
    "elevation": "0 to 8, for 30 to 70 degrees in steps of 5",
    "azimuth": "even, 0 to 34, in tens of degrees",
    "lighting": "0 to 5",
}


def _check_each(name: str, values: Sequence[int], allowed: range) -> None:
    for value in values:
        if value not in allowed:
            raise ValueError(f"{name} {value!r} does not exist: it must be {_MEANINGS[name]}")
    if len(set(values)) < len(values):
        raise ValueError(f"each {name} can be asked for once, not {list(values)}: leave out the repeated ones")
