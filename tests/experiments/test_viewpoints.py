"""Novel viewpoints: the rows, the two comparisons, errors by viewpoint, and a run of the whole on patterns."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from emcaps.config import preset
from emcaps.data.augment import augment
from emcaps.data.prepared import Examples, prepared_path, save_prepared
from emcaps.data.splits import TRAINED_VIEWPOINTS
from emcaps.experiments import viewpoint_errors, viewpoints
from emcaps.experiments.records import Record
from emcaps.experiments.runner import Training
from emcaps.experiments.viewpoint_errors import ViewpointErrors
from emcaps.nn import build_network
from emcaps.nn.summary import count_parameters
from emcaps.report.figures import new_figure
from emcaps.train import train
from emcaps.train.run_folder import VIEWPOINTS, WEIGHTS
from patterns import pattern_examples, write_patterns

SHORT = {"train.steps": 4, "train.eval_every": 2, "train.log_every": 2, "train.batch_size": 4, "data.crop": 16}
CAPSULES, CNN = "quick-azimuth-tiny-it1", "quick-azimuth-tiny-cnn"


@pytest.fixture(scope="module")
def all_views(tmp_path_factory):
    """Patterns at all 18 azimuths."""
    return write_patterns(tmp_path_factory.mktemp("all-views"), views=18)


@pytest.fixture
def short_rows(monkeypatch):
    """The rows with a few steps and small crops."""
    whole = viewpoints.rows_on

    def rows_on(dataset, **kind):
        return {row: config.override(SHORT) for row, config in whole(dataset, **kind).items()}

    monkeypatch.setattr(viewpoints, "rows_on", rows_on)


def record(familiar, novel, folder="runs/x/seed0"):
    """A run with these errors at its evaluations."""
    steps = range(10, 10 * len(familiar) + 1, 10)
    return Record(
        Path(folder),
        0,
        100 - novel[-1],
        1.0,
        tuple((step, 100 - error, 1.0) for step, error in zip(steps, novel, strict=True)),
        familiar_curve=tuple((step, 100 - error) for step, error in zip(steps, familiar, strict=True)),
    )


@pytest.mark.parametrize("dataset", ["smallnorb", "toys"])
def test_rows_of_one_group_differ_in_the_network_and_not_in_the_images(dataset):
    rows = viewpoints.rows_on(dataset)
    assert len(rows) == {"smallnorb": 24, "toys": 10}[dataset]
    for row, config in rows.items():
        recipe, split = viewpoints.group_of(row)
        others = [other for name, other in rows.items() if viewpoints.group_of(name) == (recipe, split)]
        assert config.data.dataset == dataset
        assert config.data.split == split
        assert {other.data for other in others} == {config.data}
        assert {other.train.steps for other in others} == {config.train.steps}
        assert config.train.steps % config.train.eval_every == 0
    for row, config in viewpoints.rows_on(dataset, validation=True).items():
        assert config.data.split == f"{viewpoints.group_of(row)[1]}-validation"
        assert config.override({"data.split": rows[row].data.split}) == rows[row]


@pytest.mark.parametrize(("dataset", "capsules", "cnn"), [("smallnorb", "small", "small"), ("toys", "tiny", "tiny")])
def test_the_matched_cnn_has_as_many_parameters_to_two_percent(dataset, capsules, cnn):
    networks = viewpoints.NETWORKS[dataset]
    ours, theirs = (
        count_parameters(build_network(networks[name].network, 2, 32)) for name in (f"{capsules}-it2", f"{cnn}-cnn")
    )
    assert theirs == pytest.approx(ours, rel=0.02)
    assert ours == count_parameters(build_network(preset(capsules).network, 2, 32))


def test_capsules_that_end_better_on_familiar_views_are_stopped_where_the_cnn_ended():
    capsules = [record([9, 5, 3, 1], [40, 30, 20, 10]), record([9, 4, 4.5, 3], [41, 31, 21, 11])]
    cnn = [record([8, 6, 4], [50, 40, 30]), record([8, 6, 5], [50, 40, 33])]
    both = viewpoints.match(capsules, cnn)
    assert both.stopped == "capsules"
    assert both.capsules == [(3, 20), (4, 31)]  # the first evaluations with 4.5 or less, not the best ones
    assert both.cnn == [(4, 30), (5, 33)]


def test_a_cnn_that_ends_better_on_familiar_views_is_stopped_where_the_capsules_ended():
    both = viewpoints.match([record([9, 5], [40, 30])], [record([8, 4, 2], [50, 40, 30]), record([9, 6], [50, 48])])
    assert both.stopped == "CNN"
    assert both.capsules == [(5, 30)]
    assert both.cnn == [(4, 40)], "the run that never got there is left out"


def test_the_table_says_how_many_runs_got_there():
    rows = viewpoints.rows_on("toys")
    found = {
        CAPSULES: [record([9, 5], [40, 30])],
        CNN: [record([8, 4, 2], [50, 40, 30]), record([9, 6], [50, 48])],
        "quick-elevation-cnn": [record([1, 1], [2, 2])],
    }
    assert viewpoints.matched_rows(found, rows) == [
        [CAPSULES, "tiny-cnn", "CNN", "1 of 2", "5.0", "4.0", "30.0", "40.0", "-10.0"],
    ]
    assert [row[0] for row in viewpoints.last_step_rows(found, rows)] == list(found)
    assert f"[{CAPSULES}](runs/{CAPSULES}) | 18,382 | 1 | 5.0 | 30.0 |" in viewpoints.markdown_last_step(
        found, rows, "runs/"
    )


def test_the_difference_has_the_standard_error_of_both_means():
    found = {
        CAPSULES: [record([9, 5], [40, novel]) for novel in (10, 12, 14)],
        CNN: [record([8, 6], [50, novel]) for novel in (20, 24)],
    }
    (cells,) = viewpoints.matched_rows(found, viewpoints.rows_on("toys"))
    assert cells[2:4] == ["capsules", "3 of 3"]
    assert cells[-1] == "-10.0 ± 2.3"  # 12 - 22, and the root of 4 / 3 + 8 / 2


@pytest.mark.parametrize(
    ("split", "tested", "expected"),
    [
        ("azimuth", range(0, 360, 20), {340: 0, 60: 20, 180: 120, 200: 100, 280: 20}),
        ("azimuth", range(0, 360, 40), {320: 0, 80: 40, 200: 120, 280: 40}),  # toys --quick has neither 300 nor 340
        ("azimuth-validation", range(0, 360, 20), {20: 0, 40: 20, 300: 20}),
        ("elevation", range(30, 75, 5), {40: 0, 70: 30}),
        ("elevation", (30, 50, 70), {30: 0, 50: 20, 70: 40}),
        ("elevation-validation", (30, 35, 40), {35: 0, 40: 5}),
    ],
)
def test_the_distance_is_that_of_the_nearest_view_that_was_trained(split, tested, expected):
    kind = split.removesuffix("-validation")
    views = {"azimuth": 0, "elevation": 30, "images": 1, "wrong": 0}
    found = [ViewpointErrors(**(views | {kind: angle})) for angle in tested]
    trained = viewpoint_errors.trained_angles(found, split)
    assert {angle: viewpoint_errors.distance(kind, angle, trained) for angle in expected} == expected


def test_errors_are_counted_by_viewpoint_over_both_cameras():
    labels = np.array([(0, 1, 0, 0, 0), (1, 1, 0, 0, 0), (2, 1, 8, 34, 0)], np.int16)
    examples = Examples(np.zeros((3, 2, 48, 48), np.uint8), *labels.T)
    found = viewpoint_errors.count_errors(np.array([0, 0, 0, 1, 2, 4]), examples)  # mono: left and right in turn
    assert found == [ViewpointErrors(30, 0, 4, 1), ViewpointErrors(70, 340, 2, 1)]
    assert viewpoint_errors.error_by_angle(found, "azimuth") == {0: 25, 340: 50}
    assert viewpoint_errors.error_by_distance(found, "azimuth") == {0: pytest.approx(100 / 3)}
    assert viewpoint_errors.error_by_distance(found, "elevation") == {0: 25, 40: 50}


def test_what_was_counted_is_read_again_and_a_damaged_file_is_named(tmp_path):
    found = [ViewpointErrors(30, 20, 12, 3), ViewpointErrors(30, 0, 12, 0)]
    viewpoint_errors.write_viewpoints(tmp_path / VIEWPOINTS, found, 7)
    assert viewpoint_errors.read_viewpoints(tmp_path) == sorted(found)
    text = (tmp_path / VIEWPOINTS).read_text()
    (tmp_path / VIEWPOINTS).write_text(text.replace('"elevation 30, azimuth 20": 3', '"elevation 30, azimuth 20": 13'))
    with pytest.raises(ValueError, match=r"viewpoints\.json is damaged \(more errors than images\): restore it"):
        viewpoint_errors.read_viewpoints(tmp_path)


@pytest.mark.parametrize("validation", [False, True], ids=["novel", "validation"])
def test_the_command_trains_measures_and_draws(all_views, tmp_path, short_rows, capsys, validation):
    console = Console(file=io.StringIO(), width=120)
    how = Training([0], device="cpu", data_folder=all_views)
    runs = tmp_path / "runs"
    viewpoints.run_viewpoints(
        runs, console, "toys", [CAPSULES, CNN], validation=validation, train=how, figures=tmp_path
    )
    assert "| tiny-cnn |" in capsys.readouterr().out
    assert (tmp_path / "viewpoints-quick-azimuth.png").stat().st_size > 10_000
    for row in (CAPSULES, CNN):
        counted = viewpoint_errors.read_viewpoints(runs / row / "seed0")
        (one,) = viewpoints.finished(viewpoints.rows_on("toys", validation=validation), [row], runs)[row]
        last = viewpoints.errors_of(one)[-1]
        split = "azimuth-validation" if validation else "azimuth"
        by_kind = {True: [0, 0], False: [0, 0]}
        for here in counted:
            both = by_kind[here.azimuth in viewpoint_errors.trained_angles(counted, split)]
            both[0] += here.wrong
            both[1] += here.images
        # The counts add up to the two errors that training itself evaluated.
        assert 100 * by_kind[True][0] / by_kind[True][1] == pytest.approx(last.familiar)
        assert 100 * by_kind[False][0] / by_kind[False][1] == pytest.approx(last.novel)
        assert len(one.familiar_curve) == len(one.curve) == 2
    # Recorded copies have no weights, and are shown and drawn again as they are.
    for weights in runs.rglob("*.safetensors"):
        weights.unlink()
    assert not list(runs.rglob(WEIGHTS))
    viewpoints.run_viewpoints(
        runs, console, "toys", [CAPSULES, CNN], validation=validation, train=how, figures=tmp_path
    )


def test_errors_while_training_are_means_over_the_runs():
    runs = [record([9.0, 4.0], [30.0, 20.0]), record([7.0, 2.0], [20.0, 10.0])]
    found = viewpoint_errors.mean_errors(runs)
    assert found == [pytest.approx((8.0, 25.0)), pytest.approx((3.0, 15.0))]


def test_a_picture_shows_novel_errors_over_familiar_ones_and_no_zero():
    runs = [record([9.0, 0.0], [30.0, 20.0]), record([7.0, 0.0], [20.0, 0.0])]
    assert viewpoint_errors.while_training(runs) == ([8.0, viewpoint_errors.SMALLEST], [25.0, 10.0])
    assert viewpoint_errors.while_training([record([4.0], [0.0])]) == ([4.0], [viewpoint_errors.SMALLEST])


def test_a_picture_shows_the_runs_alone_that_recorded_their_viewpoints(all_views, tmp_path, short_rows, monkeypatch):
    how = Training([0, 1], device="cpu", data_folder=all_views)
    viewpoints.run_viewpoints(tmp_path, Console(file=io.StringIO()), "toys", [CNN], train=how)
    (tmp_path / CNN / "seed1" / VIEWPOINTS).unlink()
    figures = []
    monkeypatch.setattr(viewpoint_errors, "new_figure", lambda size: figures.append(new_figure(size)) or figures[-1])
    whole = viewpoints.finished(viewpoints.rows_on("toys"), [CNN], tmp_path)
    curves = {0: ([9, 4], [30, 20]), 1: ([7, 2], [20, 10])}
    found = {CNN: [record(*curves[run.seed], run.folder) for run in whole[CNN]]}
    assert viewpoint_errors.draw_viewpoints(found, tmp_path / "one.png")
    right = figures[0].axes[2]
    assert right.get_legend_handles_labels()[1] == [f"{CNN} (n = 1)"]
    assert (right.get_xlabel().partition(",")[0], right.get_ylabel().partition(",")[0]) == ("familiar", "novel")
    line, dot = ([tuple(point) for point in shown.get_xydata()] for shown in right.lines)
    assert (line, dot) == ([(9, 30), (4, 20)], [(4, 20)])


def test_bars_are_drawn_for_elevations_and_one_picture_shows_one_split(all_views, tmp_path, short_rows):
    names = ["quick-elevation-tiny-cnn", CNN]
    how = Training([0], device="cpu", data_folder=all_views)
    viewpoints.run_viewpoints(tmp_path / "runs", Console(file=io.StringIO()), "toys", names, train=how)
    found = viewpoints.finished(viewpoints.rows_on("toys"), names, tmp_path / "runs")
    assert viewpoint_errors.draw_viewpoints({names[0]: found[names[0]]}, tmp_path / "e.png")
    with pytest.raises(ValueError, match="a picture shows one split, not azimuth and elevation"):
        viewpoint_errors.draw_viewpoints(found, tmp_path / "both.png")
    (tmp_path / "runs" / names[0] / "seed0" / VIEWPOINTS).unlink()
    assert not viewpoint_errors.draw_viewpoints({names[0]: found[names[0]]}, tmp_path / "none.png")


def test_an_unknown_row_is_named(tmp_path):
    with pytest.raises(ValueError, match="unknown row 'best-azimut-cnn': did you mean 'best-azimuth-cnn'"):
        viewpoints.run_viewpoints(
            tmp_path, Console(file=io.StringIO()), "smallnorb", ["best-azimut-cnn"], train=Training([0])
        )


@pytest.mark.parametrize("kind", ["azimuth", "elevation"])
def test_a_step_draws_its_images_and_what_it_splices_from_trained_viewpoints_alone(kind, tmp_path, monkeypatch):
    """Training images at trained viewpoints have a white pixel in the corner, all others a black one."""
    parts = {part: pattern_examples((4, 6, 7), 18, seed=1) for part in ("train", "test")}
    for part, examples in parts.items():
        trained = np.isin(getattr(examples, kind), TRAINED_VIEWPOINTS[kind]) & (part == "train")
        examples.images[:, :, 0, 0] = np.where(trained, 255, 0)[:, None]
    save_prepared({prepared_path("toys", part, tmp_path): examples for part, examples in parts.items()})
    drawn = []

    def watched(images, config, generator, others=None):
        drawn.extend([images[..., 0, 0], others[..., 0, 0]])
        return augment(images, config, generator, others)

    monkeypatch.setattr("emcaps.train.batch.augment", watched)
    mixed = {"data.splice": 1.0, "train.mixup": 0.5, "train.batch_size": 30}
    config = viewpoints.rows_on("toys")[f"quick-{kind}-tiny-cnn"].override(SHORT | mixed)
    train(config, tmp_path / "run", device="cpu", data_folder=tmp_path)
    assert len(drawn) == 2 * config.train.steps
    assert all((corner == 255).all() for corner in drawn)
