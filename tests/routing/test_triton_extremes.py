"""The GPU kernels on extreme inputs: they are finite and close where the reference is.

How close a precision can come depends on the problem: a logit of 1e5 leaves rounding errors of a hundredth in the
exponent. So errors are compared with the rounding errors of the reference.
Each image of a batch has another extreme of poses and activations, and is compared by itself. The batch then goes
through layers with extremes of matrices and betas, which are called worlds.
"""

import pytest
import torch

from emcaps.bench.agreement import relative_error
from routing import test_extremes as extremes
from routing.cases import Inputs, class_inputs, conv_inputs
from routing.compare import assert_close
from routing.fused import fused, layer_for, on_gpu, reference


def ordinary(inputs):
    return inputs


IMAGES = [
    ordinary,
    extremes.zero_activations,
    extremes.activations_zero_and_one,
    extremes.full_activations,
    extremes.tiny_activations,
    extremes.identical_votes,  # where the matrices are the same too
    extremes.large_votes,
    extremes.large_identical_votes,
    extremes.small_votes,
    extremes.one_far_child,
]
WORLDS = [
    ordinary,
    extremes.identical_votes,
    extremes.zero_votes,
    extremes.large_beta_a,
    extremes.large_negative_beta_a,
    extremes.large_beta_u,
    extremes.large_negative_beta_u,
    extremes.large_betas_of_both_signs,
]
DRAWS = 2
LAYERS = {
    "conv": lambda seed: conv_inputs(batch=DRAWS, grid=(1, 3), kernel=(1, 2), child_types=2, parent_types=2, seed=seed),
    "class": lambda seed: class_inputs(batch=DRAWS, grid=(1, 2), child_types=2, parent_types=2, seed=seed),
}
LARGE = (extremes.large_votes.__name__, extremes.large_identical_votes.__name__)
SHARED = ("gradient of weight", "gradient of beta_u", "gradient of beta_a")
PER_IMAGE = ("pose", "activation", "gradient of pose", "gradient of activation")


def batch_of_extremes(inputs, world):
    images = [image(inputs) for image in IMAGES]
    return world(inputs)._replace(
        pose=torch.cat([image.pose for image in images]), activation=torch.cat([image.activation for image in images])
    )


def parts(results):
    """By name: outputs and gradients of each extreme's images, and the gradients that all images share."""
    named = {name: value for name, value in results.items() if name not in PER_IMAGE}
    for name in PER_IMAGE:
        for image, value in zip(IMAGES, results[name].split(DRAWS), strict=True):
            named[f"{name} of {image.__name__}"] = value
    return named


def rounded(inputs):
    """The inputs, rounded to values that float32 represents exactly."""
    return inputs.to(torch.float32).to(torch.float64)


def error(got, want):
    """The relative error of what float32 can tell from zero."""
    tiny = torch.finfo(torch.float32).tiny
    return relative_error(got, want) if want.norm() > tiny else float((got - want).norm())


def cases(tiny):
    """Every layer and world on a GPU, and those of `tiny` in the interpreter too."""
    return pytest.mark.parametrize(
        ("layer", "world"),
        [
            pytest.param(layer, world, id=f"{layer}-{world.__name__}", marks=() if (layer, world) in tiny else on_gpu)
            for layer in LAYERS
            for world in WORLDS
        ],
    )


@cases(
    tiny={
        ("conv", ordinary),
        ("conv", extremes.identical_votes),
        ("class", extremes.large_beta_u),
        ("class", extremes.large_betas_of_both_signs),
    }
)
def test_float32_is_finite_and_close(layer, world, device):
    compared = compare_in_float32(layer, world, device, iterations=2)
    assert {f"pose of {image.__name__}" for image in IMAGES} <= compared


@on_gpu
@cases(tiny=())
def test_five_iterations_in_float32(layer, world, device):
    """Rounding alone may assign a child to another parent, in the reference too. All else is close."""
    assert compare_in_float32(layer, world, device, iterations=5)


def compare_in_float32(layer, world, device, iterations):
    """Errors have at most the order of magnitude of the float32 reference's worst error on ten random problems.

    Everything must be finite. Returns the names of what was compared.
    """
    limits = {}
    for seed in range(10):
        problem = rounded(batch_of_extremes(LAYERS[layer](seed), world))
        exact = parts(reference(problem, device, iterations=iterations))
        for name, got in parts(reference(problem.to(torch.float32), device, iterations=iterations)).items():
            limits[name] = max(limits.get(name, 0.0), 1e-5 + 4 * error(got, exact[name]))
    for name in limits:
        if name in SHARED or (name.startswith("gradient") and name.endswith(LARGE)):
            limits[name] = max(limits[name], 2e-3 if iterations == 2 else 0.05)  # "Known limit" in the kernels' README

    problem = rounded(batch_of_extremes(LAYERS[layer](0), world))
    exact = parts(reference(problem, device, iterations=iterations))
    compared = set()
    for name, got in parts(fused(problem.to(torch.float32), device, iterations=iterations)).items():
        assert exact[name].isfinite().all(), name
        assert got.isfinite().all(), name
        if limits[name] > 0.1:
            continue  # rounding moves the reference itself by as much, so only being finite can be asked for
        found = error(got, exact[name])
        assert found <= limits[name], f"{name}: {found:.3g} is above {limits[name]:.3g}"
        compared.add(name)
    return compared


@cases(tiny={("class", extremes.large_betas_of_both_signs)})
def test_float64_is_the_reference(layer, world, device):
    """To 1e-10, or 1e-9 in five iterations, plus what changing the last bits of the inputs does to the reference."""
    iterations, tolerance = (5, 1e-9) if device == "cuda" else (2, 1e-10)
    compare_in_float64(layer, world, device, iterations, tolerance)


def compare_in_float64(layer, world, device, iterations, tolerance, routed=fused):
    problem = batch_of_extremes(LAYERS[layer](0), world)
    want = parts(reference(problem, device, iterations=iterations))
    limits = dict.fromkeys(want, tolerance)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        eps = torch.finfo(torch.float64).eps
        moved = (x * (1 + eps * torch.randn(x.shape, generator=generator, dtype=x.dtype)) for x in problem)
        for name, near in parts(reference(Inputs(*moved), device, iterations=iterations)).items():
            limits[name] = max(limits[name], tolerance + 4 * error(near, want[name]))
    for name, got in parts(routed(problem, device, iterations=iterations)).items():
        assert want[name].isfinite().all(), name
        found = error(got, want[name])
        assert found <= limits[name], f"{name}: {found:.3g} is above {limits[name]:.3g}"


def test_without_a_floor_lanes_without_an_image_stay_finite(device):
    """Three images are in four lanes. The fourth lane has no data, and without a floor it would have no finite cost."""
    inputs = conv_inputs(batch=3, grid=(1, 2), kernel=(1, 2), child_types=3, parent_types=1)
    assert layer_for(inputs).lanes == 4
    want = reference(inputs, device, iterations=2, variance_floor=0.0)
    got = fused(inputs, device, iterations=2, variance_floor=0.0)
    for name in want:
        assert_close(name, got[name], want[name], 1e-10)


def test_without_a_floor_nan_stays_where_the_reference_has_it(device):
    """The second image has no active child: its own results are NaN, and so are the sums over all images."""
    inputs = conv_inputs(batch=3, grid=(1, 2), kernel=(1, 2), child_types=3, parent_types=1)
    activation = inputs.activation.clone()
    activation[1] = 0
    inputs = inputs._replace(activation=activation)
    want = reference(inputs, device, iterations=2, variance_floor=0.0)
    got = fused(inputs, device, iterations=2, variance_floor=0.0)
    assert want["activation"][1].isnan().all()
    for name in PER_IMAGE:
        for image in (0, 2):
            assert_close(f"{name} of image {image}", got[name][image], want[name][image], 1e-10)
    for name in want:
        assert not (got[name].isnan() & want[name].isfinite()).any(), name


def test_float64_reaches_beyond_float32(device):
    """The votes of an inactive child are so far from all parents that its log joints are below -3.4e38."""
    inputs = class_inputs(batch=1, grid=(1, 2), child_types=2, parent_types=2)
    pose, activation = inputs.pose.clone(), inputs.activation.clone()
    pose[0, 0, 0, 0] *= 1e19
    activation[0, 0, 0, 0] = 0
    inputs = inputs._replace(pose=pose, activation=activation)
    want = reference(inputs, device, iterations=2)
    got = fused(inputs, device, iterations=2)
    for name in want:
        assert_close(name, got[name], want[name], 1e-10)


@pytest.mark.parametrize("gain", [-1750.0, -1800.0, -1900.0, -2050.0])
def test_a_parent_that_loses_almost_every_child_stays_finite(gain, device):
    """Its data is so small that 1 / data is infinite in float32."""
    inputs = class_inputs(batch=2, grid=(1, 1), child_types=2, parent_types=2).to(torch.float32)
    inputs = inputs._replace(beta_a=torch.tensor([0.0, gain]), beta_u=torch.zeros(2))
    want = reference(inputs, device, iterations=2)
    got = fused(inputs, device, iterations=2)
    for name in ("pose", "activation"):
        assert got[name].isfinite().all(), name
        assert_close(name, got[name], want[name], 1e-4)
