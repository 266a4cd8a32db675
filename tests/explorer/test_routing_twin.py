"""The routing in the explorer's page agrees with the reference to 1e-10 in float64, for any shape and settings."""

from typing import Any

import pytest
import torch

from emcaps import class_routing_trace, conv_routing_trace
from explorer.twin import run_twin

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
NAMES = {"iterations": "iterations", "final_lambda": "finalLambda", "variance_floor": "varianceFloor"}
NAMES |= {"data_scaling": "dataScaling", "competition": "competition"}
SETTINGS = {
    "two iterations": {"iterations": 2},
    "five iterations": {"iterations": 5, "final_lambda": 0.5, "variance_floor": 1e-2},
    "no scaling": {"iterations": 3, "data_scaling": "none", "final_lambda": 0.01},
    "types compete": {"iterations": 3, "competition": "types"},
}


def children(height: int, width: int, types: int, zero_activation: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(height * 100 + width * 10 + types)
    pose = torch.randn(1, height, width, types, 4, 4, generator=random, dtype=torch.float64)
    activation = torch.rand(1, height, width, types, generator=random, dtype=torch.float64)
    return pose, torch.zeros_like(activation) if zero_activation else activation


def in_javascript(shape: dict[str, Any], tensors: dict[str, torch.Tensor], options: dict[str, Any]) -> dict[str, Any]:
    defaults = {"final_lambda": 1.0, "variance_floor": 1e-4, "data_scaling": "mean", "competition": "all"}
    settings = {NAMES[name]: value for name, value in (defaults | options).items()}
    flat = {name: tensor.flatten().tolist() for name, tensor in tensors.items()}
    return run_twin("route", shape=shape, settings=settings, **flat)


def assert_equal_steps(found: list[dict[str, Any]], expected: Any) -> None:
    assert len(found) == len(expected)
    for step, other in zip(found, expected, strict=True):
        for name in ("assignment", "mean", "variance", "cost", "activation"):
            wanted = getattr(other, name).flatten()
            torch.testing.assert_close(torch.tensor(step[name], dtype=torch.float64), wanted, **TOLERANCE)


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize(
    ("height", "width", "types", "parents", "kernel", "stride"),
    [(5, 6, 3, 4, (3, 2), (2, 1)), (1, 1, 1, 1, (1, 1), (1, 1)), (7, 5, 2, 3, (3, 3), (3, 2))],
)
def test_convolutional_layers(options, height, width, types, parents, kernel, stride):
    pose, activation = children(height, width, types)
    random = torch.Generator().manual_seed(parents)
    weight = torch.randn(*kernel, types, parents, 4, 4, generator=random, dtype=torch.float64)
    beta_u, beta_a = torch.randn(2, parents, generator=random, dtype=torch.float64)
    shape = {"grid": (height, width), "childTypes": types, "parentTypes": parents, "kernel": kernel, "stride": stride}
    tensors = {"pose": pose, "activation": activation, "weight": weight, "betaU": beta_u, "betaA": beta_a}
    expected = conv_routing_trace(
        pose, activation, weight, beta_u, beta_a, stride=stride, impl="reference", **{"iterations": 3} | options
    )
    assert_equal_steps(in_javascript(shape, tensors, options)["steps"], expected)


@pytest.mark.parametrize("zero_activation", [False, True])
def test_class_layers(zero_activation):
    pose, activation = children(3, 4, 5, zero_activation)
    weight = torch.randn(5, 6, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    beta = torch.linspace(-1, 1, 6, dtype=torch.float64)
    shape = {"grid": (3, 4), "childTypes": 5, "parentTypes": 6}
    tensors = {"pose": pose, "activation": activation, "weight": weight, "betaU": beta, "betaA": beta}
    expected = class_routing_trace(pose, activation, weight, beta, beta, iterations=3, impl="reference")
    found = in_javascript(shape, tensors, {"iterations": 3})
    assert_equal_steps(found["steps"], expected)
    share = expected[-1].assignment.flatten(1, 3) * activation.flatten(1)[..., None]
    effective = share.sum(1) ** 2 / share.square().sum(1).clamp_min(1e-300)
    torch.testing.assert_close(torch.tensor([found["effective"]], dtype=torch.float64), effective, **TOLERANCE)


def test_a_difference_would_be_found():
    pose, activation = children(2, 2, 2)
    weight, beta = torch.randn(2, 2, 4, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    shape = {"grid": (2, 2), "childTypes": 2, "parentTypes": 2}
    tensors = {"pose": pose, "activation": activation, "weight": weight, "betaU": beta, "betaA": beta}
    found = in_javascript(shape, tensors, {"iterations": 2})["steps"]
    other = class_routing_trace(pose * 1.0001, activation, weight, beta, beta, iterations=2, impl="reference")
    with pytest.raises(AssertionError):
        assert_equal_steps(found, other)
