"""The reference gives the same results on a GPU as on the CPU. These tests are skipped without a GPU."""

import pytest
import torch

from emcaps import class_routing, conv_routing
from routing.compare import assert_close

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def routed(function, weight_shape, device, **settings):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 9, 8, 3, 4, 4), (2, 9, 8, 3), weight_shape, (weight_shape[-3],), (weight_shape[-3],)]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    inputs[1] = inputs[1].sigmoid()
    inputs = [tensor.to(device).requires_grad_() for tensor in inputs]
    output = function(*inputs, **settings)
    (output.pose.square().sum() + output.activation.square().sum()).backward()
    return {"pose": output.pose, "activation": output.activation} | {
        f"gradient {index}": tensor.grad for index, tensor in enumerate(inputs)
    }


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("competition", ["all", "types"])
def test_conv_routing_on_a_gpu(iterations, competition):
    settings = {"stride": 2, "iterations": iterations, "competition": competition}
    got, want = (routed(conv_routing, (3, 3, 3, 4, 4, 4), device, **settings) for device in ("cuda", "cpu"))
    for name in want:
        assert_close(name, got[name].cpu(), want[name], 1e-10)


@pytest.mark.parametrize("iterations", [1, 3])
def test_class_routing_on_a_gpu(iterations):
    got, want = (routed(class_routing, (3, 5, 4, 4), device, iterations=iterations) for device in ("cuda", "cpu"))
    for name in want:
        assert_close(name, got[name].cpu(), want[name], 1e-10)


def test_conv_routing_on_a_gpu_gives_the_same_bits_every_time():
    runs = [routed(conv_routing, (3, 3, 3, 4, 4, 4), "cuda", iterations=3) for _ in range(5)]
    for run in runs[1:]:
        for name, value in run.items():
            assert torch.equal(value, runs[0][name]), name
