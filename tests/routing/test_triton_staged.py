"""Sweeps through shared memory: when they run, and that they compute what the other sweeps do, bit by bit.

In the interpreter loads read what would have been copied. There these tests prove the order of children, the parts and
their sums; a GPU proves the copies, too, here and in all tests of layers with many images and parents.
"""

import pytest
import torch

from emcaps.bench.agreement import relative_error
from emcaps.routing import availability
from emcaps.routing.triton_kernels import launch
from emcaps.routing.triton_kernels.layer import Layer, known_layer
from routing.cases import conv_inputs
from routing.fused import fused, on_gpu

LAYER = Layer.of((64, 7, 7, 16, 4, 4), (3, 3, 16, 16, 4, 4), (1, 1), False)
NOT_STAGED = {
    "small batch": Layer.of((16, 7, 7, 16, 4, 4), (3, 3, 16, 16, 4, 4), (1, 1), False),
    "few parents": Layer.of((64, 7, 7, 16, 4, 4), (3, 3, 16, 3, 4, 4), (1, 1), False),
    "class layer": Layer.of((64, 7, 7, 16, 4, 4), (16, 16, 4, 4), (1, 1), False),
}


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (12, 0)])
def test_stages_need_asynchronous_copies(capability, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(availability, "_capability", lambda index: capability)
    assert launch.takes_stages(LAYER, torch.float32, 0) == (capability >= (8, 0))
    assert not launch.takes_stages(LAYER, torch.float64, 0)
    assert not launch.takes_stages(LAYER, torch.bfloat16, 0)
    assert not any(launch.takes_stages(layer, torch.float32, 0) for layer in NOT_STAGED.values())


@pytest.fixture
def tiles(monkeypatch):
    """Chooses parts, or no stages, for whatever is routed next; other sweeps have one slice, as parts of one have."""

    def choose(parts):
        for plan in (known_layer, launch._forward_plan, launch._backward_plan):
            plan.cache_clear()
        monkeypatch.setattr(Layer, "fits_stages", property(lambda layer: bool(parts)))
        groups = property(lambda layer: (layer.blocks * layer.positions * -(-layer.parent_types // 4), parts, 1))
        monkeypatch.setattr(Layer, "staged_groups", groups)
        monkeypatch.setattr(Layer, "parent_tile", property(lambda layer: (1, 2)))
        monkeypatch.setattr(Layer, "stages_parents", property(lambda layer: bool(parts) and layer.child_types > 4))

    yield choose
    for plan in (known_layer, launch._forward_plan, launch._backward_plan):
        plan.cache_clear()


def assert_bits(got, want):
    for name, value in want.items():
        assert value.isfinite().all()
        assert torch.equal(got[name], value), name


def assert_bits_but_of_betas(got, want):
    """Those of betas are sums over images, which a program with other rows may add up in another order."""
    betas = [name for name in want if "beta" in name]
    assert_bits(got, {name: value for name, value in want.items() if name not in betas})
    for name in betas:
        assert relative_error(got[name], want[name]) < 1e-6, name


def kernels(monkeypatch):
    """The names of all kernels that are launched from now on, as they come."""
    names = []
    launches = launch.Launches.__call__

    def record(self, *tensors, **options):
        names.extend(step.kernel.fn.__name__ for step in self.steps)
        return launches(self, *tensors, **options)

    monkeypatch.setattr(launch.Launches, "__call__", record)
    return names


def test_whole_windows_give_the_bits_of_the_other_sweeps(tiles, device, monkeypatch):
    """Two chunks of children, with padded types, and two groups of parents that have three in common."""
    inputs = conv_inputs(17, (1, 2), (1, 2), 2, 5).to(torch.float32)
    tiles(parts=0)
    names = kernels(monkeypatch)
    want = fused(inputs, device, iterations=3)
    assert not any(name.startswith("staged") for name in names)
    tiles(parts=1)
    names.clear()
    got = fused(inputs, device, iterations=3)
    assert {"staged_m_step", "staged_log_joints", "staged_moments", "staged_share_gradients"} <= set(names)
    assert not {"m_step", "parent_gradient"} & set(names)
    assert_bits_but_of_betas(got, want)


def test_one_iteration_gives_the_bits_of_the_other_sweeps(tiles, device):
    inputs = conv_inputs(17, (1, 2), (1, 2), 2, 4).to(torch.float32)
    tiles(parts=0)
    want = fused(inputs, device, iterations=1)
    tiles(parts=1)
    assert_bits_but_of_betas(fused(inputs, device, iterations=1), want)


def test_parts_add_up_to_the_whole(tiles, device):
    """Two chunks of children in three parts, one of which is empty. A second pass finds the counts at zero."""
    inputs = conv_inputs(17, (2, 1), (2, 1), 3, 4).to(torch.float32)
    tiles(parts=0)
    want = fused(inputs, device, iterations=2)
    tiles(parts=3)
    got = fused(inputs, device, iterations=2)
    for name, value in want.items():
        assert relative_error(got[name], value) < 1e-5, name
    assert_bits(fused(inputs, device, iterations=2), got)


@on_gpu
@pytest.mark.parametrize("iterations", [2, 3, 4])
@pytest.mark.parametrize("types", [(3, 4), (8, 5), (16, 16), (32, 9), (33, 32)])
def test_copies_give_the_bits_of_plain_loads(types, iterations, tiles, device):
    """Windows of several rows, strides, and with 8 child types and more also the parents that input_gradient copies."""
    inputs = conv_inputs(40, (7, 6), (3, 2), *types).to(torch.float32)
    tiles(parts=0)
    want = fused(inputs, device, stride=(2, 1), iterations=iterations)
    tiles(parts=1)
    assert_bits_but_of_betas(fused(inputs, device, stride=(2, 1), iterations=iterations), want)


@on_gpu
def test_parts_give_the_same_bits_every_time(tiles, device):
    """Whichever of them comes last."""
    inputs = conv_inputs(64, (7, 7), (3, 3), 16, 16).to(torch.float32)
    tiles(parts=3)
    want = fused(inputs, device, iterations=3)
    for _ in range(10):
        assert_bits(fused(inputs, device, iterations=3), want)
