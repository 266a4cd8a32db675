from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from data.images import generator, position_images, some_images
from emcaps.config import DataConfig
from emcaps.data import augment, crops  # not their names: pytest would take `evaluation_crops` for a test

WARPED = DataConfig(crop=40, pad=3, mirror=0.5, turn=20.0, zoom=0.2, slant=0.3, stretch=0.2, bend=1.0)


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
    images = crops.standardise(some_images(4000, channels=2, side=3))
    shift = augment.random_brightness(images, 0.5, generator()) - images
    assert (shift - shift[:, :1, :1, :1]).abs().max() < 1e-6
    deltas = shift[:, 0, 0, 0]
    assert -0.5 <= deltas.min() < -0.49
    assert 0.49 < deltas.max() <= 0.5 + 1e-6
    assert abs(deltas.mean()) < 5 * 0.5 / math.sqrt(3 * 4000)
    assert deltas.std() == pytest.approx(0.5 / math.sqrt(3), rel=0.05)


def test_random_contrast_scales_about_the_mean_of_each_channel() -> None:
    images = crops.standardise(some_images(4000, channels=2, side=3)) + torch.tensor([1.0, -2.0])[:, None, None]
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
    images = crops.standardise(some_images(3))
    assert torch.equal(augment.random_brightness(images, 0.0, generator()), images)
    assert torch.allclose(augment.random_contrast(images, 1.0, 1.0, generator()), images, rtol=0, atol=1e-6)


def test_augment_is_standardise_crop_brightness_contrast_in_this_order() -> None:
    images = some_images(6)
    config = DataConfig(crop=20, brightness=0.7, contrast_low=0.3, contrast_high=2.0)
    result = augment.augment(images, config, generator(3))
    draws = generator(3)
    expected = augment.random_crop(crops.standardise(images), 20, draws)
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: augment.random_crop(x, 49, generator()), r"crop must be 1 to 48 .*, not 49"),
        (lambda x: augment.random_crop(x[..., :40], 41, generator()), r"1 to 40 for images of 48 x 40, not 41"),
        (lambda x: augment.augment(x[..., :31, :31], DataConfig(), generator()), r"1 to 31 .*, not 32"),
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
        lambda x, g: augment.random_mirror(x, 0.5, g),
        lambda x, g: augment.random_warp(x, g, turn=10.0),
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
@pytest.mark.parametrize("config", [DataConfig(), WARPED], ids=["plain", "warped"])
def test_augment_on_cuda_never_waits_and_equals_the_cpu_on_the_same_draws(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = some_images(64)
    on_device = images.cuda()
    augment.augment(on_device, config, torch.Generator("cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = augment.augment(on_device, config, torch.Generator("cuda").manual_seed(3))
        tested = crops.evaluation_crops(on_device, 32, 13)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.allclose(tested.cpu(), crops.evaluation_crops(images, 32, 13), rtol=0, atol=1e-5)

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
    cut = augment.random_crop(images, crop, torch.Generator().manual_seed(0), shift)
    tops, lefts = cut[:, 0, 0, 0] // 10, cut[:, 0, 0, 0] % 10
    assert set(tops.int().tolist()) == set(lefts.int().tolist()) == set(range(first, last + 1))


def test_standardised_crops_do_not_know_what_was_around_them() -> None:
    images = some_images(5)
    changed = images.clone()
    changed[:, :, :8] = 0
    changed[:, :, :, 40:] = 255
    tested = [crops.evaluation_crops(each, 32, standardised="crop") for each in (images, changed)]
    assert torch.equal(*tested)
    torch.testing.assert_close(tested[0][:, 0], crops.standardise(crops.centre_crop(images, 32)))
    config = DataConfig(crop=20, standardise="crop", brightness=0.0, contrast_low=1.0, contrast_high=1.0)
    result = augment.augment(images, config, torch.Generator().manual_seed(3))
    expected = crops.standardise(augment.random_crop(images, 20, torch.Generator().manual_seed(3)))
    torch.testing.assert_close(result, expected)


def test_grey_above_the_background_is_measured_before_cropping() -> None:
    images = some_images(3)
    want = crops.above_background(images)
    config = DataConfig(crop=20, standardise="background", brightness=0.0, contrast_low=1.0, contrast_high=1.0)
    got = augment.augment(images, config, torch.Generator().manual_seed(3))
    cut = augment.random_crop(want, 20, torch.Generator().manual_seed(3), config.max_shift)
    torch.testing.assert_close(got, cut, rtol=1e-5, atol=1e-5)
    tested = crops.evaluation_crops(images, 32, standardised="background")
    assert torch.equal(tested[:, 0], crops.centre_crop(want, 32))


def test_augment_mirrors_then_warps_then_pads_then_crops() -> None:
    images = some_images(6)
    draws = generator(3)
    expected = augment.random_mirror(crops.standardise(images), WARPED.mirror, draws)
    amounts = {name: getattr(WARPED, name) for name in augment.WARPS}
    expected = augment.random_warp(expected, draws, **amounts)
    expected = torch.nn.functional.pad(expected, (3, 3, 3, 3), mode="replicate")
    expected = augment.random_crop(expected, 40, draws, WARPED.max_shift)
    expected = augment.random_brightness(expected, WARPED.brightness, draws)
    expected = augment.random_contrast(expected, WARPED.contrast_low, WARPED.contrast_high, draws)
    assert torch.equal(augment.augment(images, WARPED, generator(3)), expected)


def test_a_share_of_the_images_is_mirrored() -> None:
    images = some_images(4000, channels=1, side=3)
    result = augment.random_mirror(images, 0.3, generator())
    swapped = (result == images.flip(-1)).flatten(1).all(1)
    assert torch.equal(result[~swapped], images[~swapped])
    assert swapped.float().mean() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(augment.random_mirror(images, 1.0, generator()), images.flip(-1))


def test_a_mirrored_stereo_pair_has_its_cameras_swapped() -> None:
    images = torch.randint(256, (5, 2, 12, 12), dtype=torch.uint8, generator=generator())
    config = DataConfig(crop=12, mirror=1.0, brightness=0.0, contrast_low=1.0, contrast_high=1.0, standardise="crop")
    for view, channels, expected in (
        ("stereo", 0, images.flip(1, -1)),
        ("mono", 0, images.flip(-1)),
        ("stereo", 2, images.flip(-1)),  # pictures of two channels, which are no cameras
    ):
        crops_seen = augment.augment(images, replace(config, view=view, channels=channels), generator())
        torch.testing.assert_close(crops_seen, crops.standardise(expected))


@pytest.mark.parametrize("standardise", ["image", "crop", "background"])
def test_padding_shifts_small_images_and_continues_their_edge(standardise: str) -> None:
    """A single bright pixel comes to lie in any of 5 x 5 places, and columns of one grey stay columns."""
    config = DataConfig(crop=9, pad=2, standardise=standardise, brightness=0.0, contrast_low=1.0, contrast_high=1.0)  # type: ignore[arg-type]
    images = torch.zeros(600, 1, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = 200
    brightest = augment.augment(images, config, generator()).flatten(1).argmax(1)
    places = {divmod(place, 9) for place in brightest.tolist()}
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}
    columns = torch.arange(9, dtype=torch.uint8).mul(20).expand(600, 1, 9, 9)
    shifted = augment.augment(columns, config, generator())
    assert (shifted - shifted[:, :, :1]).abs().max() < 1e-6


def _pinned(monkeypatch: pytest.MonkeyPatch, *drawn: float) -> None:
    """The next uniform numbers, each for all images, whatever the generator says."""
    numbers = iter(drawn)
    monkeypatch.setattr(augment, "_uniform", lambda images, _: torch.full((len(images), 1, 1, 1), next(numbers)))


def test_turning_by_a_right_angle_moves_pixels_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    images = some_images(2, side=7).float()
    _pinned(monkeypatch, 1.0, 0.5, 0.5)
    turned = augment.random_warp(images, generator(), turn=90.0)
    torch.testing.assert_close(turned, images.rot90(1, (2, 3)), rtol=0, atol=1e-2)


def test_zoom_by_two_shows_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a grey ramp, whose value is its place: the middle half of the places fills the whole image, or the reverse."""
    ramp = torch.arange(16.0).expand(1, 1, 16, 16)
    _pinned(monkeypatch, 0.5, 0.0, 0.5)
    enlarged = augment.random_warp(ramp, generator(), zoom=1.0)
    torch.testing.assert_close(enlarged, 7.5 + (ramp - 7.5) / 2, rtol=0, atol=1e-4)
    _pinned(monkeypatch, 0.5, 1.0, 0.5)
    reduced = augment.random_warp(ramp, generator(), zoom=1.0)
    torch.testing.assert_close(reduced, (7.5 + (ramp - 7.5) * 2).clamp(0, 15), rtol=0, atol=1e-4)


def test_slant_moves_rows_sideways_by_their_distance_from_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    ramp = torch.arange(17.0).expand(1, 1, 17, 17)
    _pinned(monkeypatch, 0.5, 0.5, 1.0)
    slanted = augment.random_warp(ramp, generator(), slant=0.5)
    rows = torch.arange(17.0)[:, None] - 8
    torch.testing.assert_close(slanted, (ramp + 0.5 * rows).clamp(0, 16), rtol=0, atol=1e-4)


def test_stretching_widens_what_it_flattens(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a ratio of 4: twice as wide, half as high, read from a ramp along each axis."""
    place = torch.arange(16.0)
    ramps = torch.stack([place.expand(16, 16), place[:, None].expand(16, 16)])[None]
    _pinned(monkeypatch, 0.5, 0.5, 0.5, 1.0)
    across, down = augment.random_warp(ramps, generator(), stretch=3.0)[0]
    torch.testing.assert_close(across, 7.5 + (ramps[0, 0] - 7.5) / 2, rtol=0, atol=1e-4)
    torch.testing.assert_close(down, (7.5 + (ramps[0, 1] - 7.5) * 2).clamp(0, 15), rtol=0, atol=1e-4)


def test_images_are_bent_stretched_slanted_turned_and_enlarged_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, and one after another. Ramps, since interpolating them often loses nothing; edges are cut off."""
    place = torch.arange(40.0)
    ramps = torch.stack([place.expand(40, 40), place[:, None].expand(40, 40)])[None]
    knots = torch.tensor([0.75, 0.25]).view(1, 2, 1, 1).expand(1, 2, 4, 4)  # all alike: the whole image moves
    monkeypatch.setattr(augment.torch, "rand", lambda shape, **_: knots.expand(shape))
    amounts = {"bend": 4.0, "stretch": 0.5, "slant": 0.3, "turn": 25.0, "zoom": 0.2}
    _pinned(monkeypatch, 1.0, 0.0, 1.0, 1.0)
    whole = augment.random_warp(ramps, generator(), **amounts)
    steps = ramps
    for name, amount in amounts.items():
        _pinned(monkeypatch, 1.0, 0.0, 1.0, 1.0)
        steps = augment.random_warp(steps, generator(), **{name: amount})
    middle = (..., slice(14, 26), slice(14, 26))
    torch.testing.assert_close(whole[middle], steps[middle], rtol=0, atol=1e-3)


def test_bending_moves_points_smoothly_and_by_so_many_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from a ramp along each axis, whose value is its place."""
    side, bend = 24, 2.0
    place = torch.arange(float(side))
    ramps = torch.stack([place.expand(side, side), place[:, None].expand(side, side)]).expand(500, 2, side, side)
    moved = (augment.random_warp(ramps, generator(), bend=bend) - ramps)[..., 4:-4, 4:-4]  # edges are cut off
    assert 0.95 * bend < moved.abs().max() < 1.9 * bend
    assert moved.mean().abs() < 0.05
    assert moved.std(0).min() > 0.3  # every point moves, along both axes
    assert moved.diff(dim=-1).abs().max() < bend / 2
    assert moved.diff(dim=-2).abs().max() < bend / 2
    knots = torch.full((1, 2, 4, 4), 1.0)
    monkeypatch.setattr(augment.torch, "rand", lambda shape, **_: knots.expand(shape))
    _pinned(monkeypatch, 0.5, 0.5, 0.5)
    shifted = augment.random_warp(ramps[:1], generator(), bend=bend)
    torch.testing.assert_close(shifted, (ramps[:1] + bend).clamp(0, side - 1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1], ids=["across", "down"])
def test_knots_move_along_their_own_axis_in_images_that_are_not_square(
    axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The knots at the bottom move along one axis, by the whole bend; the other ones stay."""
    height, width, bend = 13, 22, 2.0
    ramps = torch.stack(
        [torch.arange(float(width)).expand(height, width), torch.arange(float(height))[:, None].expand(height, width)]
    )
    knots = torch.full((1, 2, 4, 4), 0.5)
    knots[:, axis, -1] = 0.0  # drawn 0 to 1, for -bend to bend
    monkeypatch.setattr(augment.torch, "rand", lambda shape, **_: knots.expand(shape))
    _pinned(monkeypatch, 0.5, 0.5, 0.5)
    moved = augment.random_warp(ramps[None], generator(), bend=bend)[0] - ramps
    moved = moved[:, :, 2:]  # at the left the edge is continued
    torch.testing.assert_close(moved[axis, -1], torch.full((width - 2,), -bend), rtol=0, atol=1e-4)
    torch.testing.assert_close(moved[axis, 0], torch.zeros(width - 2), rtol=0, atol=1e-4)
    torch.testing.assert_close(moved[1 - axis], torch.zeros(height, width - 2), rtol=0, atol=1e-4)


def test_turns_zooms_and_slants_are_drawn_evenly_for_each_image() -> None:
    """Read back from two ramps: the gradients of a warped ramp are the elements of the map."""
    count, side = 2000, 9
    place = torch.arange(float(side))
    ramps = torch.stack([place.expand(side, side), place[:, None].expand(side, side)]).expand(count, 2, side, side)
    turned = augment.random_warp(ramps, generator(), turn=20.0)
    angle = torch.atan2(turned[:, 1, 4, 5] - turned[:, 1, 4, 4], turned[:, 0, 4, 5] - turned[:, 0, 4, 4]).rad2deg()
    assert angle.abs().max() <= 20.01
    assert angle.std() == pytest.approx(20 / math.sqrt(3), rel=0.05)
    zoomed = augment.random_warp(ramps, generator(), zoom=0.5)
    size = torch.log(zoomed[:, 0, 4, 5] - zoomed[:, 0, 4, 4])
    assert size.abs().max() <= math.log(1.5) + 1e-4
    assert size.std() == pytest.approx(math.log(1.5) / math.sqrt(3), rel=0.05)
