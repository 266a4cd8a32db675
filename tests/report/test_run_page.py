"""`emcaps report` on runs of every kind: complete, interrupted, damaged, of a CNN, on own data, several at once."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from emcaps.cli import main
from emcaps.config import preset
from emcaps.report import inspection, run_page
from emcaps.report.inspection import QUICK_EXAMPLES, Mistake
from emcaps.report.run_record import short_names
from emcaps.train import train
from emcaps.train.evaluate import Evaluation
from own_images import bars
from patterns import write_patterns
from report.structure import check_page

SETTINGS = {
    "data.crop": 16,
    "train.steps": 6,
    "train.batch_size": 8,
    "train.log_every": 2,
    "train.eval_every": 3,
    "train.checkpoint_every": 4,
}
TINY = SETTINGS | {
    "network.conv_channels": 8,
    "network.primary_types": 2,
    "network.conv1_types": 4,
    "network.conv2_types": 4,
}
ODD_NAMES = ('<b>"bold"</b>', "a & b's", "line\nbreak")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data and three runs that the tests read and copy: capsules with two seeds, and a CNN."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_patterns(folder / "data")
    capsules = preset("tiny").override(TINY | {"train.watch": 3, "network.pose_scale": 0.5})
    for name, config in {
        "seed0": capsules,
        "seed1": capsules.override({"train.seed": 1}),
        "cnn": preset("cnn").override(SETTINGS),
    }.items():
        train(config, folder / name, device="cpu", data_folder=data)
    return folder


@pytest.fixture
def report(folder, tmp_path, monkeypatch, capsys):
    """Run `emcaps report ARGUMENTS` in an empty folder; gives the checked page and its text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMCAPS_DATA", str(folder / "data"))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["emcaps", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        assert not stop.value.code, err
        text = Path(out.removeprefix("report: ").strip()).read_text(encoding="utf-8")
        return check_page(text), text

    return run


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the run seed0, to be damaged."""
    return Path(shutil.copytree(folder / "seed0", tmp_path / "copy"))


def headings(page):
    return [text for _, text in page.headings]


def table(page, start):
    return next(table for table in page.tables if table["caption"].startswith(start))


def test_a_complete_run(report, folder):
    before = {path.name: path.read_bytes() for path in (folder / "seed0").iterdir()}
    page, _ = report(folder / "seed0")
    assert headings(page) == [
        "network on toys, mono, seed 0",
        "Settings",
        "Curves",
        *run_page.run_sections.TITLES.values(),
    ]
    accuracy = json.loads((folder / "seed0" / "evaluation.json").read_text())["test"]["accuracy"]
    assert f"{100 * accuracy:.2f}\u00a0%" in page.text
    for chart in ("Loss", "Training accuracy", "Test accuracy", "Learning rate", "Margin", "Entropy of assignments"):
        assert any(text.startswith(chart) for text in page.charts), chart
    assert "Warning signs" in page.text
    assert "Learned gains of the poses" in page.text
    assert "left camera" in page.text
    assert {path.name: path.read_bytes() for path in (folder / "seed0").iterdir()} == before
    assert Path("seed0-report.html").exists()
    assert "not complete" not in page.text


def test_the_figures_are_those_of_the_run(report, folder):
    page, _ = report(folder / "seed0")
    rows = [json.loads(line) for line in (folder / "seed0" / "metrics.jsonl").read_text().splitlines()]
    losses = [cell for row in rows if "loss" in row for cell in (f"{row['step']}", f"{row['loss']:.4g}")]
    assert table(page, "Loss")["cells"] == ["step", "seed0", *losses]
    confusion = json.loads((folder / "seed0" / "evaluation.json").read_text())["test"]["confusion"]
    first = [f"{100 * count / sum(confusion[0]):.1f}" for count in confusion[0]]
    cells = table(page, "test, step 6")["cells"]
    assert cells[7:14] == ["animal", *first, "40"]
    assert "200 images are right" in table(page, "test, step 6")["caption"]


def test_several_runs(report, folder):
    page, _ = report(folder / "seed0", folder / "seed1", folder / "cnn", folder / "seed0" / ".." / "seed0")
    assert page.headings[0] == (1, "3 runs compared")
    assert [text for level, text in page.headings if level == 2] == [
        "The runs",
        "What differs",
        "Curves",
        "seed0",
        "seed1",
        "cnn",
    ]
    differing = table(page, "Settings that are not the same")["cells"]
    assert "train.seed" in differing
    assert "train.steps" not in differing
    assert any(cell.startswith("seed0 and 1 more") for cell in table(page, "Runs that differ in their seed")["cells"])
    assert all(name in page.charts[3] for name in ("seed0:", "seed1:", "cnn:")), page.charts
    assert Path("report.html").exists()


def test_a_copy_of_a_run_is_not_another_seed(report, folder, tmp_path):
    shutil.copytree(folder / "seed0", tmp_path / "copy")
    page, _ = report(folder / "seed0", tmp_path / "copy")
    assert not any(one["caption"].startswith("Runs that differ in their seed") for one in page.tables)


def test_a_run_that_was_taught(report, folder, copy):
    for name, section, key, value in (
        ("config.json", "train", "teachers", ["../elder"]),
        ("environment.json", "data", "teacher 1", "5ba1"),
    ):
        found = json.loads((copy / name).read_text())
        found[section][key] = value
        (copy / name).write_text(json.dumps(found))
    page, text = report(copy)
    cells = table(page, "Versions, machine and data")["cells"]
    assert cells[cells.index("SHA-256 of the weights of teacher 1") + 1] == "5ba1"
    assert "SHA-256 of the train images" in cells
    assert "The loss holds train.teaching times the cross-entropy with the teachers&#x27; answers, too." in text
    assert "The loss of copy holds train.teaching" in report(copy, folder / "seed1")[1]
    assert "train.teaching times" not in report(folder / "seed1")[1]


def test_a_cnn_does_not_route(report, folder):
    page, _ = report(folder / "cnn")
    assert "A CNN does not route." in page.text
    assert "The worst mistakes" in headings(page)
    assert not any(text.startswith("Margin") for text in page.charts)


def test_a_quick_look_takes_fewer_images(report, folder, monkeypatch):
    monkeypatch.setattr("emcaps.report.inspection.QUICK_EXAMPLES", 10)
    page, _ = report(folder / "seed0", "--quick")
    assert "20 of 200 test images (a quick look)" in page.text
    assert QUICK_EXAMPLES < 1000


def test_own_data_with_odd_names(report, tmp_path):
    images, labels = bars(60)
    names = np.array(ODD_NAMES)
    place = tmp_path / "<i>&'\".npz"
    np.savez(place, images=images, labels=labels, test_images=images[:31], test_labels=labels[:31], names=names)
    run = tmp_path / "<em>run & 'co\""
    train(preset("tiny").override(TINY | {"data.dataset": str(place)}), run, device="cpu")
    page, text = report(run)
    assert "<em>" not in text
    assert "<i>" not in text
    assert "<b>" not in text
    assert table(page, "test, step 6")["cells"][1:4] == list(ODD_NAMES)
    assert "Errors by object" not in headings(page)
    assert page.headings[0][1] == "network on <i>&'\".npz, seed 0"


def test_many_classes_get_a_list_of_confusions(report, tmp_path):
    images, labels = bars(60, classes=15)
    place = tmp_path / "many.npz"
    np.savez(place, images=images, labels=labels, test_images=images, test_labels=labels)
    train(
        preset("tiny").override(TINY | {"data.dataset": str(place), "train.steps": 2}), tmp_path / "run", device="cpu"
    )
    page, _ = report(tmp_path / "run")
    assert table(page, "test, step 2")["cells"][:4] == ["true", "given", "times", "% of true"]


def test_without_data_and_without_weights_it_says_so(report, copy, monkeypatch, tmp_path):
    page, _ = report(copy, "--folder", tmp_path / "nowhere")
    assert "The network was not run over the test images" in page.text
    assert "Confusions" in headings(page)
    assert "The worst mistakes" not in headings(page)
    for path in copy.glob("*.safetensors"):
        path.unlink()
    page, _ = report(copy)
    assert "The folder holds no weights" in page.text


def test_other_data_than_the_run_s_own(report, copy, tmp_path):
    other = write_patterns(tmp_path / "other", views=2)
    page, _ = report(copy, "--folder", other)
    assert "not those that the run was tested with" in page.text


def test_a_run_in_training(report, copy):
    """As after its first checkpoint: neither weights nor evaluation, and the metrics end within a line."""
    for name in ("weights.safetensors", "evaluation.json"):
        (copy / name).unlink()
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    (copy / "metrics.jsonl").write_text("\n".join(lines[:2]) + '\n{"step": 5, "lo')
    page, _ = report(copy)
    assert "The run is not complete: it is at step 3 of 6." in page.text
    assert "read without line 3 of 3" in page.text
    assert "test, step 6" in table(page, "test, step")["caption"]  # of the checkpoint


def test_damage_is_told_and_the_rest_is_shown(report, copy):
    (copy / "evaluation.json").write_text(
        '{"step": 6, "test": {"accuracy": 0.5, "images": 2, "confusion": [[1], [1]]}}'
    )
    (copy / "environment.json").write_text("[]")
    (copy / "routing.json").write_text("{")
    (copy / "weights.safetensors").write_bytes(b"\x00" * 100)
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    (copy / "metrics.jsonl").write_text("\n".join(["nonsense", *lines, '{"step": 6, "loss": NaN}']) + "\n")
    page, _ = report(copy)
    for text in (
        "evaluation.json cannot be read",
        "environment.json is damaged",
        "routing.json cannot be read",
        "weights.safetensors cannot be read",
        f"read without line 1 of {len(lines) + 2}",
    ):
        assert text in page.text, text
    assert "What routing does inside" in headings(page)  # by the checkpoint


def test_settings_that_are_lost_are_read_from_the_weights(report, copy):
    (copy / "config.json").write_text("{")
    page, _ = report(copy)
    assert "the settings are those of weights.safetensors" in page.text


def test_an_empty_run(report, copy):
    for path in copy.iterdir():
        if path.name != "config.json":
            path.unlink()
    page, _ = report(copy)
    assert "none yet" in page.text
    assert "There is no metrics.jsonl yet" in page.text


def test_recorded_runs_have_no_weights_and_their_routing_is_shown(report):
    recorded = Path(__file__).parents[2] / "results" / "three-iterations" / "it3" / "seed0"
    page, _ = report(recorded)
    assert "conv_caps2" in table(page, "Measured in training, at step 500")["cells"]


def test_user_mistakes_are_one_line(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def error(*arguments):
        monkeypatch.setattr(sys, "argv", ["emcaps", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code
        return capsys.readouterr().err

    assert "there is no run folder nowhere" in error("nowhere")
    assert "is not a run folder" in error(tmp_path)
    mine = tmp_path / "mine.html"
    mine.write_text("<!doctype html><p>Mine</p>")
    refused = "is there and is no page of `emcaps report`, so it is not replaced: name another file"
    assert refused in error(folder / "seed0", "--out", mine)
    assert mine.read_text() == "<!doctype html><p>Mine</p>"
    assert "is a folder: name a file" in error(folder / "seed0", "--out", tmp_path)


def test_a_report_is_replaced_by_the_next_one(report, folder, tmp_path):
    out = tmp_path / "new" / "page.html"
    report(folder / "cnn", "--out", out, "--quick")
    page, _ = report(folder / "seed0", "--out", out, "--quick")
    assert page.headings[0][1] == "network on toys, mono, seed 0"
    out.write_bytes(b"")
    run_page.check_place(out, 1)  # as an empty file is


def test_too_many_runs_and_too_large_a_page_are_refused(folder, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="room for 24 runs, not 25: name fewer"):
        run_page.check_place(tmp_path / "page.html", 25)
    monkeypatch.setattr(run_page, "LARGEST_PAGE", 1000)
    record = run_page.RunRecord(folder, "name", preset("tiny"), {}, [], {}, None, (), [])
    with pytest.raises(ValueError, match="name fewer runs"):
        run_page.write_report([(record, None)], tmp_path / "page.html")


def test_seeds_share_a_colour_where_there_are_several_settings():
    def record(seed, steps):
        config = preset("tiny").override({"train.seed": seed, "train.steps": steps})
        return run_page.RunRecord(Path(f"{steps}-{seed}"), "name", config, {}, [], {}, None, (), [])

    assert run_page._styles([record(0, 5), record(0, 9), record(1, 5), record(2, 5)]) == [0, 1, 8, 16]
    assert run_page._styles([record(seed, 5) for seed in range(3)]) == [0, 1, 2]
    assert run_page._styles([record(seed, 5) for seed in range(4)] + [record(0, 9)]) == [0, 1, 2, 3, 4]


def test_the_largest_report_stays_below_its_limit():
    """24 long runs with pictures that cannot be packed: large, in colour and full of noise."""
    config = preset("tiny").override(
        {"network.iterations": 5, "data.names": [f"class {n} " + "x" * 99 for n in range(12)]}
    )
    noise = np.random.default_rng(0).integers(0, 256, (7, 224, 224, 3), np.uint8)
    names = config.data.names
    runs = []
    for number in range(24):
        rows = [
            {"step": step, "loss": 1 / step, "accuracy": 0.1234567, "learning_rate": 1e-3, "margin": 0.2}
            | {"test_accuracy": 0.7654321}
            for step in range(1, 2000)
        ]
        found = Evaluation(0.5, 2, [[7] * 12 for _ in range(12)], names=names)
        mistakes = [Mistake(noise[6], 0, 1, (0.1,) * 12, "")] * inspection.MISTAKES
        pictures = [inspection.RoutedPicture(noise[6], noise[:5], 0, 1, 0.5)] * inspection.PICTURED
        routing = inspection.Routing(8, {}, [], {}, pictures)
        record = run_page.RunRecord(Path(f"{number}"), f"run {number}", config, {}, rows, {}, None, (), [])
        runs.append((record, inspection.Inspection("weights", 1, 9, 9, found, mistakes, routing)))
    check_page(run_page.report_page(runs))  # which limits the size
    assert len(run_page.report_page(runs[:1]).encode()) > 1_000_000  # one run alone has larger pictures


def test_names_are_as_short_as_they_can_be(tmp_path):
    assert short_names([tmp_path / "a" / "seed0"]) == ["seed0"]
    assert short_names([tmp_path / "a" / "seed0", tmp_path / "b" / "seed0"]) == ["a/seed0", "b/seed0"]
