import dataclasses

import pytest
import torch

from emcaps.bench import work
from emcaps.bench.cases import CHANNELS, FORWARD, STEP
from emcaps.bench.implementations import Implementation
from emcaps.bench.training_step import training_step
from emcaps.bench.work import build_work, resident_images
from emcaps.nn import MatrixCapsNet

CPU = torch.device("cpu")
REFERENCE = Implementation("reference", "reference")


def test_forward_keeps_no_graph_and_forward_backward_gives_every_gradient(smallest):
    output = build_work(dataclasses.replace(smallest, what=FORWARD), REFERENCE, CPU)()
    assert output.activation.shape == (2, 5)
    assert not output.activation.requires_grad
    gradients = build_work(smallest, REFERENCE, CPU)()
    assert [gradient.shape for gradient in gradients] == [
        parameter.shape for parameter in MatrixCapsNet(smallest.config(), CHANNELS).parameters()
    ]
    assert all(gradient.abs().max() > 0 for gradient in gradients)


@pytest.mark.parametrize("size", [13, 64])
def test_training_step_moves_every_parameter_at_any_size(smallest, size):
    case = dataclasses.replace(smallest, what=STEP, size=size)
    images, labels = (values[:8] for values in resident_images(case, CPU))
    assert images.shape == (8, CHANNELS, size + 16, size + 16)
    assert images.dtype == torch.uint8
    network = MatrixCapsNet(case.config(), CHANNELS)
    before = [parameter.clone() for parameter in network.parameters()]
    step = training_step(network, images, labels, case.batch, size)
    for _ in range(2):
        step()
    for old, new in zip(before, network.parameters(), strict=True):
        assert not torch.equal(old, new)


def test_a_graphed_network_is_what_runs_and_its_parameters_are_the_networks(smallest, monkeypatch):
    """Here it is a function around the network; the real one needs a GPU."""
    examples = []

    def graphed(network, example):
        examples.append(example)
        return lambda images: network(images)

    monkeypatch.setattr(work, "graphed_maker", lambda: graphed)
    implementation = Implementation("graphed", "reference", graphed=True)
    gradients = build_work(smallest, implementation, CPU)()
    for got, want in zip(gradients, build_work(smallest, REFERENCE, CPU)(), strict=True):
        assert torch.equal(got, want)
    assert [example.shape for example in examples] == [(2, CHANNELS, 13, 13)]
    with pytest.raises(ValueError, match="graphed is not timed as a training step: name another --what"):
        build_work(dataclasses.replace(smallest, what=STEP), implementation, CPU)


def test_a_captured_training_step_needs_a_gpu(smallest):
    images, labels = resident_images(smallest, CPU)
    network = MatrixCapsNet(smallest.config(), CHANNELS)
    with pytest.raises(ValueError, match="needs a CUDA device"):
        training_step(network, images, labels, smallest.batch, smallest.size, captured=True)
