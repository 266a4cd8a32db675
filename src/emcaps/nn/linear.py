"""F.linear whose gradient of the bias takes half the time on a GPU.

There torch's own, one sum over all positions of all images, takes longer than the product with the weight: it has too
few columns to keep a GPU busy. Here the positions of each image are summed first, then the images.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from emcaps.routing.operators import is_plain_call, is_transformed


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear of inputs (B, ..., channels), with the same bits.

    What torch.compile, vmap, autocast and the like have to see is torch's own operator.
    """
    if bias is not None and inputs.is_cuda and is_plain_call((inputs, weight, bias)):
        learns = torch.is_grad_enabled() and bias.requires_grad and inputs.dim() > 2
        if learns and not torch.is_autocast_enabled("cuda") and not is_transformed((inputs, weight, bias)):
            output: Tensor = _Linear.apply(inputs, weight, bias)
            return output
    return F.linear(inputs, weight, bias)


class _Linear(torch.autograd.Function):
    """F.linear with its gradients written out; they have gradients themselves, for second derivatives."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        inputs, weight = ctx.saved_tensors
        of_inputs = gradient @ weight if ctx.needs_input_grad[0] else None
        of_weight = gradient.flatten(0, -2).t() @ inputs.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return of_inputs, of_weight, sum_over_positions(gradient)


def sum_over_positions(values: Tensor) -> Tensor:
    """(channels,): the sum of values (B, ..., channels) over everything else."""
    return values.flatten(1, -2).sum(1).sum(0)
