"""The sizes of one routed layer as the GPU kernels see it: tiles, padding, shapes of packed tensors."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import TypeAlias

from emcaps.routing.geometry import Pair
from emcaps.routing.layer_shape import LayerShape

Grid: TypeAlias = tuple[int, int, int]


class Layer(LayerShape):
    """The sizes of one routed layer and what follows from them for the kernels. Dims as in forward.py."""

    @cached_property
    def lanes(self) -> int:
        """Images that lie side by side in memory: as many as a warp has threads, or fewer for a small batch.

        A class layer has so few parents that blocks of 32 images would leave most of a GPU idle.
        """
        return min(4 if self.shared else 32, _power_of_2(int(self.images)))  # int() fixes a symbolic batch

    @cached_property
    def blocks(self) -> int:
        return -(-self.images // self.lanes)

    @cached_property
    def parent_tile(self) -> Pair:
        """Slices of the children, and parent types, of a program that goes through the children of a position.

        A class layer has few parents with many children, so many slices share a parent there. A small batch leaves
        lanes of a warp free for more slices.
        """
        if self.shared:
            return min(64, _power_of_2(math.prod(self.child_grid) * self.padded_types)), 1
        return min(self.padded_types, max(2, 16 // self.lanes)), min(2, self.parent_types)

    @cached_property
    def gradient_tile(self) -> Pair:
        """Rows of a program of `input_gradient`, and child types of each row, which share what it loads of a parent.

        A class layer is too small to fill a GPU with rows of two types.
        """
        each = 1 if self.shared else 2
        return min(self.padded_types // each, 8, max(4, 128 // self.lanes)), each

    @cached_property
    def edge_tile(self) -> Pair:
        """Child types, and a power of 2 that covers all parent types, of programs that go through a child's edges."""
        parents = _power_of_2(self.parent_types)
        return max(1, min(self.padded_types & -self.padded_types, 512 // (parents * self.lanes))), parents

    @cached_property
    def parent_warps(self) -> int:
        return max(1, math.prod(self.parent_tile) * self.lanes // 32)

    @cached_property
    def gradient_warps(self) -> int:
        return max(1, self.gradient_tile[0] * self.lanes // 32)

    @cached_property
    def parent_groups(self) -> Grid:
        return self.blocks * self.positions * -(-self.parent_types // self.parent_tile[1]), 1, 1

    @cached_property
    def fits_stages(self) -> bool:
        """Whether the staged sweeps can route this layer."""
        return not self.shared and self.lanes == 32 and self.parent_types >= 4

    @cached_property
    def staged_groups(self) -> Grid:
        """Programs of a staged sweep: groups of four parents, and parts of their children.

        A GPU runs some hundreds of programs at once, and those that are left over leave most of it idle. The more there
        are, the less that matters; but a part of less than 48 children costs more than it gains.
        """
        groups = self.blocks * self.positions * -(-self.parent_types // 4)
        most = math.prod(self.kernel) * self.padded_types // 48
        return groups, max(1, min(-(-1000 // max(1, groups)), most)), 1

    @cached_property
    def stages_parents(self) -> bool:
        """Whether what `input_gradient` reads of parents can be staged."""
        return self.fits_stages and self.gradient_tile == (4, 2)

    @cached_property
    def gradient_groups(self) -> Grid:
        return self.slots // math.prod(self.gradient_tile), 1, 1

    @cached_property
    def edge_groups(self) -> Grid:
        return self.places, self.padded_types // self.edge_tile[0], 1

    @cached_property
    def pack_groups(self) -> Grid:
        """Programs that each take four child types at one place, then those that each take 64 matrices."""
        columns = self.padded_types // 4
        return self.places + -(-self.matrices // (64 * columns)), columns, 1

    @cached_property
    def padded_types(self) -> int:
        """Child types with padding: a power of 2 of at least 4, or a multiple of 16, the largest number of slices."""
        types = _power_of_2(max(4, self.child_types))
        return types if types <= 16 else -(-self.child_types // 16) * 16

    @cached_property
    def kernels(self) -> int:
        return 1 if self.shared else math.prod(self.kernel)

    @cached_property
    def matrices(self) -> int:
        return self.kernels * self.padded_types * self.parent_types

    @cached_property
    def parents(self) -> int:
        """Parents in all blocks. The images of a block count as one."""
        return self.blocks * self.positions * self.parent_types

    @cached_property
    def places(self) -> int:
        """Child positions in all blocks."""
        return self.blocks * math.prod(self.child_grid)

    @cached_property
    def slots(self) -> int:
        """Slots in all blocks, padded types included. A slot is a child in the window of one parent position."""
        return self.blocks * self.positions * math.prod(self.kernel) * self.padded_types

    @cached_property
    def children(self) -> int:
        return self.places * self.padded_types

    @cached_property
    def edges(self) -> int:
        """Edges in all blocks. The images of a block count as one."""
        return self.slots * self.parent_types

    @cached_property
    def pose_shape(self) -> tuple[int, ...]:
        """The shape of packed poses."""
        return (self.blocks, *self.child_grid, self.padded_types, 16, self.lanes)

    @cached_property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of packed matrices."""
        return (self.kernels, self.padded_types, self.parent_types, 16)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The integers that every sweep takes, in the order of indices.SIZES."""
        grid, kernel = ((1, math.prod(self.child_grid)),) * 2 if self.shared else (self.child_grid, self.kernel)
        return (
            *grid,
            self.padded_types,
            *self.parent_grid,
            self.parent_types,
            *kernel,
            *self.stride,
            *self.child_grid,
        )


known_layer = lru_cache(maxsize=256)(Layer.of)
"""`Layer.of`, remembered: a network calls with the same few shapes over and over."""


def _power_of_2(number: int) -> int:
    """The smallest power of 2 that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()
