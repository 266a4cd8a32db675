"""The GPU kernels in float64: outputs and gradients agree with the reference to 1e-10, on every path of the kernels.

Every case names the branches of the tiling that it takes, and the test checks that it takes them. Memory is poisoned: a
number that no kernel wrote, or that belongs to padding, would make results NaN.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch

from emcaps import conv_routing
from routing.cases import Inputs, class_inputs, conv_inputs, outputs_and_gradients, with_gradients
from routing.compare import assert_close
from routing.fused import fused, layer_for, on, on_gpu, poisoned_memory, reference
from routing.test_dispatch import scattered

TOLERANCE = 1e-10


def run_of(layer):
    """The children that a program goes through in one run: those of a row of the window, or all of a class layer."""
    return layer.padded_types * (math.prod(layer.kernel) if layer.shared else layer.kernel[1])


BRANCHES = {
    "one lane": lambda layer: layer.lanes == 1,
    "two lanes": lambda layer: layer.lanes == 2,
    "a whole warp of lanes": lambda layer: layer.lanes == 32,
    "one block": lambda layer: layer.blocks == 1,
    "several blocks": lambda layer: layer.blocks > 1,
    "lanes without an image": lambda layer: layer.images < layer.blocks * layer.lanes,
    "no padded types": lambda layer: layer.padded_types == layer.child_types,
    "padded types": lambda layer: layer.padded_types > layer.child_types,
    "types padded to no power of 2": lambda layer: layer.padded_types & (layer.padded_types - 1) != 0,
    "one child tile": lambda layer: layer.padded_types == math.prod(layer.gradient_tile),
    "several child tiles": lambda layer: layer.padded_types > math.prod(layer.gradient_tile),
    "one edge tile": lambda layer: layer.padded_types == layer.edge_tile[0],
    "several edge tiles": lambda layer: layer.padded_types > layer.edge_tile[0],
    "an edge tile partly filled": lambda layer: layer.parent_types < layer.edge_tile[1],
    "several slices": lambda layer: layer.parent_tile[0] > 1,
    "slices that go round": lambda layer: 1 < layer.parent_tile[0] < run_of(layer),
    "a last step partly filled": lambda layer: run_of(layer) % layer.parent_tile[0] != 0,
    "one parent tile": lambda layer: layer.parent_types <= layer.parent_tile[1],
    "several parent tiles": lambda layer: layer.parent_types > layer.parent_tile[1],
    "a parent tile partly filled": lambda layer: layer.parent_types % layer.parent_tile[1] != 0,
    "shared matrices": lambda layer: layer.shared,
    "types compete": lambda layer: layer.by_position,
}


class Case(NamedTuple):
    inputs: Inputs
    options: dict[str, Any]
    branches: tuple[str, ...]


def conv(*branches: str, batch=1, grid=(2, 2), kernel=(1, 2), children=1, parents=1, **options: Any) -> Case:
    return Case(conv_inputs(batch, grid, kernel, children, parents), options, branches)


def class_(*branches: str, batch=1, grid=(1, 2), children=1, parents=1, **options: Any) -> Case:
    return Case(class_inputs(batch, grid, children, parents), options, ("shared matrices", *branches))


TINY = {
    "one of everything": conv("one lane", "one block", "padded types", kernel=(1, 1), grid=(2, 1), iterations=2),
    "overlap both ways": conv("two lanes", batch=2, grid=(3, 3), kernel=(2, 2), iterations=2),
    "one iteration, stride (2, 1), a row that nobody reads": conv(
        "lanes without an image", batch=3, grid=(5, 2), kernel=(2, 1), stride=(2, 1), children=3, parents=2,
        iterations=1,
    ),
    "stride beyond the kernel": conv(
        batch=2, grid=(4, 4), kernel=(1, 1), stride=(3, 2), children=2, iterations=2, variance_floor=1e-2
    ),
    "types compete": conv(
        "types compete", batch=2, grid=(1, 3), parents=2, iterations=2, competition="types"
    ),
    "types compete, stride beyond the kernel": conv(
        "types compete", "lanes without an image", batch=3, grid=(3, 2), kernel=(1, 1), stride=(2, 2), parents=2,
        iterations=3, competition="types", data_scaling="none",
    ),
    "padding": conv(batch=2, grid=(1, 2), kernel=(2, 2), padding=(1, 0), children=2, parents=2, iterations=3),
    "two blocks of images": conv(
        "a whole warp of lanes", "several blocks", "lanes without an image", "slices that go round",
        batch=33, grid=(1, 2), iterations=2,
    ),
    "more parent types than a tile": conv(
        "several parent tiles", "a parent tile partly filled", "an edge tile partly filled", grid=(1, 1), kernel=(1, 1),
        children=4, parents=5, iterations=2,
    ),
    "no padding": conv(
        "one parent tile", "no padded types", "one child tile", "one edge tile", batch=2, grid=(1, 2), children=4,
        parents=2, iterations=2, final_lambda=3.0,
    ),
    "more child types than a tile": conv(
        "several child tiles", "several edge tiles", "padded types", batch=33, grid=(2, 1), kernel=(2, 1), children=9,
        parents=2, iterations=2,
    ),
    "class": class_("several slices", "padded types", batch=3, grid=(2, 1), children=3, parents=2, iterations=3),
    "class, more children than slices": class_(
        "slices that go round", "a last step partly filled", "several child tiles", batch=2, grid=(3, 1), children=17,
        parents=1, iterations=2, data_scaling="none",
    ),
    "class, two blocks of images": class_(
        "several blocks", batch=34, children=2, parents=2, iterations=1, competition="types"
    ),
    "class, many types": class_(
        "types padded to no power of 2", grid=(1, 1), children=33, parents=1, iterations=1, final_lambda=0.5
    ),
}  # fmt: skip

LARGE = {
    "small network 1": conv(batch=40, grid=(9, 9), kernel=(3, 3), stride=2, children=8, parents=16, iterations=3),
    "small network 2": conv(batch=33, grid=(7, 7), kernel=(3, 3), children=16, parents=16, iterations=2),
    "five iterations": conv(batch=40, grid=(5, 4), kernel=(3, 2), children=3, parents=5, iterations=5),
    "five iterations, types compete": conv(
        "types compete", batch=33, grid=(5, 4), kernel=(3, 2), children=3, parents=5, iterations=5, competition="types"
    ),
    "one image": conv(batch=1, grid=(6, 7), kernel=(3, 3), stride=(2, 1), children=5, parents=7, iterations=3),
    "three images": conv(batch=3, grid=(6, 7), kernel=(2, 3), stride=(1, 3), children=17, parents=9, iterations=3),
    "16 lanes": conv(batch=13, grid=(5, 5), kernel=(3, 3), children=7, parents=3, iterations=3, data_scaling="none"),
    "whole blocks": conv(batch=64, grid=(5, 5), kernel=(3, 3), children=4, parents=4, iterations=3),
    "padding, as many parents as children": conv(
        batch=33, grid=(5, 6), kernel=(3, 3), padding=(1, 1), children=5, parents=7, iterations=3
    ),
    "padding, staged": conv(
        batch=40, grid=(6, 5), kernel=(3, 3), stride=(2, 1), padding=(2, 1), children=8, parents=16, iterations=3
    ),
    "strides far beyond": conv(
        batch=40, grid=(10, 9), kernel=(2, 1), stride=(4, 3), children=3, parents=6, iterations=3
    ),
    "32 types": conv(batch=33, grid=(5, 5), kernel=(3, 3), children=32, parents=32, iterations=2),
    "33 and 31 types": conv(batch=11, grid=(4, 4), kernel=(3, 3), children=33, parents=31, iterations=2),
    "one child type and one parent type": conv(batch=40, grid=(4, 4), kernel=(2, 2), iterations=3),
    "1x1 kernel": conv(batch=40, grid=(4, 4), kernel=(1, 1), children=8, parents=8, iterations=3),
    "class of the small network": class_(batch=40, grid=(5, 5), children=16, parents=5, iterations=3),
    "class, 32 types": class_(batch=33, grid=(5, 5), children=32, parents=5, iterations=3, data_scaling="none"),
    "class, 10 classes, odd types": class_(batch=40, grid=(3, 4), children=5, parents=10, iterations=5),
    "class, one of everything": class_(batch=1, grid=(1, 1), iterations=3),
}


@pytest.mark.parametrize(
    "case", [*TINY.values(), *(pytest.param(case, marks=on_gpu) for case in LARGE.values())], ids=[*TINY, *LARGE]
)
def test_float64_is_the_reference(case, device):
    inputs, options, branches = case
    layer = layer_for(inputs, **options)
    for branch in branches:
        assert BRANCHES[branch](layer), f"does not take the branch {branch!r}: {layer}"
    want = reference(inputs, device, **options)
    with poisoned_memory():
        got = fused(inputs, device, **options)
    for name in want:
        assert_close(name, got[name], want[name], TOLERANCE)


def test_every_branch_is_taken_by_a_tiny_case():
    assert {branch for case in TINY.values() for branch in case.branches} == set(BRANCHES)


def channels_first(capsules):
    """The same values in the layout that PrimaryCaps returns on a CPU: a view of (B, channels, H, W)."""
    if capsules.ndim not in (4, 6):
        return capsules
    view = capsules.flatten(3).permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1).unflatten(3, capsules.shape[3:])
    assert torch.equal(view, capsules)
    assert view.stride(-1) != 1
    return view


def misaligned(tensor):
    """The same values at an address that is one number past a multiple of 16 bytes."""
    view = torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)
    assert view.data_ptr() % 16 != 0
    return view


@pytest.mark.parametrize("types", [(2, 2), (4, 1)], ids=["padded", "no padding"])
@pytest.mark.parametrize("layout", [scattered, channels_first, misaligned])
def test_inputs_of_any_layout(layout, types, device):
    inputs = conv_inputs(batch=2, grid=(1, 2), kernel=(1, 2), child_types=types[0], parent_types=types[1])
    want = reference(inputs, device, iterations=1)
    routing = on(device, lambda *tensors, **options: conv_routing(*map(layout, tensors), **options))
    got = outputs_and_gradients(routing, inputs, iterations=1, impl="triton")
    for name in want:
        assert_close(name, got[name], want[name], TOLERANCE)


def test_a_class_layer_without_coordinates(device):
    inputs = class_inputs(batch=2, grid=(1, 2), child_types=2, parent_types=2)
    want = reference(inputs, device, iterations=2, coordinate_scale=0)
    got = fused(inputs, device, iterations=2, coordinate_scale=0)
    for name in want:
        assert_close(name, got[name], want[name], TOLERANCE)


def expanded(tensor):
    """One number everywhere, with strides of zero, like the gradient of a sum."""
    return tensor.flatten()[0].expand(tensor.shape)


@pytest.mark.parametrize("layout", [scattered, expanded, misaligned])
def test_gradients_of_any_layout(layout, device):
    inputs = Inputs(*(tensor.to(device) for tensor in conv_inputs(2, (1, 2), (1, 1), child_types=1, parent_types=2)))
    found = {}
    for impl in ("triton", "reference"):
        leaves = with_gradients(inputs)
        output = conv_routing(*leaves, iterations=1, impl=impl)
        found[impl] = torch.autograd.grad(output, leaves, [layout(value.detach() + 1) for value in output])
    for name, got, want in zip(Inputs._fields, found["triton"], found["reference"], strict=True):
        assert_close(name, got, want, TOLERANCE)
