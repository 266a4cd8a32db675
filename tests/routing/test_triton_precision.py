"""The fused kernels in float32 and under autocast.

In float32 they may be off by twice what the float32 reference is off by. Routing amplifies rounding, by a factor that
depends on the numbers: one run may come out ten times nearer to the truth than another that is just as good. So the
reference's error is that of its worst run, over inputs that differ in their last bit.
"""

import functools

import pytest
import torch

from emcaps import class_routing, conv_routing
from emcaps.bench.agreement import FLOOR, relative_error
from routing.cases import Inputs, class_inputs, conv_inputs, outputs_and_gradients, with_gradients
from routing.compare import assert_close
from routing.fused import fused, on, on_gpu, reference
from routing.test_extremes import nudged

SHAPES = {
    "conv": (conv_inputs(3, (3, 2), (2, 1), 3, 2), {"iterations": 2}),
    "types compete": (conv_inputs(2, (1, 2), (1, 1), 3, 3), {"iterations": 3, "competition": "types"}),
    "class": (class_inputs(3, (2, 1), 3, 2), {"iterations": 3}),
}
LAYERS = {
    "small network 1": lambda: conv_inputs(64, (16, 16), (3, 3), 8, 16),
    "small network 2": lambda: conv_inputs(64, (7, 7), (3, 3), 16, 16),
    "small network, class": lambda: class_inputs(64, (5, 5), 16, 5),
    "32 types 1": lambda: conv_inputs(16, (16, 16), (3, 3), 32, 32),
    "32 types 2": lambda: conv_inputs(33, (7, 7), (3, 3), 32, 32),
    "32 types, class": lambda: class_inputs(64, (5, 5), 32, 5),
}
STRIDES = {"small network 1": 2, "32 types 1": 2}


def assert_as_good_as_the_reference(inputs, device, draws, **options):
    """Errors of all outputs and gradients, as |got - want| / |want|, against the float64 reference."""
    limits = {}
    for seed in range(draws):
        problem = nudged(inputs, seed)
        exact = reference(problem, device, **options)
        rounded = reference(problem.to(torch.float32), device, **options)
        for name, want in exact.items():
            limits[name] = max(limits.get(name, FLOOR), 2 * relative_error(rounded[name], want) + FLOOR)
    exact = reference(inputs, device, **options)
    got = fused(inputs.to(torch.float32), device, **options)
    for name, want in exact.items():
        assert got[name].dtype == torch.float32
        error = relative_error(got[name], want)
        assert error <= limits[name], f"{name}: error {error:.3g} is above {limits[name]:.3g}"


@pytest.mark.parametrize("case", SHAPES)
def test_float32_is_as_good_as_the_reference(case, device):
    inputs, options = SHAPES[case]
    assert_as_good_as_the_reference(inputs, device, draws=8, **options)


@on_gpu
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_float32_is_as_good_as_the_reference_on_real_layers(layer, iterations, device):
    options = {"stride": STRIDES[layer]} if layer in STRIDES else {}
    assert_as_good_as_the_reference(LAYERS[layer](), device, draws=3, iterations=iterations, **options)
    torch.cuda.empty_cache()


CONV = conv_inputs(batch=2, grid=(1, 3), kernel=(1, 2), child_types=2, parent_types=2).to(torch.float32)
CLASS = class_inputs(batch=2, grid=(1, 2), child_types=2, parent_types=2).to(torch.float32)
ROUTINGS = pytest.mark.parametrize(
    ("routing", "inputs"), [pytest.param(conv_routing, CONV, id="conv"), pytest.param(class_routing, CLASS, id="class")]
)
