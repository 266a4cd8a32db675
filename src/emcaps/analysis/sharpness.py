"""How sharp routing is in a network, layer by layer and iteration by iteration, and what gradients it passes on.

Dims: B batch; H, W child grid; I child types; N the children that one parent reads; O parent types.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from emcaps.config import DataConfig
from emcaps.data.crops import evaluation_crops
from emcaps.nn import ClassCaps, ConvCaps, MatrixCapsNet, spread_loss
from emcaps.nn.geometry import routed_names
from emcaps.routing import RoutingTrace
from emcaps.routing.settings import DEFAULTS, routing_lambda
from emcaps.routing.windows import Windows

LAYERS = routed_names(2)
"""The routed layers of the presets, which the experiments measure."""
BATCH, BATCHES = 16, 4
"""Routing is measured on this many batches of this many images."""
LONE = 0.9
"""A parent that gets more than this share of its data from one child counts as living on that child alone."""
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
USEFUL = 5.0
"""Within this distance from 0 an input of the logistic function gives an output that is neither 0 nor 1."""


def fixed_crops(images: Tensor, labels: Tensor, data: DataConfig) -> tuple[Tensor, Tensor]:
    """Centre crops of images that are the same ones in every measurement, and their labels."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = order[: BATCHES * BATCH].to(images.device)
    return evaluation_crops(images[chosen], data.crop, standardised=data.standardise)[:, 0], labels[chosen]


def measure(network: MatrixCapsNet, crops: Tensor, labels: Tensor, margin: float) -> dict[str, Any]:
    """Measure routing and gradients, averaged over batches; `gradient_cosine` compares the gradients of two batches."""
    found, gradients = [], []
    for batch, target in zip(crops.split(BATCH), labels.split(BATCH), strict=True):
        values, gradient = _measure_batch(network, batch, target, margin)
        found.append(values)
        gradients.append(gradient)
    cosines = [
        float(torch.cosine_similarity(one, other, dim=0))
        for index, one in enumerate(gradients)
        for other in gradients[:index]
    ]
    result: dict[str, Any] = average(found)
    result |= {"margin": margin, "gradient_cosine": statistics.fmean(cosines) if cosines else None}
    if hasattr(network, "pose_gain"):
        result["pose_gain"] = network.pose_gain.tolist()
    return result


def _measure_batch(
    network: MatrixCapsNet, crops: Tensor, labels: Tensor, margin: float
) -> tuple[dict[str, Any], Tensor]:
    """The measurements of one batch, and the gradient of its loss with respect to all parameters."""
    trace = network.trace(crops)
    loss = spread_loss(trace.class_caps[-1].activation, labels, margin)
    parameters = list(network.parameters())
    traces = trace.routed
    routed = [(layer, step) for layer, steps in enumerate(traces) for step in range(1, len(steps))]
    edges = [_used_by_routing(traces[layer][step].assignment) for layer, step in routed]
    inputs: Any = [*parameters, *edges]
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    flat = torch.cat([g.flatten() for g in gradients[: len(parameters)] if g is not None])
    of_assignments = dict(zip(routed, gradients[len(parameters) :], strict=True))
    assert all(gradient is not None for gradient in of_assignments.values()), "routing did not use these assignments"

    layers: dict[str, list[dict[str, Any]]] = {}
    children = trace.primary_caps.activation
    for number, (name, layer, steps) in enumerate(zip(network.routed_names, network.routed, traces, strict=True)):
        layers[name] = layer_statistics(layer, steps, children)
        for step, row in enumerate(layers[name]):
            gradient = of_assignments.get((number, step))  # the first iteration's assignments are constants
            row["assignment_gradient"] = None if gradient is None else float(gradient.norm())
        children = steps[-1].activation
    return {"loss": float(loss.detach()), "gradient_norm": float(flat.norm()), "layers": layers}, flat


def _used_by_routing(assignment: Tensor) -> GradientEdge:
    """The assignments that the M-step used: a trace holds a view of them, on which the loss does not depend."""
    assert assignment.grad_fn is not None
    node, output = assignment.grad_fn.next_functions[0]
    assert node is not None
    return GradientEdge(node, output)


@torch.no_grad()
def layer_statistics(layer: ConvCaps | ClassCaps, trace: RoutingTrace, children: Tensor) -> list[dict[str, Any]]:
    """Measure how sharp each iteration of a layer is; children (B, H, W, I) are the activations of its inputs."""
    rows = []
    for number, step in enumerate(trace):
        share = shares(layer, step.assignment, children)
        logit = routing_lambda(number, layer.routing.get("final_lambda", DEFAULTS.final_lambda)) * (
            layer.beta_a - step.cost
        )
        rows.append(
            {
                "logit_mean": float(logit.mean()),
                "logit_deviation": float(logit.std()),
                "logit_quantiles": [float(value) for value in logit.flatten().quantile(logit.new_tensor(QUANTILES))],
                "logit_useful": float((logit.abs() <= USEFUL).double().mean()),
                "effective_children": float(effective_children(share).median()),
                "lone_parents": lone_parents(share),
                "entropy": float(assignment_entropy(layer, step.assignment, children).mean()),
                "variance": float(step.variance.median()),
            }
            | position_statistics(layer, step.assignment, children)
        )
    return rows


def shares(layer: ConvCaps | ClassCaps, assignment: Tensor, children: Tensor) -> Tensor:
    """r_ij = R_ij a_i as (..., N, O): what each parent gets from each of its children."""
    if isinstance(layer, ConvCaps):
        return (assignment * _windows(layer, children).spread(children)[..., None]).flatten(3, 5)
    return (assignment * children[..., None]).flatten(1, 3)


def effective_children(share: Tensor) -> Tensor:
    """(sum r)^2 / sum r^2 of every parent that has data: 1 if one child gives all of it, N if all give the same."""
    return 1 / _parts(share).square().sum(-1)


def lone_parents(share: Tensor) -> float:
    """The share of parents that live on one child alone."""
    return float((_parts(share).amax(-1) > LONE).double().mean())


def assignment_entropy(layer: ConvCaps | ClassCaps, assignment: Tensor, children: Tensor) -> Tensor:
    """For every child with two or more parents: 1 if they share it evenly, 0 if one of them has all of it."""
    terms = torch.special.entr(assignment.double()).sum(-1)
    parents = torch.full_like(terms, assignment.shape[-1])
    if isinstance(layer, ConvCaps):
        windows = _windows(layer, children)
        terms, parents = windows.total(terms), windows.total(parents)
    several = parents > 1
    result: Tensor = terms[several] / parents[several].log()
    return result


@torch.no_grad()
def position_statistics(layer: ConvCaps | ClassCaps, assignment: Tensor, children: Tensor) -> dict[str, float]:
    """Measure how children divide themselves among positions, averaged over those that two or more positions read.

    `assigned` is the sum of a child's assignments, which is 1 if its parents compete for it. `positions` is the
    effective number of positions that share it, (sum r)^2 / sum r^2, and `positions_part` divides that by the number
    of positions that read it. All three are NaN if no child has two, as with a stride of the kernel's size.
    """
    if not isinstance(layer, ConvCaps):
        return {}
    windows = _windows(layer, children)
    given = assignment.double().sum(-1)
    total, squares, readers = (windows.total(x) for x in (given, given.square(), torch.ones_like(given)))
    several = (readers > 1) & (total > 0)
    effective = total[several].square() / squares[several]
    return {
        "assigned": float(total[several].mean()),
        "positions": float(effective.mean()),
        "positions_part": float((effective / readers[several]).mean()),
    }


def _parts(share: Tensor) -> Tensor:
    """(parents with data, N): the part of a parent's data that each child gives."""
    flat = share.double().movedim(-1, -2).flatten(0, -2)
    total = flat.sum(-1, keepdim=True)
    return (flat / total)[total[:, 0] > 0]


def _windows(layer: ConvCaps, children: Tensor) -> Windows:
    return Windows((children.shape[1], children.shape[2]), layer.kernel, layer.stride, layer.padding)


def average(values: Sequence[Any]) -> Any:
    """The mean of numbers, or of dicts and lists of numbers, element by element; None stays None."""
    first = values[0]
    if isinstance(first, dict):
        return {key: average([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        return [average(list(parts)) for parts in zip(*values, strict=True)]
    return None if first is None else statistics.fmean(values)
