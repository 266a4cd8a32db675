"""Which parent reads which children, and how much data it gets, against loops and the figures of the paper."""

import numpy as np
import pytest

from emcaps import spatial_routing_map
from emcaps.routing.geometry import largest_window, max_data, mean_data, parent_grid


def looped_map(grid, kernel, stride, padding=(0, 0)):
    """The map by loops: one row per parent position, row by row, with the child positions under its kernel."""
    (height, width), (kernel_height, kernel_width), (down, right) = grid, kernel, stride
    above, left = padding
    rows = []
    for v in range(height + 2 * above):
        for u in range(width + 2 * left):
            top, side = v * down - above, u * right - left
            if top + kernel_height > height + above or side + kernel_width > width + left:
                continue
            row = []
            for y in range(height):
                for x in range(width):
                    row.append(0 <= y - top < kernel_height and 0 <= x - side < kernel_width)
            rows.append(row)
    return np.array(rows)


SHAPES = [
    ((4, 4), (3, 3), (1, 1)),
    ((5, 5), (3, 3), (2, 2)),
    ((6, 4), (3, 2), (2, 1)),
    ((4, 7), (1, 3), (3, 2)),
    ((7, 5), (2, 2), (3, 3)),
    ((3, 4), (3, 4), (1, 1)),
    ((3, 4), (3, 4), (5, 5)),
    ((1, 1), (1, 1), (1, 1)),
    ((2, 9), (1, 1), (1, 4)),
]


@pytest.mark.parametrize(("grid", "kernel", "stride"), SHAPES)
def test_spatial_routing_map(grid, kernel, stride):
    found = spatial_routing_map(grid, kernel, stride)
    want = looped_map(grid, kernel, stride)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.bool_
    assert found.shape == want.shape
    assert (found == want).all()
    assert (found.sum(1) == kernel[0] * kernel[1]).all()


@pytest.mark.parametrize(
    ("grid", "kernel", "stride", "padding"),
    [
        ((4, 4), (3, 3), (1, 1), (1, 1)),
        ((5, 3), (3, 2), (2, 1), (2, 1)),
        ((1, 2), (3, 3), (1, 2), (1, 2)),
        ((4, 7), (1, 3), (3, 2), (0, 2)),
    ],
)
def test_spatial_routing_map_with_padding(grid, kernel, stride, padding):
    found = spatial_routing_map(grid, kernel, stride, padding)
    assert found.tolist() == looped_map(grid, kernel, stride, padding).tolist()
    assert found.any(1).all(), "a window holds no child"
    window = largest_window(grid, kernel, stride, padding)
    assert window[0] * window[1] == found.sum(1).max()
    rows, columns = parent_grid(grid, kernel, stride, padding)
    assert len(found) == rows * columns


@pytest.mark.parametrize("side", [3, 4, 9])
def test_padding_by_half_an_odd_kernel_keeps_the_grid(side):
    for kernel in (1, 3, 5):
        assert parent_grid(side, kernel, 1, kernel // 2) == (side, side)


@pytest.mark.parametrize(("grid", "kernel", "stride"), SHAPES)
def test_parent_grid(grid, kernel, stride):
    rows = sum(v * stride[0] + kernel[0] <= grid[0] for v in range(grid[0]))
    columns = sum(u * stride[1] + kernel[1] <= grid[1] for u in range(grid[1]))
    assert tuple(parent_grid(grid, kernel, stride)) == (rows, columns)
    assert len(spatial_routing_map(grid, kernel, stride)) == rows * columns


def test_whole_numbers_mean_the_same_for_rows_and_columns():
    assert (spatial_routing_map((5, 6), 3, 2) == spatial_routing_map((5, 6), (3, 3), (2, 2))).all()
    assert tuple(parent_grid((5, 6), 3, 2)) == tuple(parent_grid((5, 6), (3, 3), (2, 2))) == (2, 2)


def test_row_of_five_children_from_the_paper():
    found = spatial_routing_map((1, 5), (1, 3), 1)
    assert found.astype(int).tolist() == [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert found.sum(0).tolist() == [1, 2, 3, 2, 1]


def test_children_left_over_are_read_by_nobody():
    found = spatial_routing_map((16, 16), 3, 2).reshape(7, 7, 16, 16)
    assert not found[:, :, 15].any()
    assert not found[:, :, :, 15].any()
    assert found[:, :, :15, :15].any((0, 1)).all()


def test_data_of_the_small_network():
    """Primary capsules 16x16 of 8 types; kernel 3, stride 2, to 16; kernel 3, stride 1, to 16; five classes."""
    first, second = parent_grid((16, 16), (3, 3), 2), parent_grid((7, 7), (3, 3), 1)
    assert (tuple(first), tuple(second)) == ((7, 7), (5, 5))
    assert mean_data((16, 16), 8, (7, 7), 16) == pytest.approx(2048 / 784, rel=1e-15)
    assert mean_data((7, 7), 16, (5, 5), 16) == pytest.approx(1.96, rel=1e-15)
    assert mean_data((5, 5), 16, (1, 1), 5) == pytest.approx(80.0, rel=1e-15)
    assert f"{mean_data((16, 16), 8, (7, 7), 16):.2f}" == "2.61"
    assert (max_data((3, 3), 8), max_data((3, 3), 16), max_data((5, 5), 16)) == (72, 144, 400)


def test_mean_data_of_rectangles():
    assert mean_data((4, 6), 3, (2, 5), 7) == pytest.approx(72 / 70, rel=1e-15)
    assert max_data((2, 5), 3) == 30


@pytest.mark.parametrize("function", [spatial_routing_map, parent_grid])
@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (((4, 4), (5, 3), 1), ["kernel", "5", "4"]),
        (((4, 4), (3, 5), 1), ["kernel", "5", "4"]),
        (((4, 4), 3, 0), ["stride", "0"]),
        (((4, 4), 3, (1, -1)), ["stride", "-1"]),
        (((4, 4), 0, 1), ["kernel", "0"]),
        (((4, 4), 3, 1.5), ["stride", "1.5"]),
        (((4, 4), 3, (1, 2, 3)), ["stride", "(1, 2, 3)"]),
        (((4, 4), 3, 1, -1), ["padding", "at least 0", "-1"]),
        (((4, 4), 3, 1, 0.5), ["padding", "0.5"]),
        (((4, 4), 3, 1, (0, 3)), ["padding", "smaller", "3x3", "(0, 3)", "no child"]),
        (((1, 4), 4, 1, 1), ["kernel", "4x4", "1x4", "padded by 1 and 1"]),
    ],
)
def test_errors(function, arguments, fragments):
    with pytest.raises(ValueError, match=r"must|fit") as caught:
        function(*arguments)
    for fragment in fragments:
        assert fragment in str(caught.value)
