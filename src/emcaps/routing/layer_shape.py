"""The sizes of one routed layer, read off the shapes of its tensors: what every package of kernels starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from emcaps.routing.geometry import Pair, mean_data

WITHOUT_COORDINATES = (0, 0)
"""Given as the stride of a class layer whose votes get no coordinates; it has one window, and so no stride."""


@dataclass(frozen=True)
class LayerShape:
    """The sizes of one routed layer. A class layer is one window over the whole grid, with shared matrices.

    Each package of kernels derives a `Layer` from this, which adds the sizes of its own memory and of its own work.
    The number of images is a symbol while torch.compile or torch.export traces a batch of any size.
    """

    images: int
    child_grid: Pair
    child_types: int
    parent_grid: Pair
    parent_types: int
    kernel: Pair
    stride: Pair
    shared: bool
    """Whether all child positions share their matrices, as in a class layer."""
    coordinates: bool
    """Whether the positions of children are added to their votes, as in a class layer, if it has no other scale."""
    by_position: bool
    """Whether only the parent types at one position compete for a child: `competition="types"`."""

    @classmethod
    def of(
        cls, pose_shape: Sequence[int], weight_shape: Sequence[int], stride: Sequence[int], by_position: bool
    ) -> Self:
        """The layer of a pose (B, H, W, I, 4, 4) and a weight of six dims, or of four in a class layer."""
        images, height, width, child_types = pose_shape[:4]
        shared = len(weight_shape) == 4
        coordinates = shared and tuple(stride) != WITHOUT_COORDINATES
        stride = (1, 1) if shared else stride
        kernel = (height, width) if shared else (weight_shape[0], weight_shape[1])
        return cls(
            images=images,
            child_grid=(height, width),
            child_types=child_types,
            parent_grid=((height - kernel[0]) // stride[0] + 1, (width - kernel[1]) // stride[1] + 1),
            parent_types=weight_shape[-3],
            kernel=kernel,
            stride=(stride[0], stride[1]),
            shared=shared,
            coordinates=coordinates,
            by_position=by_position and not shared,
        )

    @cached_property
    def positions(self) -> int:
        """Positions of parents in one image."""
        return math.prod(self.parent_grid)

    @cached_property
    def mean_data(self) -> float:
        """The mean data of a parent when every child is active, if none of the children are padding."""
        return mean_data(self.child_grid, self.child_types, self.parent_grid, self.parent_types)

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the parents' activations; a class layer's parents have no grid."""
        return (self.images, *(() if self.shared else self.parent_grid), self.parent_types)
