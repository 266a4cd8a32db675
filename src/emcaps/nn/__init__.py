"""Capsule layers, the matrix capsule network and CUDA graphs of it, the CNN baseline and the losses."""

from emcaps.nn.baseline import BaselineCNN
from emcaps.nn.classifier import Predictions
from emcaps.nn.cuda_graph import graphed
from emcaps.nn.layers import ClassCaps, ConvCaps, PrimaryCaps, SetCaps
from emcaps.nn.losses import cross_entropy_loss, margin_loss, spread_loss
from emcaps.nn.network import MatrixCapsNet, NetworkTrace, build_network

__all__ = [
    "BaselineCNN",
    "ClassCaps",
    "ConvCaps",
    "MatrixCapsNet",
    "NetworkTrace",
    "Predictions",
    "PrimaryCaps",
    "SetCaps",
    "build_network",
    "cross_entropy_loss",
    "graphed",
    "margin_loss",
    "spread_loss",
]
