"""Calls the explorer's JavaScript under node: `run_twin("route", ...)` gives what the page would compute."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import emcaps.explorer

PAGE = Path(emcaps.explorer.__file__).parent / "page"


def node() -> str:
    """The node program: the machine's own, or the one that playwright brings."""
    if found := shutil.which("node"):
        return found
    driver = pytest.importorskip("playwright._impl._driver", reason="needs node or playwright")
    return str(driver.compute_driver_executable()[0])


def run_twin(job: str, **given: Any) -> dict[str, Any]:
    script = Path(__file__).with_name("twin.mjs")
    command = [node(), str(script), str(PAGE)]
    done = subprocess.run(
        command, input=json.dumps({"job": job, **given}), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
