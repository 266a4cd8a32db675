"""Errors of trained networks by viewpoint: counted from the weights, recorded in viewpoints.json, and drawn.

Viewpoints are in degrees: elevations 30 to 70, azimuths 0 to 340.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from emcaps.data.prepared import Examples
from emcaps.data.splits import load_tested, trained_viewpoints, turned
from emcaps.data.tensors import to_tensors
from emcaps.experiments.records import Record
from emcaps.files import atomic_write, read_json, write_json
from emcaps.report.figures import new_figure
from emcaps.report.progress import counting_bar
from emcaps.train import load_network
from emcaps.train.device import start_work
from emcaps.train.evaluate import answers, images_at_a_time
from emcaps.train.run_folder import VIEWPOINTS, WEIGHTS, read_config

SMALLEST = 0.1
"""Errors below this, in percent, are drawn as this: the scale is logarithmic."""


class ViewpointErrors(NamedTuple):
    """How often the test instances were not recognised from one viewpoint."""

    elevation: int
    azimuth: int
    images: int
    wrong: int


class Errors(NamedTuple):
    """The errors of one run at one evaluation, in percent."""

    familiar: float
    novel: float


def errors_of(record: Record) -> list[Errors]:
    """The errors of a run at each of its evaluations; the last is that of the last step."""
    novel = {step: 100 - accuracy for step, accuracy, _ in record.curve}
    return [Errors(100 - accuracy, novel[step]) for step, accuracy in record.familiar_curve]


def degrees(kind: str, code: int) -> int:
    """An azimuth or elevation in degrees, from its code in the labels."""
    return 10 * code if kind == "azimuth" else 30 + 5 * code


def count_errors(given: Any, examples: Examples) -> list[ViewpointErrors]:
    """The errors at each viewpoint of the examples; `given` holds the answers, numbered as `to_tensors` does."""
    assert examples.elevation is not None
    assert examples.azimuth is not None
    asked = np.asarray(given).reshape(len(examples.category), -1)  # one column per camera
    wrong = asked != examples.category[:, None]
    found = []
    for elevation, azimuth in np.unique(np.stack([examples.elevation, examples.azimuth], 1), axis=0).tolist():
        here = wrong[(examples.elevation == elevation) & (examples.azimuth == azimuth)]
        where = degrees("elevation", elevation), degrees("azimuth", azimuth)
        found.append(ViewpointErrors(*where, here.size, int(here.sum())))
    return found


def measure_viewpoints(records: Sequence[Record], device: str, data_folder: Path | None) -> None:
    """Write viewpoints.json for the runs that have weights and lack it."""
    place = start_work(device)
    for run in records:
        if (run.folder / VIEWPOINTS).exists() or not (run.folder / WEIGHTS).exists():
            continue
        network, config, step = load_network(run.folder / WEIGHTS, place)
        found = []
        for part, examples in load_tested(config.data, data_folder).items():
            images, _ = to_tensors(examples, config.data.view, place)
            name = f"{run.folder.parent.name}, seed {run.seed}, {part} viewpoints"
            with counting_bar(name, "images") as show:
                given = answers(
                    network,
                    images,
                    crop=config.data.crop,
                    standardised=config.data.standardise,
                    batch_size=images_at_a_time(config, place),
                    on_progress=show,
                )
            found += count_errors(given.cpu(), examples)
        write_viewpoints(run.folder / VIEWPOINTS, found, step)


def write_viewpoints(path: Path, found: Sequence[ViewpointErrors], step: int) -> None:
    names = [f"elevation {one.elevation}, azimuth {one.azimuth}" for one in sorted(found)]
    images, wrong = ([getattr(one, key) for one in sorted(found)] for key in ("images", "wrong"))
    content = {"images": dict(zip(names, images, strict=True)), "wrong": dict(zip(names, wrong, strict=True))}
    write_json(path, {"step": step} | content)


def read_viewpoints(folder: Path) -> list[ViewpointErrors]:
    """What a run's viewpoints.json holds; empty if it has none."""
    path = folder / VIEWPOINTS
    if not path.exists():
        return []
    content = read_json(path)
    try:
        found = []
        for name, images in content["images"].items():
            elevation, azimuth = (int(part.split()[1]) for part in name.split(", "))
            found.append(ViewpointErrors(elevation, azimuth, int(images), int(content["wrong"][name])))
        if any(not 0 <= one.wrong <= one.images for one in found):
            raise ValueError("more errors than images")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): restore it from another copy") from error
    return found


def trained_angles(found: Sequence[ViewpointErrors], split: str) -> list[int]:
    """The azimuths or elevations, among those that were tested, that the split trains on."""
    kind = turned(split)
    trained = {degrees(kind, code) for code in trained_viewpoints(split)}
    return sorted(trained & {getattr(one, kind) for one in found})


def distance(kind: str, angle: int, trained: Sequence[int]) -> int:
    """Degrees from this azimuth or elevation to the nearest one of those that were trained."""
    apart = [abs(angle - other) for other in trained]
    return min(min(one, 360 - one) if kind == "azimuth" else one for one in apart)


def error_by_angle(found: Sequence[ViewpointErrors], kind: str) -> dict[int, float]:
    """The error in percent at each azimuth, over all elevations, or at each elevation, over all azimuths."""
    return _error_by(found, lambda one: getattr(one, kind))


def error_by_distance(found: Sequence[ViewpointErrors], split: str) -> dict[int, float]:
    """The error in percent by degrees from the nearest trained viewpoint; 0 are the familiar ones."""
    kind, trained = turned(split), trained_angles(found, split)
    return _error_by(found, lambda one: distance(kind, getattr(one, kind), trained))


def _error_by(found: Sequence[ViewpointErrors], key: Any) -> dict[int, float]:
    images: dict[int, int] = {}
    wrong: dict[int, int] = {}
    for one in sorted(found, key=key):
        images[key(one)] = images.get(key(one), 0) + one.images
        wrong[key(one)] = wrong.get(key(one), 0) + one.wrong
    return {angle: 100 * wrong[angle] / images[angle] for angle in images}


def mean_of(each: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over runs, at the angles that all of them have."""
    shared = sorted(set.intersection(*(set(one) for one in each)))
    return {angle: statistics.fmean(one[angle] for one in each) for angle in shared}


def draw_viewpoints(found: Mapping[str, Sequence[Record]], path: Path) -> bool:
    """Draw the error by viewpoint (azimuths as a polar plot, elevations as bars), by the distance from the nearest
    trained view, and on novel against familiar viewpoints while training, for rows of one split; False, and no
    picture, if no run has recorded its viewpoints."""
    shown = {}
    for row, records in found.items():
        if runs := [(record, errors) for record in records if (errors := read_viewpoints(record.folder))]:
            shown[row] = runs
    if not shown:
        return False
    splits = {read_config(found[row][0].folder).data.split for row in shown}
    if len(splits) > 1:
        raise ValueError(f"a picture shows one split, not {' and '.join(sorted(splits))}: draw one for each")
    (split,) = splits
    kind = turned(split)
    figure = new_figure((16, 5))
    left = figure.add_subplot(1, 3, 1, projection="polar" if kind == "azimuth" else None)
    middle, right = figure.add_subplot(1, 3, 2), figure.add_subplot(1, 3, 3)
    for number, (row, runs) in enumerate(shown.items()):
        by_angle = mean_of([error_by_angle(errors, kind) for _, errors in runs])
        look = {"color": f"C{number}", "label": f"{row} (n = {len(runs)})"}
        if kind == "azimuth":
            angles = [*by_angle, min(by_angle)]  # closes the curve
            left.plot([math.radians(angle) for angle in angles], [by_angle[angle] for angle in angles], **look)
        else:
            width = 4 / len(shown)
            places = [angle + (number - (len(shown) - 1) / 2) * width for angle in by_angle]
            left.bar(places, list(by_angle.values()), width, **look)
        by_distance = mean_of([error_by_distance(errors, split) for _, errors in runs])
        middle.plot(list(by_distance), list(by_distance.values()), marker="o", **look)
        familiar, novel = while_training([record for record, _ in runs])
        right.plot(familiar, novel, linewidth=1, alpha=0.6, **look)
        right.plot(familiar[-1], novel[-1], marker="o", color=look["color"])
    (_, errors), *_ = next(iter(shown.values()))
    _label(left, middle, right, kind, trained_angles(errors, split))
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    return True


def mean_errors(records: Sequence[Record]) -> list[Errors]:
    """The errors at each evaluation, means over the runs."""
    evaluations = zip(*map(errors_of, records), strict=True)
    return [Errors(*map(statistics.fmean, zip(*each, strict=True))) for each in evaluations]


def while_training(records: Sequence[Record]) -> tuple[list[float], list[float]]:
    """The mean errors on familiar views at each evaluation, and those on novel ones, as a logarithmic scale shows them:
    none is below SMALLEST."""
    drawn = [[max(error, SMALLEST) for error in errors] for errors in mean_errors(records)]
    return [familiar for familiar, _ in drawn], [novel for _, novel in drawn]


def _label(left: Any, middle: Any, right: Any, kind: str, trained: Sequence[int]) -> None:
    left.set_title(f"error by {kind}, %; trained views are grey")
    if kind == "azimuth":
        left.set_theta_zero_location("N")
        for angle in trained:
            left.axvspan(math.radians(angle - 10), math.radians(angle + 10), color="0.9", zorder=0)
    else:
        for angle in trained:
            left.axvspan(angle - 2.5, angle + 2.5, color="0.9", zorder=0)
        left.set_xlabel("elevation, degrees")
        left.set_ylabel("error, %")
    middle.set_title("error by distance from the nearest trained view, %")
    middle.set_xlabel("degrees")
    middle.set_ylim(bottom=0)
    middle.grid(alpha=0.3)
    middle.legend(fontsize="small")
    right.set_title("while training: errors on novel and familiar views, %")
    right.set_xlabel("familiar, %; the dot is the last step")
    right.set_ylabel("novel, %")
    right.set_xscale("log")
    right.set_yscale("log")
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    right.grid(which="both", alpha=0.3)
