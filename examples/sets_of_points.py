"""Capsules of sets: name a shape by the points on its outline. Shapes have from 20 to 40 points.

python examples/sets_of_points.py
"""

import torch
from torch import nn

from emcaps import RoutingOutput
from emcaps.nn import PrimaryCaps, SetCaps, spread_loss

CORNERS, MOST = torch.tensor([3, 4, 5]), 40  # triangles, squares and pentagons of up to 40 points
features, members = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()), PrimaryCaps(64, types=4)
parts, shapes = SetCaps(4, 16, iterations=2), SetCaps(16, len(CORNERS), iterations=2)


def outlines(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Points (B, N, 2) of shapes that are turned at random, which of them exist (B, N), and the shapes (B,)."""
    labels, turn = torch.randint(len(CORNERS), (count,)), 2 * torch.pi * torch.rand(count, 1)
    angle, side = 2 * torch.pi * torch.rand(count, MOST), 2 * torch.pi / CORNERS[labels][:, None]
    radius = (side / 2).cos() / (angle % side - side / 2).cos()
    points = torch.stack([radius * (angle + turn).cos(), radius * (angle + turn).sin()], -1)
    return points, torch.arange(MOST) < torch.randint(20, MOST + 1, (count, 1)), labels


def scores(points: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    pose, activation = members(features(points).transpose(1, 2)[..., None])  # on a grid with one column
    pose, activation = parts(RoutingOutput(pose.squeeze(2), activation.squeeze(2)), mask)
    return shapes(RoutingOutput(pose[:, None], activation[:, None])).activation


optimiser = torch.optim.Adam(nn.ModuleList([features, members, parts, shapes]).parameters(), lr=3e-3)
for _ in range(300):
    *points, labels = outlines(64)
    optimiser.zero_grad()
    spread_loss(scores(*points), labels, margin=0.5).backward()
    optimiser.step()
*points, labels = outlines(500)
print(f"accuracy on new shapes: {(scores(*points).argmax(-1) == labels).float().mean():.0%}")
