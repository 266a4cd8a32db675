import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import emcaps
from emcaps import debug
from emcaps.config import NetworkConfig
from emcaps.nn import ClassCaps, ConvCaps, MatrixCapsNet
from emcaps.routing import RoutingOutput, class_routing, conv_routing

NAMES = ("pose", "activation", "weight", "beta_u", "beta_a")
ROUTINGS = {"conv": conv_routing, "class": class_routing}


def inputs(kind):
    generator = torch.Generator().manual_seed(0)
    weight = (3, 3, 2, 3, 4, 4) if kind == "conv" else (2, 3, 4, 4)
    return {
        "pose": torch.randn(2, 4, 4, 2, 4, 4, generator=generator),
        "activation": torch.rand(2, 4, 4, 2, generator=generator),
        "weight": torch.randn(weight, generator=generator),
        "beta_u": torch.zeros(3),
        "beta_a": torch.zeros(3),
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ROUTINGS)
def test_an_input_that_is_not_finite_is_named(kind, name, value):
    tensors = inputs(kind)
    place = (1,) * tensors[name].dim()
    tensors[name][place] = value
    ROUTINGS[kind](**tensors)  # without the checks, nothing is said
    where = ", ".join(map(str, place))
    with debug.checks(), pytest.raises(ValueError, match=rf"^{name}\[{where}\] is {value} \(1 of [\d,]+ values\)"):
        ROUTINGS[kind](**tensors)


@pytest.mark.parametrize("value", [-1e-6, 1.5])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_an_activation_outside_0_to_1_is_named(value, impl):
    tensors = inputs("conv")
    tensors["activation"][0, 3, 1, 1] = value
    tensors["activation"][1, 2, 0, 0] = value
    message = (
        rf"activation\[0, 3, 1, 1\] is {value:.6g} \(2 of 64 values\), and must be 0 to 1: pass it through a sigmoid"
    )
    with debug.checks(), pytest.raises(ValueError, match=message):
        conv_routing(**tensors, impl=impl)


def test_a_result_that_is_not_finite_is_named():
    """One child that all parents share has votes without variance, so that a floor of zero divides by it."""
    tensors = inputs("class")
    tensors |= {"pose": tensors["pose"][:, :1, :1, :1], "activation": torch.zeros(2, 1, 1, 1)}
    tensors["weight"] = tensors["weight"][:1]
    output = class_routing(**tensors, variance_floor=0.0)
    assert not output.activation.isfinite().all()
    with debug.checks(), pytest.raises(ValueError, match=r"the parents' \w+\[.*raise variance_floor, which is 0\.0"):
        class_routing(**tensors, variance_floor=0.0)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = ConvCaps(2, 3), ClassCaps(3, 4)

    def forward(self, capsules):
        return self.last(self.first(capsules))


def test_the_layer_is_named_as_its_network_knows_it():
    network = MatrixCapsNet(NetworkConfig(classes=3, conv_channels=4, primary_types=2, conv1_types=2, conv2_types=2))
    with torch.no_grad():
        network.conv_caps2.beta_a[1] = float("nan")
    with debug.checks(), pytest.raises(ValueError, match=r"^conv_caps2: beta_a\[1\] is nan \(1 of 2 values\)"):
        network(torch.rand(2, 1, 28, 28))

    capsules = RoutingOutput(torch.randn(1, 4, 4, 2, 4, 4), torch.rand(1, 4, 4, 2))
    model = nn.Sequential(nn.Identity(), Inner())
    with torch.no_grad():
        model[1].last.weight.fill_(float("inf"))
    with debug.checks(), pytest.raises(ValueError, match=r"^1\.last: weight\[0, 0, 0, 0\] is inf"):
        model(capsules)
    with debug.checks(), pytest.raises(ValueError, match=r"^ClassCaps: weight"):
        model[1].last(capsules._replace(pose=torch.randn(1, 4, 4, 3, 4, 4), activation=torch.rand(1, 4, 4, 3)))


def test_checks_end_with_their_block_and_leave_good_numbers_alone():
    tensors = inputs("conv")
    before = conv_routing(**tensors)
    assert not debug.enabled
    with debug.checks():
        assert debug.enabled
        assert torch.equal(conv_routing(**tensors).pose, before.pose)
        with debug.checks(False):
            assert not debug.enabled
        assert debug.enabled
        with pytest.raises(RuntimeError), debug.checks(False):
            raise RuntimeError
        assert debug.enabled
    assert not debug.enabled
    assert emcaps.debug is debug


def test_numbers_are_not_read_under_vmap_nor_in_a_compiled_graph():
    tensors = inputs("class")
    activation = torch.stack([tensors["activation"], tensors["activation"] + 2])
    rest = {name: tensors[name] for name in NAMES if name != "activation"}
    with debug.checks():
        torch.vmap(lambda a: class_routing(activation=a, **rest).activation)(activation)
        compiled = torch.compile(lambda a: class_routing(activation=a, **rest).activation, backend="eager")
        compiled(activation[1])
        with pytest.raises(ValueError, match="must be 0 to 1"):
            class_routing(activation=activation[1], **rest)


@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False), ("", False)])
def test_the_variable_switches_the_checks_on(value, on):
    command = [sys.executable, "-c", "import emcaps.debug; print(emcaps.debug.enabled)"]
    found = subprocess.run(
        command, env=os.environ | {"EMCAPS_DEBUG": value}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(on)


def test_blocks_that_overlap_end_in_any_order():
    first, second = debug.checks(), debug.checks(False)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert debug.enabled is False
    third = debug.checks()
    third.__enter__()
    second.__exit__(None, None, None)
    assert debug.enabled is True
    third.__exit__(None, None, None)
    assert debug.enabled is False
