"""What TensorBoard gets besides the rows of metrics: pictures of test images with answers, histograms of the routing.

They are made at evaluations, on a few test images that stay the same, without gradients or random numbers. So a run
gives the same bits with them and without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from emcaps.analysis.overlay import routing_overlays, shown_picture
from emcaps.analysis.sharpness import assignment_entropy
from emcaps.config import RunConfig
from emcaps.data.crops import centre_crop, evaluation_crops
from emcaps.data.prepared import Examples
from emcaps.data.tensors import to_tensors
from emcaps.nn import MatrixCapsNet, NetworkTrace
from emcaps.nn.classifier import class_scores

IMAGES = 8
"""How many test images a look is taken on; few, since a trace computes every vote in memory."""


def make_look(
    board: Any, network: nn.Module, examples: Examples, config: RunConfig, device: torch.device
) -> Callable[[int], None]:
    """A function that takes the number of steps done and writes pictures and histograms to `board`, a SummaryWriter."""
    chosen = np.linspace(0, len(examples.images) - 1, min(IMAGES, len(examples.images))).round().astype(int)
    images, labels = to_tensors(examples.select(chosen), config.data.view, device)
    cameras = len(images) // len(chosen)
    images, labels = images[::cameras], labels[::cameras]
    pictures = centre_crop(images, config.data.crop)
    crops = evaluation_crops(images, config.data.crop, 1, config.data.standardise)[:, 0]
    true = labels.tolist()

    @torch.no_grad()
    def look(step: int) -> None:
        shown = [_coloured(shown_picture(picture)) for picture in pictures]
        if isinstance(network, MatrixCapsNet):
            trace = network.trace(crops)
            scores = trace.class_caps[-1].activation
            for name, values in _histograms(network, trace).items():
                finite = values[values.isfinite()]
                if len(finite):
                    board.add_histogram(name, finite.float().cpu().numpy(), step)
            overlays = routing_overlays(network, trace, pictures)
            shown = [np.concatenate([one, *steps], axis=1) for one, steps in zip(shown, overlays, strict=True)]
        else:
            scores = class_scores(network(crops))
        board.add_image("test images", np.concatenate(shown), step, dataformats="HWC")
        board.add_text("answers", _answers(scores, true, examples.names), step)

    return look


def _histograms(network: MatrixCapsNet, trace: NetworkTrace) -> dict[str, Tensor]:
    """For each layer: the activations, the betas and the entropy of its children's assignments, after routing."""
    found = {"activation/primary_caps": trace.primary_caps.activation.flatten()}
    children = trace.primary_caps.activation
    for name, layer, steps in zip(network.routed_names, network.routed, trace.routed, strict=True):
        last = steps[-1]
        found[f"activation/{name}"] = last.activation.flatten()
        found[f"beta_a/{name}"], found[f"beta_u/{name}"] = layer.beta_a.detach(), layer.beta_u.detach()
        found[f"assignment_entropy/{name}"] = assignment_entropy(layer, last.assignment, children).flatten()
        children = last.activation
    return found


def _coloured(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)


def _answers(scores: Tensor, true: list[int], names: tuple[str, ...]) -> str:
    """A table in Markdown with a line for each picture, from top to bottom; bars and brackets of names are escaped."""
    safe = ["".join(f"&#{ord(letter)};" if not letter.isalnum() else letter for letter in name) for name in names]
    lines = ["| picture | true | given | score |", "|---|---|---|---|"]
    for number, (label, row) in enumerate(zip(true, scores.float().cpu(), strict=True), start=1):
        given = int(row.argmax())
        lines.append(f"| {number} | {safe[label]} | {safe[given]} | {float(row[given]):.3f} |")
    return "\n".join(lines)
