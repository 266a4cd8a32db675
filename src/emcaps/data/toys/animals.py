"""Ten four-legged animals of different builds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from emcaps.data.toys.shapes import Solid, both_sides, ellipsoid, frustum, limb, transformed, turned


class Animal(NamedTuple):
    """Lengths in any unit; angles in degrees above level."""

    half: float
    """Half the distance between the hips and the shoulders."""
    leg: float
    """Height of the hips and shoulders."""
    leg_radii: tuple[float, float, float]
    """At the top, the knee and the ankle."""
    trunk: tuple[float, float, float]
    """Radius of the body at the hips, in the middle and at the shoulders."""
    neck: tuple[float, float, float, float]
    """Length, angle, and radius at the shoulders and at the head."""
    head: tuple[float, float, float, float]
    """Length, angle, and radius at the skull and at the muzzle."""
    ear: tuple[float, float, float] = (0.1, 0.05, 60.0)
    """Length, width and angle."""
    tail: tuple[float, float, float, float] = (0.4, -60.0, 0.04, 0.03)
    """Length, angle, and radius at the root and at the end."""
    foot: tuple[float, float] = (0.07, 0.06)
    """Length and width of half a foot."""
    slim: float = 0.82
    """Width of the body as a share of its depth."""
    extras: tuple[str, ...] = ()


KINDS = (
    # horse
    Animal(0.42, 0.82, (0.15, 0.075, 0.055), (0.23, 0.19, 0.24), (0.52, 52, 0.2, 0.12), (0.36, -42, 0.13, 0.085),
           (0.12, 0.045, 80), (0.55, -66, 0.05, 0.08), (0.08, 0.065), extras=("mane",)),
    # cow
    Animal(0.44, 0.66, (0.14, 0.08, 0.06), (0.25, 0.29, 0.27), (0.28, 24, 0.2, 0.16), (0.34, -30, 0.17, 0.13),
           (0.14, 0.06, 5), (0.55, -80, 0.03, 0.055), extras=("horns", "udder")),
    # lion
    Animal(0.4, 0.54, (0.14, 0.09, 0.075), (0.19, 0.16, 0.22), (0.26, 42, 0.2, 0.17), (0.22, -14, 0.17, 0.12),
           (0.07, 0.07, 60), (0.55, -20, 0.035, 0.06), (0.1, 0.08), extras=("ruff",)),
    # rhinoceros
    Animal(0.42, 0.54, (0.17, 0.13, 0.11), (0.3, 0.34, 0.33), (0.26, 2, 0.28, 0.23), (0.4, -22, 0.22, 0.15),
           (0.1, 0.06, 70), (0.3, -70, 0.035, 0.035), (0.11, 0.11), extras=("horn",)),
    # dog
    Animal(0.36, 0.6, (0.13, 0.075, 0.06), (0.17, 0.14, 0.21), (0.26, 56, 0.15, 0.13), (0.32, -12, 0.16, 0.085),
           (0.18, 0.06, -50), (0.4, 50, 0.045, 0.03), (0.1, 0.065)),
    # pig
    Animal(0.38, 0.47, (0.13, 0.085, 0.065), (0.28, 0.32, 0.28), (0.18, 8, 0.24, 0.21), (0.28, -18, 0.21, 0.11),
           (0.13, 0.08, 35), (0.16, 40, 0.035, 0.025), extras=("snout",)),
    # giraffe
    Animal(0.34, 1.0, (0.15, 0.07, 0.055), (0.2, 0.2, 0.25), (1.0, 66, 0.17, 0.09), (0.33, -24, 0.12, 0.075),
           (0.11, 0.05, 10), (0.5, -76, 0.035, 0.055), (0.08, 0.065), extras=("knobs",)),
    # elephant
    Animal(0.36, 0.68, (0.2, 0.15, 0.14), (0.34, 0.38, 0.35), (0.22, 34, 0.28, 0.26), (0.18, -30, 0.27, 0.17),
           (0.1, 0.06, 60), (0.42, -75, 0.035, 0.03), (0.14, 0.14), extras=("trunk", "tusks", "sails")),
    # stag
    Animal(0.38, 0.82, (0.13, 0.06, 0.045), (0.19, 0.16, 0.21), (0.5, 58, 0.15, 0.1), (0.3, -28, 0.12, 0.065),
           (0.14, 0.05, 20), (0.16, -30, 0.06, 0.035), (0.065, 0.055), extras=("antlers",)),
    # bear
    Animal(0.36, 0.56, (0.18, 0.13, 0.12), (0.29, 0.29, 0.29), (0.24, 24, 0.25, 0.22), (0.26, -14, 0.21, 0.11),
           (0.06, 0.08, 70), (0.08, -20, 0.06, 0.06), (0.14, 0.11), slim=0.86),
)  # fmt: skip


def build_animal(instance: int, random: np.random.Generator) -> list[Solid]:
    animal = KINDS[instance]
    stretch, fatten = random.uniform(0.94, 1.08), random.uniform(0.95, 1.07)
    hips, waist, chest = animal.trunk
    animal = animal._replace(leg=animal.leg * stretch, trunk=(fatten * hips, fatten * waist, fatten * chest))
    gait, nod, glance = random.uniform(8, 16), random.uniform(-5, 6), random.uniform(-14, 14)
    shoulder = (animal.half, 0.0, animal.leg)
    solids = _trunk(animal) + _legs(animal, gait) + _tail(animal, random.uniform(-12, 12))
    return solids + turned(_neck_and_head(animal), shoulder, yaw=glance, pitch=nod)


def _polar(start: tuple[float, float, float], length: float, angle: float) -> tuple[float, float, float]:
    """The point that lies so far from another one, at that angle above level."""
    x, y, z = start
    return x + length * math.cos(math.radians(angle)), y, z + length * math.sin(math.radians(angle))


def _trunk(animal: Animal) -> list[Solid]:
    hips, waist, chest = animal.trunk
    x, z = animal.half, animal.leg
    # The back is level: a slim waist is drawn up, a fat belly hangs down.
    back = z + 0.5 * (hips + chest)
    solids = limb([(-x, 0, z), (0.0, 0, back - waist), (x, 0, z)], [hips, waist, chest])
    solids.append(ellipsoid((x + 0.1 * chest, 0, z - 0.12 * chest), (0.95 * chest, 0.98 * chest, 1.1 * chest)))
    return [transformed(solid, np.diag([1.0, animal.slim, 1.0]), np.zeros(3)) for solid in solids]


def _legs(animal: Animal, gait: float) -> list[Solid]:
    """A walk: left hind and right fore step forward."""
    solids = []
    top, knee, ankle = animal.leg_radii
    length, width = animal.foot
    for x, radius, bend in ((-animal.half, animal.trunk[0], 0.09), (animal.half, animal.trunk[2], -0.03)):
        for side in (-1, 1):
            swing = gait * side * (1 if x < 0 else -1)
            y = side * (radius * animal.slim - 0.75 * top)
            start = (x, y, animal.leg - 0.1 * radius)
            drop = start[2]
            reach = drop * math.tan(math.radians(swing))
            joint = (x + 0.45 * reach - bend * drop, y, 0.52 * drop)
            end = (x + reach, y, ankle * 0.9)
            solids += limb([start, joint, end], [top, knee, ankle])
            if x < 0:
                solids.append(ellipsoid((x - 0.02, y, 0.88 * drop), (1.2 * top, 0.9 * top, 1.5 * top), pitch=-15))
            solids.append(ellipsoid((end[0] + 0.35 * length, y, 0.5 * width), (1.1 * length, width, 0.7 * width)))
    return solids


def _neck_and_head(animal: Animal) -> list[Solid]:
    length, angle, base, top = animal.neck
    chest = animal.trunk[2]
    root = (animal.half + 0.35 * chest, 0.0, animal.leg + 0.3 * chest)
    skull = _polar(root, length, angle)
    head_length, head_angle, skull_radius, muzzle_radius = animal.head
    muzzle = _polar(skull, head_length, head_angle)
    solids = limb([root, skull], [base, top]) + limb([skull, muzzle], [skull_radius, muzzle_radius])
    ear_length, ear_width, ear_angle = animal.ear
    ear_at = (skull[0] - 0.3 * skull_radius, 0.72 * skull_radius, skull[2] + 0.62 * skull_radius)
    out, up = math.cos(math.radians(ear_angle)), math.sin(math.radians(ear_angle))
    ear = ellipsoid(
        (ear_at[0], ear_at[1] + 0.6 * ear_length * out, ear_at[2] + 0.6 * ear_length * up),
        (ear_width * 0.6, ear_length, ear_width),
        roll=ear_angle,
    )
    solids += both_sides([ear])
    for extra in animal.extras:
        solids += _extra(animal, extra, root, skull, muzzle)
    return solids


def _extra(
    animal: Animal,
    name: str,
    root: tuple[float, float, float],
    skull: tuple[float, float, float],
    muzzle: tuple[float, float, float],
) -> list[Solid]:
    sx, _, sz = skull
    mx, _, mz = muzzle
    radius, nose = animal.head[2], animal.head[3]
    if name == "mane":
        crest = [(root[0] - 0.12, 0, root[2] + 0.12), (sx - 0.1, 0, sz + 0.06)]
        return [transformed(solid, np.diag([1.0, 0.45, 1.0]), np.zeros(3)) for solid in limb(crest, [0.13, 0.1])]
    if name == "ruff":
        return [ellipsoid((sx - 0.08, 0, sz - 0.03), (0.2, 0.28, 0.31), pitch=15)]
    if name == "horns":
        return both_sides(
            limb(
                [(sx, 0.6 * radius, sz + 0.1), (sx + 0.04, 0.26, sz + 0.16), (sx + 0.1, 0.27, sz + 0.3)],
                [0.04, 0.035, 0.012],
            )
        )
    if name == "udder":
        return [ellipsoid((-0.22, 0, animal.leg - animal.trunk[1] - 0.04), (0.13, 0.12, 0.09))]
    if name == "trunk":
        bends = [(mx, 0, mz), (mx + 0.16, 0, mz - 0.25), (mx + 0.16, 0, mz - 0.5), (mx + 0.3, 0, mz - 0.62)]
        return limb(bends, [nose, 0.1, 0.075, 0.06])
    if name == "tusks":
        return both_sides(
            limb(
                [(mx, 0.14, mz - 0.06), (mx + 0.22, 0.17, mz - 0.16), (mx + 0.36, 0.16, mz - 0.1)],
                [0.045, 0.035, 0.015],
            )
        )
    if name == "sails":
        return both_sides([ellipsoid((sx - 0.1, 0.36, sz - 0.02), (0.2, 0.05, 0.27), yaw=-38)])
    if name == "snout":
        return [frustum((mx - 0.02, 0, mz), (mx + 0.12, 0, mz - 0.03), 0.095, 0.085)]
    if name == "knobs":
        return both_sides(limb([(sx - 0.03, 0.04, sz + 0.06), (sx - 0.06, 0.05, sz + 0.2)], [0.02, 0.03]))
    if name == "horn":
        return [
            *limb([(mx, 0, mz + 0.08), (mx + 0.1, 0, mz + 0.38)], [0.08, 0.015]),
            *limb([(mx - 0.17, 0, mz + 0.16), (mx - 0.15, 0, mz + 0.32)], [0.06, 0.015]),
        ]
    assert name == "antlers", name
    stem = [(sx - 0.02, 0.05, sz + 0.06), (sx - 0.12, 0.2, sz + 0.26), (sx - 0.02, 0.3, sz + 0.5)]
    prongs = [
        limb([stem[1], (sx + 0.1, 0.24, sz + 0.34)], [0.028, 0.014]),
        limb([stem[2], (sx - 0.16, 0.28, sz + 0.56)], [0.024, 0.014]),
    ]
    return both_sides([*limb(stem, [0.032, 0.03, 0.016]), *prongs[0], *prongs[1]])


def _tail(animal: Animal, sway: float) -> list[Solid]:
    length, angle, thick, end = animal.tail
    root = (-animal.half - 0.88 * animal.trunk[0], 0.0, animal.leg + 0.3 * animal.trunk[0])
    middle = _polar(root, -0.45 * length, -0.4 * angle)
    tip = _polar(middle, -0.55 * length, -angle)
    return turned(limb([root, middle, tip], [thick, thick, end]), root, yaw=sway)
