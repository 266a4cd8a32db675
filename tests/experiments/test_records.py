"""What is read back from finished runs, and what is refused."""

import json
import math
import shutil

import pytest

from emcaps.experiments.records import (
    Record,
    check_settings,
    finished,
    is_finished,
    mean_and_spread,
    read_records,
    read_routing,
)
from emcaps.experiments.runner import Training, evaluate_many_crops, train_missing
from experiments.short_rows import ROWS


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, data):
    """Row "two" with seeds 0 and 1, trained, measured and evaluated with 13 crops."""
    runs = tmp_path_factory.mktemp("recorded")
    how = Training((0, 1), device="cpu", data_folder=data)
    train_missing(ROWS, ["two"], runs, how, measured=True)
    evaluate_many_crops(ROWS, ["two"], runs, how)
    return runs


@pytest.fixture
def runs(tmp_path, recorded):
    """A copy that a test may change."""
    return shutil.copytree(recorded, tmp_path / "runs")


def test_a_record_holds_what_the_files_of_its_run_say(recorded):
    records = read_records(ROWS, "two", recorded)
    assert [record.seed for record in records] == [0, 1]
    for record in records:
        saved = json.loads((record.folder / "evaluation.json").read_text())
        assert record.accuracy == 100 * saved["test"]["accuracy"]
        assert [step for step, _, _ in record.curve] == [2, 4]
        assert 0 < record.curve[0][2] <= record.curve[1][2] == record.seconds
        assert record.curve[-1][1] == record.accuracy, "the last step counts, not the best"
        crops = json.loads((record.folder / "evaluation-13-crops.json").read_text())
        assert (crops["crops"], crops["step"]) == (13, 4)
        assert record.many_crops == 100 * crops["test"]["accuracy"]
        rows = [json.loads(line) for line in (record.folder / "metrics.jsonl").read_text().splitlines()]
        training = [(row["step"], 100 * row["accuracy"]) for row in rows if "accuracy" in row]
        assert record.training_curve == tuple(training)
        assert record.training_accuracy == training[-1][1], "of the last fifth of four steps, the last"
        routing = json.loads((record.folder / "routing.json").read_text())
        assert record.routing == tuple(routing)
        assert record.gradient_norm == pytest.approx((routing[1]["gradient_norm"] + routing[2]["gradient_norm"]) / 2)
        assert record.failed_by is None


def test_many_crops_of_another_step_do_not_count(runs):
    file = runs / "two/seed0/evaluation-13-crops.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"step": 2}))
    assert [record.many_crops is None for record in read_records(ROWS, "two", runs)] == [True, False]


def test_runs_of_other_settings_are_refused(runs):
    other = {"two": ROWS["two"].override({"train.learning_rate": 1.0})}
    with pytest.raises(ValueError, match=r"other settings than row 'two' .*: name another folder with --runs"):
        read_records(other, "two", runs)


def test_measured_runs_may_be_of_any_data_set(runs):
    elsewhere = {"two": ROWS["two"].override({"data.dataset": "smallnorb"})}
    assert len(read_records(elsewhere, "two", runs, measured=True)) == 2
    for refuses in (
        lambda: read_records(elsewhere, "two", runs),
        lambda: check_settings(elsewhere, "two", runs / "two/seed0"),
    ):
        with pytest.raises(ValueError, match="other settings than row 'two'"):
            refuses()


@pytest.mark.parametrize("measured", [False, True])
def test_a_run_that_was_copied_is_refused(runs, measured):
    shutil.copytree(runs / "two/seed0", runs / "two/seed7")
    with pytest.raises(ValueError, match="seed7 has seed 0: a copy would count twice"):
        read_records(ROWS, "two", runs, measured=measured)


@pytest.mark.parametrize("measured", [False, True])
def test_a_run_whose_metrics_were_cut_is_refused(runs, measured):
    metrics = runs / "two/seed0/metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:1]))
    with pytest.raises(ValueError, match=r"seed0 is not whole: its metrics\.jsonl .* lacks step 4"):
        read_records(ROWS, "two", runs, measured=measured)


def test_a_run_is_finished_when_it_is_evaluated_and_a_measured_one_when_its_last_step_is_measured(runs):
    folder = runs / "two/seed0"
    assert is_finished(folder, measured=False)
    assert is_finished(folder, measured=True)
    (folder / "routing.json").write_text(json.dumps(read_routing(folder)[:-1]))
    assert is_finished(folder, measured=False)
    assert not is_finished(folder, measured=True)
    assert [record.seed for record in read_records(ROWS, "two", runs, measured=True)] == [1]
    (folder / "evaluation.json").unlink()
    assert not is_finished(folder, measured=False)


def test_a_failed_run_counts_as_finished_if_runs_are_measured(runs):
    folder = runs / "two/seed0"
    (folder / "failure.json").write_text('{"step": 3}')
    (folder / "evaluation.json").unlink()
    failed, _ = read_records(ROWS, "two", runs, measured=True)
    assert (failed.seed, failed.failed_by) == (0, 3)
    assert math.isnan(failed.accuracy)
    assert [record.seed for record in read_records(ROWS, "two", runs)] == [1]


def test_damaged_measurements_are_named(runs):
    (runs / "two/seed0/routing.json").write_text('[{"loss": 1}]')
    with pytest.raises(ValueError, match=r"routing\.json is damaged .*: restore it from another copy"):
        read_records(ROWS, "two", runs)


def test_without_runs_the_message_says_how_to_get_them(tmp_path):
    with pytest.raises(ValueError, match=r"no finished runs of two in .* with --train"):
        finished(ROWS, ["two"], tmp_path)
    with pytest.raises(ValueError, match=r"a, b, c and 2 more in"):
        finished(dict.fromkeys("abcde", ROWS["one"]), list("abcde"), tmp_path)
    with pytest.raises(ValueError, match=r"there is no folder .*nothing: .* --runs; .* checkout of emcaps, .* --train"):
        finished(ROWS, ["two"], tmp_path / "nothing")


def test_an_unknown_row_is_named(tmp_path):
    with pytest.raises(ValueError, match="unknown row 'tow': did you mean 'two'"):
        read_records(ROWS, "tow", tmp_path)


def records(*accuracies):
    return [Record(None, seed, accuracy, 60.0, ()) for seed, accuracy in enumerate(accuracies)]


def test_steps_to_an_accuracy_are_those_of_the_first_evaluation_that_reached_it():
    record = Record(None, 0, 93.0, 9.0, ((10, 90.0, 3.0), (20, 95.0, 6.0), (30, 93.0, 9.0)))
    assert [record.steps_to(goal) for goal in (80.0, 91.0, 95.0, 95.1)] == [10, 20, 20, None]


def test_mean_and_spread():
    assert mean_and_spread([]) == "-"
    assert mean_and_spread(records(95.0)) == "95.00"
    assert mean_and_spread(records(95.0, 96.0, 97.0)) == "96.00 ± 1.00"
