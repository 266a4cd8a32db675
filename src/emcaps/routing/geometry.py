"""Which parent reads which children, and how much data a parent gets: the arithmetic of grids, kernels and strides.

A parent at (v, u) reads the children at (v * stride - padding + ky, u * stride - padding + kx), 0 <= ky < KH,
0 <= kx < KW, as far as they exist: padding lets windows reach beyond the grid, and adds no children.
Grids, kernels, strides and paddings are (rows, columns); a single number means a square.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import SymInt

Pair: TypeAlias = tuple[int, int]


def as_pair(name: str, value: int | Pair, least: int = 1) -> Pair:
    """(rows, columns) from a number or a pair of numbers, each at least `least`."""
    if type(value) is tuple and len(value) == 2 and type(value[0]) is type(value[1]) is int and min(value) >= least:
        return value  # as it is in nearly every call
    numbers: Any = value if isinstance(value, (tuple, list)) else (value, value)
    if len(numbers) != 2 or not all(is_whole(number) and number >= least for number in numbers):
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            raise ValueError("torch.jit.trace cannot follow routing: use torch.export.export, or `emcaps export`")
        raise ValueError(
            f"{name} must be a whole number of at least {least} or a pair (rows, columns) of them, not {value!r}"
        )
    rows, columns = [cast("int", number) if isinstance(number, SymInt) else int(number) for number in numbers]
    return rows, columns


def as_padding(padding: int | Pair, kernel: Pair) -> Pair:
    """(rows, columns) by which windows of this kernel may reach beyond the grid on each side."""
    rows, columns = as_pair("padding", padding, least=0)
    if rows >= kernel[0] or columns >= kernel[1]:
        raise ValueError(
            f"padding must be smaller than the kernel of {kernel[0]}x{kernel[1]}, not {padding!r}: the outermost "
            "windows would hold no child"
        )
    return rows, columns


def is_whole(value: object) -> bool:
    """Whether a value is an integer of Python or numpy, or a size that torch.export does not know; a bool is not."""
    return isinstance(value, (int, np.integer, SymInt)) and not isinstance(value, bool)


def parent_grid(child_grid: int | Pair, kernel: int | Pair, stride: int | Pair, padding: int | Pair = 0) -> Pair:
    """Rows and columns of parents: as many windows as fit into the grid and the padding around it."""
    height, width = as_pair("grid", child_grid)
    kernel_height, kernel_width = as_pair("kernel", kernel)
    stride_rows, stride_columns = as_pair("stride", stride)
    rows, columns = as_padding(padding, (kernel_height, kernel_width))
    if kernel_height > height + 2 * rows or kernel_width > width + 2 * columns:
        grid = f"{height}x{width} children" + (f", padded by {rows} and {columns}" if rows or columns else "")
        raise ValueError(
            f"a kernel of {kernel_height}x{kernel_width} does not fit into a grid of {grid}: use a smaller kernel or a "
            "larger input"
        )
    down, right = height + 2 * rows - kernel_height, width + 2 * columns - kernel_width
    return down // stride_rows + 1, right // stride_columns + 1


def spatial_routing_map(
    child_grid: int | Pair, kernel: int | Pair, stride: int | Pair = 1, padding: int | Pair = 0
) -> npt.NDArray[np.bool_]:
    """Which parent positions (rows of the map) read which child positions (its columns), both counted row by row."""
    return np.kron(*_reads(child_grid, kernel, stride, padding))


def largest_window(child_grid: int | Pair, kernel: int | Pair, stride: int | Pair = 1, padding: int | Pair = 0) -> Pair:
    """Rows and columns of children that a parent reads at most: the kernel, unless padding is part of every window."""
    rows, columns = _reads(child_grid, kernel, stride, padding)
    return int(rows.sum(1).max()), int(columns.sum(1).max())


def _reads(
    child_grid: int | Pair, kernel: int | Pair, stride: int | Pair, padding: int | Pair
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which rows of parents read which rows of children, and which columns of parents which columns."""
    parents = parent_grid(child_grid, kernel, stride, padding)
    children, window = as_pair("grid", child_grid), as_pair("kernel", kernel)
    along = zip(parents, children, window, as_pair("stride", stride), as_padding(padding, window), strict=True)
    rows, columns = (_reads_along(*axis) for axis in along)
    return rows, columns


def _reads_along(parents: int, children: int, kernel: int, stride: int, padding: int) -> npt.NDArray[np.bool_]:
    """(parents, children) along one axis: true where the parent's window covers the child."""
    offset = np.arange(children)[None, :] + padding - stride * np.arange(parents)[:, None]
    return (offset >= 0) & (offset < kernel)


def max_data(kernel: int | Pair, child_types: int) -> int:
    """The most data that one parent can receive, when every child in its window is active and assigned to it alone.

    With padding, `kernel` is the part of the window in which there are children.
    """
    kernel_height, kernel_width = as_pair("kernel", kernel)
    return kernel_height * kernel_width * child_types


def mean_data(child_grid: Pair, child_types: int, parent_grid: Pair, parent_types: int) -> float:
    """The mean data of a parent when every child is active: the number of children per parent."""
    children = child_grid[0] * child_grid[1] * child_types
    return children / (parent_grid[0] * parent_grid[1] * parent_types)
