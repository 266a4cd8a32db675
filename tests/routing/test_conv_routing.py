"""conv_routing and its trace against the brute force: outputs, gradients and every entry, in float64 to 1e-10."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emcaps import conv_routing, conv_routing_trace
from routing.brute_force import brute_force_conv
from routing.cases import Inputs, assert_routing_is, conv_inputs, outputs_and_gradients, with_gradients
from routing.compare import assert_close

SHAPES = {
    "overlap": ({"grid": (4, 4), "kernel": (3, 3)}, 1),
    "stride two": ({"grid": (5, 5), "kernel": (3, 3)}, 2),
    "stride of the kernel": ({"grid": (4, 4), "kernel": (2, 2)}, 2),
    "stride larger than the kernel": ({"grid": (5, 4), "kernel": (2, 1)}, 3),
    "rectangular kernel and stride": ({"grid": (3, 7), "kernel": (1, 3)}, (2, 1)),
    "stride pair the other way": ({"grid": (5, 3), "kernel": (3, 2)}, (1, 2)),
    "rows and columns left over": ({"grid": (6, 5), "kernel": (3, 2)}, (2, 2)),
    "one child type": ({"grid": (4, 3), "kernel": (2, 2), "child_types": 1}, 1),
    "one parent type": ({"grid": (4, 3), "kernel": (2, 2), "parent_types": 1}, 1),
    "one of everything": ({"batch": 1, "grid": (1, 1), "kernel": (1, 1), "child_types": 1, "parent_types": 1}, 1),
    "one child per parent": ({"grid": (3, 2), "kernel": (1, 1), "child_types": 1, "parent_types": 3}, 1),
    "kernel is the grid": ({"grid": (3, 4), "kernel": (3, 4)}, 1),
    "one row": ({"batch": 1, "grid": (1, 7), "kernel": (1, 3), "child_types": 2, "parent_types": 3}, 1),
    "many types": ({"batch": 1, "grid": (3, 3), "kernel": (2, 2), "child_types": 5, "parent_types": 7}, 1),
    "batch of three": ({"batch": 3, "grid": (3, 3), "kernel": (2, 2), "child_types": 1, "parent_types": 2}, 1),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape):
    sizes, stride = SHAPES[shape]
    assert_routing_is(conv_routing, conv_routing_trace, brute_force_conv, conv_inputs(**sizes), stride=stride)


PADDED = {
    "as many parents as children": ({"grid": (3, 4), "kernel": (3, 3)}, 1, 1),
    "rows alone": ({"grid": (2, 3), "kernel": (3, 2)}, 1, (2, 0)),
    "columns alone, stride two": ({"grid": (3, 5), "kernel": (2, 3)}, 2, (0, 2)),
    "the kernel is larger than the grid": ({"grid": (2, 1), "kernel": (4, 3)}, 1, (3, 1)),
    "one child in every window": ({"batch": 1, "grid": (1, 1), "kernel": (3, 3)}, 1, 2),
    "a row beyond the grid that no window reaches": ({"grid": (4, 2), "kernel": (2, 2)}, (5, 1), 1),
}


@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("shape", PADDED)
def test_padding(shape, competition):
    """Places of a window beyond the grid hold no child: the brute force has no such pairs."""
    sizes, stride, padding = PADDED[shape]
    options = {"stride": stride, "padding": padding, "competition": competition}
    assert_routing_is(conv_routing, conv_routing_trace, brute_force_conv, conv_inputs(**sizes), **options)


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("data_scaling", ["mean", "none"])
def test_options(iterations, competition, data_scaling):
    inputs = conv_inputs(batch=1, grid=(3, 4), kernel=(2, 3), child_types=2, parent_types=2, seed=iterations)
    options = {"iterations": iterations, "competition": competition, "data_scaling": data_scaling}
    assert_routing_is(conv_routing, conv_routing_trace, brute_force_conv, inputs, **options)


@pytest.mark.parametrize(("final_lambda", "variance_floor"), [(1e-3, 1e-4), (0.01, 1.0), (7.5, 1e-2), (1.0, 0.0)])
def test_final_lambda_and_variance_floor(final_lambda, variance_floor):
    inputs = conv_inputs(batch=1, grid=(3, 4), kernel=(3, 3), seed=3)
    options = {"final_lambda": final_lambda, "variance_floor": variance_floor}
    assert_routing_is(conv_routing, conv_routing_trace, brute_force_conv, inputs, **options)


@pytest.mark.parametrize("iterations", [1, 3])
def test_poses_as_vectors(iterations):
    inputs = conv_inputs(grid=(3, 2), kernel=(2, 1), child_types=2, parent_types=2)
    inputs = inputs._replace(weight=torch.randn(2, 1, 2, 2, 16, 16, dtype=torch.float64) / 4)
    assert_routing_is(conv_routing, conv_routing_trace, brute_force_conv, inputs, iterations=iterations)
    with pytest.raises(ValueError, match=r"impl='numba' cannot route poses as vectors: .* use impl='auto'"):
        conv_routing(*inputs, impl="numba")


@st.composite
def layers(draw):
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    grid = tuple(draw(st.integers(k, k + 2)) for k in kernel)
    stride = draw(st.one_of(st.integers(1, 4), st.tuples(st.integers(1, 4), st.integers(1, 4))))
    padding = tuple(draw(st.integers(0, k - 1)) for k in kernel)
    inputs = conv_inputs(
        batch=draw(st.integers(1, 2)),
        grid=grid,
        kernel=kernel,
        child_types=draw(st.integers(1, 2)),
        parent_types=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 2**31)),
    )
    options = {
        "stride": stride,
        "padding": padding,
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
    assert_routing_is(conv_routing, conv_routing_trace, brute_force_conv, inputs, **options)


def test_defaults_are_those_of_the_contract():
    inputs = conv_inputs()
    spelled_out = {
        "stride": 1,
        "padding": 0,
        "iterations": 3,
        "final_lambda": 1.0,
        "variance_floor": 1e-4,
        "data_scaling": "mean",
        "competition": "all",
    }
    for got, want in zip(conv_routing(*inputs), conv_routing(*inputs, **spelled_out, impl="auto"), strict=True):
        assert torch.equal(got, want)


def test_stride_pair_of_equals_is_the_stride():
    inputs = conv_inputs(grid=(5, 5), kernel=(2, 3))
    for got, want in zip(conv_routing(*inputs, stride=(2, 2)), conv_routing(*inputs, stride=2), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("stride", [2, 3, (1, 3)])
def test_children_that_no_parent_reads_are_ignored(stride):
    """Their values, even NaN, do not reach the outputs, and their gradients are exactly zero."""
    inputs = conv_inputs(grid=(6, 6), kernel=(2, 2) if stride != 2 else (1, 1))
    down, right = stride if isinstance(stride, tuple) else (stride, stride)
    kernel_height, kernel_width = inputs.weight.shape[:2]
    read = torch.zeros(6, 6, dtype=torch.bool)
    for v in range(0, 6 - kernel_height + 1, down):
        for u in range(0, 6 - kernel_width + 1, right):
            read[v : v + kernel_height, u : u + kernel_width] = True
    assert not read.all()

    plain = outputs_and_gradients(conv_routing, inputs, stride=stride, impl="reference")
    strange = Inputs(inputs.pose.clone(), inputs.activation.clone(), *inputs[2:])
    strange.pose[:, ~read] = torch.nan
    strange.activation[:, ~read] = torch.nan
    changed = outputs_and_gradients(conv_routing, strange, stride=stride, impl="reference")
    for name, want in plain.items():
        assert_close(name, changed[name], want, 1e-14)
    for name in ("gradient of pose", "gradient of activation"):
        assert (changed[name][:, ~read] == 0).all()
        per_child = changed[name].abs().flatten(3).sum(-1)
        assert (per_child[:, read] > 0).all()


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("competition", ["all", "types"])
def test_gradcheck(iterations, competition):
    inputs = conv_inputs(batch=1, grid=(2, 3), kernel=(1, 2), child_types=1, parent_types=2, seed=5)

    def outputs(*tensors):
        return conv_routing(*tensors, iterations=iterations, competition=competition, variance_floor=1e-2)

    assert torch.autograd.gradcheck(outputs, tuple(with_gradients(inputs)), fast_mode=True)


def test_gradgradcheck():
    inputs = conv_inputs(batch=1, grid=(1, 3), kernel=(1, 2), child_types=1, parent_types=2, seed=5)

    def outputs(*tensors):
        return conv_routing(*tensors, iterations=2, variance_floor=1e-1, impl="reference")

    assert torch.autograd.gradgradcheck(outputs, tuple(with_gradients(inputs)), fast_mode=True)
