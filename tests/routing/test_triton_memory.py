"""The GPU kernels read no memory that they did not write and nothing of other images, and give the same bits again."""

import functools

import pytest
import torch

from routing.cases import class_inputs, conv_inputs
from routing.compare import assert_close
from routing.fused import fused, layer_for, on_gpu, poisoned_memory

LARGE = conv_inputs(batch=40, grid=(8, 8), kernel=(3, 3), child_types=7, parent_types=9)
CASES = {
    # This case has lanes without an image, padded types, and a column of children that no parent reads.
    "conv": (conv_inputs(3, (1, 3), (1, 1), child_types=2, parent_types=1), {"stride": 2, "iterations": 2}),
    "class": (class_inputs(3, (1, 1), child_types=3, parent_types=2), {"iterations": 2}),
    "large conv": (LARGE, {"stride": 2, "iterations": 3}),
    "large conv, types compete": (LARGE, {"stride": 2, "iterations": 3, "competition": "types"}),
    "large class": (class_inputs(40, (5, 5), child_types=17, parent_types=5), {"iterations": 3}),
}
EACH = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=on_gpu) if case.startswith("large") else case for case in CASES]
)
PER_IMAGE = ("pose", "activation", "gradient of pose", "gradient of activation")


@functools.cache
def first_run(case, device):
    inputs, options = CASES[case]
    return fused(inputs, device, **options)


def test_poisoned_memory_is_poisoned(device):
    with poisoned_memory():
        for memory in (torch.empty(1000, device=device), torch.ones(1, device=device).new_empty(10, 100)):
            assert memory.isnan().all()


@EACH
def test_the_same_bits_again_whatever_memory_held(case, device):
    inputs, options = CASES[case]
    with poisoned_memory():
        again = fused(inputs, device, **options)
    for name, value in first_run(case, device).items():
        assert value.isfinite().all(), name
        assert torch.equal(again[name], value), name


@on_gpu
@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("large")])
def test_the_same_bits_in_float32(case, device):
    inputs, options = CASES[case]
    runs = [fused(inputs.to(torch.float32), device, **options) for _ in range(5)]
    for run in runs[1:]:
        for name, value in run.items():
            assert torch.equal(value, runs[0][name]), name


@EACH
def test_an_image_alone_is_the_same(case, device):
    """In a batch of one the image has the only lane, and the tiles are different."""
    inputs, options = CASES[case]
    last = inputs._replace(pose=inputs.pose[-1:], activation=inputs.activation[-1:])
    assert layer_for(last, **options).lanes < layer_for(inputs, **options).lanes
    alone = fused(last, device, **options)
    for name in ("pose", "activation"):
        assert_close(name, alone[name], first_run(case, device)[name][-1:], 1e-10)


@EACH
def test_a_neighbour_of_nan_changes_nothing(case, device):
    """The other images keep every bit; only the sums over all images become NaN."""
    inputs, options = CASES[case]
    pose = inputs.pose.clone()
    pose[1] = torch.nan
    found = fused(inputs._replace(pose=pose), device, **options)
    others = torch.arange(len(pose)) != 1
    for name in PER_IMAGE:
        assert torch.equal(found[name][others], first_run(case, device)[name][others]), name
    assert found["pose"][1].isnan().all()
    assert found["gradient of weight"].isnan().any()
