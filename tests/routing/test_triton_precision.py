"""The GPU kernels in float32 and under autocast.

In float32 their error may be twice that of the float32 reference. Routing amplifies rounding errors by a factor that
depends on the numbers: of two runs that are equally good, one may be ten times closer to the exact result. So the
reference's error is that of its worst run, over inputs that differ in their last bits.
"""

import random

import pytest
import torch

from emcaps.bench.agreement import FLOOR, relative_error
from routing.cases import class_inputs, conv_inputs, outputs_and_gradients
from routing.fused import fused, on, on_gpu, reference, routing_of
from routing.test_extremes import nudged

# Errors of single images vary by more than a factor of two. 32 images cost the interpreter no more time than one.
SHAPES = {
    "conv": (conv_inputs(32, (3, 1), (2, 1), 3, 2), {"iterations": 2}),
    "types compete": (conv_inputs(32, (1, 1), (1, 1), 3, 3), {"iterations": 3, "competition": "types"}),
    "class": (class_inputs(32, (2, 1), 3, 2), {"iterations": 3}),
}
NETWORKS = {
    "small network 1": lambda: conv_inputs(64, (16, 16), (3, 3), 8, 16),
    "small network 2": lambda: conv_inputs(64, (7, 7), (3, 3), 16, 16),
    "small network, class": lambda: class_inputs(64, (5, 5), 16, 5),
    "32 types 1": lambda: conv_inputs(17, (16, 16), (3, 3), 32, 32),
    "32 types 2": lambda: conv_inputs(33, (7, 7), (3, 3), 32, 32),
    "32 types, class": lambda: class_inputs(64, (5, 5), 32, 5),
}
STRIDES = {"small network 1": 2, "32 types 1": 2}


def assert_as_good_as_the_reference(inputs, device, draws, routed=fused, **options):
    """Compare the errors of all outputs and gradients, |got - want| / |want|, where `want` is the float64 reference."""
    exact = reference(inputs, device, **options)
    limits = dict.fromkeys(exact, FLOOR)
    for problem in (inputs, *(nudged(inputs, seed) for seed in range(draws))):
        for name, got in reference(problem.to(torch.float32), device, **options).items():
            limits[name] = max(limits[name], 2 * relative_error(got, exact[name]) + FLOOR)
    got = routed(inputs.to(torch.float32), device, **options)
    for name, want in exact.items():
        assert got[name].dtype == torch.float32
        assert limits[name] < 0.1, f"{name}: the reference itself is off by too much to be a measure"
        error = relative_error(got[name], want)
        assert error <= limits[name], f"{name}: error {error:.3g} is above {limits[name]:.3g}"


@pytest.mark.parametrize("case", SHAPES)
def test_float32_is_as_good_as_the_reference(case, device):
    inputs, options = SHAPES[case]
    assert_as_good_as_the_reference(inputs, device, draws=8, **options)


def random_problem(seed):
    """A layer of random shape and settings. Any six seeds in a row have both layers with 2, 3 and 5 iterations."""
    draw = random.Random(seed)
    options = {
        "iterations": (2, 3, 5)[seed // 2 % 3],
        "competition": draw.choice(["all", "types"]),
        "data_scaling": draw.choice(["mean", "none"]),
        "final_lambda": draw.choice([1.0, 2.0]),
        "variance_floor": draw.choice([1e-4, 1e-2]),
    }
    if seed % 2:
        return class_inputs(draw.choice([1, 3]), (1, 2), draw.choice([1, 2]), 2, seed), options
    grid, kernel = draw.choice([((1, 1), (1, 1)), ((1, 2), (1, 1)), ((1, 2), (1, 2)), ((3, 1), (2, 1))])
    return conv_inputs(draw.choice([1, 3, 32]), grid, kernel, draw.choice([2, 3]), 2, seed), options


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if 30 <= seed < 34 else on_gpu) for seed in range(12, 60)]
)
def test_float32_is_as_good_as_the_reference_on_random_problems(seed, device):
    inputs, options = random_problem(seed)
    assert_as_good_as_the_reference(inputs, device, draws=8, **options)


def test_float32_is_as_good_as_the_reference_where_children_cancel(device):
    """Two children pull the logits of their parents up and down: the gradient of beta_a is a fiftieth of its terms.

    So it has their rounding error, in the kernels and in the reference. One run of the reference may well be four times
    closer than the kernels by chance; "Gradients of betas" in the kernels' README has more.
    """
    inputs = class_inputs(batch=1, grid=(1, 2), child_types=1, parent_types=3, seed=233)
    assert_as_good_as_the_reference(inputs, device, draws=8, iterations=3)


def test_float32_is_as_good_as_the_reference_where_a_parent_has_one_child(device):
    """Its vote is its mean, so terms of the gradient that a small variance makes large must vanish."""
    inputs = conv_inputs(batch=32, grid=(1, 1), kernel=(1, 1), child_types=1, parent_types=2)
    inputs = inputs._replace(activation=inputs.activation.round().clamp(min=0.5))
    assert_as_good_as_the_reference(inputs, device, draws=8, iterations=2)


@on_gpu
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("layer", NETWORKS)
def test_float32_is_as_good_as_the_reference_on_real_layers(layer, iterations, device):
    options = {"stride": STRIDES[layer]} if layer in STRIDES else {}
    assert_as_good_as_the_reference(NETWORKS[layer](), device, draws=4, iterations=iterations, **options)
    torch.cuda.empty_cache()


CONV = conv_inputs(batch=2, grid=(1, 3), kernel=(1, 2), child_types=2, parent_types=2).to(torch.float32)
CLASS = class_inputs(batch=2, grid=(1, 2), child_types=2, parent_types=2).to(torch.float32)
LAYERS = pytest.mark.parametrize("inputs", [pytest.param(CONV, id="conv"), pytest.param(CLASS, id="class")])

POSE_TYPES = pytest.mark.parametrize("pose_type", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def under_autocast(inputs, device, dtype=torch.bfloat16, **options):
    """Outputs and gradients. As in training, the backward pass runs outside autocast."""

    def routing(*tensors, **settings):
        with torch.autocast(device, dtype=dtype):
            return routing_of(inputs)(*tensors, **settings)

    return outputs_and_gradients(on(device, routing), inputs, **options)


@POSE_TYPES
@LAYERS
def test_autocast_leaves_the_reference_in_float32(inputs, pose_type, device):
    """Poses may come in half precision from the layer before; only their gradient is then rounded to it."""
    inputs = inputs._replace(pose=inputs.pose.to(pose_type))
    want = reference(inputs.to(torch.float32), device, iterations=2)
    want["gradient of pose"] = want["gradient of pose"].to(pose_type)
    got = under_autocast(inputs, device, iterations=2, impl="reference")
    for name in want:
        assert got[name].dtype == want[name].dtype
        assert torch.equal(got[name], want[name]), name


@pytest.mark.parametrize(
    ("inputs", "pose_type"),
    [pytest.param(CONV, torch.float32, id="conv-float32"), pytest.param(CLASS, torch.bfloat16, id="class-bfloat16")],
)
def test_autocast_rounds_poses_and_matrices_alone(inputs, pose_type, device):
    """The kernels agree with the float32 reference on poses, matrices and their gradients rounded to bfloat16."""
    inputs = inputs._replace(pose=inputs.pose.to(pose_type))
    got = under_autocast(inputs, device, iterations=2, impl="triton")
    exact = reference(inputs.to(torch.float32), device, iterations=2)
    rounded = inputs._replace(pose=inputs.pose.bfloat16(), weight=inputs.weight.bfloat16())
    want = reference(rounded.to(torch.float32), device, iterations=2)
    for name in want:
        assert got[name].dtype == (pose_type if name == "gradient of pose" else torch.float32)
        in_bfloat16 = name in ("gradient of pose", "gradient of weight")
        assert relative_error(got[name], want[name]) < (2**-8 if in_bfloat16 else 1e-5), name
        assert relative_error(got[name], exact[name]) < 2e-2, name


@pytest.mark.parametrize(
    ("autocast_type", "input_type"),
    [
        pytest.param(torch.float16, torch.float32, id="float16"),
        pytest.param(torch.bfloat16, torch.float64, id="float64"),
    ],
)
def test_autocast_leaves_the_kernels_alone(autocast_type, input_type, device):
    """float16 has too little range for poses, and autocast never changes float64."""
    inputs = CLASS.to(input_type)
    got = under_autocast(inputs, device, autocast_type, iterations=1, impl="triton")
    want = fused(inputs, device, iterations=1)
    for name in want:
        assert torch.equal(got[name], want[name]), name
