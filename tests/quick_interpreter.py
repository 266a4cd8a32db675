"""Triton's interpreter in a third of its time, with the same results to the last bit.

For every operation it makes names of types that nobody reads and a check whose outcome it ignores, and for every call
of a function in a kernel it prepares the whole language anew. Here that is done once, or not at all. This is about the
insides of Triton 3.6: conftest.py leaves the interpreter of another version as it is, and the tests of the kernels then
take longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

run_kernel, prepare = interpreter.GridExecutor.__call__, interpreter._patch_lang
numpy_type, tuple_type = interpreter._get_np_dtype, core.tuple_type.__init__
make_tensor, broadcast = core.tensor.__init__, TritonSemantic.broadcast_impl_value
check_overflow = TritonSemantic.binary_op_sanitize_overflow_impl

prepared: set[int] = set()
"""The modules of the language that are prepared for the kernel that runs."""


def run_kernel_anew(self: Any, *arguments: Any, **options: Any) -> Any:
    prepared.clear()
    try:
        return run_kernel(self, *arguments, **options)
    finally:
        prepared.clear()  # the interpreter has put back what it had changed


def prepare_once(function: Any) -> Any:
    modules = {id(value) for value in function.__globals__.values() if value is tl or value is core}
    if modules and modules <= prepared:
        return None
    prepared.update(modules)
    return prepare(function)


numpy_types: dict[Any, Any] = {}


def known_numpy_type(kind: Any) -> Any:
    kind = kind.element_ty if isinstance(kind, tl.block_type) else kind
    if isinstance(kind, tl.pointer_type):
        return numpy_type(kind)
    if kind not in numpy_types:
        numpy_types[kind] = numpy_type(kind)
    return numpy_types[kind]


def tuple_type_without_name(self: Any, types: Any, fields: Any = None) -> None:
    self.types, self.fields = types, fields or [""] * len(types)


def name_of_tuple_type(self: Any) -> str:
    return "[" + ",".join(f"{field}:{kind}" for field, kind in zip(self.fields, self.types, strict=True)) + "]"


shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}


def make_tensor_of_known_shape(self: Any, handle: Any, type: Any) -> None:
    sizes = tuple(type.shape.values) if type.is_block() else ()
    if sizes not in shapes:
        shapes[sizes] = core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = shapes[sizes]


def broadcast_unless_equal(self: Any, left: Any, right: Any) -> Any:
    if left.type.is_block() and right.type.is_block() and left.type.shape.values == right.type.shape.values:
        return left, right
    return broadcast(self, left, right)


def check_overflow_if_heard(self: Any, *arguments: Any) -> None:
    if self.builder.options.debug:
        check_overflow(self, *arguments)


CHANGES: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = [
    (interpreter.GridExecutor, "__call__", run_kernel, run_kernel_anew),
    (interpreter, "_patch_lang", prepare, prepare_once),
    (interpreter, "_get_np_dtype", numpy_type, known_numpy_type),
    (core.tuple_type, "__init__", tuple_type, tuple_type_without_name),
    (core.tensor, "__init__", make_tensor, make_tensor_of_known_shape),
    (TritonSemantic, "broadcast_impl_value", broadcast, broadcast_unless_equal),
    (TritonSemantic, "binary_op_sanitize_overflow_impl", check_overflow, check_overflow_if_heard),
]


def use() -> None:
    """Make the interpreter quick."""
    core.tuple_type.name = property(name_of_tuple_type)
    for where, name, _, quick in CHANGES:
        setattr(where, name, quick)


@contextmanager
def as_it_comes() -> Iterator[None]:
    """The interpreter as Triton has it."""
    del core.tuple_type.name
    for where, name, slow, _ in CHANGES:
        setattr(where, name, slow)
    try:
        yield
    finally:
        use()
