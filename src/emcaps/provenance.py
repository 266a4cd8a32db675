"""Where numbers come from: the versions, the commit and the device that a run or a benchmark used."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emcaps.version import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """What the numbers of a run may depend on besides its config."""
    return {
        "emcaps": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def device_name(device: torch.device) -> str:
    """The GPU's product name, or "cpu" with the number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {os.cpu_count()} cores"


def commit() -> str | None:
    """The commit of the source that runs, with "+changes" if files differ from it; None outside a git checkout.

    $EMCAPS_COMMIT comes first: a copy of the source may lie in a checkout of another state.
    """
    if os.environ.get("EMCAPS_COMMIT"):
        return os.environ["EMCAPS_COMMIT"]
    source = Path(__file__).parent
    try:
        _git(source, "ls-files", "--error-unmatch", __file__)  # else this is a checkout of something else around us
        head = _git(source, "rev-parse", "HEAD")
        return head + ("+changes" if _git(source, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):  # no git, no checkout, or one on a disk that does not answer in time
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
