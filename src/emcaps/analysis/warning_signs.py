"""Signs that a capsule network cannot learn: saturated or dead layers, and parents that live on one child.

>>> for signs in warning_signs(network, images):  # a batch in which several classes occur
...     print(signs)
class_caps: saturated 10 %, lone parents 0 %, entropy 0.30: saturated, since class 7 is active on every image. ...

The figures are those of the last routing iteration. An input of the logistic function beyond 5 or -5 is saturated: the
slope is below 0.7 % there, so hardly any gradient gets through.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from emcaps.analysis.sharpness import USEFUL, assignment_entropy, lone_parents, shares
from emcaps.nn import ClassCaps, ConvCaps, MatrixCapsNet
from emcaps.routing.settings import DEFAULTS, routing_lambda

NEARLY_ALL = 0.9
"""A share above this counts as all: of a layer's capsules, or of the images on which a class capsule is active."""
SEVERAL = 2
"""A class layer that makes more classes than this active on an image, on average, is saturated: only one is right."""
MOST = 0.5
"""A layer in which a larger share of the parents live on one child gets a warning."""
HARD = 0.05
"""Assignments of a lower entropy count as all or nothing."""

SOFTER = (
    "Raise network.variance_floor (1.0 with network.pose_scale=0.5 is soft) or use fewer routing iterations, so that a "
    "child can have several parents"
)
FINITE = "Lower the learning rate, or raise network.variance_floor if it is below 1e-4, and start again"
LOWER = (
    "Start again with the betas in the middle, by network.start_half_active(images) or network.betas=half_active in a "
    "run; with standardised images (network.input='standardised', if it is not); or with a lower "
    "network.final_lambda or learning rate"
)


class LayerSigns(NamedTuple):
    """What the routing of one layer shows on a batch."""

    layer: str
    saturated: float
    """Share of the logistic function's inputs beyond 5 or -5."""
    lone_parents: float
    """Share of the parents that get over 90 % of their data from one child."""
    entropy: float
    """Mean entropy of the children's assignments: 1 if parents share a child evenly, 0 if one has all of it."""
    verdict: str
    """What is wrong, in a few words; empty if nothing is."""
    remedy: str
    """What to do about it; empty if nothing is wrong."""

    def __str__(self) -> str:
        figures = (
            f"{self.layer}: saturated {100 * self.saturated:.0f} %, lone parents {100 * self.lone_parents:.0f} %, "
            f"entropy {self.entropy:.2f}"
        )
        return f"{figures}: {self.verdict}. {self.remedy}." if self.verdict else f"{figures}: no warning sign"


@torch.no_grad()
def warning_signs(network: MatrixCapsNet, images: Tensor) -> list[LayerSigns]:
    """The signs of every routed layer, first to last, on images (B, channels, H, W) of several classes.

    Sixteen to sixty-four images will do. The network is left as it was, and no random numbers are drawn.
    """
    if not isinstance(network, MatrixCapsNet):
        raise TypeError(f"only a capsule network has routing to look into, not a {type(network).__name__}")
    trace = network.trace(images)
    found = []
    children = trace.primary_caps.activation
    for name, layer, steps in zip(network.routed_names, network.routed, trace.routed, strict=True):
        last = steps[-1]
        logit = routing_lambda(len(steps) - 1, layer.routing.get("final_lambda", DEFAULTS.final_lambda)) * (
            layer.beta_a - last.cost
        )
        lone = lone_parents(shares(layer, last.assignment, children))
        entropy = float(assignment_entropy(layer, last.assignment, children).mean())
        verdict, remedy = _judge(layer, logit)
        if not logit.isfinite().all():
            verdict, remedy = "numbers are infinite or NaN", FINITE
        if not verdict and lone > MOST:
            verdict, remedy = f"{100 * lone:.0f} % of the parents live on one child", SOFTER
        if not verdict and entropy < HARD and not isinstance(layer, ClassCaps):  # a class may own all of its children
            verdict, remedy = "every child has one parent only", SOFTER
        found.append(LayerSigns(name, _share(logit.abs() > USEFUL), lone, entropy, verdict, remedy))
        children = last.activation
    return found


@torch.no_grad()
def stuck_layers(network: MatrixCapsNet, images: Tensor) -> tuple[list[str], Tensor]:
    """What is wrong with saturated or dead layers, a sentence each, and the class activations (B, classes).

    This takes no more than a forward pass, so a run can afford it, where `warning_signs` computes every vote in memory.
    """
    outputs: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda *args: outputs.append(args[2].activation)) for layer in network.routed]
    try:
        network(images)
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for name, layer, activation in zip(network.routed_names, network.routed, outputs, strict=True):
        verdict, remedy = _judge(layer, activation.double().logit())  # infinite where an activation is 0 or 1
        if verdict:
            found.append(f"{name} is {verdict}. {remedy}")
    return found, outputs[-1]


def _judge(layer: ConvCaps | ClassCaps, logit: Tensor) -> tuple[str, str]:
    """Verdict and remedy for the logistic inputs of a layer; both are empty if it is neither saturated nor dead."""
    return _judge_classes(logit) if isinstance(layer, ClassCaps) else _judge_capsules(logit)


def _judge_capsules(logit: Tensor) -> tuple[str, str]:
    """Verdict and remedy for the logistic inputs (B, H, W, O) of a convolutional layer."""
    if _share(logit > USEFUL) > NEARLY_ALL:
        return "saturated, since nearly all capsules are active everywhere", LOWER
    if _share(logit < -USEFUL) > NEARLY_ALL:
        return "dead, since hardly any capsule is active", LOWER
    return "", ""


def _judge_classes(logit: Tensor) -> tuple[str, str]:
    """Verdict and remedy for the logistic inputs (B, classes) of a class layer.

    Wrong classes may well be far below 0, but a class that is far above 0 on every image takes every answer.
    """
    active = logit > USEFUL
    always = (active.double().mean(0) > NEARLY_ALL).nonzero().flatten().tolist()
    at_once = float(active.double().sum(1).mean())
    if len(always) == 1:
        return f"saturated, since class {always[0]} is active on every image", LOWER
    if always or at_once > SEVERAL:
        return f"saturated, since {at_once:.1f} of {logit.shape[1]} classes are active on an image, not one", LOWER
    if _share(logit.amax(1) < -USEFUL) > NEARLY_ALL:
        return "dead, since no class is active on any image", LOWER
    return "", ""


def _share(condition: Tensor) -> float:
    return float(condition.double().mean())
