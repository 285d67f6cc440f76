"""Keys and values of offset commits to columns, without an object of Python for a record.

These records are nearly all of ``__consumer_offsets``.  Values of one version have one layout, so
each field is gathered from all values of the version at once.  Bytes that are not a commit,
and a value with an unusual tail, go to the reader of single messages, which gives the reason.

Rules: ``OffsetCommitKey`` and ``OffsetCommitValue``; `segmentlog.format.messages.lines` has them.
"""

import uuid
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.messages.records import read_coordinator_record
from segmentlog.format.records.columns import where
from segmentlog.kafka_tables.columns import Cells, printed_id, times

#: Types of the keys of commits: 0 since Kafka 0.8, 1 since 0.9.
COMMIT_TYPES = (0, 1)

_TOPIC = "__consumer_offsets"
_NEWEST = 4


def commit_columns(
    keys: pa.Array, values: pa.Array, refuse: Callable[[int, str], None]
) -> dict[str, pa.Array]:
    """The fields of commits, by name; a tombstone has those of its key alone.

    `keys`: binary array, shape (n_records,): keys of type 1.  `values`: binary array, shape
    (n_records,): null for a tombstone.  `refuse`: takes the row of a record that cannot be read,
    and the reason.  It raises an error, or returns to leave the record out: ``is_read`` is then
    false in its row.
    """
    is_set = values.is_valid().to_numpy(zero_copy_only=False)
    of_keys, of_values = Cells(keys), Cells(values)
    of_keys.number(2)  # its type
    group, topic, partition = of_keys.text(), of_keys.text(), of_keys.number(4)
    versions = of_values.number(2)
    is_read = of_keys.is_right & (of_values.is_right | ~is_set)
    n_records = len(keys)
    offset, commit_time, expire_time, epoch = (np.full(n_records, -1, np.int64) for _ in range(4))
    starts, lengths = np.zeros(n_records, np.int64), np.zeros(n_records, np.int64)
    ids: Bytes = np.zeros((n_records, 16), np.uint8)
    for version in np.unique(versions[is_set & is_read]).tolist():
        rows = np.flatnonzero(is_set & is_read & (versions == version))
        cells = of_values.only(rows)
        offset[rows] = cells.number(8)
        if version >= 3:
            epoch[rows] = cells.number(4)
        starts[rows], lengths[rows] = cells.text(is_compact=version >= _NEWEST)
        commit_time[rows] = cells.number(8)
        if version == 1:
            expire_time[rows] = cells.number(8)
        if version >= _NEWEST:
            ids[rows] = cells.topic_id()
        is_read[rows] = cells.is_right & (0 <= version <= _NEWEST)
    _read_alone(keys, values, is_read, ids, refuse)

    def texts(cells: Cells, starts: Int64s, lengths: Int64s) -> pa.Array:
        lengths = np.where(is_read, lengths, 0)
        return _texts(cells.gathered(starts, lengths), is_read, refuse)

    columns = {
        "group": texts(of_keys, *group),
        "topic": texts(of_keys, *topic),
        "metadata": texts(of_values, starts, lengths),
    }
    is_null = ~(is_set & is_read)
    return {
        "group": columns["group"],
        "topic": columns["topic"],
        "partition": pa.array(partition.astype(np.int32)),
        "offset": pa.array(offset, mask=is_null),
        "leader_epoch": pa.array(epoch.astype(np.int32), mask=is_null | (epoch < 0)),
        "metadata": where(pa.array(~is_null), columns["metadata"], pa.scalar(None, pa.string())),
        "commit_timestamp": times(np.where(is_null, -1, commit_time)),
        "expire_timestamp": times(np.where(is_null, -1, expire_time)),
        "topic_id": _printed(ids),
        "is_read": pa.array(is_read),
    }


def groups_of(keys: pa.Array) -> pa.Array:
    """The bytes of the names of groups; null for a key that cannot be read."""
    cells = Cells(keys)
    cells.number(2)  # its type
    names = cells.gathered(*cells.text())
    return where(pa.array(cells.is_right), names, pa.scalar(None, pa.binary()))


def _read_alone(
    keys: pa.Array,
    values: pa.Array,
    is_read: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
    ids: Bytes,
    refuse: Callable[[int, str], None],
) -> None:
    """Read the rows that were not read at once; such a value has its own tagged fields."""
    for row in np.flatnonzero(~is_read).tolist():
        try:
            found = read_coordinator_record(_TOPIC, keys[row].as_py(), values[row].as_py())
        except ValueError as error:
            refuse(row, str(error))
            continue
        if found is None:  # a newer version, left as bytes
            continue
        is_read[row] = True
        if found.value is not None:
            ids[row] = np.frombuffer(found.value["topic_id"].bytes, np.uint8)


def _texts(
    found: pa.Array,
    is_read: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
    refuse: Callable[[int, str], None],
) -> pa.Array:
    """Bytes as text; the rows that are not UTF-8 are refused."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        texts = []
        for row, value in enumerate(found.to_pylist()):
            try:
                texts.append(value.decode())
            except UnicodeDecodeError as error:
                refuse(row, str(error))
                is_read[row] = False
                texts.append("")
        return pa.array(texts, pa.string())


def _printed(ids: Bytes) -> pa.Array:
    """Ids as Kafka prints them; there are few different ones."""
    whole = np.ascontiguousarray(ids).view("V16")[:, 0]
    different, which = np.unique(whole, return_inverse=True)
    names = [printed_id(uuid.UUID(bytes=each.tobytes())) for each in different]
    return pa.array(names, pa.string()).take(pa.array(which))
