import pytest
import torch

from emcaps.config import NetworkConfig, preset
from emcaps.nn import build_network
from emcaps.nn.images import standardised

TINY = {"conv_channels": 4, "primary_types": 2, "conv1_types": 3, "conv2_types": 2, "classes": 4}


def grey_images(count=3, channels=2, side=16):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=generator)


def test_standardised_images_have_mean_0_and_deviation_1_over_channels_and_pixels():
    found = standardised(grey_images(), torch.float64)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.mean((1, 2, 3)), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(found.square().mean((1, 2, 3)), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("factor", "shift"), [(1 / 255, 0.0), (2 / 255, -1.0), (1e-30, 0.0), (1e30, 0.0), (1.0, 900.0)]
)
def test_scale_and_offset_of_an_image_do_not_matter(factor, shift):
    images = grey_images()
    found = standardised(images.float() * factor + shift, torch.float32)
    torch.testing.assert_close(found, standardised(images, torch.float32), rtol=0, atol=1e-5)


def test_a_standardised_image_stays_as_it_is_and_an_image_does_not_depend_on_its_neighbours():
    once = standardised(grey_images(), torch.float32)
    torch.testing.assert_close(standardised(once, torch.float32), once, rtol=0, atol=1e-6)
    assert torch.equal(standardised(grey_images()[1:2], torch.float32), once[1:2])


@pytest.mark.parametrize("level", [0.0, 0.1, 255.0, -1e20])
def test_a_blank_image_becomes_zeros(level):
    assert not standardised(torch.full((2, 1, 13, 13), level), torch.float32).any()


def test_the_gradient_reaches_the_images_and_is_that_of_the_formula():
    images = torch.rand(2, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: standardised(x, torch.float64), [images])


@pytest.mark.parametrize("kind", ["capsules", "cnn"])
def test_a_network_built_from_a_plain_config_takes_raw_images_of_any_scale(kind):
    torch.manual_seed(0)
    network = build_network(NetworkConfig(kind=kind, **TINY), image_channels=2, image_size=16).eval()
    images = grey_images()

    def scores(x):
        output = network(x)
        return output if kind == "cnn" else output.activation

    want = scores(images)
    for same in (images.float() / 255, images.double() - 7, images.long(), standardised(images, torch.float32)):
        torch.testing.assert_close(scores(same), want, rtol=1e-4, atol=1e-4)


def test_raw_images_follow_the_precision_of_the_network():
    network = build_network(NetworkConfig(**TINY), image_channels=2).double()
    assert network(grey_images()).activation.dtype == torch.float64


def test_a_network_that_reads_images_as_given_is_that_without_standardising():
    torch.manual_seed(0)
    raw = build_network(NetworkConfig(**TINY), image_channels=2)
    given = build_network(NetworkConfig(**TINY, input="as_given"), image_channels=2)
    given.load_state_dict(raw.state_dict())  # the setting adds no tensors
    images = grey_images()
    prepared = standardised(images, torch.float32)
    assert torch.equal(given(prepared).activation, raw(images).activation)
    assert not torch.equal(given(images.float()).activation, raw(images).activation)
    with pytest.raises(TypeError, match=r"not torch\.uint8: .*network\.input='standardised' takes"):
        given(images)
    with pytest.raises(TypeError, match="images must be a tensor, not list"):
        raw([1, 2])
    with pytest.raises(TypeError, match=r"not torch\.complex64"):
        raw(prepared.to(torch.complex64))


@pytest.mark.parametrize("name", ["tiny", "small", "full", "cnn"])
def test_the_network_of_a_preset_reads_images_as_given(name):
    assert preset(name).network.input == "as_given"


@pytest.mark.parametrize("grey", [0.0, 0.5, 255.0])
@pytest.mark.parametrize("kind", ["capsules", "cnn"])
def test_a_blank_image_gives_gradients_of_zero_and_spoils_no_other(kind, grey):
    torch.manual_seed(0)
    settings = {"cnn_channels": 2, "cnn_hidden": 3, "classes": 4} if kind == "cnn" else TINY
    network = build_network(NetworkConfig(kind=kind, input="standardised", **settings), 2, 16).eval()

    def gradient(images):
        images = images.clone().requires_grad_()
        found = network(images)
        (found if kind == "cnn" else found.activation)[1:].sum().backward()
        return images.grad

    images = torch.rand(3, 2, 16, 16)
    alone = gradient(images)
    images[0] = grey
    with_blank = gradient(images)
    assert alone.isfinite().all()
    torch.testing.assert_close(with_blank, alone, rtol=1e-4, atol=1e-6)
    blank = torch.full((1, 2, 16, 16), grey, requires_grad=True)
    output = network(blank)
    (output if kind == "cnn" else output.activation).sum().backward()
    assert not blank.grad.any()


@pytest.mark.parametrize("kind", ["capsules", "cnn"])
def test_images_that_are_more_exact_than_the_network_get_a_clear_error(kind):
    network = build_network(NetworkConfig(kind=kind, input="as_given", classes=4), 2, 16)
    images = torch.rand(1, 2, 16, 16, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"must be torch\.float32, as the network's weights are, not torch\.float64"):
        network(images)
    network.double()(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network.float()(images.bfloat16())
