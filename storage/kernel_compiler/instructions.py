# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Machine instructions that numba does not offer, as its intrinsics.

`TWINS` and `copy_wide` take the place of the functions of `segmentlog.format.kernels.memory`,
which have their contracts.
"""

import inspect

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic

__all__ = [
    "ARRAY",
    "I64",
    "INT",
    "TWINS",
    "UINT",
    "caller",
    "copy_wide",
    "crc32",
    "instruction",
    "outside",
]

I64 = ir.IntType(64)
_I8, _I32 = ir.IntType(8), ir.IntType(32)
INT, UINT = types.int64, types.uint64
#: Stands for an array among arguments; what emits code gets its address.
ARRAY = None


def instruction(result, *arguments):
    """Make an intrinsic from ``emit(builder, *values)``, which emits its code."""

    def decorate(emit):
        def typed(typingctx, *given):
            def codegen(context, builder, signature, values):
                taken = [
                    context.make_array(kind)(context, builder, value).data
                    if isinstance(kind, types.Array)
                    else value
                    for kind, value in zip(signature.args, values, strict=True)
                ]
                made = emit(builder, *taken)
                return context.get_dummy_value() if result == types.void else made

            wanted = zip(arguments, given, strict=True)
            return result(*[each or kind for each, kind in wanted]), codegen

        names = ["typingctx", *(f"argument{number}" for number in range(len(arguments)))]
        typed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )
        return intrinsic(typed)

    return decorate


def _place(builder, data, at, kind):
    """Address of an item of another kind at byte `at`."""
    return builder.bitcast(builder.gep(data, [at]), kind.as_pointer())


def _loader(bits, *, swap=False, is_signed=True, result=INT):
    """Unaligned load of `bits`, extended to 64; `swap` for big-endian."""

    @instruction(result, ARRAY, INT)
    def load(builder, data, at):
        loaded = builder.load(_place(builder, data, at, ir.IntType(bits)), align=1)
        if swap:
            loaded = builder.bswap(loaded)
        return (builder.sext if is_signed else builder.zext)(loaded, I64)

    return load


def _storer(bits, *, swap=False):
    """Unaligned store of the low `bits` of a word; `swap` for big-endian."""

    @instruction(types.void, ARRAY, INT, INT)
    def store(builder, data, at, value):
        stored = builder.trunc(value, ir.IntType(bits))
        if swap:
            stored = builder.bswap(stored)
        builder.store(stored, _place(builder, data, at, stored.type), align=1)

    return store


def caller(n_arguments):
    """Call the C function at an address with this number of words; it returns a word."""
    kind = ir.FunctionType(I64, [I64] * n_arguments)

    @instruction(INT, INT, *[INT] * n_arguments)
    def call(builder, address, *words):
        return builder.call(builder.inttoptr(address, kind.as_pointer()), words)

    return call


def outside(name):
    """The word that another object has under this name."""

    @instruction(INT)
    def load(builder):
        known = builder.module.globals.get(name)
        return builder.load(known or ir.GlobalVariable(builder.module, I64, name))

    return load


def _copier(n_bytes):
    """Copy `n_bytes`, a power of two, as one vector."""
    vector = ir.VectorType(_I8, n_bytes)

    @instruction(types.void, ARRAY, INT, ARRAY, INT)
    def copy(builder, target, to, source, at):
        loaded = builder.load(_place(builder, source, at, vector), align=1)
        builder.store(loaded, _place(builder, target, to, vector), align=1)

    return copy


copy_32, copy_64 = _copier(32), _copier(64)


def copy_wide(target, to, source, at, n_bytes):
    if n_bytes <= 32:
        copy_32(target, to, source, at)
        return
    copy_64(target, to, source, at)
    if n_bytes > 64:
        copy_64(target, to + 64, source, at + 64)
        if n_bytes > 128:
            copy_64(target, to + 128, source, at + 128)
            copy_64(target, to + 192, source, at + 192)


@instruction(types.void, ARRAY, INT, ARRAY, INT, INT)
def _copy_bytes(builder, target, to, source, at, n_bytes):
    raw_memcpy(builder, builder.gep(target, [to]), builder.gep(source, [at]), n_bytes, 1)


@instruction(INT, ARRAY, INT)
def _load_item(builder, data, at):
    return builder.sext(builder.load(builder.gep(data, [at])), I64)


@instruction(types.void, ARRAY, INT, INT)
def _store_item(builder, data, at, value):
    builder.store(builder.trunc(value, data.type.pointee), builder.gep(data, [at]))


@instruction(INT, UINT)
def _trailing_zeros(builder, word):
    return builder.cttz(word, ir.IntType(1)(0))


@instruction(INT, INT)
def _leading_zeros(builder, word):
    return builder.ctlz(word, ir.IntType(1)(0))


@instruction(types.void, ARRAY, INT)
def _prefetch(builder, data, at):
    pointer = _I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], fnty=kind)
    builder.call(function, [_place(builder, data, at, _I8), _I32(0), _I32(3), _I32(1)])


@instruction(UINT, UINT, UINT)
def crc32(builder, crc, word):
    """x86's instruction over eight bytes."""
    kind = ir.FunctionType(I64, [I64, I64])
    function = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=kind)
    return builder.call(function, [crc, word])


#: By the name in `memory`.
TWINS = {
    "load_i64": _loader(64, swap=True),
    "load_i32": _loader(32, swap=True),
    "load_i16": _loader(16, swap=True),
    "load_u64": _loader(64, result=UINT),
    "load_u32": _loader(32, is_signed=False),
    "load_u8": _loader(8, is_signed=False),  # numba's indexing would ask if `at` is negative
    "load_item": _load_item,
    "store_i64": _storer(64, swap=True),
    "store_i32": _storer(32, swap=True),
    "store_i16": _storer(16, swap=True),
    "store_u64": _storer(64),
    "store_u8": _storer(8),
    "store_item": _store_item,
    "prefetch": _prefetch,
    "leading_zeros": _leading_zeros,
    "trailing_zeros": _trailing_zeros,
    "call_5": caller(5),
    "call_6": caller(6),
    "copy_bytes": _copy_bytes,
}
