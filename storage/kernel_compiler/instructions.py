# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Single machine instructions that numba does not offer, as `numba.extending.intrinsic`.

They take the place of the functions of `segmentlog.format.kernels.memory`, which have their types
and contracts; `crc_block` does the same for checksums.
"""

import inspect

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import raw_memcpy
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload

from segmentlog.format.kernels import memory

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def host_features() -> str:
    """CPU features that numba compiles for, as LLVM spells them: ``+sse4.2,+avx2,…``."""
    return str(cpu_target.target_context.codegen().magic_tuple()[2])


def array_pointer(context, builder, array_type, array, at):
    """Address of byte `at` of `array`."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def _loader(bits, *, swap=False, is_signed=True, kind=types.int64):
    """Unaligned load of `bits`, extended to 64; `swap` for big-endian."""
    word = ir.IntType(bits)

    @intrinsic
    def load(typingctx, buf, at):
        def codegen(context, builder, signature, arguments):
            pointer = array_pointer(context, builder, signature.args[0], *arguments)
            loaded = builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)
            if swap:
                loaded = builder.bswap(loaded)
            if bits == 64:
                return loaded
            return (builder.sext if is_signed else builder.zext)(loaded, _I64)

        return kind(buf, types.int64), codegen

    return load


load_u64 = _loader(64, kind=types.uint64)


def _storer(bits, *, swap):
    """Unaligned store of the low `bits` of an int64; `swap` for big-endian."""
    word = ir.IntType(bits)

    @intrinsic
    def store(typingctx, buf, at, value):
        def codegen(context, builder, signature, arguments):
            pointer = array_pointer(context, builder, signature.args[0], *arguments[:2])
            stored = builder.trunc(arguments[2], word) if bits < 64 else arguments[2]
            if swap:
                stored = builder.bswap(stored)
            builder.store(stored, builder.bitcast(pointer, word.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(buf, types.int64, types.int64), codegen

    return store


def _caller(n_arguments):
    """Call the C function at an address with these words, and return a word."""
    kind = ir.FunctionType(_I64, [_I64] * n_arguments)

    def call(builder, address, arguments):
        return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)

    return call


_call_of_5, _call_of_6 = _caller(5), _caller(6)


@intrinsic
def call_5(typingctx, address, a, b, c, d, e):
    """Call a function of five words."""

    def codegen(context, builder, signature, arguments):
        return _call_of_5(builder, arguments[0], arguments[1:])

    return types.int64(*[types.int64] * 6), codegen


@intrinsic
def call_6(typingctx, address, a, b, c, d, e, f):
    """Call a function of six words."""

    def codegen(context, builder, signature, arguments):
        return _call_of_6(builder, arguments[0], arguments[1:])

    return types.int64(*[types.int64] * 7), codegen


@intrinsic
def memcpy(typingctx, target, to, source, at, n_bytes):
    """Copy exactly `n_bytes`."""

    def codegen(context, builder, signature, arguments):
        target, to, source, at, n_bytes = arguments
        to_pointer = array_pointer(context, builder, signature.args[0], target, to)
        at_pointer = array_pointer(context, builder, signature.args[2], source, at)
        raw_memcpy(builder, to_pointer, at_pointer, n_bytes, 1)
        return context.get_dummy_value()

    word = types.int64
    return types.void(target, word, source, word, word), codegen


def _vector_copy(n_bytes):
    """Copy `n_bytes`, a power of two, as one vector."""

    @intrinsic
    def copy(typingctx, target, to, source, at):
        def codegen(context, builder, signature, arguments):
            vector = ir.VectorType(_I8, n_bytes).as_pointer()
            target, to, source, at = arguments
            to_pointer = array_pointer(context, builder, signature.args[0], target, to)
            at_pointer = array_pointer(context, builder, signature.args[2], source, at)
            loaded = builder.load(builder.bitcast(at_pointer, vector), align=1)
            builder.store(loaded, builder.bitcast(to_pointer, vector), align=1)
            return context.get_dummy_value()

        word = types.int64
        return types.void(target, word, source, word), codegen

    return copy


copy_32 = _vector_copy(32)
copy_64 = _vector_copy(64)


@intrinsic
def load_item(typingctx, array, at):
    """One element of an array of integers as int64; as in `load_u8`, `at` is not checked."""

    def codegen(context, builder, signature, arguments):
        loaded = builder.load(array_pointer(context, builder, signature.args[0], *arguments))
        return builder.sext(loaded, _I64) if loaded.type.width < 64 else loaded

    return types.int64(array, types.int64), codegen


@intrinsic
def store_item(typingctx, array, at, value):
    """Set one element of an array of integers from an int64; `at` is not checked."""

    def codegen(context, builder, signature, arguments):
        pointer = array_pointer(context, builder, signature.args[0], *arguments[:2])
        width = pointer.type.pointee.width
        stored = arguments[2]
        builder.store(
            builder.trunc(stored, pointer.type.pointee) if width < 64 else stored, pointer
        )
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@intrinsic
def trailing_zeros(typingctx, word):
    """Number of zero bits below the lowest set one; 64 for zero."""

    def codegen(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@intrinsic
def leading_zeros(typingctx, word):
    """Number of zero bits above the highest set one; 64 for zero."""

    def codegen(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), codegen


@intrinsic
def prefetch(typingctx, buf, at):
    """Ask for the cache line of element `at`, which may lie outside the array."""

    def codegen(context, builder, signature, arguments):
        element = array_pointer(context, builder, signature.args[0], *arguments)
        pointer = builder.bitcast(element, _I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_I8.as_pointer()], fnty=kind)
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(buf, types.int64), codegen


@intrinsic
def x86_crc32_u64(typingctx, crc, word):
    """The crc32 instruction over eight bytes."""

    def codegen(context, builder, signature, arguments):
        kind = ir.FunctionType(_I64, [_I64, _I64])
        function = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=kind)
        return builder.call(function, arguments)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def x86_crc32_u8(typingctx, crc, byte):
    """The crc32 instruction over one byte."""

    def codegen(context, builder, signature, arguments):
        kind = ir.FunctionType(_I32, [_I32, _I8])
        function = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.32.8", fnty=kind)
        narrow = [builder.trunc(arguments[0], _I32), builder.trunc(arguments[1], _I8)]
        return builder.zext(builder.call(function, narrow), _I64)

    return types.uint64(types.uint64, types.uint64), codegen


#: What takes the place of each function.
_TWINS = {
    memory.load_i64: _loader(64, swap=True),
    memory.load_i32: _loader(32, swap=True),
    memory.load_i16: _loader(16, swap=True),
    memory.load_u64: load_u64,
    memory.load_u32: _loader(32, is_signed=False),
    # Numba's own indexing would first check whether `at` is negative.
    memory.load_u8: _loader(8, is_signed=False),
    memory.load_item: load_item,
    memory.store_i64: _storer(64, swap=True),
    memory.store_i32: _storer(32, swap=True),
    memory.store_i16: _storer(16, swap=True),
    memory.store_u64: _storer(64, swap=False),
    memory.store_u8: _storer(8, swap=False),
    memory.store_item: store_item,
    memory.prefetch: prefetch,
    memory.leading_zeros: leading_zeros,
    memory.trailing_zeros: trailing_zeros,
    memory.call_5: call_5,
    memory.call_6: call_6,
    memory.copy_bytes: memcpy,
}


def _register(function, instruction):
    """Call `instruction` where a kernel calls `function`: numba wants the same arguments."""
    arguments = ", ".join(inspect.signature(function).parameters)
    code = f"lambda {arguments}: lambda {arguments}: instruction({arguments})"
    overload(function)(eval(code, {"instruction": instruction}))


for _function, _instruction in _TWINS.items():
    _register(_function, _instruction)


@overload(memory.copy_wide)
def _copy_wide(target, to, source, at, n_bytes):
    def copy(target, to, source, at, n_bytes):
        if n_bytes <= 32:
            copy_32(target, to, source, at)
            return
        copy_64(target, to, source, at)
        if n_bytes > 64:
            copy_64(target, to + 64, source, at + 64)
            if n_bytes > 128:
                copy_64(target, to + 128, source, at + 128)
                copy_64(target, to + 192, source, at + 192)

    return copy
