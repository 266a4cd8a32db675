"""What routing returns.

Dims: B batch; H, W child grid; I child types; OH, OW parent grid; O parent types; KH, KW kernel. Results of a class
layer have no parent grid, and the grid of children in place of kernel offsets.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.utils._pytree import _register_namedtuple


class RoutingOutput(NamedTuple):
    """The parents after the last iteration."""

    pose: Tensor
    """(B, OH, OW, O, 4, 4); (B, O, 4, 4) from a class layer."""
    activation: Tensor
    """(B, OH, OW, O); (B, O) from a class layer."""


class RoutingStep(NamedTuple):
    """One iteration: the assignments that its M-step used, and the parents that this M-step computed."""

    assignment: Tensor
    """R_ij: (B, OH, OW, KH, KW, I, O); (B, H, W, I, O) from a class layer."""
    mean: Tensor
    """mu_j: (B, OH, OW, O, 4, 4); (B, O, 4, 4) from a class layer."""
    variance: Tensor
    """s2_j: shaped as the mean."""
    cost: Tensor
    """(B, OH, OW, O); (B, O) from a class layer."""
    activation: Tensor
    """a_j: shaped as the cost."""


class RoutingTrace(tuple[RoutingStep, ...]):
    """Every iteration of one routing: `trace[t].mean` and `trace.mean[t]` are both the mean after iteration t."""

    @property
    def assignment(self) -> tuple[Tensor, ...]:
        return tuple(step.assignment for step in self)

    @property
    def mean(self) -> tuple[Tensor, ...]:
        return tuple(step.mean for step in self)

    @property
    def variance(self) -> tuple[Tensor, ...]:
        return tuple(step.variance for step in self)

    @property
    def cost(self) -> tuple[Tensor, ...]:
        return tuple(step.cost for step in self)

    @property
    def activation(self) -> tuple[Tensor, ...]:
        return tuple(step.activation for step in self)


# So that torch.export.save can write a program that returns this type, and load can read it.
_register_namedtuple(RoutingOutput, serialized_type_name="emcaps.RoutingOutput")
