"""Training crops from the whole data set in one GPU kernel, and their mixing in another; batch.py says when they run.

The formulas are those of emcaps.data: augment.py, combine.py and crops.py. Each program makes one image of the batch.

Dims: B batch; images uint8 (N, C, H, W); examples int64 (B,); draws float32 (9, B), uniform in [0, 1), a row for each
name in DRAWS; crops float32 (B, C, crop, crop). In the kernels a tile is (CHANNELS, places), both powers of two.
"""

import functools
import math

import torch
import triton
import triton.language as tl

from emcaps.data.augment import crop_starts
from emcaps.data.combine import FARTHEST
from emcaps.data.crops import GREY_LEVELS
from emcaps.routing.triton_kernels.fast_launch import Launches, Part, Step, on_device_of

DRAWS = ("counterpart", "chosen", "turn", "offset", "top", "left", "brightness", "contrast", "mixup")
"""What each row of the draws is for. All are drawn, used or not: settings do not change each other's numbers."""
COUNTERPART, CHOSEN, TURN, OFFSET, TOP, LEFT, BRIGHTNESS, CONTRAST, MIXUP = map(tl.constexpr, range(len(DRAWS)))
WHOLE_TURN = tl.constexpr(2 * math.pi)
INPUTS = ("images", "examples", "draws", "grouped", "first", "size")
"""The kernel's tensors before the crops; the last three, of the counterparts, may be left out together."""
TILE = 2**14
"""How many grey levels of a whole image a program reads at a time, at most."""
MIXED = 1024
"""How many values of a crop a program mixes."""


def make_crops(images, examples, draws, config, counterparts=None):
    """The crops. Every example must be the number of an image: the kernel reads its memory unchecked."""
    assert images.is_contiguous(), "the kernel computes addresses from the shape"
    assert examples.dtype == torch.int64, "the compiled form does not depend on the type"
    batch, (channels, *sides) = len(examples), images.shape[1:]
    crops = torch.empty((batch, channels, config.crop, config.crop), dtype=torch.float32, device=images.device)
    spliced = counterparts is not None and config.splice > 0
    launches = _crops(batch, channels, *sides, config, spliced, images.get_device())
    others = counterparts if spliced else ()
    with on_device_of(images):
        launches(images, examples.contiguous(), draws, *others, crops)
    return crops


def mix_crops(crops, draws, largest):
    """The mixed crops, and each one's own share (B,)."""
    mixed, own = torch.empty_like(crops), draws.new_empty(len(crops))
    launches = _mixing(len(crops), crops[0].numel(), float(largest), crops.get_device())
    with on_device_of(crops):
        launches(crops, draws, mixed, own)
    return mixed, own


@functools.lru_cache(maxsize=64)
def _crops(batch, channels, height, width, config, spliced, device):
    """The launch of `cut_and_vary`, prepared."""
    tops, lefts = (crop_starts(side, config.crop, config.max_shift) for side in (height, width))
    rows, places, tile, warps = tiles(channels, height, width, config.crop)
    of_what = (config.crop, config.crop) if config.standardise == "crop" else (height, width)
    names = (*(INPUTS if spliced else INPUTS[:3]), "crops")
    step = Step(
        cut_and_vary,
        (batch, 1, 1),
        tuple([Part(name) if name in names else None for name in (*INPUTS, "crops")]),
        (
            batch,
            tops.start,
            len(tops),
            lefts.start,
            len(lefts),
            1 / math.sqrt(channels * math.prod(of_what)),
            float(config.splice),
            FARTHEST * min(height, width),
            float(config.brightness),
            float(config.contrast_low),
            float(config.contrast_high - config.contrast_low),
        ),
        (
            channels,
            height,
            width,
            config.crop,
            config.standardise,
            GREY_LEVELS,
            config.brightness != 0,
            (config.contrast_low, config.contrast_high) != (1, 1),
            rows,
            places,
            tile,
        ),
        warps,
    )
    return Launches([step], names, device)


@functools.lru_cache(maxsize=64)
def _mixing(batch, values, largest, device):
    """The launch of `mix_with_neighbour`, prepared."""
    step = Step(
        mix_with_neighbour,
        (batch, triton.cdiv(values, MIXED), 1),
        tuple([Part(name) for name in ("crops", "draws", "mixed", "own")]),
        (batch, largest),
        (values, MIXED),
    )
    return Launches([step], ("crops", "draws", "mixed", "own"), device)


def tiles(channels, height, width, crop):
    """Rows of the tiles, places of a crop's, places of a whole image's, and warps."""
    rows = triton.next_power_of_2(channels)
    places = triton.next_power_of_2(crop * crop)
    tile = min(triton.next_power_of_2(height * width), TILE // rows)
    largest = rows * max(places, tile)
    return rows, places, tile, 4 if largest < 2048 else 8 if largest < 8192 else 16


@triton.jit
def floor_of(drawn, count):
    """The whole number below `count` that a uniform number draws; a product may round up to `count` itself."""
    return tl.minimum((drawn * count.to(tl.float32)).to(count.dtype), count - 1)


@triton.jit
def sum_all(values):
    """The sum (1, 1) of a tile."""
    return tl.sum(tl.sum(values, 1, keep_dims=True), 0, keep_dims=True)


@triton.jit
def mean_and_deviation(total, squares, floor, COUNT: tl.constexpr):
    """Of COUNT whole numbers, from their sum and the sum of their squares, (1, 1) each.

    Both sums are exact, and so is COUNT**2 times the variance, which is their difference here. Floats would cancel.
    """
    total = total.to(tl.int64)
    spread = COUNT * squares.to(tl.int64) - total * total
    variance = tl.div_rn(spread.to(tl.float32), tl.full((1, 1), COUNT * COUNT, tl.float32))
    mean = tl.div_rn(total.to(tl.float32), tl.full((1, 1), COUNT, tl.float32))
    return mean, tl.maximum(tl.sqrt_rn(variance), floor)


@triton.jit
def grey_scale(
    image_pointer,
    floor,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    STANDARDISE: tl.constexpr,
    GREY_LEVELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
):
    """How a whole image is standardised, as offset and scale: (1, 1), or the offset (CHANNELS, 1).

    Sums over a tile fit into int32. An image has two rows and columns or more, so its outermost pixels are
    2 (H + W) - 4.
    """
    channel = tl.arange(0, CHANNELS)[:, None]
    total = tl.zeros((CHANNELS, 1), tl.int32)
    squares = tl.zeros((1, 1), tl.int64)
    for start in range(0, H * W, TILE):
        place = start + tl.arange(0, TILE)[None, :]
        counts = (channel < C) & (place < H * W)
        if STANDARDISE == "background":
            row, column = place // W, place % W
            counts = counts & ((row == 0) | (row == H - 1) | (column == 0) | (column == W - 1))
        grey = tl.load(image_pointer + channel * (H * W) + place, mask=counts, other=0).to(tl.int32)
        total += tl.sum(grey, 1, keep_dims=True)
        if STANDARDISE == "image":
            squares += sum_all(grey * grey).to(tl.int64)
    if STANDARDISE == "background":
        offset = tl.div_rn(total.to(tl.float32), tl.full((CHANNELS, 1), 2 * (H + W) - 4, tl.float32))
        scale = tl.full((1, 1), GREY_LEVELS, tl.float32)
    else:
        offset, scale = mean_and_deviation(tl.sum(total, 0, keep_dims=True), squares, floor, C * H * W)
    return offset, scale


@triton.jit(
    do_not_specialize=["B", "first_top", "tops", "first_left", "lefts"],
    do_not_specialize_on_alignment=[
        "images_pointer",
        "examples_pointer",
        "draws_pointer",
        "grouped_pointer",
        "first_pointer",
        "size_pointer",
    ],
)
def cut_and_vary(
    images_pointer,
    examples_pointer,
    draws_pointer,
    grouped_pointer,
    first_pointer,
    size_pointer,
    crops_pointer,
    B,
    first_top,
    tops,
    first_left,
    lefts,
    floor,
    share,
    farthest,
    brightness,
    contrast_low,
    contrast_range,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    CROP: tl.constexpr,
    STANDARDISE: tl.constexpr,
    GREY_LEVELS: tl.constexpr,
    BRIGHTEN: tl.constexpr,
    STRETCH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PLACES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Store one crop. The order is that of `augment`: standardise, splice, crop, brightness, contrast."""
    batch = tl.program_id(0)
    draws_pointer += batch
    example = tl.load(examples_pointer + batch)  # int64, and so are the products below
    channel = tl.arange(0, CHANNELS)[:, None]
    place = tl.arange(0, PLACES)[None, :]
    is_inside = (channel < C) & (place < CROP * CROP)
    row = first_top + floor_of(tl.load(draws_pointer + TOP * B), tops) + place // CROP
    column = first_left + floor_of(tl.load(draws_pointer + LEFT * B), lefts) + place % CROP

    start = example * (C * H * W)
    if STANDARDISE != "crop":
        offset, scale = grey_scale(images_pointer + start, floor, C, H, W, STANDARDISE, GREY_LEVELS, CHANNELS, TILE)
    if grouped_pointer is not None:
        number = floor_of(tl.load(draws_pointer + COUNTERPART * B), tl.load(size_pointer + example))
        there = tl.load(grouped_pointer + tl.load(first_pointer + example) + number) * (C * H * W)
        angle = WHOLE_TURN * tl.load(draws_pointer + TURN * B)
        distance = farthest * (2.0 * tl.load(draws_pointer + OFFSET * B) - 1.0)
        is_chosen = tl.load(draws_pointer + CHOSEN * B) < share
        down, across = row.to(tl.float32) - (H - 1) / 2, column.to(tl.float32) - (W - 1) / 2
        is_beyond = down * tl.sin(angle) + across * tl.cos(angle) > tl.where(is_chosen, distance, float("inf"))
        start = tl.where(is_beyond, there, start)
        if STANDARDISE != "crop":
            offset_there, scale_there = grey_scale(
                images_pointer + there, floor, C, H, W, STANDARDISE, GREY_LEVELS, CHANNELS, TILE
            )
            offset, scale = tl.where(is_beyond, offset_there, offset), tl.where(is_beyond, scale_there, scale)
    grey = tl.load(images_pointer + start + channel * (H * W) + row * W + column, mask=is_inside, other=0)

    if STANDARDISE == "crop":
        grey = grey.to(tl.int32)  # 0 beyond the crop; the sums over a tile fit
        offset, scale = mean_and_deviation(sum_all(grey), sum_all(grey * grey), floor, C * CROP * CROP)
    value = grey.to(tl.float32) - offset
    value = tl.div_rn(value, tl.broadcast_to(scale, value.shape))
    if BRIGHTEN:
        value += brightness * (2.0 * tl.load(draws_pointer + BRIGHTNESS * B) - 1.0)
    if STRETCH:
        factor = contrast_low + contrast_range * tl.load(draws_pointer + CONTRAST * B)
        total = tl.sum(tl.where(is_inside, value, 0.0), 1, keep_dims=True)
        mean = tl.div_rn(total, tl.full((CHANNELS, 1), CROP * CROP, tl.float32))
        value = mean + factor * (value - mean)
    crop_pointer = crops_pointer + batch.to(tl.int64) * (C * CROP * CROP)
    tl.store(crop_pointer + channel * (CROP * CROP) + place, value, mask=is_inside)


@triton.jit(do_not_specialize=["B"], do_not_specialize_on_alignment=["draws_pointer"])
def mix_with_neighbour(
    crops_pointer, draws_pointer, mixed_pointer, own_pointer, B, largest, VALUES: tl.constexpr, MIXED: tl.constexpr
):
    """Store MIXED values of one mixed crop, and its own share. The first crop's neighbour is the last one."""
    batch = tl.program_id(0)
    neighbour = tl.where(batch == 0, B - 1, batch - 1)
    drawn = tl.load(draws_pointer + MIXUP * B + batch)
    share = 1.0 - largest * (drawn * drawn)
    value = tl.program_id(1) * MIXED + tl.arange(0, MIXED)
    is_inside = value < VALUES
    own = tl.load(crops_pointer + batch.to(tl.int64) * VALUES + value, mask=is_inside, other=0.0)
    other = tl.load(crops_pointer + neighbour.to(tl.int64) * VALUES + value, mask=is_inside, other=0.0)
    mixed = share * own + (1.0 - share) * other
    tl.store(mixed_pointer + batch.to(tl.int64) * VALUES + value, mixed, mask=is_inside)
    if tl.program_id(1) == 0:
        tl.store(own_pointer + batch, share)
