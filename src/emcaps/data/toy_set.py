"""The rendered toys on disk: as prepared files, which training reads, or in smallNORB's original file format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from emcaps.data.prepared import Examples, data_folder, prepared_path, save_prepared
from emcaps.data.smallnorb import write_originals
from emcaps.data.toys import make_toys
from emcaps.files import check_writable


class Views(NamedTuple):
    """Which of smallNORB's viewpoints and lightings are rendered."""

    elevations: tuple[int, ...] = tuple(range(9))
    azimuths: tuple[int, ...] = tuple(range(0, 36, 2))
    lightings: tuple[int, ...] = tuple(range(6))


WHOLE = Views()
QUICK = Views(elevations=(0, 4, 8), azimuths=tuple(range(0, 36, 4)), lightings=(0, 3))


def write_toys(
    folder: Path | None = None,
    *,
    seed: int = 0,
    views: Views = WHOLE,
    originals: Path | None = None,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Render and write both parts; with `originals`, 96x96 images into that folder, named as smallNORB's own files."""
    if originals is None:
        check_writable(data_folder(folder))
    elif originals.exists() and any(originals.iterdir()):
        raise ValueError(f"{originals} has files in it, maybe smallNORB's own: name an empty or new folder")
    parts = make_toys(
        seed=seed, **views._asdict(), size=48 if originals is None else 96, workers=workers, on_progress=on_progress
    )
    if originals is not None:
        return [path for part, found in parts.items() for path in write_originals(originals, part, *found)]
    prepared = {
        prepared_path("toys", part, folder): Examples(images, *labels.T) for part, (images, labels) in parts.items()
    }
    save_prepared(prepared)
    return list(prepared)
