"""One step of training: gather, augment, forward, loss, backward, optimiser, and the sums that give the metrics.

A step has two halves. `prepare` sets what differs from step to step. `work` does all the rest: it has neither arguments
nor a result, its tensors stay where they are, and it never waits for the device. So it can be captured in a CUDA graph
(graph.py), whose replay gives the same numbers as a call.

Dims: B batch; C channels; images uint8 (N, C, H, W) of the whole split live on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emcaps.config import RunConfig, TrainConfig
from emcaps.data.combine import Counterparts
from emcaps.nn import cross_entropy_loss, margin_loss, spread_loss
from emcaps.nn.classifier import class_scores
from emcaps.nn.losses import right_answers
from emcaps.routing import RoutingOutput
from emcaps.train import distributed
from emcaps.train.batch import training_batch
from emcaps.train.randomness import ExampleOrder, seed_default_generator, seed_for
from emcaps.train.schedules import learning_rate_of, margin_of
from emcaps.train.teachers import mean_answer, teaching_loss


def make_optimiser(network: nn.Module, config: TrainConfig) -> torch.optim.Adam:
    """Adam; on a CUDA device with all its state there, learning rates included, so that its step can be captured."""
    on_gpu = next(network.parameters()).device.type == "cuda"
    by_factor: dict[float, list[nn.Parameter]] = {1.0: []}  # which come first
    for name, value in network.named_parameters():
        by_factor.setdefault(rate_factor(name, config), []).append(value)
    groups: list[dict[str, Any]] = []
    for factor, values in by_factor.items():
        if values:
            rate = config.learning_rate * factor
            groups.append(
                {
                    "params": values,
                    "lr": torch.tensor(rate, dtype=torch.float32, device=values[0].device) if on_gpu else rate,
                    "rate_factor": factor,
                }
            )
    options: dict[str, Any] = {"capturable": True, "fused": True} if on_gpu else {}
    return torch.optim.Adam(groups, weight_decay=config.weight_decay, **options)


def rate_factor(name: str, config: TrainConfig) -> float:
    """How many times as fast as config.learning_rate says the parameter of this name learns."""
    if name.endswith("beta_a"):
        return config.beta_a_rate or config.beta_rate
    return config.beta_rate if name.endswith("beta_u") else 1.0


def make_sums(device: torch.device) -> dict[str, Tensor]:
    """Sums that give the next row of metrics; they are kept on the device, so that a step does not wait for it."""
    return {name: torch.zeros((), device=device) for name in ("steps", "loss", "right")}


class TrainingStep:
    """`step(number)` is one update of the network; steps are counted from 0 and each depends on its number alone."""

    def __init__(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        images: Tensor,
        labels: Tensor,
        config: RunConfig,
        sums: dict[str, Tensor],
        counterparts: Counterparts | None = None,
        teachers: Sequence[nn.Module] = (),
    ) -> None:
        if config.data.splice and counterparts is None:
            raise ValueError(
                f"data.splice is {config.data.splice}, so a step needs counterparts: give it those of find_counterparts"
            )
        device = images.device
        self.network, self.optimiser, self.config, self.sums = network, optimiser, config, sums
        self.images, self.labels = images, labels
        self.counterparts = counterparts if config.data.splice else None
        self.teachers = teachers
        self.order = ExampleOrder(len(images), config.train.batch_size, config.train.seed, device)
        self.generator = torch.Generator(device)
        self.share = distributed.share(config.train.batch_size)
        self.examples = torch.zeros(config.train.batch_size, dtype=torch.int64, device=device)
        self.one = torch.ones((), device=device)
        # A replayed graph reads its margin from the device; elsewhere a plain number saves a tensor.
        self.margin: float | Tensor = torch.zeros((), device=device) if device.type == "cuda" else 0.0

    def __call__(self, number: int) -> None:
        self.prepare(number)
        self.work()

    def prepare(self, number: int) -> None:
        """Set the seeds, examples, learning rate and margin of a step."""
        config = self.config.train
        # Dropout alone draws for this process's share of the batch, and no two shares may draw the same.
        purpose = f"dropout {distributed.rank()}" if distributed.rank() else "dropout"
        seed_default_generator(seed_for(config.seed, purpose, number), self.images.device)
        self.generator.manual_seed(seed_for(config.seed, "augmentation", number))
        self.examples.copy_(self.order.batch(number))
        for group in self.optimiser.param_groups:
            rate = learning_rate_of(config, number) * group.get("rate_factor", 1.0)
            group["lr"] = _set(group["lr"], rate)
        self.margin = _set(self.margin, margin_of(config, number))

    def work(self) -> None:
        """Update the network from the examples that `prepare` chose, and add to the sums.

        Each of several processes prepares the whole batch, since random numbers and neighbours depend on all of it, and
        trains on its share.
        """
        labels = self.labels[self.examples]
        crops, own = training_batch(
            self.images,
            self.examples,
            self.config.data,
            self.generator,
            self.counterparts,
            self.config.train.mixup,
        )
        mine = self.share
        mixed = None if own is None else Mixed(own[mine], labels.roll(1)[mine])
        answer = mean_answer(self.teachers, crops[mine])
        loss, right = train_step(
            self.network, self.optimiser, crops[mine], labels[mine], self.config.train, self.margin, mixed, answer
        )
        # On a GPU one kernel in place of three.
        torch._foreach_add_([self.sums[name] for name in ("steps", "loss", "right")], [self.one, loss, right])

    def state(self) -> list[Tensor]:
        """Every tensor that a step changes and the next one reads. The optimiser makes its own in the first step."""
        moments = [value for values in self.optimiser.state.values() for value in values.values()]
        return [*self.network.parameters(), *self.network.buffers(), *moments, *self.sums.values()]


class Mixed(NamedTuple):
    """What mixing made of a batch."""

    own: Tensor
    """(B,): how much of each crop is its own image; the rest is its neighbour's."""
    neighbours: Tensor
    """(B,): the labels of the neighbours."""


def train_step(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    crops: Tensor,
    labels: Tensor,
    config: TrainConfig,
    margin: float | Tensor,
    mixed: Mixed | None = None,
    answer: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One update of the network from crops (B, C, H, W); gives the loss and how many answers were right.

    `answer` (B, classes) is that of its teachers, if there are any. Several processes make the same update, from all
    their crops, and get the loss and the right answers of all.
    """
    output, loss = training_loss(network, crops, labels, config, margin, mixed, answer)
    optimiser.zero_grad()
    loss.backward()
    right = right_answers(class_scores(output).detach(), labels)
    loss, right = distributed.reduce_step(network, loss.detach(), right)
    optimiser.step()
    return loss, right


def training_loss(
    network: nn.Module,
    crops: Tensor,
    labels: Tensor,
    config: TrainConfig,
    margin: float | Tensor,
    mixed: Mixed | None = None,
    answer: Tensor | None = None,
) -> tuple[RoutingOutput | Tensor, Tensor]:
    """The network's output for crops, and what it is trained to lower. A mixed crop counts for both of its images.

    With config.autocast this, and nothing else of a step, runs under torch.autocast: teachers answer in float32.
    """
    parts: list[tuple[Tensor, Tensor | None]] = [(labels, None)]
    if mixed is not None:
        parts = [(labels, mixed.own), (mixed.neighbours, 1 - mixed.own)]
    with torch.autocast(crops.device.type, dtype=torch.bfloat16, enabled=config.autocast == "bfloat16"):
        output = network(crops)
        loss = reduce(add, [loss_of(output, target, config, margin, share) for target, share in parts])
        if (decoder := getattr(network, "decoder", None)) is not None:
            drawn = [reconstruction_loss(decoder(output, target), crops, share) for target, share in parts]
            loss = loss + config.reconstruction * reduce(add, drawn)
        if answer is not None:
            loss = loss + config.teaching * teaching_loss(output, answer)
    return output, loss


def reconstruction_loss(drawn: Tensor, crops: Tensor, weight: Tensor | None = None) -> Tensor:
    """The squared error of drawn crops, the mean over pixels and examples; `weight` (B,) weights examples."""
    errors = (drawn - crops).square().flatten(1).mean(1)
    return errors.mean() if weight is None else (errors * weight).mean()


def loss_of(
    output: RoutingOutput | Tensor,
    target: Tensor,
    config: TrainConfig,
    margin: float | Tensor,
    weight: Tensor | None = None,
) -> Tensor:
    """The configured loss of class capsules, or the cross-entropy of a CNN's logits; `weight` (B,) weights examples."""
    if not isinstance(output, RoutingOutput):
        if weight is None:
            return F.cross_entropy(output, target)
        return (F.cross_entropy(output, target, reduction="none") * weight).mean()
    if config.loss == "spread":
        return spread_loss(output.activation, target, margin, weight)
    loss = {"margin": margin_loss, "cross_entropy": cross_entropy_loss}[config.loss]
    return loss(output.activation, target, weight)


def _set(place: float | Tensor, value: float) -> float | Tensor:
    """`value`, or `place` filled with it if that is a tensor, which a graph reads. The host copies nothing."""
    return place.fill_(value) if isinstance(place, Tensor) else value
