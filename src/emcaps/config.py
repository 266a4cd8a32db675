"""All settings of a run as frozen dataclasses, and the named presets. Torch is not imported, so --help is instant."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from emcaps.config_layers import LayerConfig as LayerConfig
from emcaps.config_layers import read_layers
from emcaps.config_rules import (
    LARGEST_NUMBER,
    check_choices,
    check_numbers,
    check_sizes,
    check_texts,
    check_types,
    parse,
    require,
)
from emcaps.files import parse_json
from emcaps.names import check_name, nearest

NetworkKind = Literal["capsules", "cnn"]
DataScaling = Literal["mean", "none"]
Competition = Literal["all", "types"]
Pose = Literal["matrix", "vector"]
CnnPooling = Literal["none", "mean"]
NetworkInput = Literal["auto", "standardised", "as_given"]
StartingBetas = Literal["zero", "half_active"]
RoutingImplementation = Literal["auto", "reference", "triton", "numba"]
SplitName = Literal["standard", "azimuth", "elevation", "validation", "azimuth-validation", "elevation-validation"]
View = Literal["mono", "stereo"]
Fit = Literal["crop", "pad", "stretch"]
Standard = Literal["image", "crop", "background"]
Loss = Literal["spread", "margin", "cross_entropy"]
LearningRateSchedule = Literal["exponential", "cosine"]
MarginSchedule = Literal["sigmoid", "linear"]
Graph = Literal["auto", "on", "off"]
Autocast = Literal["off", "bfloat16"]

DATA_SCALINGS: tuple[DataScaling, ...] = typing.get_args(DataScaling)
COMPETITIONS: tuple[Competition, ...] = typing.get_args(Competition)
IMPLEMENTATIONS: tuple[RoutingImplementation, ...] = typing.get_args(RoutingImplementation)
DATASETS = ("toys", "smallnorb")
"""The sets that show objects from labelled viewpoints, through two cameras. Their experiments need these labels."""
PLAIN_DATASETS = ("mnist", "fashion-mnist", "cifar10")
"""Built-in sets of images and classes alone."""
ARRAYS = "arrays"
"""What data.dataset says of a run whose images were given as arrays from Python."""
SPLITS: tuple[SplitName, ...] = typing.get_args(SplitName)
VIEWS: tuple[View, ...] = typing.get_args(View)
FITS: tuple[Fit, ...] = typing.get_args(Fit)
STANDARDS: tuple[Standard, ...] = typing.get_args(Standard)


OLD_NAMES = {"train.decay": "train.learning_rate_schedule", "train.margin": "train.margin_schedule"}
"""Settings that had another name once: recorded runs and weights have the old one, which is still read."""


@dataclass(frozen=True)
class NetworkConfig:
    """A network by the letters of the paper: A channels, B primary types, C and D convolutional types, and its classes.

    `layers` describes convolutional capsule layers of any number and shape in place of the paper's two.

    By itself, as in NetworkConfig(classes=10), it describes a network for your own loop, which takes raw images. In a
    RunConfig, so in a preset or a saved run, `input` "auto" becomes "as_given", because a run prepares its images by
    data.standardise.
    """

    kind: NetworkKind = "capsules"
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
    """How many classes the network tells apart; a run takes the number from its data."""
    iterations: int = 2
    """Routing iterations of every routed layer."""
    final_lambda: float = 1.0
    """Inverse temperature that lambda_t = final_lambda (1 - 0.95^(t+1)) rises towards."""
    variance_floor: float = 1e-4
    """Added to every variance (pitfall 1)."""
    data_scaling: DataScaling = "mean"
    """"mean" divides a parent's data by the layer's mean data; "none" does not (pitfall 2)."""
    competition: Competition = "all"
    """"all" lets every parent of a child compete; "types" only those at one position (pitfall 3)."""
    weight_identity: float = 1.0
    """Training starts from matrices of this times the identity, plus noise."""
    weight_noise: float = 0.05
    """Training starts from matrices with Gaussian noise of this size."""
    betas: StartingBetas = "zero"
    """The betas start at "zero", or are chosen on the first images so that parents start "half_active"."""
    pose_scale: float = 0.0
    """Above 0, the poses that a layer reads are divided by their root mean square and multiplied by a learned gain,
    which starts at this value. Beside the variance floor this sets how soft the E-step is."""
    class_scale: float = 0.0
    """Where the gain of pose_scale starts for the class layer; 0 means at pose_scale, as for the other layers."""
    input: NetworkInput = "auto"
    """"standardised" brings each image to mean 0 and standard deviation 1 inside the network, so that it may be uint8
    or have any scale and offset; "as_given" leaves that to the caller; "auto" is the first, but in a run the second."""
    impl: RoutingImplementation = "auto"
    """Which implementation of the routing runs."""
    layers: tuple[LayerConfig, ...] | None = None
    """The convolutional capsule layers, first to last; an empty list joins the primary capsules to the classes. A list
    of dicts or texts, and a text such as "16:5:2, 32:3:2, 16", are read as well. None means the paper's two, with
    conv1_types and conv2_types, which are 0 otherwise."""
    cnn_channels: int = 32
    """For the CNN: channels of its first convolution; the second has twice as many."""
    cnn_hidden: int = 1024
    """For the CNN: units of its hidden layer."""
    cnn_pooling: CnnPooling = "none"
    """For the CNN: what its hidden layer reads of the last feature maps, every position by itself ("none") or the mean
    over all positions ("mean"), which shares its weights over positions as a class capsule does."""
    dropout: float = 0.0
    """In training, this share of the capsules that the class layer reads is switched off at random: their activations
    count as 0, and those of the others stay as they are. The CNN has a dropout of its own."""
    decoder: int = 0
    """Units of the first hidden layer of a decoder, which draws the image again from the pose of its class; the second
    layer has twice as many. 0 means none. No answer needs it, so it is not counted among the network's parameters."""
    coordinate_scale: float = 1.0
    """What the position that the class layer adds to each vote is multiplied by; 0 leaves it out."""
    pose: Pose = "matrix"
    """"matrix" multiplies a child's 4x4 pose by a 4x4 matrix; "vector" takes the pose as a row of 16 numbers and
    multiplies it by a 16x16 matrix, which only the reference implementation does."""

    def __post_init__(self) -> None:
        check_types(self, "network", _types())
        check_choices(self, "network", _types())
        check_sizes(self, "network")
        check_numbers(self, "network", "at least 1", "conv_channels", "primary_types", "iterations")
        if self.layers is None:
            check_numbers(self, "network", "at least 1 without network.layers", "conv1_types", "conv2_types")
        else:
            require(
                self.kind == "capsules",
                self.layers,
                f"network.layers describes capsules, which the {self.kind} network has not: it must be left out",
            )
            for name, value in {"layers": read_layers(self.layers), "conv1_types": 0, "conv2_types": 0}.items():
                object.__setattr__(self, name, value)
        check_numbers(self, "network", "at least 1", "cnn_channels", "cnn_hidden")
        for name in ("cnn_channels", "cnn_hidden", "cnn_pooling"):
            require(
                self.kind == "cnn" or getattr(self, name) == getattr(NetworkConfig, name),
                getattr(self, name),
                f"network.{name} describes the cnn network, and this one is made of capsules: it must be left out",
            )
        check_numbers(self, "network", "at least 2", "classes")
        check_numbers(self, "network", "finite", "weight_identity", "coordinate_scale")
        check_numbers(self, "network", "positive and finite", "final_lambda")
        floats = ("variance_floor", "weight_noise", "pose_scale", "class_scale")
        check_numbers(self, "network", "zero or more, and finite", *floats)
        check_numbers(self, "network", "a share, 0 to 1", "dropout")
        require(
            self.kind == "capsules" or self.dropout == 0,
            self.dropout,
            "network.dropout switches off capsules, and a cnn has none: it must be 0",
        )
        check_numbers(self, "network", "zero or more", "decoder")
        require(
            self.kind == "capsules" or self.decoder == 0,
            self.decoder,
            "network.decoder draws images from the poses of capsules, and a cnn has none: it must be 0",
        )
        require(
            self.pose == "matrix" or self.impl in ("auto", "reference"),
            self.impl,
            "network.impl must be 'auto' or 'reference' with network.pose 'vector', which no kernel routes",
        )
        require(
            self.pose_scale > 0 or self.class_scale == 0,
            self.class_scale,
            "network.class_scale needs network.pose_scale, which is off: set both, or neither",
        )


@dataclass(frozen=True)
class DataConfig:
    """Which images a run sees, and how they are varied in training."""

    dataset: str = "toys"
    """"toys", rendered by `emcaps data make`; "smallnorb", "mnist", "fashion-mnist" or "cifar10", fetched by
    `emcaps data get`; the name of a set that was imported; or a folder of pictures or an .npz file."""
    split: SplitName = "standard"
    """"standard"; "azimuth" or "elevation" (novel viewpoints, for toys and smallnorb); "validation" (held-out training
    examples); "azimuth-validation" or "elevation-validation" (held-out instances and viewpoints of what "azimuth" or
    "elevation" trains on)."""
    fold: int = 0
    """With a validation split: which training instance of each category is held out, or which tenth of the training
    images where there are no viewpoints, counted from 0."""
    view: View = "mono"
    """For toys and smallnorb: "mono" makes each camera an example of one channel; "stereo" makes each pair an example
    of two."""
    crop: int = 32
    """Side of the square that is cut from each image: at random for training, from the centre for testing."""
    max_shift: int = 24
    """Training crops lie at most this many pixels off the centre along each axis, and never beyond the image."""
    pad: int = 0
    """Training crops may reach this many pixels beyond the image, where its edge goes on: so small images can be
    shifted without losing what is at their borders."""
    mirror: float = 0.0
    """For this share of the training images left and right are swapped, and the cameras of a stereo pair with them."""
    turn: float = 0.0
    """Training images are turned by up to this many degrees either way."""
    zoom: float = 0.0
    """Training images are enlarged or reduced by up to this share: 0.1 gives factors between 1 / 1.1 and 1.1."""
    slant: float = 0.0
    """Training images are slanted: each row moves sideways by up to this share of its distance from the middle."""
    stretch: float = 0.0
    """Training images get wider or higher, by up to this share in the ratio of both, at the same area."""
    bend: float = 0.0
    """Training images are bent smoothly: the knots of a net of 4 x 4 move by up to this many pixels along each axis,
    and points between them by up to 1.9 times as much."""
    standardise: Standard = "image"
    """What gets mean 0 and standard deviation 1: the "image", before it is cropped, or the "crop" itself. With
    "background" the mean of the image's edge becomes 0 and 40 grey levels become 1."""
    brightness: float = 0.5
    """Training images are shifted by up to this much, in what standardise makes 1; with "background" 0 suits best."""
    contrast_low: float = 0.5
    """The contrast of training images is multiplied by a factor between this and contrast_high."""
    contrast_high: float = 1.5
    """The contrast of training images is multiplied by a factor between contrast_low and this."""
    splice: float = 0.0
    """For this share of the training images, a random line is drawn, and beyond it they show another image of their
    category from the same viewpoint in the same light, by the labels of both. It is drawn from all instances, so now
    and then it is the image itself."""
    names: tuple[str, ...] = ()
    """The names of the classes. This and the next three settings are filled in from the data when training starts;
    those of toys and smallnorb are known and left out."""
    channels: int = 0
    """Channels of the images, 1 to 4; 0 means as view says."""
    size: int = 0
    """Side of the images before they are cropped; 0 means 48."""
    fit: Fit = "crop"
    """How a picture that is not square became one: its middle is cut out ("crop"), its shorter sides get black borders
    ("pad"), or it is stretched ("stretch"). New pictures are treated alike when the network classifies them."""

    def __post_init__(self) -> None:
        check_types(self, "data", _types())
        check_choices(self, "data", _types())
        check_texts(self, "data", "names", "leave it out, since it is filled in from the data")
        check_sizes(self, "data")
        check_numbers(self, "data", "at least 8", "crop")
        check_numbers(self, "data", "zero or more", "fold", "max_shift", "size", "pad")
        check_numbers(self, "data", "0 to 4", "channels")
        check_numbers(self, "data", "zero or more, and finite", "brightness", "zoom", "slant", "stretch", "bend")
        check_numbers(self, "data", "0 to 180", "turn")
        check_numbers(self, "data", "a share, 0 to 1", "splice", "mirror")
        require(
            0 < self.contrast_low <= self.contrast_high < math.inf,
            (self.contrast_low, self.contrast_high),
            "data.contrast_low and data.contrast_high must be positive, finite and in this order",
        )

    @property
    def image_channels(self) -> int:
        return self.channels or (2 if self.view == "stereo" else 1)


@dataclass(frozen=True)
class TrainConfig:
    """How a network is trained: with the paper's loss and schedules unless told otherwise."""

    steps: int = 20_000
    """Training steps, each with one batch."""
    batch_size: int = 64
    """Images in a step; in stereo, pairs of images."""
    loss: Loss = "spread"
    """"spread" is the paper's loss, "margin" that of Sabour et al. (2017); "cross_entropy" compares each class's share
    of all activation, and is what the CNN takes."""
    learning_rate: float = 3e-3
    """Adam's learning rate, before the schedule changes it."""
    learning_rate_schedule: LearningRateSchedule = "exponential"
    """"exponential" multiplies the learning rate by decay_rate every decay_steps steps, smoothly; "cosine" takes it
    from learning_rate to 0 at the last step, without these two settings."""
    decay_rate: float = 0.96
    """The exponential schedule multiplies the learning rate by this every decay_steps steps."""
    decay_steps: int = 2000
    """The exponential schedule multiplies the learning rate by decay_rate every so many steps."""
    warmup_steps: int = 0
    """The learning rate rises from 0 over these first steps."""
    beta_rate: float = 1.0
    """The betas of the routed layers learn this many times as fast as everything else."""
    beta_a_rate: float = 0.0
    """beta_a learns this many times as fast as everything else; 0 means as fast as beta_rate says."""
    margin_schedule: MarginSchedule = "sigmoid"
    """How the spread loss's margin rises: "sigmoid" is 0.2 + 0.79 sigmoid(min(10, step / margin_steps - 4)); "linear"
    goes from 0.2 to 0.9 over margin_steps steps."""
    margin_steps: int = 50_000
    """How slowly the margin rises, in the terms of margin_schedule."""
    mixup: float = 0.0
    """Up to this share of another image of the batch, and of its label, is mixed into each training image."""
    weight_decay: float = 2e-7
    """Adam's weight decay: this times each weight is added to its gradient."""
    reconstruction: float = 0.1
    """With network.decoder: what the decoder's squared error, the mean over pixels, is multiplied by in the loss. The
    capsule of each class that a crop is mixed from draws the whole crop, and counts by its share."""
    teachers: tuple[str, ...] = ()
    """Trained networks that the run learns from, besides the labels: networks that come with the package, by name, and
    weights files or folders of runs, as paths from the run's own folder. They must read the same images and know the
    same classes."""
    teaching: float = 1.0
    """With train.teachers: what the cross-entropy between the mean of their answers and the network's is multiplied by
    in the loss."""
    average: float = 0.0
    """The network that is evaluated and saved is the mean of the weights after each step of this last share of all
    steps; 0 takes those after the last step. The last row of the metrics has the accuracy of those, too. What looks at
    the routing meanwhile (watch) sees the trained weights."""
    seed: int = 0
    """Seed of every random choice."""
    log_every: int = 50
    """Steps between rows of metrics.jsonl."""
    checkpoint_every: int = 500
    """Steps between checkpoints; one is also written at the end and when the run is interrupted."""
    keep_checkpoints: int = 2
    """How many checkpoints are kept: the newest, and those before it in case it gets damaged."""
    eval_every: int = 0
    """Steps between evaluations while training; 0 evaluates at the end only."""
    watch: int = 0
    """Steps between looks at the routing (train/watch.py), whose figures go into metrics.jsonl; 0 takes none."""
    graph: Graph = "auto"
    """"on" replays the step as a CUDA graph, with the same numbers; "auto" does so where it can; "off" does not."""
    autocast: Autocast = "off"
    """"bfloat16" runs forward pass and loss under torch.autocast; evaluation stays in float32."""

    def __post_init__(self) -> None:
        check_types(self, "train", _types())
        check_choices(self, "train", _types())
        check_texts(self, "train", "teachers", "name each of them by --teacher, or none by --set train.teachers=")
        check_sizes(self, "train")
        counts = ("steps", "batch_size", "decay_steps", "margin_steps", "log_every", "checkpoint_every")
        check_numbers(self, "train", "at least 1", *counts, "keep_checkpoints")
        check_numbers(self, "train", "zero or more", "seed", "eval_every", "watch", "warmup_steps")
        check_numbers(self, "train", "positive and finite", "learning_rate", "decay_rate", "beta_rate")
        weights = ("weight_decay", "beta_a_rate", "reconstruction", "teaching")
        check_numbers(self, "train", "zero or more, and finite", *weights)
        check_numbers(self, "train", "a share, 0 to 1", "mixup", "average")
        require(
            bool(self.teachers) or self.teaching == TrainConfig.teaching,
            self.teaching,
            f"train.teaching weights what train.teachers say, and there are none: it must be left at "
            f"{TrainConfig.teaching}",
        )
        grows = self.learning_rate_schedule == "exponential" and self.decay_rate > 1
        fastest = max(1.0, self.beta_rate, self.beta_a_rate)
        exponent = math.log10(self.learning_rate) + math.log10(fastest)
        exponent += self.steps / self.decay_steps * math.log10(self.decay_rate) if grows else 0.0
        require(
            exponent <= math.log10(LARGEST_NUMBER),
            (self.learning_rate, self.beta_rate, self.beta_a_rate, self.decay_rate),
            f"train.learning_rate times train.beta_rate or train.beta_a_rate, as train.decay_rate changes it, must "
            f"stay at most {LARGEST_NUMBER}: lower one of the four",
        )


@dataclass(frozen=True)
class RunConfig:
    """One training run, complete: the same RunConfig on the same machine gives the same numbers.

    Its images are standardised by data.standardise, so by default its network reads them as given.

    What depends on the images, such as the largest crop, is checked when they are loaded (train/checks.py).
    """

    network: NetworkConfig = field(default_factory=NetworkConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.network.input == "auto":
            object.__setattr__(self, "network", dataclasses.replace(self.network, input="as_given"))
        if self.network.kind == "cnn" and self.train.loss != "cross_entropy":
            raise ValueError(
                f"the cnn network gives logits, so train.loss must be 'cross_entropy', not {self.train.loss!r}"
            )
        require(
            self.network.kind == "capsules" or self.train.watch == 0,
            self.train.watch,
            "train.watch looks at routing, which the cnn network has not: it must be 0",
        )
        require(
            self.network.decoder > 0 or self.train.reconstruction == TrainConfig.reconstruction,
            self.train.reconstruction,
            f"train.reconstruction weights what network.decoder draws, and there is none: it must be left at "
            f"{TrainConfig.reconstruction}",
        )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        return cls.from_dict(parse_json(text))

    @classmethod
    def from_dict(cls, sections: dict[str, dict[str, Any]]) -> RunConfig:
        """The config whose sections hold these settings; those that are left out have their defaults."""
        require(isinstance(sections, dict), sections, "a config must be a table of sections")
        assignments: dict[str, Any] = {}
        for section, settings in sections.items():
            check_name("section", section, SECTIONS)
            require(isinstance(settings, dict), settings, f"the section {section!r} must hold settings")
            assignments |= {f"{section}.{key}": value for key, value in settings.items()}
        return cls().override(assignments)

    def override(self, assignments: dict[str, Any]) -> RunConfig:
        """A copy with settings such as {"network.iterations": 3} changed; strings are read as the setting's type."""
        changes: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for name, value in _with_new_names(assignments).items():
            if name not in _types():
                raise ValueError(_unknown_setting(name))
            section, _, key = name.partition(".")
            changes[section][key] = parse(name, value, _types()[name])
        changed = RunConfig(**{s: dataclasses.replace(getattr(self, s), **c) for s, c in changes.items()})
        if changed.network.layers is not None:
            for key in ("conv1_types", "conv2_types"):
                rule = f"network.layers states the types of every layer, so network.{key} must be left out"
                require(not changes["network"].get(key), changes["network"].get(key), rule)
        return changed


SECTIONS = {"network": NetworkConfig, "data": DataConfig, "train": TrainConfig}
ELSEWHERE = {"lr": "learning_rate", "epochs": "steps", "max_steps": "steps", "bs": "batch_size", "wd": "weight_decay"}
"""What other programs call some of our settings."""


def _unknown_setting(name: str) -> str:
    """The message has one suggestion at most, from any section: all settings together are too many to read."""
    section, _, key = name.rpartition(".")
    full_name = {setting.partition(".")[2]: setting for setting in _types()}
    if (ours := full_name.get(ELSEWHERE.get(key, key))) is not None:
        batches = ", which counts batches" if key == "epochs" else ""
        return f"unknown setting {name!r}: here it is called {ours}{batches}"
    own = [known for known, setting in full_name.items() if setting.startswith(f"{section}.")]
    meant = nearest(key, own) or nearest(key, full_name)
    hint = f"did you mean {full_name[meant]!r}?" if meant else "`emcaps describe --settings` lists all settings"
    return f"unknown setting {name!r}: {hint}"


def _with_new_names(assignments: dict[str, Any]) -> dict[str, Any]:
    """The assignments with old names replaced; a setting that is given by both of its names is refused."""
    for old, new in OLD_NAMES.items():
        if old in assignments and new in assignments:
            raise ValueError(f"{old} is an old name of {new}, and both are given: leave out {old}")
    return {OLD_NAMES.get(name, name): value for name, value in assignments.items()}


@functools.cache
def _types() -> dict[str, Any]:
    """The type of every setting by its full name: int, float, str, a tuple of str, a Literal, or that of the layers."""
    return {
        f"{name}.{key}": wanted
        for name, section in SECTIONS.items()
        for key, wanted in typing.get_type_hints(section).items()
    }


PRESETS: dict[str, RunConfig] = {
    "tiny": RunConfig(NetworkConfig(conv_channels=32, primary_types=4, conv1_types=8, conv2_types=8)),
    "small": RunConfig(NetworkConfig(conv_channels=64, primary_types=8, conv1_types=16, conv2_types=16)),
    "full": RunConfig(NetworkConfig(conv_channels=32, primary_types=32, conv1_types=32, conv2_types=32)),
    "cnn": RunConfig(NetworkConfig(kind="cnn"), train=TrainConfig(loss="cross_entropy", learning_rate=1e-3)),
}


def preset(name: str) -> RunConfig:
    """The preset of this name; a ValueError for an unknown one suggests the nearest."""
    check_name("preset", name, PRESETS)
    return PRESETS[name]
