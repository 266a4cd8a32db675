"""Where things lie in the memory of a pass, which its kernels share.

A pass takes its memory in few pieces, because each takes time. All parts start at multiples of 16 bytes.
"""

from __future__ import annotations

import torch

from emcaps.routing.triton_kernels.fast_launch import Part
from emcaps.routing.triton_kernels.layer import Layer
from emcaps.routing.triton_kernels.partials import PARTIAL
from emcaps.routing.triton_kernels.records import ADJOINT, RECORD


def statistics_type(dtype: torch.dtype) -> torch.dtype:
    """The type of all numbers but poses and matrices, which have `dtype`."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


class Kept:
    """Where things lie in what the forward pass keeps: for an edge one number for each E-step, never a vote.

    It is one tensor of the poses' type. All parts start at multiples of 16 bytes.
    """

    def __init__(self, layer: Layer, iterations: int, dtype: torch.dtype) -> None:
        self._dtype, self._statistics = dtype, statistics_type(dtype)
        self.children_step, self.edge_step = layer.children * layer.lanes, layer.edges * layer.lanes
        self.record_step = layer.parents * RECORD.value * layer.lanes
        ratio = self._statistics.itemsize // dtype.itemsize
        numbers = 2 * self.children_step + iterations * self.record_step + (iterations - 1) * self.edge_step
        self._pose = numbers * self._statistics.itemsize
        self._weight = self._pose + layer.children * layer.lanes * 16 * dtype.itemsize
        self.size = numbers * ratio + layer.children * layer.lanes * 16 + layer.matrices * 16
        self._arrived = self.size * dtype.itemsize
        self.size += layer.staged_groups[0] if layer.fits_stages and dtype == torch.float32 else 0
        self._records = 2 * self.children_step
        self._assignments = self._records + iterations * self.record_step

    def pose(self) -> Part:
        return Part("kept", self._pose, self._dtype)

    def weight(self) -> Part:
        return Part("kept", self._weight, self._dtype)

    def activation(self) -> Part:
        return self._at(0)

    def first_share(self) -> Part:
        """The activations times the even assignments."""
        return self._at(self.children_step)

    def record(self, iteration: int) -> Part:
        return self._at(self._records + iteration * self.record_step)

    def assignment(self, iteration: int) -> Part:
        """The assignments after an iteration."""
        return self._at(self._assignments + iteration * self.edge_step)

    def arrived(self) -> Part:
        """How many parts of a staged sweep have arrived, for each group of parents: none, between two sweeps."""
        return Part("kept", self._arrived, torch.int32)

    def _at(self, number: int) -> Part:
        return Part("kept", number * self._statistics.itemsize, self._statistics)


class Work:
    """Where things lie in the memory that only a backward pass needs. All parts start at multiples of 16 bytes."""

    def __init__(self, layer: Layer, iterations: int, dtype: torch.dtype, staged: bool) -> None:
        lanes, self._itemsize, self.size = layer.lanes, dtype.itemsize, 0
        self.adjoint_step, self.child_step = layer.parents * ADJOINT.value * lanes, layer.children * lanes
        self._edge_step, self._beta_step = layer.edges * lanes, layer.blocks * layer.positions
        self.beta_parts = iterations * self._beta_step
        self._adjoints = self._add(iterations * self.adjoint_step)
        self._edges = self._add((iterations - 1) * self._edge_step)
        self._children = self._add((iterations - 1) * self.child_step)
        self._slot_poses = self._add(max(layer.slots * lanes * 16, partial_sums(layer) if staged else 0))
        self._slot_activations = self._add(layer.slots * lanes)
        self._matrices = self._add(layer.edges * 16)
        self._betas = self._add(2 * layer.parent_types * self.beta_parts)

    def adjoint(self, iteration: int) -> Part:
        return self._at(self._adjoints + iteration * self.adjoint_step)

    def edge(self, iteration: int) -> Part:
        """The gradients of the shares of an iteration but the first, then of the log joints before it."""
        return self._at(self._edges + (iteration - 1) * self._edge_step)

    def child(self, iteration: int) -> Part:
        """What an iteration but the first adds to the gradients of activations."""
        return self._at(self._children + (iteration - 1) * self.child_step)

    def beta(self, iteration: int) -> Part:
        return self._at(self._betas + iteration * self._beta_step)

    def slot_pose(self) -> Part:
        return self._at(self._slot_poses)

    def partial(self) -> Part:
        """The partial sums of a staged sweep, where the gradients of slots come later."""
        return self._at(self._slot_poses)

    def slot_activation(self) -> Part:
        return self._at(self._slot_activations)

    def matrix(self) -> Part:
        return self._at(self._matrices)

    def _add(self, size: int) -> int:
        start, self.size = self.size, self.size + -(-size // 4) * 4
        return start

    def _at(self, number: int) -> Part:
        return Part("work", number * self._itemsize)


def partial_sums(layer: Layer) -> int:
    """How many numbers the partial sums of a staged sweep have."""
    parts = layer.staged_groups[1]
    return layer.parents * parts * PARTIAL.value * layer.lanes if parts > 1 else 0
