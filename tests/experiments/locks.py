"""Whether a process holds the lock of a run's folder."""

from pathlib import Path

from emcaps.train.run_folder import LOCK, BusyRunError, only_user


def is_busy(folder: Path) -> bool:
    if not (folder / LOCK).exists():
        return False
    try:
        with only_user(folder):
            return False
    except BusyRunError:
        return True
