"""The page on robustness: what `make fuzz`, `make faults` and `python -m long_runs` counted, with `--record`."""

from __future__ import annotations

import json
from typing import Any

from emcaps.documents.recorded import RESULTS
from emcaps.report.markdown import markdown_table

SUITES = {"fuzz": "`make fuzz`: damaged files", "faults": "`make faults`: disturbed commands"}


def suites(_results: str) -> str:
    rows = []
    for name, what in SUITES.items():
        found = _recorded(name)
        counts = found["counts"].values()
        total = sum(sum(one.values()) for one in counts)
        bad = sum(count for one in counts for outcome, count in one.items() if outcome.isupper())
        kills = f"{found['kills']:,}" if "kills" in found else "-"
        rows.append((what, f"{total:,}", kills, f"{bad:,}", f"{found['seconds']:,}", str(found["seed"])))
    return markdown_table(("suite", "cases", "killed", "bad", "seconds", "seed"), rows)


def fuzz(_results: str) -> str:
    return _table("fuzz", "file")


def faults(_results: str) -> str:
    return _table("faults", "fault")


def memory(_results: str) -> str:
    """How much a long run's memory grew, on the machines that there are records of."""
    rows = []
    for path in sorted((RESULTS / "robustness").glob("memory-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        grown = [f"{found['growth'][name] / 1024:+,.0f}" for name in ("process", "GPU")]
        rows.append((found["environment"]["device"], f"{found['from']:,} to {found['steps']:,}", *grown))
    return markdown_table(("device", "steps", "process, KiB", "tensors on the GPU, KiB"), rows)


def _table(name: str, what: str) -> str:
    counts: dict[str, dict[str, int]] = _recorded(name)["counts"]
    outcomes = list(next(iter(counts.values())))
    rows = [(one, *(f"{found[outcome]:,}" for outcome in outcomes)) for one, found in counts.items()]
    totals = (f"{sum(found[outcome] for found in counts.values()):,}" for outcome in outcomes)
    return markdown_table((what, *(outcome.lower() for outcome in outcomes)), [*rows, ("all", *totals)])


def _recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"robustness/{name}.json").read_text(encoding="utf-8"))
    return found


BLOCKS = {"suites": suites, "fuzz": fuzz, "faults": faults, "memory": memory}
