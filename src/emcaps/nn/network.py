"""The matrix capsule network of Hinton, Sabour and Frosst (2018), by the letters of the paper.

image -> convolution, A channels, ReLU -> B primary capsule types -> C types -> D types -> one capsule per class.
Kernels and strides are in geometry.py. A config may describe other convolutional capsule layers than C and D, of any
number. Images may have any number of channels, and any size into which the windows fit.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from emcaps.config import NetworkConfig, RunConfig, TrainConfig
from emcaps.files import half_of_memory
from emcaps.nn.baseline import BaselineCNN, hidden_inputs
from emcaps.nn.classifier import Classifier
from emcaps.nn.decoder import Decoder, decoder_parameters
from emcaps.nn.geometry import (
    IMAGE_KERNEL,
    IMAGE_PADDING,
    IMAGE_STRIDE,
    capsule_layers,
    parameter_count,
    routed_names,
    smallest_image,
)
from emcaps.nn.images import check_dtype, check_images, standardised
from emcaps.nn.layers import ClassCaps, ConvCaps, ImageConv, PrimaryCaps
from emcaps.routing import RoutingOutput, RoutingTrace


class NetworkTrace(tuple[RoutingOutput | RoutingTrace, ...]):
    """What every capsule layer did with a batch of images, by number or by name: trace[1] is trace.conv_caps1."""

    def __new__(cls, primary_caps: RoutingOutput, *routed: RoutingTrace) -> Self:
        return super().__new__(cls, (primary_caps, *routed))

    def __getnewargs__(self) -> tuple[Any, ...]:  # so that copy and pickle call __new__ with the layers
        return tuple(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers, such as ("primary_caps", "conv_caps1", "conv_caps2", "class_caps")."""
        return ("primary_caps", *routed_names(len(self) - 2))

    @property
    def primary_caps(self) -> RoutingOutput:
        return cast("RoutingOutput", self[0])

    @property
    def routed(self) -> tuple[RoutingTrace, ...]:
        """The layers after the primary one."""
        return cast("tuple[RoutingTrace, ...]", self[1:])

    def __getattr__(self, name: str) -> RoutingTrace:
        if name not in self.names:
            raise AttributeError(f"the trace has no layer {name!r}: its layers are {', '.join(self.names)}")
        return self.routed[self.names.index(name) - 1]


class MatrixCapsNet(Classifier):
    """`network(images)` gives the class capsules: pose (B, classes, 4, 4) and activation (B, classes).

    Unless `config.input` is "as_given", images may be uint8 or floats of any scale and offset. The networks of the
    presets read images "as_given", since a run prepares them itself.

    Examples:
        >>> import torch
        >>> from emcaps.config import NetworkConfig
        >>> from emcaps.nn import MatrixCapsNet
        >>> network = MatrixCapsNet(NetworkConfig(classes=10))
        >>> network(torch.randint(256, (64, 1, 28, 28), dtype=torch.uint8)).activation.shape
        torch.Size([64, 10])
    """

    class_caps: ClassCaps

    def __init__(self, config: NetworkConfig, image_channels: int = 1, image_size: int = 32) -> None:
        """The image size is that of the images that a decoder draws; the network itself takes any."""
        super().__init__()
        _check_config(config, image_channels)
        if config.kind != "capsules":
            raise ValueError(f"MatrixCapsNet needs a config of kind 'capsules', not {config.kind!r}: use build_network")
        self.config, self.image_channels = config, image_channels
        self.smallest_image = smallest_image(config)
        settings: dict[str, Any] = {
            "identity": config.weight_identity,
            "noise": config.weight_noise,
            "vector_pose": config.pose == "vector",
            "iterations": config.iterations,
            "final_lambda": config.final_lambda,
            "variance_floor": config.variance_floor,
            "data_scaling": config.data_scaling,
            "competition": config.competition,
            "impl": config.impl,
        }
        self.relu_conv1 = nn.Sequential(
            ImageConv(image_channels, config.conv_channels, IMAGE_KERNEL, IMAGE_STRIDE, IMAGE_PADDING), nn.ReLU()
        )
        self.primary_caps = PrimaryCaps(config.conv_channels, config.primary_types)
        layers = capsule_layers(config)
        self.routed_names = tuple(layer.name for layer in layers)
        for name, child_types, parent_types, kernel, stride, padding in layers:
            types = (child_types, parent_types)
            if kernel:
                self.add_module(name, ConvCaps(*types, kernel, stride, padding=padding, **settings))
            else:
                self.add_module(name, ClassCaps(*types, coordinate_scale=config.coordinate_scale, **settings))
        if config.pose_scale:
            gains = [config.pose_scale] * (len(layers) - 1) + [config.class_scale or config.pose_scale]
            self.pose_gain = nn.Parameter(torch.tensor(gains))
        self.decoder: Decoder | None = None
        if config.decoder:
            self.decoder = Decoder(config.classes, config.decoder, image_channels, image_size)

    @property
    def routed(self) -> tuple[ConvCaps | ClassCaps, ...]:
        """The layers that EM routing connects to the one before."""
        return tuple(getattr(self, name) for name in self.routed_names)

    def forward(self, images: Tensor) -> RoutingOutput:
        """images (B, channels, H, W): raw, or, if config.input is "as_given", prepared as in the network's training."""
        capsules = self._primary(images)
        for number, layer in enumerate(self.routed):
            if layer is self.class_caps:
                capsules = self._some_dropped(capsules)
            capsules = layer(self._scaled(capsules, number))
        return capsules

    def trace(self, images: Tensor) -> NetworkTrace:
        """Run forward and keep every iteration of every layer: for pictures and measurements, so nothing is dropped."""
        capsules = primary = self._primary(images)
        traces = []
        for number, layer in enumerate(self.routed):
            traces.append(layer.trace(self._scaled(capsules, number)))
            capsules = RoutingOutput(traces[-1][-1].mean, traces[-1][-1].activation)
        return NetworkTrace(primary, *traces)

    def class_logits(self, images: Tensor) -> Tensor:
        """(B, classes): the inputs of the logistic functions whose values `forward` gives as activations.

        They keep the order of the activations and never saturate: float32 rounds the logistic function to 1 beyond 17,
        and its gradient to 0.
        """
        capsules = self._primary(images)
        for number, layer in enumerate(self.routed[:-1]):
            capsules = layer(self._scaled(capsules, number))
        return self.class_caps.logits(self._scaled(self._some_dropped(capsules), len(self.routed) - 1))

    @torch.no_grad()
    def start_half_active(self, images: Tensor) -> None:
        """Set the betas, layer by layer, so that about half of the parents are active on these images.

        beta_a becomes the mean cost of a parent. beta_u takes away the mean of 1/2 log variance, so that the cost tells
        how tight the votes are, not how large they are. It takes three rounds, since activations change the assignments
        and so the variances.
        """
        capsules = self._primary(images)
        for number, layer in enumerate(self.routed):
            capsules = self._scaled(capsules, number)
            for _ in range(3):
                layer.beta_u.fill_(-0.5 * layer.trace(capsules)[-1].variance.log().mean())
                layer.beta_a.zero_()
                layer.beta_a.fill_(layer.trace(capsules)[-1].cost.mean())
            capsules = layer(capsules)

    def _primary(self, images: Tensor) -> RoutingOutput:
        raw = self.config.input != "as_given"
        check_images(images, self.image_channels, self.smallest_image, self.config, whole_numbers=raw)
        dtype = self.primary_caps.pose.weight.dtype
        if raw:
            images = standardised(images, dtype)
        check_dtype(images, dtype)
        primary: RoutingOutput = self.primary_caps(self.relu_conv1(images))
        return primary

    def _some_dropped(self, capsules: RoutingOutput) -> RoutingOutput:
        """The capsules with a share of them, config.dropout, switched off; all of them when not training."""
        if not (self.training and self.config.dropout):
            return capsules
        kept = torch.rand_like(capsules.activation, dtype=torch.float32) >= self.config.dropout
        return RoutingOutput(capsules.pose, capsules.activation * kept)

    def _scaled(self, capsules: RoutingOutput, number: int) -> RoutingOutput:
        """The capsules as routed layer `number` reads them: with scaled poses, if the config asks for that."""
        if not self.config.pose_scale:
            return capsules
        pose = capsules.pose
        size = (pose.square().mean((1, 2, 3, 4, 5), keepdim=True) + 1e-6).sqrt()  # never zero, even of zero poses
        return RoutingOutput(pose * (self.pose_gain[number] / size), capsules.activation)


def remove_decoder(network: nn.Module, config: RunConfig) -> RunConfig:
    """Remove the decoder from this network, since no answer needs it, and give the config of what is left."""
    if isinstance(network, MatrixCapsNet):
        network.decoder = None
        network.config = dataclasses.replace(network.config, decoder=0)
    return config.override({"network.decoder": 0, "train.reconstruction": TrainConfig.reconstruction})


def _check_config(config: object, image_channels: int) -> None:
    """Raise ValueError for what is easily given instead of a network's config, and for images without channels."""
    if not isinstance(config, NetworkConfig):
        remedy = 'give its .network, as in preset("small").network' if isinstance(config, RunConfig) else "give one"
        raise ValueError(f"the config of a network must be a NetworkConfig, not a {type(config).__name__}: {remedy}")
    if image_channels < 1:
        raise ValueError(f"image_channels must be at least 1, not {image_channels}: 1 is grey, 3 is colour")


def _check_memory(parameters: int) -> None:
    """Raise ValueError if these do not fit into memory: the config may be one that a stranger's file asks for."""
    most = half_of_memory() // 4
    if parameters > most:
        raise ValueError(
            f"the network of this config would have {parameters:,} parameters, more than the {most:,} that half of "
            "this machine's memory holds: choose fewer channels, types, classes or units"
        )


def build_network(config: NetworkConfig, image_channels: int, image_size: int = 32) -> MatrixCapsNet | BaselineCNN:
    """The network that a config describes. The image size matters to the CNN and to a decoder alone."""
    _check_config(config, image_channels)
    if config.kind == "cnn":
        channels, hidden, pooled = config.cnn_channels, config.cnn_hidden, config.cnn_pooling == "mean"
        features = hidden_inputs(channels, image_size, pooled)
        _check_memory(hidden * (features + config.classes) + 25 * channels * (image_channels + 2 * channels))
        return BaselineCNN(
            image_channels,
            image_size,
            config.classes,
            raw_images=config.input != "as_given",
            channels=channels,
            hidden=hidden,
            pooled=pooled,
        )
    drawn = decoder_parameters(config.classes, config.decoder, image_channels, image_size) if config.decoder else 0
    _check_memory(parameter_count(config, image_channels) + drawn)
    return MatrixCapsNet(config, image_channels, image_size)
