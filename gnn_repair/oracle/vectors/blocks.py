# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Eight vectors of eight numbers: rows of a table read, turned and written."""

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.types.containers import UniTuple
from numba.extending import intrinsic

from gnn_repair.oracle.vectors.lanes import (
    LANES,
    UNALIGNED,
    VECTOR,
    WIDTH,
    address,
    chosen,
    load_first,
)


def _halves(builder, a, b, step):
    """Of each pair of lane blocks of length ``step``, the first ones of a and b, and the second."""
    low = [k + (WIDTH - step) * bool(k & step) for k in range(WIDTH)]
    return (
        builder.shuffle_vector(a, b, chosen(low)),
        builder.shuffle_vector(a, b, chosen([k + step for k in low])),
    )


@intrinsic
def transposed(typing, eight):
    """Eight vectors as a matrix, turned: lane j of vector i becomes lane i of vector j."""

    def code(context, builder, signature, args):
        rows = cgutils.unpack_tuple(builder, args[0])
        for step in (1, 2, 4):
            for i in range(WIDTH):
                if not i & step:
                    rows[i], rows[i + step] = _halves(builder, rows[i], rows[i + step], step)
        return context.make_tuple(builder, signature.return_type, rows)

    return eight(eight), code


@intrinsic
def eight_from(typing, array, k, end):
    """array[k : k+8] as eight integers; the one at ``end`` stands in for those after it."""

    def code(context, builder, signature, args):
        parts, wide = context.make_array(signature.args[0])(context, builder, args[0]), args[1].type
        places = [builder.add(args[1], wide(i)) for i in range(WIDTH)]

        def values(places):
            found = [builder.load(builder.gep(parts.data, [place])) for place in places]
            return [builder.sext(value, wide) for value in found], builder.block

        with builder.if_else(builder.icmp_signed("<=", places[-1], args[2])) as (inside, beyond):
            with inside:
                first, first_block = values(places)
            with beyond:
                short = [builder.icmp_signed("<", place, args[2]) for place in places]
                pairs = zip(short, places, strict=True)
                other, other_block = values([builder.select(c, at, args[2]) for c, at in pairs])
        found = []
        for pair in zip(first, other, strict=True):
            found.append(builder.phi(wide))
            for value, block in zip(pair, (first_block, other_block), strict=True):
                found[-1].add_incoming(value, block)
        return context.make_tuple(builder, signature.return_type, found)

    return UniTuple(types.int64, WIDTH)(array, types.intp, types.intp), code


@intrinsic
def get_rows(typing, array, rows, k, count):
    """array[rows[i], k : k+8] for eight rows i; lanes from ``count`` on are zeros."""

    def code(context, builder, signature, args):
        found = []
        for row in cgutils.unpack_tuple(builder, args[1]):
            pointer = address(context, builder, signature.args[0], args[0], (row, args[2]))
            found.append(load_first(builder, pointer, args[3]))
        return context.make_tuple(builder, signature.return_type, found)

    return UniTuple(LANES, WIDTH)(array, rows, types.intp, types.intp), code


@intrinsic
def fetch_rows(typing, array, rows, k):
    """Ask for the cache lines of array[rows[i], k] for eight rows i; nothing waits for them."""

    def code(context, builder, signature, args):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for row in cgutils.unpack_tuple(builder, args[1]):
            pointer = address(context, builder, signature.args[0], args[0], (row, args[2]))
            place = builder.bitcast(pointer, byte)
            builder.call(function, [place, number(0), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(array, rows, types.intp), code


@intrinsic
def get_column(typing, array, rows, k):
    """array[rows[i], k] for eight rows i."""

    def code(context, builder, signature, args):
        kind = signature.args[0]
        parts = context.make_array(kind)(context, builder, args[0])
        found = ir.Constant(VECTOR, ir.Undefined)
        for i, row in enumerate(cgutils.unpack_tuple(builder, args[1])):
            at = (row, args[2])
            pointer = cgutils.get_item_pointer(context, builder, kind, parts, at, wraparound=False)
            found = builder.insert_element(found, builder.load(pointer), ir.IntType(32)(i))
        return found

    return LANES(array, rows, types.intp), code


@intrinsic
def gaps(typing, factor, own, eight):
    """factor · (own − eight[i]) for each i."""

    def code(context, builder, signature, args):
        found = [
            builder.fmul(args[0], builder.fsub(args[1], lanes))
            for lanes in cgutils.unpack_tuple(builder, args[2])
        ]
        return context.make_tuple(builder, signature.return_type, found)

    return eight(factor, own, eight), code


@intrinsic
def put_rows(typing, array, row, k, count, eight):
    """array[row + i, k : k+8] = eight[i] for i below ``count``."""

    def code(context, builder, signature, args):
        array, row, k, count, eight = args
        for i, lanes in enumerate(cgutils.unpack_tuple(builder, eight)):
            place = ir.IntType(64)(i)
            with builder.if_then(builder.icmp_signed("<", place, count)):
                at = (builder.add(row, place), k)
                pointer = address(context, builder, signature.args[0], array, at)
                builder.store(lanes, pointer, align=UNALIGNED)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp, eight), code


@intrinsic
def added(typing, eight):
    """The sum of eight vectors."""

    def code(context, builder, signature, args):
        rows = cgutils.unpack_tuple(builder, args[0])
        while len(rows) > 1:
            rows = [builder.fadd(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        return rows[0]

    return LANES(eight), code
