"""What the operators of both packages of kernels share: their arguments, when a call may skip them, their gradients.

Each package defines three operators, which autograd, torch.compile and torch.export know. `route` keeps nothing.
`route_and_keep` also returns what `route_backward` needs, and is the one with a gradient. A plain call skips the
operators, because PyTorch's wrappers around them take longer than many of the kernels; it does the same work through
an autograd function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from emcaps.routing.layer_shape import LayerShape

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""pose, activation, weight, beta_u, beta_a."""

ARGUMENTS = (
    "(Tensor pose, Tensor activation, Tensor weight, Tensor beta_u, Tensor beta_a, SymInt[] stride, bool by_position, "
    "int iterations, float final_lambda, float variance_floor, float data_unit)"
)
"""The schema of what `route` and `route_and_keep` take: the inputs, then the fields of `KernelSettings`."""


class KernelSettings(NamedTuple):
    """The settings of one routing as kernels take them."""

    stride: tuple[int, int]
    by_position: bool
    """Whether only the parent types at one position compete for a child."""
    iterations: int
    final_lambda: float
    variance_floor: float
    data_unit: float
    """What a parent's data is divided by in its cost: the layer's mean data, or 1."""


OWN_MEAN_DATA = 0.0
"""Given as `data_unit` to the operators on a CPU: the mean data of the layer that they are called with. Else a compiler
would compile a graph for each size of layer."""


def split(arguments: Sequence[Any]) -> tuple[Inputs, KernelSettings]:
    """The inputs and the settings among an operator's arguments."""
    pose, activation, weight, beta_u, beta_a, *settings = arguments
    return (pose, activation, weight, beta_u, beta_a), KernelSettings(*settings)


def is_plain_call(inputs: Sequence[object]) -> bool:
    """Whether no compiler, tracer or dispatch mode has to see the operators, and all tensors are ordinary ones."""
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return False
    return _ORDINARY.issuperset(map(type, inputs))


_ORDINARY = {Tensor, Parameter}


def apply(function: type[Function], *arguments: Any) -> Any:
    """`function.apply` for a plain call.

    Torch's own first looks through all arguments for what a transform may have left of its tensors: for nothing where
    no transform is active and `is_transformed` has looked already.
    """
    if torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return super(Function, function).apply(*arguments)  # type: ignore[misc]


def is_transformed(inputs: Sequence[object]) -> bool:
    """Whether the call is under a transform such as vmap or jvp, which only plain PyTorch supports."""
    if torch.compiler.is_compiling():
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    tensors = [tensor for tensor in inputs if isinstance(tensor, Tensor)]
    if any(map(is_wrapped, tensors)):
        return True
    may_be_dual = getattr(forward_ad, "_current_level", 0) >= 0  # below, no tensor has a tangent
    return may_be_dual and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def needs_gradients(inputs: Inputs) -> bool:
    pose, activation, weight, beta_u, beta_a = inputs
    return torch.is_grad_enabled() and (
        weight.requires_grad
        or pose.requires_grad
        or activation.requires_grad
        or beta_u.requires_grad
        or beta_a.requires_grad
    )


def empty_outputs(layer: LayerShape, like: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the parents' poses and activations."""
    return like.new_empty(*layer.output_shape, 4, 4), like.new_empty(layer.output_shape)


def gradients_of_outputs(
    pose_gradient: Tensor | None, activation_gradient: Tensor | None, layer: LayerShape, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Both gradients, with zeros for an output that the loss does not depend on."""
    if pose_gradient is None:
        pose_gradient = like.new_zeros(*layer.output_shape, 4, 4)
    if activation_gradient is None:
        activation_gradient = like.new_zeros(layer.output_shape)
    return pose_gradient, activation_gradient


def gradients_of_arguments(
    backward: Callable[..., Any], ctx: Any, pose_gradient: Tensor | None, activation_gradient: Tensor | None
) -> tuple[Any, ...]:
    """The gradients of the five inputs, then None for each setting. `ctx` has what the forward pass saved."""
    refuse_second_derivative()
    *found, betas = backward(pose_gradient, activation_gradient, *ctx.saved_tensors, *ctx.settings)
    return *found, *betas.unbind(), *[None] * len(KernelSettings._fields)


def refuse_second_derivative() -> None:
    # In a backward pass gradients are enabled only if a graph of the gradients is asked for.
    if torch.is_grad_enabled():
        raise RuntimeError("the fused kernels have no second derivative: use impl='reference'")
