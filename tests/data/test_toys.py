"""The rendered toys: their plan and labels, that images depend on labels and seed alone, and that they show toys."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from emcaps.data.contact_sheet import contact_sheet
from emcaps.data.toys import TEST_INSTANCES, TRAIN_INSTANCES, make_toys, render_instance
from emcaps.data.toys.rays import cast, direction, look, normals, sample_positions
from emcaps.data.toys.render import pose_scene
from emcaps.data.toys.shapes import Solid, box, cut, cylinder, ellipsoid, frustum, hull, limb, transformed, turned
from emcaps.data.toys.workers import call_in_processes

ONE_VIEW = {"elevations": [2], "azimuths": [6], "lightings": [1]}


@pytest.fixture(scope="module")
def every_toy() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return make_toys(elevations=[0, 8], azimuths=[4], lightings=[0, 3], workers=1)


def distance_inside(solid: Solid, points: np.ndarray) -> np.ndarray:
    """Below zero inside the solid, by evaluating its definition."""
    homogeneous = np.column_stack([points, np.ones(len(points))])
    values = [np.einsum("ni,ij,nj->n", homogeneous, solid.quadric, homogeneous)]
    values += [homogeneous @ plane for plane in solid.planes]
    return np.max(values, axis=0)


SOLIDS = {
    "ellipsoid": [ellipsoid((0.1, 0.2, 0.5), (0.8, 0.3, 0.2), yaw=30, pitch=20, roll=10)],
    "cut ellipsoid": [cut(ellipsoid((0, 0, 0.4), (0.8, 0.5, 0.4)), (0, 0, 0.4), (0.3, 0, 1))],
    "box": [box((0, 0, 0.5), (1.0, 0.6, 0.4))],
    "chamfered box": turned([box((0, 0, 0.5), (1.0, 0.6, 0.4), chamfer=0.1)], (0, 0, 0), yaw=25, pitch=-10),
    "hull": [hull([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)])],
    "cylinder": [cylinder((-0.5, 0, 0.3), (0.5, 0.2, 0.5), 0.25)],
    "narrowing cone": [frustum((0, 0, 0), (0, 0, 1), 0.6, 0.1)],
    "flat cone, seen from within its opening": [frustum((0, 0, 0), (0, 0, 0.2), 0.8, 0.1)],
    "flat cone upside down": [frustum((0, 0, 0.2), (0, 0, 0), 0.8, 0.1)],
}


@pytest.mark.parametrize("name", SOLIDS)
@pytest.mark.parametrize(("heading", "height"), [(20, 35), (200, 70), (-75, 88)])
def test_cast_meets_the_solid_where_marching_along_the_ray_does(name: str, heading: float, height: float) -> None:
    view = look(-direction(heading, height))
    scene = pose_scene(SOLIDS[name], 1.0)
    (solid,) = scene.solids
    size, steps = 20, np.arange(-2, 2, 0.005)
    depth, surface = cast(scene, view, size, reach=1.0)
    positions = sample_positions(size, 1.0).astype(np.float64)
    hits = 0
    for row in range(size):
        for column in range(size):
            start = positions[column] * view.right - positions[row] * view.up
            inside = distance_inside(solid, start + steps[:, None] * view.forward) <= 0
            if inside.sum() >= 3:  # fewer would be a grazing ray
                hits += 1
                assert abs(depth[row, column] - steps[inside.argmax()]) < 0.007
            if surface[row, column] < 0:
                continue
            point = start + depth[row, column] * view.forward
            assert abs(distance_inside(solid, point[None])) < 1e-3
            parts = [np.array([value], np.float32) for value in point]
            normal = np.array(normals(scene, surface[row, column : column + 1], parts))[:, 0]
            assert np.linalg.norm(normal) == pytest.approx(1, abs=1e-4)
            assert normal @ view.forward < 1e-3  # what we see faces us
    assert hits > 10
    assert np.array_equal(surface >= 0, np.isfinite(depth))


def test_limb_with_one_ball_inside_the_other_is_just_the_balls() -> None:
    assert len(limb([(0, 0, 0), (0.1, 0, 0)], [0.5, 0.2])) == 2
    assert len(limb([(0, 0, 0), (1, 0, 0)], [0.5, 0.2])) == 3


def test_transformed_moves_quadric_planes_and_bounds_alike() -> None:
    matrix, offset = np.array([[0.0, -2.0, 0.0], [1.0, 0.0, 0.5], [0.0, 0.0, 3.0]]), np.array([1.0, 2.0, 3.0])
    solid = cylinder((0, 0, 0), (1, 0, 0), 0.5)
    points = np.random.default_rng(0).uniform(-1, 2, (500, 3))
    before = distance_inside(solid, points) <= 0
    after = distance_inside(transformed(solid, matrix, offset), points @ matrix.T + offset) <= 0
    assert before.any()
    assert np.array_equal(before, after)


def test_render_instance_shapes_labels_and_order() -> None:
    images, labels = render_instance(3, 7, elevations=[8, 0], azimuths=[34, 2, 10], lightings=[5, 1])
    assert images.shape == (12, 2, 96, 96)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int16
    wanted = [(3, 7, e, a, lamp) for e in (8, 0) for a in (34, 2, 10) for lamp in (5, 1)]
    assert [tuple(row) for row in labels.tolist()] == wanted


def test_render_instance_has_all_views_by_default() -> None:
    images, labels = render_instance(4, 0, azimuths=[0], size=48)
    assert images.shape == (9 * 6, 2, 48, 48)
    assert np.array_equal(np.unique(labels[:, 2]), np.arange(9))
    assert np.array_equal(np.unique(labels[:, 4]), np.arange(6))


def test_render_instance_of_48_is_the_area_mean_of_96() -> None:
    full, _ = render_instance(1, 2, **ONE_VIEW)
    half, _ = render_instance(1, 2, **ONE_VIEW, size=48)
    mean = full.reshape(1, 2, 48, 2, 48, 2).mean(axis=(3, 5))
    assert np.array_equal(half, np.floor(mean + 0.5).astype(np.uint8))


def test_render_instance_of_a_subset_equals_those_rows_of_more() -> None:
    more, labels = render_instance(0, 4, elevations=[1, 5], azimuths=[0, 12, 30], lightings=range(6))
    fewer, fewer_labels = render_instance(0, 4, elevations=[5], azimuths=[30, 12], lightings=[4, 2])
    for image, label in zip(fewer, fewer_labels, strict=True):
        (row,) = np.flatnonzero((labels == label).all(axis=1))
        assert np.array_equal(image, more[row])


@pytest.mark.parametrize("category", range(5))
def test_render_instance_changes_with_everything(category: int) -> None:
    images, _ = render_instance(category, 5, elevations=[0, 1], azimuths=[0, 2], lightings=[0, 1])
    assert len({image.tobytes() for image in images}) == len(images)
    assert not any(np.array_equal(left, right) for left, right in images)
    other_seed, _ = render_instance(category, 5, seed=1, **ONE_VIEW)
    same_seed, _ = render_instance(category, 5, seed=0, **ONE_VIEW)
    assert not np.array_equal(other_seed, same_seed)


def test_the_two_cameras_see_nearly_the_same() -> None:
    images, _ = render_instance(4, 0, **ONE_VIEW)
    left, right = images[0].astype(float)
    apart = np.abs(left - right).mean()
    assert 0.2 < apart < 20


def test_make_toys_splits_instances_as_smallnorb(every_toy: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    for split, instances in (("train", TRAIN_INSTANCES), ("test", TEST_INSTANCES)):
        images, labels = every_toy[split]
        assert images.shape == (5 * 5 * 4, 2, 48, 48)
        wanted = [
            (c, k, e, a, lamp) for c in range(5) for k in instances for e in (0, 8) for a in (4,) for lamp in (0, 3)
        ]
        assert [tuple(row) for row in labels.tolist()] == wanted
    image, _ = render_instance(2, 6, elevations=[8], azimuths=[4], lightings=[3], size=48)
    images, labels = every_toy["train"]
    (row,) = np.flatnonzero((labels == (2, 6, 8, 4, 3)).all(axis=1))
    assert np.array_equal(images[row], image[0])


def test_every_toy_is_in_the_frame_on_a_plain_ground(every_toy: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    for images, labels in every_toy.values():
        for pair, label in zip(images, labels, strict=True):
            for image in pair.astype(float):
                edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
                ground = np.median(edge)
                assert np.ptp(np.quantile(edge, [0.1, 0.9])) < 12, label  # a shadow may reach the edge, a toy does not
                assert (np.abs(edge - ground) < 12).mean() > 0.9, label
                assert (image < ground - 40).sum() > 20, label  # the shadow, and the toy's dark side
                share = (np.abs(image - ground) > 15).mean()
                assert 0.04 < share < 0.5, (label, share)


@pytest.mark.parametrize("category", range(5))
def test_instances_of_a_category_differ(every_toy: dict[str, tuple[np.ndarray, np.ndarray]], category: int) -> None:
    views = []
    for images, labels in every_toy.values():
        chosen = (labels[:, 0] == category) & (labels[:, 2:] == (0, 4, 0)).all(axis=1)
        views += list(images[chosen][:, 0].astype(float))
    assert len(views) == 10
    for n, view in enumerate(views):
        assert all(np.abs(view - other).mean() > 2 for other in views[:n])


def test_make_toys_does_not_depend_on_workers() -> None:
    plan = {"elevations": [3], "azimuths": [8], "lightings": [2, 5], "instances": [5, 4]}
    told: list[tuple[int, int]] = []
    alone = make_toys(**plan, workers=1)
    together = make_toys(**plan, workers=2, on_progress=lambda done, total: told.append((done, total)))
    assert told == [(n, 10) for n in range(1, 11)]
    for split in ("train", "test"):
        assert alone[split][0].shape == (10, 2, 48, 48)
        for one, other in zip(alone[split], together[split], strict=True):
            assert np.array_equal(one, other)


def test_make_toys_of_training_instances_only_has_an_empty_test_split() -> None:
    made = make_toys(elevations=[0], azimuths=[0], lightings=[0], instances=[4])
    assert made["train"][0].shape == (5, 2, 48, 48)
    assert made["test"][0].shape == (0, 2, 48, 48)
    assert made["test"][1].shape == (0, 5)


def test_make_toys_works_from_a_script_without_a_main_guard(tmp_path: os.PathLike[str]) -> None:
    script = os.path.join(tmp_path, "script.py")
    with open(script, "w") as file:
        file.write(
            "from emcaps.data.toys import make_toys\n"
            "made = make_toys(elevations=[0], azimuths=[0], lightings=[0], instances=[4], workers=2)\n"
            "print('made', made['train'][0].shape)\n"
        )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "made (5, 2, 48, 48)\n"


def test_call_in_processes_says_that_a_process_died() -> None:
    with pytest.raises(ChildProcessError, match=r"exit status 3.*--quick"):
        list(call_in_processes(os._exit, [{"status": 3}], workers=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"category": 7}, r"category 7 does not exist: it must be 0 to 4: animal, human"),
        ({"instance": 12}, r"instance 12 .* 0 to 9"),
        ({"elevations": [9]}, r"elevation 9 .* 0 to 8, for 30 to 70 degrees"),
        ({"azimuths": [0, 3]}, r"azimuth 3 .* even, 0 to 34"),
        ({"lightings": [-1]}, r"lighting -1 .* 0 to 5"),
        ({"lightings": [1, 1]}, r"each lighting can be asked for once, not \[1, 1\]"),
        ({"size": 50}, r"is 96, or 48 .*, not 50"),
        ({"seed": -1}, r"seed must be zero or more, not -1"),
    ],
)
def test_render_instance_refuses(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render_instance(**{"category": 0, "instance": 0, **arguments})  # type: ignore[arg-type]


def test_make_toys_refuses() -> None:
    with pytest.raises(ValueError, match="instance 10 does not exist"):
        make_toys(instances=[10])
    with pytest.raises(ValueError, match="workers must be at least 1, not 0"):
        make_toys(workers=0)
    with pytest.raises(ValueError, match="azimuth 35"):
        make_toys(azimuths=[35])


def test_contact_sheet_fills_rows_and_leaves_the_rest_background() -> None:
    images = np.arange(3, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 5), np.uint8)
    sheet = contact_sheet(images, 2, gap=1, background=9)
    assert sheet.shape == (9, 11)
    assert sheet.dtype == np.uint8
    assert (sheet[:4, :5] == 0).all()
    assert (sheet[:4, 6:] == 1).all()
    assert (sheet[5:, :5] == 2).all()
    assert (sheet[5:, 6:] == 9).all()
    assert (sheet[4] == 9).all()
    assert (sheet[:, 5] == 9).all()


def test_contact_sheet_refuses() -> None:
    images = np.zeros((2, 2, 4, 4), np.uint8)
    with pytest.raises(ValueError, match=r"choose one camera, as in images\[:, 0\]"):
        contact_sheet(images, 2)
    with pytest.raises(ValueError, match="at least 1 column, not 0"):
        contact_sheet(images[0], 0)
    with pytest.raises(ValueError, match=r"gap .* not -1"):
        contact_sheet(images[0], 1, gap=-1)
    with pytest.raises(ValueError, match="0 to 255, not 300"):
        contact_sheet(images[0], 1, background=300)
