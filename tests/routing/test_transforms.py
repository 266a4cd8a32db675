"""Routing under torch's function transforms."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

from emcaps import RoutingOutput, class_routing, conv_routing
from emcaps.nn import ClassCaps, ConvCaps, SetCaps
from emcaps.routing.operators import apply
from routing.cases import class_inputs, conv_inputs
from routing.compare import assert_close

CASES = {"conv": (conv_routing, conv_inputs()), "class": (class_routing, class_inputs())}


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("layer", CASES)
def test_compile_in_one_graph(layer, impl):
    routing, inputs = CASES[layer]
    compiled = torch.compile(
        lambda *tensors: routing(*tensors, iterations=2, impl=impl), backend="eager", fullgraph=True
    )
    got, want = compiled(*inputs), routing(*inputs, iterations=2)
    assert_close("pose", got.pose, want.pose, 1e-12)
    assert_close("activation", got.activation, want.activation, 1e-12)


COMPILED_FOR_A_CPU = """
import sys
sys.modules["numba"] = None  # so that "auto" is the reference too
import torch
from torch import nn
from emcaps.nn import ConvCaps, PrimaryCaps

def outputs_and_gradients(network, call, images):
    network.zero_grad()
    output = call(images)
    (output.pose.square().sum() + output.activation.sum()).backward()
    return [*output, *(parameter.grad for parameter in network.parameters())]

for impl in ("auto", "reference"):
    torch.manual_seed(0)
    network = torch.nn.Sequential(PrimaryCaps(3, 2), ConvCaps(2, 3, kernel=3, stride=2, iterations=2, impl=impl))
    images = torch.randn(2, 3, 14, 14)
    compiled = outputs_and_gradients(network, torch.compile(network), images)
    wanted = outputs_and_gradients(network, network, images)
    for one, other in zip(compiled, wanted, strict=True):
        torch.testing.assert_close(one, other)
    print(impl, "is alike")
"""


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="torch.compile needs a C++ compiler")
def test_a_network_compiled_for_a_cpu_runs_the_reference(tmp_path):
    """It runs in a process of its own, because the compiler's fault would end this one."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILED_FOR_A_CPU]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout) == (0, "auto is alike\nreference is alike\n"), done.stderr


@pytest.mark.parametrize("layer", CASES)
def test_vmap_over_a_second_batch_dimension(layer):
    routing, inputs = CASES[layer]
    pose, activation = (torch.stack([tensor, tensor.flip(0)]) for tensor in inputs[:2])
    got = torch.func.vmap(lambda p, a: routing(p, a, *inputs[2:], iterations=3))(pose, activation)
    for index in range(2):
        want = routing(pose[index], activation[index], *inputs[2:], iterations=3)
        assert_close("pose", got.pose[index], want.pose, 1e-12)
        assert_close("activation", got.activation[index], want.activation, 1e-12)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return 2 * tensor

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_apply_is_that_of_the_function():
    tensor = torch.ones(3, requires_grad=True)
    doubled = apply(Doubled, tensor)
    assert doubled.grad_fn.name() == "DoubledBackward"
    assert torch.equal(torch.autograd.grad(doubled.sum(), tensor)[0], torch.full((3,), 2.0))


def test_apply_leaves_active_transforms_to_torch():
    """Torch refuses a function without rules for them, even where none of its tensors is transformed."""
    tensor = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.vmap(lambda _: apply(Doubled, tensor))(torch.zeros(2))


class Tuples(nn.Module):
    """torch.export knows tuples without a registration."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, pose, activation):
        return tuple(self.layer(RoutingOutput(pose, activation)))


def capsules_of(*shape):
    return torch.randn(*shape, 4, 4), torch.rand(shape)


@pytest.mark.parametrize("layer", [SetCaps(3, 5), ClassCaps(3, 5), ConvCaps(3, 5, stride=2)], ids=type)
def test_one_compiled_graph_takes_every_size_of_grid_and_set(layer):
    """Without a limit on graphs, each size could have one of its own."""
    graphs = []

    def count(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(Tuples(layer), backend=count, fullgraph=True, dynamic=True)
    for size in range(5, 16):
        given = capsules_of(2, size, 3) if isinstance(layer, SetCaps) else capsules_of(2, size, size + 1, 3)
        assert all(map(torch.equal, compiled(*given), layer(RoutingOutput(*given))))
    assert len(graphs) == 1


@pytest.mark.skipif(torch.__version__ < "2.8", reason="older versions cannot follow routing for sizes they do not know")
@pytest.mark.parametrize(
    "layer", [SetCaps(3, 5), ClassCaps(3, 5), ConvCaps(3, 5, stride=2), ConvCaps(3, 5, impl="reference")], ids=type
)
def test_an_exported_layer_takes_any_size(layer):
    dims = [torch.export.Dim(name, min=5, max=40) for name in ("rows", "columns")]
    sizes = [(9,), (20,)] if isinstance(layer, SetCaps) else [(9, 8), (13, 20)]
    dynamic = dict(enumerate(dims[: len(sizes[0])], start=1))
    first, second = (capsules_of(2, *size, 3) for size in sizes)
    program = torch.export.export(Tuples(layer), first, dynamic_shapes=(dynamic, dynamic), strict=False)
    found, wanted = program.module()(*second), layer(RoutingOutput(*second))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_trace_of_torchscript_names_what_to_use_instead():
    with pytest.raises(ValueError, match=r"torch\.jit\.trace cannot follow routing: use torch\.export\.export"):
        torch.jit.trace(Tuples(ConvCaps(3, 5)), capsules_of(1, 5, 5, 3), check_trace=False)
