"""The images of a training step by the GPU kernels, on a GPU or, without one, in Triton's interpreter.

Every value is compared with what the functions of emcaps.data make of the same random numbers. Run as a program, this
file compiles the kernels for a GPU, on a machine without one too. This needs a process of its own, because a process
that interprets Triton cannot compile it.
"""

import math

import pytest
import torch

from compiled_kernels import compile_for, count_compiled
from emcaps.config import DataConfig
from emcaps.data.augment import augment, brighten, crop_at, crop_starts, scale_contrast
from emcaps.data.combine import FARTHEST, Counterparts, mix, mix_in, splice_along
from emcaps.data.crops import STANDARDS, after_cropping, before_cropping
from emcaps.train import batch
from emcaps.train.batch import training_batch

ROWS = ("counterpart", "chosen", "turn", "offset", "top", "left", "brightness", "contrast", "mixup")
BELOW_ONE = 1 - 2**-24
PLAIN = {"brightness": 0.0, "contrast_low": 1.0, "contrast_high": 1.0}
SHAPES = {
    "mono, odd sides": ((1, 47, 31), {"crop": 8}),
    "stereo, wide": ((2, 19, 44), {"crop": 13, "max_shift": 3}),
    "three channels": ((3, 20, 16), {"crop": 9}),
    "four channels": ((4, 11, 10), {"crop": 10}),
    "the whole image": ((2, 17, 17), {"crop": 17}),
    "no shift": ((2, 20, 23), {"crop": 12, "max_shift": 0}),
    "an image of several tiles": ((2, 94, 98), {"crop": 16}),
    "one row more than a tile": ((1, 129, 128), {"crop": 8}),
    "the largest crop": ((2, 92, 91), {"crop": 90}),
    "brightness alone": ((2, 20, 22), {"crop": 12, "contrast_low": 1.0, "contrast_high": 1.0}),
    "contrast alone": ((2, 20, 22), {"crop": 12, "brightness": 0.0}),
    "one factor of contrast": ((2, 20, 22), {"crop": 12, "contrast_low": 2.0, "contrast_high": 2.0}),
}


def example(shape, size, device, *, count=30, groups=5, seed=0):
    """images, examples, draws and counterparts; some images are blank, or nearly, and some draws at their limits."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8)
    images[0], images[1], images[2] = 0, 255, 200
    images[2, :, ::2] = 201
    order = torch.randperm(count, generator=generator)
    sizes = torch.tensor([len(part) for part in order.chunk(groups)])
    group = torch.arange(groups).repeat_interleave(sizes)
    where = torch.empty(count, dtype=torch.int64)
    where[order] = group
    counterparts = Counterparts(order, (sizes.cumsum(0) - sizes)[where], sizes[where])
    examples = torch.randint(count, (size,), generator=generator)
    examples[: min(4, size)] = torch.tensor([0, 1, 2, 0])[:size]
    draws = torch.rand((len(ROWS), size), generator=generator)
    draws[:, -1] = BELOW_ONE
    if size > 1:
        draws[:, -2] = 0.0
        draws[4:6, -3] = torch.tensor([0.0, BELOW_ONE])
    return (
        images.to(device),
        examples.to(device),
        draws.to(device),
        Counterparts(*(each.to(device) for each in counterparts)),
    )


def by_formulas(images, examples, draws, config, counterparts=None, mixup=0.0):
    """The batch by the functions of emcaps.data, on the CPU, from the draws that the kernels get."""
    images, examples = images.cpu(), examples.cpu()
    drawn = dict(zip(ROWS, draws.cpu(), strict=True))
    crops = before_cropping(images[examples], config.standardise)
    if counterparts is not None:
        counterparts = Counterparts(*(each.cpu() for each in counterparts))
        others = before_cropping(images[counterparts.choose(examples, drawn["counterpart"])], config.standardise)
        line = [drawn[name][:, None, None] for name in ("chosen", "turn", "offset")]
        assert_no_pixel_on_a_line(images.shape[-2:], *line[1:])
        crops = splice_along(crops, others, config.splice, *line)
    tops, lefts = (
        places(drawn[name], crop_starts(side, config.crop, config.max_shift))
        for name, side in zip(("top", "left"), images.shape[-2:], strict=True)
    )
    crops = after_cropping(crop_at(crops, config.crop, tops, lefts), config.standardise)
    crops = brighten(crops, config.brightness, drawn["brightness"][:, None, None, None])
    crops = scale_contrast(crops, config.contrast_low, config.contrast_high, drawn["contrast"][:, None, None, None])
    return mix_in(crops, mixup, drawn["mixup"]) if mixup else (crops, None)


def places(drawn, starts):
    """One of the starts for each uniform number, all equally likely."""
    return starts.start + (drawn * len(starts)).long().clamp(max=len(starts) - 1)


def assert_no_pixel_on_a_line(sides, turn, offset):
    """There rounding would decide which image a pixel is of: the examples have no such pixel."""
    angle = 2 * math.pi * turn.double()
    distance = FARTHEST * min(sides) * (2 * offset.double() - 1)
    down, across = (torch.arange(side) - (side - 1) / 2 for side in sides)
    assert (down[:, None] * angle.sin() + across * angle.cos() - distance).abs().min() > 1e-4


def by_kernels(images, examples, draws, config, counterparts=None, mixup=0.0):
    from emcaps.train.batch_kernels import make_crops, mix_crops

    crops = make_crops(images, examples, draws, config, counterparts)
    return mix_crops(crops, draws, mixup) if mixup else (crops, None)


def assert_same_batch(got, want):
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            assert one.dtype == torch.float32
            torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-5)


def assert_kernels_compute_the_formulas(given, config, spliced, mixup):
    images, examples, draws, counterparts = given
    arguments = images, examples, draws, config, counterparts if spliced else None, mixup
    from routing.fused import poisoned_memory  # not found when this file runs as a program

    with poisoned_memory():
        got, again = by_kernels(*arguments), by_kernels(*arguments)
    assert got[0].shape == (len(examples), images.shape[1], config.crop, config.crop)
    assert_same_batch(got, by_formulas(*arguments))
    for one, other in zip(got, again, strict=True):
        assert one is other is None or torch.equal(one, other)


@pytest.mark.parametrize("mixup", [0.0, 0.5])
@pytest.mark.parametrize("splice", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("standardise", STANDARDS)
def test_kernels_compute_the_formulas(standardise, splice, mixup, device):
    config = DataConfig(crop=11, standardise=standardise, splice=splice or 0.0)
    given = example((2, 22, 19), 16, device)
    assert_kernels_compute_the_formulas(given, config, splice is not None, mixup)


@pytest.mark.parametrize("standardise", STANDARDS)
@pytest.mark.parametrize("case", SHAPES)
def test_kernels_take_every_shape_and_setting(case, standardise, device):
    shape, settings = SHAPES[case]
    config = DataConfig(standardise=standardise, splice=0.6, **settings)
    assert_kernels_compute_the_formulas(example(shape, 7, device), config, True, 0.3)
    assert_kernels_compute_the_formulas(example(shape, 3, device), config, False, 0.0)


def test_tiles_hold_a_crop_and_as_much_of_an_image_as_fits():
    from emcaps.train.batch_kernels import tiles

    assert tiles(1, 8, 8, 8) == (1, 64, 64, 4)
    assert tiles(1, 48, 48, 32) == (1, 1024, 4096, 8)
    assert tiles(2, 48, 48, 32) == (2, 1024, 4096, 16)
    for case, passes in {"stereo, wide": 1, "an image of several tiles": 2, "one row more than a tile": 2}.items():
        (channels, height, width), settings = SHAPES[case]
        _, _, tile, _ = tiles(channels, height, width, settings["crop"])
        assert math.ceil(height * width / tile) == passes, case


@pytest.mark.parametrize("standardise", STANDARDS)
def test_a_batch_of_one_is_its_own_neighbour(standardise, device):
    given = example((2, 22, 19), 1, device)
    config = DataConfig(crop=11, standardise=standardise, splice=1.0)
    assert_kernels_compute_the_formulas(given, config, True, 0.5)
    images, examples, draws, counterparts = given
    (mixed, own), (crops, _) = (
        by_kernels(images, examples, draws, config, counterparts, mixup) for mixup in (0.5, 0.0)
    )
    assert 0.5 <= float(own) < 0.51
    torch.testing.assert_close(mixed, crops, rtol=0, atol=1e-6)


@pytest.mark.parametrize("standardise", STANDARDS)
def test_blank_images_become_zeros(standardise, device):
    images, _, draws, _ = example((1, 22, 19), 4, device)
    config = DataConfig(crop=11, standardise=standardise, **PLAIN)
    crops, _ = by_kernels(images, torch.tensor([0, 1, 1, 0], device=device), draws, config)
    assert not crops.any()


@pytest.mark.parametrize("standardise", STANDARDS)
def test_a_single_light_pixel_is_divided_by_the_least_deviation(standardise, device):
    """Its image has less than that: sqrt(n - 1) / n, where 1 / sqrt(n) is the least."""
    images, _, draws, _ = example((2, 22, 19), 4, device)
    images[0, 1, 10, 9] = 1
    config = DataConfig(crop=17, standardise=standardise, **PLAIN)
    arguments = images, torch.zeros(4, dtype=torch.int64, device=device), draws, config
    crops, want = by_kernels(*arguments)[0].cpu(), by_formulas(*arguments)[0]
    torch.testing.assert_close(crops, want, rtol=1e-6, atol=1e-6)
    count = {"image": 2 * 22 * 19, "crop": 2 * 17 * 17}.get(standardise)
    height = 1 / 40 if count is None else (1 - 1 / count) * math.sqrt(count)
    torch.testing.assert_close(crops.amax((1, 2, 3)), torch.full((4,), height))


@pytest.mark.parametrize(("shift", "first", "last"), [(0, 7, 7), (3, 4, 10), (99, 0, 15)])
def test_crops_begin_at_the_first_and_the_last_place(shift, first, last, device):
    """Rows of grey 0, 1 and so on, and columns: the first pixel of a crop tells where it begins."""
    side, crop = 23, 8
    rows = torch.arange(side, dtype=torch.uint8)[:, None].expand(side, side)
    images = torch.stack([rows, rows.T])[None].contiguous().to(device)
    draws = torch.tensor([0.0, BELOW_ONE], device=device).expand(len(ROWS), 2).contiguous()
    config = DataConfig(crop=crop, max_shift=shift, standardise="background", **PLAIN)
    crops, _ = by_kernels(images, torch.zeros(2, dtype=torch.int64, device=device), draws, config)
    grey = 40 * crops[:, :, 0, 0].cpu() + 11  # the mean of each edge
    torch.testing.assert_close(grey, torch.tensor([[first, first], [last, last]]).float())


def test_a_comparison_with_other_draws_fails(device):
    """Each row of the draws matters, and the comparison sees it."""
    config = DataConfig(crop=11, splice=0.5)
    images, examples, draws, counterparts = example((2, 22, 19), 16, device)
    for row in range(len(ROWS)):
        others = draws.clone()
        others[row] = 1 - others[row].clamp(2**-24)
        got = by_kernels(images, examples, others, config, counterparts, 0.5)
        with pytest.raises(AssertionError):
            assert_same_batch(got, by_formulas(images, examples, draws, config, counterparts, 0.5))


def test_addresses_have_64_bits(device):
    """A data set of more than 2**31 bytes, of which memory is touched at its end alone."""
    small, examples, draws, counterparts = example((1, 48, 48), 5, device)
    try:
        images = torch.empty((1_000_000, 1, 48, 48), dtype=torch.uint8, device=device)
    except RuntimeError:
        pytest.skip("needs 2.3 GB of memory")
    assert images.numel() > 2**31
    images[-len(small) :] = small
    first = len(images) - len(small)
    far = Counterparts(
        counterparts.grouped + first,
        *(torch.cat([values.new_zeros(first), values]) for values in (counterparts.first, counterparts.size)),
    )
    config = DataConfig(crop=8, splice=1.0)
    got = by_kernels(images, examples + first, draws, config, far)
    assert torch.equal(got[0], by_kernels(small, examples, draws, config, counterparts)[0])


@pytest.fixture
def launched(monkeypatch, device):
    """Counts the batches that kernels make, on a CPU too."""
    batches = []
    real = batch._by_kernels

    def counted(*arguments):
        batches.append(len(arguments[1]))
        return real(*arguments)

    monkeypatch.setattr(batch, "_by_kernels", counted)
    if device == "cpu":
        monkeypatch.setattr(batch, "_runs_kernels", lambda device: True)
    return batches


@pytest.mark.parametrize("mixup", [0.0, 0.5])
def test_a_batch_draws_all_its_numbers_at_once(mixup, device, launched):
    images, examples, _, counterparts = example((2, 22, 19), 16, device)
    config = DataConfig(crop=11, splice=0.5)
    generators = [torch.Generator(device).manual_seed(4) for _ in range(2)]
    got = training_batch(images, examples, config, generators[0], counterparts, mixup)
    draws = torch.rand((len(ROWS), 16), generator=generators[1], device=device)
    assert launched == [16]
    assert_same_batch(got, by_formulas(images, examples, draws, config, counterparts, mixup))


@pytest.mark.parametrize("mixup", [0.0, 0.5])
@pytest.mark.parametrize(
    "change",
    [
        *({"mirror": 0.5}, {"turn": 5.0}, {"zoom": 0.1}, {"slant": 0.1}, {"stretch": 0.1}, {"bend": 1.0}),
        *({"pad": 2}, {"crop": 95}),
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_kernels_cannot_do_torch_does(change, mixup, device, launched):
    images, examples, _, counterparts = example((2, 96, 97), 3, device)
    config = DataConfig(**{"crop": 11, "splice": 0.5, **change})
    crops, own = training_batch(images, examples, config, torch.Generator(device), counterparts, mixup)
    assert launched == []
    assert crops.shape == (3, 2, config.crop, config.crop)
    assert crops.isfinite().all()
    assert (own is not None) == bool(mixup)


def test_images_that_kernels_cannot_read_go_by_torch(device, launched):
    images, examples, _, _ = example((1, 22, 19), 3, device)
    config, generator = DataConfig(crop=11), torch.Generator(device)
    for others in (images.float(), images.transpose(2, 3), images.expand(30, 2, 22, 19)):
        training_batch(others, examples, config, generator)
    large = torch.zeros((1, 1, 513, 512), dtype=torch.uint8, device=device)
    training_batch(large, examples.clamp(max=0), config, generator)
    with pytest.raises(ValueError, match=r"crop must be 1 to 19 .* not 20"):
        training_batch(images, examples, DataConfig(crop=20), generator)
    with pytest.raises(ValueError, match="four dims"):
        training_batch(images[:, 0], examples, config, generator)
    assert launched == []


def test_images_may_begin_at_any_byte(device, launched):
    images, examples, _, _ = example((1, 21, 19), 7, device)
    config, examples = DataConfig(crop=11), examples.clamp(max=5)
    slices = images[5:], images[5:].clone()
    assert slices[0].data_ptr() % 4
    got, want = (training_batch(each, examples, config, torch.Generator(device).manual_seed(1)) for each in slices)
    assert torch.equal(got.crops, want.crops)
    assert launched == [7, 7]


def test_kernels_run_on_a_gpu_alone(device, monkeypatch):
    """Without the fixture: the choice is real. On a CPU it is torch, whose bits recorded runs have."""
    launched = []
    real = batch._by_kernels
    monkeypatch.setattr(batch, "_by_kernels", lambda *arguments: launched.append(1) or real(*arguments))
    images, examples, _, counterparts = example((2, 22, 19), 16, device)
    training_batch(images, examples, DataConfig(crop=11, splice=0.5), torch.Generator(device), counterparts, 0.5)
    assert launched == ([1] if device == "cuda" else [])
    training_batch(images.cpu(), examples.cpu(), DataConfig(crop=11), torch.Generator().manual_seed(0), None, mixup=0.5)
    assert launched == ([1] if device == "cuda" else [])


@pytest.mark.parametrize("mixup", [0.0, 0.5])
@pytest.mark.parametrize("splice", [0.0, 0.5])
def test_on_a_cpu_counterparts_are_drawn_first_and_shares_last(splice, mixup):
    """Bit for bit, since runs are recorded there."""
    images, examples, _, counterparts = example((2, 22, 19), 16, "cpu")
    config = DataConfig(crop=11, splice=splice)
    got = training_batch(
        images, examples, config, torch.Generator().manual_seed(3), counterparts if splice else None, mixup
    )
    generator = torch.Generator().manual_seed(3)
    others = images[counterparts.draw(examples, generator)] if splice else None
    crops, own = augment(images[examples], config, generator, others), None
    if mixup:
        crops, own = mix(crops, mixup, generator)
    assert torch.equal(got.crops, crops)
    assert got.own is own is None or torch.equal(got.own, own)


def test_a_device_without_triton_goes_by_torch(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr(batch, "unavailable", lambda impl, device: [])
    assert batch._runs_kernels(cuda)
    assert not batch._runs_kernels(torch.device("cpu"))
    monkeypatch.setattr(batch, "unavailable", lambda impl, device: [f"no {impl} on {device}"])
    assert not batch._runs_kernels(cuda)


def test_the_kernels_compile_for_a_gpu(tmp_path):
    pytest.importorskip("triton.backends.nvidia")
    assert count_compiled(__file__, tmp_path) == 21


def launch_all():
    images, examples, draws, counterparts = example((2, 48, 48), 16, "cpu")
    for standardise in STANDARDS:
        config = DataConfig(standardise=standardise, splice=0.5)
        by_kernels(images, examples, draws, config)
        by_kernels(images, examples, draws, config, counterparts, mixup=0.5 if standardise == "crop" else 0.0)


if __name__ == "__main__":
    print(len(compile_for((70, 80, 90), launch_all)))
