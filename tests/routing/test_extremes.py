"""Extreme inputs: in float64 the reference is equal to the brute force, in float32 it is finite and close.

How close a precision can come depends on the problem: in votes of size 1e4, rounding alone leaves differences as large
as the variance floor. So errors are compared with those of the brute force itself when its loops run in float32.
"""

import functools

import pytest
import torch

from emcaps import class_routing, class_routing_trace, conv_routing, conv_routing_trace
from routing.brute_force import brute_force_class, brute_force_conv
from routing.cases import Inputs, assert_routing_is, class_inputs, conv_inputs, outputs_and_gradients, result_of
from routing.compare import assert_close, relative_error


def zero_activations(inputs):
    return inputs._replace(activation=torch.zeros_like(inputs.activation))


def activations_zero_and_one(inputs):
    return inputs._replace(activation=inputs.activation.round())


def full_activations(inputs):
    return inputs._replace(activation=torch.ones_like(inputs.activation))


def tiny_activations(inputs):
    return inputs._replace(activation=inputs.activation * 2.0**-40)


def identical_votes(inputs):
    """All poses are equal, and all matrices of a parent type: every child votes for the same pose."""
    return inputs._replace(
        pose=inputs.pose[:1, :1, :1, :1].expand_as(inputs.pose).clone(),
        weight=inputs.weight[(slice(0, 1),) * (inputs.weight.ndim - 3)].expand_as(inputs.weight).clone(),
    )


def zero_votes(inputs):
    return inputs._replace(weight=torch.zeros_like(inputs.weight))


def large_votes(inputs):
    return inputs._replace(pose=inputs.pose * 8192)


def large_identical_votes(inputs):
    return large_votes(identical_votes(inputs))


def small_votes(inputs):
    return inputs._replace(pose=inputs.pose / 8192)


def one_far_child(inputs):
    pose = inputs.pose.clone()
    pose[:, 0, 0, 0] *= 8192
    return inputs._replace(pose=pose)


def large_beta_a(inputs):
    return inputs._replace(beta_a=torch.full_like(inputs.beta_a, 1e4))


def large_negative_beta_a(inputs):
    return inputs._replace(beta_a=torch.full_like(inputs.beta_a, -1e4))


def large_beta_u(inputs):
    return inputs._replace(beta_u=torch.full_like(inputs.beta_u, 1e4))


def large_negative_beta_u(inputs):
    return inputs._replace(beta_u=torch.full_like(inputs.beta_u, -1e4))


def large_betas_of_both_signs(inputs):
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(len(inputs.beta_u))[: len(inputs.beta_u)]
    return inputs._replace(beta_u=1e4 * signs, beta_a=-1e4 * signs.flip(0))


EXTREMES = [
    zero_activations,
    activations_zero_and_one,
    full_activations,
    tiny_activations,
    identical_votes,
    zero_votes,
    large_votes,
    large_identical_votes,
    small_votes,
    one_far_child,
    large_beta_a,
    large_negative_beta_a,
    large_beta_u,
    large_negative_beta_u,
    large_betas_of_both_signs,
]
ITERATIONS = [1, 2, 5]
LAYERS = {
    "conv": ("conv", conv_inputs(batch=1, grid=(2, 3), kernel=(2, 2), child_types=1, parent_types=2)),
    "one child per parent": ("conv", conv_inputs(batch=1, grid=(2, 1), kernel=(1, 1), child_types=1, parent_types=2)),
    "class": ("class", class_inputs(batch=1, grid=(1, 2), child_types=2, parent_types=2)),
}
ROUTINGS = {
    "conv": (conv_routing, conv_routing_trace, brute_force_conv),
    "class": (class_routing, class_routing_trace, brute_force_class),
}


def nudged(inputs: Inputs, seed: int) -> Inputs:
    """Change every input by about one rounding error of float32, to a value that float32 represents exactly."""
    generator = torch.Generator().manual_seed(seed)
    eps = torch.finfo(torch.float32).eps
    moved = (x * (1 + eps * torch.randn(x.shape, generator=generator, dtype=torch.float64)) for x in inputs)
    return Inputs(*(x.float().double() for x in moved))


@functools.cache
def float32_errors(layer, iterations, extreme):
    """The largest relative errors of the brute force in float32, by output and gradient, on three nearby problems."""
    kind, inputs = LAYERS[layer]
    routing, _, brute_force = ROUTINGS[kind]
    errors = {}
    for seed in range(3):
        problem = nudged(extreme(inputs), seed)
        exact = outputs_and_gradients(routing, problem, iterations=iterations, impl="reference")
        rounded = outputs_and_gradients(result_of(brute_force), problem.to(torch.float32), iterations=iterations)
        for name, want in exact.items():
            if want.abs().max() > torch.finfo(torch.float32).tiny:  # else it underflows and says nothing
                errors[name] = max(errors.get(name, 0.0), relative_error(rounded[name], want))
    return errors


@pytest.mark.parametrize("extreme", EXTREMES, ids=lambda extreme: extreme.__name__)
@pytest.mark.parametrize("iterations", ITERATIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_float64_is_the_definition(layer, iterations, extreme):
    """To 1e-10 plus the rounding error of the definition itself: its float32 error times the ratio of precisions."""
    kind, inputs = LAYERS[layer]
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    tolerances = {name: 1e-10 + 8 * ratio * error for name, error in float32_errors(layer, iterations, extreme).items()}
    assert_routing_is(*ROUTINGS[kind], extreme(inputs), tolerances, iterations=iterations)


@pytest.mark.parametrize("extreme", EXTREMES, ids=lambda extreme: extreme.__name__)
@pytest.mark.parametrize("iterations", ITERATIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_float32_is_finite_and_as_close_as_the_definition(layer, iterations, extreme):
    kind, inputs = LAYERS[layer]
    problem = extreme(inputs).to(torch.float32)
    options = {"iterations": iterations, "impl": "reference"}
    exact = outputs_and_gradients(ROUTINGS[kind][0], problem.to(torch.float64), **options)
    got = outputs_and_gradients(ROUTINGS[kind][0], problem, **options)
    errors = float32_errors(layer, iterations, extreme)
    compared = []
    for name, want in exact.items():
        assert want.isfinite().all()
        assert want.abs().max() < torch.finfo(torch.float32).max
        assert got[name].dtype == torch.float32
        assert got[name].isfinite().all(), f"{name} is not finite in float32, and {want.abs().max():.3g} in float64"
        tolerance = 1e-5 + 4 * errors.get(name, 0.0)
        if tolerance > 0.1:
            continue  # rounding moves the definition itself by as much, so only being finite can be asked for
        assert_close(name, got[name].double(), want, tolerance, torch.finfo(torch.float32).tiny / tolerance)
        compared.append(name)
    assert {"pose", "activation"} <= set(compared), "the outputs themselves are always compared"


@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("layer", ["conv", "class"])
def test_float32_is_close_on_ordinary_inputs(layer, competition):
    inputs = conv_inputs(grid=(5, 5), kernel=(3, 3)) if layer == "conv" else class_inputs(grid=(4, 4))
    routing = ROUTINGS[layer][0]
    options = {"iterations": 3, "competition": competition, "variance_floor": 1e-2, "impl": "reference"}
    exact = outputs_and_gradients(routing, inputs, **options)
    got = outputs_and_gradients(routing, inputs.to(torch.float32), **options)
    for name, want in exact.items():
        assert_close(name, got[name].double(), want, 1e-4 if name.startswith("gradient") else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer", ["conv", "class"])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_inactive_children_give_pose_zero_and_the_activation_of_beta_a(layer, dtype, iterations):
    inputs = zero_activations(conv_inputs() if layer == "conv" else class_inputs()).to(dtype)
    found = outputs_and_gradients(ROUTINGS[layer][0], inputs, iterations=iterations, final_lambda=2.0)
    assert (found["pose"] == 0).all()
    want = torch.sigmoid(2.0 * (1 - 0.95**iterations) * inputs.beta_a).expand_as(found["activation"])
    assert_close("activation", found["activation"], want, 1e-6 if dtype == torch.float32 else 1e-14)
    for name, tensor in found.items():
        assert tensor.isfinite().all(), name
    assert (found["gradient of pose"] == 0).all()
    assert (found["gradient of weight"] == 0).all()


def test_one_inactive_parent_beside_active_ones():
    """Columns 0 and 1 are inactive, so that the left parent has no data and the right one has all of it."""
    inputs = conv_inputs(batch=1, grid=(2, 4), kernel=(2, 2), parent_types=2)
    activation = inputs.activation.clone()
    activation[:, :, :2] = 0
    inputs = inputs._replace(activation=activation)
    output = conv_routing(*inputs, stride=2, iterations=3)
    assert (output.pose[:, :, 0] == 0).all()
    assert_close("activation", output.activation[0, 0, 0], torch.sigmoid((1 - 0.95**3) * inputs.beta_a), 1e-14)
    assert (output.pose[:, :, 1] != 0).all()
    assert_routing_is(conv_routing, conv_routing_trace, brute_force_conv, inputs, stride=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("layer", ["conv", "class"])
def test_equal_parents_share_a_child_that_is_far_from_them(layer, competition, dtype):
    """Next to log densities of 1e12 the logarithm of 2 is rounded away, and yet each of two types gets one half."""
    inputs = (
        conv_inputs(grid=(2, 4), kernel=(2, 2), parent_types=2) if layer == "conv" else class_inputs(parent_types=2)
    )
    activation = inputs.activation.clone()
    activation[:, 0, 0] = 0  # it votes, but adds no data, so that its distance does not enlarge the variance
    pose = inputs.pose.clone()
    pose[:, 0, 0] *= 1e5
    pose[:, 0, 1:] = pose[:, 1:] = pose[0, 1, 1, 0]
    equal = Inputs(
        pose,
        activation,
        inputs.weight.narrow(-3, 0, 1).expand_as(inputs.weight),
        inputs.beta_u[:1].expand(2),
        inputs.beta_a[:1].expand(2),
    ).to(dtype)
    for step in ROUTINGS[layer][1](*equal, iterations=3, competition=competition):
        assert torch.equal(step.assignment[..., 0], step.assignment[..., 1])
        far = step.assignment[:, 0, 0, 0, 0] if layer == "conv" else step.assignment[:, 0, 0]
        assert_close("assignment", far, torch.full_like(far, 0.5), 1e-6)
