"""Functions that move values between children and the kernel windows of the parents that read them.

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

    def spread(self, children: Tensor) -> Tensor:
        """Give every window its children's values: (B, H, W, ...) to (B, OH, OW, KH, KW, ...)."""
        windows = children.unfold(1, self.kernel[0], self.stride[0]).unfold(2, self.kernel[1], self.stride[1])
        return windows.movedim((-2, -1), (3, 4))

    def total(self, windows: Tensor) -> Tensor:
        """Sum over the windows that contain a child: (B, OH, OW, KH, KW, I) to (B, H, W, I); zero where none does."""
        columns = windows.permute(0, 5, 3, 4, 1, 2).flatten(4, 5).flatten(1, 3)
        return F.fold(columns, self.child_grid, self.kernel, stride=self.stride).permute(0, 2, 3, 1)

    def largest(self, windows: Tensor) -> Tensor:
        """Maximum over the windows that contain a child, -inf where none does; not differentiable."""
        batch, rows, columns, _, _, types = windows.shape
        result = windows.new_full((batch, *self.child_grid, types), -math.inf)
        for y in range(self.kernel[0]):
            for x in range(self.kernel[1]):
                last_row, last_column = y + self.stride[0] * (rows - 1), x + self.stride[1] * (columns - 1)
                part = result[:, y : last_row + 1 : self.stride[0], x : last_column + 1 : self.stride[1]]
                part.copy_(part.maximum(windows[:, :, :, y, x]))
        return result
