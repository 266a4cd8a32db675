"""Convex solids, the bricks that toys are built from.

A solid is the part of space where one quadric is at most zero (or everywhere, without a quadric) that also lies behind
every one of some planes. This covers ellipsoids, cylinders, cones, polyhedra and what is left when they are cut; a ray
meets it in one interval. Toys stand on z = 0 and look along x, with y to their left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Point = Sequence[float] | Array


class Solid(NamedTuple):
    quadric: Array
    """(4, 4) symmetric Q: inside where [p, 1] Q [p, 1] <= 0; all zero for a polyhedron."""
    planes: Array
    """(K, 4): inside where n . p + d <= 0 for every row (n, d)."""
    widening: Array
    """(3,) the way a cone opens, which tells its two halves apart; zero for the others."""
    centres: Array
    """(M, 3) and ..."""
    spans: Array
    """(M, 3, 3): the solid lies in the hull of the images of the unit ball under p -> centre + span p."""
    paint: float
    """Share of the toy's own reflectance."""


def transformed(solid: Solid, matrix: Array, offset: Array) -> Solid:
    """The solid after p -> matrix p + offset."""
    inverse = np.eye(4)
    inverse[:3, :3] = np.linalg.inv(matrix)
    inverse[:3, 3] = -inverse[:3, :3] @ offset
    return Solid(
        quadric=inverse.T @ solid.quadric @ inverse,
        planes=solid.planes @ inverse,
        widening=matrix @ solid.widening,
        centres=solid.centres @ matrix.T + offset,
        spans=matrix @ solid.spans,
        paint=solid.paint,
    )


def mirrored(solid: Solid) -> Solid:
    """The solid's twin on the other side of the plane y = 0."""
    return transformed(solid, np.diag([1.0, -1.0, 1.0]), np.zeros(3))


def both_sides(solids: Sequence[Solid]) -> list[Solid]:
    return [*solids, *(mirrored(solid) for solid in solids)]


def painted(solids: Sequence[Solid], paint: float) -> list[Solid]:
    return [solid._replace(paint=paint) for solid in solids]


def rotation(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> Array:
    """Degrees: yaw turns to the left, pitch lifts the front, roll lowers the right side; roll comes first."""
    c, s = _cos_sin(yaw)
    about_z = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    c, s = _cos_sin(pitch)
    about_y = np.array([[c, 0, -s], [0, 1, 0], [s, 0, c]])
    c, s = _cos_sin(roll)
    about_x = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    return np.asarray(about_z @ about_y @ about_x, dtype=np.float64)


def turned(
    solids: Sequence[Solid], pivot: Point, yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0
) -> list[Solid]:
    """The solids turned about a point."""
    matrix = rotation(yaw, pitch, roll)
    centre = np.asarray(pivot, dtype=np.float64)
    return [transformed(solid, matrix, centre - matrix @ centre) for solid in solids]


def ellipsoid(centre: Point, radii: Point, yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> Solid:
    unit = Solid(
        np.diag([1.0, 1.0, 1.0, -1.0]), np.zeros((0, 4)), np.zeros(3), np.zeros((1, 3)), np.eye(3)[None], paint=1.0
    )
    return transformed(unit, rotation(yaw, pitch, roll) @ np.diag(radii), np.asarray(centre, dtype=np.float64))


def ball(centre: Point, radius: float) -> Solid:
    return ellipsoid(centre, (radius, radius, radius))


def cut(solid: Solid, point: Point, normal: Point) -> Solid:
    """What is left of the solid behind the plane through `point` that faces `normal`."""
    plane = np.array([*normal, -float(np.dot(normal, point))])
    return solid._replace(planes=np.vstack([solid.planes, plane]))


def frustum(start: Point, end: Point, start_radius: float, end_radius: float) -> Solid:
    """A cone between two flat discs; a cylinder where the radii are equal."""
    first, last = np.asarray(start, dtype=np.float64), np.asarray(end, dtype=np.float64)
    length = float(np.linalg.norm(last - first))
    axis = (last - first) / length
    frame = _frame(axis)
    slope = (end_radius - start_radius) / length
    quadric = np.diag([1.0, 1.0, -slope * slope, -start_radius * start_radius])
    quadric[2, 3] = quadric[3, 2] = -start_radius * slope
    local = Solid(
        quadric,
        planes=np.array([[0.0, 0.0, -1.0, 0.0], [0.0, 0.0, 1.0, -length]]),
        widening=np.array([0.0, 0.0, float(np.sign(slope))]),
        centres=np.array([[0.0, 0.0, 0.0], [0.0, 0.0, length]]),
        spans=np.stack([np.diag([r, r, 0.0]) for r in (start_radius, end_radius)]),
        paint=1.0,
    )
    return transformed(local, frame, first)


def cylinder(start: Point, end: Point, radius: float) -> Solid:
    return frustum(start, end, radius, radius)


def limb(points: Sequence[Point], radii: Sequence[float]) -> list[Solid]:
    """Balls at the points, joined by the cones that touch them: legs, arms, necks, tails."""
    solids = [ball(point, radius) for point, radius in zip(points, radii, strict=True)]
    for (start, end), (r0, r1) in zip(itertools.pairwise(points), itertools.pairwise(radii), strict=True):
        first, last = np.asarray(start, dtype=np.float64), np.asarray(end, dtype=np.float64)
        length = float(np.linalg.norm(last - first))
        sine = (r0 - r1) / length if length > 0 else math.inf
        if abs(sine) >= 0.99:
            continue  # one ball swallows the other
        axis, cosine = (last - first) / length, math.sqrt(1 - sine * sine)
        solids.append(frustum(first + axis * (r0 * sine), last + axis * (r1 * sine), r0 * cosine, r1 * cosine))
    return solids


def hull(points: Sequence[Point] | Array) -> Solid:
    """The convex polyhedron with these corners: every plane through three of them that has all others behind it."""
    corners: Array = np.unique(np.asarray(points, dtype=np.float64).round(9), axis=0)
    a, b, c = (corners[list(index)] for index in zip(*itertools.combinations(range(len(corners)), 3), strict=True))
    normal = np.cross(b - a, c - a)
    size = np.linalg.norm(normal, axis=1)
    keep = size > 1e-9
    normal, a = normal[keep] / size[keep, None], a[keep]
    heights = normal @ corners.T - np.sum(normal * a, axis=1)[:, None]
    tolerance = 1e-6 * float(np.ptp(corners, axis=0).max())
    below, above = heights.max(axis=1) <= tolerance, heights.min(axis=1) >= -tolerance
    normal, a = np.concatenate([normal[below], -normal[above]]), np.concatenate([a[below], a[above]])
    planes = np.column_stack([normal, -np.sum(normal * a, axis=1)])
    planes = planes[np.unique(np.round(planes, 5), axis=0, return_index=True)[1]]
    return Solid(np.zeros((4, 4)), planes, np.zeros(3), corners, np.zeros((len(corners), 3, 3)), paint=1.0)


def box(centre: Point, size: Point, chamfer: float = 0.0) -> Solid:
    """A block with full side lengths `size`; `chamfer` takes that much off its edges."""
    half = np.asarray(size, dtype=np.float64) / 2
    corners = []
    for signs in itertools.product((-1.0, 1.0), repeat=3):
        if chamfer == 0:
            corners.append(np.array(signs) * half)
            continue
        for axis in range(3):
            inset = np.full(3, chamfer)
            inset[axis] = 0.0
            corners.append(np.array(signs) * (half - inset))
    return hull(np.array(corners) + np.asarray(centre, dtype=np.float64))


def extruded(profile: Sequence[tuple[float, float]], widths: float | Sequence[float], chamfer: float = 0.0) -> Solid:
    """A convex side view (x, z) given a full width in y, one for all corners or one each.

    `chamfer` rounds off the long edges: the corners move towards the profile's middle on the two flanks.
    """
    outline = np.asarray(profile, dtype=np.float64)
    width = np.broadcast_to(np.asarray(widths, dtype=np.float64), len(outline))
    middle = (outline.max(axis=0) + outline.min(axis=0)) / 2
    shrunk = outline - np.clip(outline - middle, -chamfer, chamfer)
    corners = []
    for side in (-0.5, 0.5):
        for (x, z), (sx, sz), w in zip(outline, shrunk, width, strict=True):
            corners.append((sx, side * w, sz))
            if chamfer > 0:
                corners.append((x, side * (w - 2 * chamfer), z))
    return hull(corners)


def slab(root: Point, tip: Point, root_chord: float, tip_chord: float, thickness: float) -> Solid:
    """A wing or fin from `root` to `tip`, the middles of its inner and outer chords (which run along x)."""
    first, last = np.asarray(root, dtype=np.float64), np.asarray(tip, dtype=np.float64)
    span = (last - first) / np.linalg.norm(last - first)
    flat = np.cross(span, [1.0, 0.0, 0.0])
    flat /= np.linalg.norm(flat)
    corners = []
    for end, chord, thick in ((first, root_chord, thickness), (last, tip_chord, thickness * 0.6)):
        # A flat lozenge: blunt in front, thickest before the middle, thin behind.
        for along, half in ((0.5, 0.2), (0.2, 0.5), (-0.5, 0.12)):
            for side in (-half, half):
                corners.append(end + np.array([along * chord, 0.0, 0.0]) + side * thick * flat)
    return hull(corners)


def wheel(centre: Point, radius: float, width: float) -> list[Solid]:
    """A tyre with its axle along y, and a hub cap."""
    x, y, z = centre
    tyre = cylinder((x, y - width / 2, z), (x, y + width / 2, z), radius)
    hub = cylinder((x, y - 0.56 * width, z), (x, y + 0.56 * width, z), 0.52 * radius)
    return [tyre._replace(paint=0.62), hub]


def wheels(positions: Sequence[float], track: float, radius: float, width: float) -> list[Solid]:
    """A wheel on each side at every x of `positions`; `track` is the distance between the outer faces."""
    y = track / 2 - width / 2
    return [solid for x in positions for side in (-y, y) for solid in wheel((x, side, radius), radius, width)]


def _cos_sin(degrees: float) -> tuple[float, float]:
    return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))


def _frame(axis: Array) -> Array:
    """A rotation that takes z to `axis`."""
    helper = np.array([1.0, 0.0, 0.0]) if abs(axis[0]) < 0.9 else np.array([0.0, 1.0, 0.0])
    first = np.cross(helper, axis)
    first /= np.linalg.norm(first)
    return np.column_stack([first, np.cross(axis, first), axis])
