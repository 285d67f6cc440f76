"""One record of magic 2: parse it, and name its fault.

::

    length | attributes | timestamp delta | offset delta | key length | key | value length | value
    varint | 1 byte     | varlong         | varint       | varint     |     | varint       |
    | header count | key length | key | value length | value | …
      varint         varint             varint

`parse_record` checks everything and names each fault.  `parse_quickly` checks only for the usual
form, and leaves every other record to `parse_record`.
"""

from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.memory import Bytes, load_u8
from segmentlog.format.kernels.varint import (
    INT_STOPS,
    LONG_STOPS,
    read_varint,
    read_varint_quick,
    read_varlong,
)
from segmentlog.native import inlined, internal


@internal
def _skip_headers(buf: Bytes, at: int, end: int, count: int) -> tuple[int, int]:
    """Walk `count` record headers; return the status, and the position after them."""
    if count < 0 or count > (end - at) // 2:
        return st.BAD_HEADERS_COUNT, at
    for _ in range(count):
        length, at = read_varint(buf, at, end)
        if length < 0 or at + length > end:
            return st.BAD_HEADER_KEY, at
        length, at = read_varint(buf, at + length, end)
        if length > 0:
            at += length
        if at > end:
            return st.BAD_HEADER_VALUE, at
    return st.OK, at


@internal
def judge(buf: Bytes, at: int, end: int) -> int:
    """The fault of a record that did not add up, or `OK` if it merely has headers."""
    _, at = read_varlong(buf, at + 1, end)
    _, at = read_varint(buf, at, end)
    if at > end:
        return st.BAD_VARINT
    for bad_length in (st.BAD_KEY_LENGTH, st.BAD_VALUE_LENGTH):
        length, at = read_varint(buf, at, end)
        if at > end:
            return st.BAD_VARINT
        if length > 0:
            at += length
        if at > end:
            return bad_length
    count, at = read_varint(buf, at, end)
    if at > end:
        return st.BAD_VARINT
    status, at = _skip_headers(buf, at, end, count)
    if status == st.OK and at != end:
        return st.RECORD_LENGTH_MISMATCH
    return status


@inlined
def parse_record(
    buf: Bytes, at: int, end: int
) -> tuple[int, tuple[int, int, int, int, int, int, int, int, int, int]]:
    """Fields of the record at byte `at`, checked to lie inside ``buf[at:end]``.

    Returns the status, and the fields: position after the record, its length, timestamp delta,
    offset delta, key length, key position, value length, value position, number of headers and
    their position.
    """
    length, body = read_varint(buf, at, end)
    record_end = body + length
    status = st.OK
    if body > end:
        status = st.BAD_VARINT
    elif length < 0 or record_end > end:
        status = st.RECORD_TOO_LONG
    if status != st.OK:
        return status, (at, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    delta_ms, at = read_varlong(buf, body + 1, record_end)
    delta, at = read_varint(buf, at, record_end)
    key_length, key_at = read_varint(buf, at, record_end)
    value_length, value_at = read_varint(buf, key_at + max(key_length, 0), record_end)
    n_headers, headers_at = read_varint(buf, value_at + max(value_length, 0), record_end)
    if n_headers != 0 or headers_at != record_end:
        status = judge(buf, body, record_end)
    return status, (
        record_end, length, delta_ms, delta,
        key_length, key_at, value_length, value_at, n_headers, headers_at,
    )  # fmt: skip


@inlined
def parse_quickly(buf: Bytes, at: int, end: int) -> tuple[bool, int, int, int, int, int, int, int]:
    """Fields of the record at byte `at`, if it has no headers and adds up.

    One check, that the record ends at or before `end`, replaces a check of each varint: `end` has
    slack after it, so no read from inside the record leaves the buffer.

    Returns whether it adds up, the position after the record, timestamp delta, offset delta,
    key length, key position, value length and value position.
    """
    length, body = read_varint_quick(buf, at, INT_STOPS)
    record_end = body + length
    if length < 0 or record_end > end:
        return False, 0, 0, 0, 0, 0, 0, 0
    delta_ms, after = read_varint_quick(buf, body + 1, LONG_STOPS)
    if after > record_end:
        return False, 0, 0, 0, 0, 0, 0, 0
    delta, after = read_varint_quick(buf, after, INT_STOPS)
    if after > record_end:
        return False, 0, 0, 0, 0, 0, 0, 0
    key_length, key_at = read_varint_quick(buf, after, INT_STOPS)
    after = key_at + max(key_length, 0)
    if after > record_end:
        return False, 0, 0, 0, 0, 0, 0, 0
    value_length, value_at = read_varint_quick(buf, after, INT_STOPS)
    after = value_at + max(value_length, 0)
    adds_up = after + 1 == record_end and load_u8(buf, after) == 0
    return adds_up, record_end, delta_ms, delta, key_length, key_at, value_length, value_at
