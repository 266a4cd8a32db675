import dataclasses

import pytest
import torch

from emcaps.bench.cases import BACKWARD, CHANNELS, FORWARD, STEP, Case
from emcaps.bench.floors import floor_of
from emcaps.bench.flops import case_flops
from emcaps.bench.traffic import case_bytes, edge_bytes
from emcaps.bench.work import random_inputs
from emcaps.nn import MatrixCapsNet

CPU = torch.device("cpu")


def tensors_of_layers(case):
    """What every layer of the network reads and writes, as lists of tensors, and its parameters."""
    network = MatrixCapsNet(case.config(), CHANNELS)
    images, _ = random_inputs(case.batch, case.size, network.config.classes, CPU)
    found = []
    for layer in network.children():
        layer.register_forward_hook(
            lambda layer, read, written: found.append((flat(read), list(layer.parameters()), flat(written)))
        )
    network(images)
    return found


def flat(values):
    return [values] if isinstance(values, torch.Tensor) else [each for value in values for each in flat(value)]


def size(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_fewest_bytes_are_those_of_the_networks_own_tensors(smallest):
    layers = tensors_of_layers(smallest)
    assert len(layers) == 5
    forward = sum(size(tensors) for layer in layers for tensors in layer)
    backward = 0
    for read, parameters, written in layers:
        gradients = [tensor for tensor in (*read, *parameters) if tensor.requires_grad]  # of the images there is none
        backward += size(read) + size(parameters) + size(written) + size(gradients)
    assert case_bytes(dataclasses.replace(smallest, what=FORWARD)) == forward
    assert case_bytes(smallest) == case_bytes(dataclasses.replace(smallest, what=STEP)) == forward + backward


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_edge_bytes_are_those_of_the_traced_assignments(smallest, iterations):
    """Every E-step moves an array of the assignments' size four times forward and seven times backward."""
    case = dataclasses.replace(smallest, iterations=iterations)
    network = MatrixCapsNet(case.config(), CHANNELS)
    images, _ = random_inputs(case.batch, case.size, network.config.classes, CPU)
    steps = [step.assignment for trace in network.trace(images).routed for step in trace[1:]]
    assert len(steps) == 3 * (iterations - 1)
    assert edge_bytes(dataclasses.replace(case, what=FORWARD)) == 4 * size(steps)
    assert edge_bytes(case) == 11 * size(steps)


def test_a_row_over_its_floor(row_of):
    """The ceilings of these rows are 60 TFLOP/s and 4,300 GB/s."""
    case = Case("small", 16, 32, 64, 2, BACKWARD)
    found = floor_of(row_of(case, "fused, graph", 2.0))
    assert found.milliseconds == pytest.approx(case_flops(case) / 60e9)
    assert found.share == pytest.approx(found.milliseconds / 2)
    assert found.times == pytest.approx(2 / found.milliseconds)
    assert found.megabytes == pytest.approx(case_bytes(case) / 1e6)
    assert found.edge_megabytes == pytest.approx(edge_bytes(case) / 1e6)


def test_where_bytes_take_longer_they_are_the_floor(row_of):
    case = Case("small", 16, 32, 64, 2, BACKWARD)
    row = row_of(case, "fused, graph", 2.0)._replace(ceiling_gb_per_s=10.0)
    assert floor_of(row).milliseconds == pytest.approx(case_bytes(case) / 10e6)


def test_without_a_time_or_a_ceiling_there_is_no_floor(row_of):
    case = Case("small", 16, 32, 64, 2, BACKWARD)
    assert floor_of(row_of(case, "fused", status="error: x")) is None
    assert floor_of(row_of(case, "fused", 2.0)._replace(ceiling_tflops=None)) is None
