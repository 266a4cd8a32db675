import pytest
import torch
import torch.nn.functional as F
from torch import nn

from emcaps.nn import PrimaryCaps
from emcaps.nn.layers import ImageConv
from emcaps.nn.linear import PrimaryProduct, _Linear, linear, sum_over_positions

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = [(1, 1, 1), (3, 7, 5), (2, 3, 4, 5), (0, 3, 4, 5), (64, 16, 16, 5)]


def example(shape, device, dtype=torch.float64, outputs=6):
    generator = torch.Generator().manual_seed(0)
    shapes = shape, (outputs, shape[-1]), (outputs,)
    return [torch.randn(s, generator=generator, dtype=dtype).to(device).requires_grad_() for s in shapes]


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_torch(shape, device):
    inputs = example(shape, device)
    got, want = _Linear.apply(*inputs), F.linear(*inputs)
    assert torch.equal(got, want)
    slope = torch.randn_like(want).transpose(0, 1).contiguous().transpose(0, 1)
    found, expected = (torch.autograd.grad(output, inputs, slope) for output in (got, want))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_second_derivatives(device):
    inputs = example((2, 3, 4, 5), device)
    assert torch.autograd.gradcheck(_Linear.apply, inputs)
    assert torch.autograd.gradgradcheck(_Linear.apply, inputs)


def test_only_the_gradients_that_are_needed_are_computed(device):
    inputs, weight, bias = example((2, 3, 4, 5), device)
    output = _Linear.apply(inputs.detach(), weight.detach(), bias)
    output.sum().backward()
    torch.testing.assert_close(bias.grad, torch.full_like(bias, 24.0))
    assert weight.grad is inputs.grad is None


def test_sums_are_as_exact_as_torchs(device):
    """Of numbers with a mean, whose sum grows: adding them one by one in float32 would lose digits."""
    values = torch.rand(64, 256, 17, generator=torch.Generator().manual_seed(0)).to(device)
    exact = values.double().sum((0, 1))
    error = (sum_over_positions(values) - exact).abs().max() / exact.max()
    assert float(error) <= 1e-6


@pytest.mark.parametrize("layer", [ImageConv(2, 6, 5, 2, 2), PrimaryCaps(2, 3)], ids=["ImageConv", "PrimaryCaps"])
def test_layers_take_the_product_on_a_gpu_alone(layer, device):
    """On a CPU they run torch's own operator, whose bits recorded runs have."""
    output = layer.to(device)(torch.randn(2, 2, 8, 8, device=device))
    names, waiting = set(), [(output if isinstance(output, torch.Tensor) else output.pose).grad_fn]
    while waiting:
        node = waiting.pop()
        names.add(node.name())
        waiting += [following for following, _ in node.next_functions if following is not None]
    assert bool({"_LinearBackward", "PrimaryProductBackward"} & names) == (device == "cuda")


def primary(device, dtype=torch.float64):
    """A layer of primary capsules, features for it, and the arguments of PrimaryProduct."""
    torch.manual_seed(0)
    layer = PrimaryCaps(5, 3).to(device, dtype)
    features = torch.randn(2, 4, 3, 5, device=device, dtype=dtype).permute(0, 3, 1, 2).requires_grad_()
    return layer, [features, layer.pose.weight, layer.activation.weight, layer.pose.bias, layer.activation.bias]


@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)], ids=["pose", "activation", "both"])
def test_primary_product_has_the_bits_of_its_steps(outputs, device, monkeypatch):
    monkeypatch.setattr("emcaps.nn.layers.linear", _Linear.apply)  # as on a GPU
    layer, inputs = primary(device, torch.float32)
    pose, logit = layer.in_one_product(inputs[0])
    want, got = (pose.unflatten(-1, (3, 4, 4)), logit.sigmoid()), PrimaryProduct.apply(*inputs)
    slopes = [torch.randn_like(want[output]) for output in outputs]
    found, expected = (
        torch.autograd.grad([results[output] for output in outputs], inputs, slopes) for results in (got, want)
    )
    for one, other in zip((*got, *found), (*want, *expected), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_primary_product_has_second_derivatives(device):
    _, inputs = primary(device)
    assert torch.autograd.gradcheck(PrimaryProduct.apply, inputs)
    assert torch.autograd.gradgradcheck(PrimaryProduct.apply, inputs)


def test_primary_product_computes_only_the_gradients_that_are_needed(device):
    _, (features, *parameters) = primary(device)
    bias = parameters[-1]
    pose, activation = PrimaryProduct.apply(features.detach(), *(each.detach() for each in parameters[:-1]), bias)
    (pose.sum() + activation.sum()).backward()
    assert bias.grad is not None
    assert features.grad is None


@NEEDS_GPU
def test_primary_capsules_take_one_product_where_they_learn():
    layer, (features, *_) = primary("cuda", torch.float32)

    def in_one(layer):
        return type(layer(features).activation.grad_fn).__name__ == "PrimaryProductBackward"

    assert in_one(layer)
    with torch.autocast("cuda", torch.bfloat16):
        assert not in_one(layer)
    layer.activation.bias.requires_grad_(False)
    assert not in_one(layer)


@NEEDS_GPU
def test_elsewhere_torchs_own_operator_runs():
    inputs, weight, bias = example((2, 3, 4, 5), "cuda", torch.float32)

    def is_ours(output):
        return output.grad_fn is not None and output.grad_fn.name() == "_LinearBackward"

    assert is_ours(linear(inputs, weight, bias))
    assert not is_ours(linear(inputs, weight, None))
    assert not is_ours(linear(inputs, weight, bias.detach()))
    with torch.no_grad():
        assert not is_ours(linear(inputs, weight, bias))
    with torch.autocast("cuda", torch.bfloat16):
        assert linear(inputs, weight, bias).dtype == torch.bfloat16
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs, weight, bias), F.linear(inputs, weight, bias))
    each = torch.func.vmap(linear, (0, None, None))(inputs, weight, bias)
    torch.testing.assert_close(each, F.linear(inputs, weight, bias))


@NEEDS_GPU
@pytest.mark.parametrize("make", [lambda: ImageConv(2, 32, 5, 2, 2), lambda: PrimaryCaps(32, 8)])
def test_gradients_on_a_gpu_are_as_exact_as_torchs_and_the_same_every_time(make, monkeypatch):
    layer, exact = make().cuda(), make().cuda().double()
    exact.load_state_dict(layer.state_dict())
    images = torch.randn(64, next(layer.parameters()).shape[1], 16, 16, device="cuda")

    def gradients(layer, images):
        output = layer(images)
        outputs = [output] if isinstance(output, torch.Tensor) else output
        return torch.autograd.grad(sum(each.square().mean() for each in outputs), list(layer.parameters()))

    want, got, again = gradients(exact, images.double()), gradients(layer, images), gradients(layer, images)
    for place in ("linear", "layers"):
        monkeypatch.setattr(f"emcaps.nn.{place}.has_own_gradients", lambda *_: False)
    torchs = gradients(layer, images)
    for exactly, ours, repeated, plain in zip(want, got, again, torchs, strict=True):
        error, plain_error = (float((found.double() - exactly).norm() / exactly.norm()) for found in (ours, plain))
        assert error <= 2 * plain_error + 5e-7
        assert torch.equal(ours, repeated)


def test_a_layer_without_a_bias_works(device):
    layer = ImageConv(2, 6, 5, 2, 2).to(device).double()
    layer.bias = None
    images = torch.randn(2, 2, 8, 8, device=device, dtype=torch.float64)
    torch.testing.assert_close(layer(images), nn.Conv2d.forward(layer, images))
