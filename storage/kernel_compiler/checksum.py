# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""CRC-32C by x86's own instructions: streams side by side, then joined.

One stream of the crc32 instruction waits three cycles for its own result, so there are three, over
neighbouring parts of a block.  If the processor multiplies without carry in vectors of 32 bytes,
four vectors take the first half of a block, and at the same time, in other units of the processor,
four streams take the second half.

A checksum is carried over the bytes after it by a multiplication by a power of x, modulo the
polynomial (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ").  Numbers
have their bits reversed throughout, as the crc32 instruction has them.
"""

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import models, register_model

from kernel_compiler.instructions import ARRAY, I64, INT, TWINS, UINT, crc32, instruction, outside
from kernel_compiler.platforms import V2, VECTORS
from segmentlog.format.kernels.crc32c import (
    CASTAGNOLI,
    byte_tables,
    checksum_by_table,
    powers_of_x,
)
from segmentlog.native import inlined

__all__ = ["crc32c"]


class _Vector(types.Type):
    """A variable of four words."""


_VECTOR = _Vector("vector")
_I8, _I32 = ir.IntType(8), ir.IntType(32)
_WORDS_2, _WORDS_4 = ir.VectorType(I64, 2), ir.VectorType(I64, 4)
register_model(_Vector)(lambda manager, kind: models.PrimitiveModel(manager, kind, _WORDS_4))

#: How many of `FEATURES` the processors have: a constant of each variant.
_features = outside("features")
_load = TWINS["load_u64"]


@instruction(_VECTOR, ARRAY, INT)
def _load_vector(builder, data, at):
    place = builder.bitcast(builder.gep(data, [at]), _WORDS_4.as_pointer())
    return builder.load(place, align=1)


@instruction(_VECTOR, UINT)
def _vector_of(builder, word):
    return builder.insert_element(_WORDS_4([0] * 4), word, _I32(0))


@instruction(_VECTOR, _VECTOR, _VECTOR)
def _add(builder, one, other):
    return builder.xor(one, other)


def _lane(number):
    @instruction(UINT, _VECTOR)
    def lane(builder, vector):
        return builder.extract_element(vector, _I32(number))

    return lane


_lane_0, _lane_1, _lane_2, _lane_3 = map(_lane, range(4))


def _product(builder, name, kind, one, other, halves):
    """Product without carry of halves of each 16 bytes."""
    function = builder.module.declare_intrinsic(
        name, fnty=ir.FunctionType(kind, [kind, kind, _I8])
    )
    return builder.call(function, [one, other, _I8(halves)])


def _folder(n_bytes):
    """Carry the halves of each 16 bytes of a vector over ``n_bytes - 16`` bytes."""
    n_bits = 8 * n_bytes
    high, low = powers_of_x(CASTAGNOLI, range(n_bits - 32, n_bits + 33, 64))
    factors = _WORDS_4([low << 1, high << 1] * 2)

    @instruction(_VECTOR, _VECTOR)
    def fold(builder, vector):
        halves = [
            _product(builder, "llvm.x86.pclmulqdq.256", _WORDS_4, vector, factors, which)
            for which in (0x00, 0x11)
        ]
        return builder.xor(*halves)

    return fold


_fold_32, _fold_128 = _folder(32), _folder(128)


@instruction(UINT, UINT, UINT)
def _multiply(builder, crc, joint):
    """Product without carry of a checksum and one of `_joints`."""
    zero = _WORDS_2([0, 0])
    one, other = (builder.insert_element(zero, each, _I32(0)) for each in (crc, joint))
    product = _product(builder, "llvm.x86.pclmulqdq", _WORDS_2, one, other, 0)
    return builder.extract_element(product, _I32(0))


def _joints(n, n_bytes):
    """Factors that carry a checksum over 0 to `n` times `n_bytes`, for products without carry.

    The crc32 of the product is the checksum after these bytes.
    """
    # A product of reversed numbers is x times too small; crc32 of a word adds 32 zeros.
    n_bits = 8 * n_bytes
    powers = powers_of_x(CASTAGNOLI, range(n_bits - 33, n * n_bits, n_bits))
    return np.array([0, *powers], np.uint64)


_ONES, _ZERO = np.uint64(0xFFFFFFFF), np.uint64(0)
_ONE_BIT, _EIGHT_BITS, _ALL_BUT_ONE_BIT = np.uint64(1), np.uint64(8), np.uint64(63)
_LINE = 32  # bytes of a vector, and those that each stream beside the vectors takes in a turn
_MOST_LINES = 64  # blocks of 16 KiB
_LINE_JOINTS = _joints(_MOST_LINES, _LINE)
_MOST_WORDS = 3 * 512  # blocks of 12 KiB, without vectors
_LEAST_WORDS = 9  # for streams side by side: with fewer, joining them takes longer than it saves
_WORD_JOINTS = _joints(2 * _MOST_WORDS // 3, 8)
_TABLES = byte_tables(CASTAGNOLI)


@inlined
def _take_line(buf, at, n_bytes, a, b, c, d):
    """The next line of four streams of words that lie `n_bytes` apart."""
    for word in range(at, at + _LINE, 8):
        a = crc32(a, _load(buf, word))
        b = crc32(b, _load(buf, word + n_bytes))
        c = crc32(c, _load(buf, word + 2 * n_bytes))
        d = crc32(d, _load(buf, word + 3 * n_bytes))
    return a, b, c, d


@inlined
def _take_lines(buf, at, n_lines, crc):
    """Raw checksum after `n_lines` lines of four vectors, and as many of four streams of words."""
    n_bytes = _LINE * n_lines
    after = at + 4 * n_bytes
    p = _add(_load_vector(buf, at), _vector_of(crc))
    q, r, s = _load_vector(buf, at + 32), _load_vector(buf, at + 64), _load_vector(buf, at + 96)
    a, b, c, d = _take_line(buf, after, n_bytes, _ZERO, _ZERO, _ZERO, _ZERO)
    for done in range(_LINE, n_bytes, _LINE):
        line = at + 4 * done
        p = _add(_fold_128(p), _load_vector(buf, line))
        q = _add(_fold_128(q), _load_vector(buf, line + 32))
        r = _add(_fold_128(r), _load_vector(buf, line + 64))
        s = _add(_fold_128(s), _load_vector(buf, line + 96))
        a, b, c, d = _take_line(buf, after + done, n_bytes, a, b, c, d)
    s = _add(_fold_32(_add(_fold_32(_add(_fold_32(p), q)), r)), s)
    crc = crc32(crc32(_ZERO, _lane_0(s)), _lane_1(s))
    crc = crc32(crc32(crc, _lane_2(s)), _lane_3(s))
    joint = _LINE_JOINTS[n_lines]
    a ^= crc32(_ZERO, _multiply(crc, joint))
    b ^= crc32(_ZERO, _multiply(a, joint))
    c ^= crc32(_ZERO, _multiply(b, joint))
    return d ^ crc32(_ZERO, _multiply(c, joint))


@inlined
def _take_words(buf, at, n_words, crc):
    """Raw checksum after up to `_MOST_WORDS` words: three streams, joined at once."""
    n = 0
    if n_words >= _LEAST_WORDS:
        n = n_words // 3
        second = third = _ZERO
        for begin in range(at, at + 8 * n, 8):
            crc = crc32(crc, _load(buf, begin))
            second = crc32(second, _load(buf, begin + 8 * n))
            third = crc32(third, _load(buf, begin + 16 * n))
        product = _multiply(crc, _WORD_JOINTS[2 * n])
        product ^= _multiply(second, _WORD_JOINTS[n])
        crc = crc32(_ZERO, product) ^ third
    for begin in range(at + 24 * n, at + 8 * n_words, 8):
        crc = crc32(crc, _load(buf, begin))
    return crc


@inlined
def crc32c(buf, start, end):
    """The twin of `segmentlog.format.kernels.crc32c.crc32c`."""
    if _features() < V2 or end - start < 8:
        return checksum_by_table(buf, start, end, _TABLES)
    crc, at = _ONES, start
    if _features() >= VECTORS:
        while at + 8 * _LINE <= end:
            n_lines = min((end - at) // (8 * _LINE), _MOST_LINES)
            crc = _take_lines(buf, at, n_lines, crc)
            at += 8 * _LINE * n_lines
    while at + 8 <= end:
        n_words = min((end - at) >> 3, _MOST_WORDS)
        crc = _take_words(buf, at, n_words, crc)
        at += 8 * n_words
    # The tail, fewer than eight bytes, is the upper bytes of a word.  The checksum's bytes are
    # added to the first of them, and what the tail is too short for comes out as it is.
    n_bits = _EIGHT_BITS * np.uint64(end - at)
    above = _ALL_BUT_ONE_BIT - n_bits
    word = _load(buf, end - 8) >> above >> _ONE_BIT
    crc = crc32(_ZERO, (word ^ crc) << above << _ONE_BIT) ^ (crc >> n_bits)
    return np.int64(crc ^ _ONES)
