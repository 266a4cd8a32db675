"""Vectors of LANES numbers for numba's kernels, with explicit instructions to load, store, add, multiply and sum them.

numba normally leaves it to the compiler to turn loops into vector instructions. The compiler cannot see which arrays
overlap and what may stay in registers, and often fails. These are LLVM's own vectors, so that a kernel says what
happens to each, and LLVM translates them to the instructions that the processor has. Where a kernel writes a Python
number, it stands for a vector that holds the number in every lane.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_model

LANES = 16
INDEX = ir.IntType(32)
MAY_FUSE = ("contract",)
"""LLVM may fuse a product and a sum into one instruction, but change nothing else, so that infinities and NaN stay."""

OPERATIONS = {
    operator.add: "fadd",
    operator.iadd: "fadd",
    operator.sub: "fsub",
    operator.isub: "fsub",
    operator.mul: "fmul",
    operator.imul: "fmul",
    operator.truediv: "fdiv",
}


class Vector(types.Type):
    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(name=f"vector({dtype})")


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        number = ir.DoubleType() if vector.dtype == types.float64 else ir.FloatType()
        super().__init__(manager, vector, ir.VectorType(number, LANES))


def _define(function: Callable[..., Any], instruction: str) -> None:
    """Define the operator between two vectors, and between a vector and a number."""

    @infer_global(function)
    class Operator(AbstractTemplate):
        def generic(self, args: Sequence[Any], kws: Any) -> Any:
            vectors = [kind for kind in args if isinstance(kind, Vector)]
            if vectors and all(kind == vectors[0] or isinstance(kind, types.Number) for kind in args):
                return signature(vectors[0], *(kind if kind == vectors[0] else vectors[0].dtype for kind in args))
            return None

    def lower(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        left, right = (
            value if isinstance(kind, Vector) else _everywhere(builder, value)
            for value, kind in zip(args, sig.args, strict=True)
        )
        return getattr(builder, instruction)(left, right, flags=MAY_FUSE)

    for kinds in ((Vector, Vector), (Vector, types.Float), (types.Float, Vector)):
        lower_builtin(function, *kinds)(lower)


for _function, _instruction in OPERATIONS.items():
    _define(_function, _instruction)


@intrinsic
def load(_context, array, start):
    """Load LANES numbers of a one-dimensional array, from `start` on. The array's end is not checked."""

    def generate(context, builder, sig, args):
        return builder.load(_address(context, builder, sig, args), align=_bytes(sig.args[0]))

    return Vector(array.dtype)(array, start), generate


@intrinsic
def store(_context, array, start, vector):
    """Store a vector into a one-dimensional array, from `start` on. The array's end is not checked."""

    def generate(context, builder, sig, args):
        builder.store(args[2], _address(context, builder, sig, args), align=_bytes(sig.args[0]))
        return context.get_dummy_value()

    return types.void(array, start, vector), generate


@intrinsic
def fetch(_context, array, start):
    """Prefetch the cache line of an element."""

    def generate(context, builder, sig, args):
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, INDEX, INDEX, INDEX])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        place = builder.bitcast(_address(context, builder, sig, args), pointer)
        builder.call(prefetch, [place, *(ir.Constant(INDEX, value) for value in (0, 3, 1))])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, start), generate


@intrinsic
def zeros(_context, array):
    """A vector of zeros, of the array's dtype."""
    kind = Vector(array.dtype)

    def generate(context, builder, sig, args):
        return ir.Constant(context.get_value_type(kind), [0.0] * LANES)

    return kind(array), generate


@intrinsic
def first_lanes(_context, vector, count, otherwise):
    """The vector with all lanes but the first `count` replaced by another number."""

    def generate(context, builder, sig, args):
        number = context.cast(builder, args[2], sig.args[2], sig.args[0].dtype)
        last = _everywhere(builder, builder.trunc(context.cast(builder, args[1], sig.args[1], types.intp), INDEX))
        lanes = ir.Constant(ir.VectorType(INDEX, LANES), list(range(LANES)))
        return builder.select(builder.icmp_signed("<", lanes, last), args[0], _everywhere(builder, number))

    return vector(vector, count, otherwise), generate


@intrinsic
def larger(_context, a, b):
    """The larger number in each lane; if one is NaN, the result is either of the two."""

    def generate(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), generate


@intrinsic
def sum_of_lanes(_context, vector):
    def generate(context, builder, sig, args):
        return _fold(builder, args[0], lambda a, b: builder.fadd(a, b))

    return vector.dtype(vector), generate


@intrinsic
def largest_lane(_context, vector):
    """The largest number of a vector; if one of them is NaN, the result is any of them."""

    def generate(context, builder, sig, args):
        return _fold(builder, args[0], lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))

    return vector.dtype(vector), generate


@intrinsic
def sums_of_vectors(_context, vectors):
    """The sums of LANES vectors, side by side in one vector.

    Pairs of vectors exchange halves and are added, then pairs of the results exchange quarters, and so on.
    """

    def generate(context, builder, sig, args):
        parts = [builder.extract_value(args[0], index) for index in range(LANES)]
        while len(parts) > 1:
            run = len(parts) // 2  # lanes that stay together
            low = [lane for start in range(0, 2 * LANES, 2 * run) for lane in range(start, start + run)]
            high = [lane + run for lane in low]
            parts = [
                builder.fadd(_shuffle(builder, a, b, low), _shuffle(builder, a, b, high))
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    return vectors.dtype(vectors), generate


@intrinsic
def exp_of_nonpositive(_context, vector):
    """exp of numbers that are not positive, as 2^n exp(r) with |r| at most half of log 2, where a short series will do.

    Results too small for a normal number become zero.
    """
    double = vector.dtype == types.float64
    # log 2 is the sum of a high and a low part, so that n times the high part is exact
    lowest, log2_high, log2_low, terms, bits, bias, whole = (
        (-708.0, 0.6931471803691238, 1.9082149292705877e-10, 14, 52, 1023, ir.IntType(64))
        if double
        else (-87.0, 0.693359375, -2.12194440e-4, 8, 23, 127, ir.IntType(32))
    )

    def generate(context, builder, sig, args):
        (x,) = args
        integers = ir.VectorType(whole, LANES)

        def number(value):
            return ir.Constant(x.type, [value] * LANES)

        def integer(value):
            return ir.Constant(integers, [value] * LANES)

        in_range = builder.fcmp_ordered(">", x, number(lowest))
        inside = builder.select(in_range, x, number(0.0))
        scaled = builder.fsub(builder.fmul(inside, number(1 / math.log(2))), number(0.5))
        n = builder.fptosi(scaled, integers)  # truncates; a half was subtracted, so this rounds to the nearest
        n = builder.select(builder.icmp_signed("<", n, integer(0)), n, integer(0))
        rounded = builder.sitofp(n, x.type)
        r = builder.fsub(inside, builder.fmul(rounded, number(log2_high), flags=MAY_FUSE), flags=MAY_FUSE)
        r = builder.fsub(r, builder.fmul(rounded, number(log2_low), flags=MAY_FUSE), flags=MAY_FUSE)
        value = number(1 / math.factorial(terms - 1))
        for power in range(terms - 2, -1, -1):
            product = builder.fmul(value, r, flags=MAY_FUSE)
            value = builder.fadd(product, number(1 / math.factorial(power)), flags=MAY_FUSE)
        power_of_2 = builder.bitcast(builder.shl(builder.add(n, integer(bias)), integer(bits)), x.type)
        below = builder.fcmp_ordered("<=", x, number(lowest))
        # NaN is neither above nor below `lowest`, and stays NaN
        return builder.select(in_range, builder.fmul(value, power_of_2), builder.select(below, number(0.0), x))

    return vector(vector), generate


def _everywhere(builder: Any, number: Any) -> Any:
    undefined = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(INDEX, 0))
    return _shuffle(builder, first, undefined, [0] * LANES)


def _shuffle(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INDEX, len(lanes)), list(lanes)))


def _fold(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine lower and upper half until one number is left, in the same order on every machine."""
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        halves = (_shuffle(builder, vector, undefined, range(start, start + lanes)) for start in (0, lanes))
        vector = combine(*halves)
    return builder.extract_element(vector, ir.Constant(INDEX, 0))


def _address(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    array, index = sig.args[:2]
    data = context.make_array(array)(context, builder, args[0]).data
    place = builder.gep(data, [context.cast(builder, args[1], index, types.intp)])
    return builder.bitcast(place, context.get_value_type(Vector(array.dtype)).as_pointer())


def _bytes(array: Any) -> int:
    return int(array.dtype.bitwidth // 8)
