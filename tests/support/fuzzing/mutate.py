"""Mutations of logs: of bytes, fields, varints, records, messages, frames and whole batches.

Most mutants get their lengths and checksums repaired, also those of messages inside wrappers, and
what is changed inside a compressed batch is compressed again: otherwise nearly all would end at
the first checksum.
"""

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import crc32c

from fuzzing.seeds import Seed
from segmentlog.testing.codecs import ZSTD, BadPayloadError, deflate, inflate
from segmentlog.testing.reference import zigzag

#: The bound of inflating while fuzzing; no seed reaches it, and a mutation passes it.
MOST_INFLATED_BYTES = 64 << 10

# How often something is done.
_WHOLE_LOG = 0.1
_REPAIRED = 0.8
_OFTEN = 0.7
_RARELY = 0.01

_NUMBERS = [0, 1, -1, 2, 5, 6, 7, 8, 100, -100]
_NUMBERS += [
    sign * (1 << bits) + d for bits in (7, 15, 31, 32, 62) for d in (-1, 0) for sign in (1, -1)
]
_NUMBERS += [2**63 - 1, -(2**63)]

#: Offset and struct format of header fields, by magic.
_MESSAGE_FIELDS = [(0, "q"), (8, "i"), (12, "i"), (16, "b"), (17, "b"), (17, "b")]
_FIELDS = [
    [*_MESSAGE_FIELDS, (18, "i")],
    [*_MESSAGE_FIELDS, (18, "q"), (26, "i")],
    [
        (0, "q"), (8, "i"), (12, "i"), (16, "b"), (17, "i"), (21, "h"), (22, "b"), (22, "b"),
        (23, "i"), (27, "q"), (35, "q"), (43, "q"), (51, "h"), (53, "i"), (57, "i"),
    ],
]  # fmt: skip
_KEY_AT = (18, 26)

Op = Callable[[bytes, random.Random], bytes]


class Mutant(NamedTuple):
    """A mutated log, its seed, and whether the checksum of the mutated part is right."""

    data: bytes
    seed: int
    is_repaired: bool


def mutant(seeds: Sequence[Seed], rng: random.Random) -> Mutant:
    """A mutant of one of `seeds`."""
    seed = _below(len(seeds), rng)
    batches = list(seeds[seed])
    at = _below(len(batches), rng)
    if rng.random() < _WHOLE_LOG:
        is_repaired = _mutate_log(batches, at, seeds, rng)
        return Mutant(b"".join(batches), seed, is_repaired)
    batch = batches[at]
    if rng.random() < 0.05:
        batch = _splice(batch, rng.choice(rng.choice(seeds)), rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        try:
            batch = rng.choice(_OPS)(batch, rng)
        except (ValueError, IndexError, struct.error, BadPayloadError):
            batch = _change_bytes(batch or bytes(30), rng)  # nothing there to parse
    is_repaired = rng.random() < _REPAIRED and len(batch) > 26
    batches[at] = seal(batch, keep_length=rng.random() < 0.02) if is_repaired else batch
    return Mutant(b"".join(batches), seed, is_repaired)


def _below(n: int, rng: random.Random) -> int:
    """A number from 0 on; if there is nothing to choose from, the error comes before the draw.

    Hypothesis takes a draw that failed for one that depends on something else.
    """
    if n < 1:
        raise IndexError(n)
    return rng.randrange(n)


def seal(batch: bytes, *, keep_length: bool = False) -> bytes:
    """`batch`, which has at least 22 bytes, with the right length and checksum."""
    sealed = bytearray(batch)
    if not keep_length:
        struct.pack_into(">i", sealed, 8, len(batch) - 12)
    if batch[16] < 2:
        struct.pack_into(">I", sealed, 12, zlib.crc32(sealed[16:]))
    else:
        struct.pack_into(">I", sealed, 17, crc32c.crc32c(bytes(sealed[21:])))
    return bytes(sealed)


def _mutate_log(batches: list[bytes], at: int, seeds: Sequence[Seed], rng: random.Random) -> bool:
    """Batches come twice, change places, are replaced or end early; whether all are whole."""
    other = rng.choice(rng.choice(seeds))
    match rng.randrange(6):
        case 0:
            batches.insert(at, rng.choice(batches))
        case 1:
            batches.append(other)
        case 2:
            batches[at] = other
        case 3:
            rng.shuffle(batches)
        case 4:
            batches.insert(at, bytes(rng.randrange(1, 70)))
            return False
        case _:
            batches[at:] = [batches[at][: _below(len(batches[at]), rng)]]
            return False
    return True


def _splice(batch: bytes, other: bytes, rng: random.Random) -> bytes:
    """The beginning of one batch and the end of another."""
    return batch[: 22 + _below(len(batch) - 22, rng)] + other[_below(len(other), rng) :]


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = _below(len(changed), rng)
        changed[at] = rng.choice(
            (0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256), changed[at] ^ 1 << rng.randrange(8))
        )
    return bytes(changed)


def _change_range(data: bytes, rng: random.Random) -> bytes:
    """A range is left out, comes twice, is overwritten, or bytes are inserted."""
    start = _below(len(data), rng)
    end = min(len(data), start + rng.choice((1, 1, 2, 4, 8, rng.randrange(1, 100))))
    n = end - start
    filled = rng.choice(
        (b"", 2 * data[start:end], bytes(n), b"\xff" * n, data[start:end] + rng.randbytes(n))
    )
    if rng.random() < _RARELY:
        filled = bytes(MOST_INFLATED_BYTES + 1)
    return data[:start] + filled + data[end:]


def _change_field(batch: bytes, rng: random.Random) -> bytes:
    """A field of the header gets another number, often a limit."""
    at, kind = rng.choice(_FIELDS[min(batch[16], 2)])
    changed = bytearray(batch)
    if kind == "b":
        changed[at] = rng.choice((*range(8), 8, 11, 16, 32, 48, 64, 255))
        return bytes(changed)
    (number,) = struct.unpack_from(f">{kind}", changed, at)
    bits = 8 * struct.calcsize(kind)
    number = rng.choice((number + rng.choice((-2, -1, 1, 2)), rng.choice(_NUMBERS)))
    number = (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
    struct.pack_into(f">{kind}", changed, at, number)
    return bytes(changed)


def _change_inside(batch: bytes, rng: random.Random) -> bytes:
    """Records or messages of the batch, inflated, changed and compressed again."""
    if batch[16] < 2:
        return _change_message(batch, rng)
    codec = batch[22] & 7
    body = _inflated(batch[61:], codec, is_magic_0=False)
    change = rng.choice((_change_bytes, _change_range, None, None))
    n_before = int.from_bytes(batch[57:61], "big")
    if change is None:
        body, n_records = _change_records(body, n_before, rng)
        if rng.random() < _OFTEN:
            batch = batch[:57] + struct.pack(">i", n_records) + batch[61:]
    else:
        body = change(body, rng)
    return batch[:61] + (deflate(codec, body, is_framed=rng.random() < _OFTEN) if codec else body)


@lru_cache(maxsize=4096)
def _inflated(payload: bytes, codec: int, *, is_magic_0: bool) -> bytes:
    if not codec:
        return payload
    if codec > ZSTD:
        raise ValueError(codec)
    return inflate(codec, payload, 4 * MOST_INFLATED_BYTES, is_magic_0=is_magic_0)


def _change_records(body: bytes, n_records: int, rng: random.Random) -> tuple[bytes, int]:
    """Fields of records, whole records, and the number of records are changed."""
    records = [list(fields) for fields in _fields(body, n_records)]
    match rng.randrange(6):
        case 0:
            del records[_below(len(records), rng)]
        case 1:
            records.insert(_below(len(records), rng), records[_below(len(records), rng)])
        case 2:
            rng.shuffle(records)
        case _:
            for _ in range(rng.choice((1, 1, 2))):
                fields = records[_below(len(records), rng)]
                fields[_below(len(fields), rng)] = _odd_field(rng)
                if rng.random() < _OFTEN:
                    fields[0] = zigzag(sum(map(len, fields[1:])))
    return b"".join(b"".join(fields) for fields in records), len(records)


def _odd_field(rng: random.Random) -> bytes:
    """A varint at a limit, one longer than necessary, one without an end, or bytes."""
    number = rng.choice(_NUMBERS)
    varint = zigzag(number)
    match rng.randrange(5):
        case 0:
            n_more = rng.randrange(8)
            return varint[:-1] + bytes([varint[-1] | 0x80]) + b"\x80" * n_more + b"\0"
        case 1:
            return b"\xff" * rng.randrange(4, 12)
        case 2:
            return rng.randbytes(rng.randrange(12))
        case _:
            return varint


@lru_cache(maxsize=4096)
def _fields(body: bytes, n_records: int) -> list[list[bytes]]:
    """The fields of records: length, attributes, deltas, then lengths with their bytes."""
    records, at = [], 0
    for _ in range(n_records):
        length, after = _varint(body, at)
        fields, end = [body[at:after], body[after : after + 1]], after + length
        at = after + 1
        while at < end:
            number, after = _varint(body, at)
            is_length = len(fields) > 3 and len(fields) != 6
            if is_length:
                after += max(number, 0)
            fields.append(body[at:after])
            at = after
        records.append(fields)
    return records


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _change_message(message: bytes, rng: random.Random) -> bytes:
    """The key or value of a message of magic 0 or 1, or the messages in it, are changed."""
    magic, codec = message[16], message[17] & 7
    key_at = _KEY_AT[magic]
    key_length = struct.unpack_from(">i", message, key_at)[0]
    value_at = key_at + 4 + max(key_length, 0)
    (value_length,) = struct.unpack_from(">i", message, value_at)
    value = message[value_at + 4 :]
    if codec and rng.random() < 0.95:
        inner = _change_inner(_inflated(value, codec, is_magic_0=magic == 0), rng)
        value = deflate(codec, inner, is_magic_0=magic == 0, is_framed=rng.random() < _OFTEN)
        value_length = len(value)
    else:
        value_length, value = rng.choice(
            ((-1, b""), (rng.choice(_NUMBERS[:13]), value), (value_length + 1, value))
        )
    return message[:value_at] + struct.pack(">i", value_length) + value


def _change_inner(messages: bytes, rng: random.Random) -> bytes:
    """The messages inside a wrapper are changed, most of them with right checksums."""
    inner, at = [], 0
    while at < len(messages):
        end = at + 12 + int.from_bytes(messages[at + 8 : at + 12], "big")
        inner.append(messages[at:end])
        at = end
    chosen = _below(len(inner), rng)
    match rng.randrange(12):
        case 0:
            del inner[chosen]
        case 1:
            inner.insert(chosen, rng.choice(inner))
        case 2:
            rng.shuffle(inner)
        case 3:
            return _change_range(messages, rng) if rng.random() < _OFTEN else b""
        case _:
            op = rng.choice(
                (_change_field, _change_field, _change_bytes, _change_range, _change_message)
            )
            changed = op(inner[chosen], rng)
            is_sealed = rng.random() < _REPAIRED and len(changed) > 22
            inner[chosen] = seal(changed, keep_length=rng.random() < 0.1) if is_sealed else changed
    return b"".join(inner)


_OPS: Sequence[Op] = (
    _change_bytes,
    _change_range,
    _change_field,
    _change_field,
    _change_inside,
    _change_inside,
    _change_inside,
    _change_inside,
)
