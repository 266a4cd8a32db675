"""Adversarial attacks on images of grey levels, as short functions of a loss that the attacker raises.

Each attack changes every pixel by at most its image's `radius`, and keeps grey levels between 0 and 255, so that what
it makes is a possible image, up to rounding to whole grey levels.

Dims: B images; C channels; H, W. Images are (B, C, H, W) floats from 0 to 255, `radius` is (B, 1, 1, 1) in grey levels.
A loss takes images and gives the sum of their losses, each of which depends on its own image alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor], Tensor]
WHITE = 255.0


def gradient_of(loss: Loss, images: Tensor) -> Tensor:
    """The gradient of the loss with respect to the images."""
    images = images.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(images), images)
    if not gradient.isfinite().all():
        raise ValueError("the gradient of the loss is infinite or NaN, so there is no attack: the network is of no use")
    return gradient


def fgsm(gradient: Tensor, images: Tensor, radius: Tensor) -> Tensor:
    """The fast gradient sign method: the whole radius at once, by the gradient at the images themselves."""
    return into_range(images + radius * gradient.sign(), images, radius)


def bim(loss: Loss, images: Tensor, radius: Tensor, steps: int) -> Tensor:
    """The basic iterative method: `steps` equal steps that reach the radius if the signs never change."""
    return _climb(loss, images, images, radius, radius / steps, steps)


def pgd(loss: Loss, images: Tensor, radius: Tensor, steps: int, start: Tensor) -> Tensor:
    """Projected gradient descent from `start`, a place between -1 and 1 in units of the radius.

    Its steps are 2.5 radius / steps, so that it can cross the whole ball and turn back.
    """
    first = into_range(images + radius * start, images, radius)
    return _climb(loss, first, images, radius, 2.5 * radius / steps, steps)


def into_range(attacked: Tensor, images: Tensor, radius: Tensor) -> Tensor:
    """The nearest images within the radius of `images` whose grey levels exist."""
    return attacked.clamp((images - radius).clamp_min(0), (images + radius).clamp_max(WHITE))


def _climb(loss: Loss, start: Tensor, images: Tensor, radius: Tensor, step: Tensor, steps: int) -> Tensor:
    attacked = start
    for _ in range(steps):
        attacked = into_range(attacked + step * gradient_of(loss, attacked).sign(), images, radius)
    return attacked


def logit_margin(logits: Tensor, target: Tensor) -> Tensor:
    """(B,): by how much the target's logit exceeds the best other one; negative if the target is not the answer."""
    own = logits.gather(1, target[:, None])
    others = logits.scatter(1, target[:, None], -torch.inf)
    return own[:, 0] - others.amax(1)
