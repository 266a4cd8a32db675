"""Where in the image a class capsule's data came from, traced back through the routed layers.

Dims: B batch; H, W grid; I types. A parent's share of the answer goes to its children in proportion to the data
R_ij a_i that each gave it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from emcaps.nn import ConvCaps, MatrixCapsNet, NetworkTrace
from emcaps.routing.windows import Windows


def image_shares(network: MatrixCapsNet, trace: NetworkTrace, classes: Tensor, iteration: int) -> Tensor:
    """(B, H, W) over the primary capsules' grid, summing to 1: where the data of `classes` (B,) came from.

    The assignments are those of one iteration: 0 is the even start, -1 is the last.
    """
    *below, children = [trace.primary_caps.activation, *(steps[-1].activation for steps in trace.routed[:-1])]
    assignment = trace.class_caps[iteration].assignment
    chosen = classes.view(-1, 1, 1, 1, 1).expand(*assignment.shape[:-1], 1)
    given = assignment.gather(-1, chosen)[..., 0] * children
    shares = given / given.sum((1, 2, 3), keepdim=True).clamp(min=1e-9)
    for layer, steps, children in reversed(list(zip(network.routed[:-1], trace.routed[:-1], below, strict=True))):
        assert isinstance(layer, ConvCaps)
        shares = _children_shares(shares, steps[iteration].assignment, children, layer)
    return shares.sum(-1)


def _children_shares(parent_shares: Tensor, assignment: Tensor, activation: Tensor, layer: ConvCaps) -> Tensor:
    """Pass parents' shares (B, OH, OW, O) on by the assignments (B, OH, OW, KH, KW, I, O); gives (B, H, W, I)."""
    windows = Windows((activation.shape[1], activation.shape[2]), layer.kernel, layer.stride, layer.padding)
    given = assignment * windows.spread(activation)[..., None]
    per_data = parent_shares / given.sum((3, 4, 5)).clamp(min=1e-9)
    return windows.total(torch.einsum("bvuyxco,bvuo->bvuyxc", given, per_data))
