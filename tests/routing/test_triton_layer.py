"""Tiles and padding of the GPU kernels: what all kernels assume about them, over all sizes that matter."""

import itertools
import math

import pytest

from emcaps.routing.triton_kernels.layer import Layer

BATCHES = [1, 2, 3, 4, 5, 16, 17, 31, 32, 33, 40, 64, 65, 128]
TYPES = [*range(1, 18), 31, 32, 33, 48, 64, 65]
SHAPES = {"conv": (3, 2), "class": ()}


def layers(kind):
    for batch, children, parents in itertools.product(BATCHES, TYPES, TYPES):
        yield Layer.of((batch, 7, 6, children, 4, 4), (*SHAPES[kind], children, parents, 4, 4), (2, 1), False)


def is_power_of_2(number):
    return number > 0 and number & (number - 1) == 0


@pytest.mark.parametrize("kind", SHAPES)
def test_blocks_hold_every_image_and_none_is_empty(kind):
    for layer in layers(kind):
        assert is_power_of_2(layer.lanes)
        assert layer.lanes <= 32
        assert (layer.blocks - 1) * layer.lanes < layer.images <= layer.blocks * layer.lanes


@pytest.mark.parametrize("kind", SHAPES)
def test_child_types_are_padded_to_whole_tiles(kind):
    for layer in layers(kind):
        slices = 1 if layer.shared else layer.parent_tile[0]  # a class layer may leave slices of its last step empty
        assert layer.child_types <= layer.padded_types < 2 * layer.child_types + 4
        for whole in (4, math.prod(layer.gradient_tile), layer.edge_tile[0], slices):
            assert layer.padded_types % whole == 0, layer


@pytest.mark.parametrize("kind", SHAPES)
def test_tiles_are_powers_of_2(kind):
    """Triton allows no others, and no tile is larger than a block of threads can hold."""
    for layer in layers(kind):
        slices, parents = layer.parent_tile
        tiles = *layer.parent_tile, *layer.gradient_tile, *layer.edge_tile
        assert all(map(is_power_of_2, (*tiles, layer.parent_warps, layer.gradient_warps)))
        assert layer.parent_types <= layer.edge_tile[1]
        assert slices * parents * layer.lanes <= 1024
        assert layer.gradient_tile[0] * layer.lanes <= 1024


def test_staged_programs_have_all_parents_and_parts_of_at_least_48_children():
    """Those of small layers are divided into parts, up to a thousand programs; others are not."""
    for layer in layers("conv"):
        groups, parts, _ = layer.staged_groups
        children = math.prod(layer.kernel) * layer.padded_types
        assert 4 * groups >= layer.blocks * layer.positions * layer.parent_types > 4 * groups - 4 * layer.parents
        assert parts == 1 or (children // parts >= 48 and groups * (parts - 1) < 1000)


def test_small_batches_small_layers_and_class_layers_have_no_stages():
    assert not any(layer.fits_stages for layer in layers("class"))
    for layer in layers("conv"):
        assert layer.fits_stages == (layer.images > 16 and layer.parent_types >= 4)
        assert layer.stages_parents == (layer.fits_stages and layer.child_types > 4)
