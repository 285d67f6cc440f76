# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The rounds of MD5 over several messages at once, one in each lane of a vector.

One message's rounds are a chain of some 300 cycles in which each step waits for the last one.  A
vector takes as many messages through the same chain as it has lanes.  A kernel would have to hold
the vectors in variables, and numba has no vector variables, so the rounds are written as LLVM's
own code, which fits them to the vectors of any processor.
"""

import math

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from segmentlog.kernels._llvm import array_pointer

__all__ = ["BLOCK_BYTES", "N_LANES", "N_WORDS", "SINES", "START", "TURNS", "place_of_word"]

N_LANES = 16
N_WORDS = 16  #: of a block
BLOCK_BYTES = 64

#: What RFC 1321 adds to the steps, turns them by, and begins with.
SINES = [int(abs(math.sin(i + 1)) * 2**32) for i in range(64)]
TURNS = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))
START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_I32, N_LANES)
_PAIRS = ir.VectorType(_I64, N_LANES)


def place_of_word(step: int) -> int:
    """The word of the block that a step takes."""
    return (step, 5 * step + 1, 3 * step + 5, 7 * step)[step // 16] % N_WORDS


def _all(number):
    """A number in every lane."""
    return ir.Constant(_WORDS, [number] * N_LANES)


def _joined(builder, a, b, places):
    """Lanes of two vectors; those of the second one count on."""
    kind = ir.VectorType(_I32, len(places))
    return builder.shuffle_vector(a, b, ir.Constant(kind, places))


def _turned(builder, rows):
    """Rows and columns of a square exchanged: four times, upper and lower rows are merged."""
    half = N_LANES // 2
    low = [place for i in range(half) for place in (i, i + N_LANES)]
    high = [place + half for place in low]
    for _ in range(N_LANES.bit_length() - 1):
        pairs = list(zip(rows[:half], rows[half:], strict=True))
        rows = [_joined(builder, *pair, places) for pair in pairs for places in (low, high)]
    return rows


def _mixed(builder, step, b, c, d):
    """The function of a round over three words of the state."""
    if step < 16:
        return builder.xor(d, builder.and_(b, builder.xor(c, d)))
    if step < 32:
        return builder.xor(c, builder.and_(d, builder.xor(b, c)))
    if step < 48:
        return builder.xor(builder.xor(b, c), d)
    return builder.xor(c, builder.or_(b, builder.xor(d, _all(0xFFFFFFFF))))


def _rounds(builder, words):
    """The state behind one block, from the state at the beginning of a message."""
    a, b, c, d = start = [_all(word) for word in START]
    for step in range(64):
        turn = TURNS[step // 16][step % 4]
        mixed = builder.add(_mixed(builder, step, b, c, d), words[place_of_word(step)])
        total = builder.add(builder.add(a, mixed), _all(SINES[step]))
        above = builder.shl(total, _all(turn))
        turned = builder.or_(above, builder.lshr(total, _all(32 - turn)))
        a, b, c, d = d, builder.add(turned, b), b, c
    return [builder.add(*pair) for pair in zip((a, b, c, d), start, strict=True)]


@intrinsic
def hash_blocks(typingctx, blocks, hashes):
    """MD5 of messages of one block each; see `segmentlog.kernels.md5_lanes`."""

    def codegen(context, builder, signature, arguments):
        def pointer(which, at, kind):
            place = array_pointer(
                context, builder, signature.args[which], arguments[which], _I64(at)
            )
            return builder.bitcast(place, kind.as_pointer())

        rows = [
            builder.load(pointer(0, lane * BLOCK_BYTES, _WORDS), align=1)
            for lane in range(N_LANES)
        ]
        a, b, c, d = _rounds(builder, _turned(builder, rows))
        places = [place for i in range(N_LANES) for place in (i, i + N_LANES)]
        for half, pair in enumerate(((a, b), (c, d))):
            both = builder.bitcast(_joined(builder, *pair, places), _PAIRS)
            builder.store(both, pointer(1, half * N_LANES, _PAIRS), align=1)
        return context.get_dummy_value()

    return types.void(blocks, hashes), codegen
