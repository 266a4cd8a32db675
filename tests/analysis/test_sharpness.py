"""How sharp routing is: the statistics, on assignments made by hand."""

from __future__ import annotations

import math

import pytest
import torch

from emcaps.analysis.sharpness import (
    assignment_entropy,
    average,
    effective_children,
    layer_statistics,
    lone_parents,
    measure,
    position_statistics,
    shares,
)
from emcaps.config import preset
from emcaps.nn import ClassCaps, ConvCaps, MatrixCapsNet
from emcaps.routing import RoutingOutput


def test_a_parent_with_one_child_has_one_effective_child():
    share = torch.zeros(2, 6, 3)
    share[:, 4] = 1e-30  # its square is no float32
    assert effective_children(share).tolist() == pytest.approx([1.0] * 6)
    assert lone_parents(share) == 1


def test_a_parent_with_even_children_has_them_all():
    share = torch.full((2, 6, 3), 0.2)
    assert effective_children(share).tolist() == pytest.approx([6.0] * 6)
    assert lone_parents(share) == 0


def test_effective_children_leaves_out_a_parent_without_data():
    share = torch.tensor([[[0.0, 3.0], [0.0, 1.0]]])
    assert effective_children(share).tolist() == pytest.approx([16 / 10])


def test_lone_parents_counts_those_above_nine_tenths():
    share = torch.tensor([[[0.95, 0.85], [0.05, 0.15]]])
    assert lone_parents(share) == 0.5


@pytest.mark.parametrize(("assignment", "entropy"), [([0.25] * 4, 1.0), ([0.0, 1.0, 0.0, 0.0], 0.0)])
def test_entropy_of_a_class_layer(assignment, entropy):
    layer, children = ClassCaps(2, 4), torch.rand(1, 3, 3, 2)
    found = assignment_entropy(layer, torch.tensor(assignment).expand(1, 3, 3, 2, 4), children)
    assert found.shape == (1 * 3 * 3 * 2,)
    assert found.tolist() == pytest.approx([entropy] * 18, abs=1e-6)


def test_entropy_of_a_conv_layer_sums_over_the_positions_that_read_a_child():
    layer, children = ConvCaps(2, 3, kernel=3, stride=1, iterations=2), torch.rand(1, 5, 4, 2)
    trace = layer.trace(RoutingOutput(torch.randn(1, 5, 4, 2, 4, 4), children))
    even = assignment_entropy(layer, trace[0].assignment, children)
    assert even.tolist() == pytest.approx([1.0] * 40), "the start is even over all parents"
    one = torch.zeros_like(trace[0].assignment)
    one[..., 0] = trace[0].assignment[..., 0] * 3  # evenly over positions, all to one type
    found = assignment_entropy(layer, one.detach(), children)
    inner = math.log(6) / math.log(18)  # a child in the middle is read at 3 x 2 positions
    assert found.view(5, 4, 2)[2, 1].tolist() == pytest.approx([inner] * 2)


def test_padding_is_no_child():
    layer, children = ConvCaps(2, 3, kernel=3, padding=1, iterations=2), torch.rand(1, 5, 4, 2)
    trace = layer.trace(RoutingOutput(torch.randn(1, 5, 4, 2, 4, 4), children))
    for step in trace:
        assert step.assignment.sum().item() == pytest.approx(5 * 4 * 2), "a child's assignments sum to 1"
    assert assignment_entropy(layer, trace[0].assignment, children).tolist() == pytest.approx([1.0] * 40)
    corner = shares(layer, trace[0].assignment, children).view(5, 4, 9, 2, 3)[0, 0]
    assert (corner > 0).any(-1).any(-1).tolist() == [False] * 4 + [True, True, False, True, True]
    assert position_statistics(layer, trace[1].assignment, children)["assigned"] == pytest.approx(1)


def test_shares_are_the_data_that_the_m_step_used():
    layer, children = ConvCaps(2, 3, kernel=3, stride=2, iterations=2), torch.rand(2, 7, 5, 2)
    pose = torch.randn(2, 7, 5, 2, 4, 4)
    step = layer.trace(RoutingOutput(pose, children))[-1]
    share = shares(layer, step.assignment, children)
    assert share.shape == (2, 3, 2, 18, 3)
    assert 0 < share.sum() <= children.sum() + 1e-4


def test_layer_statistics_gives_the_logit_that_the_activation_came_from():
    layer, children = ClassCaps(2, 4, iterations=3), torch.rand(1, 3, 3, 2)
    trace = layer.trace(RoutingOutput(torch.randn(1, 3, 3, 2, 4, 4), children))
    for row, step in zip(layer_statistics(layer, trace, children), trace, strict=True):
        assert row["logit_mean"] == pytest.approx(torch.logit(step.activation.double()).mean().item(), abs=1e-4)


@pytest.mark.parametrize("layers", ["", "3:3:2:1, 2:3:1:1"])
def test_measure_finds_the_gradient_by_the_assignments_of_later_iterations(layers):
    """In layers with padding, too."""
    torch.manual_seed(0)
    options = {"network.iterations": 3, "network.layers": layers}
    network = MatrixCapsNet(preset("tiny").override(options).network, image_channels=2)
    found = measure(network, torch.randn(20, 2, 16, 16), torch.arange(20) % 5, margin=0.5)
    assert found["gradient_norm"] > 0
    assert -1 <= found["gradient_cosine"] <= 1
    for rows in found["layers"].values():
        assert rows[0]["assignment_gradient"] is None, "the start is a constant"
        assert all(row["assignment_gradient"] > 0 for row in rows[1:])


@pytest.mark.parametrize(
    ("layers", "positions"),
    [("", {"class_caps": False}), ("3:2:2, 2:3", {"conv_caps1": False, "conv_caps2": True, "class_caps": False})],
)
def test_measure_of_a_described_network(layers, positions):
    """Positions that share a child are counted in convolutional layers, and are NaN where windows do not overlap."""
    torch.manual_seed(0)
    network = MatrixCapsNet(preset("tiny").override({"network.layers": layers}).network, image_channels=1)
    found = measure(network, torch.randn(20, 1, 16, 16), torch.arange(20) % 5, margin=0.5)
    assert {name: math.isfinite(rows[-1].get("positions", math.nan)) for name, rows in found["layers"].items()} == (
        positions
    )
    assert [name for name, rows in found["layers"].items() if "positions" not in rows[-1]] == ["class_caps"]
    for rows in found["layers"].values():
        assert rows[0]["entropy"] == pytest.approx(1), "the start is even over all parents"
        assert all(row["effective_children"] >= 1 and 0 <= row["entropy"] < 1 for row in rows[1:])


def test_average_keeps_the_shape_of_tables():
    assert average([{"a": [1, None], "b": 2}, {"a": [3, None], "b": 4}]) == {"a": [2, None], "b": 3}


@pytest.mark.parametrize("competition", ["all", "types"])
def test_a_child_gives_itself_once_if_positions_compete_and_to_each_of_them_if_not(competition):
    """5x5 children under 3x3 windows; only the corners are read by one window alone."""
    layer = ConvCaps(2, 3, kernel=3, stride=1, iterations=2, competition=competition)
    children = torch.rand(1, 5, 5, 2)
    trace = layer.trace(RoutingOutput(torch.randn(1, 5, 5, 2, 4, 4), children))
    readers = torch.tensor([1, 2, 3, 2, 1])
    readers = (readers[:, None] * readers).flatten()
    mean = float(readers[readers > 1].double().mean())
    start, end = (position_statistics(layer, step.assignment, children) for step in trace)
    assert (start["assigned"], start["positions"]) == pytest.approx((1.0, mean)), "the start is even over all parents"
    if competition == "all":
        assert end["assigned"] == pytest.approx(1.0)
        assert end["positions"] < mean
    else:
        assert (end["assigned"], end["positions"], end["positions_part"]) == pytest.approx((mean, mean, 1.0))


def test_a_class_layer_has_one_position():
    assert position_statistics(ClassCaps(2, 4), torch.rand(1, 3, 3, 2, 4), torch.rand(1, 3, 3, 2)) == {}


def test_useful_logits_are_those_between_minus_five_and_five():
    layer, children = ClassCaps(2, 4, iterations=1), torch.rand(3, 3, 3, 2)
    trace = layer.trace(RoutingOutput(torch.randn(3, 3, 3, 2, 4, 4), children))
    (row,) = layer_statistics(layer, trace, children)
    logit = torch.logit(trace[0].activation.detach().double())
    assert row["logit_useful"] == pytest.approx(float((logit.abs() <= 5).double().mean()))
    assert row["logit_quantiles"][3] == pytest.approx(float(logit.quantile(0.5)), abs=1e-3)
    assert row["logit_quantiles"] == sorted(row["logit_quantiles"])
