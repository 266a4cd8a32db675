from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from data.images import position_images, some_images
from emcaps.data import crops  # not its names: pytest would take `evaluation_crops` for a test


@pytest.mark.parametrize("channels", [1, 2])
def test_standardise_equals_float64_by_image(channels: int) -> None:
    images = some_images(5, channels)
    images[1] = images[1] // 64 + 200  # low contrast, far from zero
    result = crops.standardise(images)
    assert result.dtype == torch.float32
    for image, got in zip(images.numpy().astype(np.float64), result.numpy(), strict=True):
        rounding_of_the_mean = image.mean() * 2**-24 / image.std()
        expected = (image - image.mean()) / image.std()
        np.testing.assert_allclose(got, expected, rtol=0, atol=rounding_of_the_mean + 1e-6)


def test_standardise_of_blank_and_nearly_blank_images() -> None:
    images = torch.full((2, 1, 48, 48), 137, dtype=torch.uint8)
    images[1, 0, 3, 5] += 1
    result = crops.standardise(images)
    assert torch.equal(result[0], torch.zeros(1, 48, 48))
    # One pixel in 2304 off by 1 has a deviation just under the floor of 1 / 48.
    assert result[1, 0, 3, 5].item() == pytest.approx((1 - 1 / 2304) * 48, rel=1e-5)


def test_standardise_of_floats_and_of_no_images() -> None:
    images = some_images(2)
    assert torch.equal(crops.standardise(images.float()), crops.standardise(images))
    assert crops.standardise(images[:0]).shape == (0, 2, 48, 48)


def test_grey_above_the_background_keeps_light_and_dark() -> None:
    images = torch.full((2, 2, 48, 48), 100, dtype=torch.uint8)
    images[:, 1] = 60  # the other camera's background
    images[0, :, 20:28, 20:28] += 80
    images[1, :, 20:28, 20:28] -= 20
    result = crops.above_background(images)
    assert result.dtype == torch.float32
    assert torch.equal(result[:, :, 24, 24], torch.tensor([[2.0, 2.0], [-0.5, -0.5]]))
    assert not result[:, :, :20].any()
    brighter = crops.above_background(images + 30)
    assert torch.equal(brighter, result), "the exposure of the whole image does not matter"


@pytest.mark.parametrize(("side", "crop", "start"), [(48, 32, 8), (48, 48, 0), (48, 31, 8), (9, 4, 2), (3, 1, 1)])
def test_centre_crop_takes_the_middle(side: int, crop: int, start: int) -> None:
    images = some_images(2, side=side)
    expected = images[:, :, start : start + crop, start : start + crop]
    assert torch.equal(crops.centre_crop(images, crop), expected)


def test_centre_crop_of_a_rectangle() -> None:
    images = position_images(2, 6, 10)
    assert torch.equal(crops.centre_crop(images, 4), images[:, :, 1:5, 3:7])


def test_evaluation_crops_of_one_is_the_standardised_centre() -> None:
    images = some_images(3)
    result = crops.evaluation_crops(images, 32)
    assert result.dtype == torch.float32
    assert torch.equal(result, crops.centre_crop(crops.standardise(images), 32)[:, None])


def test_evaluation_crops_of_thirteen_shifts_along_the_diagonals() -> None:
    images = some_images(3)
    result = crops.evaluation_crops(images, 32, crops=13)
    assert result.shape == (3, 13, 2, 32, 32)
    whole = crops.standardise(images)
    tops = {}
    for k in range(13):
        matches = [
            (y - 8, x - 8)
            for y in range(17)
            for x in range(17)
            if torch.equal(whole[:, :, y : y + 32, x : x + 32], result[:, k])
        ]
        assert len(matches) == 1
        tops[k] = matches[0]
    assert tops[0] == (0, 0)
    assert sorted(tops.values()) == sorted(
        [(0, 0)] + [(s * y, s * x) for s in (1, 2, 3) for y in (-1, 1) for x in (-1, 1)]
    )


def test_evaluation_crops_at_the_largest_crop_that_fits() -> None:
    images = some_images(2)
    result = crops.evaluation_crops(images, 42, crops=13)
    assert torch.equal(result[:, 12], crops.standardise(images)[:, :, 6:, 6:])
    assert crops.evaluation_crops(images, 48).shape == (2, 1, 2, 48, 48)


def test_thirteen_standardised_crops_are_each_standardised() -> None:
    result = crops.evaluation_crops(some_images(3), 32, crops=13, standardised="crop")
    assert result.shape == (3, 13, 2, 32, 32)
    torch.testing.assert_close(result.mean((2, 3, 4)), torch.zeros(3, 13), rtol=0, atol=1e-5)
    torch.testing.assert_close(result.std((2, 3, 4), correction=0), torch.ones(3, 13), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: crops.centre_crop(x, 49),
            r"crop must be 1 to 48 for images of 48 x 48, not 49: choose a smaller crop$",
        ),
        (lambda x: crops.centre_crop(x, 0), r"crop must be 1 to 48 .*, not 0"),
        (
            lambda x: crops.evaluation_crops(x, 43, 13),
            r"1 to 42 for .* with crops shifted by 3 pixels, not 43: .*or crops=1",
        ),
        (lambda x: crops.evaluation_crops(x, 49, 1), r"crop must be 1 to 48 .*, not 49"),
        (lambda x: crops.evaluation_crops(x, 32, 5), r"crops must be 1 \(the centre\) or 13 .*, not 5"),
        (
            lambda x: crops.evaluation_crops(x, 32, 1, "crops"),
            r"unknown part .* 'crops': did you mean 'crop'",
        ),
        (lambda x: crops.standardise(x[0]), r"four dims \(N, C, H, W\), not shape \(2, 48, 48\): .*images\[None\]"),
    ],
)
def test_crops_refuse(call: Callable[[torch.Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(some_images(1))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("standardised", ["image", "crop", "background"])
def test_grey_scale_says_how_the_centre_crop_is_prepared(channels: int, standardised: str) -> None:
    images = some_images(4, channels)
    images[1] = images[1] // 64 + 180
    offset, scale = crops.grey_scale(images, 20, standardised)
    prepared = crops.evaluation_crops(images, 20, 1, standardised)[:, 0]
    torch.testing.assert_close((crops.centre_crop(images, 20) - offset) / scale, prepared, rtol=1e-5, atol=1e-5)
