"""How compiled kernels are launched. What launches them on a GPU is replaced by functions that record arguments."""

from types import SimpleNamespace

import pytest
import torch

from emcaps.routing.triton_kernels import fast_launch
from emcaps.routing.triton_kernels.fast_launch import Launches, Part, Step, launcher, on_device_of, view
from emcaps.routing.triton_kernels.launch import BACKWARD, FORWARD, backward_steps, forward_steps
from emcaps.routing.triton_kernels.layer import Layer
from emcaps.routing.triton_kernels.layout import Kept, Work

nvidia = pytest.importorskip("triton.backends.nvidia.driver")
KNOWN = {
    "launch": len,  # any function in C
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "launch_cooperative_grid": False,
    "launch_pdl": True,
}
OTHERS = {
    "scratch memory": {"global_scratch_size": 8},
    "memory of a profiler": {"profile_scratch_size": 8},
    "a launcher in Python, as for tensor descriptors": {"launch": lambda *arguments: None},
}


def compiled(run):
    return SimpleNamespace(run=run, function=5, packed_metadata=(4, 1, 0))


def test_a_known_launcher_is_called_below_triton(monkeypatch):
    monkeypatch.setattr(nvidia, "_BASE_ARGS_FORMAT", "iiiKKppOOOOOO", raising=False)
    launch, before = launcher(compiled(SimpleNamespace(**KNOWN)))
    assert launch is len
    assert before == (5, False, True, None, None, (4, 1, 0), None, None, None)


@pytest.mark.parametrize("change", OTHERS)
def test_what_needs_more_is_launched_by_triton(change, monkeypatch):
    monkeypatch.setattr(nvidia, "_BASE_ARGS_FORMAT", "iiiKKppOOOOOO", raising=False)
    run = SimpleNamespace(**(KNOWN | OTHERS[change]))
    assert launcher(compiled(run)) == (run, (5, (4, 1, 0), None, None, None))


@pytest.mark.parametrize("missing", KNOWN)
def test_an_unknown_launcher_is_left_to_triton(missing, monkeypatch):
    monkeypatch.setattr(nvidia, "_BASE_ARGS_FORMAT", "iiiKKppOOOOOO", raising=False)
    run = SimpleNamespace(**{name: value for name, value in KNOWN.items() if name != missing})
    assert launcher(compiled(run)) == (run, (5, (4, 1, 0), None, None, None))


def test_a_launcher_with_other_arguments_is_left_to_triton(monkeypatch):
    run = SimpleNamespace(**KNOWN)
    monkeypatch.setattr(nvidia, "_BASE_ARGS_FORMAT", "iiiKKppOOOOOOO", raising=False)
    assert launcher(compiled(run))[0] is run
    monkeypatch.delattr(nvidia, "_BASE_ARGS_FORMAT")
    assert launcher(compiled(run))[0] is run


class Kernel:
    """A kernel that records what Triton gets, and what the launcher of its compiled form gets."""

    def __init__(self):
        self.fn, self.given, self.launched = object(), [], []

    def __getitem__(self, grid):
        def run(*arguments, **options):
            self.given.append((grid, arguments, options))
            return compiled(lambda *launched: self.launched.append(launched))

        return run


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(fast_launch, "INTERPRETED", False)
    monkeypatch.setattr(fast_launch, "_compiled", {})
    active = SimpleNamespace(get_current_stream=lambda device: 70 + device)
    monkeypatch.setattr(fast_launch, "driver", SimpleNamespace(active=active))
    return Kernel()


def step(kernel, grid=(3, 2, 1), numbers=(1.5, 7), **options):
    parts = Part("small"), None, Part("large", 8), Part("large", 16, torch.bfloat16)
    return Step(kernel, grid, parts, numbers, (True,), **options)


def test_triton_compiles_what_is_launched_by_address_from_then_on(kernel):
    launches = Launches([step(kernel, most_registers=99)], ["large", "small"], 1, torch.float32)
    large, small = torch.arange(8.0), torch.arange(2.0)
    launches(large, small, numbers=(0.25,))
    ((grid, (first, nothing, second, third, *others), options),) = kernel.given
    assert (grid, nothing, others) == ((3, 2, 1), None, [0.25, 1.5, 7, True])
    assert options == {"num_warps": 4, "maxnreg": 99}
    assert first is small
    assert torch.equal(second, large[2:])
    assert third.data_ptr() == large[4:].data_ptr()
    assert third.dtype == torch.bfloat16
    assert kernel.launched == []
    launches(large, small, numbers=(0.5,))
    start = large.data_ptr()
    pointers = small.data_ptr(), None, start + 8, start + 16
    assert len(kernel.given) == 1
    assert kernel.launched == [(3, 2, 1, 71, 5, (4, 1, 0), None, None, None, *pointers, 0.5, 1.5, 7, True)]


def test_other_sizes_use_the_same_compiled_form(kernel):
    large, small = torch.arange(8.0), torch.arange(2.0)
    Launches([step(kernel)], ["large", "small"], 0, torch.float32)(large, small)
    Launches([step(kernel, grid=(9, 1, 1), numbers=(2.5, 8))], ["large", "small"], 0, torch.float32)(large, small)
    assert len(kernel.given) == 1
    assert [launched[:3] for launched in kernel.launched] == [(9, 1, 1)]


@pytest.mark.parametrize("change", [{"warps": 8}, {"layout": (1,)}, {"most_registers": 64}])
def test_another_form_is_compiled_anew(kernel, change):
    large, small = torch.arange(8.0), torch.arange(2.0)
    for options in ({}, change):
        Launches([step(kernel, **options)], ["large", "small"], 0, torch.float32)(large, small)
    Launches([step(kernel)], ["large", "small"], 0, torch.float64)(large, small)
    Launches([step(kernel)], ["large", "small"], 1, torch.float32)(large, small)
    assert len(kernel.given) == 4
    assert kernel.launched == []


def test_a_kernel_without_one_of_its_tensors_is_another_form(kernel):
    large, small = torch.arange(8.0), torch.arange(2.0)
    whole = step(kernel)
    for each in (whole, whole._replace(parts=(*whole.parts[:3], None)), whole):
        Launches([each], ["large", "small"], 0, torch.float32)(large, small)
    assert [given[3] is None for _, given, _ in kernel.given] == [False, True]
    assert len(kernel.launched) == 1


def test_a_pass_is_launched_by_address_only_when_all_its_kernels_are_compiled(kernel):
    large, small = torch.arange(8.0), torch.arange(2.0)
    Launches([step(kernel)], ["large", "small"], 0)(large, small)
    both = Launches([step(kernel), step(kernel, warps=8)], ["large", "small"], 0)
    both(large, small)
    assert (len(kernel.given), len(kernel.launched)) == (3, 0)
    both(large, small)
    assert (len(kernel.given), len(kernel.launched)) == (3, 2)


def test_a_whole_tensor_is_given_as_it_is():
    strided = torch.rand(4, 6)[:, ::2]
    assert view(strided, Part("strided")) is strided


def test_a_cpu_tensor_changes_no_device():
    with on_device_of(torch.zeros(1)) as nothing:
        assert nothing is None


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_of_a_tensor_becomes_the_current_one():
    for device in range(2):
        with on_device_of(torch.zeros(1, device=f"cuda:{device}")):
            assert torch.cuda.current_device() == device
    assert torch.cuda.current_device() == 0


LAYERS = {
    "conv": ((33, 5, 4, 3, 4, 4), (3, 2, 3, 5, 4, 4)),
    "small batch": ((16, 5, 4, 3, 4, 4), (3, 2, 3, 5, 4, 4)),
    "class": ((5, 3, 2, 17, 4, 4), (17, 2, 4, 4)),
    "one image": ((1, 1, 1, 1, 4, 4), (1, 1, 1, 1, 4, 4)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("iterations", [1, 2, 4])
@pytest.mark.parametrize("shapes", LAYERS)
def test_parts_are_aligned_and_inside_their_memory(shapes, iterations, dtype):
    """Kernels are compiled for parts that start at multiples of 16 bytes."""
    layer = Layer.of(*LAYERS[shapes], (1, 1), False)
    numbers = torch.float32 if dtype == torch.bfloat16 else dtype
    staged = shapes == "conv" and dtype == torch.float32
    kept, work = Kept(layer, iterations, dtype), Work(layer, iterations, numbers, staged)
    forward = forward_steps(layer, kept, staged, iterations, 1.0, 1e-4, 1.0, (1,) * 9, (0, 0, 0))
    backward = backward_steps(layer, kept, work, staged, iterations, 1.0, 1.0)
    more = iterations - 1 if staged else 0  # log joints have sweeps of their own, and so has D
    assert len(forward) == 2 * iterations + more
    assert len(backward) == 2 * iterations + 2 + max(0, more - 1)
    sizes = {"kept": kept.size * dtype.itemsize, "work": work.size * numbers.itemsize}
    for names, steps in ((FORWARD, forward), (BACKWARD, backward)):
        for part in (part for each in steps for part in each.parts if part is not None):
            assert part.name in names
            assert part.offset <= sizes.get(part.name, 0)
            # Sums of beta gradients may start anywhere but in the first iteration, and their kernel knows.
            assert part.offset % 16 == 0 or part in [work.beta(later) for later in range(1, iterations)]
