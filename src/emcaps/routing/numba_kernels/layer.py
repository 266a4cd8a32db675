"""The sizes of one routed layer as the CPU kernels see it: groups of parents, and shapes of what is kept."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

from emcaps.routing.layer_shape import LayerShape
from emcaps.routing.numba_kernels.layout import RECORD
from emcaps.routing.numba_kernels.vectors import LANES


class Layer(LayerShape):
    """The sizes of one routed layer and what follows from them for the kernels. Dims as in layout.py."""

    @cached_property
    def groups(self) -> int:
        """Groups of LANES parent types, the last one padded."""
        return -(-self.parent_types // LANES)

    @cached_property
    def slots(self) -> int:
        """Children in the window of one parent position."""
        return math.prod(self.kernel) * self.child_types

    @cached_property
    def children(self) -> tuple[int, int, int]:
        """Rows, columns and types of the children."""
        return (*self.child_grid, self.child_types)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The numbers that every kernel takes, in the order that layout.py gives."""
        return (
            *self.parent_grid,
            self.parent_types,
            *self.kernel,
            *self.stride,
            int(self.shared) + int(self.coordinates),
            int(self.by_position),
        )

    def records_shape(self, images: int, iterations: int) -> tuple[int, ...]:
        return (images, iterations, self.positions, self.groups, RECORD)

    def assignments_shape(self, images: int, iterations: int) -> tuple[int, ...]:
        """The assignments of all iterations but the first, whose children are assigned evenly."""
        return (images, iterations - 1, self.positions, self.groups, self.slots * LANES)


known_layer = lru_cache(maxsize=256)(Layer.of)
"""`Layer.of`, remembered: a network calls with the same few shapes over and over."""
