"""Routing on graphs and on grids of any number of dimensions: against the brute force, and against conv_routing."""

import itertools
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import emcaps
from emcaps import conv_routing, conv_routing_trace, graph_routing, graph_routing_trace, grid_routing, window_edges
from routing.brute_force import Step, brute_force_conv, brute_force_graph
from routing.cases import conv_inputs, outputs_and_gradients
from routing.compare import assert_close


class GraphInputs(NamedTuple):
    """What gradients flow to."""

    votes: torch.Tensor
    activation: torch.Tensor
    beta_u: torch.Tensor
    beta_a: torch.Tensor


def random_graph(children, positions, seed):
    """Some of all pairs, at least one for each position, in no order."""
    generator = torch.Generator().manual_seed(seed)
    joined = torch.rand(children, positions, generator=generator) < 0.5
    joined[torch.randint(children, (positions,), generator=generator), torch.arange(positions)] = True
    pairs = joined.nonzero()
    return pairs[torch.randperm(len(pairs), generator=generator)].T


def graph_inputs(edges, children, parent_types, pose=(4, 4), batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    activation = torch.rand((batch, children), generator=generator, dtype=torch.float64)
    return GraphInputs(
        normal(batch, edges, parent_types, *pose), activation, normal(parent_types), normal(parent_types)
    )


def gradients(output, inputs):
    generator = torch.Generator().manual_seed(99)
    towards = [torch.randn(out.shape, generator=generator, dtype=out.dtype) for out in output]
    return torch.autograd.grad(tuple(output), inputs, towards)


def assert_graph_is_brute_force(inputs, child, position, **options):
    inputs = GraphInputs(*(tensor.requires_grad_() for tensor in inputs))
    steps = brute_force_graph(*inputs, child.tolist(), position.tolist(), **options)
    output = graph_routing(*inputs, child, position, **options)
    wanted = (steps[-1].mean, steps[-1].activation)
    for name, got, want in zip(output._fields, output, wanted, strict=True):
        assert_close(name, got, want, 1e-10, least_scale=1e-30)
    both = gradients(output, inputs), gradients(wanted, inputs)
    largest = max(float(gradient.abs().max()) for gradient in both[1])
    for name, got, want in zip(inputs._fields, *both, strict=True):
        assert_close(f"gradient of {name}", got, want, 1e-10, least_scale=1e-4 * largest)
    trace = graph_routing_trace(*inputs, child, position, **options)
    assert len(trace) == len(steps)
    for entry, step in zip(trace, steps, strict=True):
        for name in Step._fields:
            assert_close(name, getattr(entry, name), getattr(step, name), 1e-10, least_scale=1e-30)


@settings(deadline=None, max_examples=15)
@given(
    children=st.integers(1, 5),
    positions=st.integers(1, 4),
    parent_types=st.integers(1, 3),
    pose=st.sampled_from([(1,), (3,), (4, 4), (2, 3), (1, 2, 2)]),
    seed=st.integers(0, 100),
)
def test_any_graph(children, positions, parent_types, pose, seed):
    child, position = random_graph(children, positions, seed)
    inputs = graph_inputs(len(child), children, parent_types, pose, seed=seed)
    assert_graph_is_brute_force(inputs, child, position, positions=positions, iterations=3)


@pytest.mark.parametrize("iterations", [1, 2, 4])
@pytest.mark.parametrize("data_scaling", ["mean", "none"])
def test_options(iterations, data_scaling):
    child, position = random_graph(4, 3, seed=iterations)
    options = {"iterations": iterations, "data_scaling": data_scaling, "final_lambda": 0.4, "variance_floor": 1e-2}
    assert_graph_is_brute_force(graph_inputs(len(child), 4, 2), child, position, positions=3, **options)


def test_positions_and_children_without_edges():
    """Such parents have no data, and such children no influence but on the mean data."""
    inputs = graph_inputs(edges=2, children=3, parent_types=2)
    child, position = torch.tensor([0, 2]), torch.tensor([1, 1])
    output = graph_routing(*inputs, child, position, positions=2, final_lambda=2.0)
    assert not output.pose[:, 0].any()
    final_lambda = 2.0 * (1 - 0.95**3)
    without_data = (final_lambda * inputs.beta_a).sigmoid().expand(2, -1)
    assert_close("activation", output.activation[:, 0], without_data, 1e-12)
    inputs.activation[:, 1] = 0.5
    again = graph_routing(*inputs, child, position, positions=2, final_lambda=2.0)
    assert all(torch.equal(one, other) for one, other in zip(output, again, strict=True))


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"grid": (5, 4), "kernel": (3, 2)}, {}),
        ({"grid": (5, 6), "kernel": (3, 3)}, {"stride": 2}),
        ({"grid": (3, 4), "kernel": (3, 3)}, {"padding": 1}),
        ({"grid": (2, 5), "kernel": (2, 3)}, {"stride": (1, 2), "padding": (0, 2), "data_scaling": "none"}),
    ],
)
def test_a_grid_of_two_dimensions_is_a_convolutional_layer(sizes, options):
    inputs = conv_inputs(**sizes)
    wanted = outputs_and_gradients(conv_routing, inputs, impl="reference", **options)
    for name, got in outputs_and_gradients(grid_routing, inputs, **options).items():
        assert_close(name, got, wanted[name], 1e-9)


def test_the_trace_of_windows_is_that_of_a_convolutional_layer():
    inputs = conv_inputs(grid=(5, 4), kernel=(3, 2))
    edges = window_edges((5, 4), (3, 2), types=2)
    votes = inputs.pose.flatten(1, 3)[:, edges.child, None] @ inputs.weight.flatten(0, 2)[edges.matrix]
    betas = inputs.beta_u, inputs.beta_a
    positions = edges.parents[0] * edges.parents[1]
    of_graph = graph_routing_trace(votes, inputs.activation.flatten(1), *betas, *edges[:2], positions=positions)
    for got, want in zip(of_graph, conv_routing_trace(*inputs), strict=True):
        for name in Step._fields:
            wanted = getattr(want, name)
            assert_close(name, getattr(got, name).reshape(wanted.shape), wanted, 1e-10)


def edges_by_loops(grid, kernel, stride, padding, dilation):
    """(child, position, place in the kernel) of all windows, by coordinates."""
    dims = range(len(grid))
    spans = [range(-(-(grid[d] + 2 * padding[d] - (kernel[d] - 1) * dilation[d]) // stride[d])) for d in dims]
    found = []
    for position in itertools.product(*spans):
        for place in itertools.product(*map(range, kernel)):
            child = tuple(position[d] * stride[d] - padding[d] + place[d] * dilation[d] for d in dims)
            if all(0 <= child[d] < grid[d] for d in dims):
                found.append((child, position, place))
    return found


@settings(deadline=None, max_examples=60)
@given(data=st.data(), dims=st.integers(1, 3))
def test_windows_on_any_grid(data, dims):
    def numbers(least, most):
        return data.draw(st.tuples(*[st.integers(least, most)] * dims))

    grid, kernel, stride, dilation = numbers(1, 5), numbers(1, 3), numbers(1, 3), numbers(1, 3)
    padding = tuple(data.draw(st.integers(0, (k - 1) * d)) for k, d in zip(kernel, dilation, strict=True))
    options = (grid, kernel, stride, padding, dilation)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if any(size + 2 * pad < wide for size, pad, wide in zip(grid, padding, reach, strict=True)):
        with pytest.raises(ValueError, match="does not fit into a grid"):
            window_edges(*options)
        return
    wanted = edges_by_loops(*options)
    if not wanted:
        with pytest.raises(ValueError, match="no window of a kernel"):
            window_edges(*options)
        return
    edges = window_edges(*options)
    coordinates = [
        torch.unravel_index(index, shape) for index, shape in zip(edges[:3], (grid, edges.parents, kernel), strict=True)
    ]
    found = [tuple(zip(*(axis.tolist() for axis in axes), strict=True)) for axes in coordinates]
    assert list(zip(*found, strict=True)) == wanted
    assert edges.parents == tuple(
        (size + 2 * pad - wide) // step + 1 for size, pad, wide, step in zip(grid, padding, reach, stride, strict=True)
    )


def test_types_stand_within_positions():
    edges = window_edges((3,), (2,), types=2)
    assert edges.child.tolist() == [0, 1, 2, 3, 2, 3, 4, 5]
    assert edges.position.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert edges.matrix.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("grid", "kernel", "options"),
    [
        ((5,), (2,), {"dilation": 3}),
        ((4, 5), (2, 2), {"dilation": (1, 3), "stride": 2, "padding": (0, 1)}),
        ((3, 2, 4), (2, 2, 3), {"stride": (1, 1, 2), "padding": (0, 1, 1)}),
    ],
)
def test_dimensions_dilation_and_poses_of_any_size(grid, kernel, options):
    """Poses of 2x3, matrices of 3x5: against loops over the edges."""
    generator = torch.Generator().manual_seed(5)
    types, parents = 2, 2
    pose = torch.randn(1, *grid, types, 2, 3, generator=generator, dtype=torch.float64)
    activation = torch.rand(1, *grid, types, generator=generator, dtype=torch.float64)
    weight = torch.randn(*kernel, types, parents, 3, 5, generator=generator, dtype=torch.float64)
    beta = torch.randn(parents, generator=generator, dtype=torch.float64)
    output = grid_routing(pose, activation, weight, beta, beta, iterations=2, **options)

    def each(name, default):
        value = options.get(name, default)
        return value if isinstance(value, tuple) else (value,) * len(grid)

    by_loops = edges_by_loops(grid, kernel, each("stride", 1), each("padding", 0), each("dilation", 1))
    places = sorted({position for _, position, _ in by_loops})
    children = list(itertools.product(*map(range, grid), range(types)))
    edges = [(child, position, place, i) for child, position, place in by_loops for i in range(types)]
    votes = torch.stack([pose[(0, *child, i)] @ weight[(*place, i)] for child, _, place, i in edges])[None]
    wanted = brute_force_graph(
        votes,
        activation.flatten(1),
        beta,
        beta,
        [children.index((*child, i)) for child, _, _, i in edges],
        [places.index(position) for _, position, _, _ in edges],
        positions=len(places),
        iterations=2,
    )[-1]
    assert output.pose.shape[-2:] == (2, 5)
    assert_close("pose", output.pose.reshape(wanted.mean.shape), wanted.mean, 1e-10)
    assert_close("activation", output.activation.reshape(wanted.activation.shape), wanted.activation, 1e-10)


def test_padding_that_no_window_needs_changes_nothing_but_the_grid():
    inputs = conv_inputs(batch=1, grid=(1, 1), kernel=(3, 3))
    wanted = brute_force_conv(*inputs, padding=2)[-1]
    assert_close("pose", grid_routing(*inputs, padding=2).pose, wanted.mean, 1e-10)


def test_dilated_windows_without_a_child_have_parents_without_data():
    """Of three windows the middle one reads the children -1 and 2, of which there is neither."""
    inputs = conv_inputs(batch=1, grid=(1, 2), kernel=(1, 2))
    options = {"dilation": 3, "padding": (0, 2)}
    assert window_edges((1, 2), (1, 2), **options).position.tolist() == [0, 2]
    output = grid_routing(*inputs, iterations=1, **options)
    assert output.pose[0, 0].any((-3, -2, -1)).tolist() == [True, False, True]
    assert_close("activation", output.activation[0, 0, 1], (0.05 * inputs.beta_a).sigmoid(), 1e-12)


def test_a_layer_all_of_whose_windows_are_empty_is_refused():
    """Its only window reads the rows and columns -1 and 1 around the only child."""
    inputs = conv_inputs(grid=(1, 1), kernel=(2, 2))
    message = (
        r"no window of a kernel of \(2, 2\) holds .* of \(1, 1\) with a dilation of \(2, 2\) and a padding of \(1, 1\)"
    )
    with pytest.raises(ValueError, match=message):
        grid_routing(*inputs, padding=1, dilation=2)


def test_under_autocast_it_computes_in_single_precision():
    inputs = conv_inputs().to(torch.float32)
    wanted = grid_routing(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = grid_routing(*inputs)
        halves = grid_routing(inputs.pose.bfloat16(), *inputs[1:])
    assert torch.equal(got.pose, wanted.pose)
    assert halves.pose.dtype == torch.float32
    with pytest.raises(ValueError, match=r"pose must be float32 or float64, not torch.bfloat16: use .float\(\)"):
        grid_routing(inputs.pose.bfloat16(), *inputs[1:])


def test_debug_checks_look_at_votes():
    inputs = graph_inputs(edges=1, children=1, parent_types=1)
    inputs.votes[1, 0, 0, 2, 3] = torch.inf
    with emcaps.debug.checks(), pytest.raises(ValueError, match=r"votes\[1, 0, 0, 2, 3\] is inf .* what made it"):
        graph_routing(*inputs, torch.tensor([0]), torch.tensor([0]), positions=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"votes": torch.zeros(2, 3, 2)}, r"votes must be \(B, E, O, ...\) with no size zero, not \(2, 3, 2\)"),
        ({"votes": torch.zeros(2, 0, 2, 4)}, "votes must be .* no size zero"),
        ({"votes": [1.0]}, "votes must be a torch tensor, not list"),
        ({"activation": torch.zeros(2, 2, 2)}, r"activation must be \(B, N\) = \(2, number of children\)"),
        ({"activation": torch.zeros(1, 4)}, r"activation must be .* not \(1, 4\)"),
        ({"beta_u": torch.zeros(3)}, r"beta_u must be \(2,\), one number for each parent type, not \(3,\)"),
        ({"beta_a": torch.zeros(2)}, "all inputs must have the same dtype, .* beta_a torch.float32"),
        ({"child": torch.tensor([0, 1])}, r"child must be \(3,\) whole numbers, one for each edge .* not \(2,\)"),
        ({"child": torch.zeros(3)}, "child must be .* of torch.float32"),
        ({"child": [0, 1, 2]}, "child must be a torch tensor, not list"),
        ({"child": torch.tensor([0, 4, 1])}, "child must be 0 to 3, not 4"),
        ({"position": torch.tensor([0, -1, 1])}, "position must be 0 to 1, not -1"),
        (
            {"position": torch.zeros(3, dtype=torch.long, device="meta")},
            "position must be on the device of the votes",
        ),
        (
            {"child": torch.tensor([2, 1, 2]), "position": torch.tensor([1, 1, 1])},
            "2 do with child 2 and position 1",
        ),
        ({"positions": 0}, "positions must be a whole number of at least 1, not 0"),
        ({"iterations": 0}, "iterations must be"),
    ],
)
@pytest.mark.parametrize("routing", [graph_routing, graph_routing_trace])
def test_errors_of_graphs(routing, change, message):
    arguments = graph_inputs(edges=3, children=4, parent_types=2, pose=(4,))._asdict()
    arguments |= {"child": torch.tensor([0, 1, 2]), "position": torch.tensor([0, 1, 1]), "positions": 2}
    with pytest.raises(ValueError, match=message):
        routing(**{**arguments, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(2, 3, 4, 4)}, r"weight must be \(\*kernel, I, O, q, r\) .* not \(2, 3, 4, 4\)"),
        ({"pose": torch.zeros(2, 4, 2, 4, 4)}, r"pose must be \(B, \*grid, I, p, 4\) with 2 grid dimensions"),
        ({"pose": torch.zeros(2, 4, 5, 2, 4, 3)}, r"\(B, \*grid, I, p, 4\) .* not \(2, 4, 5, 2, 4, 3\)"),
        ({"activation": torch.zeros(2, 4, 5)}, r"activation must be \(B, \*grid, I\) = \(2, 4, 5, 2\)"),
        ({"weight": torch.zeros(3, 2, 3, 3, 4, 4).double()}, "each of the 2 child types in dimension 2, not 3"),
        ({"stride": 0}, "stride must be a whole number of at least 1, or a tuple with one for each dimension, not 0"),
        ({"stride": (1, 1, 1)}, r"stride must be .* not \(1, 1, 1\)"),
        ({"padding": -1}, "padding must be a whole number of at least 0"),
        ({"padding": 2}, r"padding must be smaller than the reach of the kernel, \(3, 2\), not \(2, 2\)"),
        ({"dilation": 2}, r"reaches over \(5, 3\) does not fit into a grid of \(4, 5\) with a padding of \(0, 0\)"),
    ],
)
def test_errors_of_grids(change, message):
    with pytest.raises(ValueError, match=message):
        grid_routing(**{**conv_inputs()._asdict(), **change})
