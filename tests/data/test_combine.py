"""Splicing: which images may be spliced with which, and what a spliced image shows. Mixing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from emcaps.config import DataConfig
from emcaps.data.augment import augment
from emcaps.data.combine import find_counterparts, mix, splice
from emcaps.data.prepared import Examples
from emcaps.data.tensors import to_tensors
from patterns import pattern_examples

MakeExamples = Callable[..., Examples]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("view", ["mono", "stereo"])
def test_counterparts_are_all_instances_of_what_is_seen(view: str) -> None:
    """Against a loop over all pairs: every one that may be drawn is, and equally often."""
    examples = pattern_examples((4, 6, 7), views=4, seed=0)
    cameras = 2 if view == "mono" else 1
    labels = [
        (*row, camera)
        for row in zip(examples.category, examples.elevation, examples.azimuth, examples.lighting, strict=True)
        for camera in range(cameras)
    ]
    counterparts = find_counterparts(examples, view, "cpu")
    for example in range(0, len(labels), 7):
        drawn = counterparts.draw(torch.full((3000,), example), generator(example))
        values, counts = np.unique(drawn.numpy(), return_counts=True)
        assert values.tolist() == [other for other in range(len(labels)) if labels[other] == labels[example]]
        assert len(values) == 3
        assert counts.min() > 900


def test_groups_may_differ_in_size(make_examples: MakeExamples) -> None:
    examples = make_examples(
        5,
        category=[1, 0, 1, 1, 0],
        elevation=[0] * 5,
        azimuth=[0] * 5,
        lighting=[0, 0, 0, 0, 1],
        instance=[0, 1, 2, 3, 4],
    )
    counterparts = find_counterparts(examples, "stereo", "cpu")
    drawn = counterparts.draw(torch.arange(5).repeat(200), generator()).view(200, 5)
    assert [sorted(set(column.tolist())) for column in drawn.T] == [[0, 2, 3], [1], [0, 2, 3], [0, 2, 3], [4]]


def test_a_set_without_counterparts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data.splice needs several instances .* one each: set data.splice=0"):
        find_counterparts(pattern_examples((4,), views=4, seed=0), "mono", "cpu")


def test_a_spliced_image_has_two_sides_of_one_line() -> None:
    """Each pixel is from one of the two images, and a straight line of any direction parts them."""
    shape = (64, 2, 48, 40)
    spliced = splice(torch.zeros(shape), torch.ones(shape), 1.0, generator())
    assert torch.equal(spliced[:, 0], spliced[:, 1]), "both eyes are cut alike"
    rows, columns = np.mgrid[:48, :40] - np.array([23.5, 19.5])[:, None, None]
    angles = []
    for mask in spliced[:, 0].numpy():
        assert 0.2 < mask.mean() < 0.8, "a line near the centre leaves much of both"
        there = np.array([rows[mask == 1].mean(), columns[mask == 1].mean()])
        normal = there / np.linalg.norm(there)
        # the centre of one side lies nearly along the normal: find the line that parts the sides near that direction
        turns = np.arctan2(*normal) + np.linspace(-0.5, 0.5, 401)
        gaps = [
            (side[mask == 1].min() - side[mask == 0].max())
            for side in (rows * np.sin(turn) + columns * np.cos(turn) for turn in turns)
        ]
        assert max(gaps) > 0
        angles.append(turns[int(np.argmax(gaps))])
    assert np.abs(np.exp(1j * np.array(angles)).mean()) < 0.4, "in all directions"


def test_the_share_that_is_spliced() -> None:
    shape = (2000, 1, 16, 16)
    for share in (0.0, 0.3, 1.0):
        touched = splice(torch.zeros(shape), torch.ones(shape), share, generator()).flatten(1).any(1)
        assert abs(touched.double().mean() - share) <= 4 * math.sqrt(share * (1 - share) / 2000)


@pytest.mark.parametrize("standardise", ["image", "crop", "background"])
def test_augment_splices_whole_images_before_it_crops(standardise: str) -> None:
    """An image spliced with itself is itself, whatever is standardised, with the same randomness after."""
    config = DataConfig(standardise=standardise, splice=1.0, brightness=0.0, contrast_low=1.0, contrast_high=1.0)
    images, _ = to_tensors(pattern_examples((4, 6), views=2, seed=0), "stereo", "cpu")
    unchanged = generator()
    for _ in range(3):
        torch.rand((len(images), 1, 1), generator=unchanged)  # what the lines take
    expected = augment(images, config, unchanged)
    assert torch.equal(augment(images, config, generator(), images), expected)
    assert not torch.equal(augment(images, config, generator(), images.flip(0)), expected)


def test_each_side_keeps_its_own_background() -> None:
    """Light objects before different greys have one height, measured from their own background, on both sides."""
    low = torch.full((8, 1, 48, 48), 60, dtype=torch.uint8)
    high = low + 50
    low[:, :, 20:28, 8:40] += 40
    high[:, :, 8:40, 20:28] += 80
    config = DataConfig(standardise="background", splice=1.0, brightness=0.0, contrast_low=1.0, contrast_high=1.0)
    spliced = augment(low, config, generator(), high)
    assert sorted(spliced.unique().tolist()) == [0.0, 1.0, 2.0], "either object, or nothing: no step between the greys"
    both = [{1.0, 2.0} <= set(image.unique().tolist()) for image in spliced]
    assert sum(both) >= 6, "most lines leave some of both objects"


def test_others_must_be_as_many_as_the_images() -> None:
    with pytest.raises(ValueError, match=r"must have their shape \(4, 1, 8, 8\), not \(1, 1, 8, 8\)"):
        splice(torch.zeros(4, 1, 8, 8), torch.ones(1, 1, 8, 8), 1.0, generator())


def test_mix_takes_from_the_neighbour_what_the_share_says() -> None:
    crops = torch.randn(64, 1, 3, 3)
    mixed, share = mix(crops, 0.5, generator())
    assert 0.5 <= float(share.min()) < 0.6 < 0.99 < float(share.max()) <= 1
    for number in range(64):
        own, other = float(share[number]), crops[number - 1]
        torch.testing.assert_close(mixed[number], own * crops[number] + (1 - own) * other)
