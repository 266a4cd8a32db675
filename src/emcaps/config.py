"""Everything a run is made of, as frozen dataclasses, and the named presets. No torch, so that --help is instant."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from emcaps.names import check_name, unknown_name

DATA_SCALINGS = ("mean", "none")
COMPETITIONS = ("all", "types")
IMPLEMENTATIONS = ("auto", "reference", "triton", "numba")
NETWORK_KINDS = ("capsules", "cnn")
DATASETS = ("toys", "smallnorb")
SPLITS = ("standard", "azimuth", "elevation", "validation")
VIEWS = ("mono", "stereo")
STANDARDS = ("image", "crop", "background")
LOSSES = ("spread", "margin", "cross_entropy")
GRAPHS = ("auto", "on", "off")
AUTOCASTS = ("off", "bfloat16")
BETAS = ("zero", "half_active")
DECAYS = ("exponential", "cosine")
MARGINS = ("sigmoid", "linear")


def _require(condition: bool, value: object, rule: str) -> None:
    if not condition:
        raise ValueError(f"{rule}, not {value!r}")


@dataclass(frozen=True)
class NetworkConfig:
    """A network by the letters of the paper: A channels, B primary types, C and D convolutional types, 5 classes."""

    kind: str = "capsules"
    """"capsules" for the matrix capsule network, "cnn" for the baseline of Hinton et al."""
    conv_channels: int = 64
    """A: channels of the first, ordinary convolution."""
    primary_types: int = 8
    """B: capsule types of the primary layer."""
    conv1_types: int = 16
    """C: capsule types of the first convolutional capsule layer."""
    conv2_types: int = 16
    """D: capsule types of the second convolutional capsule layer."""
    classes: int = 5
    iterations: int = 2
    """Routing iterations of every routed layer."""
    final_lambda: float = 1.0
    """Inverse temperature that lambda_t = final_lambda (1 - 0.95^(t+1)) rises towards."""
    variance_floor: float = 1e-4
    """Added to every variance (pitfall 1)."""
    data_scaling: str = "mean"
    """"mean" divides a parent's data by the layer's mean data; "none" does not (pitfall 2)."""
    competition: str = "all"
    """"all" lets every parent of a child compete; "types" only those at one position (pitfall 3)."""
    weight_identity: float = 1.0
    weight_noise: float = 0.05
    """Training starts from matrices of weight_identity times the identity plus Gaussian noise of this size."""
    betas: str = "zero"
    """"zero", or "half_active": chosen on the first images so that a parent starts active as often as not."""
    pose_scale: float = 0.0
    """Above 0, a layer's poses are divided by their root mean square and multiplied by a learned gain that starts
    here. Beside the variance floor this sets how soft the E-step is."""
    class_scale: float = 0.0
    """Where the gain of the poses that the class layer reads starts instead; 0 for pose_scale, like the others."""
    impl: str = "auto"
    """Which implementation of the routing runs."""

    def __post_init__(self) -> None:
        check_name("network kind", self.kind, NETWORK_KINDS)
        for name in ("conv_channels", "primary_types", "conv1_types", "conv2_types", "iterations"):
            _require(getattr(self, name) >= 1, getattr(self, name), f"network.{name} must be at least 1")
        _require(self.classes >= 2, self.classes, "network.classes must be at least 2")
        _require(
            math.isfinite(self.final_lambda) and self.final_lambda > 0,
            self.final_lambda,
            "network.final_lambda must be positive and finite",
        )
        _require(
            math.isfinite(self.variance_floor) and self.variance_floor >= 0,
            self.variance_floor,
            "network.variance_floor must be zero or more, and finite",
        )
        _require(math.isfinite(self.weight_identity), self.weight_identity, "network.weight_identity must be finite")
        _require(
            math.isfinite(self.weight_noise) and self.weight_noise >= 0,
            self.weight_noise,
            "network.weight_noise must be zero or more, and finite",
        )
        for name in ("pose_scale", "class_scale"):
            value = getattr(self, name)
            _require(
                math.isfinite(value) and value >= 0, value, f"network.{name} must be zero (off) or more, and finite"
            )
        _require(
            self.pose_scale > 0 or self.class_scale == 0,
            self.class_scale,
            "network.class_scale needs network.pose_scale, which is off: set both, or neither",
        )
        check_name("start of the betas", self.betas, BETAS)
        check_name("data scaling", self.data_scaling, DATA_SCALINGS)
        check_name("competition", self.competition, COMPETITIONS)
        check_name("implementation", self.impl, IMPLEMENTATIONS)


@dataclass(frozen=True)
class DataConfig:
    """Which images a run sees, and how they are varied while training."""

    dataset: str = "toys"
    """"toys", rendered by `emcaps data make`, or "smallnorb", fetched by `emcaps data get`."""
    split: str = "standard"
    """"standard"; "azimuth" or "elevation" (novel viewpoints); "validation" (a held-out training instance)."""
    fold: int = 0
    """With split "validation": which of the training instances of each category is held out, 0 to 4."""
    view: str = "mono"
    """"mono" makes each camera an example of one channel; "stereo" makes each pair an example of two."""
    crop: int = 32
    """Side of the square that is cut from the 48x48 images: at random for training, from the centre for testing."""
    max_shift: int = 24
    """Training crops lie at most this many pixels off the centre along each axis, and never beyond the image."""
    standardise: str = "image"
    """What gets mean 0 and standard deviation 1: the "image", before it is cropped, or the "crop" itself. With
    "background" the mean of the image's edge becomes 0 and 40 grey levels become 1."""
    brightness: float = 0.5
    """Training images are shifted by up to this much, in what standardise makes 1; with "background" 0 suits best."""
    contrast_low: float = 0.5
    contrast_high: float = 1.5
    """Training images are stretched about their mean by a factor between these two."""
    splice: float = 0.0
    """For this share of training images an instance of the same category is drawn, and they show it beyond a random
    line: from the same viewpoint, in the same light, by the labels of both. It may be the one that they show anyway."""

    def __post_init__(self) -> None:
        check_name("dataset", self.dataset, DATASETS)
        check_name("split", self.split, SPLITS)
        check_name("view", self.view, VIEWS)
        check_name("part to standardise", self.standardise, STANDARDS)
        _require(0 <= self.fold <= 4, self.fold, "data.fold must be 0 to 4, one of the five training instances")
        _require(8 <= self.crop <= 48, self.crop, "data.crop must be 8 to 48, the side of the prepared images")
        _require(self.max_shift >= 0, self.max_shift, "data.max_shift must be zero or more")
        _require(
            math.isfinite(self.brightness) and self.brightness >= 0,
            self.brightness,
            "data.brightness must be zero or more, and finite",
        )
        _require(
            0 < self.contrast_low <= self.contrast_high < math.inf,
            (self.contrast_low, self.contrast_high),
            "data.contrast_low and data.contrast_high must be positive, finite and in this order",
        )
        _require(0 <= self.splice <= 1, self.splice, "data.splice must be a share, 0 to 1")

    @property
    def image_channels(self) -> int:
        return 2 if self.view == "stereo" else 1


@dataclass(frozen=True)
class TrainConfig:
    """How a network is trained: the paper's loss and schedules unless told otherwise."""

    steps: int = 20_000
    batch_size: int = 64
    loss: str = "spread"
    learning_rate: float = 3e-3
    decay_rate: float = 0.96
    decay_steps: int = 2000
    """The learning rate is multiplied by decay_rate every decay_steps steps, smoothly."""
    decay: str = "exponential"
    """"cosine" goes from learning_rate to 0 at the last step instead, without decay_rate and decay_steps."""
    warmup_steps: int = 0
    """The learning rate rises from 0 over these first steps."""
    beta_rate: float = 1.0
    """The betas of the routed layers learn this many times as fast as everything else."""
    margin_steps: int = 50_000
    """Time scale of the spread loss's margin, 0.2 + 0.79 sigmoid(min(10, step / margin_steps - 4))."""
    margin: str = "sigmoid"
    """"linear" raises the margin from 0.2 to 0.9 over margin_steps steps instead."""
    mixup: float = 0.0
    """Up to this share of another image of the batch, and of its label, is mixed into each training image."""
    weight_decay: float = 2e-7
    seed: int = 0
    log_every: int = 50
    """Steps between rows of metrics.jsonl."""
    checkpoint_every: int = 500
    """Steps between checkpoints; one is also written at the end and when the run is interrupted."""
    eval_every: int = 0
    """Steps between evaluations while training; 0 evaluates at the end only."""
    graph: str = "auto"
    """"on" replays the step as a CUDA graph, to the same numbers; "auto" does where it can; "off" does not."""
    autocast: str = "off"
    """"bfloat16" runs forward pass and loss under torch.autocast; evaluation is in float32 all the same."""

    def __post_init__(self) -> None:
        check_name("loss", self.loss, LOSSES)
        check_name("learning rate's decay", self.decay, DECAYS)
        check_name("margin", self.margin, MARGINS)
        check_name("graph", self.graph, GRAPHS)
        check_name("autocast", self.autocast, AUTOCASTS)
        for name in ("steps", "batch_size", "decay_steps", "margin_steps", "log_every", "checkpoint_every"):
            _require(getattr(self, name) >= 1, getattr(self, name), f"train.{name} must be at least 1")
        for name in ("seed", "eval_every", "warmup_steps"):
            _require(getattr(self, name) >= 0, getattr(self, name), f"train.{name} must be zero or more")
        for name in ("learning_rate", "decay_rate", "beta_rate"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, value, f"train.{name} must be positive and finite")
        _require(0 <= self.mixup <= 1, self.mixup, "train.mixup must be a share, 0 to 1")
        _require(
            math.isfinite(self.weight_decay) and self.weight_decay >= 0,
            self.weight_decay,
            "train.weight_decay must be zero or more, and finite",
        )


@dataclass(frozen=True)
class RunConfig:
    """One training run, complete: the same RunConfig on the same machine gives the same numbers."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.network.kind == "cnn" and self.train.loss != "cross_entropy":
            raise ValueError(
                f"the cnn network gives logits, so train.loss must be 'cross_entropy', not {self.train.loss!r}"
            )
        _require(self.network.classes == 5, self.network.classes, "network.classes must be 5, as in both data sets")
        _require(
            self.network.kind == "cnn" or self.data.crop >= 13,
            self.data.crop,
            "data.crop must be at least 13 for a capsule network, whose three layers of windows need as much",
        )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, sections: dict[str, dict[str, Any]]) -> RunConfig:
        _require(isinstance(sections, dict), sections, "a config must be a table of sections")
        for name in sections:
            check_name("section", name, ("network", "data", "train"))
            _require(isinstance(sections[name], dict), sections[name], f"the section {name!r} must hold settings")
        return cls(
            network=_build(NetworkConfig, "network", sections.get("network", {})),
            data=_build(DataConfig, "data", sections.get("data", {})),
            train=_build(TrainConfig, "train", sections.get("train", {})),
        )

    def override(self, assignments: dict[str, Any]) -> RunConfig:
        """A copy with settings such as {"network.iterations": 3} changed; strings are read as the field's type."""
        changes: dict[str, dict[str, Any]] = {"network": {}, "data": {}, "train": {}}
        for name, value in assignments.items():
            section, _, key = name.partition(".")
            known = [f"{s}.{f.name}" for s in changes for f in dataclasses.fields(getattr(self, s))]
            if name not in known:
                raise ValueError(unknown_name("setting", name, known))
            changes[section][key] = _parse(type(getattr(self, section)), key, name, value)
        return RunConfig(**{s: dataclasses.replace(getattr(self, s), **c) for s, c in changes.items()})


def _build(section: type, name: str, values: dict[str, Any]) -> Any:
    known = [f.name for f in dataclasses.fields(section)]
    for key in values:
        if key not in known:
            raise ValueError(unknown_name(f"setting in {name!r}", key, known))
    return section(**{key: _parse(section, key, f"{name}.{key}", value) for key, value in values.items()})


def _parse(section: type, key: str, name: str, value: Any) -> Any:
    wanted = typing.get_type_hints(section)[key]
    assert not isinstance(wanted, types.UnionType), "settings have one type each"
    if isinstance(value, str) and wanted in (int, float):
        try:
            value = wanted(value.replace("_", ""))
        except ValueError:
            kind = "a whole number" if wanted is int else "a number"
            raise ValueError(f"{name} must be {kind}, not {value!r}") from None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(f"{name} must be of type {wanted.__name__}, not {value!r}")
    return value


PRESETS: dict[str, RunConfig] = {
    "tiny": RunConfig(NetworkConfig(conv_channels=32, primary_types=4, conv1_types=8, conv2_types=8)),
    "small": RunConfig(NetworkConfig(conv_channels=64, primary_types=8, conv1_types=16, conv2_types=16)),
    "full": RunConfig(NetworkConfig(conv_channels=32, primary_types=32, conv1_types=32, conv2_types=32)),
    "cnn": RunConfig(NetworkConfig(kind="cnn"), train=TrainConfig(loss="cross_entropy", learning_rate=1e-3)),
}


def preset(name: str) -> RunConfig:
    """The named preset, or a ValueError with the nearest name."""
    check_name("preset", name, PRESETS)
    return PRESETS[name]
