"""How the public functions treat their inputs, and what they keep in memory."""

import inspect

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import emcaps
from emcaps import class_routing, class_routing_trace, conv_routing, conv_routing_trace
from emcaps.routing import dispatch
from routing.cases import Inputs, class_inputs, conv_inputs, outputs_and_gradients
from routing.compare import assert_close
from routing.fused import Operators

CONV = conv_inputs(grid=(5, 4), kernel=(3, 2), child_types=2, parent_types=3)
CLASS = class_inputs(grid=(3, 2), child_types=2, parent_types=3)
LAYERS = pytest.mark.parametrize(
    ("routing", "inputs"), [pytest.param(conv_routing, CONV, id="conv"), pytest.param(class_routing, CLASS, id="class")]
)


@LAYERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_output_has_the_dtype_and_shapes_of_the_contract(routing, inputs, dtype):
    output = routing(*inputs.to(dtype))
    assert isinstance(output, emcaps.RoutingOutput)
    pose, activation = output
    assert output._fields == ("pose", "activation")
    assert pose.dtype == activation.dtype == dtype
    parents = (2, 3, 3, 3) if routing is conv_routing else (2, 3)
    assert tuple(pose.shape) == (*parents, 4, 4)
    assert tuple(activation.shape) == parents
    assert ((activation >= 0) & (activation <= 1)).all()


OPTIONS = {
    "iterations": 3,
    "final_lambda": 1.0,
    "variance_floor": 1e-4,
    "data_scaling": "mean",
    "competition": "all",
    "impl": "auto",
}


@pytest.mark.parametrize("routing", [conv_routing, conv_routing_trace, class_routing, class_routing_trace])
def test_options_have_the_names_order_and_defaults_of_the_contract(routing):
    parameters = list(inspect.signature(routing).parameters.values())
    named = {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    stride = {"stride": 1} if routing in (conv_routing, conv_routing_trace) else {}
    last = {"padding": 0} if stride else {"coordinate_scale": 1.0}
    assert list(named.items()) == list((stride | OPTIONS | last).items())
    assert tuple(parameter.name for parameter in parameters[:5]) == Inputs._fields


@LAYERS
def test_auto_is_the_reference_on_the_cpu_in_float64(routing, inputs):
    chosen = outputs_and_gradients(routing, inputs, impl="auto")
    for name, want in outputs_and_gradients(routing, inputs, impl="reference").items():
        assert_close(name, chosen[name], want, 1e-10)


def scattered(tensor):
    """The same values with other strides: the dimensions are reversed in memory, with gaps."""
    order = tuple(range(tensor.ndim))[::-1]
    wide = tensor.permute(order).contiguous().repeat_interleave(2, dim=-1)
    found = wide[..., ::2].permute(order)
    assert torch.equal(found, tensor)
    return found


@LAYERS
def test_inputs_need_not_be_contiguous(routing, inputs):
    strange = Inputs(*(scattered(tensor) for tensor in inputs))
    assert not strange.pose.is_contiguous()
    got = outputs_and_gradients(lambda *x, **options: routing(*(scattered(t) for t in x), **options), inputs)
    for name, want in outputs_and_gradients(routing, inputs).items():
        assert_close(name, got[name], want, 1e-13)
    for got, want in zip(routing(*strange), routing(*inputs), strict=True):
        assert_close("output", got, want, 1e-13)


@LAYERS
def test_expanded_inputs(routing, inputs):
    """`expand` repeats one element three times by a stride of 0."""
    one = inputs._replace(pose=inputs.pose[:1], activation=inputs.activation[:1])
    three = inputs._replace(
        pose=one.pose.expand(3, *one.pose.shape[1:]), activation=one.activation.expand(3, *one.activation.shape[1:])
    )
    for got, want in zip(routing(*three), routing(*one), strict=True):
        assert_close("output", got, want.expand_as(got), 1e-13)


@LAYERS
def test_inputs_are_left_as_they_were(routing, inputs):
    before = [tensor.clone() for tensor in inputs]
    outputs_and_gradients(routing, inputs)
    routing(*inputs)
    assert all(torch.equal(x, y) for x, y in zip(before, inputs, strict=True))


@LAYERS
def test_without_gradients(routing, inputs):
    want = routing(*inputs)
    assert not want.pose.requires_grad
    assert not want.activation.requires_grad
    learned = Inputs(*(tensor.clone().requires_grad_() for tensor in inputs))
    with torch.no_grad():
        got = routing(*learned)
    assert not got.pose.requires_grad
    assert not got.activation.requires_grad
    with torch.inference_mode():
        inferred = routing(*inputs)
    for x, y, z in zip(want, got, inferred, strict=True):
        assert torch.equal(x, y)
        assert torch.equal(x, z)


@LAYERS
@pytest.mark.parametrize("name", Inputs._fields)
def test_gradient_of_one_input_alone(routing, inputs, name):
    everything = outputs_and_gradients(routing, inputs)
    alone = getattr(inputs, name).clone().requires_grad_()
    output = routing(*inputs._replace(**{name: alone}))
    generator = torch.Generator().manual_seed(99)
    towards = [torch.randn(out.shape, generator=generator).double() for out in output]
    (gradient,) = torch.autograd.grad(output, alone, towards)
    assert_close(name, gradient, everything[f"gradient of {name}"], 1e-13)


@LAYERS
def test_gradient_of_one_output_alone(routing, inputs):
    for k in range(2):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        found = torch.autograd.grad(routing(*leaves)[k].sum(), leaves)
        assert all(gradient.isfinite().all() for gradient in found)
        assert all((gradient != 0).any() for gradient in found)


@LAYERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_empty_batch(routing, inputs, dtype):
    empty = inputs._replace(pose=inputs.pose[:0], activation=inputs.activation[:0]).to(dtype)
    found = outputs_and_gradients(routing, empty)
    parents = (0, 3, 3, 3) if routing is conv_routing else (0, 3)
    assert tuple(found["pose"].shape) == (*parents, 4, 4)
    assert tuple(found["activation"].shape) == parents
    assert found["pose"].dtype == found["activation"].dtype == dtype
    for name, tensor in zip(Inputs._fields, empty, strict=True):
        assert found[f"gradient of {name}"].shape == tensor.shape
        assert (found[f"gradient of {name}"] == 0).all()


def test_traces_of_an_empty_batch():
    steps = conv_routing_trace(CONV.pose[:0], CONV.activation[:0], *CONV[2:], iterations=2)
    assert [tuple(step.assignment.shape) for step in steps] == [(0, 3, 3, 3, 2, 2, 3)] * 2
    steps = class_routing_trace(CLASS.pose[:0], CLASS.activation[:0], *CLASS[2:], iterations=2)
    assert [tuple(step.assignment.shape) for step in steps] == [(0, 3, 2, 2, 3)] * 2


@LAYERS
def test_repeated_calls_agree_to_the_bit(routing, inputs):
    first, second = outputs_and_gradients(routing, inputs), outputs_and_gradients(routing, inputs)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("impl", ["auto", "reference", "triton"])
def test_who_runs(impl, device):
    """An explicit choice runs that implementation; "auto" runs the kernels for the device."""
    inputs = conv_inputs(batch=1, grid=(1, 1), kernel=(1, 1), child_types=1, parent_types=1)
    with Operators() as operators:
        conv_routing(*(tensor.to(device) for tensor in inputs), iterations=1, impl=impl)
    auto = "route" if device == "cuda" else "route_on_cpu"
    assert operators.names == {"auto": [auto], "reference": [], "triton": ["route"]}[impl]


def dual(function):
    """The forward-mode derivative of a function, without the wrapped tensors of torch.func."""

    def derivative(pose):
        with torch.autograd.forward_ad.dual_level():
            output = function(torch.autograd.forward_ad.make_dual(pose, torch.ones_like(pose)))
            return torch.autograd.forward_ad.unpack_dual(output).tangent

    return derivative


TRANSFORMS = {
    "vmap": lambda function: lambda pose: torch.func.vmap(function)(pose[None]),
    "grad": torch.func.grad,
    "jacfwd": torch.func.jacfwd,
    "dual": dual,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_auto_leaves_transforms_to_the_reference(transform, monkeypatch, device):
    """No kernel supports them, so "auto" may not choose one, not even on a GPU."""
    asked = []
    monkeypatch.setattr(dispatch, "choose_implementation", lambda impl, device: asked.append(impl) or "reference")
    pose, *others = (tensor.to(device) for tensor in CONV)
    found = TRANSFORMS[transform](lambda pose: conv_routing(pose, *others, iterations=1).activation.sum())(pose)
    assert found.isfinite().all()
    assert (found != 0).any()
    assert asked == ["reference"]
    conv_routing(pose, *others, iterations=1)
    assert asked == ["reference", "auto"]


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements in the memory of any result; a view counts with its whole storage."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                stored = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.elements = max(self.elements, stored)
        return result


def test_largest_tensor_sees_what_is_made():
    with LargestTensor() as largest:
        (torch.ones(5, 1) * torch.ones(1, 7)).expand(9, 5, 7)
    assert largest.elements == 35


@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_no_tensor_is_larger_than_the_votes(competition, backward):
    """With 14x14 children and 12x12 parents, a table of both would be 196 / 9 / 16 = 1.36 times the votes."""
    inputs = conv_inputs(batch=2, grid=(14, 14), kernel=(3, 3), child_types=2, parent_types=2)
    if backward:
        inputs = Inputs(*(tensor.requires_grad_() for tensor in inputs))
    with LargestTensor() as largest:
        output = conv_routing(*inputs, iterations=3, competition=competition, impl="reference")
        if backward:
            (output.pose.sum() + output.activation.sum()).backward()
    votes = 2 * 12 * 12 * 3 * 3 * 2 * 2 * 16
    assert output.pose.numel() < largest.elements <= votes
