"""The recorded runs of this checkout. Each kind is read once, however many tables are made of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from emcaps.bench.rows import Row, read_rows
from emcaps.experiments import (
    ablations,
    candidates,
    choices,
    cost,
    iterations,
    moved_digits,
    other_data,
    pitfalls,
    poses,
    table2,
    viewpoints,
)
from emcaps.experiments.records import Record, finished, read_records

ROOT = Path(__file__).resolve().parents[3]
"""The checkout, if this package is used from one."""
RESULTS = ROOT / "results"
PITFALLS = {"small": "pitfalls-small", "tiny": "pitfalls"}
"""Folders of results/, by network."""
VIEWPOINTS = {"smallnorb": "viewpoints", "toys": "viewpoints-toys"}
"""Folders of results/, by data set."""
ABLATIONS = {"tiny": "ablations-tiny"}
"""Folders of results/, by network; the small network has no recorded runs."""


def is_checkout(root: Path) -> bool:
    """Whether the recorded runs and the pages are there; a package that pip installed has neither."""
    return (root / "pyproject.toml").is_file() and (root / "results/README.md").is_file() and (root / "docs").is_dir()


@cache
def table2_records() -> dict[str, list[Record]]:
    return finished(table2.ROWS, list(table2.ROWS), RESULTS / "table2")


@cache
def choices_records() -> dict[str, list[Record]]:
    return finished(choices.ROWS, list(choices.ROWS), RESULTS / "choices")


@cache
def candidates_records() -> dict[str, list[Record]]:
    return finished(candidates.ROWS, list(candidates.ROWS), RESULTS / "candidates")


@cache
def other_data_records() -> dict[str, list[Record]]:
    return finished(other_data.ROWS, list(other_data.ROWS), RESULTS / "other-data")


@cache
def moved_digits_runs() -> dict[str, list[Record]]:
    return finished(moved_digits.ROWS, list(moved_digits.ROWS), RESULTS / "moved-digits")


@cache
def pitfalls_runs(network: str) -> dict[str, list[Record]]:
    rows = pitfalls.rows_on("smallnorb", network)
    return finished(rows, list(rows), RESULTS / PITFALLS[network], measured=True)


@cache
def iterations_runs() -> dict[str, list[Record]]:
    rows = iterations.rows_on("smallnorb")
    return finished(rows, list(rows), RESULTS / "three-iterations", measured=True)


@cache
def viewpoints_runs(dataset: str) -> dict[str, list[Record]]:
    rows = viewpoints.rows_on(dataset)
    return finished(rows, list(rows), RESULTS / VIEWPOINTS[dataset])


@cache
def poses_of(dataset: str) -> list[dict[str, Any]]:
    """What `emcaps experiment poses` recorded of networks that were trained on this data set."""
    return poses.read_poses(RESULTS / f"poses/{dataset}.json")


@cache
def bench_rows(name: str) -> list[Row]:
    """The rows of results/bench/NAME.csv."""
    return read_rows(RESULTS / f"bench/{name}.csv")


@cache
def cost_points() -> dict[str, cost.Point]:
    """What each row of Table 2 costs on an H200."""
    return cost.our_points(table2_records(), bench_rows("h200"))


@cache
def ablation_records(network: str) -> dict[str, list[Record]]:
    """By row; a row that was not trained yet has none."""
    rows = ablations.rows_on("smallnorb", network)
    return {row: read_records(rows, row, RESULTS / ABLATIONS[network], failures=True) for row in rows}


@cache
def attack_record() -> dict[str, Any]:
    """What `emcaps experiment attack` recorded, as one record: all networks were attacked alike."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / "attack").glob("*.json"))]
    if any(record["settings"] != records[0]["settings"] for record in records):
        raise ValueError("the records of results/attack differ in their settings: attack all networks alike")
    return {
        "settings": records[0]["settings"],
        "networks": {name: network for record in records for name, network in record["networks"].items()},
        "rows": [row for record in records for row in record["rows"]],
    }


def inside_network(name: str) -> dict[str, Any]:
    """What `emcaps experiment inside` recorded of a network that comes with the package."""
    found: dict[str, Any] = json.loads((RESULTS / f"weights/{name}-inside.json").read_text(encoding="utf-8"))
    return found
