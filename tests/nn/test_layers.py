import pytest
import torch
from torch import nn

from emcaps import RoutingOutput, class_routing, conv_routing, set_routing
from emcaps.nn import ClassCaps, ConvCaps, PrimaryCaps, SetCaps
from emcaps.nn.layers import ImageConv, _is_usual


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


def test_sizes_of_layers_are_whole_numbers():
    for build in (lambda: PrimaryCaps(8, 0), lambda: PrimaryCaps(8, 2.5), lambda: PrimaryCaps(0, 3)):
        with pytest.raises(ValueError, match=r"(types|in_channels) must be a whole number of at least 1, not (0|2\.5)"):
            build()
    for build in (lambda: ConvCaps(2.5, 3), lambda: ClassCaps(2, True), lambda: SetCaps(0, 3)):
        with pytest.raises(ValueError, match=r"(in_types|classes) must be a whole number of at least 1, not"):
            build()
    with pytest.raises(ValueError, match="noise must be finite, not nan"):
        ConvCaps(2, 3, noise=float("nan"))


@pytest.mark.parametrize("given", [None, {"pose": 1, "activation": 2}])
def test_what_is_no_pair_of_tensors_is_no_capsules(given):
    with pytest.raises(ValueError, match=r"reads poses and activations, not a (NoneType|dict)"):
        ConvCaps(3, 4)(given)


ROUTED = [ConvCaps(3, 4, kernel=2, iterations=2), ClassCaps(3, 4, coordinate_scale=0.5), SetCaps(3, 4)]


@pytest.mark.parametrize("kind", [ConvCaps, ClassCaps, SetCaps, PrimaryCaps])
def test_a_layer_is_built_without_memory_and_started_later(kind):
    deferred = kind(3, 4, device="meta", dtype=torch.float64)
    assert {(tensor.device.type, tensor.dtype) for tensor in deferred.parameters()} == {("meta", torch.float64)}
    started = deferred.to_empty(device="cpu")
    other = kind(3, 4, dtype=torch.float64)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    for one in (started, other):
        torch.manual_seed(1)
        one.reset_parameters()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    assert all(torch.equal(tensor, started.state_dict()[name]) for name, tensor in other.state_dict().items())
    assert torch.nn.utils.skip_init(kind, 3, 4).state_dict().keys() == before.keys()


def test_a_layer_starts_anew_as_a_new_layer_does():
    layer = ConvCaps(3, 4, kernel=2, identity=2.0, noise=0.5)
    layer.beta_u.data.fill_(3.0)
    torch.manual_seed(1)
    layer.reset_parameters()
    torch.manual_seed(1)
    new = ConvCaps(3, 4, kernel=2, identity=2.0, noise=0.5)
    assert all(torch.equal(one, layer.state_dict()[name]) for name, one in new.state_dict().items())


@pytest.mark.parametrize("layer", ROUTED, ids=lambda layer: type(layer).__name__)
def test_routing_is_set_where_the_layer_reads_it(layer):
    with pytest.raises(AttributeError, match=r'set layer\.routing\["iterations"\] instead'):
        layer.iterations = 1
    given = children(height=3, width=3) if not isinstance(layer, SetCaps) else RoutingOutput(*map(flat, children()))
    before = dict(layer.routing)
    layer.routing["iterations"] = 1
    once = layer(given)
    layer.routing = before
    assert not torch.equal(layer(given).pose, once.pose)


def flat(grid):
    return grid.flatten(1, 2)


def test_layers_that_differ_print_differently():
    assert repr(ClassCaps(3, 4)) == "ClassCaps(3, 4)"
    assert repr(ClassCaps(3, 4, coordinate_scale=0.0)) == "ClassCaps(3, 4, coordinate_scale=0.0)"
    assert repr(SetCaps(3, 4, vector_pose=True, iterations=2)) == "SetCaps(3, 4, vector_pose=True, iterations=2)"
    assert repr(ConvCaps(3, 4)) == "ConvCaps(3, 4, kernel=(3, 3), stride=(1, 1))"


def halves(layer, *_given):
    layer.weight.data *= 0.5


class Doubled(nn.Conv2d):
    def forward(self, features):
        return 2 * super().forward(features)


@pytest.mark.parametrize("how", ["hook", "subclass", "patched", "usual"])
def test_one_product_stands_for_the_usual_convolutions_alone(how):
    """On a GPU; what others have made of the convolutions has to run there, too."""
    layer = PrimaryCaps(3, 2)
    if how == "hook":
        layer.pose.register_forward_pre_hook(halves)
    elif how == "subclass":
        layer.activation = Doubled(3, 2, 1)
    elif how == "patched":
        layer.pose.forward = lambda features: nn.Conv2d.forward(layer.pose, features)
    assert all(map(_is_usual, (layer.pose, layer.activation))) == (how == "usual")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="one product is for GPUs")
def test_hooks_run_on_a_gpu():
    layer = PrimaryCaps(3, 2).cuda()
    features = torch.randn(2, 3, 4, 4, device="cuda")
    before = layer(features).pose
    layer.pose.register_forward_hook(lambda _layer, _given, output: output + 1)
    torch.testing.assert_close(layer(features).pose, before + 1, rtol=1e-4, atol=1e-4)
