"""The environments that emcaps is tried in: a version of Python, and versions of what pip installs beside the wheel."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXTRAS = ("images", "plot", "tensorboard", "numba", "onnx")
TEST_TOOLS = ("hypothesis", "pytest", "pytest-timeout")


class Environment(NamedTuple):
    python: str
    what: str
    """A few words that tell it from the others of this Python; with the Python, the name of its record."""
    pins: tuple[str, ...] = ()
    """Requirements for pip, such as torch==2.6.0. What is not named is the newest that fits."""

    @property
    def name(self) -> str:
        return f"python{self.python}-{self.what}"


def lower_bounds(project: str) -> tuple[str, ...]:
    """The lowest versions that a pyproject.toml allows of what users need, as pins."""
    table = tomllib.loads(project)["project"]
    wanted = [*table["dependencies"], *(line for extra in EXTRAS for line in table["optional-dependencies"][extra])]
    bounds = [re.fullmatch(r"([\w.-]+)>=([\w.]+)", line) for line in wanted]
    if None in bounds:
        raise ValueError(
            f"every requirement must be NAME>=VERSION, so that its lowest version can be tried, not {wanted}"
        )
    return tuple(f"{found[1]}=={found[2]}" for found in bounds if found)


def exact_versions(constraints: str) -> tuple[str, ...]:
    """The lines of a constraints.txt, without its remarks."""
    return tuple(line for line in constraints.splitlines() if line and not line.startswith("#"))


def environments() -> tuple[Environment, ...]:
    lowest = lower_bounds((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pinned = exact_versions((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    return (
        Environment("3.11", "lowest", lowest),
        Environment("3.11", "torch2.5", ("torch==2.5.1",)),
        Environment("3.11", "torch2.6", ("torch==2.6.0",)),
        # The lowest torch that exports, with the lowest packages for it.
        Environment("3.11", "torch2.8", ("torch==2.8.0", *(pin for pin in lowest if pin.startswith("onnx")))),
        # Triton 3.6 comes with torch 2.11. Its interpreter, which the tests use, does not know numpy 2.4.
        Environment("3.11", "torch2.11", ("torch==2.11.0", "numpy==2.3.5")),
        Environment("3.11", "pinned", pinned),
        Environment("3.11", "newest"),
        Environment("3.12", "torch2.6", ("torch==2.6.0",)),
        Environment("3.12", "newest"),
        Environment("3.13", "torch2.6", ("torch==2.6.0",)),
        Environment("3.13", "newest"),
    )
