"""Properties of every layer, whatever its numbers: sums, symmetries, independence, and exact relations of options."""

import pytest
import torch

from emcaps import class_routing, class_routing_trace, conv_routing, conv_routing_trace
from emcaps.routing.geometry import mean_data
from routing.cases import class_inputs, conv_inputs
from routing.compare import assert_close

STRIDES = pytest.mark.parametrize("stride", [1, 2, 3, (1, 2)])
COMPETITIONS = pytest.mark.parametrize("competition", ["all", "types"])
ROUTINGS = pytest.mark.parametrize(
    ("trace", "inputs"),
    [
        pytest.param(conv_routing_trace, conv_inputs(batch=3, grid=(4, 5), kernel=(2, 3), child_types=3), id="conv"),
        pytest.param(
            class_routing_trace, class_inputs(batch=3, grid=(4, 3), child_types=3, parent_types=3), id="class"
        ),
    ],
)


def sums_over_parents(assignment, grid, stride):
    """Sums (B,H,W,I) of a convolutional layer's assignments (B,OH,OW,KH,KW,I,O), and numbers (H,W) of readers."""
    down, right = stride if isinstance(stride, tuple) else (stride, stride)
    batch, rows, columns, kernel_height, kernel_width, types = assignment.shape[:-1]
    sums = torch.zeros(batch, *grid, types, dtype=assignment.dtype)
    readers = torch.zeros(grid, dtype=torch.int64)
    for v in range(rows):
        for u in range(columns):
            for ky in range(kernel_height):
                for kx in range(kernel_width):
                    sums[:, v * down + ky, u * right + kx] += assignment[:, v, u, ky, kx].sum(-1)
                    readers[v * down + ky, u * right + kx] += 1
    return sums, readers


@STRIDES
def test_assignments_of_each_read_child_sum_to_one(stride):
    inputs = conv_inputs(grid=(5, 6), kernel=(2, 2))
    for t, step in enumerate(conv_routing_trace(*inputs, stride=stride, iterations=4)):
        sums, readers = sums_over_parents(step.assignment, (5, 6), stride)
        assert (step.assignment >= 0).all()
        assert_close(f"sums of iteration {t}", sums[:, readers > 0], torch.ones_like(sums[:, readers > 0]), 1e-13)
    assert readers.max() == {1: 4, 2: 1, 3: 1, (1, 2): 2}[stride]


@STRIDES
def test_assignments_sum_to_one_at_each_position_when_types_compete(stride):
    inputs = conv_inputs(grid=(5, 6), kernel=(2, 2))
    steps = conv_routing_trace(*inputs, stride=stride, iterations=3, competition="types")
    for step in list(steps)[1:]:
        sums = step.assignment.sum(-1)
        assert_close("sums", sums, torch.ones_like(sums), 1e-13)
    sums, readers = sums_over_parents(steps[0].assignment, (5, 6), stride)
    assert_close("sums of the start", sums[:, readers > 0], torch.ones_like(sums[:, readers > 0]), 1e-13)


def test_competitions_agree_where_each_child_has_one_position_and_differ_elsewhere():
    inputs = conv_inputs(grid=(4, 6), kernel=(2, 2))
    for stride, agree in ((2, True), (1, False)):
        everyone = conv_routing(*inputs, stride=stride)
        types = conv_routing(*inputs, stride=stride, competition="types")
        if agree:
            assert_close("pose", types.pose, everyone.pose, 1e-13)
            assert_close("activation", types.activation, everyone.activation, 1e-13)
        else:
            assert (types.pose - everyone.pose).abs().max() > 1e-3


@COMPETITIONS
def test_class_assignments_sum_to_one_over_classes(competition):
    for step in class_routing_trace(*class_inputs(grid=(4, 3)), iterations=4, competition=competition):
        sums = step.assignment.sum(-1)
        assert_close("sums", sums, torch.ones_like(sums), 1e-13)


@ROUTINGS
@COMPETITIONS
def test_permuting_child_types_permutes_assignments_alone(trace, inputs, competition):
    order = torch.tensor([2, 0, 1])
    moved = inputs._replace(
        pose=inputs.pose[..., order, :, :],
        activation=inputs.activation[..., order],
        weight=inputs.weight.index_select(-4, order),
    )
    plain, permuted = (trace(*x, competition=competition) for x in (inputs, moved))
    for before, after in zip(plain, permuted, strict=True):
        assert_close("assignment", after.assignment, before.assignment[..., order, :], 1e-12)
        for name in ("mean", "variance", "cost", "activation"):
            assert_close(name, getattr(after, name), getattr(before, name), 1e-12)


@ROUTINGS
@COMPETITIONS
def test_permuting_parent_types_permutes_outputs(trace, inputs, competition):
    order = torch.tensor([1, 2, 0])
    moved = inputs._replace(
        weight=inputs.weight.index_select(-3, order), beta_u=inputs.beta_u[order], beta_a=inputs.beta_a[order]
    )
    plain, permuted = (trace(*x, competition=competition) for x in (inputs, moved))
    for before, after in zip(plain, permuted, strict=True):
        assert_close("assignment", after.assignment, before.assignment[..., order], 1e-12)
        for name in ("mean", "variance"):
            assert_close(name, getattr(after, name), getattr(before, name)[..., order, :, :], 1e-12)
        for name in ("cost", "activation"):
            assert_close(name, getattr(after, name), getattr(before, name)[..., order], 1e-12)


@ROUTINGS
@COMPETITIONS
def test_batch_elements_do_not_depend_on_their_neighbours(trace, inputs, competition):
    """Alone, or beside elements of extreme values or NaN, an element gets the same result."""
    together = trace(*inputs, competition=competition)
    pose, activation = inputs.pose.clone(), inputs.activation.clone()
    pose[0], activation[0] = 1e6, 0.0
    pose[2] = torch.nan
    beside = trace(*inputs._replace(pose=pose, activation=activation), competition=competition)
    alone = trace(*inputs._replace(pose=inputs.pose[1:2], activation=inputs.activation[1:2]), competition=competition)
    for steps in zip(together, beside, alone, strict=True):
        want, *others = steps
        for name in want._fields:
            for other, b in zip(others, (1, 0), strict=True):
                assert_close(name, getattr(other, name)[b], getattr(want, name)[1], 1e-12)


def test_batch_elements_have_gradients_of_their_own():
    inputs = conv_inputs(batch=3)
    pose = inputs.pose.clone().requires_grad_()
    conv_routing(pose, *inputs[1:]).pose[1].square().sum().backward()
    assert (pose.grad[[0, 2]] == 0).all()
    assert (pose.grad[1] != 0).any()


@ROUTINGS
def test_shifting_all_votes_of_a_parent_shifts_its_mean_alone(trace, inputs):
    """One column of all poses is constant, so changing that row of the matrices adds the same to all votes of a type.

    The mean does not shift exactly: the definition divides by S + 1e-9, which pulls it towards 0 by 1e-9 / S of it.
    """
    column = torch.tensor([1.0, -0.5, 2.0, 0.25], dtype=torch.float64)
    pose = inputs.pose.clone()
    pose[..., :, 2] = column
    by = torch.tensor([[1.0, 2.0, -3.0, 0.5], [0.0, 1.5, 1.0, -2.0], [4.0, -1.0, 0.0, 1.0]], dtype=torch.float64)
    weight = inputs.weight.clone()
    weight[..., 2, :] += by  # (..., I, O, 4): another shift for each parent type
    shift = column[:, None] * by[:, None, :]  # (O,4,4)
    options = {"iterations": 3, "variance_floor": 1e-2}
    plain = trace(*inputs._replace(pose=pose), **options)
    shifted = trace(*inputs._replace(pose=pose, weight=weight), **options)
    for before, after in zip(plain, shifted, strict=True):
        assert_close("mean", after.mean, before.mean + shift, 1e-6)
        for name in ("assignment", "variance", "cost", "activation"):
            assert_close(name, getattr(after, name), getattr(before, name), 1e-6)


@COMPETITIONS
def test_turning_all_poses_turns_the_means(competition):
    """V = M W, so T M gives T V. T changes signs and swaps rows, which leaves the set of variances as it is."""
    inputs = conv_inputs(grid=(4, 5), kernel=(2, 3))
    order, signs = torch.tensor([2, 0, 3, 1]), torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    turned = inputs._replace(pose=inputs.pose[..., order, :] * signs[:, None])
    plain, other = (conv_routing_trace(*x, competition=competition) for x in (inputs, turned))
    for before, after in zip(plain, other, strict=True):
        assert_close("mean", after.mean, before.mean[..., order, :] * signs[:, None], 1e-12)
        assert_close("variance", after.variance, before.variance[..., order, :], 1e-12)
        for name in ("assignment", "cost", "activation"):
            assert_close(name, getattr(after, name), getattr(before, name), 1e-12)


@pytest.mark.parametrize("stride", [1, (2, 1)])
def test_exchanging_rows_and_columns_exchanges_them_in_the_output(stride):
    inputs = conv_inputs(grid=(5, 4), kernel=(2, 3))
    moved = inputs._replace(
        pose=inputs.pose.transpose(1, 2),
        activation=inputs.activation.transpose(1, 2),
        weight=inputs.weight.transpose(0, 1),
    )
    plain = conv_routing_trace(*inputs, stride=stride)[-1]
    turned = conv_routing_trace(*moved, stride=stride if isinstance(stride, int) else stride[::-1])[-1]
    assert_close("assignment", turned.assignment, plain.assignment.transpose(1, 2).transpose(3, 4), 1e-12)
    for name in ("mean", "variance", "cost", "activation"):
        assert_close(name, getattr(turned, name), getattr(plain, name).transpose(1, 2), 1e-12)


def test_mirrored_grid_and_kernel_mirror_the_output():
    inputs = conv_inputs(grid=(5, 4), kernel=(2, 3))
    moved = inputs._replace(
        pose=inputs.pose.flip(1, 2), activation=inputs.activation.flip(1, 2), weight=inputs.weight.flip(0, 1)
    )
    plain, mirrored = conv_routing(*inputs), conv_routing(*moved)
    assert_close("pose", mirrored.pose, plain.pose.flip(1, 2), 1e-12)
    assert_close("activation", mirrored.activation, plain.activation.flip(1, 2), 1e-12)


@ROUTINGS
@COMPETITIONS
def test_mean_scaling_is_no_scaling_with_other_beta_a_and_lambda(trace, inputs, competition):
    """lambda (beta_a - C / m) = (lambda / m) (m beta_a - C), in every iteration."""
    parents = (3, 3) if trace is conv_routing_trace else (1, 1)
    m = mean_data(tuple(inputs.activation.shape[1:3]), 3, parents, 3)
    assert m > 1.5
    scaled = trace(*inputs, final_lambda=2.0, competition=competition)
    plain = trace(
        *inputs._replace(beta_a=m * inputs.beta_a), final_lambda=2.0 / m, data_scaling="none", competition=competition
    )
    for want, got in zip(scaled, plain, strict=True):
        assert_close("cost", got.cost, m * want.cost, 1e-11)
        for name in ("assignment", "mean", "variance", "activation"):
            assert_close(name, getattr(got, name), getattr(want, name), 1e-11)


def test_scalings_agree_where_the_mean_data_is_one():
    inputs = conv_inputs(grid=(3, 4), kernel=(1, 1), child_types=3, parent_types=3)
    for got, want in zip(conv_routing(*inputs, data_scaling="none"), conv_routing(*inputs), strict=True):
        assert_close("output", got, want, 1e-14)


@ROUTINGS
def test_scaling_activations_scales_the_cost_of_one_iteration(trace, inputs):
    """Half the data has the same mean and variance, but for the 1e-9 in the division."""
    before = trace(*inputs, iterations=1)[0]
    after = trace(*inputs._replace(activation=inputs.activation / 2), iterations=1)[0]
    assert torch.equal(after.assignment, before.assignment)
    assert_close("mean", after.mean, before.mean, 1e-7)
    assert_close("variance", after.variance, before.variance, 1e-7)
    assert_close("cost", after.cost, before.cost / 2, 1e-7)


def test_scaling_poses_scales_mean_and_variance_of_one_iteration():
    inputs = conv_inputs()
    before = conv_routing_trace(*inputs, iterations=1, variance_floor=0.25)[0]
    after = conv_routing_trace(*inputs._replace(pose=4 * inputs.pose), iterations=1, variance_floor=0.25)[0]
    assert_close("mean", after.mean, 4 * before.mean, 1e-14)
    assert_close("variance", after.variance - 0.25, 16 * (before.variance - 0.25), 1e-12)


def test_scaling_poses_and_floor_together_keeps_the_assignments():
    """Distances in units of the standard deviation stay the same. The cost grows by 16 log c, which beta_u undoes."""
    inputs = conv_inputs(grid=(4, 5), kernel=(2, 3))
    before = conv_routing_trace(*inputs, iterations=4)
    shift = torch.log(torch.tensor(8.0, dtype=torch.float64))
    scaled = inputs._replace(pose=8 * inputs.pose, beta_u=inputs.beta_u - shift)
    for want, got in zip(before, conv_routing_trace(*scaled, iterations=4, variance_floor=64e-4), strict=True):
        assert_close("mean", got.mean, 8 * want.mean, 1e-10)
        assert_close("variance", got.variance, 64 * want.variance, 1e-10)
        for name in ("assignment", "cost", "activation"):
            assert_close(name, getattr(got, name), getattr(want, name), 1e-10)


def test_inactive_child_changes_nothing_but_the_mean_data():
    """If the last child type has activation zero, the layer is the same as one without it."""
    inputs = class_inputs(grid=(2, 3), child_types=3)
    activation = inputs.activation.clone()
    activation[..., 2] = 0
    without = inputs._replace(
        pose=inputs.pose[:, :, :, :2], activation=inputs.activation[..., :2], weight=inputs.weight[:2]
    )
    got = class_routing(*inputs._replace(activation=activation), data_scaling="none")
    want = class_routing(*without, data_scaling="none")
    assert_close("pose", got.pose, want.pose, 1e-13)
    assert_close("activation", got.activation, want.activation, 1e-13)
