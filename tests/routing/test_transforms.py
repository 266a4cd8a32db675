"""Routing under torch's function transforms."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from emcaps import class_routing, conv_routing
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
