import pytest
import torch

from emcaps.config import preset
from emcaps.data.combine import Counterparts, find_counterparts
from emcaps.data.tensors import to_tensors
from emcaps.nn import build_network
from emcaps.routing import RoutingOutput
from emcaps.train import batch
from emcaps.train import step as steps
from emcaps.train.schedules import cosine_rate, learning_rate, linear_margin, spread_margin
from emcaps.train.step import TrainingStep, loss_of, make_optimiser, make_sums
from patterns import pattern_examples

CPU = torch.device("cpu")


def make(config, device=CPU):
    examples = pattern_examples((4, 6), views=3, seed=1)
    images, labels = to_tensors(examples, config.data.view, device)
    counterparts = find_counterparts(examples, config.data.view, device) if config.data.splice else None
    torch.manual_seed(0)
    network = build_network(config.network, config.data.image_channels, config.data.crop).to(device)
    return TrainingStep(
        network, make_optimiser(network, config.train), images, labels, config, make_sums(images.device), counterparts
    )


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


def test_a_step_splices_if_the_config_says_so(config):
    """Against a step whose every example is its own only counterpart: it draws as many numbers."""
    spliced, whole = (make(config.override({"data.splice": 1.0})) for _ in range(2))
    alone = torch.arange(len(whole.images))
    whole.counterparts = Counterparts(alone, alone, torch.ones_like(alone))
    spliced(0)
    whole(0)
    assert any(not torch.equal(one, other) for one, other in zip(spliced.state(), whole.state(), strict=True))
    with pytest.raises(ValueError, match=r"data.splice is 1.0, so a step needs counterparts"):
        TrainingStep(whole.network, whole.optimiser, whole.images, whole.labels, spliced.config, whole.sums)


def test_a_step_trains_on_its_share_of_what_kernels_make_of_the_whole_batch(config, device, monkeypatch):
    """On a CPU in Triton's interpreter. A share of its own draws or neighbours would give other crops."""
    kernels, trained = [], []
    real = batch._by_kernels
    monkeypatch.setattr(batch, "_by_kernels", lambda *arguments: kernels.append(1) or real(*arguments))
    if device == "cpu":
        monkeypatch.setattr(batch, "_runs_kernels", lambda device: True)

    def keep(network, optimiser, crops, labels, config, margin, mixed, answer):
        trained.append([crops, labels, *mixed])
        return crops.new_zeros(()), crops.new_zeros(())

    monkeypatch.setattr(steps, "train_step", keep)
    step = make(config.override({"data.splice": 0.5, "train.mixup": 0.5}), device)
    for step.share in (slice(None), slice(0, 3), slice(3, None)):
        step(5)
    assert len(kernels) == 3
    whole, *parts = trained
    for one, *others in zip(whole, *parts, strict=True):
        assert len(one) == config.train.batch_size
        assert torch.equal(one, torch.cat(others))


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
    tensors.margin = torch.zeros(())
    for group in tensors.optimiser.param_groups:
        group["lr"] = torch.zeros(())
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


@pytest.mark.parametrize(("rates", "factors"), [((10.0, 0.0), (10, 10)), ((10.0, 3.0), (10, 3)), ((1.0, 5.0), (1, 5))])
def test_betas_learn_as_many_times_faster_as_the_config_says(config, rates, factors):
    """Adam's first step moves every parameter by its own learning rate, whatever the size of its gradient."""
    settings = dict(zip(("train.beta_rate", "train.beta_a_rate"), rates, strict=True))
    step = make(config.override(settings | {"train.weight_decay": 0.0}))
    before = {name: value.detach().clone() for name, value in step.network.named_parameters()}
    step(0)
    factor_of = dict(zip(("beta_u", "beta_a"), factors, strict=True))
    seen = []
    for name, value in step.network.named_parameters():
        last = name.rpartition(".")[-1]
        seen.append(last)
        want = learning_rate(0) * factor_of.get(last, 1)
        assert float((value.detach() - before[name]).abs().max()) == pytest.approx(want, rel=0.01), name
    assert (seen.count("beta_u"), seen.count("beta_a")) == (3, 3)


def test_the_configured_schedules_are_the_ones_that_run(config):
    config = config.override(
        {
            "train.learning_rate_schedule": "cosine",
            "train.warmup_steps": 4,
            "train.margin_schedule": "linear",
            "train.margin_steps": 10,
        }
    )
    step = make(config)
    step.prepare(1)
    assert step.optimiser.param_groups[0]["lr"] == cosine_rate(1, 3e-3, config.train.steps) * 0.5
    assert step.margin == linear_margin(1, 10)


@pytest.mark.parametrize("loss", ["spread", "margin", "cross_entropy"])
def test_a_mixed_loss_is_the_weighted_loss_of_both_labels(config, loss):
    """Against the loss of each example by itself."""
    config = config.override({"train.loss": loss}).train
    activation, labels, share = torch.rand(6, 5), torch.tensor([0, 3, 1, 4, 4, 2]), torch.rand(6)
    output = RoutingOutput(torch.zeros(6, 5, 4, 4), activation)

    def alone(number, label):
        one = RoutingOutput(torch.zeros(1, 5, 4, 4), activation[number : number + 1])
        return loss_of(one, label[None], config, 0.5)

    expected = sum(share[n] * alone(n, labels[n]) + (1 - share[n]) * alone(n, labels[n - 1]) for n in range(6)) / 6
    got = loss_of(output, labels, config, 0.5, share) + loss_of(output, labels.roll(1), config, 0.5, 1 - share)
    torch.testing.assert_close(got, expected)
