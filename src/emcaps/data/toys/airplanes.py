"""Ten airplanes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from emcaps.data.toys.shapes import (
    Solid,
    both_sides,
    box,
    cut,
    cylinder,
    ellipsoid,
    frustum,
    limb,
    painted,
    slab,
    wheel,
)

GLASS = 0.6


class Airplane(NamedTuple):
    """Lengths as shares of the fuselage, which runs from x = -0.5 (tail) to 0.5 (nose)."""

    girth: float = 0.06
    """Radius of the fuselage."""
    span: float = 1.0
    chord: tuple[float, float] = (0.2, 0.1)
    """Depth of the wing at its root and at its tip."""
    sweep: float = 0.0
    """How far the tip lies behind the root."""
    wing: float = 0.05
    """Where along the fuselage the wing sits."""
    heights: tuple[float, ...] = (-0.5,)
    """Height of each wing above the fuselage's axis, in radii of it; a biplane has two."""
    dihedral: float = 0.04
    """How far the tip lies above the root."""
    tail: str = "low"
    """"low", "tee" (the tailplane on top of the fin), "twin" (two fins) or "none" (a delta)."""
    tail_span: float = 0.38
    fin: float = 0.17
    fin_sweep: float = 0.08
    engines: tuple[tuple[float, float], ...] = ()
    """(distance from the middle, position along the fuselage) of the engines on the right wing."""
    engine: str = "jet"
    """"jet", "propeller" or "rear" (jets on the fuselage)."""
    nose: str = "round"
    """"round", "pointed" or "propeller"."""
    canopy: str = "bubble"
    gear: float = 0.09
    """Height of the legs."""
    floats: bool = False


KINDS = (
    # airliner with two engines
    Airplane(0.058, span=0.95, chord=(0.2, 0.07), sweep=0.2, engines=((0.17, 0.08),), canopy="window", fin=0.2),
    # triplane
    Airplane(0.07, span=0.8, chord=(0.17, 0.16), wing=0.14, heights=(-0.8, 0.8, 2.4), nose="propeller", tail_span=0.34,
             fin=0.12, fin_sweep=0.03, gear=0.13, canopy="open", dihedral=0.0),
    # fighter with two fins
    Airplane(0.05, span=0.68, chord=(0.34, 0.09), sweep=0.2, wing=-0.05, heights=(0.0,), tail="twin", tail_span=0.46,
             nose="pointed", engine="intake", engines=((0.07, -0.1),), fin=0.17, dihedral=0.0, gear=0.07),
    # low-wing propeller plane
    Airplane(0.062, span=1.12, chord=(0.2, 0.1), wing=0.12, sweep=0.02, heights=(-0.6,), nose="propeller",
             dihedral=0.07, fin=0.14, fin_sweep=0.05, gear=0.1),
    # airliner with four engines
    Airplane(0.066, span=1.05, chord=(0.24, 0.07), sweep=0.24, engines=((0.16, 0.1), (0.33, 0.0)), canopy="window",
             fin=0.22, tail_span=0.42, fin_sweep=0.12),
    # business jet
    Airplane(0.054, span=0.85, chord=(0.17, 0.08), sweep=0.1, wing=-0.02, tail="tee", engine="rear",
             engines=((0.1, -0.2),), canopy="window", fin=0.19, tail_span=0.34, fin_sweep=0.13, gear=0.07),
    # cargo plane
    Airplane(0.075, span=1.2, chord=(0.17, 0.09), wing=0.08, heights=(0.85,), dihedral=0.0, engine="propeller",
             engines=((0.18, 0.12), (0.36, 0.1)), canopy="window", fin=0.22, tail_span=0.46, fin_sweep=0.06, gear=0.06),
    # delta fighter
    Airplane(0.055, span=0.62, chord=(0.5, 0.05), sweep=0.22, wing=-0.12, heights=(-0.2,), tail="none", nose="pointed",
             fin=0.18, fin_sweep=0.12, dihedral=0.0, gear=0.07, engine="intake", engines=((0.06, 0.02),)),
    # high-wing propeller plane
    Airplane(0.072, span=1.2, chord=(0.17, 0.14), wing=0.12, heights=(1.1,), nose="propeller", canopy="cabin",
             dihedral=0.02, tail_span=0.42, fin=0.15, fin_sweep=0.06, gear=0.1),
    # biplane
    Airplane(0.068, span=1.0, chord=(0.17, 0.15), wing=0.12, heights=(-0.7, 2.2), nose="propeller", canopy="open",
             tail_span=0.4, fin=0.14, fin_sweep=0.03, gear=0.12, dihedral=0.02),
)  # fmt: skip


def build_airplane(instance: int, random: np.random.Generator) -> list[Solid]:
    plane = KINDS[instance]
    plane = plane._replace(
        girth=plane.girth * random.uniform(1.14, 1.3),  # toys are stouter than airplanes
        span=plane.span * random.uniform(0.94, 1.06),
        wing=plane.wing + random.uniform(-0.02, 0.02),
        fin=plane.fin * random.uniform(0.92, 1.1),
    )
    z = plane.gear + plane.girth * (1 + max(0.0, -min(plane.heights) - 0.5))
    solids = _fuselage(plane, z) + _canopy(plane, z) + _tail(plane, z) + _gear(plane, z)
    for height in plane.heights:
        solids += _wing(plane, z + height * plane.girth)
    if len(plane.heights) > 1:
        solids += _struts(plane, z)
    for distance, x in plane.engines:
        solids += _engine(plane, distance, x, z)
    return solids


def _fuselage(plane: Airplane, z: float) -> list[Solid]:
    r = plane.girth
    body = limb([(-0.5 + 0.3 * r, 0, z + 0.45 * r), (-0.12, 0, z), (0.22, 0, z)], [0.25 * r, r, r])
    if plane.nose == "pointed":
        return body + limb([(0.22, 0, z), (0.49, 0, z - 0.2 * r)], [r, 0.14 * r])
    if plane.nose == "round":
        return [
            *body,
            cylinder((0.2, 0, z), (0.5 - 1.7 * r, 0, z), r),
            ellipsoid((0.5 - 1.7 * r, 0, z), (1.7 * r, r, r)),
        ]
    cowl = [frustum((0.2, 0, z), (0.46, 0, z), r, 0.86 * r), ellipsoid((0.46, 0, z), (0.06, 0.3 * r, 0.3 * r))]
    return body + cowl + _propeller((0.485, 0, z), 0.14 if plane.span > 1 else 0.12)


def _propeller(centre: tuple[float, float, float], radius: float) -> list[Solid]:
    x, y, z = centre
    return [
        box((x, y, z), (0.012, 2 * radius, 0.028)),
        box((x, y, z), (0.012, 0.028, 2 * radius)),
        ellipsoid((x, y, z), (0.03, 0.02, 0.02)),
    ]


def _canopy(plane: Airplane, z: float) -> list[Solid]:
    r = plane.girth
    if plane.canopy == "bubble":
        return painted([ellipsoid((0.16, 0, z + 0.8 * r), (0.13, 0.62 * r, 0.75 * r))], GLASS)
    if plane.canopy == "window":
        x = 0.5 - 1.25 * r
        pane = ellipsoid((0.5 - 1.7 * r, 0, z), (1.75 * r, 1.03 * r, 1.03 * r))
        pane = cut(cut(pane, (x, 0, 0), (-1, 0, 0)), (0, 0, z + 0.28 * r), (0, 0, -1))
        return painted([pane], GLASS)
    if plane.canopy == "cabin":
        roof = box((0.1, 0, z + 0.95 * r), (0.26, 1.7 * r, 1.1 * r), 0.2 * r)
        return [roof, *painted([box((0.13, 0, z + 0.9 * r), (0.24, 1.76 * r, 0.6 * r), 0.1 * r)], GLASS)]
    pilot = [ellipsoid((-0.06, 0, z + 1.35 * r), (0.035, 0.035, 0.045))]
    return [*pilot, ellipsoid((-0.16, 0, z + 0.75 * r), (0.1, 0.5 * r, 0.55 * r))]


def _wing(plane: Airplane, z: float) -> list[Solid]:
    half = plane.span / 2
    tip = (plane.wing - plane.sweep, half, z + plane.dihedral)
    thickness = 0.04 if len(plane.heights) == 1 else 0.03
    pieces = [slab((plane.wing, 0, z), tip, plane.chord[0], plane.chord[1], thickness)]
    if plane.sweep < 0.05:  # rounded tips
        pieces.append(ellipsoid(tip, (plane.chord[1] / 2, 0.045, thickness * 0.3)))
    return both_sides(pieces)


def _struts(plane: Airplane, z: float) -> list[Solid]:
    r = plane.girth
    low, high = z + min(plane.heights) * r, z + max(plane.heights) * r
    posts = [
        cylinder((plane.wing + x, 0.36 * plane.span, low), (plane.wing + x, 0.36 * plane.span, high), 0.009)
        for x in (-0.05, 0.05)
    ]
    inner = [cylinder((plane.wing + x, 0.9 * r, z), (plane.wing + x, 1.1 * r, high), 0.009) for x in (-0.05, 0.05)]
    return both_sides(posts + inner)


def _tail(plane: Airplane, z: float) -> list[Solid]:
    r, x = plane.girth, -0.42
    base, top = z + 0.3 * r, z + 0.3 * r + plane.fin
    if plane.tail == "twin":
        fin = slab((x + 0.02, 1.1 * r, z), (x - plane.fin_sweep, 1.7 * r, top), 0.17, 0.09, 0.022)
        flat = slab((x - 0.02, 0.5 * r, z), (x - 0.1, plane.tail_span / 2, z), 0.16, 0.08, 0.022)
        return both_sides([fin, flat])
    fin = slab((x + 0.01, 0, base), (x - plane.fin_sweep, 0, top), 0.17, 0.09, 0.024)
    if plane.tail == "none":
        return [fin]
    height, chord = (top, 0.1) if plane.tail == "tee" else (base + 0.1 * r, 0.13)
    start = x - plane.fin_sweep if plane.tail == "tee" else x
    back = 0.06 if plane.sweep > 0.05 else 0.015
    flat = slab((start, 0, height), (start - back, plane.tail_span / 2, height), chord, 0.65 * chord, 0.022)
    return [fin, *both_sides([flat])]


def _engine(plane: Airplane, distance: float, x: float, z: float) -> list[Solid]:
    if plane.engine == "rear":
        pod = [frustum((x - 0.07, distance, z + 0.02), (x + 0.07, distance, z + 0.02), 0.024, 0.036)]
        return both_sides([*pod, box((x, distance * 0.6, z + 0.02), (0.08, distance * 0.7, 0.014))])
    if plane.engine == "intake":
        return both_sides([box((x, distance, z), (0.36, 0.055, 0.075), 0.015)])
    share = distance / (plane.span / 2)
    wing_x, wing_z = plane.wing - share * plane.sweep, z + plane.heights[0] * plane.girth + share * plane.dihedral
    if plane.engine == "propeller":
        pod = limb([(wing_x - 0.08, distance, wing_z), (wing_x + 0.13, distance, wing_z)], [0.018, 0.032])
        return both_sides(pod + _propeller((wing_x + 0.165, distance, wing_z), 0.085))
    pod_x, pod_z = wing_x + 0.07, wing_z - 0.035
    pod = [frustum((pod_x - 0.09, distance, pod_z), (pod_x + 0.06, distance, pod_z), 0.022, 0.034)]
    return both_sides([*pod, box((pod_x - 0.03, distance, pod_z + 0.025), (0.1, 0.014, 0.03))])


def _gear(plane: Airplane, z: float) -> list[Solid]:
    small = 0.022 if plane.nose != "propeller" else 0.036
    reach = 0.7 * plane.girth + 0.05
    main_x = plane.wing - 0.03 if plane.nose != "propeller" else plane.wing + 0.06
    legs = both_sides(
        [
            cylinder((main_x, 0.4 * plane.girth, z), (main_x, reach, small), 0.009),
            *wheel((main_x, reach, small), small, 0.022),
        ]
    )
    if plane.nose == "propeller":  # these stand on a small wheel under the tail, here level with the others
        return [*legs, cylinder((-0.42, 0, z), (-0.45, 0, 0.02), 0.008), *wheel((-0.45, 0, 0.02), 0.02, 0.02)]
    return [*legs, cylinder((0.34, 0, z), (0.34, 0, small), 0.009), *wheel((0.34, 0, small), small, 0.022)]
