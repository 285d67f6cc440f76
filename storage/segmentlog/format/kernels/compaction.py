"""What compaction keeps of batches: whole, rebuilt from fewer records, or as a header alone.

`judge_batches` finds the fate of each batch, as transactions and producers determine it (rules:
``CleanedTransactionMetadata`` and ``Cleaner.cleanInto``).  `filter_batches` writes what stays
(rules: ``MemoryRecords.filterTo`` and ``Cleaner.shouldRetainRecord``).  A batch that keeps all its
records is copied byte for byte.  A batch that loses records is built again.  Its offsets, its
producer's fields and its leader epoch stay, so the offset deltas of its records stay, too.
Messages of magic 0 and 1 become batches of magic 2, as in Kafka since 4.0.

An erasure is a compaction with another rule: the map contains the keys to erase, at an offset
after all others.  Records with these keys are removed, and nothing else.  No clock counts, records
without a key and tombstones stay, and of the messages of magic 0 and 1, only those that lose
records are rebuilt.
"""

from segmentlog.format.kernels import layout
from segmentlog.format.kernels import status as st
from segmentlog.format.kernels.crc32c import crc32c
from segmentlog.format.kernels.memory import (
    Bytes,
    Int64s,
    Int64Table,
    copy_bytes,
    load_i16,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)
from segmentlog.format.kernels.offset_map import AT, N_WAITING, OFFSET, offset_of, seek_key
from segmentlog.format.kernels.record import parse_any
from segmentlog.format.kernels.scan import SMALLEST_RECORD_BYTES
from segmentlog.format.kernels.transactions import ABORT, COMMIT, read_end_marker
from segmentlog.format.kernels.varint import varint_bytes, write_varint
from segmentlog.native import inlined, internal, kernel

# The fate of a batch, in bits.
DROPS_RECORDS = 1  #: none of its records stays
STAYS_EMPTY = 2  #: its header stays even if no record does
ENDS_NOTHING = 4  #: it is the end marker of a transaction whose batches are all gone

# Columns of the table of producers.
LAST_DATA_OFFSET = 0  #: of an active producer: end of its last batch; or -1
EPOCH = 1  #: of an active producer
IS_ACTIVE = 2
HAS_ABORTED = 3  #: whether a batch of the transaction was seen that its next marker aborts
HAS_COMMITTED = 4  #: whether a batch of the transaction was seen that its next marker commits
PRODUCER_COLUMNS = 5


@inlined
def _is_idle_marker(
    buf: Bytes, headers: Int64s, row: int, of: Int64s, aborts: Int64s, n_aborts: int
) -> tuple[bool, int]:
    """Whether a control batch ends a transaction without batches; the aborts that are kept."""
    if headers[row, layout.RECORDS_COUNT] == 0:  # an earlier compaction has emptied it
        return True, n_aborts
    kind, _ = read_end_marker(
        buf, headers[row, layout.RECORDS_START], headers[row, layout.RECORDS_END]
    )
    if kind == ABORT:
        is_idle = of[HAS_ABORTED] == 0
        of[HAS_ABORTED] = 0
        if not is_idle:
            aborts[n_aborts] = row
            n_aborts += 1
        return is_idle, n_aborts
    if kind == COMMIT:
        is_idle = of[HAS_COMMITTED] == 0
        of[HAS_COMMITTED] = 0
        return is_idle, n_aborts
    return False, n_aborts


@inlined
def _is_last_of_producer(buf: Bytes, headers: Int64s, row: int, of: Int64s) -> bool:
    """Whether a batch is the last one of an active producer, and keeps its sequence or epoch."""
    if headers[row, layout.PRODUCER_ID] < 0 or of[IS_ACTIVE] == 0:
        return False
    if of[LAST_DATA_OFFSET] >= 0:
        return bool(headers[row, layout.LAST_OFFSET] == of[LAST_DATA_OFFSET])
    epoch = load_i16(buf, headers[row, layout.POSITION] + layout.PRODUCER_EPOCH_AT)
    is_control = headers[row, layout.ATTRIBUTES] & layout.CONTROL_MASK != 0
    return bool(is_control and epoch == of[EPOCH])


@kernel
def judge_batches(
    buf: Bytes,
    headers: Int64Table,
    rows: Int64s,
    is_aborted: Bytes,
    producers: Int64Table,
    upper_bound: int,
    now_ms: int,
    fates: Bytes,
    aborts: Int64s,
) -> int:
    """Fill `fates` for batches, which come in the order of the log.

    Parameters
    ----------
    buf : uint8 array; headers, and control batches to their end, lie in it
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only
    rows : int64 array, shape (n_batches,); row of `producers` of each batch's producer; the last
        row stands for no producer
    is_aborted : uint8 array, shape (n_batches,); 1 for batches of aborted transactions
    producers : int64 array, shape (n_producers + 1, `PRODUCER_COLUMNS`); read and written
    upper_bound : the offset at which this compaction ends; a batch that ends there stays
    now_ms : time of the compaction (epoch)
    fates : uint8 array, shape (n_batches,); written
    aborts : int64 array, shape (at least the control batches,); written: rows of abort markers
        whose transactions still have batches

    Returns
    -------
    n_aborts : how many of `aborts` were filled
    """
    n_aborts = 0
    for row in range(headers.shape[0]):
        attributes, of = headers[row, layout.ATTRIBUTES], producers[rows[row]]
        fate = 0
        if attributes & layout.CONTROL_MASK != 0:
            is_idle, n_aborts = _is_idle_marker(buf, headers, row, of, aborts, n_aborts)
            if is_idle:
                fate = ENDS_NOTHING
                has_horizon = attributes & layout.DELETE_HORIZON_MASK != 0
                if has_horizon and headers[row, layout.BASE_TIMESTAMP] <= now_ms:
                    fate |= DROPS_RECORDS
        elif attributes & layout.TRANSACTIONAL_MASK != 0:
            if is_aborted[row] != 0:
                of[HAS_ABORTED] = 1
                fate = DROPS_RECORDS
            else:
                of[HAS_COMMITTED] = 1
        if (
            _is_last_of_producer(buf, headers, row, of)
            or headers[row, layout.LAST_OFFSET] + 1 == upper_bound
        ):
            fate |= STAYS_EMPTY
        fates[row] = fate
    return n_aborts


#: Column after those of `layout`: the codec with which the records are still to be compressed.
CODEC = layout.N_HEADER_COLUMNS
N_OUT_COLUMNS = CODEC + 1

# Columns of the counts.
N_READ = 0  #: records of all batches
N_KEPT = 1
N_WITHOUT_KEY = 2  #: records that were removed because they have no key
N_CUT = 3  #: batches that lost records, with the emptied ones
N_EMPTIED = 4  #: batches that lost all their records, whether or not the header stays
FIRST_REPLACED = 5  #: least offset of a record that the map has removed, at most the initial value
LAST_REPLACED = 6  #: greatest offset of a record that the map has removed
COUNT_COLUMNS = 7

# The rules of a compaction.
LATEST_OFFSET = 0  #: the map contains the keys up to this offset
NOW_MS = 1
HORIZON_MS = 2  #: time until which tombstones stay that are seen for the first time
KEEPS_OLD_TOMBSTONES = 3  #: whether messages of magic 0 and 1 without a value stay
ERASES = 4  #: whether the keys of the map are erased, and all else stays as it is
RULE_COLUMNS = 5

_NO_TIMESTAMP = -1
_KEPT_ATTRIBUTES = 0x3F  #: of a rebuilt batch, besides the delete horizon
_MOST_GROWTH = 16  #: bytes that a record may grow by when its timestamp is written again


@inlined
def _most_records(header: Int64s) -> int:
    """Records that a batch can hold, whatever its header contains."""
    n_bytes = header[layout.RECORDS_END] - header[layout.RECORDS_START]
    return int(min(header[layout.RECORDS_COUNT], n_bytes // SMALLEST_RECORD_BYTES + 1))


@inlined
def _most_of_batch(header: Int64s) -> int:
    """Bytes that a batch can take in the output."""
    n_bytes = header[layout.RECORDS_END] - header[layout.RECORDS_START]
    grown = layout.HEADER_BYTES + n_bytes + _MOST_GROWTH * _most_records(header)
    return int(max(header[layout.SIZE], grown))


@kernel
def most_bytes(headers: Int64Table) -> tuple[int, int, int]:
    """Bytes that batches can take in the output, those of the largest, and most records of one.

    Parameters
    ----------
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); their records are inflated
    """
    total = largest = most_records = 0
    for row in range(headers.shape[0]):
        n_bytes = _most_of_batch(headers[row])
        total += n_bytes
        largest = max(largest, n_bytes)
        most_records = max(most_records, _most_records(headers[row]))
    return total, largest, most_records


@inlined
def _seal(buf: Bytes, at: int, end: int) -> None:
    """Write length and checksum of the batch of magic 2 in ``buf[at:end]``."""
    store_i32(buf, at + layout.BATCH_LENGTH_AT, end - at - layout.LOG_OVERHEAD)
    store_i32(buf, at + layout.CRC_AT, crc32c(buf, at + layout.ATTRIBUTES_AT, end))


@kernel
def seal_batches(buf: Bytes, lines: Int64Table) -> None:
    """Write lengths and checksums of batches of magic 2 whose records are complete.

    Parameters
    ----------
    buf : uint8 array; written; the caller has checked that it holds every batch of `lines`
    lines : int64 array, shape (n_batches, at least `layout.N_HEADER_COLUMNS`); read only
    """
    for row in range(lines.shape[0]):
        at = lines[row, layout.POSITION]
        _seal(buf, at, at + lines[row, layout.SIZE])


@internal
def _keep_latest(
    waiting: Int64s, n_keys: int, table: Int64s, kept: Int64s, n_kept: int, counts: Int64s
) -> tuple[int, bool]:
    """Add to `kept` the waiting records for which the map has no later one.

    Returns the number of `kept`, and whether one of the added has no value.
    """
    has_tombstone = False
    for i in range(n_keys):
        offset = waiting[i, OFFSET]
        if offset >= offset_of(table, waiting[i]):
            at = waiting[i, AT]
            has_tombstone = has_tombstone or at < 0
            kept[n_kept] = at if at >= 0 else ~at
            n_kept += 1
        else:
            counts[FIRST_REPLACED] = min(counts[FIRST_REPLACED], offset)
            counts[LAST_REPLACED] = max(counts[LAST_REPLACED], offset)
    return n_kept, has_tombstone


@inlined
def _keeps_tombstones(header: Int64s, rules: Int64s) -> bool:
    """Whether records without a value stay, if they are the last of their keys."""
    attributes = header[layout.ATTRIBUTES]
    if rules[ERASES] != 0:
        return True
    if attributes & layout.LEGACY_MASK != 0:
        return bool(rules[KEEPS_OLD_TOMBSTONES] != 0)
    has_horizon = attributes & layout.DELETE_HORIZON_MASK != 0
    return bool(not has_horizon or rules[NOW_MS] < header[layout.BASE_TIMESTAMP])


@internal
def _choose(
    source: Bytes,
    header: Int64s,
    fate: int,
    rules: Int64s,
    table: Int64s,
    secret: Bytes,
    waiting: Int64s,
    kept: Int64s,
    counts: Int64s,
) -> tuple[int, int, bool]:
    """Fill `kept` with the positions of the records that stay.

    Returns the status, their number, and whether one of them has no value.
    """
    keeps_tombstones = _keeps_tombstones(header, rules)
    # The map contains neither control records nor records after its last offset.
    is_control = header[layout.ATTRIBUTES] & layout.CONTROL_MASK != 0
    last_known = -1 if is_control else rules[LATEST_OFFSET]
    at, previous = header[layout.RECORDS_START], header[layout.BASE_OFFSET] - 1
    n_kept, n_keys, has_tombstone = 0, 0, False
    for _ in range(header[layout.RECORDS_COUNT]):
        begin = at
        status, fields = parse_any(source, header, at)
        if status != st.OK:
            return status, 0, False
        at, offset, _, key_length, key_at, value_length, _, _, _ = fields
        if offset <= previous or offset > header[layout.LAST_OFFSET]:
            return st.RECORD_OFFSET_OUTSIDE, 0, False
        previous = offset
        if fate & DROPS_RECORDS != 0:
            continue
        is_known = offset <= last_known and (key_length >= 0 or rules[ERASES] == 0)
        if is_known and key_length < 0:
            counts[N_WITHOUT_KEY] += 1
            continue
        if is_known and value_length < 0 and not keeps_tombstones:
            continue
        if is_known:
            seek_key(source, key_at, key_at + key_length, table, secret, waiting[n_keys])
            waiting[n_keys, OFFSET] = offset
            waiting[n_keys, AT] = begin if value_length >= 0 else ~begin
            n_keys += 1
        if n_keys == N_WAITING or (n_keys > 0 and not is_known):
            n_kept, is_one = _keep_latest(waiting, n_keys, table, kept, n_kept, counts)
            n_keys, has_tombstone = 0, has_tombstone or is_one
        if not is_known:
            has_tombstone = has_tombstone or value_length < 0
            kept[n_kept] = begin
            n_kept += 1
    if at != header[layout.RECORDS_END]:
        return st.TRAILING_BYTES, 0, False
    if n_keys > 0:
        n_kept, is_one = _keep_latest(waiting, n_keys, table, kept, n_kept, counts)
        has_tombstone = has_tombstone or is_one
    return st.OK, n_kept, has_tombstone


@internal
def _put_header(window: Bytes, header: Int64s, out: Bytes, to: int) -> None:
    """Copy a batch's header, or make the one of a message of magic 0 or 1."""
    if header[layout.ATTRIBUTES] & layout.LEGACY_MASK == 0:
        copy_bytes(out, to, window, header[layout.POSITION], layout.HEADER_BYTES)
        return
    delta = header[layout.LAST_OFFSET] - header[layout.BASE_OFFSET]
    store_i64(out, to + layout.BASE_OFFSET_AT, header[layout.BASE_OFFSET])
    store_i32(out, to + layout.LEADER_EPOCH_AT, -1)
    store_u8(out, to + layout.MAGIC_AT, layout.MAGIC)
    store_i32(out, to + layout.LAST_OFFSET_DELTA_AT, delta)
    store_i64(out, to + layout.PRODUCER_ID_AT, -1)
    store_i16(out, to + layout.PRODUCER_EPOCH_AT, -1)
    store_i32(out, to + layout.BASE_SEQUENCE_AT, -1)


@internal
def _put_fields(
    out: Bytes, to: int, attributes: int, base_ms: int, max_ms: int, n_records: int
) -> None:
    """Write the header fields that change when a batch loses records."""
    store_i16(out, to + layout.ATTRIBUTES_AT, attributes)
    store_i64(out, to + layout.BASE_TIMESTAMP_AT, base_ms)
    store_i64(out, to + layout.MAX_TIMESTAMP_AT, max_ms)
    store_i32(out, to + layout.RECORDS_COUNT_AT, n_records)


@internal
def _put_emptied(window: Bytes, header: Int64s, out: Bytes, to: int) -> int:
    """Write the header of a batch that keeps no record; return the position after it."""
    _put_header(window, header, out, to)
    kept = layout.TIMESTAMP_TYPE_MASK | layout.TRANSACTIONAL_MASK | layout.CONTROL_MASK
    attributes = header[layout.ATTRIBUTES] & kept
    _put_fields(out, to, attributes, _NO_TIMESTAMP, header[layout.MAX_TIMESTAMP], 0)
    _seal(out, to, to + layout.HEADER_BYTES)
    return to + layout.HEADER_BYTES


@inlined
def _put_bytes(out: Bytes, to: int, source: Bytes, at: int, length: int) -> int:
    """Write a key or value after its length, which is negative for null."""
    to = write_varint(out, to, max(length, -1))
    if length <= 0:
        return to
    copy_bytes(out, to, source, at, length)
    return to + length


@internal
def _put_records(
    source: Bytes,
    header: Int64s,
    kept: Int64s,
    n_kept: int,
    base_offset: int,
    base_ms: int,
    out: Bytes,
    to: int,
) -> tuple[int, int]:
    """Write the records that stay; return the position after them, and the largest timestamp."""
    max_ms = _NO_TIMESTAMP
    for i in range(n_kept):
        _, fields = parse_any(source, header, kept[i])
        after, offset, ms, key_length, key_at, value_length, value_at, n_headers, at = fields
        max_ms = max(max_ms, ms)
        n_rest = after - at
        n_bytes = 1 + varint_bytes(ms - base_ms) + varint_bytes(offset - base_offset)
        n_bytes += varint_bytes(max(key_length, -1)) + max(key_length, 0)
        n_bytes += varint_bytes(max(value_length, -1)) + max(value_length, 0)
        n_bytes += varint_bytes(n_headers) + n_rest
        to = write_varint(out, to, n_bytes)
        store_u8(out, to, 0)
        to = write_varint(out, to + 1, ms - base_ms)
        to = write_varint(out, to, offset - base_offset)
        to = _put_bytes(out, to, source, key_at, key_length)
        to = _put_bytes(out, to, source, value_at, value_length)
        to = write_varint(out, to, n_headers)
        if n_rest > 0:
            copy_bytes(out, to, source, at, n_rest)
            to += n_rest
    return to, max_ms


@internal
def _rebuild(
    window: Bytes,
    source: Bytes,
    header: Int64s,
    kept: Int64s,
    n_kept: int,
    horizon_ms: int,
    out: Bytes,
    to: int,
    line: Int64s,
) -> int:
    """Write a batch of the records that stay; return the position after it.

    A negative `horizon_ms` stands for no delete horizon.  A compressed batch is neither compressed
    nor sealed: its caller does both.
    """
    attributes = header[layout.ATTRIBUTES]
    base_offset, last_offset = header[layout.BASE_OFFSET], header[layout.LAST_OFFSET]
    _, fields = parse_any(source, header, kept[0])
    first_offset, base_ms = fields[1], fields[2]
    _put_header(window, header, out, to)
    if attributes & layout.LEGACY_MASK != 0:
        _, fields = parse_any(source, header, kept[n_kept - 1])
        base_offset, last_offset = first_offset, fields[1]
        store_i64(out, to + layout.BASE_OFFSET_AT, base_offset)
        store_i32(out, to + layout.LAST_OFFSET_DELTA_AT, last_offset - base_offset)
    written = attributes & _KEPT_ATTRIBUTES
    if horizon_ms >= 0:
        written |= layout.DELETE_HORIZON_MASK
        base_ms = horizon_ms
    end, max_ms = _put_records(
        source, header, kept, n_kept, base_offset, base_ms, out, to + layout.HEADER_BYTES
    )
    if attributes & layout.TIMESTAMP_TYPE_MASK != 0:
        max_ms = header[layout.MAX_TIMESTAMP]
    _put_fields(out, to, written, base_ms, max_ms, n_kept)
    line[layout.BASE_OFFSET], line[layout.LAST_OFFSET] = base_offset, last_offset
    line[layout.MAX_TIMESTAMP] = max_ms
    line[CODEC] = attributes & layout.CODEC_MASK
    if line[CODEC] == 0:
        _seal(out, to, end)
    return end


@internal
def _put_batch(
    window: Bytes,
    source: Bytes,
    header: Int64s,
    fate: int,
    rules: Int64s,
    table: Int64s,
    secret: Bytes,
    waiting: Int64s,
    kept: Int64s,
    counts: Int64s,
    out: Bytes,
    to: int,
    line: Int64s,
) -> tuple[int, int]:
    """Write what stays of one batch to byte `to`; the status, and the position after it."""
    status, n_kept, has_tombstone = _choose(
        source, header, fate, rules, table, secret, waiting, kept, counts
    )
    if status != st.OK:
        return status, to
    n_records = header[layout.RECORDS_COUNT]
    counts[N_READ] += n_records
    counts[N_KEPT] += n_kept
    counts[N_CUT] += n_kept < n_records
    counts[N_EMPTIED] += n_kept == 0 and n_records > 0
    attributes = header[layout.ATTRIBUTES]
    line[layout.BASE_OFFSET] = header[layout.BASE_OFFSET]
    line[layout.LAST_OFFSET] = header[layout.LAST_OFFSET]
    line[layout.MAX_TIMESTAMP], line[CODEC] = header[layout.MAX_TIMESTAMP], 0
    if n_kept == 0 and (n_records > 0 or rules[ERASES] == 0):
        if fate & STAYS_EMPTY == 0:
            return st.OK, to
        return st.OK, _put_emptied(window, header, out, to)
    horizon_ms = -1
    if attributes & layout.DELETE_HORIZON_MASK != 0:
        horizon_ms = header[layout.BASE_TIMESTAMP]
    elif has_tombstone or fate & ENDS_NOTHING != 0:
        horizon_ms = rules[HORIZON_MS]
    has_new_horizon = horizon_ms >= 0 and attributes & layout.DELETE_HORIZON_MASK == 0
    keeps_format = attributes & layout.LEGACY_MASK == 0 or rules[ERASES] != 0
    is_whole = n_kept == n_records and keeps_format
    if is_whole and not has_new_horizon:
        copy_bytes(out, to, window, header[layout.POSITION], header[layout.SIZE])
        return st.OK, to + header[layout.SIZE]
    return st.OK, _rebuild(window, source, header, kept, n_kept, horizon_ms, out, to, line)


@kernel
def filter_batches(
    window: Bytes,
    inflated: Bytes,
    headers: Int64Table,
    begin: int,
    fates: Bytes,
    rules: Int64s,
    table: Int64Table,
    secret: Bytes,
    waiting: Int64Table,
    kept: Int64s,
    counts: Int64s,
    out: Bytes,
    lines: Int64Table,
) -> tuple[int, int, int, int]:
    """Write what stays of batches, one after another.

    Parameters
    ----------
    window : uint8 array; holds the batches as they are stored; read only
    inflated : uint8 array; holds the inflated records of compressed batches; read only
    headers : int64 array, shape (n_batches, `layout.N_HEADER_COLUMNS`); read only
    begin : row of the first batch to take
    fates : uint8 array, shape (n_batches,); from `judge_batches`
    rules : int64 array, shape (`RULE_COLUMNS`,)
    table : int64 array, shape (n_entries, `offset_map.ENTRY_COLUMNS`); the offset map
    secret : uint8 array, shape (`siphash.SECRET_BYTES`,); with which the map was filled
    waiting : int64 array, shape (`offset_map.N_WAITING`, `offset_map.WAITING_COLUMNS`); room
    kept : int64 array, as long as the most records of a batch (`most_bytes`); room
    counts : int64 array, shape (`COUNT_COLUMNS`,); added to
    out : uint8 array; written; it holds at least the largest batch (`most_bytes`)
    lines : int64 array, shape (at least n_batches, `N_OUT_COLUMNS`); written: the batches in `out`

    Returns
    -------
    status : `OK` when all batches are done, `OUTPUT_FULL`, or the fault of the batch in `row`
    row : of the next batch
    n_lines : number of `lines` that were filled
    end : byte of `out` after the last batch
    """
    n_lines = to = 0
    for row in range(begin, headers.shape[0]):
        header, fate = headers[row], fates[row]
        if to + _most_of_batch(header) > out.shape[0]:
            return st.OUTPUT_FULL, row, n_lines, to
        source = window if header[layout.ATTRIBUTES] & layout.CODEC_MASK == 0 else inflated
        status, after = _put_batch(
            window, source, header, fate, rules, table, secret, waiting, kept, counts, out, to,
            lines[n_lines],
        )  # fmt: skip
        if status != st.OK:
            return status, row, n_lines, to
        if after > to:
            lines[n_lines, layout.POSITION], lines[n_lines, layout.SIZE] = to, after - to
            lines[n_lines, layout.RECORDS_START] = to + layout.HEADER_BYTES
            lines[n_lines, layout.RECORDS_END] = after
            n_lines += 1
            to = after
    return st.OK, headers.shape[0], n_lines, to
