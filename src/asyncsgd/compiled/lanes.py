"""Several numbers at once: a vector of fixed width as a value of compiled code.

A compiler vectorises a plain loop over lanes only if it can prove that no two arrays overlap, which it cannot here. So
the kernels hold lanes in a type of their own, which LLVM keeps in vector registers on every processor. Each lane gets
exactly the roundings of scalar code: no operation is fused or reordered.

A width is a tuple of zeros, because the length of a tuple is known at compile time::

    width = (0,) * 8
    acc = splat(0.0, width)
    for j in range(d):
        acc = acc + h[i, j] * load(x, j * len(width), width)
    store(out, i * len(width), acc)

Offsets count elements from the start of a C-contiguous array. They are not checked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numba.core.types
import numba.extending
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils as untyped_cgutils
from numba.core.typing.templates import AbstractTemplate
from numba.core.typing.templates import infer_global as untyped_infer_global

types: Any = numba.core.types
extending: Any = numba.extending
cgutils: Any = untyped_cgutils
infer_global: Any = untyped_infer_global
intrinsic = extending.intrinsic
I64 = ir.IntType(64)


class Lanes(types.Type):  # type: ignore[misc]
    """``width`` numbers of one kind (float64, uint64 or boolean)."""

    def __init__(self, dtype: Any, width: int) -> None:
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Lanes({dtype}, {width})")


def _llvm(dtype: Any) -> Any:
    return {types.float64: ir.DoubleType(), types.uint64: I64, types.boolean: ir.IntType(1)}[dtype]


@extending.register_model(Lanes)
class _Model(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(_llvm(fe_type.dtype), fe_type.width))


def _spread(builder: Any, value: Any, width: int) -> Any:
    """The same scalar in every lane."""
    kind = ir.VectorType(value.type, width)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)


def _operator(op: Any, emit: dict[Any, Callable[[Any, Any, Any], Any]], result: Any = None) -> None:
    """``op`` between two Lanes, or between Lanes and a scalar of their kind."""

    @infer_global(op)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) != 2 or not any(isinstance(arg, Lanes) for arg in args):
                return None
            lanes = next(arg for arg in args if isinstance(arg, Lanes))
            fits = all(arg == lanes or arg == lanes.dtype for arg in args)
            if not fits or lanes.dtype not in emit:
                return None
            return _signature(result, lanes, args)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = next(arg for arg in sig.args if isinstance(arg, Lanes))
        both = [
            value if isinstance(kind, Lanes) else _spread(builder, value, lanes.width)
            for kind, value in zip(sig.args, args, strict=True)
        ]
        return emit[lanes.dtype](builder, *both)

    for left, right in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        extending.lower_builtin(op, left, right)(lower)


def _signature(result: Any, lanes: Lanes, args: Any) -> Any:
    return (Lanes(result, lanes.width) if result is not None else lanes)(*args)


F, U = types.float64, types.uint64
_operator(operator.add, {F: lambda b, x, y: b.fadd(x, y), U: lambda b, x, y: b.add(x, y)})
_operator(operator.sub, {F: lambda b, x, y: b.fsub(x, y), U: lambda b, x, y: b.sub(x, y)})
_operator(operator.mul, {F: lambda b, x, y: b.fmul(x, y), U: lambda b, x, y: b.mul(x, y)})
_operator(operator.truediv, {F: lambda b, x, y: b.fdiv(x, y)})
_operator(operator.xor, {U: lambda b, x, y: b.xor(x, y)})
_operator(operator.and_, {U: lambda b, x, y: b.and_(x, y)})
_operator(operator.or_, {U: lambda b, x, y: b.or_(x, y)})
_operator(operator.lshift, {U: lambda b, x, y: b.shl(x, y)})
_operator(operator.rshift, {U: lambda b, x, y: b.lshr(x, y)})
_operator(
    operator.eq,
    {F: lambda b, x, y: b.fcmp_ordered("==", x, y), U: lambda b, x, y: b.icmp_unsigned("==", x, y)},
    types.boolean,
)
_operator(operator.lt, {F: lambda b, x, y: b.fcmp_ordered("<", x, y)}, types.boolean)
_operator(operator.gt, {F: lambda b, x, y: b.fcmp_ordered(">", x, y)}, types.boolean)


def _start(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The address of the first element of an array; a pointer is one already."""
    return value if isinstance(kind, types.CPointer) else context.make_array(kind)(context, builder, value).data


@intrinsic
def pointer(typingctx: Any, array: Any, offset: Any) -> Any:
    """The address of element ``offset`` of a C-contiguous array, or that many elements after another address.

    The address does not own the array, so the caller must keep the array alive. An address is cheap to pass to a
    function; numba counts the references to an array with atomic operations at each call.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        index = context.cast(builder, args[1], sig.args[1], types.intp)
        return builder.gep(_start(context, builder, sig.args[0], args[0]), [index], inbounds=True)

    return types.CPointer(array.dtype)(array, offset), codegen


@intrinsic(prefer_literal=True)
def member(typingctx: Any, group: Any, index: Any) -> Any:
    """The address of the first element of array number ``index`` (a constant) of a tuple."""
    place = index.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _start(context, builder, group[place], builder.extract_value(args[0], place))

    return types.CPointer(group[place].dtype)(group, index), codegen


@intrinsic(prefer_literal=True)
def extent(typingctx: Any, group: Any, index: Any, axis: Any) -> Any:
    """``group[index].shape[axis]`` of a tuple of arrays, both constants."""
    place, dimension = index.literal_value, axis.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(group[place])(context, builder, builder.extract_value(args[0], place))
        return builder.extract_value(array.shape, dimension)

    return types.intp(group, index, axis), codegen


@intrinsic
def at(typingctx: Any, array: Any, offset: Any) -> Any:
    """Element ``offset`` of a C-contiguous array or after an address, unchecked."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        index = context.cast(builder, args[1], sig.args[1], types.intp)
        return builder.load(builder.gep(_start(context, builder, sig.args[0], args[0]), [index], inbounds=True))

    return array.dtype(array, offset), codegen


@intrinsic
def put(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    """Write one element, unchecked."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        index = context.cast(builder, args[1], sig.args[1], types.intp)
        number = context.cast(builder, args[2], sig.args[2], array.dtype)
        builder.store(number, builder.gep(_start(context, builder, sig.args[0], args[0]), [index], inbounds=True))
        return context.get_dummy_value()

    return types.void(array, offset, value), codegen


def _vector_address(context: Any, builder: Any, sig: Any, args: Any, lanes: Any) -> Any:
    index = context.cast(builder, args[1], sig.args[1], types.intp)
    place = builder.gep(_start(context, builder, sig.args[0], args[0]), [index], inbounds=True)
    return builder.bitcast(place, context.get_value_type(lanes).as_pointer())


@intrinsic
def load(typingctx: Any, array: Any, offset: Any, width: Any) -> Any:
    """The lanes at ``offset`` of a C-contiguous array or after an address."""
    lanes = Lanes(array.dtype, len(width))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_vector_address(context, builder, sig, args, lanes), align=8)

    return lanes(array, offset, width), codegen


@intrinsic
def store(typingctx: Any, array: Any, offset: Any, lanes: Any) -> Any:
    """Write lanes at ``offset`` of a C-contiguous array or after an address."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _vector_address(context, builder, sig, args, lanes), align=8)
        return context.get_dummy_value()

    return types.void(array, offset, lanes), codegen


@intrinsic
def splat(typingctx: Any, value: Any, width: Any) -> Any:
    """The same number in every lane; ``width`` may be other lanes, too."""
    lanes = Lanes(value if value in (F, U) else F, width.width if isinstance(width, Lanes) else len(width))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _spread(builder, context.cast(builder, args[0], sig.args[0], lanes.dtype), lanes.width)

    return lanes(value, width), codegen


@intrinsic
def where(typingctx: Any, condition: Any, yes: Any, no: Any) -> Any:
    """Per lane, ``yes`` if the condition holds and ``no`` otherwise."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(*args)

    return yes(condition, yes, no), codegen


def _reinterpret(source: Any, target: Any) -> Any:
    def typing(typingctx: Any, value: Any) -> Any:
        lanes = Lanes(target, value.width)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(lanes))

        return lanes(value), codegen

    return intrinsic(typing)


bits = _reinterpret(F, U)
"""The bits of float64 lanes as uint64."""
floats = _reinterpret(U, F)
"""uint64 lanes as the float64 of these bits."""


@intrinsic
def sqrt(typingctx: Any, value: Any) -> Any:
    """Square roots, correctly rounded."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = args[0].type
        name = f"llvm.sqrt.v{value.width}f64"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        return builder.call(function, args)

    return value(value), codegen


@intrinsic
def first(typingctx: Any, value: Any) -> Any:
    """The number in the first lane."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.extract_element(args[0], ir.Constant(ir.IntType(32), 0))

    return value.dtype(value), codegen


@intrinsic
def nowhere(typingctx: Any) -> Any:
    """An address of uint64 that must not be read."""
    kind = types.CPointer(types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(kind), None)

    return kind(), codegen
