"""The brute force against examples that are worked out by hand in plain numbers."""

import math

import pytest
import torch

from routing.brute_force import brute_force_class, brute_force_conv
from routing.cases import class_inputs, conv_inputs

EPS = 1e-9


def constant_poses(*values: float) -> torch.Tensor:
    """One child per value in a row, each pose the value times the identity: (1,1,W,1,4,4)."""
    return torch.stack([value * torch.eye(4, dtype=torch.float64) for value in values]).reshape(1, 1, -1, 1, 4, 4)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_one_child_one_parent_one_iteration():
    (step,) = brute_force_conv(
        constant_poses(2.0),
        torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64),
        torch.eye(4, dtype=torch.float64).reshape(1, 1, 1, 1, 4, 4),
        torch.tensor([0.25], dtype=torch.float64),
        torch.tensor([1.5], dtype=torch.float64),
        iterations=1,
        final_lambda=2.0,
        variance_floor=0.01,
    )
    mean = 0.5 * 2.0 / (0.5 + EPS)
    diagonal = 0.5 * (2.0 - mean) ** 2 / (0.5 + EPS) + 0.01
    cost = (16 * 0.25 + 0.5 * (4 * math.log(diagonal) + 12 * math.log(0.01))) * 0.5
    assert step.assignment.item() == 1
    assert step.mean[0, 0, 0, 0, 2, 2].item() == pytest.approx(mean, rel=1e-14)
    assert step.mean[0, 0, 0, 0, 2, 1].item() == 0
    assert step.variance[0, 0, 0, 0, 3, 3].item() == pytest.approx(diagonal, rel=1e-14)
    assert step.variance[0, 0, 0, 0, 0, 3].item() == 0.01
    assert step.cost.item() == pytest.approx(cost, rel=1e-12)
    assert step.activation.item() == pytest.approx(logistic(2.0 * 0.05 * (1.5 - cost)), rel=1e-12)


def test_two_children_one_parent_weigh_by_activation():
    (step,) = brute_force_conv(
        constant_poses(1.0, -1.0),
        torch.tensor([0.75, 0.25], dtype=torch.float64).reshape(1, 1, 2, 1),
        torch.eye(4, dtype=torch.float64).expand(1, 2, 1, 1, 4, 4),
        torch.tensor([0.0], dtype=torch.float64),
        torch.tensor([0.0], dtype=torch.float64),
        iterations=1,
    )
    # mean 0.75 - 0.25 = 0.5; variance 0.75 * 0.5^2 + 0.25 * 1.5^2 = 0.75; the data are 1 and their mean is 2 / 1.
    assert step.mean[0, 0, 0, 0].diagonal().tolist() == pytest.approx([0.5] * 4, rel=1e-8)
    assert step.variance[0, 0, 0, 0].diagonal().tolist() == pytest.approx([0.7501] * 4, rel=1e-8)
    cost = 0.5 * (4 * math.log(0.7501) + 12 * math.log(1e-4)) / 2
    assert step.cost.item() == pytest.approx(cost, rel=1e-8)
    assert step.activation.item() == pytest.approx(logistic(-0.05 * cost), rel=1e-8)


def test_row_of_five_children_starts_with_positions_that_read_each():
    """Kernel 3, stride 1: the children are read by 1, 2, 3, 2 and 1 positions, each of two types."""
    inputs = conv_inputs(batch=1, grid=(1, 5), kernel=(1, 3), child_types=1, parent_types=2)
    step = brute_force_conv(*inputs, iterations=1)[0]
    readers = [[1, 2, 3], [2, 3, 2], [3, 2, 1]]
    for u in range(3):
        for kx in range(3):
            assert step.assignment[0, 0, u, 0, kx, 0].tolist() == pytest.approx([1 / (2 * readers[u][kx])] * 2)


@pytest.mark.parametrize("competition", ["all", "types"])
def test_expectation_by_hand_in_overlapping_row(competition):
    """Three children, two positions, one type: the middle child, which both read, is divided by their densities."""
    children, active, floor = (0.3, -0.2, 0.5), (0.9, 0.6, 0.7), 0.5
    steps = brute_force_conv(
        constant_poses(*children),
        torch.tensor(active, dtype=torch.float64).reshape(1, 1, 3, 1),
        torch.eye(4, dtype=torch.float64).expand(1, 2, 1, 1, 4, 4),
        torch.tensor([0.1], dtype=torch.float64),
        torch.tensor([0.2], dtype=torch.float64),
        iterations=2,
        variance_floor=floor,
        competition=competition,
    )
    strength, density = [], []
    for u, data in enumerate([(0.9, 0.3), (0.3, 0.7)]):  # the middle child starts with one half for each position
        seen = children[u : u + 2]
        total = sum(data)
        mean = sum(r * x for r, x in zip(data, seen, strict=True)) / (total + EPS)
        variance = sum(r * (x - mean) ** 2 for r, x in zip(data, seen, strict=True)) / (total + EPS) + floor
        cost = (16 * 0.1 + 0.5 * (4 * math.log(variance) + 12 * math.log(floor))) * total / 1.5
        strength.append(logistic(0.05 * (0.2 - cost)))
        on_diagonal = math.exp(-((children[1] - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
        density.append(on_diagonal**4 / math.sqrt(2 * math.pi * floor) ** 12)
        assert steps[0].mean[0, 0, u, 0, 0, 0].item() == pytest.approx(mean, rel=1e-12)
        assert steps[0].activation[0, 0, u, 0].item() == pytest.approx(strength[u], rel=1e-12)
    evidence = [a * n for a, n in zip(strength, density, strict=True)]
    left, right = (x / sum(evidence) if competition == "all" else 1.0 for x in evidence)
    assignment = steps[1].assignment[0, 0, :, 0, :, 0, 0]
    assert assignment.flatten().tolist() == pytest.approx([1.0, left, right, 1.0], rel=1e-12)


def test_inverse_temperature_rises_towards_its_final_value():
    inputs = conv_inputs(batch=1, grid=(2, 2), kernel=(2, 2))
    for t, step in enumerate(brute_force_conv(*inputs, iterations=4, final_lambda=0.5)):
        logit = torch.logit(step.activation)
        torch.testing.assert_close(logit, 0.5 * (1 - 0.95 ** (t + 1)) * (inputs.beta_a - step.cost))


def test_class_votes_carry_the_scaled_position():
    """With zero poses a vote is the position alone: the mean is the middle of the grid, the variance its spread."""
    inputs = class_inputs(batch=1, grid=(2, 5), child_types=1, parent_types=2)._replace(
        pose=torch.zeros(1, 2, 5, 1, 4, 4, dtype=torch.float64),
        activation=torch.ones(1, 2, 5, 1, dtype=torch.float64),
    )
    (step,) = brute_force_class(*inputs, iterations=1, variance_floor=0.0625)
    mean = torch.zeros(4, 4, dtype=torch.float64)
    mean[0, 3] = mean[1, 3] = 0.5
    variance = torch.full((4, 4), 0.0625, dtype=torch.float64)
    variance[0, 3] += 0.25**2  # rows at 1/4 and 3/4
    variance[1, 3] += 0.08  # columns at 0.1, 0.3, 0.5, 0.7, 0.9
    assert step.assignment.tolist() == torch.full((1, 2, 5, 1, 2), 0.5).tolist()
    for o in range(2):
        torch.testing.assert_close(step.mean[0, o], mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(step.variance[0, o], variance, rtol=1e-8, atol=1e-8)
    # Each parent's data is 5 (10 children, half of each), and the mean data is 10 / 2.
    cost = 16 * inputs.beta_u + 0.5 * variance.log().sum()
    torch.testing.assert_close(step.cost[0], cost, rtol=1e-8, atol=1e-8)


def test_layouts():
    step = brute_force_conv(*conv_inputs(grid=(4, 5), kernel=(3, 2)), stride=(1, 3), iterations=1)[0]
    assert [tuple(x.shape) for x in step] == [(2, 2, 2, 3, 2, 2, 3), *[(2, 2, 2, 3, 4, 4)] * 2, *[(2, 2, 2, 3)] * 2]
    step = brute_force_class(*class_inputs(), iterations=1)[0]
    assert [tuple(x.shape) for x in step] == [(2, 3, 2, 3, 4), *[(2, 4, 4, 4)] * 2, *[(2, 4)] * 2]


def test_assignment_is_laid_out_by_reader_and_offset():
    """A child's assignments, collected by kernel offset, sum to 1. In any other layout they would not."""
    inputs = conv_inputs(batch=1, grid=(3, 4), kernel=(2, 3))
    step = brute_force_conv(*inputs, iterations=3)[-1]
    sums = torch.zeros(3, 4, 2, dtype=torch.float64)
    for v in range(2):
        for u in range(2):
            for ky in range(2):
                for kx in range(3):
                    sums[v + ky, u + kx] += step.assignment[0, v, u, ky, kx].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-12, atol=0)


def test_gradients_agree_with_differences():
    inputs = conv_inputs(batch=1, grid=(1, 3), kernel=(1, 2), child_types=1, parent_types=2)

    def outputs(*tensors):
        last = brute_force_conv(*tensors, iterations=2, variance_floor=0.1)[-1]
        return last.mean, last.activation

    assert torch.autograd.gradcheck(outputs, [x.clone().requires_grad_() for x in inputs], fast_mode=True)
