"""The CPU kernels against the reference: values, gradients, bits, operators and threads."""

import logging
import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

from emcaps import RoutingOutput, class_routing, conv_routing
from emcaps.nn import ClassCaps, ConvCaps
from routing import test_triton_extremes as in_batches
from routing.cases import Inputs, class_inputs, conv_inputs, outputs_and_gradients, with_gradients
from routing.compare import assert_close
from routing.fused import on_cpu, poisoned_memory, reference, routing_of
from routing.test_triton import LARGE, TINY
from routing.test_triton_precision import assert_as_good_as_the_reference

pytest.importorskip("numba")
from numba.core import caching

from emcaps.routing.numba_kernels import layout, run
from emcaps.routing.numba_kernels import threads as worker_threads
from emcaps.routing.numba_kernels.backward import backward_images
from emcaps.routing.numba_kernels.forward import forward_images
from emcaps.routing.numba_kernels.operators import route, route_and_keep, route_backward
from emcaps.routing.numba_kernels.vectors import LANES

SLOW = {"32 types", "small network 1", "small network 2"}  # slow in the reference; others take the same branches
CASES = {name: case for name, case in (TINY | LARGE).items() if name not in SLOW}
CONV = conv_inputs(batch=3, grid=(4, 5), kernel=(2, 3), child_types=3, parent_types=5)
CLASS = class_inputs(batch=3, grid=(2, 3), child_types=3, parent_types=4)
MANY_PARENTS = conv_inputs(batch=2, grid=(2, 2), kernel=(2, 1), child_types=2, parent_types=2 * LANES + 1)
LAYERS = pytest.mark.parametrize("inputs", [CONV, CLASS, MANY_PARENTS], ids=["conv", "class", "several groups"])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_float64_is_the_reference(case):
    want = reference(case.inputs, "cpu", **case.options)
    with poisoned_memory():
        found = on_cpu(case.inputs, **case.options)
    for name, got in found.items():
        assert_close(name, got, want[name], 1e-10)


@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("parents", [LANES - 1, LANES, LANES + 1, 2 * LANES + 1])
@pytest.mark.parametrize("kind", [conv_inputs, class_inputs])
def test_groups_of_parents(kind, parents, competition):
    """Groups that are full, groups with padding, and several groups."""
    inputs = kind(batch=2, grid=(3, 3), child_types=2, parent_types=parents)
    want = reference(inputs, "cpu", iterations=3, competition=competition)
    with poisoned_memory():
        found = on_cpu(inputs, iterations=3, competition=competition)
    for name, got in found.items():
        assert_close(name, got, want[name], 1e-10)


def test_variances_that_float64_cannot_multiply():
    """Eleven elements have no spread. Five, the last in a column's order, have so much that the product is normal."""
    pose = torch.zeros_like(CONV.pose)
    for row, column in ((3, 2), (0, 3), (1, 3), (2, 3), (3, 3)):
        pose[..., row, column] = 1e6 * CONV.pose[..., row, column]
    weight = torch.eye(4, dtype=torch.float64).expand_as(CONV.weight).contiguous()
    inputs = CONV._replace(pose=pose, weight=weight)
    for floor in (1e-29, 5e-30, 1e-60):
        want = reference(inputs, "cpu", iterations=1, variance_floor=floor)
        got = on_cpu(inputs, iterations=1, variance_floor=floor)
        assert_close("activation", got["activation"].logit(), want["activation"].logit(), 1e-10)


@pytest.mark.parametrize("iterations", [1, 2, 3])
@LAYERS
def test_float32_is_as_good_as_the_reference(inputs, iterations):
    assert_as_good_as_the_reference(inputs, "cpu", draws=8, routed=on_cpu, iterations=iterations)


REAL = {
    "small network 1": (conv_inputs(2, (16, 16), (3, 3), 8, 16), {"stride": 2}),
    "small network 2": (conv_inputs(2, (7, 7), (3, 3), 16, 16), {}),
    "small network, class": (class_inputs(2, (5, 5), 16, 5), {}),
}


@pytest.mark.parametrize("layer", REAL)
def test_float32_is_as_good_as_the_reference_on_real_layers(layer):
    inputs, options = REAL[layer]
    assert_as_good_as_the_reference(inputs, "cpu", draws=4, routed=on_cpu, iterations=3, **options)


WORLDS = pytest.mark.parametrize("world", in_batches.WORLDS, ids=lambda world: world.__name__)
KINDS = pytest.mark.parametrize("layer", in_batches.LAYERS)


@pytest.mark.parametrize("iterations", [2, 5])
@WORLDS
@KINDS
def test_extremes_in_float32(layer, world, iterations):
    """Results are finite, and the geometric mean of 40 errors is at most twice that of the reference.

    The rounding error of a single problem is a matter of luck, for the reference too.
    """
    errors = {}
    for seed in range(40):
        problem = in_batches.rounded(in_batches.batch_of_extremes(in_batches.LAYERS[layer](seed), world))
        exact = in_batches.parts(reference(problem, "cpu", iterations=iterations))
        for which, routed in (("reference", reference), ("numba", on_cpu)):
            found = in_batches.parts(routed(problem.to(torch.float32), "cpu", iterations=iterations))
            for name, got in found.items():
                assert got.isfinite().all(), (which, name)
                errors.setdefault(name, {}).setdefault(which, []).append(in_batches.error(got, exact[name]))
    compared = 0
    for name, found in errors.items():
        want, got = (torch.tensor(found[which]).clamp(min=1e-6) for which in ("reference", "numba"))
        if want.max() > 0.1:
            continue  # rounding moves the reference itself by as much, so only being finite can be asked for
        assert got.log().mean().exp() <= 2 * want.log().mean().exp(), (name, found)
        compared += 1
    assert compared > len(errors) / 2


@pytest.mark.parametrize("iterations", [2, 5])
@WORLDS
@KINDS
def test_extremes_in_float64(layer, world, iterations):
    in_batches.compare_in_float64(layer, world, "cpu", iterations, 1e-9 if iterations == 5 else 1e-10, routed=on_cpu)


@pytest.mark.parametrize("competition", ["all", "types"])
@LAYERS
def test_gradcheck(inputs, competition):
    routing = routing_of(inputs)
    smaller = Inputs(inputs.pose[:1], inputs.activation[:1], *inputs[2:])

    def outputs(*tensors):
        return tuple(routing(*tensors, iterations=3, competition=competition, impl="numba"))

    assert torch.autograd.gradcheck(outputs, tuple(with_gradients(smaller)), fast_mode=True)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@LAYERS
def test_the_same_bits_whatever_the_threads(inputs, threads):
    many = Inputs(inputs.pose.repeat(11, *[1] * 5), inputs.activation.repeat(11, 1, 1, 1), *inputs[2:]).to(
        torch.float32
    )
    found = []
    for number in (1, 2, 3, 8):
        threads(number)
        found.append(on_cpu(many, iterations=2))
    for other in found[1:]:
        for name in other:
            assert torch.equal(other[name], found[0][name]), name


def test_inference_keeps_nothing_and_gives_the_same_bits():
    with torch.no_grad():
        got = conv_routing(*CONV, iterations=3, impl="numba")
    want = conv_routing(*with_gradients(CONV), iterations=3, impl="numba")
    assert got.pose.grad_fn is None
    assert torch.equal(got.pose, want.pose)
    assert torch.equal(got.activation, want.activation)


def test_inputs_of_any_strides():
    pose = CONV.pose.permute(5, 4, 3, 2, 1, 0).contiguous().permute(5, 4, 3, 2, 1, 0)
    assert not pose.is_contiguous()
    want = on_cpu(CONV, iterations=2)
    for name, got in on_cpu(CONV._replace(pose=pose), iterations=2).items():
        assert torch.equal(got, want[name]), name


@pytest.mark.parametrize("output", RoutingOutput._fields)
def test_a_loss_of_one_output_alone(output):
    found = {}
    for impl in ("numba", "reference"):
        leaves = with_gradients(CONV)
        routed = conv_routing(*leaves, iterations=2, impl=impl)
        found[impl] = torch.autograd.grad(getattr(routed, output).square().sum(), leaves, allow_unused=True)
    for name, got, want in zip(Inputs._fields, found["numba"], found["reference"], strict=True):
        assert_close(name, got, want, 1e-10)


@pytest.mark.parametrize("routing", [conv_routing, class_routing])
def test_empty_batch(routing):
    inputs = conv_inputs(batch=0) if routing is conv_routing else class_inputs(batch=0)
    found = on_cpu(inputs, iterations=2)
    assert found["pose"].shape[0] == 0
    assert not found["gradient of weight"].any()


def test_without_a_floor_nan_stays_where_the_reference_has_it():
    activation = CONV.activation.clone()
    activation[1] = 0
    inputs = CONV._replace(activation=activation)
    want = reference(inputs, "cpu", iterations=2, variance_floor=0.0)
    got = on_cpu(inputs, iterations=2, variance_floor=0.0)
    assert want["activation"][1].isnan().all()
    for name in want:
        assert torch.equal(got[name].isnan(), want[name].isnan()), name
    for name in ("pose", "activation", "gradient of pose", "gradient of activation"):
        for image in (0, 2):
            assert_close(f"{name} of image {image}", got[name][image], want[name][image], 1e-9)


def test_no_second_derivative():
    leaves = with_gradients(CONV)
    output = conv_routing(*leaves, iterations=2, impl="numba")
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(output.pose.sum(), leaves.pose, create_graph=True)


SMALLEST = conv_inputs(batch=2, grid=(1, 2), kernel=(1, 1), child_types=1, parent_types=2)
SETTINGS = ([1, 1], False, 2, 1.0, 1e-4, 1.0)


def test_operators_are_well_formed():
    torch.library.opcheck(route, (*SMALLEST, *SETTINGS))
    torch.library.opcheck(route_and_keep, (*with_gradients(SMALLEST), *SETTINGS))
    pose, activation, *kept = route_and_keep(*SMALLEST, *SETTINGS)
    gradients = torch.ones_like(pose), torch.ones_like(activation)
    torch.library.opcheck(route_backward, (*gradients, *SMALLEST[:3], *kept, [1, 1], False, 1.0, 1.0))


def test_compile_in_one_graph_for_any_batch():
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *tensors: conv_routing(*tensors, iterations=2), backend="aot_eager", fullgraph=True, dynamic=True
    )
    for batch in (2, 3):
        inputs = conv_inputs(batch, grid=(1, 2), kernel=(1, 1), child_types=1, parent_types=1)
        want = on_cpu(inputs, iterations=2)
        got = outputs_and_gradients(compiled, inputs)
        for name in want:
            assert torch.equal(got[name], want[name]), name
    torch.compiler.reset()


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = ConvCaps(1, 1, kernel=1, iterations=2)
        self.classes = ClassCaps(1, 2, iterations=2)

    def forward(self, pose, activation):
        return self.classes(self.conv(RoutingOutput(pose, activation)))


def test_export_for_any_batch():
    network = TwoLayers().eval()
    pose, activation = (tensor.float() for tensor in conv_inputs(5, (1, 2), (1, 1), 1, 1)[:2])
    batch = torch.export.Dim("batch", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(network, (pose[:2], activation[:2]), dynamic_shapes=({0: batch}, {0: batch}))
        got, want = program.module()(pose, activation), network(pose, activation)
    assert sum(node.target is torch.ops.emcaps.route_on_cpu.default for node in program.graph.nodes) == 2
    assert torch.equal(got.pose, want.pose)


TEAM = pytest.mark.parametrize("team", ["OpenMP", "threads"])


@pytest.fixture
def workers(team, threads, monkeypatch):
    if team == "threads":
        monkeypatch.setattr(worker_threads, "_openmp_team", lambda: None)
    elif worker_threads._openmp_team() is None:
        pytest.skip("torch has no OpenMP here")
    threads(2)


@TEAM
def test_chunks_are_worked_on_once_and_side_by_side(workers):
    both, seen = threading.Barrier(2, timeout=10), []

    def work(chunk):
        seen.append(chunk)
        if chunk < 2:
            both.wait()  # it would time out if one thread did all the work

    worker_threads.in_threads(work, range(9))
    assert sorted(seen) == list(range(9))


@TEAM
def test_an_error_in_a_thread_is_raised(workers):
    def work(chunk):
        if chunk == 3:
            raise RuntimeError("of chunk 3")

    with pytest.raises(RuntimeError, match="of chunk 3"):
        worker_threads.in_threads(work, range(9))


def test_an_error_stops_the_team(threads):
    if worker_threads._openmp_team() is None:
        pytest.skip("torch has no OpenMP here")
    threads(2)
    done = []

    def work(chunk):
        if chunk == 0:
            raise KeyboardInterrupt
        time.sleep(0.01)
        done.append(chunk)

    with pytest.raises(KeyboardInterrupt):
        worker_threads.in_threads(work, range(200))
    assert len(done) < 100


def test_an_interrupt_before_the_first_chunk_is_not_lost(monkeypatch, threads):
    """The team returns as if Ctrl-C had stopped the calling thread before it could catch anything."""
    threads(2)
    monkeypatch.setattr(worker_threads, "_openmp_team", lambda: lambda member, argument, number, flags: None)
    with pytest.raises(KeyboardInterrupt):
        worker_threads.in_threads(print, range(9))


def test_kernels_on_disk_are_those_of_all_these_sources():
    for kernel in (forward_images, backward_images):
        assert kernel._cache._cache_file._source_stamp == layout.SOURCES


def test_without_a_place_to_keep_kernels_they_are_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def add(a, b):
        return a + b

    kernel = layout.kept_on_disk(add)
    assert kernel(2, 3) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@TEAM
def test_a_forked_process_has_threads_of_its_own(workers):
    def work(_chunk):
        time.sleep(0.05)  # long enough for all threads to be started

    worker_threads.in_threads(work, range(5))
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        worker_threads.in_threads(work, range(5))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_compilation_says_so_once_if_it_takes_long(caplog, monkeypatch):
    run._say_that_it_compiles.cache_clear()
    monkeypatch.setattr(run, "PATIENCE", 0.0)
    monkeypatch.setattr(run, "_compiled", set())
    with caplog.at_level(logging.WARNING, "emcaps"):
        for kernel in ("a kernel", "another"):
            run._run(lambda _chunk: time.sleep(0.2), [slice(0, 1)], kernel)
    assert [record.message.split(",")[0] for record in caplog.records] == ["compiling the CPU kernels"]


def test_a_sign_that_is_yet_to_be_turned_is_turned():
    """Torch keeps the conjugate's imaginary part that way, and numpy cannot read it."""
    pose, activation, weight, beta_u, beta_a = class_inputs()
    expected = class_routing(-pose, activation, weight, beta_u, beta_a, impl="numba")
    found = class_routing(torch._neg_view(pose), activation, weight, beta_u, beta_a, impl="numba")
    assert torch.equal(found.pose, expected.pose)
    weight = weight.clone().requires_grad_()
    output = class_routing(pose, activation, weight, beta_u, beta_a, impl="numba").pose
    slope = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, weight, -slope, retain_graph=True)
    (found,) = torch.autograd.grad(output, weight, torch._neg_view(slope))
    assert torch.equal(found, expected)
