"""Commands that are disturbed, mended and compared with undisturbed ones; every case is known by its name and the seed.

A case is clean if the disturbed command ends by itself or in one clear line, and the command that mends it then gives
the undisturbed result, bit for bit, from the last checkpoint that was whole, and leaves no other file. Where a file was
taken away or cut, a refusal in one clear line is right, too.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from emcaps.data.prepared import load_prepared
from faults import injected
from faults.commands import Ended, finish, start
from faults.injected import Fault, damage
from faults.scenarios import RUN, Scenario, result_of

CLEAN, REFUSED = "clean", "refused"
LOST, DIFFERENT, TRACEBACK, HANG, LEFT_OVER = "LOST", "DIFFERENT BITS", "TRACEBACK", "HANG", "LEFT-OVER FILES"
BAD = (LOST, DIFFERENT, TRACEBACK, HANG, LEFT_OVER)

TIMED, STOPPED_IN_TIME = "kill at a random time", "SIGTERM at a random time"
THEN_REMOVED, THEN_TRUNCATED, THEN_CUT = "kill, file removed", "kill, file truncated", "kill, metrics cut"
TWO = "two processes"
KILLS = (injected.KILL, injected.TORN, TIMED)
AFTER_A_KILL = (THEN_REMOVED, THEN_TRUNCATED, THEN_CUT)
DAMAGES = (injected.REMOVED, injected.TRUNCATED, *AFTER_A_KILL)
CASES = {
    injected.TORN: 20,
    TIMED: 10,
    injected.STOP_TERM: 5,
    injected.STOP_ECHO: 3,
    injected.STOP_INT: 4,
    injected.STOP_TWICE: 4,
    STOPPED_IN_TIME: 3,
    injected.FULL: 8,
    injected.CUT_SHORT: 6,
    injected.READ_ONLY: 4,
    injected.REMOVED: 4,
    injected.TRUNCATED: 4,
    THEN_REMOVED: 3,
    THEN_TRUNCATED: 3,
    THEN_CUT: 3,
    TWO: 3,
}
"""How many cases of each fault there are for a scenario; kills come at every touch of a file."""
SLOW_CASES = {injected.TORN: 2, TIMED: 4, injected.STOP_INT: 1, injected.FULL: 1}
"""The same for making toys, which starts processes that take a second each."""
DATA_SETS = ("import", "make")
"""Scenarios that make a data set, not a run."""
INTERRUPTED = 130
"""The exit status after Ctrl-C, as of other programs."""
LATEST = 1.3
"""Random times are drawn up to so many times the time that the undisturbed command took."""


class Case(NamedTuple):
    scenario: str
    fault: str
    number: int

    def __str__(self) -> str:
        return f"{self.scenario}:{self.fault}:{self.number}"


class Judged(NamedTuple):
    case: Case
    outcome: str
    message: str
    killed: bool
    """Whether a signal ended the command: a kill may come after the end, and a limit be larger than every file."""


def all_cases(scenarios: Sequence[Scenario]) -> list[Case]:
    found = []
    for scenario in scenarios:
        counts = SLOW_CASES if scenario.name == "make" else {injected.KILL: scenario.whole.seen.touches, **CASES}
        for fault, count in counts.items():
            if fault != THEN_CUT or scenario.name not in DATA_SETS:
                found += [Case(scenario.name, fault, number) for number in range(count)]
    return found


def run(
    cases: Sequence[Case], scenarios: Sequence[Scenario], seed: int, folder: Path, jobs: int, seconds: float
) -> list[Judged]:
    """Judge the cases in so many processes; those that the time does not suffice for are left out."""
    deadline = time.monotonic() + seconds
    workers = []
    for worker in range(jobs):
        process = os.fork()
        if process == 0:
            status = 1
            try:
                _work(cases[worker::jobs], scenarios, seed, folder / f"worker-{worker}", deadline)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        workers.append(process)
    statuses = [os.waitpid(process, 0)[1] for process in workers]
    if any(statuses):
        raise RuntimeError("a process of the suite itself failed: see its error above")
    lines = [line for path in sorted(folder.glob("worker-*/judged.jsonl")) for line in path.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    return [Judged(Case(*case), *rest) for case, *rest in found]


def _work(cases: Sequence[Case], scenarios: Sequence[Scenario], seed: int, folder: Path, deadline: float) -> None:
    folder.mkdir()
    by_name = {scenario.name: scenario for scenario in scenarios}
    with (folder / "judged.jsonl").open("w", buffering=1) as file:
        for case in cases:
            if time.monotonic() > deadline:
                return
            file.write(json.dumps(judge(case, by_name[case.scenario], seed, folder / "case")) + "\n")
            shutil.rmtree(folder / "case")


def judge(case: Case, scenario: Scenario, seed: int, folder: Path) -> Judged:
    """Disturb a command, mend what it leaves, and compare."""
    rng = random.Random(f"{seed} {case}")
    work = folder / "work"
    folder.mkdir()
    shutil.copytree(scenario.template, work)
    ended = _disturb(case, scenario, rng, work)
    outcome, message = _outcome(case, scenario, ended, work)
    return Judged(case, outcome, message, any(one.status < 0 for one in ended))


def _outcome(case: Case, scenario: Scenario, ended: list[Ended], work: Path) -> tuple[str, str]:
    """What became of a disturbed command, and a message that says more."""
    if wrong := _badly_ended(ended, case.fault):
        return wrong
    if scenario.name in DATA_SETS and (wrong := _mixed_set(work, scenario, case.fault in DAMAGES)):
        return wrong
    begun = (work / RUN / "config.json").exists()
    mended = finish(start(scenario.mend(work), work))
    if mended.hung:
        return HANG, f"while it was mended: {mended.said}"
    if "Traceback" in mended.said:
        return TRACEBACK, f"while it was mended: {mended.said}"
    damaged = case.fault in DAMAGES
    if mended.status:
        if damaged and _is_clear(mended):
            return REFUSED, mended.said
        return LOST, f"it cannot be mended: {mended.said}"
    saved = max(one.seen.saved for one in ended) - 1
    if scenario.name not in DATA_SETS and saved > 0 and not damaged:
        resumed_from = _resumed_from(work) if begun else 0
        if resumed_from < saved:
            return LOST, f"step {saved} was saved, and it resumed from step {resumed_from}"
    return _compare(result_of(work), scenario, damaged)


def _disturb(case: Case, scenario: Scenario, rng: random.Random, work: Path) -> list[Ended]:
    """Run the command with the fault; the processes that did."""
    seen, fault, signals = scenario.whole.seen, None, dict[float, int]()
    if case.fault == injected.KILL:
        fault = Fault(injected.KILL, 1 + case.number % seen.touches)
    elif case.fault in AFTER_A_KILL:
        fault = Fault(injected.KILL, 1 + rng.randrange(seen.touches))
    elif case.fault in injected.AT_ANY_TOUCH:
        fault = Fault(case.fault, 1 + rng.randrange(seen.touches), str(rng.random()))
    elif case.fault in injected.AT_A_CHANGE:
        fault = Fault(case.fault, 1 + rng.randrange(seen.changes))
    elif case.fault in (TIMED, STOPPED_IN_TIME):
        signals[rng.uniform(0, LATEST) * scenario.whole.seconds] = (
            signal.SIGKILL if case.fault == TIMED else signal.SIGTERM
        )
    started = [start(scenario.command(work), work, fault)]
    if case.fault == TWO:
        time.sleep(rng.uniform(0, 0.5) * scenario.whole.seconds)
        started.append(start(scenario.command(work), work))
    ended = [finish(one, signals=signals) for one in started]
    if case.fault == THEN_CUT and (metrics := work / RUN / "metrics.jsonl").exists():
        os.truncate(metrics, rng.randrange(metrics.stat().st_size + 1))
    elif case.fault in (THEN_REMOVED, THEN_TRUNCATED):
        damage(work, injected.REMOVED if case.fault == THEN_REMOVED else injected.TRUNCATED, rng)
    return ended


def _badly_ended(ended: list[Ended], fault: str) -> tuple[str, str] | None:
    """What is wrong with how the disturbed processes ended."""
    for one in ended:
        if one.hung:
            return HANG, one.said
        if "Traceback" in one.said:
            return TRACEBACK, one.said
        by_a_signal = one.status < 0 and fault in (*KILLS, *AFTER_A_KILL, STOPPED_IN_TIME)
        if not by_a_signal and one.status not in (0, INTERRUPTED) and not _is_clear(one):
            return TRACEBACK, f"status {one.status}, without a clear line at the end: {one.said}"
    return None


def _is_clear(ended: Ended) -> bool:
    """Whether the process ended in one line that says why."""
    last = ended.said.strip().rpartition("\n")[2]
    return ended.status > 0 and last.startswith("emcaps: ")


def _mixed_set(work: Path, scenario: Scenario, damaged: bool) -> tuple[str, str] | None:
    """Both parts of the data set must be old, or both new, or else be refused."""
    names = [name for name in scenario.old if scenario.old[name] != scenario.result[name]]
    try:
        for name in names:
            load_prepared(work / name)
    except (ValueError, OSError) as error:
        if damaged or "were not made together" in str(error):
            return None
        return LOST, f"the data set cannot be read: {error}"
    parts = [(work / name).read_bytes() for name in names]
    one_set = any(parts == [files[name] for name in names] for files in (scenario.old, scenario.result))
    return None if one_set else (DIFFERENT, "old and new parts, both accepted")


def _resumed_from(work: Path) -> int:
    found = json.loads((work / RUN / "environment.json").read_bytes()).get("resumed", [])
    return found[-1]["step"] if found else 0


def _compare(found: dict[str, Any], scenario: Scenario, damaged: bool) -> tuple[str, str]:
    wanted = scenario.result
    if damaged:  # what it computed must be right; what was taken away may be missing
        same = all(
            found.get(name) == wanted[name] for name in wanted if name.endswith(("weights.safetensors", ".json"))
        )
        rows = found.get(f"{RUN}/metrics.jsonl", [])
        return (
            (CLEAN, "")
            if same and all(row in scenario.rows for row in rows)
            else (DIFFERENT, "weights, evaluation, settings or rows")
        )
    if extra := sorted(found.keys() - wanted.keys()):
        return LEFT_OVER, ", ".join(extra)
    if missing := sorted(wanted.keys() - found.keys()):
        return LOST, f"no {', '.join(missing)}"
    if other := [name for name in wanted if found[name] != wanted[name]]:
        return DIFFERENT, ", ".join(other)
    return CLEAN, ""


def counts_of(judged: Sequence[Judged]) -> dict[str, dict[str, int]]:
    """How many cases had each outcome, by fault."""
    found: dict[str, Counter[str]] = {}
    for one in judged:
        found.setdefault(one.case.fault, Counter())[one.outcome] += 1
    order = [injected.KILL, *CASES]
    return {
        fault: {outcome: found[fault][outcome] for outcome in (CLEAN, REFUSED, *BAD)}
        for fault in order
        if fault in found
    }


def table(counts: dict[str, dict[str, int]]) -> str:
    outcomes = (CLEAN, REFUSED, *BAD)
    lines = [f"{'':26}" + "".join(f"{outcome:>17}" for outcome in outcomes)]
    for fault, found in counts.items():
        lines.append(f"{fault:26}" + "".join(f"{found[outcome]:17,}" for outcome in outcomes))
    totals = [sum(found[outcome] for found in counts.values()) for outcome in outcomes]
    return "\n".join([*lines, f"{'all':26}" + "".join(f"{total:17,}" for total in totals)])
