"""set_routing and its trace against the brute force: outputs, gradients and every entry, in float64 to 1e-10."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import emcaps
from emcaps import class_routing, set_routing, set_routing_trace
from routing.brute_force import brute_force_set
from routing.cases import Inputs, assert_routing_is, class_inputs, outputs_and_gradients
from routing.compare import assert_close
from routing.fused import on

SHAPES = {
    "several types": {"size": 4},
    "one type": {"size": 5, "child_types": 1},
    "one parent": {"size": 3, "parent_types": 1},
    "one member": {"size": 1},
    "one of everything": {"batch": 1, "size": 1, "child_types": 1, "parent_types": 1},
    "batch of four": {"batch": 4, "size": 3, "child_types": 2, "parent_types": 2},
}


def set_inputs(size=4, **sizes) -> Inputs:
    inputs = class_inputs(grid=(size, 1), **sizes)
    return inputs._replace(pose=inputs.pose.squeeze(2), activation=inputs.activation.squeeze(2))


def random_mask(shape, seed=0):
    """In which something exists of every set."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask.view(len(mask), -1)[:, 0] = True
    return mask


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("data_scaling", ["mean", "none"])
@pytest.mark.parametrize("masked", ["nothing", "members", "types"])
def test_shapes(shape, data_scaling, masked):
    inputs = set_inputs(**SHAPES[shape])
    dims = {"nothing": 0, "members": 2, "types": 3}[masked]
    mask = random_mask(inputs.activation.shape[:dims]) if dims else None
    options = {"mask": mask, "data_scaling": data_scaling}
    assert_routing_is(set_routing, set_routing_trace, brute_force_set, inputs, **options)


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("competition", ["all", "types"])
def test_options(iterations, competition):
    inputs = set_inputs(batch=2, size=4, child_types=2, parent_types=3, seed=iterations)
    options = {"iterations": iterations, "competition": competition, "final_lambda": 0.3, "variance_floor": 1e-2}
    mask = random_mask((2, 4), seed=iterations)
    assert_routing_is(set_routing, set_routing_trace, brute_force_set, inputs, mask=mask, **options)


@pytest.mark.parametrize(
    ("impl", "masked", "data_scaling"),
    [
        ("numba", "nothing", "mean"),
        ("numba", "members", "none"),
        ("numba", "types", "none"),
        ("triton", "nothing", "mean"),
        ("triton", "members", "none"),
    ],
)
def test_the_kernels_route_sets(impl, masked, data_scaling, device):
    inputs = set_inputs(batch=3, size=4, child_types=2, parent_types=3, seed=7)
    place = "cpu" if impl == "numba" else device
    dims = {"nothing": 0, "members": 2, "types": 3}[masked]
    mask = random_mask((3, 4, 2)[:dims]) if dims else None
    options = {"iterations": 2, "data_scaling": data_scaling}
    kernels = functools.partial(set_routing, impl=impl, mask=None if mask is None else mask.to(place))
    got = outputs_and_gradients(on(place, kernels), inputs.to(torch.float32), **options)
    wanted = outputs_and_gradients(functools.partial(set_routing, impl="reference", mask=mask), inputs, **options)
    for name, want in wanted.items():
        assert_close(name, got[name].double(), want, 1e-4)


@pytest.mark.parametrize(("impl", "data_scaling"), [("auto", "mean"), ("numba", "none")])
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000))
def test_what_the_mask_leaves_out_makes_no_difference(impl, data_scaling, seed):
    """A set gives what it gives alone, in outputs and gradients, whatever fills it up."""
    inputs = set_inputs(batch=1, size=5, child_types=2, seed=seed)
    mask = random_mask((1, 5), seed)
    members = mask[0].nonzero()[:, 0]
    alone = inputs._replace(pose=inputs.pose[:, members], activation=inputs.activation[:, members])
    pose, activation = inputs.pose.clone(), inputs.activation.clone()
    pose[:, ~mask[0]] = torch.nan
    activation[:, ~mask[0]] = torch.nan
    routing = functools.partial(set_routing, impl=impl, data_scaling=data_scaling, iterations=3)
    got = outputs_and_gradients(routing, inputs._replace(pose=pose, activation=activation), mask=mask)
    wanted = outputs_and_gradients(routing, alone)
    for name, want in wanted.items():
        value = got[name]
        if name in ("gradient of pose", "gradient of activation"):
            assert not value[:, ~mask[0]].any()
            value = value[:, members]
        assert_close(name, value, want, 1e-8, least_scale=1e-2)  # with a single child, gradients cancel


def test_order_makes_no_difference():
    inputs = set_inputs(batch=2, size=5)
    order = torch.tensor([3, 0, 4, 1, 2])
    mask = random_mask((2, 5))
    other = inputs._replace(pose=inputs.pose[:, order], activation=inputs.activation[:, order])
    for got, want in zip(set_routing(*other, mask=mask[:, order]), set_routing(*inputs, mask=mask), strict=True):
        assert_close("set", got, want, 1e-12)


def test_a_class_layer_without_coordinates_is_a_set_layer():
    inputs = class_inputs(grid=(2, 3))
    wanted = class_routing(*inputs, coordinate_scale=0.0, impl="reference")
    as_set = inputs._replace(pose=inputs.pose.flatten(1, 2), activation=inputs.activation.flatten(1, 2))
    for got, want in zip(set_routing(*as_set, impl="reference"), wanted, strict=True):
        assert_close("set", got, want, 1e-12)


def test_the_kernels_refuse_a_mean_data_of_each_set():
    """They would need one number for each set of a batch. "auto" takes the reference then."""
    inputs, mask = set_inputs(batch=2, size=3), random_mask((2, 3))
    with pytest.raises(ValueError, match=r"impl='numba' cannot count the mean data of each set .* impl='auto'"):
        set_routing(*inputs, mask=mask, impl="numba")
    wanted = set_routing(*inputs, mask=mask, impl="reference")
    assert torch.equal(set_routing(*inputs, mask=mask).pose, wanted.pose)


@pytest.mark.parametrize(("impl", "data_scaling"), [("reference", "mean"), ("numba", "none")])
def test_an_empty_set_has_parents_without_data(impl, data_scaling):
    inputs = set_inputs(batch=2, size=3)
    mask = torch.tensor([[False] * 3, [True] * 3])
    routing = functools.partial(set_routing, impl=impl, data_scaling=data_scaling)
    got = outputs_and_gradients(routing, inputs, mask=mask, final_lambda=2.0)
    assert not got["pose"][0].any()
    final_lambda = 2.0 * (1 - 0.95**3)
    assert_close("activation", got["activation"][0], (final_lambda * inputs.beta_a).sigmoid(), 1e-12)
    assert all(value.isfinite().all() for value in got.values())
    assert not got["gradient of pose"][0].any()


def test_no_sets_at_all():
    inputs = set_inputs(batch=2, size=3)
    none = inputs._replace(pose=inputs.pose[:0], activation=inputs.activation[:0])
    assert set_routing(*none, mask=torch.ones(0, 3, dtype=torch.bool)).activation.shape == (0, 4)
    assert set_routing(*none, impl="numba").activation.shape == (0, 4)


@pytest.mark.parametrize("mask", [None, torch.tensor([[True, True, False], [True, False, False]])])
def test_sets_go_through_compilers_and_transforms(mask):
    """And through autocast, which leaves half precision behind."""
    inputs = set_inputs(batch=2, size=3).to(torch.float32)
    wanted = set_routing(*inputs, mask=mask)
    compiled = torch.compile(set_routing, backend="eager", fullgraph=True)(*inputs, mask=mask)

    def one_set(pose, activation, members):
        parents = inputs[2:]
        return set_routing(pose[None], activation[None], *parents, mask=None if members is None else members[None])

    each = torch.func.vmap(one_set, in_dims=(0, 0, None if mask is None else 0))(*inputs[:2], mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        halves = set_routing(inputs.pose.bfloat16(), *inputs[1:], mask=mask)
    assert_close("compiled", compiled.pose, wanted.pose, 1e-5)
    assert_close("vmap", each.pose[:, 0], wanted.pose, 1e-5)
    assert_close("vmap", each.activation[:, 0], wanted.activation, 1e-5)
    assert halves.pose.dtype == torch.float32
    assert_close("autocast", halves.activation, wanted.activation, 1e-1)


def test_debug_checks_look_at_what_exists():
    inputs = set_inputs(batch=1, size=2)
    inputs.activation[0, 1] = 7.0
    with emcaps.debug.checks():
        set_routing(*inputs, mask=torch.tensor([[True, False]]))
        with pytest.raises(ValueError, match=r"activation\[0, 1, 0\] is 7"):
            set_routing(*inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"pose": torch.zeros(2, 3, 4, 4)},
            r"not \(2, 3, 4, 4\): members of one type are pose\[:, :, None\] .*; as one member, .* pose\[:, None\]",
        ),
        ({"pose": torch.zeros(2, 3, 1, 3, 4, 4)}, r"positions of a grid are members by pose\.flatten\(1, 2\)"),
        ({"pose": torch.zeros(2, 0, 3, 4, 4)}, r"with N and I at least 1, not \(2, 0, 3, 4, 4\)$"),
        ({"activation": torch.zeros(2, 3, 2)}, r"activation must be \(B, N, I\) = \(2, 3, 3\) .* not \(2, 3, 2\)"),
        ({"mask": torch.ones(2, 3)}, "mask must be a tensor of bools, not torch.float32"),
        ({"mask": [True]}, "mask must be a tensor of bools, not list"),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, r"\(B, N\) = \(2, 3\) or \(B, N, I\) = \(2, 3, 3\) .* \(2, 4\)"),
        ({"mask": torch.ones(2, 3, dtype=torch.bool, device="meta")}, "on the device of the pose, cpu, not on meta"),
        ({"weight": torch.zeros(2, 4, 4, 4, dtype=torch.float64)}, "a matrix for each of the 3 child types"),
        ({"iterations": 0}, "iterations must be"),
    ],
)
@pytest.mark.parametrize("routing", [set_routing, set_routing_trace])
def test_errors(routing, change, message):
    inputs = {**set_inputs(batch=2, size=3)._asdict(), **change}
    with pytest.raises(ValueError, match=message):
        routing(**inputs)
