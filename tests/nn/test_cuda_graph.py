"""A graphed network against the network itself.

Without a GPU, functions that compute anew into the same tensors, as a replay does, take the place of the graphs. So all
but the capture is tested everywhere.
"""

import copy

import pytest
import torch
from torch import nn

from emcaps import RoutingOutput
from emcaps.config import LayerConfig, NetworkConfig
from emcaps.nn import BaselineCNN, ClassCaps, ConvCaps, MatrixCapsNet, PrimaryCaps, cuda_graph, graphed, spread_loss

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CONFIG = NetworkConfig(classes=3, conv_channels=8, primary_types=2, layers=(LayerConfig(3, stride=2),), iterations=2)


class Several(nn.Module):
    """Takes and gives several tensors, with a buffer that calls change, an unused parameter and a constant result."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 3)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, given):
        hidden = self.norm(given["first"]) * given["second"]
        return {"result": self.linear(hidden), "highest": hidden.argmax(-1), "hidden": (hidden, [hidden * 2])}


def several(device, batch=8):
    draw = torch.Generator().manual_seed(1)
    return {name: torch.randn(batch, 4, generator=draw).to(device) for name in ("first", "second")}


def capsules(device, batch=8):
    torch.manual_seed(0)
    network = MatrixCapsNet(CONFIG).to(device)
    draw = torch.Generator().manual_seed(1)
    images = torch.rand(batch, 1, 14, 14, generator=draw).to(device)
    return network, images, torch.randint(3, (batch,), generator=draw).to(device)


def children(device):
    draw = torch.Generator().manual_seed(1)
    pose = torch.randn(2, 5, 5, 2, 4, 4, generator=draw).to(device)
    return RoutingOutput(pose.requires_grad_(), torch.rand(2, 5, 5, 2, generator=draw).to(device).requires_grad_())


def computed_anew(forward, backward, network, device):
    """In place of _capture."""
    learns, buffers = torch.is_grad_enabled(), copy.deepcopy(list(network.buffers()))
    last = [forward()]
    found = backward(last[0])
    outputs = [one.detach().clone().requires_grad_(one.requires_grad) for one in last[0]]
    gradients = [None if one is None else one.clone() for one in found]
    for buffer, before in zip(network.buffers(), buffers, strict=True):
        buffer.copy_(before)

    def write(places, values):
        for place, value in zip(places, values, strict=True):
            if place is not None:
                place.data.copy_(value.detach())

    def replay_forward():
        with torch.set_grad_enabled(learns):
            last[:] = [forward()]
        write(outputs, last[0])

    def replay_backward():
        write(gradients, backward(last.pop()))

    return cuda_graph.Captured(replay_forward, outputs, replay_backward, gradients)


@pytest.fixture(autouse=True)
def without_a_gpu(request, monkeypatch, device):
    if device == "cpu" and "real_checks" not in request.fixturenames:
        monkeypatch.setattr(cuda_graph, "_checked_device", lambda *_: torch.device("cpu"))
        monkeypatch.setattr(cuda_graph, "_capture", computed_anew)


@pytest.fixture
def real_checks():
    """The test sees what `graphed` itself says of devices."""


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)


def assert_same(got, want):
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def gradients_of(network):
    return [None if value.grad is None else value.grad.clone() for value in network.parameters()]


def test_outputs_and_gradients_are_those_of_the_network(device):
    network, images, labels = capsules(device)
    fast = graphed(network, torch.rand_like(images))
    for step in range(3):
        batch = images.roll(step, 0)
        results = []
        for each in (fast, network):
            network.zero_grad()
            output = each(batch)
            assert isinstance(output, RoutingOutput)
            (spread_loss(output.activation, labels, 0.5) + output.pose.square().mean()).backward()
            results.append([*output, *gradients_of(network)])
        assert_same(*results)
        assert all(value.isfinite().all() and value.any() for value in results[0])


def test_a_loss_of_one_output_after_a_loss_of_both(device):
    """What the other output's gradient was in the call before must not be left over."""
    network, images, _ = capsules(device)
    fast, parameters = graphed(network, images), list(network.parameters())
    results = []
    for each in (fast, network):
        output = each(images)
        both = torch.autograd.grad(output.activation.sum() + output.pose.square().sum(), parameters)
        alone = torch.autograd.grad(each(images).activation.sum(), parameters)
        results.append([*both, *alone])
    assert_same(*results)


def test_a_layer_between_others_passes_its_gradients_on(device):
    layer = ConvCaps(2, 3, kernel=3, stride=2, iterations=2).to(device)
    given = children(device)
    fast = graphed(layer, given)
    inputs = [*given, *layer.parameters()]
    results = []
    for each in (fast, layer):
        output = each(RoutingOutput(*(one * 2 for one in given)))
        results.append([*output, *torch.autograd.grad(output.pose.sum() + output.activation.sum(), inputs)])
    assert_same(*results)


def test_any_tensors_in_and_out(device):
    network = Several().to(device)
    plain = copy.deepcopy(network)
    fast = graphed(network, several(device))
    assert_same(list(network.buffers()), list(plain.buffers()))  # as they were before the capture
    for _ in range(2):
        results = []
        for each, owner in ((fast, network), (plain, plain)):
            owner.zero_grad()
            output = each(several(device))
            assert not output["highest"].requires_grad
            (output["result"].square().sum() + output["hidden"][1][0].square().sum()).backward()
            flat = output["result"], output["highest"], output["hidden"][0], *output["hidden"][1]
            results.append([*flat, *owner.buffers(), *gradients_of(owner)])
        assert_same(*results)
    assert network.unused.grad is None
    assert int(network.norm.num_batches_tracked) == 2


def trained(device, graph, steps, **options):
    """The weights after training on 20 examples in batches of 8, of which the last has 4."""
    network, images, labels = capsules(device, batch=20)
    each = graphed(network, images[:8]) if graph else network
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3, **options)
    for step in range(steps):
        start = step % 3 * 8
        optimiser.zero_grad()
        spread_loss(each(images[start : start + 8]).activation, labels[start : start + 8], 0.5).backward()
        optimiser.step()
    return list(network.parameters())


def test_a_training_loop_ends_in_the_same_weights(device):
    options = {"fused": True} if device == "cuda" else {}
    got, want, start = (trained(device, *case, **options) for case in ((True, 20), (False, 20), (True, 0)))
    assert_same(got, want)
    assert all(not torch.equal(one, other) for one, other in zip(got, start, strict=True))


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_accumulate_and_are_set_to_zero_as_always(device, to_none):
    network, images, labels = capsules(device)
    results = []
    for each in (graphed(network, images), network):
        network.zero_grad()
        found = []
        for _ in range(2):
            for step in range(3):
                spread_loss(each(images.roll(step, 0)).activation, labels, 0.5).backward()
            found += gradients_of(network)
            network.zero_grad(set_to_none=to_none)
        results.append(found)
    assert_same(*results)


def test_later_calls_do_not_change_outputs_and_gradients(device):
    network, images, _ = capsules(device)
    fast = graphed(network, images)
    output = fast(images)
    gradients = torch.autograd.grad(output.activation.sum(), list(network.parameters()))
    before = [one.clone() for one in (*output, *gradients)]
    other = fast(images.flip(0) * 2)
    other.activation.square().sum().backward()
    assert_same([*output, *gradients], before)
    assert not torch.equal(other.activation, output.activation)


def test_the_batch_is_read_at_the_call(device):
    network, images, _ = capsules(device)
    example = images.clone()
    fast = graphed(network, example)
    example.zero_()
    assert torch.equal(fast(images).activation, network(images).activation)


def test_without_gradients(device):
    network, images, _ = capsules(device)
    fast = graphed(network, images)
    with torch.no_grad():
        output, alone = fast(images), graphed(network, images)
        assert torch.equal(output.activation, network(images).activation)
        assert not output.activation.requires_grad
        assert torch.equal(alone(images).activation, output.activation)
    with pytest.raises(
        ValueError, match=r"captured under torch\.no_grad\(\).*call graphed again with gradients enabled"
    ):
        alone(images)
    for value in network.parameters():
        value.requires_grad_(False)
    frozen = graphed(network, images)
    assert torch.equal(frozen(images).activation, output.activation)


def test_weights_may_change_in_place(device):
    network, images, _ = capsules(device)
    fast = graphed(network, images)
    before = fast(images).activation
    network.load_state_dict({name: value * 0.9 for name, value in network.state_dict().items()})
    assert torch.equal(fast(images).activation, network(images).activation)
    assert not torch.equal(fast(images).activation, before)


def test_dropout_draws_as_it_does_without_a_graph(device):
    torch.manual_seed(0)
    network = BaselineCNN(1, 16, 3, channels=4, hidden=8).to(device)
    images = torch.rand(4, 1, 16, 16, device=device)
    torch.manual_seed(5)
    want = torch.rand(3, device=device)
    torch.manual_seed(5)
    fast = graphed(network, images)
    assert device == "cpu" or torch.equal(torch.rand(3, device=device), want)  # the capture drew nothing
    results = []
    for each in (fast, network):
        torch.manual_seed(7)
        results.append([each(images), each(images)])
    assert_same(*results)
    assert not torch.equal(*results[0])


def test_a_smaller_batch_goes_through_the_network(device):
    network, images, labels = capsules(device)
    fast = graphed(network, images)
    results = []
    for each in (fast, network):
        network.zero_grad()
        output = each(images[:3])
        spread_loss(output.activation, labels[:3], 0.5).backward()
        results.append([*output, *gradients_of(network)])
    assert_same(*results)
    assert fast._calls == 0


def test_a_backward_pass_belongs_to_the_last_call(device):
    network, images, _ = capsules(device)
    fast = graphed(network, images)
    first, second = fast(images).activation.sum(), fast(images).activation.sum()
    with pytest.raises(RuntimeError, match="backward pass of call 1 of a graphed network comes after call 2"):
        first.backward()
    second.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"call 2 of a graphed network was done before.*or use the network itself"):
        second.backward()
    with pytest.raises(RuntimeError, match="graphed network has no second derivative: use the network itself"):
        torch.autograd.grad(fast(images).activation.sum(), list(network.parameters()), create_graph=True)


def replace(network):
    network.class_caps.weight = nn.Parameter(network.class_caps.weight.detach().clone())


def freeze(network):
    network.class_caps.beta_a.requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace, r"class_caps\.weight has been replaced since the network was captured.*or call graphed again"),
        (nn.Module.double, r"relu_conv1\.0\.weight has been replaced.*change it in place"),
        (freeze, r"class_caps\.beta_a\.requires_grad is False, but was True when the network was captured"),
        (nn.Module.eval, r"the network is in evaluation mode, but was in training mode.*call its train\(\)"),
        (lambda network: network.class_caps.eval(), r"class_caps is in evaluation mode"),
    ],
)
def test_a_network_that_changed_is_refused(device, change, message):
    network, images, _ = capsules(device)
    fast = graphed(network, images)
    change(network)
    with pytest.raises(ValueError, match=message):
        fast(images)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            lambda images: images.repeat(2, 1, 1, 1),
            r"the batch has the shape \(16, 1, 14, 14\), but the example had \(8, ",
        ),
        (lambda images: images[:, :, 1:], r"has the shape \(8, 1, 13, 14\), but the example had \(8, 1, 14, 14\)"),
        (lambda images: images.double(), r"the batch is torch\.float64 on .*, but the example was torch\.float32 on"),
        (lambda images: images.to("meta"), r"the batch is torch\.float32 on meta, but the example was"),
        (lambda images: images.clone().requires_grad_(), r"requires a gradient, but the example did not"),
        (lambda images: [images], r"the batch must be built as the example was"),
        (lambda images: 3, r"the batch must be a tensor, not int"),
    ],
)
def test_a_batch_unlike_the_example_is_refused(device, batch, message):
    network, images, _ = capsules(device)
    fast = graphed(network, images)
    with pytest.raises(ValueError, match=message):
        fast(batch(images))
    assert torch.equal(fast(images).activation, network(images).activation)  # the error changed nothing


def test_autocast_is_that_of_the_capture(device):
    network, images, _ = capsules(device)
    fast = graphed(network, images)
    with (
        torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"),
        pytest.MonkeyPatch.context() as patch,
    ):
        if device == "cpu":
            patch.setattr(cuda_graph, "_autocast", lambda: "torch.bfloat16")
        with pytest.raises(ValueError, match=r"autocast is torch\.bfloat16, but was off when the network was captured"):
            fast(images)


def test_a_network_that_returns_more_than_tensors_is_refused(device):
    class Names(nn.Linear):
        def forward(self, given):
            return super().forward(given), "name"

    with pytest.raises(ValueError, match="the network returns str, and a graph can give tensors alone"):
        graphed(Names(2, 2).to(device), torch.rand(3, 2, device=device))


def test_what_is_not_on_a_gpu_is_refused(real_checks):
    network, images, _ = capsules("cpu")
    with pytest.raises(ValueError, match=r"on a CUDA device, and relu_conv1\.0\.weight is on cpu: .*network itself"):
        graphed(network, images)
    with pytest.raises(ValueError, match="and the example is on cpu"):
        graphed(nn.ReLU(), images)
    with pytest.raises(ValueError, match="the example must be made of tensors, not int"):
        graphed(network, (images, 3))
    with pytest.raises(ValueError, match="the example holds no tensor"):
        graphed(network, ())


@NEEDS_GPU
def test_an_example_elsewhere_and_a_hook_are_refused(real_checks):
    network, images, _ = capsules("cuda")
    with pytest.raises(ValueError, match="and the example is on cpu: move network and example there"):
        graphed(network, images.cpu())
    hook = network.class_caps.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(ValueError, match=r"class_caps\.weight has a hook on its gradient"):
        graphed(network, images)
    hook.remove()
    fast = graphed(network, images)
    (once,) = torch.autograd.grad(fast(images).activation.sum(), network.class_caps.weight)
    network.class_caps.weight.register_hook(lambda gradient: gradient * 2)
    fast(images).activation.sum().backward()
    assert torch.equal(network.class_caps.weight.grad, 2 * once)


@NEEDS_GPU
def test_a_network_that_waits_for_the_device_is_refused_and_all_goes_on():
    class Waits(nn.Linear):
        def forward(self, given):
            return super().forward(given) * float(given.sum())

    given = torch.rand(3, 2, device="cuda")
    with pytest.raises(ValueError, match=r"cannot be captured in a CUDA graph \(called a synchronizing CUDA operation"):
        graphed(Waits(2, 2).cuda(), given)
    network, images, _ = capsules("cuda")
    assert torch.equal(graphed(network, images)(images).activation, network(images).activation)
    torch.rand(3, device="cuda")


@NEEDS_GPU
def test_autocast_in_a_graph_casts_the_weights_anew():
    network, images, labels = capsules("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        fast = graphed(network, images)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        results = []
        for each in (fast, network):
            optimiser.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = spread_loss(each(images).activation, labels, 0.5)
            loss.backward()
            results.append([loss.detach(), *gradients_of(network)])
        assert_same(*results)
        optimiser.step()


@NEEDS_GPU
def test_torch_compile_with_graphs_of_its_own_gives_the_same(monkeypatch):
    """mode="reduce-overhead" captures what it compiled, our operators included."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Conv2d(1, 8, 5, stride=2)
            self.primary = PrimaryCaps(8, 2)
            self.hidden = ConvCaps(2, 3, kernel=3, stride=2, iterations=2)
            self.classes = ClassCaps(3, 3, iterations=2)

        def forward(self, images):
            return self.classes(self.hidden(self.primary(self.features(images).relu()))).activation

    torch.manual_seed(0)
    plain = Small().cuda()
    _, images, labels = capsules("cuda")
    model = copy.deepcopy(plain)
    compiled = torch.compile(model, mode="reduce-overhead")
    optimisers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, plain)]
    for _ in range(5):  # the first calls warm up and capture, the others replay
        results = []
        for each, owner, optimiser in zip((compiled, plain), (model, plain), optimisers, strict=True):
            optimiser.zero_grad()
            loss = spread_loss(each(images), labels, 0.5)
            loss.backward()
            results.append([loss.detach().clone(), *gradients_of(owner)])
            optimiser.step()
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
