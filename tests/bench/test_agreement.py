import dataclasses
import math

import pytest
import torch

from emcaps.bench import agreement
from emcaps.bench.agreement import FLOOR, Check, check, checked_case, relative_error, results
from emcaps.bench.cases import suite
from emcaps.bench.implementations import Implementation
from emcaps.bench.work import random_inputs

CPU = torch.device("cpu")


@pytest.fixture
def other(monkeypatch):
    """An implementation under test: the reference, whose results `change` then changes."""

    def pretend(change):
        def run(network, images, labels, _at_once):
            values = results(network, images, labels, 1)  # another order of sums, so other roundings
            change(values)
            return values

        monkeypatch.setattr(agreement, "_captured_results", run)
        return [Implementation("other", "reference", captured=True)]

    return pretend


def test_another_order_of_sums_passes(smallest, other):
    (found,) = check(smallest, other(lambda values: None), CPU)
    assert found.passed
    assert found.tensors == 2 + 15
    assert 0 < found.error < 1e-3


@pytest.mark.parametrize(
    "name", ["pose", "activation", "gradient of conv_caps1.beta_a", "gradient of relu_conv1.0.bias"]
)
@pytest.mark.parametrize("wrong", [1.01, math.nan])
def test_one_wrong_tensor_fails_and_is_named(smallest, other, name, wrong):
    (found,) = check(smallest, other(lambda values: values[name].mul_(wrong)), CPU)
    assert not found.passed
    assert found.worst == name


def test_results_do_not_depend_on_how_many_images_go_at_once(smallest):
    network = agreement._random_network(smallest, 0).double()
    images, labels = random_inputs(5, 13, 5, CPU)
    whole, parts = (results(network, images.double(), labels, at_once) for at_once in (5, 2))
    for name, want in whole.items():
        assert relative_error(parts[name], want) < 1e-12, name
        assert parts[name].shape == want.shape


def test_every_gradient_is_there_and_not_zero(smallest):
    network = agreement._random_network(smallest, 0)
    found = results(network, *random_inputs(2, 13, 5, CPU), 2)
    assert set(found) == {"pose", "activation"} | {f"gradient of {name}" for name, _ in network.named_parameters()}
    assert all(value.abs().max() > 0 for value in found.values())


def test_a_reference_that_is_not_finite_passes_nothing(smallest):
    assert not Check(smallest, "x", 1, "pose", 0.1, math.inf).passed
    assert not Check(smallest, "x", 1, "pose", math.inf, 0.1).passed
    assert Check(smallest, "x", 1, "pose", FLOOR, 0.0).passed


def test_checked_cases_are_small_and_the_same_for_all_that_is_timed_of_a_network(smallest):
    assert [checked_case(case).batch for case in suite("batch")] == [1, 4, 16, 33, 33, 33, 33] * 2
    assert len({checked_case(case) for case in suite("headline")}) == 3
    assert checked_case(dataclasses.replace(smallest, what="forward")) == smallest
