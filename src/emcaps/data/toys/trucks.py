"""Ten trucks: a cab on a chassis, with a different load on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from emcaps.data.toys.shapes import (
    Solid,
    ball,
    both_sides,
    box,
    cut,
    cylinder,
    ellipsoid,
    extruded,
    frustum,
    hull,
    limb,
    painted,
    turned,
    wheels,
)

GLASS = 0.6
DECK = 1.0  # height of the chassis, on which everything stands


class Truck(NamedTuple):
    """Lengths in metres; the front of the cab is at x = 0 and the truck extends backwards."""

    load: str
    bed: float
    """Length of the chassis behind the cab."""
    bonnet: float = 0.0
    """Length of the bonnet in front of the cab; 0 for a flat nose."""
    cab: float = 1.6
    """Length of the cab."""
    roof: float = 2.5
    """Height of the cab."""
    width: float = 2.2
    wheel: float = 0.5
    rear_axles: int = 1
    height: float = 2.0
    """Height of the load above the chassis."""


KINDS = (
    Truck("crane", bed=4.2, bonnet=0.9, cab=1.4, roof=2.3, height=1.2),
    Truck("refuse", bed=4.6, height=1.9, cab=1.5, roof=2.4, rear_axles=2),
    Truck("tipper", bed=3.6, bonnet=1.2, cab=1.4, roof=2.5, height=1.3, wheel=0.68, width=2.5),
    Truck("ladder", bed=4.6, cab=2.0, roof=2.3, height=1.15),
    Truck("trailer", bed=6.4, bonnet=1.3, cab=1.5, roof=2.6, height=2.3, rear_axles=2),
    Truck("tank", bed=4.4, bonnet=1.3, cab=1.4, roof=2.45, height=1.7, rear_axles=2),
    Truck("tipper", bed=4.0, cab=1.6, roof=2.6, height=1.2, rear_axles=2),
    Truck("mixer", bed=4.4, cab=1.5, roof=2.4, height=2.0, rear_axles=2),
    Truck("van", bed=4.2, bonnet=0.9, cab=1.4, height=2.1),
    Truck("tank", bed=5.4, cab=1.6, roof=2.5, height=1.9, rear_axles=2),
)


def build_truck(instance: int, random: np.random.Generator) -> list[Solid]:
    truck = KINDS[instance]
    truck = truck._replace(
        bed=truck.bed * random.uniform(0.94, 1.06),
        roof=truck.roof * random.uniform(0.96, 1.04),
        width=truck.width * random.uniform(0.95, 1.05),
        height=truck.height * random.uniform(0.93, 1.07),
    )
    return _chassis(truck) + _cab(truck) + _LOADS[truck.load](truck)


def _back(truck: Truck) -> float:
    return -truck.bonnet - truck.cab - truck.bed


def _chassis(truck: Truck) -> list[Solid]:
    back = _back(truck)
    frame = box((back / 2, 0, DECK - 0.2), (-back - 0.3, 0.55 * truck.width, 0.3))
    bumper = box((0.05, 0, 0.62), (0.25, truck.width, 0.32), 0.06)
    axles = [-0.55 * truck.cab if truck.bonnet == 0 else -0.45 * truck.bonnet - 0.1]
    axles += [back + truck.wheel + 0.35 + n * (2 * truck.wheel + 0.12) for n in range(truck.rear_axles)]
    if truck.load == "trailer":
        axles.append(-truck.bonnet - truck.cab - 0.5)
    tank = cylinder(
        (-truck.bonnet - truck.cab, 0.38 * truck.width, 0.7),
        (-truck.bonnet - truck.cab - 0.8, 0.38 * truck.width, 0.7),
        0.22,
    )
    return [frame, bumper, *both_sides([tank]), *wheels(axles, truck.width + 0.06, truck.wheel, 0.4)]


def _cab(truck: Truck) -> list[Solid]:
    w, front, rear = truck.width - 0.06, -truck.bonnet, -truck.bonnet - truck.cab
    sill = 0.66 if truck.wheel < 0.6 else 0.9
    slope = 0.16 if truck.bonnet == 0 else 0.3
    waist = 1.55 if truck.bonnet == 0 else 1.75
    side = [(rear, sill), (rear, truck.roof), (front - slope, truck.roof), (front, waist), (front, sill)]
    solids = [extruded(side, w, chamfer=0.1)]
    low, high = waist + 0.04, truck.roof - 0.2
    share = (high - waist) / (truck.roof - waist)
    inside, post = front - slope - 0.1, rear + 0.4 * truck.cab
    screen = [(inside, low), (front + 0.03, low), (front - share * slope + 0.03, high), (inside, high)]
    door = [(post, low), (front - 0.1, low), (front - slope - 0.06, high), (post, high)]
    solids += painted([extruded(screen, w - 0.3), extruded(door, w + 0.05)], GLASS)
    if truck.bonnet > 0:
        hood = [(front, sill), (front, waist), (-0.15, waist - 0.25), (0, waist - 0.4), (0, sill)]
        solids.append(extruded(hood, 0.72 * w, chamfer=0.1))
        fender = ellipsoid(
            (-0.45 * truck.bonnet - 0.1, 0.4 * w, truck.wheel + 0.2), (truck.wheel + 0.25, 0.26, truck.wheel + 0.1)
        )
        solids += both_sides([fender, ball((0.0, 0.3 * w, 1.1), 0.14)])
        solids += both_sides(
            [cylinder((rear + 0.1, w / 2 + 0.05, DECK), (rear + 0.1, w / 2 + 0.05, truck.roof + 0.5), 0.08)]
        )
    else:
        solids += both_sides([box((0.06, 0.36 * w, 0.95), (0.1, 0.3, 0.22), 0.03)])
    return solids


def _bed(truck: Truck) -> tuple[float, float, float]:
    """Back end, front end and middle of the room behind the cab."""
    back, front = _back(truck), -truck.bonnet - truck.cab - 0.15
    return back, front, (back + front) / 2


def _van(truck: Truck) -> list[Solid]:
    back, front, middle = _bed(truck)
    case = box((middle, 0, DECK + truck.height / 2), (front - back, truck.width + 0.1, truck.height), 0.06)
    hood = extruded([(front, truck.roof), (front + 0.9, truck.roof), (front, DECK + truck.height)], truck.width - 0.2)
    return [case, hood]


def _trailer(truck: Truck) -> list[Solid]:
    back, front, middle = _bed(truck)
    case = box((middle - 0.2, 0, DECK + 0.2 + truck.height / 2), (front - back, truck.width + 0.15, truck.height), 0.06)
    ribs = [
        box((x, 0, DECK + 0.2 + truck.height / 2), (0.1, truck.width + 0.24, truck.height - 0.1))
        for x in np.linspace(back + 0.3, front - 0.7, 6)
    ]
    return [case, *ribs]


def _refuse(truck: Truck) -> list[Solid]:
    back, front, _ = _bed(truck)
    top = DECK + truck.height
    drum = [
        (back + 0.9, DECK),
        (front, DECK),
        (front, top - 0.25),
        (front - 0.5, top),
        (back + 1.2, top),
        (back + 0.9, top - 0.1),
    ]
    hopper = [
        (back - 0.5, DECK - 0.2),
        (back + 0.9, DECK - 0.3),
        (back + 0.9, top + 0.1),
        (back + 0.3, top + 0.1),
        (back - 0.5, DECK + 0.8),
    ]
    ribs = [
        box((x, 0, DECK + truck.height / 2 - 0.1), (0.12, truck.width + 0.14, truck.height - 0.4))
        for x in (front - 0.7, front - 1.9)
    ]
    return [extruded(drum, truck.width, chamfer=0.15), extruded(hopper, truck.width + 0.06, chamfer=0.06), *ribs]


def _tipper(truck: Truck) -> list[Solid]:
    """An open skip, raised a little, with a heap in it."""
    back, front, middle = _bed(truck)
    w, h, floor = truck.width + 0.1, truck.height, DECK + 0.12
    wall = 0.1
    top, rim, overhang = floor + h, floor + 0.75 * h, back - 0.25
    flank = [(back, floor), (front, floor), (overhang, top), (front, top)]
    sides = both_sides([hull([(x, y, z) for x, z in flank for y in (w / 2 - wall, w / 2)])])
    plates = [
        box((middle, 0, floor + 0.05), (front - back, w, 0.12)),
        box((front, 0, floor + h / 2 + 0.1), (0.12, w, h + 0.2)),
        box((front + 0.45, 0, top + 0.16), (0.95, w, 0.1)),
        extruded([(back, floor), (back + wall, floor), (overhang, rim), (overhang + wall, rim)], w),
    ]
    ribs = [box((x, 0, floor + h / 2), (0.14, w + 0.12, h)) for x in np.linspace(back + 0.4, front - 0.4, 4)]
    ribs = both_sides([cut(rib, (0, w / 2 - wall, 0), (0, -1, 0)) for rib in ribs])
    heap = cut(
        ellipsoid((middle, 0, floor + 0.3 * h), (0.46 * (front - back), 0.46 * w, 0.75 * h)), (0, 0, floor), (0, 0, -1)
    )
    solids = sides + plates + ribs + painted([heap], 0.8)
    if truck.rear_axles > 1:
        return turned(solids, (back + 0.3, 0, floor), pitch=9)
    return solids


def _ladder(truck: Truck) -> list[Solid]:
    """A fire engine: lockers, and a ladder that rises over the cab from a turntable at the back."""
    back, front, middle = _bed(truck)
    top = DECK + truck.height
    body = box((middle, 0, (DECK + top) / 2 - 0.15), (front - back + 0.1, truck.width, truck.height + 0.3), 0.06)
    lockers = [
        box((x, 0, (DECK + top) / 2), (0.95, truck.width + 0.1, 0.8 * truck.height))
        for x in np.linspace(back + 0.7, front - 0.7, 3)
    ]
    base = cylinder((back + 1.0, 0, top), (back + 1.0, 0, top + 0.35), 0.7)
    length = truck.bed + truck.cab * 0.8
    rails = both_sides([box((back + 0.6 + length / 2, 0.42, top + 0.55), (length, 0.1, 0.22))])
    rungs = [box((x, 0, top + 0.55), (0.14, 0.9, 0.1)) for x in np.linspace(back + 0.8, back + 0.4 + length, 10)]
    beacons = both_sides([cylinder((-0.7, 0.6, truck.roof), (-0.7, 0.6, truck.roof + 0.22), 0.16)])
    return [body, *lockers, base, *beacons, *turned(rails + rungs, (back + 1.0, 0, top + 0.4), pitch=7)]


def _tank(truck: Truck) -> list[Solid]:
    back, front, middle = _bed(truck)
    r = truck.height / 2
    z = DECK + r
    drum = cylinder((back + 0.2, 0, z), (front - 0.2, 0, z), r)
    ends = [ellipsoid((x, 0, z), (0.3, r, r)) for x in (back + 0.2, front - 0.2)]
    bands = [cylinder((x - 0.07, 0, z), (x + 0.07, 0, z), r + 0.06) for x in np.linspace(back + 0.6, front - 0.6, 4)]
    hatches = [cylinder((x, 0, z + r - 0.05), (x, 0, z + r + 0.2), 0.28) for x in (middle - 0.8, middle + 0.8)]
    saddle = box((middle, 0, DECK + 0.15), (front - back - 0.2, 0.8 * truck.width, 0.4))
    return [drum, *ends, *bands, *hatches, saddle]


def _mixer(truck: Truck) -> list[Solid]:
    """A drum that tips up to the back, fed through a hopper."""
    back, front, middle = _bed(truck)
    z, r = DECK + 1.05, 1.05
    low, mid, high = (front - 0.35, 0, z - 0.1), (middle + 0.1, 0, z + 0.2), (back + 0.3, 0, z + 0.85)
    drum = [frustum(mid, low, r, 0.62 * r), frustum(mid, high, r, 0.42 * r)]
    ring = limb([mid, (mid[0] - 0.01, 0, mid[2] + 0.004)], [r * 0.99, r * 0.99])[:1]
    posts = both_sides(
        [box((back + 0.5, 0.5, DECK + 0.6), (0.2, 0.16, 1.5)), box((front - 0.1, 0.5, DECK + 0.4), (0.25, 0.3, 1.0))]
    )
    hopper = frustum((back + 0.15, 0, z + 0.95), (back + 0.1, 0, z + 1.5), 0.3, 0.55)
    chute = box((back - 0.25, 0, DECK + 0.55), (0.9, 0.4, 0.12))
    return [
        *drum,
        *ring,
        *posts,
        hopper,
        *turned([chute], (back - 0.2, 0, DECK + 0.6), pitch=35),
        box((middle, 0, DECK), (front - back, 0.8 * truck.width, 0.2)),
    ]


def _crane(truck: Truck) -> list[Solid]:
    """A tow truck: a low deck and a jib with a hook over the tail."""
    back, front, middle = _bed(truck)
    deck = box((middle, 0, DECK + 0.1), (front - back, truck.width, 0.35), 0.05)
    rails = both_sides([box((middle, truck.width / 2 - 0.1, DECK + 0.42), (front - back, 0.16, 0.5), 0.04)])
    chest = box((front - 0.5, 0, DECK + 0.65), (0.9, truck.width - 0.1, 1.0), 0.08)
    foot, tip = (middle + 0.1, 0, DECK + 0.3), (back - 0.7, 0, DECK + 2.1)
    jib = limb([foot, tip], [0.24, 0.14])
    mast = limb([(middle + 0.8, 0, DECK + 0.3), (middle - 0.3, 0, DECK + 1.35)], [0.14, 0.1])
    hook = [cylinder(tip, (tip[0], 0, DECK + 1.0), 0.05), ball((tip[0], 0, DECK + 0.95), 0.18)]
    return [deck, *rails, chest, *jib, *mast, *hook, cylinder((-1.9, 0, truck.roof), (-1.9, 0, truck.roof + 0.2), 0.15)]


_LOADS: dict[str, Callable[[Truck], list[Solid]]] = {
    "van": _van, "trailer": _trailer, "refuse": _refuse, "tipper": _tipper, "ladder": _ladder, "tank": _tank,
    "mixer": _mixer, "crane": _crane,
}  # fmt: skip
