"""class_routing and its trace against the brute force: outputs, gradients and every entry, in float64 to 1e-10."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emcaps import class_routing, class_routing_trace, conv_routing
from routing.brute_force import brute_force_class
from routing.cases import assert_routing_is, class_inputs, with_gradients
from routing.compare import assert_close

SHAPES = {
    "square": {"grid": (3, 3)},
    "wide": {"grid": (2, 5)},
    "tall": {"grid": (5, 1)},
    "one position": {"grid": (1, 1)},
    "one child type": {"grid": (3, 2), "child_types": 1},
    "one class": {"grid": (3, 2), "parent_types": 1},
    "one child": {"grid": (1, 1), "child_types": 1},
    "one of everything": {"batch": 1, "grid": (1, 1), "child_types": 1, "parent_types": 1},
    "many types": {"batch": 1, "grid": (2, 2), "child_types": 6, "parent_types": 7},
    "batch of three": {"batch": 3, "grid": (2, 2)},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape):
    assert_routing_is(class_routing, class_routing_trace, brute_force_class, class_inputs(**SHAPES[shape]))


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("data_scaling", ["mean", "none"])
def test_options(iterations, competition, data_scaling):
    inputs = class_inputs(batch=1, grid=(2, 3), child_types=2, parent_types=3, seed=iterations)
    options = {"iterations": iterations, "competition": competition, "data_scaling": data_scaling}
    assert_routing_is(class_routing, class_routing_trace, brute_force_class, inputs, **options)


@pytest.mark.parametrize("coordinate_scale", [0, 0.3, -2.0, 1])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_coordinate_scale(coordinate_scale, impl):
    inputs = class_inputs(grid=(2, 3), seed=4)
    options = {"coordinate_scale": coordinate_scale, "iterations": 3}
    routing = functools.partial(class_routing, impl=impl)
    assert_routing_is(routing, class_routing_trace, brute_force_class, inputs, **options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("competition", ["all", "types"])
def test_the_kernels_leave_coordinates_out(shape, competition):
    options = {"coordinate_scale": 0.0, "competition": competition, "iterations": 2}
    routing = functools.partial(class_routing, impl="numba")
    inputs = class_inputs(**SHAPES[shape])
    assert_routing_is(routing, class_routing_trace, brute_force_class, inputs, **options)
    if inputs.pose.shape[1:3] != (1, 1):  # else all children are at one place, which moves poses alone
        with_places = class_routing(*inputs, iterations=2).pose
        assert not torch.allclose(
            class_routing(*inputs, impl="numba", iterations=2, coordinate_scale=0).pose, with_places
        )


@pytest.mark.parametrize("coordinate_scale", [0, 1])
@pytest.mark.parametrize("iterations", [1, 3])
def test_poses_as_vectors(iterations, coordinate_scale):
    inputs = class_inputs(grid=(2, 2), child_types=2, parent_types=3)
    inputs = inputs._replace(weight=torch.randn(2, 3, 16, 16, dtype=torch.float64) / 4)
    options = {"iterations": iterations, "coordinate_scale": coordinate_scale}
    assert_routing_is(class_routing, class_routing_trace, brute_force_class, inputs, **options)


@pytest.mark.parametrize("scale", [0.5, -1])
def test_the_kernels_cannot_scale_coordinates(scale):
    with pytest.raises(
        ValueError, match=f"impl='numba' cannot scale coordinates by {float(scale)}: .* use impl='auto'"
    ):
        class_routing(*class_inputs(), impl="numba", coordinate_scale=scale)


@pytest.mark.parametrize("scale", ["1", None, float("nan"), float("inf"), True])
def test_a_coordinate_scale_that_is_no_number_is_refused(scale):
    with pytest.raises(ValueError, match="coordinate_scale must be a finite number, not"):
        class_routing(*class_inputs(), coordinate_scale=scale)


@pytest.mark.parametrize(("final_lambda", "variance_floor"), [(1e-3, 1e-4), (0.01, 1.0), (7.5, 1e-2), (1.0, 0.0)])
def test_final_lambda_and_variance_floor(final_lambda, variance_floor):
    options = {"final_lambda": final_lambda, "variance_floor": variance_floor}
    assert_routing_is(class_routing, class_routing_trace, brute_force_class, class_inputs(batch=1, seed=3), **options)


@st.composite
def layers(draw):
    inputs = class_inputs(
        batch=draw(st.integers(1, 2)),
        grid=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        child_types=draw(st.integers(1, 3)),
        parent_types=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 2**31)),
    )
    options = {
        "iterations": draw(st.integers(1, 5)),
        "final_lambda": draw(st.sampled_from([0.01, 1.0, 3.0])),
        "variance_floor": draw(st.sampled_from([1e-4, 1e-2])),
        "data_scaling": draw(st.sampled_from(["mean", "none"])),
        "competition": draw(st.sampled_from(["all", "types"])),
    }
    return inputs, options


@given(layers())
@settings(max_examples=60)
def test_any_layer(layer):
    inputs, options = layer
    assert_routing_is(class_routing, class_routing_trace, brute_force_class, inputs, **options)


def test_defaults_are_those_of_the_contract():
    inputs = class_inputs()
    spelled_out = {
        "iterations": 3,
        "final_lambda": 1.0,
        "variance_floor": 1e-4,
        "data_scaling": "mean",
        "competition": "all",
    }
    for got, want in zip(class_routing(*inputs), class_routing(*inputs, **spelled_out, impl="auto"), strict=True):
        assert torch.equal(got, want)


def test_zero_poses_vote_for_the_middle_of_the_grid():
    inputs = class_inputs(grid=(4, 3))
    inputs = inputs._replace(pose=torch.zeros_like(inputs.pose), activation=torch.ones_like(inputs.activation))
    want = torch.zeros(2, 4, 4, 4, dtype=torch.float64)
    want[:, :, 0, 3] = want[:, :, 1, 3] = 0.5
    assert_close("pose", class_routing(*inputs, iterations=1).pose, want, 1e-8)


def test_one_active_child_gives_its_scaled_position():
    """The row is added to element [0, 3] and the column to [1, 3], each measured at the middle of its cell."""
    inputs = class_inputs(batch=1, grid=(4, 5), child_types=1)
    inputs = inputs._replace(pose=torch.zeros_like(inputs.pose), activation=torch.zeros_like(inputs.activation))
    inputs.activation[0, 3, 1, 0] = 1.0
    want = torch.zeros(1, 4, 4, 4, dtype=torch.float64)
    want[:, :, 0, 3] = 3.5 / 4
    want[:, :, 1, 3] = 1.5 / 5
    assert_close("pose", class_routing(*inputs, iterations=1).pose, want, 1e-7)


def test_is_conv_routing_with_a_kernel_of_the_grid_and_shared_matrices():
    """The position is put into the poses: if the matrices end in 0, 0, 0, 1, pose[r, 3] is added to vote[r, 3]."""
    inputs = class_inputs(grid=(3, 2))
    pose, weight = inputs.pose.clone(), inputs.weight.clone()
    weight[..., 3, :] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    rows = ((torch.arange(3).double() + 0.5) / 3).reshape(1, 3, 1, 1)
    columns = ((torch.arange(2).double() + 0.5) / 2).reshape(1, 1, 2, 1)
    placed = pose.clone()
    placed[..., 0, 3] += rows
    placed[..., 1, 3] += columns
    got = class_routing(pose, inputs.activation, weight, inputs.beta_u, inputs.beta_a)
    want = conv_routing(placed, inputs.activation, weight.expand(3, 2, -1, -1, 4, 4), inputs.beta_u, inputs.beta_a)
    assert_close("pose", got.pose, want.pose[:, 0, 0], 1e-12)
    assert_close("activation", got.activation, want.activation[:, 0, 0], 1e-12)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_gradcheck(iterations):
    inputs = class_inputs(batch=1, grid=(2, 3), child_types=1, parent_types=2, seed=5)

    def outputs(*tensors):
        return class_routing(*tensors, iterations=iterations, variance_floor=1e-2)

    assert torch.autograd.gradcheck(outputs, tuple(with_gradients(inputs)), fast_mode=True)


def test_gradgradcheck():
    inputs = class_inputs(batch=1, grid=(1, 3), child_types=1, parent_types=2, seed=5)

    def outputs(*tensors):
        return class_routing(*tensors, iterations=2, variance_floor=1e-1, impl="reference")

    assert torch.autograd.gradgradcheck(outputs, tuple(with_gradients(inputs)), fast_mode=True)
