"""What the README shows is what happens."""

import contextlib
import io
import json
import re
import statistics
from pathlib import Path

import pytest

from emcaps.experiments import choices, cost, pitfalls, table2
from emcaps.experiments.iterations import VARIANTS, read_runs
from emcaps.experiments.records import finished, mean_and_spread, read_records, spread

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO_ROWS = {"small": "capsules, small", "cnn": "CNN baseline"}


def test_the_python_runs_and_gives_the_shapes():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    assert out.getvalue().split("torch.Size")[1:] == [
        "([1, 7, 7, 16, 4, 4]) ",
        "([1, 5]) ",
        "([1, 7, 7, 3, 3, 8, 16])\n",
    ]


def test_describe_prints_what_is_shown(monkeypatch, capsys):
    from emcaps import cli

    shown = re.search(r"\$ emcaps describe small\n(.*?)```", README, re.S).group(1)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["emcaps", "describe", "small"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.rstrip() for line in shown.splitlines()] == printed


def test_every_link_to_a_file_leads_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists(), link


def test_table_2_is_what_the_recorded_runs_say():
    from emcaps.bench.rows import read_rows

    found = finished(table2.ROWS, list(table2.ROWS), ROOT / "results/table2")
    assert table2.markdown_table(found) in README
    assert table2.markdown_rows(found) in README
    alone = found["best-stereo-it2"][0]
    assert f"takes {alone.seconds:.0f} seconds for 95 passes" in " ".join(README.split())
    seconds = next(seconds for _, accuracy, seconds in alone.curve if accuracy >= 95.4)
    assert f"after {seconds:.0f} seconds" in " ".join(README.split())
    first = [one.steps_to(97.8) for one in found["long-stereo-it3"]]
    last = [max(step for step, accuracy, _ in one.curve if accuracy < 97.8) for one in found["long-stereo-it3"]]
    good = [step + table2.LONG["stereo"]["train.eval_every"] for step in last]
    assert f"for good only from {good[0]:,}, {good[1]:,} and {good[2]:,} on" in " ".join(README.split())
    (step,) = [
        row.median_ms
        for row in read_rows(ROOT / "results/bench/h200.csv")
        if (row.network, row.iterations, row.what, row.implementation) == ("small", 3, "training step", "fused, graph")
    ]
    text = f"after {first[0]:,}, {first[1]:,} and {first[2]:,} steps of the three seeds of long-stereo-it3, "
    seconds = [count * step / 1000 for count in first]
    assert f"{text}{min(seconds):.0f} to {max(seconds):.0f} seconds" in " ".join(README.split())
    seeds = [f"{record.accuracy:.2f}" for record in found["long-mono-it2"]]
    assert f"{seeds[0]}, {seeds[1]} and {seeds[2]} % for the three seeds" in " ".join(README.split())
    seeds = [f"{record.accuracy:.2f}" for record in found["long-full-stereo-it2"]]
    assert f"{seeds[0]}, {seeds[1]} and {seeds[2]} % for the three seeds" in " ".join(README.split())


def test_the_table_of_costs_is_what_the_recorded_runs_say():
    from emcaps.bench.rows import read_rows

    found = finished(table2.ROWS, list(table2.ROWS), ROOT / "results/table2")
    ours = cost.our_points(found, read_rows(ROOT / "results/bench/h200.csv"))
    assert cost.markdown_table(ours) in (ROOT / "docs/cost.md").read_text(encoding="utf-8")


def test_the_table_of_choices_is_what_the_recorded_runs_say():
    found = finished(choices.ROWS, list(choices.ROWS), ROOT / "results/choices")
    for view in choices.VARIANTS:
        assert choices.markdown_table(found, view) in (ROOT / "docs/recipe.md").read_text(encoding="utf-8")


def test_figures_that_link_to_a_choice_are_its_own():
    page = (ROOT / "docs/three-iterations.md").read_text(encoding="utf-8")
    links = re.findall(r"\[([\d.]+)\]\(\.\./(results/choices/[^)]+)\)", page)
    assert len(links) == 30
    for accuracy, folder in links:
        evaluation = json.loads((ROOT / folder / "seed0/evaluation.json").read_text())
        assert f"{100 * evaluation['test']['accuracy']:.1f}" == accuracy, folder


def test_figures_that_link_to_a_row_of_table_2_are_its_own():
    page = (ROOT / "docs/three-iterations.md").read_text(encoding="utf-8")
    links = re.findall(r"\[([\d.]+(?: ± [\d.]+)?)\]\(\.\./results/table2/([^)]+)\)", page)
    assert len(links) == 15
    for figure, row in links:
        assert mean_and_spread(read_records(table2.ROWS, row, ROOT / "results/table2")) == figure, row


def test_the_table_of_routing_in_small_stereo_is_what_was_recorded():
    page = (ROOT / "docs/three-iterations.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "results/weights/small-stereo-inside.json").read_text())
    assert found["step"] == table2.ROWS["long-stereo-it3"].train.steps
    for layer, rows in found["layers"].items():
        for number, row in enumerate(rows, start=1):
            shares = f"{100 * row['lone_parents']:.1f} | {row['entropy']:.2f} | {100 * row['logit_useful']:.0f}"
            positions = f"{row['positions']:.2f}" if "positions" in row else "-"
            assert f"| {layer} | {number} | {row['effective_children']:.1f} | {shares} | {positions} |" in page
    assert "grown from 0.5 to {:.2f}, {:.2f} and {:.2f}".format(*found["pose_gain"]) in page


def test_every_link_of_the_other_pages_leads_somewhere():
    for page in (
        "docs/three-iterations.md",
        "docs/recipe.md",
        "docs/pitfalls.md",
        "docs/cost.md",
        "src/emcaps/weights/README.md",
        "results/README.md",
    ):
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            assert ((ROOT / page).parent / link).exists(), (page, link)


def test_the_page_on_three_iterations_has_the_numbers_of_its_runs():
    page = (ROOT / "docs/three-iterations.md").read_text(encoding="utf-8")
    for variant in VARIANTS:
        runs = read_runs(ROOT / "results/three-iterations", variant)
        assert len(runs) == 3
        cells = [spread(each, 1) for each in zip(*((r.training_accuracy, r.accuracy) for r in runs), strict=True)]
        line = next(line for line in page.splitlines() if line.startswith(f"| [{variant}](") and "±" in line)
        assert f"| {' | '.join(cells)} |" in line


@pytest.mark.parametrize(("network", "runs"), [("small", "results/pitfalls-small"), ("tiny", "results/pitfalls")])
def test_the_page_on_pitfalls_has_the_numbers_of_its_runs(network, runs):
    page = (ROOT / "docs/pitfalls.md").read_text(encoding="utf-8")
    found = pitfalls.read_runs(ROOT / runs, network)
    assert {len(each) for each in found.values()} == {3}
    assert pitfalls.markdown_accuracies(found, f"../{runs}/") in page
    assert pitfalls.markdown_ratios(found, network, f"../{runs}/") in page
    failed = sorted(run.failed_by for run in found["no-floor-it3"])
    assert f"[{failed[0]:,}, {failed[1]:,} and {failed[2]:,}](../{runs}/no-floor-it3)" in page


def test_the_accuracies_in_prose_are_those_of_the_runs_they_link_to():
    links = re.findall(r"\[([\d.]+) %\]\((results/[^)]+)\)", README)
    assert len(links) == 4
    rows = [(accuracy, folder.removeprefix("results/table2/")) for accuracy, folder in links if "table2" in folder]
    for accuracy, row in rows:
        records = read_records(table2.ROWS, row, ROOT / "results/table2")
        assert f"{statistics.mean(record.accuracy for record in records):.1f}" == accuracy, row
    links = [link for link in links if "table2" not in link[1]]
    shown = {name: re.search(rf"{text} .* ([\d.]+) %", README).group(1) for name, text in DEMO_ROWS.items()}
    links += [(accuracy, f"results/demo/{name}") for name, accuracy in shown.items()]
    for accuracy, folder in links:
        evaluation = json.loads((ROOT / folder / "evaluation.json").read_text())
        assert f"{100 * evaluation['test']['accuracy']:.1f}" == accuracy, folder


def test_the_seeds_of_the_demo_are_as_the_recorded_runs_say():
    for name, text in (("small", "capsules"), ("cnn", "the CNN")):
        files = sorted((ROOT / "results/demo-seeds").glob(f"{name}-*/evaluation.json"))
        accuracies = [100 * json.loads(file.read_text())["test"]["accuracy"] for file in files]
        assert len(accuracies) == 5
        shown = f"{text} [{statistics.mean(accuracies):.1f} ± {statistics.stdev(accuracies):.1f} %]"
        assert shown in " ".join(README.split())


def test_the_table_of_speeds_is_what_the_recorded_rows_say():
    from emcaps.bench.rows import read_rows
    from emcaps.bench.tables import markdown_table

    rows = read_rows(ROOT / "results/bench/h200.csv")
    assert markdown_table(rows) in README
    steps = {
        (row.network, row.batch, row.implementation): row
        for row in rows
        if row.what == "training step" and row.iterations == (2 if row.network == "small" else 3)
    }
    graph, reference = "fused, graph", "reference"
    speeds = [f"{steps['small', batch, graph].images_per_s:,.0f}" for batch in (64, 4096)]
    text = " ".join(README.split())
    assert f"takes {speeds[0]} images a second, at batch 4,096 it takes {speeds[1]}." in text
    memory = {key: f"{row.peak_mib:,.0f}" for key, row in steps.items()}
    assert (
        f"It needs {memory['small', 64, graph]} MiB of GPU memory at batch 64, the reference's "
        f"{memory['small', 64, reference]}; the full network's needs {memory['full', 64, graph]} MiB, the reference's "
        f"{memory['full', 64, reference]}." in text
    )


def test_what_is_said_of_one_image_and_of_bfloat16_is_what_the_recorded_rows_say():
    from emcaps.bench.rows import read_rows
    from emcaps.bench.tables import milliseconds

    rows = read_rows(ROOT / "results/bench/h200.csv")
    batches = {
        (row.batch, row.implementation): row.median_ms
        for row in rows
        if (row.network, row.what, row.iterations, row.size, row.types) == ("small", "forward+backward", 2, 32, 16)
    }
    for batch in {batch for batch, _ in batches}:
        slow = batches[batch, "reference"]
        assert slow is None or slow > batches[batch, "fused"] > batches[batch, "fused, graph"]
    graph, fused, reference = (batches[1, name] for name in ("fused, graph", "fused", "reference"))
    text = " ".join(README.split())
    assert (
        f"takes {milliseconds(graph)} ms replayed and {milliseconds(fused)} ms launched kernel by kernel, "
        f"where the reference takes {milliseconds(reference)}." in text
    )
    small = {
        row.implementation: row.median_ms
        for row in read_rows(ROOT / "results/bench/h200-bf16.csv")
        if row.network == "small"
    }
    assert f"{small['bf16, graph']:.2f} ms instead of {small['fused, graph']:.2f} ([rows]" in text


def test_the_speed_on_a_cpu_is_what_the_recorded_rows_say():
    from emcaps.bench.rows import read_rows
    from emcaps.bench.tables import milliseconds, ratio

    rows = {
        (row.what, row.batch, row.iterations, row.implementation): row
        for row in read_rows(ROOT / "results/bench/cpu.csv")
    }
    text = " ".join(README.split())
    for iterations in (2, 3):
        names = ("plain", "reference", "fused, 1 core", "fused")
        times = [rows["forward+backward", 16, iterations, name].median_ms for name in names]
        cells = [*map(milliseconds, times), *(ratio(slow / times[-1]) for slow in times[:2])]
        assert f"| {iterations} | {' | '.join(cells)} |" in README
    fused, reference, plain = (rows["forward+backward", 16, 2, name] for name in ("fused", "reference", "plain"))
    share = 100 * fused.share_of_ceiling
    assert f"That is {fused.images_per_s:.0f} images a second with 2 iterations, at {share:.0f} % of" in text
    assert reference.median_ms / 40 < fused.median_ms * fused.share_of_ceiling
    memory = [f"{row.peak_mib:,.0f}" for row in (fused, reference, plain)]
    assert f"by {memory[0]} MiB, with the reference by {memory[1]} ({memory[2]} in a plain process)" in text
    assert f"forward in {rows['forward', 1, 2, 'fused, 1 core'].median_ms:.1f} ms on one core" in text


def test_the_tests_on_a_gpu_are_as_many_as_their_record_lists():
    record = (ROOT / "results/gpu-tests/h200.txt").read_text(encoding="utf-8")
    listed = [line for line in record.splitlines() if line.startswith("tests/")]
    assert f"[{len(listed)} passed](results/gpu-tests/h200.txt)" in README
    assert f"{len(listed)} passed, none failed" in record
