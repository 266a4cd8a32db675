"""Ten figurines: people standing, walking, running, with hats, skirts, shields and the like."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from emcaps.data.toys.shapes import (
    Solid,
    ball,
    box,
    cut,
    cylinder,
    ellipsoid,
    frustum,
    hull,
    limb,
    transformed,
    turned,
)

HIP, SHOULDER, NECK = 0.92, 1.42, 1.5  # heights in metres, of a person of 1.8

Place = tuple[float, float, float]


class Leg(NamedTuple):
    """Degrees: the thigh's swing forwards and sideways, and the knee's bend backwards."""

    forward: float = 0.0
    aside: float = 6.0
    knee: float = 4.0


class Arm(NamedTuple):
    """Degrees: the upper arm's swing forwards and aside, how much further the forearm's is, and the forearm's aside."""

    forward: float = 0.0
    aside: float = 16.0
    elbow: float = 15.0
    inward: float = 8.0


class Human(NamedTuple):
    left_leg: Leg = Leg()
    right_leg: Leg = Leg()
    left_arm: Arm = Arm()
    right_arm: Arm = Arm()
    build: float = 1.0
    """Thickness of the body and limbs."""
    head: float = 0.135
    lean: float = 0.0
    """Degrees that the upper body leans forwards."""
    extras: tuple[str, ...] = ()


KINDS = (
    # a man in a peaked cap, with a case
    Human(Leg(6, 7, 3), Leg(-4, 7, 3), Arm(8, 14, 10, 8), Arm(-6, 16, 14, 8), extras=("cap", "case", "jacket")),
    # a cowboy with his hands at his belt
    Human(Leg(4, 15, 6), Leg(0, 15, 6), Arm(-10, 38, 50, -20), Arm(-10, 38, 50, -20), extras=("brim",)),
    # a woman in a skirt who waves
    Human(Leg(2, 4, 2), Leg(-2, 4, 2), Arm(0, 20, 14, 10), Arm(10, 120, 10, 170), 0.86, 0.14, extras=("skirt", "bun")),
    # a runner
    Human(Leg(52, 2, 70), Leg(-30, 2, 45), Arm(-52, 10, 80, 0), Arm(42, 10, 80, -10), 0.92, lean=14),
    # a soldier with his rifle across his chest
    Human(Leg(20, 9, 12), Leg(-18, 9, 8), Arm(36, 22, 70, 10), Arm(6, 30, 62, -20), 1.06,
          extras=("helmet", "rifle", "base")),
    # a knight
    Human(Leg(12, 11, 8), Leg(-8, 11, 6), Arm(35, 30, 50, 0), Arm(30, 45, 60, 30), 1.14, 0.15,
          extras=("shield", "sword", "plume", "base")),
    # a hiker with a staff and a pack
    Human(Leg(24, 4, 10), Leg(-22, 4, 14), Arm(-20, 14, 20, 8), Arm(44, 16, 40, 8), extras=("brim", "staff", "pack")),
    # a hero in a cape
    Human(Leg(4, 17, 2), Leg(2, 17, 2), Arm(-4, 50, 30, -50), Arm(20, 150, 0, 165), 1.14, 0.13, extras=("cape",)),
    # a dancer in a long dress
    Human(Leg(2, 3, 2), Leg(0, 3, 2), Arm(10, 86, 0, 100), Arm(10, 86, 0, 70), 0.84, 0.14, extras=("gown", "bun")),
    # a footballer who kicks
    Human(Leg(-8, 4, 8), Leg(58, 6, 16), Arm(34, 50, 14, 50), Arm(-38, 44, 20, 40), 0.98, lean=-8,
          extras=("ball", "base")),
)  # fmt: skip


def build_human(instance: int, random: np.random.Generator) -> list[Solid]:
    human = KINDS[instance]
    build = human.build * random.uniform(1.1, 1.24)  # toys are stouter than people
    jitter = random.uniform(-6, 6, size=4)
    human = human._replace(
        build=build,
        head=human.head * random.uniform(0.96, 1.1),
        lean=human.lean + random.uniform(-3, 3),
        left_arm=human.left_arm._replace(
            forward=human.left_arm.forward + jitter[0], aside=human.left_arm.aside + jitter[1]
        ),
        right_arm=human.right_arm._replace(
            forward=human.right_arm.forward + jitter[2], aside=human.right_arm.aside + jitter[3]
        ),
    )
    upper, hands = _upper_body(human)
    lower, feet = _lower_body(human)
    for extra in human.extras:
        worn, below = _worn(human, extra, hands), _below(human, extra, feet)
        assert worn or below, extra
        upper += worn
        lower += below
    return lower + turned(upper, (0, 0, HIP), pitch=-human.lean)


def _swing(start: Place, length: float, forward: float, aside: float, side: int) -> Place:
    f, s = math.radians(forward), math.radians(aside)
    x, y, z = start
    return (
        x + length * math.sin(f),
        y + side * length * math.sin(s) * math.cos(f),
        z - length * math.cos(f) * math.cos(s),
    )


def _flattened(solids: list[Solid], depth: float) -> list[Solid]:
    return [transformed(solid, np.diag([depth, 1.0, 1.0]), np.zeros(3)) for solid in solids]


def _upper_body(human: Human) -> tuple[list[Solid], dict[int, Place]]:
    """Torso, head and arms, and where the hands are (1 left, -1 right)."""
    b = human.build
    torso = limb([(0, 0, HIP + 0.05), (0, 0, 1.1), (0, 0, 1.3)], [0.15 * b, 0.135 * b, 0.17 * b])
    shoulders = limb([(0, -0.15 * b, SHOULDER - 0.03), (0, 0.15 * b, SHOULDER - 0.03)], [0.08 * b, 0.08 * b])
    solids = _flattened(torso, 0.8) + shoulders
    solids += limb([(0, 0, SHOULDER), (0.01, 0, NECK + 0.04)], [0.07 * b, 0.06 * b])
    head_z = NECK + 0.06 + human.head * 0.9
    solids.append(ellipsoid((0.02, 0, head_z), (human.head * 0.98, human.head * 0.86, human.head * 1.12)))
    solids.append(ball((0.02 + human.head, 0, head_z - 0.02), 0.03))
    hands = {}
    for side, arm in ((1, human.left_arm), (-1, human.right_arm)):
        shoulder = (0.0, side * 0.21 * b, SHOULDER - 0.02)
        elbow = _swing(shoulder, 0.29, arm.forward, arm.aside, side)
        hand = _swing(elbow, 0.27, arm.forward + arm.elbow, arm.inward, side)
        solids += limb([shoulder, elbow, hand], [0.072 * b, 0.056 * b, 0.045 * b])
        solids.append(ball(hand, 0.058 * b))
        hands[side] = hand
    return solids, hands


def _lower_body(human: Human) -> tuple[list[Solid], dict[int, Place]]:
    b = human.build
    solids = limb([(0, -0.07 * b, HIP), (0, 0.07 * b, HIP)], [0.125 * b, 0.125 * b])
    feet = {}
    for side, leg in ((1, human.left_leg), (-1, human.right_leg)):
        hip = (0.0, side * 0.1 * b, HIP)
        knee = _swing(hip, 0.43, leg.forward, leg.aside, side)
        ankle = _swing(knee, 0.41, leg.forward - leg.knee, leg.aside * 0.8, side)
        solids += limb([hip, knee, ankle], [0.105 * b, 0.075 * b, 0.055 * b])
        pitch = leg.forward - leg.knee
        toe = (
            ankle[0] + 0.14 * math.cos(math.radians(pitch)),
            ankle[1] + side * 0.03,
            ankle[2] - 0.03 + 0.14 * math.sin(math.radians(pitch)),
        )
        solids += limb([(ankle[0] - 0.02, ankle[1], ankle[2] - 0.02), toe], [0.06 * b, 0.05 * b])
        feet[side] = ankle
    return solids, feet


def _worn(human: Human, name: str, hands: dict[int, Place]) -> list[Solid]:
    """What moves with the upper body."""
    b, r = human.build, human.head
    top = NECK + 0.06 + r * 0.9
    left, right = hands[1], hands[-1]
    if name == "cap":
        return [
            cut(ellipsoid((0.02, 0, top + 0.3 * r), (1.08 * r, 0.98 * r, 0.95 * r)), (0, 0, top + 0.3 * r), (0, 0, -1)),
            ellipsoid((r + 0.03, 0, top + 0.34 * r), (0.1, 0.1, 0.02)),
        ]
    if name == "brim":
        return [
            frustum((0.02, 0, top + 0.45 * r), (0.02, 0, top + 0.52 * r), 2.0 * r, 2.05 * r),
            frustum((0.02, 0, top + 0.5 * r), (0.02, 0, top + 1.5 * r), 1.0 * r, 0.75 * r),
        ]
    if name == "helmet":
        return [
            cut(ellipsoid((0.01, 0, top + 0.05), (1.3 * r, 1.2 * r, 1.2 * r)), (0, 0, top + 0.04), (0, 0, -1)),
            frustum((0.01, 0, top + 0.02), (0.01, 0, top + 0.06), 1.45 * r, 1.3 * r),
        ]
    if name == "bun":
        return [
            ellipsoid((-0.02, 0, top + 0.04), (1.08 * r, 1.02 * r, 1.1 * r)),
            ball((-0.9 * r, 0, top + 0.75 * r), 0.5 * r),
        ]
    if name == "plume":
        crest = limb([(0.02, 0, top + r), (-0.12, 0, top + 1.55 * r), (-0.28, 0, top + 0.9 * r)], [0.05, 0.06, 0.02])
        return [ellipsoid((0.02, 0, top), (1.15 * r, 1.08 * r, 1.2 * r)), *crest]
    if name == "jacket":
        return [frustum((0, 0, HIP - 0.16), (0, 0, 1.2), 0.23 * b, 0.15 * b)]
    if name == "case":
        return [box((left[0], left[1], left[2] - 0.2), (0.42, 0.12, 0.3), 0.02)]
    if name == "rifle":
        stock, muzzle = (np.array(right) + shift * (np.array(left) - np.array(right)) for shift in (-0.55, 1.55))
        grip = stock + 0.45 * (muzzle - stock)
        return [*limb([stock, grip], [0.065, 0.04]), cylinder(grip, muzzle, 0.026)]
    if name == "shield":
        x, y, z = left
        disc = cut(ellipsoid((0, 0, 0), (0.1, 0.34, 0.4)), (0, 0, 0), (-1, 0, 0))
        placed = transformed(disc, np.eye(3), np.array([x + 0.03, y, z + 0.02]))
        return turned([placed], left, yaw=30)
    if name == "sword":
        x, y, z = right
        blade = hull(
            [
                (x + u, y + v, z + w)
                for w, s in ((0.1, 1.0), (0.75, 0.8), (0.85, 0.1))
                for u, v in ((0.035 * s, 0), (-0.035 * s, 0), (0, 0.016), (0, -0.016))
            ]
        )
        return turned(
            [blade, box((x, y, z + 0.09), (0.2, 0.05, 0.04)), cylinder((x, y, z - 0.1), (x, y, z + 0.1), 0.024)],
            right,
            pitch=-25,
        )
    if name == "pack":
        return [
            box((-0.27, 0, 1.22), (0.24, 0.36, 0.48), 0.05),
            limb([(-0.27, -0.2, 1.52), (-0.27, 0.2, 1.52)], [0.075, 0.075])[2],
        ]
    if name == "cape":
        flared = frustum((-0.14, 0, 0.4), (-0.02, 0, 1.46), 0.36, 0.22 * b)
        return [cut(flared, (-0.1, 0, 1.4), (1, 0, 0.12))]
    if name == "staff":
        x, y, _ = right
        return [cylinder((x + 0.03, y, 0.0), (x - 0.01, y, 1.75), 0.032)]
    return []


def _below(human: Human, name: str, feet: dict[int, Place]) -> list[Solid]:
    """What stays with the legs or on the ground."""
    b = human.build
    if name == "skirt":
        return [frustum((0, 0, 0.5), (0, 0, HIP + 0.14), 0.33 * b, 0.15 * b)]
    if name == "gown":
        return [frustum((0, 0, 0.02), (0, 0, HIP + 0.12), 0.42, 0.15 * b), frustum((0, 0, 0.0), (0, 0, 0.1), 0.46, 0.4)]
    if name == "base":
        floor = min(foot[2] for foot in feet.values()) - 0.1
        return [cylinder((0, 0, floor - 0.06), (0, 0, floor), 0.42)]
    if name == "ball":
        x, y, z = feet[-1]
        return [ball((x + 0.32, y, z + 0.06), 0.13)]
    return []
