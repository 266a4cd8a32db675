from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from emcaps.config import DataConfig
from emcaps.data import augment  # not its names: pytest would take `evaluation_crops` for a test
from emcaps.data.prepared import Examples

MakeExamples = Callable[..., Examples]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(count: int, channels: int = 2, side: int = 48) -> torch.Tensor:
    return torch.randint(256, (count, channels, side, side), generator=generator(7), dtype=torch.uint8)


def position_images(count: int, height: int, width: int) -> torch.Tensor:
    """Images whose pixels tell where they are and of which image and channel: channel 1 is channel 0 plus 0.5."""
    places = torch.arange(count * height * width, dtype=torch.float64).reshape(count, 1, height, width)
    return torch.cat([places, places + 0.5], dim=1)


def test_to_tensors_stereo_keeps_pairs(make_examples: MakeExamples) -> None:
    examples = make_examples(3)
    images, labels = augment.to_tensors(examples, "stereo", "cpu")
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    np.testing.assert_array_equal(images.numpy(), examples.images)
    assert labels.tolist() == examples.category.tolist()


def test_to_tensors_mono_puts_the_cameras_of_a_pair_side_by_side(make_examples: MakeExamples) -> None:
    examples = make_examples(3, category=[4, 0, 2])
    images, labels = augment.to_tensors(examples, "mono", torch.device("cpu"))
    assert images.shape == (6, 1, 48, 48)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [4, 4, 0, 0, 2, 2]
    for k in range(3):
        for camera in range(2):
            np.testing.assert_array_equal(images[2 * k + camera, 0].numpy(), examples.images[k, camera])


def test_to_tensors_of_an_unknown_view(make_examples: MakeExamples) -> None:
    with pytest.raises(ValueError, match=r"unknown view 'sterio': did you mean 'stereo'"):
        augment.to_tensors(make_examples(1), "sterio", "cpu")


@pytest.mark.parametrize("channels", [1, 2])
def test_standardise_equals_float64_by_image(channels: int) -> None:
    images = some_images(5, channels)
    images[1] = images[1] // 64 + 200  # low contrast, far from zero
    result = augment.standardise(images)
    assert result.dtype == torch.float32
    for image, got in zip(images.numpy().astype(np.float64), result.numpy(), strict=True):
        rounding_of_the_mean = image.mean() * 2**-24 / image.std()
        expected = (image - image.mean()) / image.std()
        np.testing.assert_allclose(got, expected, rtol=0, atol=rounding_of_the_mean + 1e-6)


def test_standardise_of_blank_and_nearly_blank_images() -> None:
    images = torch.full((2, 1, 48, 48), 137, dtype=torch.uint8)
    images[1, 0, 3, 5] += 1
    result = augment.standardise(images)
    assert torch.equal(result[0], torch.zeros(1, 48, 48))
    # One pixel in 2304 off by 1 has a deviation just under the floor of 1 / 48.
    assert result[1, 0, 3, 5].item() == pytest.approx((1 - 1 / 2304) * 48, rel=1e-5)


def test_standardise_of_floats_and_of_no_images() -> None:
    images = some_images(2)
    assert torch.equal(augment.standardise(images.float()), augment.standardise(images))
    assert augment.standardise(images[:0]).shape == (0, 2, 48, 48)


@pytest.mark.parametrize(("side", "crop", "start"), [(48, 32, 8), (48, 48, 0), (48, 31, 8), (9, 4, 2), (3, 1, 1)])
def test_centre_crop_takes_the_middle(side: int, crop: int, start: int) -> None:
    images = some_images(2, side=side)
    expected = images[:, :, start : start + crop, start : start + crop]
    assert torch.equal(augment.centre_crop(images, crop), expected)


def test_centre_crop_of_a_rectangle() -> None:
    images = position_images(2, 6, 10)
    assert torch.equal(augment.centre_crop(images, 4), images[:, :, 1:5, 3:7])


@pytest.mark.parametrize(("height", "width", "crop"), [(48, 48, 32), (7, 11, 5), (6, 6, 6), (5, 5, 1)])
def test_random_crop_cuts_one_square_from_each_image(height: int, width: int, crop: int) -> None:
    images = position_images(9, height, width)
    result = augment.random_crop(images, crop, generator())
    assert result.shape == (9, 2, crop, crop)
    for k in range(9):
        top, left = divmod(int(result[k, 0, 0, 0].item()) - k * height * width, width)
        assert torch.equal(result[k], images[k, :, top : top + crop, left : left + crop])


def test_random_crop_visits_every_place_evenly() -> None:
    count = 18_000
    images = torch.arange(16.0).reshape(1, 1, 4, 4).expand(count, 1, 4, 4)
    corners = augment.random_crop(images, 2, generator())[:, 0, 0, 0].long()
    counts = torch.bincount(corners, minlength=16)
    assert counts.nonzero().flatten().tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert (counts[counts > 0] - count / 9).abs().max() < 5 * math.sqrt(count / 9)


def test_random_brightness_adds_one_even_number_to_each_image() -> None:
    images = augment.standardise(some_images(4000, channels=2, side=3))
    shift = augment.random_brightness(images, 0.5, generator()) - images
    assert (shift - shift[:, :1, :1, :1]).abs().max() < 1e-6
    deltas = shift[:, 0, 0, 0]
    assert -0.5 <= deltas.min() < -0.49
    assert 0.49 < deltas.max() <= 0.5 + 1e-6
    assert abs(deltas.mean()) < 5 * 0.5 / math.sqrt(3 * 4000)
    assert deltas.std() == pytest.approx(0.5 / math.sqrt(3), rel=0.05)


def test_random_contrast_stretches_about_the_mean_of_each_channel() -> None:
    images = augment.standardise(some_images(4000, channels=2, side=3)) + torch.tensor([1.0, -2.0])[:, None, None]
    result = augment.random_contrast(images, 0.5, 1.5, generator())
    mean = images.mean((2, 3), keepdim=True)
    assert (result.mean((2, 3), keepdim=True) - mean).abs().max() < 1e-5
    factors = ((result - mean) * (images - mean)).sum((1, 2, 3)) / (images - mean).square().sum((1, 2, 3))
    expected = torch.stack([m + f * (image - m) for image, m, f in zip(images, mean, factors, strict=True)])
    assert (result - expected).abs().max() < 1e-4
    assert 0.5 - 1e-5 <= factors.min() < 0.51
    assert 1.49 < factors.max() <= 1.5 + 1e-5
    assert factors.mean() == pytest.approx(1.0, abs=5 / math.sqrt(12 * 4000))
    assert factors.std() == pytest.approx(1 / math.sqrt(12), rel=0.05)


def test_random_brightness_and_contrast_that_do_nothing() -> None:
    images = augment.standardise(some_images(3))
    assert torch.equal(augment.random_brightness(images, 0.0, generator()), images)
    assert torch.allclose(augment.random_contrast(images, 1.0, 1.0, generator()), images, rtol=0, atol=1e-6)


def test_augment_is_standardise_crop_brightness_contrast_in_this_order() -> None:
    images = some_images(6)
    config = DataConfig(crop=20, brightness=0.7, contrast_low=0.3, contrast_high=2.0)
    result = augment.augment(images, config, generator(3))
    draws = generator(3)
    expected = augment.random_crop(augment.standardise(images), 20, draws)
    expected = augment.random_brightness(expected, 0.7, draws)
    expected = augment.random_contrast(expected, 0.3, 2.0, draws)
    assert result.dtype == torch.float32
    assert result.shape == (6, 2, 20, 20)
    assert torch.equal(result, expected)


def test_augment_depends_on_the_generator_alone() -> None:
    images, config = some_images(6), DataConfig()
    kept, state = images.clone(), torch.get_rng_state()
    first = augment.augment(images, config, generator(3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)  # moves the global generator on
    assert torch.equal(augment.augment(images, config, generator(3)), first)
    assert not torch.equal(augment.augment(images, config, generator(4)), first)
    assert torch.equal(images, kept)


def test_evaluation_crops_of_one_is_the_standardised_centre() -> None:
    images = some_images(3)
    result = augment.evaluation_crops(images, 32)
    assert result.dtype == torch.float32
    assert torch.equal(result, augment.centre_crop(augment.standardise(images), 32)[:, None])


def test_evaluation_crops_of_thirteen_shifts_along_the_diagonals() -> None:
    images = some_images(3)
    result = augment.evaluation_crops(images, 32, crops=13)
    assert result.shape == (3, 13, 2, 32, 32)
    whole = augment.standardise(images)
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
    result = augment.evaluation_crops(images, 42, crops=13)
    assert torch.equal(result[:, 12], augment.standardise(images)[:, :, 6:, 6:])
    assert augment.evaluation_crops(images, 48).shape == (2, 1, 2, 48, 48)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: augment.centre_crop(x, 49),
            r"crop must be 1 to 48 for images of 48 x 48, not 49: choose a smaller crop$",
        ),
        (lambda x: augment.centre_crop(x, 0), r"crop must be 1 to 48 .*, not 0"),
        (lambda x: augment.random_crop(x, 49, generator()), r"crop must be 1 to 48 .*, not 49"),
        (lambda x: augment.random_crop(x[..., :40], 41, generator()), r"1 to 40 for images of 48 x 40, not 41"),
        (lambda x: augment.augment(x[..., :31, :31], DataConfig(), generator()), r"1 to 31 .*, not 32"),
        (
            lambda x: augment.evaluation_crops(x, 43, 13),
            r"1 to 42 for .* with crops shifted by 3 pixels, not 43: .*or crops=1",
        ),
        (lambda x: augment.evaluation_crops(x, 49, 1), r"crop must be 1 to 48 .*, not 49"),
        (lambda x: augment.evaluation_crops(x, 32, 5), r"crops must be 1 \(the centre\) or 13 .*, not 5"),
        (lambda x: augment.standardise(x[0]), r"four dims \(N, C, H, W\), not shape \(2, 48, 48\): .*images\[None\]"),
        (lambda x: augment.random_brightness(x[0], 1.0, generator()), r"four dims"),
        (lambda x: augment.random_contrast(x[0], 1.0, 1.0, generator()), r"four dims"),
    ],
)
def test_augment_functions_refuse(call: Callable[[torch.Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(some_images(1))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, g: augment.random_crop(x, 8, g),
        lambda x, g: augment.random_brightness(x, 1.0, g),
        lambda x, g: augment.random_contrast(x, 1.0, 1.0, g),
        lambda x, g: augment.augment(x, DataConfig(), g),
    ],
)
def test_random_functions_refuse_a_generator_of_another_device(call: Callable[..., object]) -> None:
    images = torch.empty(2, 1, 48, 48, device="meta")
    with pytest.raises(ValueError, match=r"generator must be on the images' device, meta, not cpu: make it with"):
        call(images, generator())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_augment_on_cuda_never_waits_and_equals_the_cpu_on_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    images, config = some_images(64), DataConfig()
    on_device = images.cuda()
    augment.augment(on_device, config, torch.Generator("cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = augment.augment(on_device, config, torch.Generator("cuda").manual_seed(3))
        crops = augment.evaluation_crops(on_device, 32, 13)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.allclose(crops.cpu(), augment.evaluation_crops(images, 32, 13), rtol=0, atol=1e-5)

    draws = torch.Generator("cuda").manual_seed(3)
    randint, rand = torch.randint, torch.rand
    monkeypatch.setattr(
        torch, "randint", lambda high, size, **_: randint(high, size, generator=draws, device="cuda").cpu()
    )
    monkeypatch.setattr(torch, "rand", lambda size, **_: rand(size, generator=draws, device="cuda").cpu())
    expected = augment.augment(images, config, generator())
    assert torch.allclose(result.cpu(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("crop", "shift", "first", "last"), [(4, 2, 1, 5), (4, 9, 0, 6), (3, 0, 3, 3), (3, 2, 1, 5)])
def test_random_crop_stays_near_the_centre(crop: int, shift: int, first: int, last: int) -> None:
    """Of 10x10 images: centred at 3, at most `shift` off, and never beyond the image."""
    images = torch.arange(100.0).view(1, 1, 10, 10).expand(500, 1, 10, 10)
    crops = augment.random_crop(images, crop, torch.Generator().manual_seed(0), shift)
    tops, lefts = crops[:, 0, 0, 0] // 10, crops[:, 0, 0, 0] % 10
    assert set(tops.int().tolist()) == set(lefts.int().tolist()) == set(range(first, last + 1))


def test_standardised_crops_do_not_know_what_was_around_them() -> None:
    images = some_images(5)
    changed = images.clone()
    changed[:, :, :8] = 0
    changed[:, :, :, 40:] = 255
    crops = [augment.evaluation_crops(each, 32, standardised="crop") for each in (images, changed)]
    assert torch.equal(*crops)
    torch.testing.assert_close(crops[0][:, 0], augment.standardise(augment.centre_crop(images, 32)))
    config = DataConfig(crop=20, standardise="crop", brightness=0.0, contrast_low=1.0, contrast_high=1.0)
    result = augment.augment(images, config, torch.Generator().manual_seed(3))
    expected = augment.standardise(augment.random_crop(images, 20, torch.Generator().manual_seed(3)))
    torch.testing.assert_close(result, expected)


def test_thirteen_standardised_crops_are_each_standardised() -> None:
    result = augment.evaluation_crops(some_images(3), 32, crops=13, standardised="crop")
    assert result.shape == (3, 13, 2, 32, 32)
    torch.testing.assert_close(result.mean((2, 3, 4)), torch.zeros(3, 13), rtol=0, atol=1e-5)
    torch.testing.assert_close(result.std((2, 3, 4), correction=0), torch.ones(3, 13), rtol=0, atol=1e-4)


def test_grey_above_the_background_keeps_light_and_dark() -> None:
    images = torch.full((2, 2, 48, 48), 100, dtype=torch.uint8)
    images[:, 1] = 60  # the other camera's background
    images[0, :, 20:28, 20:28] += 80
    images[1, :, 20:28, 20:28] -= 20
    result = augment.above_background(images)
    assert result.dtype == torch.float32
    assert torch.equal(result[:, :, 24, 24], torch.tensor([[2.0, 2.0], [-0.5, -0.5]]))
    assert not result[:, :, :20].any()
    brighter = augment.above_background(images + 30)
    assert torch.equal(brighter, result), "the exposure of the whole image does not matter"


def test_grey_above_the_background_is_measured_before_cropping() -> None:
    images = some_images(3)
    want = augment.above_background(images)
    config = DataConfig(crop=20, standardise="background", brightness=0.0, contrast_low=1.0, contrast_high=1.0)
    got = augment.augment(images, config, torch.Generator().manual_seed(3))
    crops = augment.random_crop(want, 20, torch.Generator().manual_seed(3), config.max_shift)
    torch.testing.assert_close(got, crops, rtol=1e-5, atol=1e-5)
    tested = augment.evaluation_crops(images, 32, standardised="background")
    assert torch.equal(tested[:, 0], augment.centre_crop(want, 32))
