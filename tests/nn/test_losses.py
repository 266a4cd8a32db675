import math

import pytest
import torch

from emcaps.nn import cross_entropy_loss, margin_loss, spread_loss
from emcaps.routing import RoutingOutput

ACTIVATION = torch.tensor([[0.9, 0.2, 0.6], [0.1, 0.3, 0.5]], dtype=torch.float64)
TARGET = torch.tensor([0, 1])


def loop_spread(margin):
    total = 0.0
    for row, target in zip(ACTIVATION.tolist(), TARGET.tolist(), strict=True):
        total += sum(max(0.0, margin - (row[target] - a)) ** 2 for i, a in enumerate(row) if i != target)
    return total / len(ACTIVATION)


@pytest.mark.parametrize("margin", [0.2, 0.5, 0.9])
def test_spread_loss_is_the_papers_sum(margin):
    assert float(spread_loss(ACTIVATION, TARGET, margin)) == pytest.approx(loop_spread(margin), rel=1e-12)


def test_spread_loss_is_exactly_zero_beyond_the_margin():
    assert float(spread_loss(torch.tensor([[0.95, 0.0, 0.04]]), torch.tensor([0]), 0.9)) == 0.0


def test_margin_loss_by_hand():
    want = (0.0 + 0.5 * (0.1**2 + 0.5**2) + 0.6**2 + 0.5 * 0.4**2) / 2
    assert float(margin_loss(ACTIVATION, TARGET)) == pytest.approx(want, rel=1e-12)


def test_cross_entropy_loss_by_hand():
    want = -(math.log(0.9 / 1.7) + math.log(0.3 / 0.9)) / 2
    assert float(cross_entropy_loss(ACTIVATION, TARGET)) == pytest.approx(want, rel=1e-9)


def test_cross_entropy_loss_of_dead_capsules_is_finite():
    activation = torch.zeros(1, 3, requires_grad=True)
    loss = cross_entropy_loss(activation, torch.tensor([1]))
    loss.backward()
    assert math.isfinite(loss.item())
    assert bool(activation.grad.isfinite().all())


@pytest.mark.parametrize("loss", [lambda a, t: spread_loss(a, t, 0.5), margin_loss, cross_entropy_loss])
def test_gradients(loss):
    activation = ACTIVATION.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda a: loss(a, TARGET), (activation,))


WEIGHTED = pytest.mark.parametrize(
    "loss", [margin_loss, cross_entropy_loss, lambda *given: spread_loss(*given[:2], 0.2, *given[2:])]
)


@WEIGHTED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_weights_all_examples_alike(loss, dtype, device):
    activation, target = ACTIVATION.to(device, dtype), TARGET.to(device)
    torch.testing.assert_close(loss(activation, target, 0.25), loss(activation, target, None) / 4)


@WEIGHTED
@pytest.mark.parametrize(
    ("target", "weight", "message"),
    [
        (torch.tensor([0]), None, r"target must be the number of a class for each of the 2 examples, not .*\(1,\)"),
        (torch.tensor([[1, 0, 0], [0, 1, 0]]), None, r"one-hot targets become numbers by argmax\(-1\)"),
        (torch.tensor([0.0, 1.0]), None, "target must be the number of a class .* not torch.float32"),
        (TARGET, torch.ones(2, 1), r"weight must be \(2,\), one for each example, not \(2, 1\)"),
    ],
)
def test_what_would_be_broadcast_to_a_wrong_number_is_refused(loss, target, weight, message):
    with pytest.raises(ValueError, match=message):
        loss(ACTIVATION, target, weight)


@WEIGHTED
@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_target_beyond_the_classes_is_refused_on_a_cpu(loss, wrong):
    message = rf"target must be 0 to 2, the numbers of 3 classes, not {wrong}: number the classes from 0"
    with pytest.raises(ValueError, match=message):
        loss(ACTIVATION, torch.tensor([1, wrong]))


@WEIGHTED
def test_the_check_of_targets_is_left_out_where_values_cannot_be_seen(loss):
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ACTIVATION, TARGET), loss(ACTIVATION, TARGET))
    mapped = torch.vmap(lambda activation: loss(activation, TARGET))(ACTIVATION[None])
    torch.testing.assert_close(mapped[0], loss(ACTIVATION, TARGET))


@WEIGHTED
def test_the_output_of_a_network_instead_of_its_activation_is_refused(loss):
    output = RoutingOutput(torch.zeros(2, 3, 4, 4), ACTIVATION)
    with pytest.raises(ValueError, match=r"not a RoutingOutput: give the \.activation of what the network returns"):
        loss(output, TARGET)


@pytest.mark.parametrize("margin", [2, -0.1, math.nan])
def test_a_margin_that_activations_cannot_keep_is_refused(margin):
    with pytest.raises(ValueError, match=rf"margin must be 0 to 1, as activations are, not {margin}"):
        spread_loss(ACTIVATION, TARGET, margin)


def test_a_margin_is_one_number():
    """As many margins as classes would be read as the margins of classes."""
    with pytest.raises(ValueError, match=r"margin must be one number for all examples, not \(3,\)"):
        spread_loss(ACTIVATION, TARGET, torch.tensor([0.2, 0.5, 0.9]))
    number = spread_loss(ACTIVATION, TARGET, 0.5)
    for shape in ((), (1,)):
        torch.testing.assert_close(spread_loss(ACTIVATION, TARGET, torch.full(shape, 0.5)), number)


@WEIGHTED
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_targets_may_be_whole_numbers_of_any_size(loss, dtype):
    assert torch.equal(loss(ACTIVATION, TARGET.to(dtype)), loss(ACTIVATION, TARGET))


@WEIGHTED
def test_what_is_no_tensor_of_class_numbers_is_refused(loss):
    with pytest.raises(ValueError, match=r"for each of the 2 examples, not torch\.bool"):
        loss(ACTIVATION, TARGET.bool())
    with pytest.raises(ValueError, match="target must be a tensor of class numbers, not a list"):
        loss(ACTIVATION, TARGET.tolist())
    with pytest.raises(ValueError, match="weight must be a number or a tensor, not a list"):
        loss(ACTIVATION, TARGET, [1.0, 2.0])


def test_cross_entropy_of_small_activations_is_finite_in_float16():
    loss = cross_entropy_loss(torch.zeros(2, 3, dtype=torch.float16), TARGET)
    assert loss.isfinite()
