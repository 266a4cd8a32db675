"""What two runs must have in common to be the same run."""

import torch

from emcaps.train.checkpoint import load
from emcaps.train.run_folder import read_metrics

TIMES = ("images_per_second", "seconds")


def numbers(folder):
    """The rows of a run without the times, which differ from run to run."""
    return [{name: value for name, value in row.items() if name not in TIMES} for row in read_metrics(folder)]


def weights(folder):
    return load(folder / "checkpoint.safetensors").tensors


def assert_same_run(first, second):
    assert numbers(first) == numbers(second)
    found, wanted = weights(first), weights(second)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert torch.equal(value, wanted[name]), name
