"""Photographs of a toy on a turntable, under six lightings, by two cameras side by side.

As in smallNORB the cameras and the lamps stay where they are and the toy turns. All the work happens in the toy's own
frame, about which the cameras and the lamps turn instead. What a camera sees is worked out once for all lightings, what
a lamp sees once for all cameras and elevations, and how much sky each place gets once for the toy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.data.toys.rays import Image, Scene, View, build_scene, cast, direction, look, normals, sample_positions
from emcaps.data.toys.shapes import Array, Solid

FULL_SIZE = 96
ELEVATIONS = tuple(range(30, 75, 5))
_RAYS = 2  # per pixel, along each side
_LAMP_MAP = 176  # texels along each side of what a lamp sees of the toy
_SKY_MAP = 96  # the same for a piece of sky
_STEREO_DEGREES = 6.0  # between the two cameras, seen from the toy
_REACH = 0.76  # of the half frame: no toy is larger in any picture
_GROUND_PAINT = 0.78
_GROUND_GLOW = 0.4  # light that the ground sends back up, as a share of the sky's
_SKY_REACH, _GROUND_MAP = 2.0, 48  # half side, and texels along a side, of the map of how much sky the ground gets
# Directions (heading, height) that stand for the sky, so many degrees up, evenly around.
_SKY = [
    (360 * (k + turn) / n, height) for height, n, turn in ((14, 7, 0.0), (40, 6, 0.4), (68, 4, 0.2)) for k in range(n)
]
_SKY_TOTAL = sum(math.sin(math.radians(height)) for _, height in _SKY)


class Lamp(NamedTuple):
    """Where light comes from, seen from the toy: heading 0 is from behind the cameras and 90 from their right."""

    heading: float
    height: float
    strength: float
    sky: float
    """Strength of the light that comes from all over the sky."""


LAMPS = (
    Lamp(heading=-38, height=62, strength=0.85, sky=0.26),
    Lamp(heading=46, height=62, strength=0.70, sky=0.38),
    Lamp(heading=-112, height=65, strength=0.85, sky=0.32),
    Lamp(heading=104, height=66, strength=0.62, sky=0.22),
    Lamp(heading=8, height=80, strength=0.45, sky=0.50),
    Lamp(heading=158, height=68, strength=0.75, sky=0.42),
)


class Shadow(NamedTuple):
    """What a far lamp sees of the toy, which is what it lights."""

    view: View
    depth: Image
    cover: Image
    """Share of each texel that the toy takes, blurred: it becomes the shadow on the ground."""


def pose_scene(solids: Sequence[Solid], reflectance: float) -> Scene:
    """The toy in the middle of the frame, as large as fits it in every picture."""
    views = [_camera(azimuth, elevation) for elevation in ELEVATIONS for azimuth in range(0, 360, 10)]
    return build_scene(solids, reflectance, views, _REACH)


def photographs(
    scene: Scene, elevations: Sequence[int], azimuths: Sequence[int], lightings: Sequence[int]
) -> npt.NDArray[np.uint8]:
    """uint8 (elevations, azimuths, lightings, 2, 96, 96); elevations and azimuths in degrees."""
    images = np.empty((len(elevations), len(azimuths), len(lightings), 2, FULL_SIZE, FULL_SIZE), np.uint8)
    sky = [_shadow(scene, direction(heading, height), _SKY_MAP) for heading, height in _SKY]
    ground_sky = _ground_sky(scene, sky)
    lamps = [LAMPS[lighting] for lighting in lightings]
    for a, azimuth in enumerate(azimuths):
        # The cameras look along the y of the room: their backs are at heading -90, before the turntable turns.
        shadows = [_shadow(scene, direction(lamp.heading - 90 - azimuth, lamp.height), _LAMP_MAP) for lamp in lamps]
        for e, elevation in enumerate(elevations):
            for camera, side in enumerate((-0.5, 0.5)):
                view = _camera(azimuth - side * _STEREO_DEGREES, elevation)
                images[e, a, :, camera] = _photograph(scene, view, lamps, shadows, sky, ground_sky)
    return images


def _camera(azimuth: float, elevation: float) -> View:
    return look(-direction(-90 - azimuth, elevation))


def _photograph(
    scene: Scene, view: View, lamps: Sequence[Lamp], shadows: Sequence[Shadow], sky: Sequence[Shadow], ground_sky: Image
) -> npt.NDArray[np.uint8]:
    """uint8 (lamps, 96, 96): one camera's picture under each lamp."""
    fine = FULL_SIZE * _RAYS
    depth, surface = cast(scene, view, fine, reach=1.0)
    seen = np.flatnonzero(surface >= 0)
    row, column = np.divmod(seen, fine)
    positions = sample_positions(fine, reach=1.0)
    u, v, t = positions[column], -positions[row], depth.ravel()[seen]
    right, up, forward = (part.astype(np.float32) for part in view)
    point = [u * right[i] + v * up[i] + t * forward[i] for i in range(3)]
    surface_seen = surface.ravel()[seen]
    normal, paint = normals(scene, surface_seen, point), scene.paint[surface_seen]

    sky_light = (1 - normal[2]) * np.float32(0.5 * _GROUND_GLOW)
    for piece in sky:
        sky_light += _received(scene, piece, point, normal, soft=False) * np.float32(1 / _SKY_TOTAL)
    ground = _ground_points(scene, view)
    ground_light = _sampled(ground_sky, ground[0] / np.float32(_SKY_REACH), ground[1] / np.float32(_SKY_REACH), 1.0)
    ground_share = 1 - _pooled((surface >= 0).astype(np.float32))

    images = np.empty((len(lamps), FULL_SIZE, FULL_SIZE), np.uint8)
    toy = np.zeros(fine * fine, np.float32)
    for n, (lamp, shadow) in enumerate(zip(lamps, shadows, strict=True)):
        strength, ambient = np.float32(lamp.strength), np.float32(lamp.sky)
        toy[seen] = _film(paint * (ambient * sky_light + strength * _received(scene, shadow, point, normal, soft=True)))
        steepness = np.float32(-shadow.view.forward[2])
        lamp_light = strength * steepness * (1 - _ground_shade(scene, shadow, *ground))
        floor = _film(np.float32(_GROUND_PAINT) * (ambient * ground_light + lamp_light))
        picture = _pooled(toy.reshape(fine, fine)) + ground_share * floor
        images[n] = np.rint(picture * 255).astype(np.uint8)
    return images


def _film(light: Image) -> Image:
    """Brightness 0 to 1; the square root is the usual gamma of two, near enough."""
    brightness: Image = np.sqrt(np.minimum(light, np.float32(1)))
    return brightness


def _shadow(scene: Scene, towards_lamp: Array, size: int) -> Shadow:
    view = look(-towards_lamp)
    depth, surface = cast(scene, view, size, scene.radius)
    return Shadow(view, depth, _blurred((surface >= 0).astype(np.float32)))


def _received(scene: Scene, shadow: Shadow, point: Sequence[Image], normal: Sequence[Image], *, soft: bool) -> Image:
    """The share of a lamp's light that each point of the toy gets: the cosine, and zero in the shadow."""
    right, up, forward = (part.astype(np.float32) for part in shadow.view)
    cosine = -(normal[0] * forward[0] + normal[1] * forward[1] + normal[2] * forward[2])
    # Look from a little above the surface, or it would shade itself wherever the map is coarser than the picture.
    size = len(shadow.depth)
    texel = np.float32(2 * scene.radius / size)
    x, y, z = (p + n * (np.float32(1.5) * texel) for p, n in zip(point, normal, strict=True))
    column = (x * right[0] + y * right[1] + z * right[2] + np.float32(scene.radius)) / texel
    row = (np.float32(scene.radius) - x * up[0] - y * up[1] - z * up[2]) / texel
    depth = x * forward[0] + y * forward[1] + z * forward[2] - np.float32(0.5) * texel
    if not soft:
        i, j = (np.clip(part.astype(np.int32), 0, size - 1) for part in (row, column))
        return np.where(depth < shadow.depth.ravel()[i * size + j], np.maximum(cosine, 0), np.float32(0))
    # Between four texels the edge of a shadow is a ramp instead of a staircase.
    row, column = (np.clip(part - np.float32(0.5), 0, np.float32(size - 1.001)) for part in (row, column))
    i, j = row.astype(np.int32), column.astype(np.int32)
    down, across = row - i, column - j
    first_hit, corner = shadow.depth.ravel(), i * size + j
    lit = [(depth < first_hit[corner + step]).astype(np.float32) for step in (0, 1, size, size + 1)]
    top, bottom = lit[0] + (lit[1] - lit[0]) * across, lit[2] + (lit[3] - lit[2]) * across
    return np.asarray(np.maximum(cosine, 0) * (top + (bottom - top) * down), np.float32)


def _ground_points(scene: Scene, view: View) -> tuple[Image, Image]:
    """x and y of the ground behind every pixel."""
    positions = sample_positions(FULL_SIZE, reach=1.0)
    u, v = positions[None, :], -positions[:, None]
    right, up, forward = (part.astype(np.float32) for part in view)
    t = (np.float32(scene.ground) - v * up[2]) / forward[2]  # right is level
    x, y = (u * right[i] + v * up[i] + t * forward[i] for i in range(2))
    return x, y


def _ground_shade(scene: Scene, shadow: Shadow, x: Image, y: Image) -> Image:
    """How much of the lamp the toy hides from points of the ground, 0 to 1."""
    right, up, _ = (part.astype(np.float32) for part in shadow.view)
    z, radius = np.float32(scene.ground), np.float32(scene.radius)
    u, v = x * right[0] + y * right[1] + z * right[2], x * up[0] + y * up[1] + z * up[2]
    return _sampled(shadow.cover, u / radius, v / radius, 0.0)


def _ground_sky(scene: Scene, sky: Sequence[Shadow]) -> Image:
    """The share of the sky that the ground sees around the toy."""
    positions = sample_positions(_GROUND_MAP, _SKY_REACH)
    x, y = np.broadcast_arrays(positions[None, :], -positions[:, None])
    light = np.zeros_like(x)
    # Without the lowest ring, whose shadows would reach far out.
    high = [piece for piece in sky if -piece.view.forward[2] > 0.5]
    total = sum(-piece.view.forward[2] for piece in high)
    for piece in high:
        light += np.float32(-piece.view.forward[2] / total) * (1 - _ground_shade(scene, piece, x, y))
    for _ in range(4):
        light = _blurred(light)
    return light


def _sampled(texture: Image, u: Image, v: Image, outside: float) -> Image:
    """The texture, which covers u and v from -1 to 1, between its texels."""
    size = len(texture)
    padded = np.pad(texture, 1, constant_values=outside)
    column = np.clip((u + 1) * np.float32(size / 2) + np.float32(0.5), 0, np.float32(size + 0.999))
    row = np.clip((1 - v) * np.float32(size / 2) + np.float32(0.5), 0, np.float32(size + 0.999))
    i, j = row.astype(np.int32), column.astype(np.int32)
    down, across = row - i, column - j
    flat, corner = padded.ravel(), i * (size + 2) + j
    top = flat[corner] * (1 - across) + flat[corner + 1] * across
    bottom = flat[corner + size + 2] * (1 - across) + flat[corner + size + 3] * across
    return np.asarray(top * (1 - down) + bottom * down, np.float32)


def _blurred(texture: Image) -> Image:
    """Twice the mean of three neighbours along both axes; the edge repeats."""
    for _ in range(2):
        for axis in (0, 1):
            rolled = np.pad(np.moveaxis(texture, axis, 0), [(1, 1), (0, 0)], mode="edge")
            mean = (rolled[:-2] + rolled[1:-1] + rolled[2:]) * np.float32(1 / 3)
            texture = np.moveaxis(mean, 0, axis)
    return texture


def _pooled(fine: Image) -> Image:
    """Means over the rays of each pixel."""
    parts = [fine[i::_RAYS, j::_RAYS] for i in range(_RAYS) for j in range(_RAYS)]
    return np.asarray(sum(parts[1:], parts[0]) / np.float32(len(parts)), np.float32)
