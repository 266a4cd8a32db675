"""The sizes of a layer, found from the shapes of its tensors."""

import dataclasses
import itertools

import pytest

from emcaps.routing.geometry import parent_grid
from emcaps.routing.layer_shape import WITHOUT_COORDINATES, LayerShape


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize(("child_types", "parent_types"), list(itertools.product([1, 5], [1, 3])))
def test_a_convolutional_layer(child_types, parent_types, by_position):
    layer = LayerShape.of((2, 7, 6, child_types, 4, 4), (3, 2, child_types, parent_types, 4, 4), (2, 1), by_position)
    assert layer == LayerShape(
        images=2,
        child_grid=(7, 6),
        child_types=child_types,
        parent_grid=parent_grid((7, 6), (3, 2), (2, 1)),
        parent_types=parent_types,
        kernel=(3, 2),
        stride=(2, 1),
        shared=False,
        coordinates=False,
        by_position=by_position,
    )
    assert layer.positions == 15
    assert layer.output_shape == (2, 3, 5, parent_types)


@pytest.mark.parametrize("by_position", [False, True])
def test_a_class_layer_is_one_window_over_the_grid(by_position):
    """It has one parent position, so both kinds of competition are the same."""
    layer = LayerShape.of((2, 7, 6, 5, 4, 4), (5, 3, 4, 4), (1, 1), by_position)
    assert layer.shared
    assert not layer.by_position
    assert layer.kernel == (7, 6)
    assert layer.parent_grid == (1, 1)
    assert layer.positions == 1
    assert layer.output_shape == (2, 3)
    assert layer.coordinates


def test_a_class_layer_without_coordinates_is_told_by_its_stride():
    usual = LayerShape.of((2, 7, 6, 5, 4, 4), (5, 3, 4, 4), (1, 1), False)
    assert LayerShape.of((2, 7, 6, 5, 4, 4), (5, 3, 4, 4), WITHOUT_COORDINATES, False) == dataclasses.replace(
        usual, coordinates=False
    )
