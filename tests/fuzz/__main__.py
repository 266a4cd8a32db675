"""`make fuzz`: many damaged files, and a table of what became of them. Exit status 1 if any was treated badly."""

from __future__ import annotations

import argparse
import random
import sys
import time

from fuzz.runner import by_target, run, table
from robustness_record import record


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--inputs", type=int, default=110_000)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--only", metavar="TARGET:NUMBER", action="append", help="one input, such as a.npz:17")
    parser.add_argument("--record", action="store_true", help="write the counts into results/robustness/")
    given = parser.parse_args()
    print(f"seed {given.seed}, up to {given.inputs:,} inputs and {given.seconds:.0f} seconds", flush=True)
    only = [(name, int(number)) for name, _, number in (text.rpartition(":") for text in given.only or [])]
    started = time.monotonic()
    counts, bad = run(given.seed, given.inputs, given.seconds, only)
    print(table(counts))
    seconds = time.monotonic() - started
    print(f"{sum(counts.values()):,} inputs in {seconds:.0f} s, {len(bad)} bad")
    for one in bad:
        print(f"--seed {given.seed} --only {one.target}:{one.number}  {one.outcome}: {one.message[:300]}")
    if given.record:
        record("fuzz", {"seed": given.seed, "seconds": round(seconds), "counts": by_target(counts)})
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
