"""The network in the explorer's page gives what PyTorch gives in float64, from the bytes of the weights file on."""

import base64
import json

import pytest
import torch

from emcaps.analysis.flow import image_shares
from emcaps.config import LayerConfig, NetworkConfig, RunConfig, preset
from emcaps.data.crops import evaluation_crops
from emcaps.nn import build_network
from emcaps.nn.geometry import parameter_count
from emcaps.train import load_network
from emcaps.train.average import AveragedWeights
from emcaps.train.checkpoint import save_checkpoint, save_weights
from emcaps.weights import find_weights
from explorer.twin import run_twin

TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}


def encoded(path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def compared(path):
    """What node and PyTorch make of one random image: PyTorch prepares it in float32 and routes node's crop."""
    network, config, _ = load_network(path, "cpu", "reference")
    side = config.data.size or 48
    image = torch.randint(256, (1, network.image_channels, side, side), generator=torch.Generator().manual_seed(0))
    crops = evaluation_crops(image.to(torch.uint8), config.data.crop, 1, config.data.standardise)[:, 0]
    found = run_twin("network", weights=encoded(path), image=image.flatten().tolist())
    with torch.no_grad():
        trace = network.double().eval().trace(torch.tensor(found["crop"], dtype=torch.float64).view_as(crops))
        flow = image_shares(network, trace, torch.tensor([1]), 0)
    assert_close(found["flow"], flow)
    return found, crops, trace


def assert_close(found, expected):
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected.double().flatten(), **TOLERANCE)


def check(found, crops, trace):
    assert_close(found["crop"], crops)
    assert_close(found["primary"]["pose"], trace.primary_caps.pose)
    assert_close(found["primary"]["activation"], trace.primary_caps.activation)
    assert [layer["name"] for layer in found["layers"]] == list(trace.names[1:])
    for layer, routed in zip(found["layers"], trace.routed, strict=True):
        for step, other in zip(layer["steps"], routed, strict=True):
            for name in ("assignment", "mean", "variance", "activation"):
                assert_close(step[name], getattr(other, name))


@pytest.mark.parametrize("name", ["small-toys", "small-stereo"])
def test_shipped_networks(name):
    found, crops, trace = compared(find_weights(name))
    check(found, crops, trace)
    assert found["names"] == ["animal", "human", "airplane", "truck", "car"]


def test_a_network_of_other_layers_on_own_colour_pictures(tmp_path):
    layers = (LayerConfig(3, kernel=5, stride=2), LayerConfig(4))
    network = NetworkConfig(conv_channels=6, primary_types=2, classes=3, layers=layers, input="standardised")
    sections = {"data": {"names": ["a", "b", "c"], "channels": 3, "size": 40, "crop": 36, "standardise": "image"}}
    config = RunConfig.from_dict(sections | {"network": json.loads(json.dumps(vars(network), default=vars))})
    torch.manual_seed(0)
    path = tmp_path / "weights.safetensors"
    save_weights(path, build_network(config.network, 3, 36), config, 0)
    found, crops, trace = compared(path)
    check(found, crops, trace)
    assert found["names"] == ["a", "b", "c"]


def test_a_checkpoint_with_averaged_weights_is_shown_with_their_mean(tmp_path):
    config = preset("tiny").override({"network.conv1_types": 2, "network.conv2_types": 3, "data.crop": 16})
    config = config.override({"train.average": 1.0, "train.steps": 2})
    torch.manual_seed(0)
    network = build_network(config.network, 1, 16)
    average = AveragedWeights(network, config.train)
    for step in (1, 2):
        for value in network.parameters():
            value.data += 0.1 * torch.randn_like(value)
        average.add(step)
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, network, torch.optim.Adam(network.parameters()), {}, average, config, 2)
    found, crops, trace = compared(path)
    check(found, crops, trace)
    with torch.no_grad():
        trained = network.double().trace(torch.tensor(found["crop"], dtype=torch.float64).view_as(crops))
    assert not torch.allclose(trained.primary_caps.pose, trace.primary_caps.pose, atol=1e-3)


def test_a_network_with_a_decoder(tmp_path):
    settings = {"network.decoder": 3, "network.conv1_types": 2, "network.conv2_types": 3, "data.crop": 16}
    config = preset("tiny").override(settings)
    torch.manual_seed(0)
    path = tmp_path / "weights.safetensors"
    save_weights(path, build_network(config.network, 1, 16), config, 0)
    found, crops, trace = compared(path)
    check(found, crops, trace)
    assert found["parameters"] == parameter_count(config.network, 1)


def test_a_network_with_other_coordinates(tmp_path):
    settings = {"network.coordinate_scale": 0.25, "network.conv1_types": 2, "network.conv2_types": 3, "data.crop": 16}
    config = preset("tiny").override(settings)
    torch.manual_seed(0)
    path = tmp_path / "weights.safetensors"
    save_weights(path, build_network(config.network, 1, 16), config, 0)
    check(*compared(path))


@pytest.mark.parametrize("damage", ["cut", "letters", "cnn", "nan"])
def test_other_files_are_refused_in_a_sentence(damage, tmp_path):
    path = tmp_path / "weights.safetensors"
    config = preset("cnn" if damage == "cnn" else "tiny")
    network = build_network(config.network, 1, 32)
    if damage == "nan":
        torch.nn.init.constant_(network.conv_caps1.beta_a, float("nan"))
    save_weights(path, network, config, 0)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-400])
    if damage == "letters":
        path.write_bytes(b"no weights at all, just letters")
    expected = {"cut": "damaged", "letters": "no safetensors", "cnn": "no routing", "nan": "not finite"}
    assert expected[damage] in run_twin("refuse", weights=encoded(path))["message"]
