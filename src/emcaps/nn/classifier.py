"""What every network of ours can do with images once it is trained: say which class each one shows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from emcaps.config import DataConfig
from emcaps.data.arrays import as_array, channels_first
from emcaps.data.crops import evaluation_crops
from emcaps.data.picture_files import resized
from emcaps.data.prepared import SIDE, class_names
from emcaps.routing import RoutingOutput

AT_A_TIME = 64
"""How many images `predict` shows to the network at once."""


class Predictions(NamedTuple):
    """What a network says of N images."""

    names: tuple[str, ...]
    """The names of all classes."""
    scores: Tensor
    """(N, classes), each 0 to 1: the activations of class capsules, or a CNN's probabilities."""

    @property
    def answers(self) -> list[str]:
        """The name of the class with the highest score, for each image."""
        return [self.names[number] for number in self.scores.argmax(-1).tolist()]


def class_scores(output: RoutingOutput | Tensor) -> Tensor:
    """(B, classes): activations of class capsules, or the probabilities that logits stand for."""
    return output.activation if isinstance(output, RoutingOutput) else output.softmax(-1)


def class_shares(scores: Tensor) -> Tensor:
    """Scores (..., classes) as shares of 1."""
    return scores / scores.sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


class Classifier(nn.Module):
    """A network of classes. `data` says which images it was trained on; None for one that is new."""

    data: DataConfig | None = None

    def predict(self, images: Any) -> Predictions:
        """The scores of images uint8 (N, H, W), (N, C, H, W) or (N, H, W, C), arrays or tensors.

        They are resized, cropped and normalised as those that the network was trained on.
        """
        if self.data is None:
            raise ValueError(
                "this network was not trained by emcaps, so it does not know what its images are like: call it with "
                "prepared images instead"
            )
        prepared = self._prepared(images, self.data)
        some = next(self.parameters())
        was_training = self.training
        self.eval()
        scores = []
        try:
            for start in range(0, len(prepared), AT_A_TIME):
                batch = prepared[start : start + AT_A_TIME].to(some.device)
                with torch.no_grad():
                    output = self(evaluation_crops(batch, self.data.crop, 1, self.data.standardise)[:, 0].to(some))
                scores.append(class_scores(output).cpu())
        finally:
            self.train(was_training)
        found = torch.cat(scores)
        if not found.isfinite().all():
            raise ValueError("the network gives infinite or NaN scores: its weights are of no use")
        return Predictions(class_names(self.data), found)

    def _prepared(self, images: Any, data: DataConfig) -> Tensor:
        """The images as a uint8 tensor (N, C, side, side) of the size that training had."""
        given = as_array(images)
        if given.ndim and len(given) == 0:
            raise ValueError("there are no images to classify")
        found = channels_first(given)
        if found.shape[1] != data.image_channels:
            raise ValueError(
                f"the network reads images of {data.image_channels} channels, not {found.shape[1]}: give grey images "
                "one channel, colour images three and stereo pairs two"
            )
        return torch.from_numpy(np.ascontiguousarray(resized(found, data.size or SIDE, data.fit)))
