"""Traces: their layout, and how their entries follow from each other and give the routing's result."""

import pytest
import torch

import emcaps
from emcaps import class_routing, class_routing_trace, conv_routing, conv_routing_trace
from routing.cases import class_inputs, conv_inputs
from routing.compare import assert_close

FIELDS = ("assignment", "mean", "variance", "cost", "activation")
CONV = conv_inputs(grid=(4, 5), kernel=(3, 2), child_types=2, parent_types=3)
CLASS = class_inputs(grid=(3, 2), child_types=3, parent_types=4)
CONV_SHAPES = [(2, 2, 4, 3, 2, 2, 3), (2, 2, 4, 3, 4, 4), (2, 2, 4, 3, 4, 4), (2, 2, 4, 3), (2, 2, 4, 3)]
CLASS_SHAPES = [(2, 3, 2, 3, 4), (2, 4, 4, 4), (2, 4, 4, 4), (2, 4), (2, 4)]
LAYERS = pytest.mark.parametrize(
    ("routing", "trace", "inputs", "shapes"),
    [
        pytest.param(conv_routing, conv_routing_trace, CONV, CONV_SHAPES, id="conv"),
        pytest.param(class_routing, class_routing_trace, CLASS, CLASS_SHAPES, id="class"),
    ],
)


@LAYERS
@pytest.mark.parametrize("iterations", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layout(routing, trace, inputs, shapes, iterations, dtype):
    found = trace(*inputs.to(dtype), iterations=iterations)
    assert isinstance(found, emcaps.RoutingTrace)
    assert len(found) == iterations
    for t in range(iterations):
        assert isinstance(found[t], emcaps.RoutingStep)
        assert found[t]._fields == FIELDS
        assert [tuple(entry.shape) for entry in found[t]] == shapes
        assert {entry.dtype for entry in found[t]} == {dtype}
        for name in FIELDS:
            assert torch.equal(getattr(found, name)[t], getattr(found[t], name))
    for name in FIELDS:
        assert len(getattr(found, name)) == iterations


@LAYERS
def test_is_a_sequence_of_steps(routing, trace, inputs, shapes):
    found = trace(*inputs, iterations=3)
    assert [id(step.mean) for step in found] == [id(found[t].mean) for t in range(3)]
    assert torch.equal(found[-1].mean, found[2].mean)
    with pytest.raises(IndexError):
        found[3]


@LAYERS
@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_last_entry_is_the_output(routing, trace, inputs, shapes, iterations):
    output = routing(*inputs, iterations=iterations, impl="reference")
    last = trace(*inputs, iterations=iterations, impl="reference")[-1]
    assert output._fields == ("pose", "activation")
    assert isinstance(output, emcaps.RoutingOutput)
    assert torch.equal(last.mean, output.pose)
    assert torch.equal(last.activation, output.activation)


@LAYERS
def test_fewer_iterations_are_the_beginning_of_more(routing, trace, inputs, shapes):
    many = trace(*inputs, iterations=4)
    few = trace(*inputs, iterations=2)
    for t in range(2):
        for name in FIELDS:
            assert torch.equal(getattr(few[t], name), getattr(many[t], name))


@LAYERS
def test_variance_cost_and_activation_follow_from_each_other(routing, trace, inputs, shapes):
    for t, step in enumerate(trace(*inputs, iterations=3, final_lambda=0.7, variance_floor=0.01)):
        assert (step.variance >= 0.01).all()
        inverse_temperature = 0.7 * (1 - 0.95 ** (t + 1))
        want = torch.sigmoid(inverse_temperature * (inputs.beta_a - step.cost))
        assert_close("activation", step.activation, want, 1e-12)


def test_conv_assignment_entry_is_the_one_used_in_that_m_step():
    """The means follow from the entry's own assignments and from votes that are computed here."""
    votes = torch.stack(
        [
            torch.stack([CONV.pose[:, v : v + 3, u : u + 2, :, None] @ CONV.weight for u in range(4)], 1)
            for v in range(2)
        ],
        1,
    )  # (B,OH,OW,KH,KW,I,O,4,4)
    active = torch.stack(
        [torch.stack([CONV.activation[:, v : v + 3, u : u + 2] for u in range(4)], 1) for v in range(2)], 1
    )
    for step in conv_routing_trace(*CONV, iterations=3):
        data = step.assignment * active[..., None]
        total = data.sum((3, 4, 5))[..., None, None]
        mean = (data[..., None, None] * votes).sum((3, 4, 5)) / (total + 1e-9)
        assert_close("mean", step.mean, mean, 1e-12)


def test_conv_assignment_starts_evenly_over_all_parents():
    """Rows are read by 1, 2, 2 and 1 of the two positions, columns by 1, 2, 2, 2 and 1 of the four; three types."""
    start = conv_routing_trace(*CONV)[0].assignment
    rows, columns = (1, 2, 2, 1), (1, 2, 2, 2, 1)
    for v in range(2):
        for u in range(4):
            for ky in range(3):
                for kx in range(2):
                    want = torch.full((2, 2, 3), 1 / (rows[v + ky] * columns[u + kx] * 3), dtype=torch.float64)
                    assert_close("start", start[:, v, u, ky, kx], want, 1e-15)


@pytest.mark.parametrize("competition", ["all", "types"])
def test_start_does_not_depend_on_the_competition(competition):
    start = conv_routing_trace(*CONV, competition=competition)[0].assignment
    assert torch.equal(start, conv_routing_trace(*CONV)[0].assignment)


def test_class_assignment_starts_evenly_over_the_classes():
    start = class_routing_trace(*CLASS)[0].assignment
    assert_close("start", start, torch.full((2, 3, 2, 3, 4), 0.25, dtype=torch.float64), 1e-15)
