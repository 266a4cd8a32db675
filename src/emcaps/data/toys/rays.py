"""Parallel rays cast at a toy: what a camera, or a lamp, sees of it.

A ray is p = u right + v up + t forward. Since all rays of a view are parallel, a plane is met at a t that is linear in
(u, v), and a quadric where a polynomial of degree two in (u, v) says: a few coefficients per solid and view, then a few
array operations on the rectangle of the picture that the solid can touch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.data.toys.shapes import Array, Solid, transformed

Image = npt.NDArray[np.float32]

_FAR = np.float32(1e9)


class View(NamedTuple):
    """Three unit vectors at right angles; the rays travel forward."""

    right: Array
    up: Array
    forward: Array


class Scene(NamedTuple):
    """A toy around the origin as arrays; a surface is the quadric or one of the planes of a solid."""

    solids: list[Solid]
    first_surface: list[int]
    gradients: Image
    """(surfaces, 4, 3): the outward normal at p is along p @ gradient[:3] + gradient[3]."""
    paint: Image
    """(surfaces,) reflectance."""
    radius: float
    """All of the toy is at most this far from the origin."""
    ground: float
    """The height (below zero) of the ground."""


class Hits(NamedTuple):
    depth: Image
    """(size, size) t of the first hit, infinite where there is none."""
    surface: npt.NDArray[np.int32]
    """(size, size) number of the surface that was hit, -1 where there is none."""


def look(towards: Array) -> View:
    """The view in that direction (not straight up or down), with the horizon level."""
    forward = towards / math.sqrt(float(towards @ towards))
    x, y, z = forward.tolist()
    level = math.hypot(x, y)
    return View(np.array([y / level, -x / level, 0.0]), np.array([-x * z / level, -y * z / level, level]), forward)


def direction(heading: float, height: float) -> Array:
    """The unit vector that points `heading` degrees to the left of x and `height` degrees up."""
    heading, height = math.radians(heading), math.radians(height)
    flat = math.cos(height)
    return np.array([flat * math.cos(heading), flat * math.sin(heading), math.sin(height)])


def build_scene(solids: Sequence[Solid], reflectance: float, views: Sequence[View], reach: float) -> Scene:
    """The toy with the middle of its bounding box in the origin, as large as lets all views see it within +-reach."""
    lows, highs = _extents(solids, np.eye(3))
    low, high = lows.min(axis=0), highs.max(axis=0)
    centred = [transformed(solid, np.eye(3), -(low + high) / 2) for solid in solids]
    sideways = _extents(centred, np.concatenate([[view.right, view.up] for view in views]))
    scale = reach / max(float(np.abs(edge).max()) for edge in sideways)
    scaled = [transformed(solid, scale * np.eye(3), np.zeros(3)) for solid in centred]
    first_surface: list[int] = []
    gradients: list[Array] = []
    paint: list[float] = []
    for solid in scaled:
        first_surface.append(len(gradients))
        gradients.append(np.vstack([solid.quadric[:3, :3], solid.quadric[3, :3]]))
        gradients.extend(np.vstack([np.zeros((3, 3)), plane[:3]]) for plane in solid.planes)
        paint.extend([solid.paint * reflectance] * (1 + len(solid.planes)))
    radius = max(
        float((np.linalg.norm(solid.centres, axis=1) + np.linalg.norm(solid.spans, 2, axis=(1, 2))).max())
        for solid in scaled
    )
    return Scene(
        scaled,
        first_surface,
        np.array(gradients, np.float32),
        np.array(paint, np.float32),
        radius,
        ground=-scale * float(high[2] - low[2]) / 2,
    )


def sample_positions(size: int, reach: float) -> Image:
    """Middles of `size` equal steps from -reach to reach."""
    return ((np.arange(size) + 0.5) * (2 * reach / size) - reach).astype(np.float32)


def cast(scene: Scene, view: View, size: int, reach: float) -> Hits:
    """The first hit of each of size x size rays with u and v within +-reach; row 0 is the top."""
    depth = np.full((size, size), np.inf, np.float32)
    surface = np.full((size, size), -1, np.int32)
    positions = sample_positions(size, reach)
    windows = _windows(scene.solids, view, size, reach)
    for solid, first, (rows, columns) in zip(scene.solids, scene.first_surface, windows, strict=True):
        if rows.start >= rows.stop or columns.start >= columns.stop:
            continue
        u, v = positions[None, columns], -positions[rows, None]
        enter, leave, number = _interval(solid, first, view, u, v)
        nearest, names = depth[rows, columns], surface[rows, columns]
        met = (enter < leave) & (enter < nearest)
        np.copyto(nearest, enter, where=met)
        np.copyto(names, number, where=met)
    return Hits(depth, surface)


def normals(scene: Scene, surface: npt.NDArray[np.int32], point: Sequence[Image]) -> list[Image]:
    """x, y and z of the outward unit normals at points (x, y, z) of the given surfaces."""
    x, y, z = point
    gradient = scene.gradients[surface]
    normal = [
        gradient[:, 0, i] * x + gradient[:, 1, i] * y + gradient[:, 2, i] * z + gradient[:, 3, i] for i in range(3)
    ]
    length = np.sqrt(normal[0] * normal[0] + normal[1] * normal[1] + normal[2] * normal[2])
    scale = 1 / np.maximum(length, np.float32(1e-12))
    return [part * scale for part in normal]


def _interval(
    solid: Solid, first: int, view: View, u: Image, v: Image
) -> tuple[Image, Image, npt.NDArray[np.int32] | np.int32]:
    """Where rays enter and leave a solid (it is missed unless enter < leave), and the surface they enter through."""
    shape = (v.shape[0], u.shape[1])
    number: npt.NDArray[np.int32] | np.int32 = np.int32(first)
    if solid.quadric.any():
        enter, leave = _quadric_interval(solid, view, u, v)
    else:
        enter, leave = np.full(shape, -_FAR), np.full(shape, _FAR)
    if len(solid.planes) == 0:
        return enter, leave, number
    normal, constant = solid.planes[:, :3], solid.planes[:, 3]
    slant = normal @ view.forward
    slant = np.where(np.abs(slant) < 1e-7, 1e-7, slant)
    t0, tu, tv = (
        (-part / slant).astype(np.float32)[:, None, None] for part in (constant, normal @ view.right, normal @ view.up)
    )
    entered = slant < 0
    left = ~entered
    if left.any():
        leave = np.minimum(leave, ((t0[left] + tv[left] * v) + tu[left] * u).min(axis=0))
    if entered.any():
        t = (t0[entered] + tv[entered] * v) + tu[entered] * u
        latest = t.max(axis=0)
        numbers = (first + 1 + np.flatnonzero(entered)).astype(np.int32)
        number = np.where(latest > enter, numbers[t.argmax(axis=0)], number)
        enter = np.maximum(enter, latest)
    return enter, leave, number


def _quadric_interval(solid: Solid, view: View, u: Image, v: Image) -> tuple[Image, Image]:
    q, linear, constant = solid.quadric[:3, :3], solid.quadric[3, :3], float(solid.quadric[3, 3])
    right, up, forward = view
    turned = q @ forward
    a, b = float(forward @ turned), float(linear @ forward)
    if abs(a) < 1e-7:
        a = 1e-7
    bu, bv = float(right @ turned), float(up @ turned)
    # With a t^2 + 2 (b + bu u + bv v) t + c(u, v) = 0 on the surface, this is (b + bu u + bv v)^2 - a c(u, v).
    d0, du, dv = b * b - a * constant, 2 * (b * bu - a * float(linear @ right)), 2 * (b * bv - a * float(linear @ up))
    duu, dvv = bu * bu - a * float(right @ q @ right), bv * bv - a * float(up @ q @ up)
    duv = 2 * (bu * bv - a * float(right @ q @ up))
    f = np.float32
    discriminant = (f(d0) + u * (f(du) + f(duu) * u)) + v * ((f(dv) + f(dvv) * v) + f(duv) * u)
    missed = discriminant < 0
    root = np.sqrt(np.where(missed, f(0), discriminant)) * f(1 / a)
    middle = (f(-b / a) - f(bv / a) * v) - f(bu / a) * u
    enter, leave = middle - root, middle + root
    if a < 0:  # within the opening of a cone a ray comes in and stays, or was always in and goes out
        if float(solid.widening @ forward) > 0:
            leave = np.full_like(leave, _FAR)
        else:
            enter = np.full_like(enter, -_FAR)
    enter[missed] = _FAR
    return enter, leave


def _extents(solids: Sequence[Solid], axes: Array) -> tuple[Array, Array]:
    """(solids, axes): lowest and highest coordinate of each solid along each axis (row)."""
    centres, spans = np.concatenate([s.centres for s in solids]), np.concatenate([s.spans for s in solids])
    starts = np.cumsum([0, *(len(solid.centres) for solid in solids[:-1])])
    middle = centres @ axes.T
    half = np.sqrt(np.sum(np.einsum("mij,ai->maj", spans, axes) ** 2, axis=2))
    return np.minimum.reduceat(middle - half, starts), np.maximum.reduceat(middle + half, starts)


def _windows(solids: Sequence[Solid], view: View, size: int, reach: float) -> list[tuple[slice, slice]]:
    """Rows and columns that can see each solid."""
    low, high = _extents(solids, np.stack([view.right, view.up]))
    per_step = size / (2 * reach)
    first = np.floor(np.column_stack([reach - high[:, 1], low[:, 0] + reach]) * per_step).astype(int)
    last = np.ceil(np.column_stack([reach - low[:, 1], high[:, 0] + reach]) * per_step).astype(int)
    bounds = zip(np.clip(first, 0, size).tolist(), np.clip(last, 0, size).tolist(), strict=True)
    return [(slice(i0, i1), slice(j0, j1)) for (i0, j0), (i1, j1) in bounds]
