"""A number that links to recorded runs is theirs: an accuracy, a mean and spread over seeds, a step, or a count."""

import json
import re
import statistics
from functools import cache
from typing import NamedTuple

import pytest

from documents.links import PAGES, links_of
from emcaps.documents.recorded import RESULTS, ROOT
from emcaps.experiments.records import spread

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
SHOWN = re.compile(rf"(?P<mean>{NUMBER})(?: ± (?P<spread>{NUMBER}))?(?P<unit> ?%| runs| passed)?")
TESTS_ON_A_GPU = int(re.search(r"(\d+) passed", (RESULTS / "gpu-tests/h200.txt").read_text(encoding="utf-8"))[1])


class Yield(NamedTuple):
    """What a folder of runs, or one run, may be quoted for."""

    accuracies: list[list[float]]
    """In percent, at the last step, by one crop and by 13; a list for runs that differ in the seed alone."""
    steps: set[int]
    """The last one, those that routing was measured at, and those by which runs failed."""
    count: int
    """How many runs there are, or how many tests passed by the record of them."""


@cache
def yield_of(folder):
    if folder.is_file():
        counts = re.findall(r"^tests/\S+ +(\d+) passed\b", folder.read_text(encoding="utf-8"), re.M)
        return Yield([], set(), sum(map(int, counts)))
    runs = sorted(path.parent for path in folder.rglob("config.json"))
    seeds: dict[tuple[str, str], list[float]] = {}
    steps = set()
    for run in runs:
        steps.add(json.loads((run / "config.json").read_bytes())["train"]["steps"])
        if (run / "failure.json").exists():
            steps.add(json.loads((run / "failure.json").read_bytes())["step"])
        if (run / "routing.json").exists():
            steps |= {found["step"] for found in json.loads((run / "routing.json").read_bytes())}
        for name in ("evaluation.json", "evaluation-13-crops.json"):
            if (run / name).exists():
                same = str(run.relative_to(folder)).rstrip("0123456789"), name
                seeds.setdefault(same, []).append(100 * json.loads((run / name).read_bytes())["test"]["accuracy"])
    return Yield(list(seeds.values()), steps, len(runs))


def is_theirs(shown, folder):
    """Whether what a match of SHOWN says is true of the runs in the folder."""
    found = yield_of(folder)
    digits = len(shown["mean"].partition(".")[2])
    if shown["spread"]:
        return f"{shown['mean']} ± {shown['spread']}" in [spread(values, digits) for values in found.accuracies]
    if digits or (shown["unit"] or "").endswith("%"):
        return shown["mean"] in [f"{statistics.fmean(values):.{digits}f}" for values in found.accuracies]
    number = int(shown["mean"].replace(",", ""))
    if shown["unit"]:
        return number == found.count
    return number in found.steps | {int(digits) for digits in re.findall(r"\d+", str(folder.relative_to(RESULTS)))}


def check_links(page, text):
    """How many numbers link to runs, and those links whose numbers are not their runs'."""
    checked, wrong = 0, []
    for shown, target in links_of(text):
        folder = ((ROOT / page).parent / target).resolve()
        if not (folder.is_relative_to(RESULTS) and folder.is_dir()) and folder.parent != RESULTS / "gpu-tests":
            continue
        words = shown.replace(folder.name, "")  # a name such as long-stereo-it3 says which run, not what it found
        numbers = list(SHOWN.finditer(words))
        checked += len(numbers)
        if not all(is_theirs(number, folder) for number in numbers):
            wrong.append(f"[{shown}]({target})")
    return checked, wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_number_that_links_to_a_run_is_that_runs(page):
    assert check_links(page, (ROOT / page).read_text(encoding="utf-8"))[1] == []


def test_the_pages_have_many_such_numbers():
    assert sum(check_links(page, (ROOT / page).read_text(encoding="utf-8"))[0] for page in PAGES) > 100


@pytest.mark.parametrize(
    ("right", "wrong", "folder"),
    [
        ("97.58 ± 0.20", "97.58 ± 0.21", "table2/best-stereo-it3"),
        ("97.6 ± 0.2", "97.5 ± 0.2", "table2/best-stereo-it3"),
        ("98.0 %", "97.9 %", "table2/long-stereo-it3"),
        ("98 %", "97 %", "table2/long-stereo-it3"),
        ("98.16", "98.15", "table2/long-stereo-it3"),  # with 13 crops
        ("98.22", "97.95", "table2/long-stereo-it3/seed0"),
        ("98.01", "98.22", "table2/long-stereo-it3"),  # the mean of the seeds, and one of them
        ("72,000 steps", "36,000 steps", "table2/long-stereo-it3"),
        ("long-stereo-it3, seed 0", "long-stereo-it3, seed 1", "table2/long-stereo-it3/seed0"),
        ("81.5", "81.4", "choices/it1-beta-30-fold0"),
        ("300, 800 and 1,300", "300, 800 and 1,400", "pitfalls-small/no-floor-it3"),
        ("91.3 ± 0.8 %", "91.2 ± 1.1 %", "demo-seeds"),
        ("42 runs", "41 runs", "three-iterations"),
        (f"{TESTS_ON_A_GPU} passed", f"{TESTS_ON_A_GPU + 1} passed", "gpu-tests/h200.txt"),
    ],
)
def test_a_wrong_number_is_found(right, wrong, folder):
    for shown, faults in ((right, []), (wrong, [f"[{wrong}](../results/{folder})"])):
        checked, found = check_links("docs/page.md", f"It gets [{shown}](../results/{folder}).")
        assert checked
        assert found == faults


def test_a_link_without_a_number_of_runs_is_left_alone():
    text = "[runs](results/table2/long-stereo-it3) [539](https://example.org) [2 rows](results/bench/h200.csv)"
    assert check_links("README.md", text) == (0, [])
    assert check_links("README.md", "[long-stereo-it3](results/table2/long-stereo-it3)") == (0, [])
