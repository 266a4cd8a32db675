import pytest
import torch
from torch import nn

from emcaps import RoutingOutput, class_routing, conv_routing, set_routing
from emcaps.nn import ClassCaps, ConvCaps, PrimaryCaps, SetCaps
from emcaps.nn.layers import ImageConv


def children(batch=2, height=6, width=7, types=3):
    generator = torch.Generator().manual_seed(0)
    return RoutingOutput(
        torch.randn(batch, height, width, types, 4, 4, generator=generator),
        torch.rand(batch, height, width, types, generator=generator),
    )


def test_primary_caps_reads_each_position_alone():
    layer = PrimaryCaps(5, 3)
    features = torch.randn(2, 5, 6, 7)
    pose, activation = layer(features)
    assert pose.shape == (2, 6, 7, 3, 4, 4)
    assert activation.shape == (2, 6, 7, 3)
    at = features[1, :, 4, 2]
    want_pose = (layer.pose.weight[:, :, 0, 0] @ at + layer.pose.bias).view(3, 4, 4)
    want_activation = (layer.activation.weight[:, :, 0, 0] @ at + layer.activation.bias).sigmoid()
    torch.testing.assert_close(pose[1, 4, 2], want_pose)
    torch.testing.assert_close(activation[1, 4, 2], want_activation)


@pytest.mark.parametrize("size", [(13, 13), (14, 17), (32, 32)])
@pytest.mark.parametrize("channels", [1, 2])
def test_image_conv_is_a_convolution(channels, size):
    """In value and gradients; the gradient of the image too."""
    layer = ImageConv(channels, 6, kernel_size=5, stride=2, padding=2).double()
    images = torch.randn(3, channels, *size, dtype=torch.float64, requires_grad=True)
    inputs = [images, *layer.parameters()]
    want, got = nn.Conv2d.forward(layer, images), layer(images)
    torch.testing.assert_close(got, want)
    slope = torch.randn_like(want)
    for gradient, expected in zip(
        torch.autograd.grad(got, inputs, slope), torch.autograd.grad(want, inputs, slope), strict=True
    ):
        torch.testing.assert_close(gradient, expected)


def test_primary_caps_are_the_same_in_one_product():
    """What a GPU runs, in value and gradients."""
    layer = PrimaryCaps(5, 3).double()
    features = torch.randn(2, 5, 6, 7, dtype=torch.float64, requires_grad=True)
    inputs = [features, *layer.parameters()]
    want, got = layer.by_convolution(features), layer.in_one_product(features)
    slopes = [torch.randn_like(output) for output in want]
    for output, expected in zip(
        (*got, *torch.autograd.grad(got, inputs, slopes)),
        (*want, *torch.autograd.grad(want, inputs, slopes)),
        strict=True,
    ):
        torch.testing.assert_close(output, expected)


def test_conv_caps_is_conv_routing_with_its_parameters():
    layer = ConvCaps(3, 4, kernel=(2, 3), stride=(2, 1), padding=(1, 2), iterations=2, variance_floor=1e-3)
    layer.beta_u.data.normal_()
    layer.beta_a.data.normal_()
    got = layer(children())
    options = {"stride": (2, 1), "padding": (1, 2), "iterations": 2, "variance_floor": 1e-3}
    want = conv_routing(*children(), layer.weight, layer.beta_u, layer.beta_a, **options)
    assert got.pose.shape == (2, 4, 9, 4, 4, 4)
    assert torch.equal(got.pose, want.pose)
    assert torch.equal(got.activation, want.activation)


def test_class_caps_is_class_routing_with_its_parameters():
    layer = ClassCaps(3, 5, iterations=3, final_lambda=0.5)
    got = layer(children())
    want = class_routing(*children(), layer.weight, layer.beta_u, layer.beta_a, iterations=3, final_lambda=0.5)
    assert got.activation.shape == (2, 5)
    assert torch.equal(got.pose, want.pose)
    assert torch.equal(got.activation, want.activation)


def members(batch=2, size=6, types=3):
    pose, activation = children(batch, size, 1, types)
    return RoutingOutput(pose.squeeze(2), activation.squeeze(2))


def test_set_caps_is_set_routing_with_its_parameters():
    layer = SetCaps(3, 5, iterations=3, final_lambda=0.5)
    layer.beta_a.data.normal_()
    mask = torch.tensor([[True] * 6, [True, False] * 3])
    got = layer(members(), mask)
    betas, options = (layer.beta_u, layer.beta_a), {"iterations": 3, "final_lambda": 0.5}
    want = set_routing(*members(), layer.weight, *betas, mask=mask, **options)
    assert got.pose.shape == (2, 5, 4, 4)
    assert torch.equal(got.pose, want.pose)
    assert torch.equal(got.activation, want.activation)
    assert not torch.equal(got.activation, layer(members()).activation)
    torch.testing.assert_close(layer.trace(members(), mask)[-1].activation, got.activation)


def test_a_set_of_wholes_is_a_member_of_the_next_layer():
    wholes = SetCaps(3, 5)(members())
    classes = SetCaps(5, 2)(RoutingOutput(wholes.pose[:, None], wholes.activation[:, None]))
    assert classes.activation.shape == (2, 2)


@pytest.mark.parametrize(
    ("make", "windows", "read"),
    [(ConvCaps, {"stride": 2, "padding": 1}, children()), (ClassCaps, {}, children()), (SetCaps, {}, members())],
)
def test_trace_ends_where_forward_does(make, windows, read):
    """In float32 and not to the bit: only the reference keeps a trace, and three iterations amplify rounding."""
    torch.manual_seed(0)
    layer = make(3, 5, **windows, iterations=3)
    trace = layer.trace(read)
    output = layer(read)
    assert len(trace) == 3
    torch.testing.assert_close(trace[-1].mean, output.pose, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(trace[-1].activation, output.activation, rtol=1e-3, atol=1e-4)


def test_layers_name_their_sizes():
    assert "3, 4, kernel=(3, 3), stride=(2, 2)" in repr(ConvCaps(3, 4, stride=2, iterations=2))
    assert "padding" not in repr(ConvCaps(3, 4))
    assert "stride=(1, 1), padding=(1, 0)" in repr(ConvCaps(3, 4, padding=(1, 0)))
    assert "3, 5" in repr(ClassCaps(3, 5))
    assert "3, 5" in repr(SetCaps(3, 5))


def test_layers_reject_bad_options_when_they_are_made():
    with pytest.raises(ValueError, match="unknown routing option 'iteration': did you mean 'iterations'"):
        ConvCaps(3, 4, iteration=3)
    with pytest.raises(ValueError, match="iterations must be a whole number of at least 1, not 0"):
        ClassCaps(3, 5, iterations=0)
    with pytest.raises(ValueError, match="unknown impl 'tritn': did you mean 'triton'"):
        ConvCaps(3, 4, impl="tritn")
    with pytest.raises(ValueError, match="padding must be smaller than the kernel of 3x3, not 3"):
        ConvCaps(3, 4, padding=3)


def test_matrices_start_as_told():
    layer = ConvCaps(3, 4, identity=2.0, noise=0.0)
    assert torch.equal(layer.weight.detach(), (2 * torch.eye(4)).expand(3, 3, 3, 4, 4, 4))
    torch.manual_seed(0)
    noise = ClassCaps(64, 64, identity=0.0, noise=0.5).weight.detach()
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)


def test_conv_caps_rejects_a_kernel_that_makes_no_sense():
    with pytest.raises(ValueError, match="kernel must be a whole number of at least 1"):
        ConvCaps(3, 4, kernel=0)


def test_layers_say_what_they_read():
    with pytest.raises(ValueError, match=r"features must be \(batch, 7, height, width\), not \(7, 5, 3\)"):
        PrimaryCaps(7, types=2)(torch.zeros(7, 5, 3))
    with pytest.raises(ValueError, match=r"give a feature map of 7 channels .*, or build the layer for other channels"):
        PrimaryCaps(7, types=2)(torch.zeros(1, 8, 5, 3))
    for layer in (ConvCaps(8, 16, stride=2, iterations=2), SetCaps(8, 4), ClassCaps(8, classes=4, iterations=2)):
        with pytest.raises(ValueError, match="reads poses and activations, not a Tensor: give it the result of"):
            layer(torch.zeros(2, 8, 5, 5))
        with pytest.raises(ValueError, match="reads poses and activations, not a Tensor: give it the result of"):
            layer.trace(torch.zeros(2, 8, 5, 5))
    with pytest.raises(ValueError, match="reads poses and activations, not a Tensor: give it the result of"):
        layer.logits(torch.zeros(2, 8, 5, 5))
