"""Edges of a graph, put together by the child or the position that they share.

A table has a row of M places for each group, whatever the group needs of it. So its memory goes with G M, and one child
or position that joins all others costs a table of all children by all positions. In return a sum over a group is a sum
along a row, which has the same bits in every run, on GPUs too.

Dims: B batch; E edges; G groups; M the most edges of a group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Groups(NamedTuple):
    """Which edges are in each group."""

    table: Tensor
    """(G, M): the edges of each group, and E in the places that a group with fewer edges leaves free."""
    place: Tensor
    """(E,): where each edge is in the table, row by row."""

    @classmethod
    def of(cls, group: Tensor, groups: int) -> Groups:
        """From the group of each edge, (E,)."""
        order = group.argsort(stable=True)
        sizes = group.bincount(minlength=groups)
        rank = torch.arange(len(group), device=group.device) - (sizes.cumsum(0) - sizes)[group[order]]
        most = int(sizes.max())
        place = torch.empty_like(group)
        place[order] = group[order] * most + rank
        table = group.new_full((groups * most,), len(group))
        table[place] = torch.arange(len(group), device=group.device)
        return cls(table.view(groups, most), place)

    def gather(self, edges: Tensor, fill: float) -> Tensor:
        """(B, E, ...) to (B, G, M, ...), with `fill` in the free places."""
        free = edges.new_full((len(edges), 1, *edges.shape[2:]), fill)
        return torch.cat([edges, free], 1)[:, self.table]

    def spread(self, groups: Tensor) -> Tensor:
        """(B, G, M, ...) to (B, E, ...): each edge gets what stands in its place."""
        return groups.flatten(1, 2)[:, self.place]
