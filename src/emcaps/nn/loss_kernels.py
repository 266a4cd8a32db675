"""A loss and its gradient by the activations in one GPU kernel; the formulas are in losses.py.

activation (B, C) in float32; target (B,) class numbers in int64; weight (B,) in float32. One program does it all, image
by image and in the same order every time, because a launch takes longer than the few sums that there are.
"""

import functools

import torch
import triton
import triton.language as tl

from emcaps.routing.triton_kernels.fast_launch import Launches, Part, Step, on_device_of

TENSORS = ("activation", "target", "weight", "margin", "loss", "gradient")
"""What the kernel gets, in this order; any of the last four but the loss may be left out."""
TILE = 4096
"""How many activations the program reads at a time, at most."""


def fused_loss(kind, activation, target, weight, margin, constants, with_gradient):
    """The loss, a tensor of no dims, and its gradient (B, C), or None without `with_gradient`.

    `kind` is "spread", "margin" or "cross_entropy", or "right" for the number of right answers. `margin` is a number or
    a tensor of no dims on the device, which the kernel reads there. `constants` are those of losses.py, in the order in
    which the kernel takes them.
    """
    loss = activation.new_empty(())
    gradient = activation.new_empty(activation.shape) if with_gradient else None
    on_device = isinstance(margin, torch.Tensor)
    weight = None if weight is None else weight.contiguous()
    tensors = activation.contiguous(), target.contiguous(), weight, margin if on_device else None, loss, gradient
    names = tuple([name for name, tensor in zip(TENSORS, tensors, strict=True) if tensor is not None])
    launches = _launches(kind, activation.shape, names, constants, activation.get_device())
    with on_device_of(activation):
        launches(*[each for each in tensors if each is not None], numbers=(0.0 if on_device else float(margin),))
    return loss, gradient


@functools.lru_cache(maxsize=256)
def _launches(kind, shape, names, constants, device):
    """The launch, prepared. The margin is left to each call, since training may change it at every step."""
    batch, classes = shape
    rows, columns, warps = tile(batch, classes)
    step = Step(
        loss_and_gradient,
        (1, 1, 1),
        tuple([Part(name) if name in names else None for name in TENSORS]),
        (1.0 if kind == "right" else float(batch), batch, classes),
        (kind, *constants, rows, columns),
        warps,
        layout=names,
    )
    return Launches([step], names, device)


def tile(batch, classes):
    """Rows and columns that the program reads at a time, both powers of two, and its warps."""
    columns = triton.next_power_of_2(classes)
    rows = min(triton.next_power_of_2(batch), max(1, TILE // columns))
    return rows, columns, 8 if rows * columns >= 2048 else 4


@triton.jit
def positive(x):
    """x, or 0 if it is less. NaN stays NaN, so that a loss shows it."""
    return tl.where(x < 0.0, 0.0, x)


@triton.jit(
    do_not_specialize=["B", "C"],
    do_not_specialize_on_alignment=["activation_pointer", "target_pointer", "weight_pointer", "margin_pointer"],
)
def loss_and_gradient(
    activation_pointer,
    target_pointer,
    weight_pointer,
    margin_pointer,
    loss_pointer,
    gradient_pointer,
    margin,
    divisor,
    B,
    C,
    KIND: tl.constexpr,
    PRESENT: tl.constexpr,
    ABSENT: tl.constexpr,
    ABSENT_WEIGHT: tl.constexpr,
    TINY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Store the sum of all examples' parts, divided by `divisor`, and the slope of each activation.

    A target that is no class has no right answer, and makes the loss NaN.
    """
    if margin_pointer is not None:
        margin = tl.load(margin_pointer)
    column = tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, 1), tl.float32)
    for first in range(0, B, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        is_example = row < B
        is_class = is_example & (column < C)
        activation = tl.load(activation_pointer + row * C + column, mask=is_class, other=0.0)
        target = tl.load(target_pointer + row, mask=is_example, other=0)
        is_right = column == target
        right = tl.sum(tl.where(is_right, activation, 0.0), 1, keep_dims=True)
        slope = activation
        if KIND == "spread":
            shortfall = tl.where(is_class & (column != target), positive(margin - (right - activation)), 0.0)
            part = tl.sum(shortfall * shortfall, 1, keep_dims=True)
            slope = tl.where(is_right, -2.0 * tl.sum(shortfall, 1, keep_dims=True), 2.0 * shortfall)
        elif KIND == "margin":
            present = positive(PRESENT - right)
            absent = tl.where(is_class & (column != target), positive(activation - ABSENT), 0.0)
            part = present * present + ABSENT_WEIGHT * tl.sum(absent * absent, 1, keep_dims=True)
            slope = tl.where(is_right, -2.0 * present, 2.0 * ABSENT_WEIGHT * absent)
        elif KIND == "cross_entropy":  # in float64, because the float32 logarithm and division are approximations
            everything = tl.sum(activation.to(tl.float64), 1, keep_dims=True) + TINY
            share = right.to(tl.float64) + TINY
            part = (tl.log(everything) - tl.log(share)).to(tl.float32)
            slope = (1.0 / everything - tl.where(is_right, 1.0 / share, 0.0)).to(tl.float32)
        else:  # the first of the highest is the answer; comparisons with NaN are false, so NaN is no right answer
            is_behind = (activation < right) | ((activation == right) & (column >= target))
            ahead = tl.where(is_class & (is_behind == 0), 1.0, 0.0)
            part = tl.where(tl.sum(ahead, 1, keep_dims=True) == 0.0, 1.0, 0.0)
        is_known = (target >= 0) & (target < C)
        part = tl.where(is_known, part, 0.0 if KIND == "right" else float("nan"))
        weight = tl.full((ROWS, 1), 1.0, tl.float32)
        if weight_pointer is not None:
            weight = tl.load(weight_pointer + row, mask=is_example, other=0.0)
        total += tl.where(is_example, part * weight, 0.0)
        if gradient_pointer is not None:
            slope = tl.where(is_known, slope, float("nan")) * tl.div_rn(weight, tl.full((ROWS, 1), divisor, tl.float32))
            tl.store(gradient_pointer + row * C + column, slope, mask=is_class)
    mean = tl.div_rn(tl.sum(total, 0, keep_dims=True), tl.full((1, 1), divisor, tl.float32))
    tl.store(loss_pointer + tl.zeros((1, 1), tl.int32), mean)
