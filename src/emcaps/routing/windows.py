"""Functions that move values between children and the kernel windows of the parents that read them.

A padded layer is routed as one without padding, on a grid with a border (`with_border`), so that the equations and the
kernels need not know padding. `Windows` with a padding are for children without that border, as those beside a trace.

Dims: B batch; H, W child grid; OH, OW parent grid; KH, KW kernel; I child types.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from emcaps.routing.geometry import Pair


class Windows(NamedTuple):
    """The windows of one convolutional layer."""

    child_grid: Pair
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    def spread(self, children: Tensor) -> Tensor:
        """Give every window its children's values: (B, H, W, ...) to (B, OH, OW, KH, KW, ...); 0 beyond the grid."""
        if any(self.padding):
            children = _padded(children, self.padding)
        windows = children.unfold(1, self.kernel[0], self.stride[0]).unfold(2, self.kernel[1], self.stride[1])
        return windows.movedim((-2, -1), (3, 4))

    def total(self, windows: Tensor) -> Tensor:
        """Sum over the windows that contain a child: (B, OH, OW, KH, KW, I) to (B, H, W, I); zero where none does."""
        columns = windows.permute(0, 5, 3, 4, 1, 2).flatten(4, 5).flatten(1, 3)
        summed = F.fold(columns, self.child_grid, self.kernel, padding=self.padding, stride=self.stride)
        return summed.permute(0, 2, 3, 1)

    def largest(self, windows: Tensor) -> Tensor:
        """Maximum over the windows that contain a child, -inf where none does; not differentiable, nor for padding."""
        assert not any(self.padding)
        batch, rows, columns, _, _, types = windows.shape
        result = windows.new_full((batch, *self.child_grid, types), -math.inf)
        for y in range(self.kernel[0]):
            for x in range(self.kernel[1]):
                last_row, last_column = y + self.stride[0] * (rows - 1), x + self.stride[1] * (columns - 1)
                part = result[:, y : last_row + 1 : self.stride[0], x : last_column + 1 : self.stride[1]]
                part.copy_(part.maximum(windows[:, :, :, y, x]))
        return result


def with_border(pose: Tensor, activation: Tensor, padding: Pair) -> tuple[Tensor, Tensor]:
    """The children of a padded layer, (B, H, W, ...), with a border of children whose pose and activation are 0.

    What is not active weighs nothing, in a parent and in any gradient. So windows that reach into the border give what
    windows of fewer children give.
    """
    return _padded(pose, padding), _padded(activation, padding)


def _padded(children: Tensor, padding: Pair) -> Tensor:
    """(B, H, W, ...) with zeros around the grid."""
    rows, columns = padding
    return F.pad(children, (*(0, 0) * (children.dim() - 3), columns, columns, rows, rows))
