"""The losses in one GPU kernel, on a GPU or, without one, in Triton's interpreter: against the formulas in float64.

Run as a program, this file compiles the kernel for a GPU, on a machine without one too. This needs a process of its
own, because a process that interprets Triton cannot compile it.
"""

import math

import pytest
import torch

from compiled_kernels import compile_for, count_compiled
from emcaps.nn import cross_entropy_loss, losses, margin_loss, spread_loss
from emcaps.nn.losses import right_answers

LOSSES = {
    "spread": lambda a, t, w=None: spread_loss(a, t, 0.4, w),
    "margin": margin_loss,
    "cross_entropy": cross_entropy_loss,
}
SHAPES = [(1, 1), (1, 5), (2, 2), (7, 5), (64, 5), (500, 10), (37, 257)]
"""The last two take the kernel more than one pass through its loop."""


@pytest.fixture
def fused(monkeypatch, device):
    """All losses by the kernel, on a CPU too; counts its launches."""
    launches = []
    real = losses._in_one_kernel

    def counted(*arguments, **options):
        launches.append(arguments[0])
        return real(*arguments, **options)

    monkeypatch.setattr(losses, "_in_one_kernel", counted)
    if device == "cpu":
        monkeypatch.setattr(losses, "_fits_kernel", lambda *_: True)
    return launches


def example(shape, device, seed=0):
    """activation, target and weight."""
    generator = torch.Generator().manual_seed(seed)
    batch, classes = shape
    return (
        torch.rand(shape, generator=generator).to(device),
        torch.randint(classes, (batch,), generator=generator).to(device),
        torch.rand(batch, generator=generator).to(device),
    )


def by_formula(kind, activation, target, weight, dtype, margin=0.4):
    """The loss and its gradient by the formulas, computed on the CPU."""
    activation = activation.detach().to("cpu", dtype).requires_grad_()
    weight = None if weight is None else weight.to("cpu", dtype)
    loss = losses._by_formula(kind, activation, target.cpu(), weight, margin)
    (gradient,) = torch.autograd.grad(loss, activation)
    return loss.detach().double(), gradient.double()


def assert_as_exact(got, single, double):
    """The error is at most twice that of the formula in float32, beyond a rounding of the largest number."""
    for one, plain, exact in zip(got, single, double, strict=True):
        one = one.detach().double().cpu()
        assert one.shape == exact.shape
        assert one.isfinite().all()
        rounding = torch.finfo(torch.float32).eps * float(exact.abs().max())
        assert float((one - exact).abs().max()) <= 2 * float((plain - exact).abs().max()) + rounding


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", LOSSES)
def test_value_and_gradient_are_those_of_the_formula(kind, shape, weighted, device, fused):
    activation, target, weight = example(shape, device)
    weight = weight if weighted else None
    activation.requires_grad_()
    loss = LOSSES[kind](activation, target, weight)
    (gradient,) = torch.autograd.grad(loss, activation)
    assert fused == [kind]
    assert loss.dtype == gradient.dtype == torch.float32
    single, double = (by_formula(kind, activation, target, weight, dtype) for dtype in (torch.float32, torch.float64))
    assert_as_exact((loss, gradient), single, double)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_backward_pass_multiplies_by_the_incoming_gradient(kind, device, fused):
    activation, target, _ = example((7, 5), device)
    activation.requires_grad_()
    (once,) = torch.autograd.grad(LOSSES[kind](activation, target), activation)
    (often,) = torch.autograd.grad(-4 * LOSSES[kind](activation, target), activation)
    assert torch.equal(often, -4 * once)


def test_a_margin_on_the_device_is_read_there(device, fused):
    activation, target, _ = example((7, 5), device)
    margin = torch.tensor(0.3, device=device)
    activation.requires_grad_()
    for value in (0.3, 0.9):
        margin.fill_(value)
        results = []
        for form in (margin, value):
            loss = spread_loss(activation, target, form)
            results.append((loss.detach(), *torch.autograd.grad(loss, activation)))
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other)
    assert fused == ["spread"] * 4


def test_whole_numbers_are_margins_too(device, fused):
    activation, target, _ = example((7, 5), device)
    assert torch.equal(spread_loss(activation, target, 1), spread_loss(activation, target, 1.0))


def test_a_shortfall_of_exactly_zero_has_no_gradient(device, fused):
    """Numbers that float32 holds exactly: the first wrong class lies at the margin, the others on either side."""
    activation = torch.tensor([[0.75, 0.25, 0.5, 0.125]], device=device, requires_grad=True)
    loss = spread_loss(activation, torch.tensor([0], device=device), 0.5)
    (gradient,) = torch.autograd.grad(loss, activation)
    assert float(loss.detach()) == 0.0625
    assert gradient.tolist() == [[-0.5, 0.0, 0.5, 0.0]]


@pytest.mark.parametrize("kind", LOSSES)
def test_inputs_need_not_be_contiguous(kind, device, fused):
    activation, target, weight = example((14, 10), device)
    apart = activation.t().contiguous().t()[::2, ::2].requires_grad_()
    loss = LOSSES[kind](apart, target[::2] // 2, weight[:1].expand(7))
    close = apart.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    want = LOSSES[kind](close, (target[::2] // 2).clone(), weight[:1].repeat(7))
    assert torch.equal(loss, want)
    assert torch.equal(*(torch.autograd.grad(*pair)[0] for pair in ((loss, apart), (want, close))))


@pytest.mark.parametrize("kind", LOSSES)
def test_nan_and_targets_that_are_no_class_show_in_the_loss(kind, device, fused):
    activation, target, _ = example((7, 5), device)
    for number in (-1, 5, 7):  # 5 and 7 lie in the padding of five classes to eight
        wrong = target.clone()
        wrong[3] = number
        assert math.isnan(LOSSES[kind](activation, wrong))
    activation[2, 4] = math.nan
    target[2] = 1 if kind != "margin" else 4
    assert math.isnan(LOSSES[kind](activation, target))


def test_cross_entropy_of_dead_capsules_is_finite(device, fused):
    activation = torch.zeros(1, 3, device=device, requires_grad=True)
    loss = cross_entropy_loss(activation, torch.tensor([1], device=device))
    (gradient,) = torch.autograd.grad(loss, activation)
    assert float(loss.detach()) == 0.0
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", LOSSES)
def test_second_derivatives_are_those_of_the_formula(kind, device, fused):
    activation, target, weight = example((7, 5), device)
    direction = torch.rand(7, 5, generator=torch.Generator().manual_seed(1))

    def product(activation, target, weight, loss):
        activation = activation.detach().requires_grad_()
        root = activation * 1  # as a layer's result, not a leaf
        (gradient,) = torch.autograd.grad(loss(root, target, weight).square(), root, create_graph=True)
        (found,) = torch.autograd.grad((gradient * direction.to(activation)).sum(), activation)
        return found

    got = product(activation, target, weight, LOSSES[kind])
    want = product(
        *(tensor.cpu().double() if tensor.is_floating_point() else tensor.cpu() for tensor in (activation, target)),
        weight.cpu().double(),
        lambda a, t, w: losses._by_formula(kind, a, t, w, 0.4),
    )
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=1e-7)


def test_without_gradients_none_is_computed(device, fused):
    activation, target, _ = example((7, 5), device)
    activation.requires_grad_()
    with torch.no_grad():
        loss = spread_loss(activation, target, 0.4)
    assert not loss.requires_grad
    assert torch.equal(loss, spread_loss(activation, target, 0.4))


@pytest.mark.parametrize("shape", SHAPES)
def test_right_answers_are_those_of_argmax(shape, device, fused):
    activation, target, _ = example(shape, device)
    activation = (3 * activation).round()  # many ties, of which the first counts
    got = right_answers(activation, target)
    assert fused == ["right"]
    assert got.shape == ()
    assert int(got) == int((activation.cpu().argmax(-1) == target.cpu()).sum())


def test_nan_is_no_right_answer(device, fused):
    activation = torch.tensor([[0.5, 0.2], [math.nan, 0.2], [0.2, math.nan], [0.1, 0.1]], device=device)
    assert float(right_answers(activation, torch.tensor([0, 0, 0, 2], device=device))) == 1


def test_elsewhere_the_formulas_run(device, monkeypatch):
    """Whatever the kernel does not take: on a GPU float64, other shapes and types, transforms and compilers."""

    def unreachable(*_arguments, **_options):
        raise AssertionError("the kernel ran")

    activation, target, weight = example((7, 5), device)
    want = spread_loss(activation.cpu(), target.cpu(), 0.4, weight.cpu())
    monkeypatch.setattr(losses, "_in_one_kernel", unreachable)
    learned = weight.clone().requires_grad_()
    torch.testing.assert_close(spread_loss(activation.cpu(), target.cpu(), 0.4, weight.cpu()), want)
    torch.testing.assert_close(spread_loss(activation.double(), target, 0.4, weight.double()).float().cpu(), want)
    assert torch.autograd.grad(spread_loss(activation, target, 0.4, learned), learned)[0].shape == (7,)
    assert spread_loss(activation, target, 0.4, weight[:1]).shape == ()
    assert spread_loss(torch.rand(2, 1025, device=device), target[:2], 0.4).isfinite()
    assert spread_loss(activation[:0], target[:0], 0.4).isnan()
    each = torch.func.vmap(lambda a, t: spread_loss(a[None], t[None], 0.4))(activation, target)
    torch.testing.assert_close((each * weight).mean().cpu(), want)
    compiled = torch.compile(spread_loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(activation, target, 0.4, weight).cpu(), want)
    assert float(right_answers(activation.double(), target)) == float(right_answers(activation.cpu(), target.cpu()))


def test_a_gpu_runs_the_kernel_on_its_own(device, monkeypatch):
    """Without the fixture: the choice is real. On a CPU it is the formula, whose bits recorded runs have."""
    launches = []
    real = losses._in_one_kernel
    monkeypatch.setattr(losses, "_in_one_kernel", lambda *a, **o: launches.append(a[0]) or real(*a, **o))
    activation, target, weight = example((7, 5), device)
    spread_loss(activation, target, torch.tensor(0.4, device=device), weight)
    margin_loss(activation.requires_grad_(), target)
    right_answers(activation, target)
    assert launches == (["spread", "margin", "right"] if device == "cuda" else [])


def test_the_kernel_compiles_for_a_gpu(tmp_path):
    pytest.importorskip("triton.backends.nvidia")
    assert count_compiled(__file__, tmp_path) == 32


def launch_all():
    for shape in ((1, 1), (500, 10)):
        activation, target, weight = example(shape, "cpu")
        for kind in (*LOSSES, "right"):
            losses._in_one_kernel(kind, activation, target)
            losses._in_one_kernel(kind, activation, target, weight, torch.tensor(0.4), with_gradient=True)


if __name__ == "__main__":
    print(len(compile_for((75, 90), launch_all)))
