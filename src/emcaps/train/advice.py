"""Commands that messages name, so that a reader can copy them."""

from __future__ import annotations

import shlex
from pathlib import Path


def resume_command(folder: Path) -> str:
    """What resumes the run in a folder."""
    return f"emcaps train --resume {shlex.quote(str(folder))}"


def new_run_command(folder: Path) -> str:
    """What trains again, in a new folder, with the settings of the run in this one."""
    return f"emcaps train --config {shlex.quote(str(folder))}"
