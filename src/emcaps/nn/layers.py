"""Capsule layers for any model: primary, convolutional, class and set capsules.

Dims: B batch; H, W grid; N members of a set; I child types; O parent types. Capsules travel as RoutingOutput(pose
(B, H, W, I, 4, 4), activation (B, H, W, I)), so one layer's result is the next one's input.
"""

from __future__ import annotations

import math
from typing import Any, Unpack, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emcaps.nn.linear import PrimaryProduct, has_own_gradients, linear
from emcaps.routing import (
    RoutingOutput,
    RoutingTrace,
    class_routing,
    class_routing_trace,
    conv_routing,
    conv_routing_trace,
    set_routing,
    set_routing_trace,
)
from emcaps.routing.checks import check_coordinate_scale, checked_options
from emcaps.routing.geometry import as_padding, as_pair, is_whole
from emcaps.routing.operators import apply
from emcaps.routing.settings import DEFAULTS, RoutingOptions, routing_lambda


def check_capsules(children: RoutingOutput) -> None:
    """A tensor could be taken apart like a pair, and fail far from here."""
    if not isinstance(children, (tuple, list)) or len(children) != 2:
        raise ValueError(
            f"a capsule layer reads poses and activations, not a {type(children).__name__}: give it the result of "
            "PrimaryCaps, of another capsule layer, or RoutingOutput(pose, activation)"
        )


def check_counts(**counts: int) -> None:
    """Raise ValueError unless each of these counts is a whole number of at least 1."""
    for name, count in counts.items():
        if not is_whole(count) or count < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {count!r}")


def starting_matrices(
    shape: tuple[int, ...],
    identity: float,
    noise: float,
    vector_pose: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """(*shape, 4, 4): a multiple of the identity plus Gaussian noise of standard deviation `noise`.

    For poses as vectors the matrices are 16x16.

    Near the identity a child first votes for its own pose, so votes agree from the start. Pure noise (identity 0, noise
    1) scatters the votes, and training finds agreement more slowly.
    """
    for name, value in (("identity", identity), ("noise", noise)):
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, not {value}: the usual ones are identity 1 and noise 0.05")
    side = 16 if vector_pose else 4
    random = torch.randn(*shape, side, side, device=device, dtype=dtype)
    return identity * torch.eye(side, device=device, dtype=dtype) + noise * random


class PrimaryCaps(nn.Module):
    """Capsules from a feature map: at each position a linear map gives the poses, another the activations."""

    def __init__(
        self,
        in_channels: int,
        types: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts(in_channels=in_channels, types=types)
        self.types = types
        self.pose = nn.Conv2d(in_channels, types * 16, kernel_size=1, device=device, dtype=dtype)
        self.activation = nn.Conv2d(in_channels, types, kernel_size=1, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, as a new layer does."""
        for layer in (self.pose, self.activation):
            nn.init.xavier_uniform_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> RoutingOutput:
        """features (B, channels, H, W)."""
        channels = self.pose.in_channels
        if not isinstance(features, Tensor) or features.dim() != 4 or features.shape[1] != channels:
            found = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
            raise ValueError(
                f"features must be (batch, {channels}, height, width), not {found}: give a feature map "
                f"of {channels} channels with a batch dimension, or build the layer for other channels"
            )
        # On a GPU the gradient of one matrix product is far quicker.
        if features.is_cuda and _is_usual(self.pose) and _is_usual(self.activation):
            parameters = self.pose.weight, self.activation.weight, self.pose.bias, self.activation.bias
            if has_own_gradients(features, *parameters):
                return RoutingOutput(*apply(PrimaryProduct, features, *parameters))
            pose, logit = self.in_one_product(features)
        else:
            pose, logit = self.by_convolution(features)
        return RoutingOutput(pose.unflatten(-1, (self.types, 4, 4)), logit.sigmoid())

    def by_convolution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Poses (B, H, W, types * 16) and the logits of activations (B, H, W, types)."""
        return self.pose(features).permute(0, 2, 3, 1), self.activation(features).permute(0, 2, 3, 1)

    def in_one_product(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Poses and the logits of activations as `by_convolution` gives them, from one matrix product."""
        weight = torch.cat([self.pose.weight, self.activation.weight]).flatten(1)
        bias = torch.cat([bias for bias in (self.pose.bias, self.activation.bias) if bias is not None])
        both = linear(features.permute(0, 2, 3, 1), weight, bias)
        pose, logit = both.split([self.types * 16, self.types], dim=-1)
        return pose, logit


def _is_usual(layer: nn.Module) -> bool:
    """Whether it runs as torch's convolution does, without a hook, such as one that prunes, or a forward of its own."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return type(layer) is nn.Conv2d and not any(hooks) and "forward" not in layer.__dict__


class ImageConv(nn.Conv2d):
    """A convolution of images, which have few channels, computed as one product with the matrix of all windows.

    It leaves channels last, as primary capsules read them, and is quicker than nn.Conv2d on every device: with few
    channels, cuDNN's reproducible gradient takes longer than that of a capsule layer.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, padding: int) -> None:
        """Groups, dilation and the other options of nn.Conv2d are not supported."""
        super().__init__(in_channels, out_channels, kernel_size, stride, padding)

    def forward(self, images: Tensor) -> Tensor:
        """images (B, channels, H, W)."""
        (rows, columns), (down, right) = self.kernel_size, self.stride
        (above, left) = cast("tuple[int, int]", self.padding)
        windows = F.pad(images, (left, left, above, above)).unfold(2, rows, down).unfold(3, columns, right)
        flat = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
        return linear(flat, self.weight, self.bias).permute(0, 3, 1, 2)


class _RoutedCaps(nn.Module):
    """What all layers that route have in common: matrices, betas and the settings that are not the usual ones.

    Those may be changed at any time: layer.routing["iterations"] = 2.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        identity: float,
        noise: float,
        vector_pose: bool,
        routing: RoutingOptions,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_counts(in_types=shape[-2], **{"classes" if isinstance(self, ClassCaps) else "out_types": shape[-1]})
        self.routing = checked_options(routing)
        self.start = identity, noise, vector_pose
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(starting_matrices(shape, *self.start, **like))
        self.beta_u = nn.Parameter(torch.zeros(shape[-1], **like))
        self.beta_a = nn.Parameter(torch.zeros(shape[-1], **like))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the matrices anew and set the betas to 0, as in a new layer."""
        like: dict[str, Any] = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.weight.copy_(starting_matrices(tuple(self.weight.shape[:-2]), *self.start, **like))
        self.beta_u.zero_()
        self.beta_a.zero_()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RoutingOptions.__annotations__:
            raise AttributeError(f'{name} is a setting of the routing: set layer.routing["{name}"] instead')
        super().__setattr__(name, value)

    def _settings(self) -> str:
        """How the layer differs from a usual one."""
        vector = ", vector_pose=True" if self.start[2] else ""
        return vector + "".join(f", {name}={value!r}" for name, value in self.routing.items())


class ConvCaps(_RoutedCaps):
    """Convolutional capsules: `out_types` parents at every position, each reading a kernel window of children.

    `identity` and `noise` set the matrices that training starts from. With `vector_pose` they are 16x16, and a pose is
    a vector of 16 numbers; only the reference routes those. With `padding`, windows reach that far beyond the grid, and
    a parent at the border reads fewer children: with a kernel of 3, a padding of 1 keeps the size of the grid.
    `routing` takes the keyword arguments of `emcaps.conv_routing`: iterations, final_lambda, variance_floor, ...

    Examples:
        >>> import torch
        >>> from emcaps import RoutingOutput
        >>> from emcaps.nn import ConvCaps
        >>> layer = ConvCaps(8, 16, kernel=3, stride=2, iterations=2)
        >>> parents = layer(RoutingOutput(torch.randn(1, 16, 16, 8, 4, 4), torch.rand(1, 16, 16, 8)))
        >>> parents.pose.shape
        torch.Size([1, 7, 7, 16, 4, 4])
    """

    def __init__(
        self,
        in_types: int,
        out_types: int,
        kernel: int | tuple[int, int] = 3,
        stride: int | tuple[int, int] = 1,
        identity: float = 1.0,
        noise: float = 0.05,
        vector_pose: bool = False,
        padding: int | tuple[int, int] = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **routing: Unpack[RoutingOptions],
    ) -> None:
        kernel, stride = as_pair("kernel", kernel), as_pair("stride", stride)
        super().__init__((*kernel, in_types, out_types), identity, noise, vector_pose, routing, device, dtype)
        self.kernel, self.stride = kernel, stride
        self.padding = as_padding(padding, kernel)

    def forward(self, children: RoutingOutput) -> RoutingOutput:
        check_capsules(children)
        parents = self.weight, self.beta_u, self.beta_a
        return conv_routing(*children, *parents, stride=self.stride, padding=self.padding, **self.routing)

    def trace(self, children: RoutingOutput) -> RoutingTrace:
        """Route as `forward` does, and keep every iteration."""
        check_capsules(children)
        parents = self.weight, self.beta_u, self.beta_a
        return conv_routing_trace(*children, *parents, stride=self.stride, padding=self.padding, **self.routing)

    def extra_repr(self) -> str:
        in_types, out_types = self.weight.shape[2:4]
        padding = f", padding={self.padding}" if any(self.padding) else ""
        return f"{in_types}, {out_types}, kernel={self.kernel}, stride={self.stride}{padding}{self._settings()}"


class ClassCaps(_RoutedCaps):
    """One capsule per class, reading every child at every position through matrices shared over positions.

    The child's position, times `coordinate_scale`, is added to its votes.
    """

    def __init__(
        self,
        in_types: int,
        classes: int,
        identity: float = 1.0,
        noise: float = 0.05,
        vector_pose: bool = False,
        coordinate_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **routing: Unpack[RoutingOptions],
    ) -> None:
        super().__init__((in_types, classes), identity, noise, vector_pose, routing, device, dtype)
        self.coordinate_scale = check_coordinate_scale(coordinate_scale)

    def forward(self, children: RoutingOutput) -> RoutingOutput:
        check_capsules(children)
        scale = self.coordinate_scale
        return class_routing(*children, self.weight, self.beta_u, self.beta_a, coordinate_scale=scale, **self.routing)

    def trace(self, children: RoutingOutput) -> RoutingTrace:
        """Route as `forward` does, and keep every iteration."""
        return self._trace(children, self.routing)

    def logits(self, children: RoutingOutput) -> Tensor:
        """(B, classes): the inputs of the logistic functions that give the activations.

        The reference routes, whatever the layer's own implementation, because it alone keeps the costs.
        """
        routing: RoutingOptions = {**self.routing, "impl": "reference"}
        last = self._trace(children, routing)[-1]
        iterations = routing.get("iterations", DEFAULTS.iterations)
        final_lambda = routing.get("final_lambda", DEFAULTS.final_lambda)
        return routing_lambda(iterations - 1, final_lambda) * (self.beta_a - last.cost)

    def _trace(self, children: RoutingOutput, routing: RoutingOptions) -> RoutingTrace:
        check_capsules(children)
        scale = self.coordinate_scale
        return class_routing_trace(*children, self.weight, self.beta_u, self.beta_a, coordinate_scale=scale, **routing)

    def extra_repr(self) -> str:
        scale = "" if self.coordinate_scale == 1 else f", coordinate_scale={self.coordinate_scale}"
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}{scale}{self._settings()}"


class SetCaps(_RoutedCaps):
    """Capsules of a set: `out_types` parents that read every member, through matrices that all members share.

    Members have no order and no position: points, words, detections, parts of a graph. Sets of different sizes share a
    batch with a mask (B, N), or (B, N, I), that is True for what exists.

    Examples:
        >>> import torch
        >>> from emcaps import RoutingOutput
        >>> from emcaps.nn import SetCaps
        >>> members = RoutingOutput(torch.randn(2, 100, 8, 4, 4), torch.rand(2, 100, 8))
        >>> mask = torch.arange(100) < torch.tensor([[100], [37]])  # the second set has 37 members
        >>> wholes = SetCaps(8, 16, iterations=2)(members, mask)
        >>> wholes.pose.shape
        torch.Size([2, 16, 4, 4])
    """

    def __init__(
        self,
        in_types: int,
        out_types: int,
        identity: float = 1.0,
        noise: float = 0.05,
        vector_pose: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **routing: Unpack[RoutingOptions],
    ) -> None:
        super().__init__((in_types, out_types), identity, noise, vector_pose, routing, device, dtype)

    def forward(self, children: RoutingOutput, mask: Tensor | None = None) -> RoutingOutput:
        """children (B, N, I, 4, 4) and (B, N, I)."""
        check_capsules(children)
        return set_routing(*children, self.weight, self.beta_u, self.beta_a, mask=mask, **self.routing)

    def trace(self, children: RoutingOutput, mask: Tensor | None = None) -> RoutingTrace:
        """Route as `forward` does, and keep every iteration."""
        check_capsules(children)
        return set_routing_trace(*children, self.weight, self.beta_u, self.beta_a, mask=mask, **self.routing)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}{self._settings()}"
