"""The GPU kernels as PyTorch operators, under autograd, torch.compile and torch.export."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from emcaps import RoutingOutput, class_routing, conv_routing
from emcaps.nn import ClassCaps, ConvCaps
from emcaps.routing.operators import KernelSettings
from emcaps.routing.triton_kernels import operators
from emcaps.routing.triton_kernels.operators import fused_routing, route, route_and_keep, route_backward
from routing.cases import Inputs, class_inputs, conv_inputs, outputs_and_gradients, with_gradients
from routing.compare import assert_close
from routing.fused import Operators, fused, on, on_gpu

SMALLEST = conv_inputs(batch=1, grid=(1, 1), kernel=(1, 1), child_types=1, parent_types=1)
SETTINGS = ([1, 1], False, 2, 1.0, 1e-4, 1.0)
# All but "test_aot_dispatch_static": it is slow in the interpreter, and the tests of compiling below check as much.
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def smallest(device):
    return Inputs(*(tensor.to(device) for tensor in SMALLEST))


def test_route_is_a_well_formed_operator(device):
    torch.library.opcheck(route, (*smallest(device), *SETTINGS), test_utils=CHECKS)


def test_route_and_keep_is_a_well_formed_operator(device):
    torch.library.opcheck(route_and_keep, (*with_gradients(smallest(device)), *SETTINGS), test_utils=CHECKS)


def test_matrices_that_need_no_packing_are_not_returned_as_they_came(device):
    """With one parent type and child types that fill their tile, packed matrices have the layout of the weight."""
    inputs = Inputs(*(tensor.to(device) for tensor in conv_inputs(1, (1, 1), (1, 1), child_types=4, parent_types=1)))
    torch.library.opcheck(route_and_keep, (*with_gradients(inputs), *SETTINGS), test_utils=CHECKS)


def test_route_backward_is_a_well_formed_operator(device):
    """There is more than one child type, parent type and offset, so that a wrong order of axes would be seen."""
    inputs = Inputs(*(tensor.to(device) for tensor in conv_inputs(1, (1, 2), (1, 2), child_types=2, parent_types=2)))
    pose, activation, *kept = route_and_keep(*inputs, [1, 1], False, 1, 1.0, 1e-4, 1.0)
    shapes = list(inputs.pose.shape), list(inputs.weight.shape)
    arguments = (torch.ones_like(pose), torch.ones_like(activation), *kept, *shapes, [1, 1], False, 1, 1.0, 1.0)
    torch.library.opcheck(route_backward, arguments, test_utils=CHECKS)


def test_plain_calls_and_operators_give_the_same_bits(device):
    """A dispatch mode sees one operator per call, and it is `route` where no gradient is needed."""
    inputs = smallest(device)
    learned = inputs._replace(beta_a=inputs.beta_a.clone().requires_grad_())
    settings = KernelSettings(*SETTINGS)
    plain = fused_routing(learned, settings)
    assert plain[0].grad_fn.name() == "_RoutingBackward"
    with Operators() as operators:
        fused_routing(inputs, settings)
        with torch.no_grad():
            without = fused_routing(learned, settings)
        watched = fused_routing(learned, settings)
    assert operators.names == ["route", "route", "route_and_keep"]
    for output in range(2):
        assert torch.equal(plain[output], watched[output])
        assert torch.equal(plain[output], without[output])
    gradients = [torch.autograd.grad(out[0].sum() + out[1].sum(), learned.beta_a)[0] for out in (plain, watched)]
    assert torch.equal(*gradients)


def test_a_plain_call_keeps_nothing_that_no_gradient_asks_for(device):
    inputs = with_gradients(smallest(device))
    with torch.no_grad():
        assert all(output.grad_fn is None for output in fused_routing(inputs, KernelSettings(*SETTINGS)))


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=on_gpu)])
def test_compile_in_one_graph(backend, device):
    """The bits are the same, with a batch of another size too, for which the compiler makes the size a symbol."""
    compiled = torch.compile(
        lambda *tensors: conv_routing(*tensors, iterations=2, impl="triton"), backend=backend, fullgraph=True
    )
    for batch in (2, 3):
        inputs = conv_inputs(batch, grid=(1, 2), kernel=(1, 1), child_types=1, parent_types=1)
        want = fused(inputs, device, iterations=2)
        got = outputs_and_gradients(on(device, compiled), inputs)
        for name in want:
            assert torch.equal(got[name], want[name]), name


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_compile_with_sizes_and_numbers_that_may_change(impl, device):
    def routed(*tensors, final_lambda):
        return conv_routing(*tensors, iterations=2, final_lambda=final_lambda, impl=impl)

    compiled = torch.compile(routed, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch, final_lambda in ((2, 1.0), (3, 1.5), (5, 2.0)):
        inputs = conv_inputs(batch, grid=(1, 2), kernel=(1, 1), child_types=1, parent_types=1)
        want = on(device, routed)(*inputs, final_lambda=final_lambda)
        got = on(device, compiled)(*inputs, final_lambda=final_lambda)
        assert torch.equal(got.pose, want.pose)
        assert torch.equal(got.activation, want.activation)


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = ConvCaps(1, 1, kernel=1, iterations=2, impl="triton")
        self.classes = ClassCaps(1, 2, iterations=2, impl="triton")

    def forward(self, pose, activation):
        return self.classes(self.conv(RoutingOutput(pose, activation)))


def test_export_for_any_batch(device):
    torch.manual_seed(0)
    network = TwoLayers().to(device).eval()
    pose, activation = (tensor.float().to(device) for tensor in conv_inputs(5, (1, 2), (1, 1), 1, 1)[:2])
    batch = torch.export.Dim("batch", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(network, (pose[:2], activation[:2]), dynamic_shapes=({0: batch}, {0: batch}))
        got, want = program.module()(pose, activation), network(pose, activation)
    assert sum(node.target is torch.ops.emcaps.route.default for node in program.graph.nodes) == 2
    for name in RoutingOutput._fields:
        assert torch.equal(getattr(got, name), getattr(want, name)), name


LAYER = conv_inputs(batch=2, grid=(1, 2), kernel=(1, 2), child_types=2, parent_types=2)
ONE_PARENT = conv_inputs(batch=2, grid=(1, 2), kernel=(1, 2), child_types=2, parent_types=1)


@pytest.mark.parametrize("name", Inputs._fields)
def test_gradients_go_only_where_they_are_asked_for(name, device):
    leaves = ONE_PARENT._replace(**{name: getattr(ONE_PARENT, name).clone().requires_grad_()})
    output = on(device, conv_routing)(*leaves, iterations=1, impl="triton")
    (output.pose.square().sum() + output.activation.sum()).backward()
    for other, leaf in leaves._asdict().items():
        assert (leaf.grad is not None) == (other == name)

    wanted = with_gradients(ONE_PARENT)
    output = on(device, conv_routing)(*wanted, iterations=1, impl="reference")
    (output.pose.square().sum() + output.activation.sum()).backward()
    assert_close(name, getattr(leaves, name).grad, getattr(wanted, name).grad, 1e-10)


@pytest.mark.parametrize("output", RoutingOutput._fields)
def test_a_loss_of_one_output_alone(output, device):
    found = {}
    for impl in ("triton", "reference"):
        leaves = with_gradients(LAYER)
        routed = on(device, conv_routing)(*leaves, iterations=2, impl=impl)
        found[impl] = torch.autograd.grad(getattr(routed, output).square().sum(), leaves, allow_unused=True)
    for name, got, want in zip(Inputs._fields, found["triton"], found["reference"], strict=True):
        assert_close(name, got, want, 1e-10)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context, device):
    leaves = with_gradients(LAYER)
    want = on(device, conv_routing)(*leaves, iterations=2, impl="reference")
    with context():
        got = on(device, conv_routing)(*leaves, iterations=2, impl="triton")
    for name in RoutingOutput._fields:
        assert not getattr(got, name).requires_grad
        assert_close(name, getattr(got, name).clone(), getattr(want, name).detach(), 1e-10)


@pytest.mark.parametrize("routing", [conv_routing, class_routing])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_empty_batch(routing, dtype, device):
    inputs = conv_inputs(batch=0, parent_types=3) if routing is conv_routing else class_inputs(batch=0, parent_types=3)
    found = fused(inputs.to(dtype), device, iterations=2)
    parents = (0, 2, 4, 3) if routing is conv_routing else (0, 3)
    assert tuple(found["pose"].shape) == (*parents, 4, 4)
    assert tuple(found["activation"].shape) == parents
    for name, tensor in inputs._asdict().items():
        assert found[f"gradient of {name}"].shape == tensor.shape
        assert found[f"gradient of {name}"].dtype == dtype
        assert (found[f"gradient of {name}"] == 0).all()


def test_a_second_derivative_is_refused(device):
    leaves = with_gradients(SMALLEST)
    output = on(device, conv_routing)(*leaves, iterations=1, impl="triton")
    with pytest.raises(RuntimeError, match="no second derivative: use impl='reference'"):
        torch.autograd.grad(output.pose.square().sum(), leaves.pose, create_graph=True, retain_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative: use impl='reference'"):  # of a linear loss, too
        torch.autograd.grad(output.pose.sum(), leaves.pose, create_graph=True)


def test_a_forward_derivative_is_refused(device):
    pose, *others = smallest(device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(pose, torch.ones_like(pose))
        with pytest.raises(ValueError, match="forward-mode derivatives: only the reference goes through them"):
            conv_routing(dual, *others, iterations=1, impl="triton")
        output = conv_routing(dual, *others, iterations=1)  # "auto" leaves it to the reference
        assert forward_ad.unpack_dual(output.pose).tangent is not None


@pytest.mark.parametrize("routing", [conv_routing, class_routing])
def test_images_in_chunks_give_the_same_bits(routing, device, monkeypatch):
    """Without gradients a large batch is routed a few images at a time: here one block of 32, or of 4, and the rest."""
    shapes = {"child_types": 2, "parent_types": 2}
    inputs = conv_inputs(34, (1, 2), (1, 2), **shapes) if routing is conv_routing else class_inputs(6, (1, 1), **shapes)
    whole = on(device, routing)(*inputs, impl="triton", iterations=2)
    monkeypatch.setattr(operators, "MOST_NUMBERS", 1)
    runs = []
    monkeypatch.setattr(operators, "_run", lambda *given, run=operators._run: runs.append(len(given[0])) or run(*given))
    chunked = on(device, routing)(*inputs, impl="triton", iterations=2)
    assert runs == ([32, 2] if routing is conv_routing else [4, 2])
    for one, other in zip(chunked, whole, strict=True):
        assert torch.equal(one, other)
