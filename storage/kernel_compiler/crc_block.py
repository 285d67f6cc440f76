# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The checksum of a block by x86's own instructions: streams side by side, then joined.

One stream of the crc32 instruction waits three cycles for its own result, so there are four, over
neighbouring parts of the block.  If the processor multiplies without carry in vectors of 32 bytes,
four vectors take the first half of the block at the same time, in other units of the processor.  A
kernel would have to hold the vectors in variables, and numba has no vector variables, so the loop
is written as LLVM's own code.

A checksum is carried over the bytes after it by a multiplication by a power of x, modulo the
polynomial (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ").  Numbers
have their bits reversed throughout, as the crc32 instruction has them.
"""

import platform

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once, alloca_once_value, for_range_slice
from numba.extending import intrinsic, overload

from kernel_compiler.instructions import (
    array_pointer,
    host_features,
    load_u64,
    x86_crc32_u8,
    x86_crc32_u64,
)
from segmentlog.format.kernels import crc32c
from segmentlog.format.kernels.crc_tables import (
    CASTAGNOLI,
    byte_tables,
    checksum_by_table,
    powers_of_x,
)
from segmentlog.native import inlined

_FEATURES = set(host_features().split(",")) if platform.machine() in {"x86_64", "AMD64"} else set()

#: Whether this processor has the instructions of `block_by_words` (every x86 since 2010) …
HAS_WORDS = {"+sse4.2", "+pclmul"} <= _FEATURES
#: … and those of `block_by_vectors` (since 2019 or 2020).
HAS_VECTORS = HAS_WORDS and {"+avx2", "+vpclmulqdq"} <= _FEATURES

#: Bytes that each stream of words takes in one turn; vectors take four times as many.
LINE_BYTES = 32

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_PAIR, _VECTOR = ir.VectorType(_I64, 2), ir.VectorType(_I64, 4)
_N_STREAMS = 4  # of words
_N_VECTORS = 4  # side by side: a product is ready after about as many cycles as four vectors take
_VECTOR_BYTES = 32


def joints(n: int, n_bytes: int = LINE_BYTES) -> list[int]:
    """Factors that carry a checksum over 1 to `n` times `n_bytes`, for products without carry.

    The crc32 of the product is the checksum after these bytes.
    """
    # A product of reversed numbers is x times too small; crc32 of a word adds 32 zeros.
    n_bits = 8 * n_bytes
    return powers_of_x(CASTAGNOLI, range(n_bits - 33, n * n_bits, n_bits))


def _folding(n_bytes):
    """Factors that carry the halves of 16 bytes over ``n_bytes - 16`` bytes."""
    n_bits = 8 * n_bytes
    high, low = powers_of_x(CASTAGNOLI, range(n_bits - 32, n_bits + 33, 64))
    return ir.Constant(_VECTOR, [low << 1, high << 1] * 2)


class _Code:
    """The LLVM code that both intrinsics share."""

    def __init__(self, builder, base):
        self.builder, self.base = builder, base
        module = builder.module
        crc_kind = ir.FunctionType(_I64, [_I64, _I64])
        pair_kind = ir.FunctionType(_PAIR, [_PAIR, _PAIR, _I8])
        vector_kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _I8])
        self._crc = module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=crc_kind)
        self._multiply_pair = module.declare_intrinsic("llvm.x86.pclmulqdq", fnty=pair_kind)
        # Declared even on processors that lack the instruction: only calls need it.
        self._multiply = module.declare_intrinsic("llvm.x86.pclmulqdq.256", fnty=vector_kind)

    def load(self, at, kind):
        pointer = self.builder.bitcast(self.builder.gep(self.base, [at]), kind.as_pointer())
        return self.builder.load(pointer, align=1)

    def crc(self, crc, word):
        return self.builder.call(self._crc, [crc, word])

    def fold(self, vector, factors):
        """Carry each half of a vector over the bytes that `factors` stand for."""
        call = self.builder.call
        halves = [call(self._multiply, [vector, factors, _I8(which)]) for which in (0x00, 0x11)]
        return self.builder.xor(*halves)

    def multiply(self, crc, joint):
        """Product without carry of a checksum and one of `joints`."""
        builder, zero = self.builder, ir.Constant(_PAIR, [0, 0])
        operands = [builder.insert_element(zero, each, _I32(0)) for each in (crc, joint)]
        product = builder.call(self._multiply_pair, [*operands, _I8(0)])
        return builder.extract_element(product, _I32(0))

    def carry(self, crc, joint):
        """A checksum, carried over a stream's bytes by one of `joints`."""
        return self.crc(_I64(0), self.multiply(crc, joint))

    def take_words(self, streams, at, n_bytes):
        """One line of each stream of words."""
        builder = self.builder
        for word in range(0, LINE_BYTES, 8):
            for number, crc in enumerate(streams):
                begin = builder.add(at, builder.mul(n_bytes, _I64(number)))
                loaded = self.load(builder.add(begin, _I64(word)), _I64)
                builder.store(self.crc(builder.load(crc), loaded), crc)

    def take_vectors(self, vectors, at, factors):
        """One line of the stream of vectors."""
        builder = self.builder
        for number, vector in enumerate(vectors):
            loaded = self.load(builder.add(at, _I64(_VECTOR_BYTES * number)), _VECTOR)
            folded = self.fold(builder.load(vector), factors)
            builder.store(builder.xor(folded, loaded), vector)

    def begin_vectors(self, vectors, at, crc):
        """The first line of the stream of vectors, which takes in the checksum so far."""
        builder = self.builder
        before = builder.insert_element(ir.Constant(_VECTOR, [0] * 4), crc, _I32(0))
        for number, vector in enumerate(vectors):
            loaded = self.load(builder.add(at, _I64(_VECTOR_BYTES * number)), _VECTOR)
            builder.store(loaded if number else builder.xor(loaded, before), vector)

    def end_vectors(self, vectors):
        """The checksum of a stream of vectors."""
        builder, factors = self.builder, _folding(_VECTOR_BYTES)
        folded = builder.load(vectors[0])
        for vector in vectors[1:]:
            folded = builder.xor(self.fold(folded, factors), builder.load(vector))
        crc = _I64(0)
        for lane in range(4):
            crc = self.crc(crc, builder.extract_element(folded, _I32(lane)))
        return crc


@intrinsic
def multiply(typingctx, crc, joint):
    """Product without carry of a checksum and one of `joints`."""

    def codegen(context, builder, signature, arguments):
        return _Code(builder, None).multiply(*arguments)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def block_by_words(typingctx, buf, at, n_lines, joint, crc):
    """Raw checksum after ``4 * n_lines`` lines of `buf`; `n_lines` is at least 1."""

    def codegen(context, builder, signature, arguments):
        buf, at, n_lines, joint, crc = arguments
        code = _Code(builder, array_pointer(context, builder, signature.args[0], buf, _I64(0)))
        n_bytes = builder.mul(n_lines, _I64(LINE_BYTES))
        starts = [crc] + [_I64(0)] * (_N_STREAMS - 1)
        streams = [alloca_once_value(builder, each) for each in starts]
        step = _I64(LINE_BYTES)
        with for_range_slice(builder, _I64(0), n_bytes, step, intp=_I64) as (done, _):
            code.take_words(streams, builder.add(at, done), n_bytes)
        crc = builder.load(streams[0])
        for each in streams[1:]:
            crc = builder.xor(code.carry(crc, joint), builder.load(each))
        return crc

    word = types.int64
    return types.uint64(buf, word, word, types.uint64, types.uint64), codegen


@intrinsic
def block_by_vectors(typingctx, buf, at, n_lines, joint, crc):
    """Raw checksum after ``8 * n_lines`` lines of `buf`; `n_lines` is at least 1."""

    def codegen(context, builder, signature, arguments):
        buf, at, n_lines, joint, crc = arguments
        code = _Code(builder, array_pointer(context, builder, signature.args[0], buf, _I64(0)))
        n_bytes = builder.mul(n_lines, _I64(LINE_BYTES))
        vectors = [alloca_once(builder, _VECTOR) for _ in range(_N_VECTORS)]
        streams = [alloca_once_value(builder, _I64(0)) for _ in range(_N_STREAMS)]
        after = builder.add(at, builder.mul(n_bytes, _I64(_N_VECTORS)))
        code.begin_vectors(vectors, at, crc)
        code.take_words(streams, after, n_bytes)
        step, factors = _I64(LINE_BYTES), _folding(_N_VECTORS * _VECTOR_BYTES)
        with for_range_slice(builder, step, n_bytes, step, intp=_I64) as (done, _):
            line = builder.add(at, builder.mul(done, _I64(_N_VECTORS)))
            code.take_vectors(vectors, line, factors)
            code.take_words(streams, builder.add(after, done), n_bytes)
        crc = code.end_vectors(vectors)
        for each in streams:
            crc = builder.xor(code.carry(crc, joint), builder.load(each))
        return crc

    word = types.int64
    return types.uint64(buf, word, word, types.uint64, types.uint64), codegen


_ONES, _ZERO = np.uint64(0xFFFFFFFF), np.uint64(0)
_ONE_BIT, _EIGHT_BITS, _ALL_BUT_ONE_BIT = np.uint64(1), np.uint64(8), np.uint64(63)
_MOST_LINES = 64  # of a stream: blocks of 16 KiB with vectors
_JOINTS = np.array([0, *joints(_MOST_LINES)], np.uint64)  # by the number of lines
_MOST_WORDS = 31  # after the blocks, the smallest of which has 32 words or 16
_LEAST_WORDS = 9  # for streams side by side: with fewer, joining them takes longer than it saves
_WORD_JOINTS = np.array([0, *joints(_MOST_WORDS, 8)], np.uint64)
_TABLES = byte_tables(CASTAGNOLI)


@inlined
def _take_words(buf, at, n_words, crc):
    """Raw checksum after up to `_MOST_WORDS` words: three streams, joined at once."""
    n = 0
    if n_words >= _LEAST_WORDS:
        n = n_words // 3
        second = third = _ZERO
        for begin in range(at, at + 8 * n, 8):
            crc = x86_crc32_u64(crc, load_u64(buf, begin))
            second = x86_crc32_u64(second, load_u64(buf, begin + 8 * n))
            third = x86_crc32_u64(third, load_u64(buf, begin + 16 * n))
        product = multiply(crc, _WORD_JOINTS[2 * n])
        product ^= multiply(second, _WORD_JOINTS[n])
        crc = x86_crc32_u64(_ZERO, product) ^ third
    for begin in range(at + 24 * n, at + 8 * n_words, 8):
        crc = x86_crc32_u64(crc, load_u64(buf, begin))
    return crc


@inlined
def _take_tail(buf, end, n_bytes, crc):
    """Raw checksum after the last bytes, fewer than eight, of eight or more."""
    # The tail is the upper bytes of a word.  The checksum's bytes are added to the first of them,
    # and what the tail is too short for comes out as it is.
    n_bits = _EIGHT_BITS * np.uint64(n_bytes)
    above = _ALL_BUT_ONE_BIT - n_bits
    word = load_u64(buf, end - 8) >> above >> _ONE_BIT
    return x86_crc32_u64(_ZERO, (word ^ crc) << above << _ONE_BIT) ^ (crc >> n_bits)


def _by_instructions(checksum_block, n_streams):
    """Extend the function of a block to any range; `n_streams` lines make the smallest block."""
    line_bytes = n_streams * LINE_BYTES

    def checksum_range(buf, start, end):
        crc = _ONES
        at = start
        while at + line_bytes <= end:
            n_lines = min((end - at) // line_bytes, _MOST_LINES)
            crc = checksum_block(buf, at, n_lines, _JOINTS[n_lines], crc)
            at += n_lines * line_bytes
        n_words = (end - at) >> 3
        crc = _take_words(buf, at, n_words, crc)
        at += 8 * n_words
        if end - start >= 8:
            return np.int64(_take_tail(buf, end, end - at, crc) ^ _ONES)
        while at < end:
            crc = x86_crc32_u8(crc, np.uint64(buf[at]))
            at += 1
        return np.int64(crc ^ _ONES)

    return checksum_range


range_by_vectors = _by_instructions(block_by_vectors, 8)
range_by_words = _by_instructions(block_by_words, 4)


def range_by_table(buf, start, end):
    return checksum_by_table(buf, start, end, _TABLES)


@overload(crc32c.crc32c, jit_options={"forceinline": True})
def _crc32c(buf, start, end):
    if HAS_VECTORS:
        return range_by_vectors
    return range_by_words if HAS_WORDS else range_by_table
