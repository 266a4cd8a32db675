"""Make the tables and pictures of the documents again: `make docs`, or `python -m emcaps.documents`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from emcaps.documents.pages import remake_pages
from emcaps.documents.pictures import remake_pictures
from emcaps.documents.recorded import ROOT, is_checkout

PROGRAM = "python -m emcaps.documents"


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Make the documents' tables and pictures again.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something would change")
    check = parser.parse_args(arguments).check
    if not is_checkout(root):
        return _fail(f"{root} is no checkout of emcaps, which has the pages and recorded runs: run `make docs` in one")
    torch.set_num_threads(1)  # networks are built to be counted: other threads would only wait, and spin while they do
    try:
        changed = [*remake_pages(root, write=not check), *remake_pictures(root, write=not check)]
    except (ValueError, OSError) as error:
        return _fail(str(error))
    for name in changed:
        print(f"{'would change' if check else 'changed'}: {name}")
    if not changed:
        print("nothing changes: the documents are what the recorded runs say")
    return int(check and bool(changed))


def _fail(why: str) -> int:
    print(f"{PROGRAM}: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
