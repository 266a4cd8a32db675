"""Losses on class activations, and the count of right answers, as pure functions.

activation (B, classes) in 0 to 1; target (B,) class numbers. On a GPU each function is one kernel, which finds the
gradient by the activations with the loss (loss_kernels.py); the formulas here are what it computes. They run everywhere
else: on a CPU, in float64, in graphs that are compiled or exported, under vmap and the like, for second derivatives.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

import torch
from torch import Tensor

from emcaps.routing.availability import unavailable
from emcaps.routing.operators import apply, is_plain_call, is_transformed

MARGIN_PRESENT, MARGIN_ABSENT, ABSENT_WEIGHT = 0.9, 0.1, 0.5
TINY = 1e-12
"""So that an activation that underflowed to 0 still has a finite logarithm."""
MOST_CLASSES, MOST_ACTIVATIONS = 1024, 2**20
"""Beyond these, one program of a kernel would take longer than many launches."""

Weight = float | Tensor | None
"""What each example's part of a loss is multiplied by: a number for all of them, or a tensor (B,)."""


def spread_loss(activation: Tensor, target: Tensor, margin: float | Tensor, weight: Weight = None) -> Tensor:
    """Every wrong class should stay `margin` below the right one: squared shortfalls, summed, mean over the batch.

    The margin may be a tensor of no dims, so that it can change between replays of a CUDA graph. In all losses a
    weight, a number or (B,), multiplies each example's part of the mean.
    """
    if isinstance(margin, Tensor):
        if margin.shape not in ((), (1,)):
            raise ValueError(f"margin must be one number for all examples, not {tuple(margin.shape)}: give a tensor ()")
    elif not 0 <= margin <= 1:
        raise ValueError(f"margin must be 0 to 1, as activations are, not {margin}: the paper's rises from 0.2 to 0.9")
    return _loss("spread", activation, target, weight, margin)


def margin_loss(activation: Tensor, target: Tensor, weight: Weight = None) -> Tensor:
    """Sabour et al. (2017): the right class above 0.9, wrong ones below 0.1, which count half."""
    return _loss("margin", activation, target, weight)


def cross_entropy_loss(activation: Tensor, target: Tensor, weight: Weight = None) -> Tensor:
    """Minus the logarithm of the right class's share of all activation."""
    return _loss("cross_entropy", activation, target, weight)


def right_answers(activation: Tensor, target: Tensor) -> Tensor:
    """How many examples have their highest activation, or the first of several, at the target: a float of no dims."""
    if _fits_kernel(activation, target, None, 0.0):
        return _in_one_kernel("right", activation, target)[0]
    return (activation.argmax(-1) == target).sum(dtype=torch.float32)


def _loss(kind: str, activation: Tensor, target: Tensor, weight: Weight, margin: float | Tensor = 0.0) -> Tensor:
    if not _fits_kernel(activation, target, weight, margin):
        return _by_formula(kind, activation, target, weight, margin)
    if torch.is_grad_enabled() and activation.requires_grad:
        loss: Tensor = apply(_FusedLoss, kind, activation, target, weight, margin)
        return loss
    return _in_one_kernel(kind, activation, target, weight, margin)[0]


def _by_formula(kind: str, activation: Tensor, target: Tensor, weight: Weight, margin: float | Tensor) -> Tensor:
    _check_shapes(activation, target, weight)
    target = target.long()  # torch indexes with int64, and with int32 on some devices
    if kind == "spread":
        losses = _spread_losses(activation, target, margin)
    else:
        losses = (_margin_losses if kind == "margin" else _cross_entropy_losses)(activation, target)
    return losses.mean() if weight is None else (losses * weight).mean()


def _check_shapes(activation: Tensor, target: Tensor, weight: Weight) -> None:
    """Broadcasting would give a number, and a wrong one."""
    if not isinstance(activation, Tensor):
        raise ValueError(
            f"activation must be a tensor (batch, classes), not a {type(activation).__name__}: give the .activation of "
            "what the network returns"
        )
    if activation.dim() != 2:
        raise ValueError(f"activation must be (batch, classes), not {tuple(activation.shape)}")
    if not isinstance(target, Tensor):
        raise ValueError(
            f"target must be a tensor of class numbers, not a {type(target).__name__}: use torch.as_tensor"
        )
    if target.shape != activation.shape[:1] or target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(
            f"target must be the number of a class for each of the {len(activation)} examples, not {target.dtype} "
            f"{tuple(target.shape)}: one-hot targets become numbers by argmax(-1)"
        )
    if not isinstance(weight, (Tensor, int, float, NoneType)):
        raise ValueError(f"weight must be a number or a tensor, not a {type(weight).__name__}: use torch.as_tensor")
    if isinstance(weight, Tensor) and weight.shape not in (target.shape, (1,), ()):
        raise ValueError(f"weight must be {tuple(target.shape)}, one for each example, not {tuple(weight.shape)}")
    # A GPU would have to be waited for, and a compiler or a transform has no values to look at.
    if target.is_cpu and is_plain_call((activation, target)) and not is_transformed((activation, target)):
        classes = activation.shape[1]
        if (wrong := target[(target < 0) | (target >= classes)]).numel():
            raise ValueError(
                f"target must be 0 to {classes - 1}, the numbers of {classes} classes, not {int(wrong[0])}: number the "
                "classes from 0, or build the network for more classes"
            )


def _spread_losses(activation: Tensor, target: Tensor, margin: float | Tensor) -> Tensor:
    right = activation.gather(1, target[:, None])
    shortfall = (margin - (right - activation)).clamp(min=0).square()
    return shortfall.scatter(1, target[:, None], 0.0).sum(1)


def _margin_losses(activation: Tensor, target: Tensor) -> Tensor:
    right = activation.gather(1, target[:, None])
    present = (MARGIN_PRESENT - right).clamp(min=0).square()[:, 0]
    absent = (activation - MARGIN_ABSENT).clamp(min=0).square().scatter(1, target[:, None], 0.0)
    return present + ABSENT_WEIGHT * absent.sum(1)


def _cross_entropy_losses(activation: Tensor, target: Tensor) -> Tensor:
    activation = activation.to(torch.promote_types(activation.dtype, torch.float32))  # float16 has no such number
    right = activation.gather(1, target[:, None])[:, 0]
    return (activation.sum(1) + TINY).log() - (right + TINY).log()


def _fits_kernel(activation: Tensor, target: Tensor, weight: Weight, margin: float | Tensor) -> bool:
    """Whether the kernel can compute this loss, and does so faster. What is wrong with inputs the formulas say."""
    constants = [tensor for tensor in (weight, margin) if isinstance(tensor, Tensor)]
    tensors = activation, target, *constants
    if not (is_plain_call(tensors) and activation.is_cuda) or is_transformed(tensors):
        return False
    device = activation.device
    for tensor in constants:
        if tensor.dtype != torch.float32 or tensor.requires_grad or tensor.device != device:
            return False
    return (
        activation.dim() == 2
        and 0 < activation.shape[1] <= MOST_CLASSES
        and 0 < activation.numel() <= MOST_ACTIVATIONS
        and target.shape == activation.shape[:1]
        and (weight is None or (isinstance(weight, Tensor) and weight.shape == target.shape))
        and (not isinstance(margin, Tensor) or margin.dim() == 0)
        and activation.dtype == torch.float32
        and target.dtype == torch.int64
        and target.device == device
        and not unavailable("triton", device)
    )


def _in_one_kernel(
    kind: str,
    activation: Tensor,
    target: Tensor,
    weight: Weight = None,
    margin: float | Tensor = 0.0,
    with_gradient: bool = False,
) -> tuple[Tensor, Any]:
    """The loss, and its gradient if that is asked for."""
    from emcaps.nn.loss_kernels import fused_loss

    constants = MARGIN_PRESENT, MARGIN_ABSENT, ABSENT_WEIGHT, TINY
    loss, gradient = fused_loss(kind, activation, target, weight, margin, constants, with_gradient)
    return loss, gradient


class _FusedLoss(torch.autograd.Function):
    """A loss whose backward pass multiplies the gradient that the forward pass found."""

    @staticmethod
    def forward(
        ctx: Any, kind: str, activation: Tensor, target: Tensor, weight: Weight, margin: float | Tensor
    ) -> Tensor:
        loss, gradient = _in_one_kernel(kind, activation, target, weight, margin, with_gradient=True)
        ctx.kind, ctx.margin = kind, None if isinstance(margin, Tensor) else margin
        ctx.save_for_backward(gradient, activation, target, weight, margin if isinstance(margin, Tensor) else None)
        return loss

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        gradient, activation, target, weight, margin = ctx.saved_tensors
        # In a backward pass gradients are enabled only if a graph of the gradients is asked for.
        if torch.is_grad_enabled():
            loss = _by_formula(ctx.kind, activation, target, weight, margin if ctx.margin is None else ctx.margin)
            (found,) = torch.autograd.grad(loss, activation, slope, create_graph=True)
        else:
            found = gradient * slope
        return None, found, None, None, None
