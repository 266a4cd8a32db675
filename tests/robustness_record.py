"""Records of the suites that damage files and disturb commands, from which `make docs` makes tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from emcaps.files import write_json
from emcaps.provenance import environment

FOLDER = Path(__file__).resolve().parent.parent / "results/robustness"


def record(name: str, found: Mapping[str, Any], device: torch.device | str = "cpu", folder: Path = FOLDER) -> None:
    """Write what a suite found, and where, into results/robustness/NAME.json."""
    path = folder / f"{name}.json"
    write_json(path, {"environment": environment(torch.device(device)), **found})
    print(path)
