"""Ten cars."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from emcaps.data.toys.shapes import Solid, ball, both_sides, box, cut, cylinder, ellipsoid, extruded, painted, wheels

GLASS = 0.6


class Car(NamedTuple):
    """Lengths in metres; positions along the car as shares of its length, 0 at the tail and 1 at the nose."""

    length: float
    width: float = 1.75
    sill: float = 0.3
    belt: float = 0.88
    """Height of the lower edge of the windows."""
    bonnet: float = 0.76
    """Height of the nose."""
    boot: float = 0.86
    """Height of the tail."""
    roof: float = 1.42
    cabin: tuple[float, float, float, float] = (0.12, 0.26, 0.54, 0.7)
    """Where the rear window starts, the roof starts, the roof ends and the windscreen ends."""
    lean: float = 0.3
    """How much narrower the roof is than the belt."""
    wheel: float = 0.34
    axles: tuple[float, float] = (0.2, 0.8)
    extras: tuple[str, ...] = ()


KINDS = (
    # saloon
    Car(4.5, roof=1.43, boot=0.9, cabin=(0.1, 0.27, 0.53, 0.7), extras=("lights",)),
    # hatchback
    Car(3.7, roof=1.5, boot=1.0, cabin=(0.0, 0.1, 0.56, 0.78), axles=(0.17, 0.82), extras=("lights",)),
    # coupé
    Car(4.4, width=1.9, sill=0.2, belt=0.8, bonnet=0.55, boot=0.84, roof=1.16, cabin=(0.08, 0.34, 0.5, 0.72),
        wheel=0.35),
    # racer
    Car(4.4, width=1.9, sill=0.18, belt=0.72, bonnet=0.48, boot=0.76, roof=1.08, cabin=(0.16, 0.34, 0.46, 0.7),
        wheel=0.36, extras=("spoiler",)),
    # boxy saloon
    Car(4.7, belt=0.92, bonnet=0.84, boot=0.9, roof=1.46, cabin=(0.2, 0.27, 0.56, 0.64), lean=0.14,
        extras=("bumpers",)),
    # small car
    Car(3.2, width=1.5, belt=0.9, bonnet=0.8, boot=0.9, roof=1.42, cabin=(0.02, 0.1, 0.6, 0.74), lean=0.2, wheel=0.28,
        axles=(0.15, 0.85), extras=("lights",)),
    # jeep
    Car(4.1, width=1.8, sill=0.46, belt=1.15, bonnet=1.08, boot=1.1, roof=1.82, cabin=(0.0, 0.02, 0.56, 0.64), lean=0.1,
        wheel=0.44, extras=("spare", "bumpers")),
    # beetle
    Car(4.1, width=1.4, belt=0.86, bonnet=0.6, boot=0.55, roof=1.56, extras=("beetle", "lights")),
    # estate
    Car(4.8, roof=1.48, boot=0.95, cabin=(0.0, 0.05, 0.55, 0.7), extras=("rack", "lights")),
    # roadster
    Car(4.2, width=1.3, sill=0.34, belt=0.84, bonnet=0.78, boot=0.72, extras=("open", "fenders", "lights", "spare")),
)  # fmt: skip


def build_car(instance: int, random: np.random.Generator) -> list[Solid]:
    car = KINDS[instance]
    # Toys have large wheels.
    stretch, widen, lift = random.uniform(0.95, 1.06), random.uniform(0.95, 1.06), random.uniform(-0.04, 0.05)
    car = car._replace(
        length=car.length * stretch, width=car.width * widen, roof=car.roof + lift, wheel=1.12 * car.wheel
    )
    solids = _body(car) + wheels([_at(car, x) for x in car.axles], _track(car), car.wheel, 0.24)
    if "beetle" in car.extras:
        solids += _beetle_top(car)
    elif "open" in car.extras:
        solids += _open_top(car)
    else:
        solids += _cabin(car)
    for extra in car.extras:
        solids += _extra(car, extra)
    return solids


def _at(car: Car, share: float) -> float:
    return (share - 0.5) * car.length


def _track(car: Car) -> float:
    return car.width + (0.42 if {"beetle", "open"} & set(car.extras) else 0.06)


def _body(car: Car) -> list[Solid]:
    tail, nose = _at(car, 0), _at(car, 1)
    side = [
        (tail + 0.1, car.sill), (tail, car.sill + 0.2), (tail + 0.02, car.boot - 0.12), (tail + 0.12, car.boot),
        (_at(car, car.cabin[0]), max(car.boot, car.belt - 0.02)), (_at(car, car.cabin[3]), car.belt),
        (nose - 0.2, car.bonnet), (nose, car.bonnet - 0.16), (nose, car.sill + 0.12), (nose - 0.12, car.sill),
    ]  # fmt: skip
    return [extruded(side, car.width, chamfer=0.07)]


def _cabin(car: Car) -> list[Solid]:
    """The roof on its pillars, and the windows as slightly thicker slices of it."""
    panes = [_cabin_slice(car, 0.12, 0.8, -0.16, 0.025), _cabin_slice(car, 0.12, 0.84, 0.025, -0.14)]
    return [_cabin_slice(car, -0.1, 1.0, 0.0, 0.0), *painted(panes, GLASS)]


def _cabin_slice(car: Car, low: float, high: float, longer: float, wider: float) -> Solid:
    """The cabin between two shares of its height, made longer at both ends and wider on both sides by so much."""
    corners, widths = [], []
    for share in (low, high):
        rear = _at(car, car.cabin[0] + share * (car.cabin[1] - car.cabin[0])) - longer
        front = _at(car, car.cabin[3] + share * (car.cabin[2] - car.cabin[3])) + longer
        z = car.belt + share * (car.roof - car.belt)
        corners += [(rear, z), (front, z)]
        widths += [car.width - 0.12 - share * car.lean + 2 * wider] * 2
    return extruded(corners, widths)


def _beetle_top(car: Car) -> list[Solid]:
    """A dome with a band of windows on a round body, and wings over the wheels."""
    w = car.width
    shell = ellipsoid((-0.1, 0, 0.56), (0.47 * car.length, 0.58 * w, 0.46))
    dome = ellipsoid((-0.25, 0, 0.75), (1.2, 0.56 * w, car.roof - 0.75))
    band = ellipsoid((-0.25, 0, 0.75), (1.22, 0.575 * w, car.roof - 0.74))
    glass = cut(cut(band, (0, 0, 1.02), (0, 0, -1)), (0, 0, 1.34), (0, 0, 1))
    hoop = ellipsoid((-0.25, 0, 0.75), (1.25, 0.6 * w, car.roof - 0.73))
    pillars = [cut(cut(hoop, (x - 0.07, 0, 0), (-1, 0, 0)), (x + 0.07, 0, 0), (1, 0, 0)) for x in (-0.8, 0.3)]
    wings = [ellipsoid((_at(car, x), 0.5 * w, 0.46), (0.6, 0.26, 0.38)) for x in car.axles]
    return [shell, dome, glass._replace(paint=GLASS), *pillars, *both_sides(wings)]


def _open_top(car: Car) -> list[Solid]:
    """A windscreen, two seats and a steering wheel where others have a roof."""
    seats = []
    for y in (-0.3, 0.3):
        seats += [box((-0.62, y, car.belt + 0.14), (0.18, 0.46, 0.5), 0.05)]
    screen = extruded([(0.28, car.belt - 0.1), (0.34, car.belt - 0.1), (0.14, 1.32), (0.1, 1.32)], car.width - 0.12)
    pit = box((-0.2, 0, car.belt), (0.75, car.width - 0.3, 0.08))
    return [*seats, screen, *painted([pit], 0.5), cylinder((0.05, 0.3, 1.0), (0.02, 0.3, 1.02), 0.2)]


def _extra(car: Car, name: str) -> list[Solid]:
    tail, nose = _at(car, 0), _at(car, 1)
    if name == "lights":
        z = car.bonnet - 0.16
        return both_sides([ball((nose - 0.06, car.width * 0.36, z), 0.13)])
    if name == "bumpers":
        return [box((x, 0, car.sill + 0.14), (0.16, car.width + 0.06, 0.18), 0.04) for x in (tail - 0.03, nose + 0.03)]
    if name == "rack":
        bars = [box((x, 0, car.roof + 0.08), (0.08, car.width - 0.42, 0.05)) for x in (-1.5, -0.8, -0.1)]
        return bars + both_sides([box((-0.8, car.width / 2 - 0.26, car.roof + 0.06), (1.9, 0.06, 0.1))])
    if name == "spare":
        x, z = tail - 0.1, car.boot - 0.3
        return painted([cylinder((x - 0.1, 0, z), (x + 0.1, 0, z), 0.36)], 0.62)
    if name == "spoiler":
        blade = box((tail + 0.22, 0, car.boot + 0.34), (0.42, car.width - 0.02, 0.06))
        return [blade, *both_sides([box((tail + 0.25, 0.6, car.boot + 0.15), (0.2, 0.08, 0.36))])]
    if name == "fenders":
        arches = [ellipsoid((_at(car, x), car.width / 2 + 0.1, car.wheel + 0.16), (0.6, 0.15, 0.3)) for x in car.axles]
        boards = box((0, car.width / 2 + 0.1, car.sill + 0.04), (1.8, 0.24, 0.07))
        return both_sides([*arches, boards])
    assert name in ("beetle", "open"), name  # these have changed the cabin
    return []
