from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from emcaps.config import DataConfig
from emcaps.data.combine import find_counterparts
from emcaps.data.prepared import Examples, prepared_path, save_prepared
from emcaps.data.splits import Split, load_split, load_tested, make_split, trained_viewpoints
from emcaps.data.tensors import to_tensors
from own_images import bars

MakeExamples = Callable[..., Examples]
AZIMUTHS = range(0, 36, 2)


def same(left: Examples, right: Examples) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def rows(examples: Examples, chosen: list[int]) -> Examples:
    return examples.select(np.array(chosen))


def test_make_split_standard_is_the_two_parts(make_examples: MakeExamples) -> None:
    train, test = make_examples(5), make_examples(6, seed=1)
    split = make_split(train, test, DataConfig(split="standard"))
    assert same(split.train, train)
    assert same(split.test, test)
    assert split.familiar is None


@pytest.mark.parametrize(
    ("name", "codes", "trained"),
    [("azimuth", list(AZIMUTHS), [300, 320, 340, 0, 20, 40]), ("elevation", list(range(9)), [30, 35, 40])],
)
def test_make_split_novel_viewpoints(
    make_examples: MakeExamples, name: str, codes: list[int], trained: list[int]
) -> None:
    train = make_examples(3 * len(codes), **{name: codes * 3})
    test = make_examples(2 * len(codes), seed=1, **{name: codes * 2})
    degrees = {"azimuth": lambda code: 10 * code, "elevation": lambda code: 30 + 5 * code}[name]
    split = make_split(train, test, DataConfig(split=name))
    seen = [k for k, code in enumerate(codes * 3) if degrees(code) in trained]
    familiar = [k for k, code in enumerate(codes * 2) if degrees(code) in trained]
    novel = [k for k, code in enumerate(codes * 2) if degrees(code) not in trained]
    assert len(seen) == len(codes)  # a third of the viewpoints, three times each
    assert same(split.train, rows(train, seen))
    assert same(split.test, rows(test, novel))
    assert split.familiar is not None
    assert same(split.familiar, rows(test, familiar))


@pytest.mark.parametrize("fold", range(5))
def test_make_split_validation_holds_out_one_instance_of_each_category(make_examples: MakeExamples, fold: int) -> None:
    numbers = {0: [9, 4, 6, 7, 8], 1: [0, 1, 2, 3, 5]}  # categories may number their instances differently
    category, instance = np.array([(c, i) for c, many in numbers.items() for i in many for _ in range(2)]).T
    train = make_examples(20, category=category, instance=instance)
    split = make_split(train, None, DataConfig(split="validation", fold=fold))
    wanted = [sorted(numbers[c])[fold] == i for c, i in zip(category, instance, strict=True)]
    assert same(split.test, rows(train, [k for k in range(20) if wanted[k]]))
    assert same(split.train, rows(train, [k for k in range(20) if not wanted[k]]))
    assert len(split.test.category) == 4
    assert split.familiar is None


@pytest.mark.parametrize(
    ("name", "kept", "held_out"),
    [("azimuth", [32, 34, 0, 2], [30, 4]), ("elevation", [0, 1], [2])],
)
def test_validation_of_novel_viewpoints_sees_trained_viewpoints_alone(
    make_examples: MakeExamples, name: str, kept: list[int], held_out: list[int]
) -> None:
    codes = list(AZIMUTHS) if name == "azimuth" else list(range(9))
    category, instance, code = np.array([(c, i, k) for c in (0, 1) for i in (6, 7, 9) for k in codes]).T
    train = make_examples(len(code), category=category, instance=instance, **{name: code})
    split = make_split(train, None, DataConfig(split=f"{name}-validation", fold=1))
    assert split.familiar is not None
    parts = {"train": ([6, 9], kept), "test": ([7], held_out), "familiar": ([7], kept)}
    for part, (instances, views) in parts.items():
        wanted = np.flatnonzero(np.isin(instance, instances) & np.isin(code, views))
        assert same(getattr(split, part), train.select(wanted)), part
    seen = set(kept + held_out)
    whole = make_split(train, make_examples(len(code), **{name: code}), DataConfig(split=name))
    assert seen == set(getattr(whole.train, name).tolist()), "nothing but what training on the split itself sees"
    assert trained_viewpoints(f"{name}-validation") == tuple(kept)


@pytest.mark.parametrize("name", ["azimuth-validation", "elevation-validation"])
def test_validation_of_novel_viewpoints_never_opens_the_test_part(
    tmp_path: Path, make_examples: MakeExamples, name: str
) -> None:
    category, instance, code = np.array([(c, i, k) for c in (0, 1) for i in (6, 7) for k in range(18)]).T
    train = make_examples(len(code), category=category, instance=instance, azimuth=2 * code, elevation=code % 9)
    save_prepared({prepared_path("toys", "train", tmp_path): train})  # and no test part at all
    config = DataConfig(split=name)
    assert list(load_split(config, tmp_path).tested) == list(load_tested(config, tmp_path)) == ["test", "familiar"]


def test_a_split_without_novel_viewpoints_says_so() -> None:
    with pytest.raises(ValueError, match="split 'standard' has no novel viewpoints: choose azimuth or elevation"):
        trained_viewpoints("standard")


@pytest.mark.parametrize("name", ["azimuth", "elevation", "azimuth-validation", "elevation-validation"])
@pytest.mark.parametrize("view", ["mono", "stereo"])
def test_splicing_draws_from_the_training_images_of_the_split_alone(
    make_examples: MakeExamples, name: str, view: str
) -> None:
    """Every image of every part is told by its first pixel, and those that a step can draw are all of the split."""
    labels = [(c, i, k % 9, 2 * k) for c in range(5) for i in (4, 6, 7) for k in range(18)]
    category, instance, elevation, azimuth = np.array(labels).T
    lighting = np.zeros(len(labels), int)
    parts = [
        make_examples(
            len(labels), category=category, instance=instance, elevation=elevation, azimuth=azimuth, lighting=lighting
        )
        for _ in range(2)
    ]
    kind = name.removesuffix("-validation")
    for number, examples in enumerate(parts):
        seen = number == 0 and np.isin(getattr(examples, kind), trained_viewpoints(name))
        examples.images[:, :, 0, 0] = 255 * np.broadcast_to(seen, len(labels))[:, None]
    config = DataConfig(split=name, splice=1.0, view=view)
    split = make_split(*parts, config)
    counterparts = find_counterparts(split.train, view, "cpu")
    images, _ = to_tensors(split.train, view, "cpu")
    assert (images[:, :, 0, 0] == 255).all(), "a step draws its batch, and a mixture's neighbours, from these"
    everyone = torch.arange(len(images)).repeat(20)
    drawn = counterparts.draw(everyone, torch.Generator().manual_seed(0))
    assert len(drawn.unique()) == len(images)
    assert (images[drawn][:, :, 0, 0] == 255).all()


def test_make_split_validation_ignores_the_test_part(make_examples: MakeExamples) -> None:
    train, test = make_examples(4, category=[0, 0, 1, 1], instance=[1, 2, 1, 2]), make_examples(6, seed=1)
    config = DataConfig(split="validation")
    alone, both = make_split(train, None, config), make_split(train, test, config)
    assert same(alone.train, both.train)
    assert same(alone.test, both.test)


@pytest.mark.parametrize(
    ("config", "train", "test", "message"),
    [
        (DataConfig(split="azimuth"), {"azimuth": [6, 8]}, {"azimuth": [0, 8]}, r"'azimuth' leaves no train examples"),
        (
            DataConfig(split="azimuth"),
            {"azimuth": [0, 8]},
            {"azimuth": [0, 2]},
            r"leaves no test examples: .*toys data lack",
        ),
        (
            DataConfig(split="elevation"),
            {"elevation": [0, 8]},
            {"elevation": [3, 8]},
            r"no familiar .*choose split 'standard'",
        ),
        (
            DataConfig(split="validation", fold=2),
            {"category": [4, 4], "instance": [0, 1]},
            {},
            r"fold 2 needs at least 3 training instances of each category, and car has 2: choose a smaller fold",
        ),
        (
            DataConfig(split="standard", fold=5),
            {"category": [1, 1], "instance": [0, 1]},
            {},
            r"fold 5 needs at least 6 training instances of each category, and human has 2: choose a smaller fold",
        ),
        (
            DataConfig(split="validation", fold=0),
            {"category": [0, 0], "instance": [7, 7]},
            {},
            r"needs at least 2 training instances of each category, and animal has 1",
        ),
    ],
)
def test_make_split_refuses_what_leaves_nothing(
    make_examples: MakeExamples, config: DataConfig, train: dict, test: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_split(make_examples(2, **train), make_examples(2, **test), config)


def test_make_split_refuses_empty_parts(make_examples: MakeExamples) -> None:
    with pytest.raises(ValueError, match=r"'standard' leaves no test examples"):
        make_split(make_examples(2), make_examples(0), DataConfig(split="standard"))
    with pytest.raises(ValueError, match=r"'validation' leaves no train examples"):
        make_split(make_examples(0), None, DataConfig(split="validation"))


def test_make_split_without_the_test_part_it_needs(make_examples: MakeExamples) -> None:
    with pytest.raises(ValueError, match=r"split 'azimuth' needs the test part.*or use 'validation'"):
        make_split(make_examples(2), None, DataConfig(split="azimuth"))


@pytest.mark.parametrize("dataset", ["toys", "smallnorb"])
def test_load_split_reads_the_prepared_parts(tmp_path: Path, make_examples: MakeExamples, dataset: str) -> None:
    train, test = make_examples(36, azimuth=list(AZIMUTHS) * 2), make_examples(18, seed=1, azimuth=list(AZIMUTHS))
    save_prepared({prepared_path(dataset, "train", tmp_path): train, prepared_path(dataset, "test", tmp_path): test})
    config = DataConfig(dataset=dataset, split="azimuth")
    split, expected = load_split(config, tmp_path), make_split(train, test, config)
    assert isinstance(split, Split)
    for name in ("train", "test", "familiar"):
        assert same(getattr(split, name), getattr(expected, name)), name


def test_load_split_validation_never_opens_the_test_part(tmp_path: Path, make_examples: MakeExamples) -> None:
    train = make_examples(2, category=[0, 0], instance=[4, 6])
    save_prepared({prepared_path("toys", "train", tmp_path): train})
    prepared_path("toys", "test", tmp_path).write_bytes(b"damaged")
    split = load_split(DataConfig(split="validation"), tmp_path)
    assert split.test.instance.tolist() == [4]
    with pytest.raises(ValueError, match=r"toys48-test\.npz"):
        load_split(DataConfig(split="standard"), tmp_path)


def test_load_split_without_data_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMCAPS_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"smallnorb48-train\.npz is not there: .*`emcaps data get`"):
        load_split(DataConfig(dataset="smallnorb"))


@pytest.mark.parametrize("name", ["standard", "azimuth", "elevation", "validation"])
def test_load_tested_is_what_the_split_tests_and_reads_one_part_alone(
    tmp_path: Path, make_examples: MakeExamples, name: str
) -> None:
    train = make_examples(50, category=[0] * 50, instance=[4, 6] * 25)
    parts = {"train": train, "test": make_examples(50, seed=1)}
    config = DataConfig(split=name)
    expected = make_split(parts["train"], parts["test"], config)
    needed = "train" if name == "validation" else "test"
    save_prepared({prepared_path("toys", needed, tmp_path): parts[needed]})
    found = load_tested(config, tmp_path)
    novel = name in ("azimuth", "elevation")
    assert list(found) == list(expected.tested) == (["test", "familiar"] if novel else ["test"])
    for part, examples in found.items():
        assert same(examples, getattr(expected, part)), part
        assert same(examples, expected.tested[part]), part


def test_load_tested_refuses_what_leaves_nothing(tmp_path: Path, make_examples: MakeExamples) -> None:
    save_prepared({prepared_path("toys", "test", tmp_path): make_examples(2, azimuth=[6, 8])})
    with pytest.raises(ValueError, match=r"'azimuth' leaves no familiar examples"):
        load_tested(DataConfig(split="azimuth"), tmp_path)


def plain(count: int = 60) -> Examples:
    images, labels = bars(count)
    return Examples(images, labels.astype(np.int16), names=("ant", "bee", "cat"))


def test_validation_without_viewpoints_holds_out_a_tenth() -> None:
    train = plain()
    seen = np.zeros(60, int)
    for fold in range(10):
        split = make_split(train, None, DataConfig(split="validation", fold=fold))
        assert np.bincount(split.test.category).tolist() == [2, 2, 2]
        assert len(split.train.category) == 54
        seen += [any((image == tested).all() for tested in split.test.images) for image in train.images]
    assert (seen == 1).all()
    with pytest.raises(ValueError, match=r"data\.fold must be 0 to 9"):
        make_split(train, None, DataConfig(split="validation", fold=10))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DataConfig("mine", split="azimuth"), r"data\.split 'azimuth' needs .* viewpoints, and mine has none"),
        (DataConfig("mine", split="elevation"), r"data\.split 'elevation' needs .* viewpoints"),
        (DataConfig("mine", view="stereo"), r"data\.view 'stereo' needs two cameras"),
        (DataConfig("mine", splice=0.5), r"data\.splice 0\.5 needs .* viewpoints"),
    ],
)
def test_what_needs_viewpoints_says_so(config: DataConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_split(plain(), plain(), config)


def test_a_split_of_a_file_of_ones_own(tmp_path: Path) -> None:
    images, labels = bars(60)
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    config = DataConfig(str(tmp_path / "mine.npz"))
    split = load_split(config)
    assert (len(split.train.images), len(split.test.images)) == (48, 12)
    np.testing.assert_array_equal(load_tested(config)["test"].images, split.test.images)


def test_images_that_were_given_from_python_are_not_looked_for() -> None:
    with pytest.raises(ValueError, match=r"this run's images were given as arrays from Python"):
        load_split(DataConfig("arrays"))
