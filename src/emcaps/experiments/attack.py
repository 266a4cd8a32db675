"""How well trained networks withstand attacks on their test images: `emcaps experiment attack`.

Epsilon, the size of an attack, counts standard deviations of the image's own grey levels, over all its pixels and
cameras before it is cropped. It is the same for every network, however that prepares its images. Hinton et al. (2018)
do not state their scale; they bring each image to a standard deviation of 1, so theirs is most likely this one. The
preparation itself, with its mean and deviation, stays that of the clean image.

The attacker raises one of two losses. "training" is the loss that the network was trained with, at its last margin.
"logit" is the best wrong class's logit less the right one's. The second is a control: where the training loss is flat,
as the spread loss is beyond its margin, its gradient is zero and hides a way that the second finds. Random signs of the
same size are a control without any gradient, and images made for one network are shown to the others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from emcaps.analysis.attacks import Loss, bim, fgsm, gradient_of, into_range, logit_margin, pgd
from emcaps.config import RunConfig
from emcaps.data.crops import centre_crop, grey_deviation, grey_scale
from emcaps.data.splits import load_tested
from emcaps.data.tensors import to_tensors
from emcaps.experiments.attack_tables import draw_attack, show_attack
from emcaps.files import check_writable, write_json
from emcaps.nn import MatrixCapsNet
from emcaps.nn.classifier import Classifier, class_scores
from emcaps.provenance import environment
from emcaps.report.figures import check_matplotlib
from emcaps.report.progress import counting_bar
from emcaps.train import load_network
from emcaps.train.checks import check_fits
from emcaps.train.device import start_work
from emcaps.train.evaluate import images_at_a_time
from emcaps.train.randomness import seed_for
from emcaps.train.schedules import margin_of
from emcaps.train.step import loss_of
from emcaps.weights import find_weights

LOSSES = ("training", "logit")
MOST_AT_ONCE = 256
"""The most images that are attacked at once: a gradient takes more memory than an answer."""


class AttackSettings(NamedTuple):
    """What is done to how many images."""

    images: int = 1000
    seed: int = 0
    """Chooses the images, the random signs and the random starts."""
    epsilons: Sequence[float] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
    """The sizes of untargeted attacks."""
    targeted: Sequence[float] = (0.05, 0.1, 0.15, 0.2, 0.25)
    """The sizes of attacks towards each wrong class."""
    bim_steps: int = 10
    pgd_steps: int = 40
    starts: int = 3
    """Random starts of PGD; an image counts as right if it is right after each of them."""


class Victim(NamedTuple):
    """A trained network and the test images that it is attacked with."""

    name: str
    network: Classifier
    config: RunConfig
    step: int
    crops: Tensor
    """(N, C, crop, crop) floats: the grey levels of what the network reads."""
    labels: Tensor
    deviation: Tensor
    """(N, 1, 1, 1): the standard deviation of each whole image, in grey levels."""
    scale: tuple[Tensor, Tensor]
    """The network reads grey levels less the first, divided by the second."""

    def output(self, crops: Tensor, which: slice) -> Any:
        return self.network(self._prepared(crops, which))

    def logits(self, crops: Tensor, which: slice) -> Tensor:
        prepared = self._prepared(crops, which)
        logits: Tensor
        if isinstance(self.network, MatrixCapsNet):
            logits = self.network.class_logits(prepared)
        else:
            logits = self.network(prepared)
        return logits

    def answers(self, crops: Tensor, which: slice) -> Tensor:
        with torch.no_grad():
            scores = class_scores(self.output(crops, which))
        if not scores.isfinite().all():
            raise ValueError(f"{self.name} gives infinite or NaN scores: its weights are of no use")
        return scores.argmax(-1)

    def _prepared(self, crops: Tensor, which: slice) -> Tensor:
        offset, scale = self.scale
        return (crops - offset[which]) / scale[which]


def run_attack(
    names: Sequence[str],
    console: Console,
    settings: AttackSettings = AttackSettings(),  # noqa: B008 (a tuple cannot change)
    *,
    json: Path | None = None,
    figure: Path | None = None,
    device: str = "auto",
    data_folder: Path | None = None,
) -> None:
    """Attack the networks of these names, run folders or files; show tables, write a record and draw a picture."""
    _check(names, settings)
    if figure is not None:
        check_matplotlib()
    for path in (json, figure):
        if path is not None:
            check_writable(path.parent)
    place = start_work(device)
    surroundings = environment(place)
    victims = [_load(name, settings, place, data_folder) for name in names]
    with counting_bar("attacking", "images") as show:
        found = measure_attacks(victims, settings, show)
    found = {"environment": surroundings} | found
    show_attack(found, console)
    if json is not None:
        write_json(json, found)
    if figure is not None:
        draw_attack(found, figure)
        console.print(f"figure: {figure}")


def _check(names: Sequence[str], settings: AttackSettings) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"each network must be named once, not as {', '.join(names)}: leave out what is there twice")
    for option, value in (("images", settings.images), ("starts", settings.starts)):
        if value < 1:
            raise ValueError(f"{option} must be at least 1, not {value}")
    for epsilon in (*settings.epsilons, *settings.targeted):
        if not 0 < epsilon <= 10:
            raise ValueError(
                f"epsilon must be above 0 and at most 10 standard deviations of an image, not {epsilon}: 0.1 is usual; "
                "what 0 gives, the accuracy on clean images, is always shown"
            )


def _load(name: str, settings: AttackSettings, place: torch.device, data_folder: Path | None) -> Victim:
    network, config, step = load_network(find_weights(name), place)
    examples = load_tested(config.data, data_folder)["test"]
    check_fits(config, examples)
    images, labels = to_tensors(examples, config.data.view, place)
    order = torch.randperm(len(images), generator=_generator(settings.seed, "images"))[: settings.images].to(place)
    images, labels = images[order], labels[order]
    return Victim(
        name,
        network.eval().requires_grad_(False),
        config,
        step,
        centre_crop(images, config.data.crop).float(),
        labels,
        grey_deviation(images),
        grey_scale(images, config.data.crop, config.data.standardise),
    )


def measure_attacks(
    victims: Sequence[Victim], settings: AttackSettings, on_progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """What every attack does to every network. Shares are from 0 to 1.

    Rows of goal "untargeted" have the share of right answers, those of goal "targeted" the share of the attacks after
    which the answer is the target, over all images and all wrong targets.
    """
    rows, networks, done = [], {}, 0
    total = sum(len(victim.labels) for victim in victims)
    for victim in victims:
        started = time.perf_counter()
        readers = [other for other in victims if _reads_the_same(victim.config, other.config)]
        counts: Counter[tuple[Any, ...]] = Counter()
        gradients: dict[str, list[Tensor]] = {loss: [] for loss in LOSSES}
        images = len(victim.labels)
        at_once = min(MOST_AT_ONCE, images_at_a_time(victim.config, victim.labels.device))
        for start in range(0, images, at_once):
            which = slice(start, min(images, start + at_once))
            counts.update(_attack_batch(victim, readers, which, settings, gradients))
            done += which.stop - which.start
            if on_progress is not None:
                on_progress(done, total)
        clean = counts.pop(("clean",))
        networks[victim.name] = {
            "config": {"kind": victim.config.network.kind, "iterations": victim.config.network.iterations}
            | {"loss": victim.config.train.loss, "standardise": victim.config.data.standardise},
            "data": f"{victim.config.data.dataset}, {victim.config.data.split}, {victim.config.data.view}",
            "step": victim.step,
            "images": images,
            "accuracy": clean / images,
            "grey_levels": float(victim.deviation.median()),
            "gradients": {loss: _gradient_statistics(torch.cat(found)) for loss, found in gradients.items()},
            "seconds": round(time.perf_counter() - started, 1),
        }
        wrong_targets = victim.config.network.classes - 1
        for (shown_to, goal, loss, attack, epsilon), count in counts.items():
            share = count / images / (wrong_targets if goal == "targeted" else 1)
            rows.append(
                {"made_for": victim.name, "shown_to": shown_to, "goal": goal, "loss": loss}
                | {"attack": attack, "epsilon": epsilon, "share": share}
            )
    listed = {name: list(value) if isinstance(value, Sequence) else value for name, value in settings._asdict().items()}
    return {"settings": listed, "networks": networks, "rows": rows}


def _attack_batch(
    victim: Victim,
    readers: Sequence[Victim],
    which: slice,
    settings: AttackSettings,
    gradients: Mapping[str, list[Tensor]],
) -> Counter[tuple[Any, ...]]:
    """How many of a batch's images are right, or hit their target, by network, goal, loss, attack and epsilon."""
    counts: Counter[tuple[Any, ...]] = Counter()
    crops, labels, deviation = victim.crops[which], victim.labels[which], victim.deviation[which]
    right = victim.answers(crops, which) == labels
    counts["clean",] = int(right.sum())
    losses = {kind: partial(_loss_against, victim, which, kind, labels) for kind in LOSSES}
    slopes = {kind: gradient_of(loss, crops) for kind, loss in losses.items()}
    for kind, slope in slopes.items():
        gradients[kind].append((slope * deviation).flatten(1).cpu())  # per standard deviation, as epsilon is

    for epsilon in settings.epsilons:
        radius = epsilon * deviation
        signs = _random(victim, which, settings.seed, "signs").sign()
        noisy = into_range(crops + radius * signs, crops, radius)
        withstood = victim.answers(noisy, which) == labels
        counts[victim.name, "untargeted", "none", "noise", epsilon] = int(withstood.sum())
        withstood &= right
        for kind, attack, made in _untargeted(victim, which, losses, slopes, radius, settings):
            for reader in readers:
                kept = torch.stack([reader.answers(attacked, which) == labels for attacked in made]).all(0)
                counts[reader.name, "untargeted", kind, attack, epsilon] = int(kept.sum())
                if reader is victim:
                    withstood &= kept
        counts[victim.name, "untargeted", "all", "worst", epsilon] = int(withstood.sum())

    for shift in range(1, victim.config.network.classes):
        target = (labels + shift) % victim.config.network.classes
        for kind in LOSSES:
            loss = partial(_loss_towards, victim, which, kind, target)
            slope = gradient_of(loss, crops)
            for epsilon in settings.targeted:
                radius = epsilon * deviation
                towards = {"fgsm": fgsm(slope, crops, radius), "bim": bim(loss, crops, radius, settings.bim_steps)}
                for attack, attacked in towards.items():
                    hit = int((victim.answers(attacked, which) == target).sum())
                    counts[victim.name, "targeted", kind, attack, epsilon] += hit
    return counts


def _untargeted(
    victim: Victim,
    which: slice,
    losses: Mapping[str, Loss],
    slopes: Mapping[str, Tensor],
    radius: Tensor,
    settings: AttackSettings,
) -> Iterator[tuple[str, str, list[Tensor]]]:
    """Yield loss, attack and what it makes of the images: one set of them, or as many as PGD has starts."""
    crops = victim.crops[which]
    for kind, loss in losses.items():
        yield kind, "fgsm", [fgsm(slopes[kind], crops, radius)]
        yield kind, "bim", [bim(loss, crops, radius, settings.bim_steps)]
        starts = [_random(victim, which, settings.seed, f"start {number}") for number in range(settings.starts)]
        yield kind, "pgd", [pgd(loss, crops, radius, settings.pgd_steps, start) for start in starts]


def _loss_against(victim: Victim, which: slice, kind: str, labels: Tensor, crops: Tensor) -> Tensor:
    """What an attacker raises who wants any wrong answer, summed over images."""
    if kind == "logit":
        return -logit_margin(victim.logits(crops, which), labels).sum()
    return _training_loss(victim, which, labels, crops)


def _loss_towards(victim: Victim, which: slice, kind: str, target: Tensor, crops: Tensor) -> Tensor:
    """What an attacker raises who wants the answer `target`, summed over images."""
    if kind == "logit":
        return logit_margin(victim.logits(crops, which), target).sum()
    return -_training_loss(victim, which, target, crops)


def _training_loss(victim: Victim, which: slice, labels: Tensor, crops: Tensor) -> Tensor:
    train = victim.config.train
    return loss_of(victim.output(crops, which), labels, train, margin_of(train, victim.step)) * len(labels)


def _gradient_statistics(gradients: Tensor) -> dict[str, float]:
    """Of gradients (N, pixels): the median norm, and the shares of pixels and of whole images without any gradient."""
    zero = gradients == 0
    return {
        "median_norm": float(gradients.norm(dim=1).median()),
        "zero_pixels": float(zero.float().mean()),
        "zero_images": float(zero.all(1).float().mean()),
    }


def _random(victim: Victim, which: slice, seed: int, purpose: str) -> Tensor:
    """Numbers from -1 to 1 for some of the images. Each image has its own, whatever the batch."""
    drawn = torch.rand(victim.crops.shape, generator=_generator(seed, purpose))
    return (2 * drawn[which] - 1).to(victim.crops.device)


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_for(seed, f"attack {purpose}"))


def _reads_the_same(one: RunConfig, other: RunConfig) -> bool:
    """Whether two networks are tested with the same crops of the same images, so that each can be shown the other's."""
    keys = ("dataset", "split", "fold", "view", "crop", "channels", "size", "names")
    return all(getattr(one.data, key) == getattr(other.data, key) for key in keys)
