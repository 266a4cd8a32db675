import pytest
import torch

from emcaps.config import preset
from emcaps.data.augment import to_tensors
from emcaps.nn import build_network
from emcaps.train.schedules import learning_rate, spread_margin
from emcaps.train.step import TrainingStep, make_optimiser, make_sums
from patterns import pattern_examples

CPU = torch.device("cpu")


def make(config):
    images, labels = to_tensors(pattern_examples((4, 6), views=3, seed=1), config.data.view, CPU)
    torch.manual_seed(0)
    network = build_network(config.network, config.data.image_channels, config.data.crop)
    return TrainingStep(network, make_optimiser(network, config.train), images, labels, config, make_sums(CPU))


def assert_same_state(first, second):
    for one, other in zip(first.state(), second.state(), strict=True):
        assert torch.equal(one, other)


def test_steps_depend_on_their_number_alone(config):
    """Not on what was drawn before, by whomever."""
    straight, disturbed = make(config), make(config)
    for number in range(3):
        straight(number)
        torch.rand(5)
        disturbed.generator.manual_seed(99)
        disturbed(number)
    assert_same_state(straight, disturbed)


def test_sums_count_steps_losses_and_right_answers(config):
    step = make(config)
    for number in range(4):
        step(number)
    assert float(step.sums["steps"]) == 4
    assert float(step.sums["loss"]) > 0
    assert 0 <= float(step.sums["right"]) <= 4 * config.train.batch_size


def test_prepare_writes_schedules_into_tensors_where_there_are_some(config):
    step = make(config)
    step.prepare(700)
    assert (step.optimiser.param_groups[0]["lr"], step.margin) == (learning_rate(700), spread_margin(700))

    rate, step.margin = torch.zeros(()), torch.zeros(())
    step.optimiser.param_groups[0]["lr"], margin = rate, step.margin
    step.prepare(900)
    assert step.optimiser.param_groups[0]["lr"] is rate
    assert step.margin is margin
    assert rate == torch.tensor(learning_rate(900))
    assert margin == torch.tensor(spread_margin(900))


def test_schedules_in_tensors_train_as_schedules_in_numbers_do(config):
    numbers, tensors = make(config), make(config)
    tensors.optimiser.param_groups[0]["lr"], tensors.margin = torch.zeros(()), torch.zeros(())
    for number in range(3):
        numbers(number)
        tensors(number)
    for one, other in zip(numbers.state(), tensors.state(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "layer"), [("cnn", "conv1"), ("tiny", "relu_conv1")])
def test_autocast_runs_layers_in_bfloat16_and_keeps_weights_and_sums_in_float32(name, layer):
    config = preset(name).override({"data.crop": 16, "train.batch_size": 8, "train.autocast": "bfloat16"})
    step, plain, seen = make(config), make(config.override({"train.autocast": "off"})), []
    for each in (step, plain):
        each.network.get_submodule(layer).register_forward_hook(lambda _module, _inputs, out: seen.append(out.dtype))
        each(0)
    assert seen == [torch.bfloat16, torch.float32]
    assert {tensor.dtype for tensor in step.state()} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in step.state())
    assert float(step.sums["loss"]) == pytest.approx(float(plain.sums["loss"]), rel=0.02)


def test_make_optimiser_on_a_cpu_is_plain_adam(config):
    """As in every run recorded on a CPU: whatever a GPU needs must not change their bits."""
    group = make(config).optimiser.param_groups[0]
    assert (group["lr"], group["capturable"], group["fused"]) == (config.train.learning_rate, False, None)
