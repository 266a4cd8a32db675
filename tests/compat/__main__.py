"""`make compat`: try the built wheel in fresh environments with other versions, and record what passed.

Tries those environments that are for the Python that runs this, one after the other. Each needs up to 10 GB of disk
while it lasts and some minutes; torch is downloaded for each. Exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from compat.environments import ROOT, environments
from compat.trial import build_wheel, try_environment


def main() -> None:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    possible = {environment.what: environment for environment in environments() if environment.python == running}
    parser = argparse.ArgumentParser(prog="python -m compat", description=__doc__)
    parser.add_argument(
        "what", nargs="*", help=f"for Python {running}: {', '.join(possible) or 'none'}; all by default"
    )
    parser.add_argument("--records", type=Path, default=ROOT / "results/compat")
    given = parser.parse_args()
    unknown = sorted(set(given.what) - set(possible))
    if unknown or not possible:
        parser.error(f"Python {running} has the environments {', '.join(possible) or 'none'}, not {', '.join(unknown)}")
    given.records.mkdir(parents=True, exist_ok=True)
    bad = False
    with tempfile.TemporaryDirectory(prefix="emcaps-compat-") as folder:
        wheel = build_wheel(Path(folder))
        for what in given.what or possible:
            record = try_environment(possible[what], wheel)
            text = json.dumps(record, indent=1) + "\n"
            (given.records / f"{record['name']}.json").write_text(text, encoding="utf-8")
            print(f"{record['name']}: {record['passed']} passed, {record['failed']} failed", flush=True)
            for line in record["failures"]:
                print(f"  {line}", flush=True)
            bad |= bool(record["failed"])
    sys.exit(bad)


if __name__ == "__main__":
    main()
