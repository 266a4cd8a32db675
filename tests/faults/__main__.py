"""`make faults`: commands that are killed or refused by the system at every moment, and a table of what became of them.
Exit status 1 if any result was lost or wrong."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from faults import commands, suite
from faults.scenarios import make_scenarios
from robustness_record import record


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--cases", type=int, help="so many of them, drawn by the seed (default: all)")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--jobs", type=int, default=2, help="processes that work on the cases")
    parser.add_argument("--only", metavar="SCENARIO:FAULT:NUMBER", action="append", help="one case, as it was printed")
    parser.add_argument("--record", action="store_true", help="write the counts into results/robustness/")
    given = parser.parse_args()
    print(f"seed {given.seed}, up to {given.seconds:.0f} seconds", flush=True)
    started = time.monotonic()
    commands.load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = [text.split(":") for text in given.only or []]
        slow = any(name == "make" for name, *_ in wanted) or not (given.only or given.cases)
        scenarios = make_scenarios(folder, slow)
        cases = suite.all_cases(scenarios)
        if given.only:
            cases = [suite.Case(scenario, fault, int(number)) for scenario, fault, number in wanted]
        else:  # in any order, so that what the time suffices for is a fair sample
            cases = random.Random(given.seed).sample(cases, given.cases or len(cases))
        judged = suite.run(cases, scenarios, given.seed, folder, given.jobs, given.seconds)
    counts = suite.counts_of(judged)
    bad = [one for one in judged if one.outcome in suite.BAD]
    kills = sum(one.killed for one in judged)
    print(suite.table(counts))
    seconds = time.monotonic() - started
    print(f"{len(judged):,} of {len(cases):,} cases, {kills:,} of them killed, in {seconds:.0f} s, {len(bad)} bad")
    for one in bad:
        print(f"--seed {given.seed} --only '{one.case}'  {one.outcome}: {' '.join(one.message.split())[:300]}")
    if given.record:
        record("faults", {"seed": given.seed, "seconds": round(seconds), "kills": kills, "counts": counts})
    sys.exit(bool(bad) or len(judged) < len(cases))


if __name__ == "__main__":
    main()
