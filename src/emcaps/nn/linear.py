"""Linear maps whose gradients take less time on a GPU: F.linear, and the two maps of primary capsules as one.

There torch's own gradient of the bias, one sum over all positions of all images, takes longer than the product with the
weight: it has too few columns to keep a GPU busy. Here the positions of each image are summed first, then the images.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from emcaps.routing.operators import apply, is_plain_call, is_transformed


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear of inputs (B, ..., channels), with the same bits. A weight of more than two dims is flattened to two."""
    if inputs.dim() > 2 and has_own_gradients(inputs, weight, bias):
        output: Tensor = apply(_Linear, inputs, weight, bias)
        return output
    return F.linear(inputs, weight.flatten(1), bias)


def has_own_gradients(inputs: Tensor, *parameters: Tensor | None) -> bool:
    """Whether a linear map of `inputs` is computed with the gradients of this file; the last parameter is its bias.

    What torch.compile, vmap, autocast and the like have to see is torch's own operator.
    """
    tensors = inputs, *parameters
    if not (inputs.is_cuda and torch.is_grad_enabled() and is_plain_call(tensors)):
        return False
    learns = parameters[-1] is not None and parameters[-1].requires_grad
    return learns and not torch.is_autocast_enabled("cuda") and not is_transformed(tensors)


class _Linear(torch.autograd.Function):
    """F.linear with its gradients written out; they have gradients themselves, for second derivatives."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return F.linear(inputs, weight.flatten(1), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        inputs, weight = ctx.saved_tensors
        of_inputs = gradient @ weight.flatten(1) if ctx.needs_input_grad[0] else None
        of_weight = gradient_of_weight(gradient, inputs).view(weight.shape) if ctx.needs_input_grad[1] else None
        return of_inputs, of_weight, sum_over_positions(gradient)


class PrimaryProduct(torch.autograd.Function):
    """Primary capsules from features (B, channels, H, W): both of their linear maps as one product.

    It does what PrimaryCaps does step by step, with the same bits, and saves autograd half a dozen steps each way.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        pose_weight: Tensor,
        activation_weight: Tensor,
        pose_bias: Tensor,
        activation_bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weight = torch.cat([pose_weight, activation_weight]).flatten(1)
        both = F.linear(features.permute(0, 2, 3, 1), weight, torch.cat([pose_bias, activation_bias]))
        types = len(activation_weight)
        pose, logit = both.split_with_sizes([16 * types, types], -1)
        activation = logit.sigmoid()
        ctx.save_for_backward(features, pose_weight, activation_weight, weight, activation)
        return pose.unflatten(-1, (types, 4, 4)), activation

    @staticmethod
    def backward(ctx: Any, pose_gradient: Tensor, activation_gradient: Tensor) -> tuple[Tensor | None, ...]:
        features, pose_weight, activation_weight, weight, activation = ctx.saved_tensors
        # In a backward pass gradients are enabled only if a graph of the gradients is asked for.
        if torch.is_grad_enabled():
            weight = torch.cat([pose_weight, activation_weight]).flatten(1)
        logit_gradient = torch.ops.aten.sigmoid_backward.default(activation_gradient, activation)
        gradient = torch.cat([pose_gradient.flatten(3), logit_gradient], -1)
        of_features = (gradient @ weight).permute(0, 3, 1, 2) if ctx.needs_input_grad[0] else None
        sizes = [len(pose_weight), len(activation_weight)]
        of_weights: tuple[Tensor | None, ...] = None, None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            of_weight = gradient_of_weight(gradient, features.permute(0, 2, 3, 1))
            of_weights = of_weight.view(-1, *pose_weight.shape[1:]).split_with_sizes(sizes)
        return of_features, *of_weights, *sum_over_positions(gradient).split_with_sizes(sizes)


def gradient_of_weight(gradient: Tensor, inputs: Tensor) -> Tensor:
    """(outputs, channels), from the gradient (B, ..., outputs) and the inputs (B, ..., channels) of a linear map."""
    return gradient.flatten(0, -2).t() @ inputs.flatten(0, -2)


def sum_over_positions(values: Tensor) -> Tensor:
    """(channels,): the sum of values (B, ..., channels) over everything else."""
    return values.flatten(1, -2).sum(1).sum(0)
