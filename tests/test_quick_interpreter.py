"""The interpreter as the tests use it computes what Triton's own computes."""

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("kernels run on the GPU", allow_module_level=True)

import triton

if not triton.__version__.startswith("3.6."):
    pytest.skip("the interpreter of this version stays as it is", allow_module_level=True)
import triton.language as tl

import quick_interpreter
from routing.cases import class_inputs, conv_inputs
from routing.fused import fused


@pytest.mark.parametrize(
    "inputs",
    [
        conv_inputs(batch=3, grid=(1, 2), kernel=(1, 2), child_types=1, parent_types=2).to(torch.float32),
        class_inputs(batch=2, grid=(1, 1), child_types=3, parent_types=1),
    ],
    ids=["conv, float32", "class, float64"],
)
def test_the_same_bits(inputs):
    got = fused(inputs, "cpu", iterations=2)
    with quick_interpreter.as_it_comes():
        want = fused(inputs, "cpu", iterations=2)
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert torch.equal(got[name], value), name


@triton.jit
def add_one(values):
    return values + 1


@triton.jit
def add_and_broadcast(source, target, size: tl.constexpr):
    """Values of all kinds of shapes: numbers, blocks, and blocks of other shapes, broadcast."""
    rows = tl.arange(0, size)
    values = tl.load(source + rows)
    table = add_one(values)[:, None] * add_one(values)[None, :] + rows[:, None]
    tl.store(target + rows[:, None] * size + rows[None, :], table)


@triton.jit
def add_unequal(source, target):
    tl.store(target + tl.arange(0, 2), tl.load(source + tl.arange(0, 2)) + tl.load(source + tl.arange(0, 4)))


def test_a_kernel_of_blocks_that_are_broadcast():
    source, target = torch.arange(4.0), torch.zeros(4, 4)
    add_and_broadcast[(1,)](source, target, 4)
    assert torch.equal(target, (source + 1)[:, None] * (source + 1) + source[:, None])


def test_shapes_that_do_not_fit_are_errors_still_and_the_next_kernel_runs():
    with pytest.raises(Exception, match="incompatible dimensions at index 0: 2 and 4"):
        add_unequal[(1,)](torch.zeros(4), torch.zeros(2))
    test_a_kernel_of_blocks_that_are_broadcast()
    with quick_interpreter.as_it_comes():
        test_a_kernel_of_blocks_that_are_broadcast()


def test_the_name_of_a_tuples_type_is_made_when_it_is_read():
    values = [tl.constexpr(2), tl.constexpr(3)]
    kind = tl.core.tuple(values).type
    with quick_interpreter.as_it_comes():
        want = tl.core.tuple(values).type.name
    assert kind.name == str(kind) == want == "[:constexpr_type[2],:constexpr_type[3]]"
