# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Eight float64 numbers side by side, a numba type.

A compiler that meets a short loop of unknown length writes several versions of it and runs the
slowest; a basis has twenty rows. Kernels that say *eight at a time* are faster, and compile faster.
Arrays they walk over end in room for seven numbers more.
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, lower_builtin, register_model, type_callable

from gnn_repair.kernel_cache import cached_njit
from gnn_repair.startup import load_numba

WIDTH = 8
"""A cache line, and a vector of AVX-512; machines with narrower ones take two or four steps."""
VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
_MASK = ir.VectorType(ir.IntType(1), WIDTH)
UNALIGNED = 8
"""Bytes that an address is a multiple of: no more than one number's."""
# Kernels own no memory, so reference counting is switched off. Passing many arrays costs more than
# solving a small LP, so what runs once per LP or pivot is inlined; what runs rarely is not.
_ENTRY = {
    "nogil": True,
    "_nrt": False,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
}
_OPTIONS = {**_ENTRY, "no_cpython_wrapper": True}
entry_kernel = cached_njit(**_ENTRY)
cold_kernel = numba.njit(**_OPTIONS)
kernel = numba.njit(**_OPTIONS, forceinline=True)
# What is called from one place only is compiled there and nowhere else.
kernel_once = numba.njit(**_OPTIONS, inline="always")


@contextmanager
def moderately_optimised() -> Iterator[None]:
    """Kernels compiled inside are optimised at LLVM's second level.

    It takes a fifth less time than the third, and code that says *eight at a time* runs as fast.
    """
    level = numba.config.OPT
    numba.config.OPT = type(level)(min(level, 2))
    try:
        yield
    finally:
        numba.config.OPT = level


def aligned(*shape: int) -> Any:
    """Zeros that begin at a cache line, so that no eight of them lie across two."""
    size = int(np.prod(shape))
    room = np.zeros(size + WIDTH)
    offset = -room.ctypes.data // room.itemsize % WIDTH
    return room[offset : offset + size].reshape(shape)


class Lanes(types.Type):
    """Eight numbers."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


LANES = Lanes()


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, VECTOR)


def address(context, builder, kind, array, places):
    """Where the eight numbers from ``places`` on lie."""
    parts = context.make_array(kind)(context, builder, array)
    pointer = cgutils.get_item_pointer(context, builder, kind, parts, places, wraparound=False)
    return builder.bitcast(pointer, VECTOR.as_pointer())


def splat(builder, value, kind):
    """One number in every lane."""
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.IntType(32)(0))
    return builder.shuffle_vector(one, nothing, chosen([0] * WIDTH))


def chosen(places):
    """A constant that says which lanes a shuffle takes; 8 … 15 are those of its second vector."""
    return ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), places)


@intrinsic
def get(typing, array, k):
    """array[k : k+8]."""

    def code(context, builder, signature, args):
        pointer = address(context, builder, signature.args[0], args[0], args[1:])
        return builder.load(pointer, align=UNALIGNED)

    return LANES(array, types.intp), code


@intrinsic
def get_row(typing, array, row, k):
    """array[row, k : k+8]."""

    def code(context, builder, signature, args):
        pointer = address(context, builder, signature.args[0], args[0], args[1:])
        return builder.load(pointer, align=UNALIGNED)

    return LANES(array, types.intp, types.intp), code


def load_first(builder, pointer, count):
    """The first ``count`` lanes at an address; the others are zeros and not read."""
    numbers, align = ir.VectorType(ir.IntType(64), WIDTH), ir.IntType(32)
    lanes = ir.Constant(numbers, list(range(WIDTH)))
    mask = builder.icmp_signed("<", lanes, splat(builder, count, numbers))
    kind = ir.FunctionType(VECTOR, [pointer.type, align, _MASK, VECTOR])
    name = f"llvm.masked.load.v{WIDTH}f64.p0"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    zeros = ir.Constant(VECTOR, [0.0] * WIDTH)
    return builder.call(function, [pointer, align(UNALIGNED), mask, zeros])


@intrinsic
def get_part(typing, array, row, k, count):
    """array[row, k : k+8]; lanes from ``count`` on are zeros."""

    def code(context, builder, signature, args):
        pointer = address(context, builder, signature.args[0], args[0], args[1:3])
        return load_first(builder, pointer, args[3])

    return LANES(array, types.intp, types.intp, types.intp), code


@intrinsic
def put(typing, array, k, lanes):
    """array[k : k+8] = lanes."""

    def code(context, builder, signature, args):
        pointer = address(context, builder, signature.args[0], args[0], args[1:-1])
        builder.store(args[-1], pointer, align=UNALIGNED)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), code


@intrinsic
def put_row(typing, array, row, k, lanes):
    """array[row, k : k+8] = lanes."""

    def code(context, builder, signature, args):
        pointer = address(context, builder, signature.args[0], args[0], args[1:-1])
        builder.store(args[-1], pointer, align=UNALIGNED)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, lanes), code


@intrinsic
def broadcast(typing, number):
    """The same number eight times."""

    def code(context, builder, signature, args):
        return splat(builder, args[0], VECTOR)

    return LANES(types.float64), code


@intrinsic
def multiply_add(typing, a, b, c):
    """a · b + c, fused where the machine can."""

    def code(context, builder, signature, args):
        product = builder.fmul(args[0], args[1], flags=("contract",))
        return builder.fadd(product, args[2], flags=("contract",))

    return LANES(a, b, c), code


@intrinsic
def magnitude(typing, a):
    """|a|."""

    def code(context, builder, signature, args):
        kind = ir.VectorType(ir.IntType(64), WIDTH)
        bits = ir.Constant(kind, [(1 << 63) - 1] * WIDTH)
        return builder.bitcast(builder.and_(builder.bitcast(args[0], kind), bits), VECTOR)

    return LANES(a), code


@intrinsic
def larger(typing, a, b):
    """The larger of each pair."""

    def code(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[0], args[1])

    return LANES(a, b), code


@intrinsic
def smaller(typing, a, b):
    """The smaller of each pair."""

    def code(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[0], args[1])

    return LANES(a, b), code


@intrinsic
def where_larger(typing, a, b, yes, no):
    """yes where a > b, else no."""

    def code(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[2], args[3])

    return LANES(a, b, yes, no), code


@intrinsic
def largest_lane(typing, a):
    """The largest of the eight."""

    def code(context, builder, signature, args):
        value, width = args[0], WIDTH
        nothing = ir.Constant(VECTOR, ir.Undefined)
        while width > 1:
            width //= 2
            turn = [(k + width) % WIDTH for k in range(WIDTH)]
            other = builder.shuffle_vector(value, nothing, chosen(turn))
            value = builder.select(builder.fcmp_ordered(">", value, other), value, other)
        return builder.extract_element(value, ir.IntType(32)(0))

    return types.float64(a), code


@intrinsic
def first_of(typing, a, b, c, d, number):
    """Where ``number`` first stands among four times eight; 32 if it does not."""

    def code(context, builder, signature, args):
        *four, number = args
        same, wide = splat(builder, number, VECTOR), ir.IntType(64)
        found = wide(1 << 4 * WIDTH)
        for k, lanes in enumerate(four):
            hits = builder.bitcast(builder.fcmp_ordered("==", lanes, same), ir.IntType(WIDTH))
            hits = builder.shl(builder.zext(hits, wide), wide(k * WIDTH))
            found = builder.or_(found, hits)
        return builder.cttz(found, ir.IntType(1)(1))

    return types.int64(a, b, c, d, types.float64), code


def _operator(function, name):
    @type_callable(function)
    def _typed(context):
        def typer(a, b):
            return LANES if isinstance(a, Lanes) and isinstance(b, Lanes) else None

        return typer

    @lower_builtin(function, Lanes, Lanes)
    def _lowered(context, builder, signature, args):
        return getattr(builder, name)(*args)


for _function, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operator(_function, _name)

load_numba()
