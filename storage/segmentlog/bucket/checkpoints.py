"""Checkpoints of a log in an object store: its state after a commit, written down.

A checkpoint is a file of Arrow with a row for each extent, and a digest at its end.
"""

import json
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import repeat
from typing import TYPE_CHECKING, Any

from segmentlog.bucket.commits import (
    MOST_PARTITIONS,
    check_features,
    check_log_id,
    check_numbers,
    check_settings,
    topic_of,
)
from segmentlog.bucket.extents import ALL_NUMBERS, Extents, PartitionLog, StoredSnapshot
from segmentlog.bucket.growing import Growing
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import is_data_key
from segmentlog.errors import CorruptCheckpointError
from segmentlog.model import TopicPartition
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.state import (
    REMEDY,
    check_types,
    decode_spans,
    decode_streams,
    decode_versions,
    encode_spans,
    encode_streams,
    encode_versions,
    from_json,
)

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS = (1, 2)  # as those of commits

#: Metadata of a checkpoint: what it is about, as JSON; and files of Arrow with the jobs that have
#: ended, and the objects that extents have left, each with the time.
_ABOUT, _ENDED, _LEFT = b"segmentlog", b"segmentlog ended", b"segmentlog left"


def encode_checkpoint(state: LogState) -> bytes:
    """The bytes of a checkpoint: a file of Arrow with a row for each extent."""
    import numpy as np  # neither is needed to commit
    import pyarrow as pa

    partitions = [*state.logs.items()]
    lengths = [log.n_extents for _, log in partitions]
    keys = [key for _, log in partitions for key in log.objects]
    columns: dict[str, pa.Array] = {
        "log": pa.array(np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)),
        "object": pa.array(keys, pa.string()).dictionary_encode(),
        "shift": _joined(log.extents.shifts[: log.n_extents] for _, log in partitions),
    }
    for name in ALL_NUMBERS:
        columns[name] = _joined(log.column(name) for _, log in partitions)
    about: dict[str, Any] = {
        "format": 2 if state.log_id else 1,
        "number": state.number,
        "time_ms": state.time_ms,
        "topics": [[name, *each] for name, each in state.topics.items()],
        "logs": [
            [*at, log.start, log.end, log.epochs, log.snapshot, *_cleaned(log)]
            for at, log in partitions
        ],
        "versions": encode_versions(state.versions),
        "streams": encode_streams(state.streams),
        "spans": encode_spans(state.last_spans()),
        "deleted": [[topic, *each] for topic, each in state.deleted.items()],
    }
    if state.log_id:
        about |= {"token": state.token, "log": state.log_id, "since": state.since}
        about["features"] = [*state.features]
        about["settings"] = state.settings.fields()
    metadata = {
        _ABOUT: json.dumps(about).encode(),
        _ENDED: _file_of(_columns_of(state.ended)),
        _LEFT: _file_of(_columns_of(state.left)),
    }
    found = _file_of(pa.table(columns).replace_schema_metadata(metadata))
    return sealed(found) if state.log_id else found


def decode_checkpoint(data: bytes, path: str) -> LogState:
    """The state in a checkpoint; `path` names it in errors.

    Raises `CorruptCheckpointError` if the bytes are none, or of a newer format.
    """
    import pyarrow as pa

    try:
        data = data[:-_SEAL_BYTES] if is_sealed(data) else data
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        metadata = table.schema.metadata or {}
        about = from_json(metadata[_ABOUT], path, _FORMATS)
        check_features(about.get("features", []), path)
        _check_checkpoint(about, table)
        ended, left = (_rows_of(metadata[name]) for name in (_ENDED, _LEFT))
        return _state_of(about, table, ended, left)
    except (
        pa.ArrowException,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        OSError,
        OverflowError,
        MemoryError,
    ) as error:
        if isinstance(error, CorruptCheckpointError):
            raise
        raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", REMEDY) from None


def _state_of(
    about: Mapping[str, Any],
    table: "pa.Table",
    ended: dict[str, tuple[str, int]],
    left: dict[str, tuple[str, int]],
) -> LogState:
    import numpy as np

    table = table.combine_chunks()
    logs: dict[TopicPartition, PartitionLog] = {}
    counts = np.bincount(table["log"].to_numpy(), minlength=len(about["logs"]))
    ends = np.cumsum(counts).tolist()
    keys = list[str]()
    for chunk in table["object"].chunks:  # each text once
        texts = chunk.dictionary.to_pylist()
        keys += [texts[i] for i in chunk.indices.to_pylist()]
    numbers = {name: table[name].to_numpy() for name in ("shift", *ALL_NUMBERS)}
    begin = 0
    for (topic, partition, start, end, epochs, snapshot, *more), stop in zip(
        about["logs"], ends, strict=True
    ):
        extents = Extents()
        extents.objects = keys[begin:stop]
        extents.shifts = array("q", numbers["shift"][begin:stop].tobytes())
        extents.columns = {
            name: array("q", numbers[name][begin:stop].tobytes()) for name in ALL_NUMBERS
        }
        found = PartitionLog(
            start,
            end,
            extents,
            stop - begin,
            tuple((epoch, at) for epoch, at in epochs),
            snapshot and StoredSnapshot(*snapshot),
            *more,
        )
        logs[TopicPartition(topic, partition)] = found
        begin = stop
    state = LogState(
        about["number"],
        about["time_ms"],
        {name: topic_of(*each) for name, *each in about["topics"]},
        logs,
        Growing(decode_versions(about["versions"])),
        decode_streams(about["streams"]),
        Growing(ended),
        Growing(left),
        Growing({topic: (token, time_ms) for topic, token, time_ms in about["deleted"]}),
        about.get("token", ""),
        about.get("log", ""),
        about.get("since", 0),
        tuple(about.get("features", [])),
        SettingsFile(**about["settings"]) if "settings" in about else SettingsFile(),
    )
    spans = decode_spans(about.get("spans", ()))
    return replace(state, spans=Growing(state.with_times(spans)))


def _file_of(table: "pa.Table") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _columns_of(rows: Growing[str, tuple[str, int]]) -> "pa.Table":
    """Texts with times, as columns: a million of them in JSON would take seconds."""
    import pyarrow as pa

    found = rows.items()
    times = pa.array([time_ms for _, (_, time_ms) in found], pa.int64())
    return pa.table({"key": pa.array([key for key, _ in found], pa.string()), "time_ms": times})


def _rows_of(data: bytes) -> dict[str, tuple[str, int]]:
    """The inverse; raises `TypeError`, `ValueError` or an error of Arrow."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    table.validate(full=True)
    keys, times = table["key"], table["time_ms"]
    if (keys.type, times.type) != (pa.string(), pa.int64()) or keys.null_count or times.null_count:
        raise TypeError(f"expected texts and integers, found {keys.type} and {times.type}")
    texts = keys.to_pylist()
    return dict(zip(texts, zip(repeat(""), times.to_pylist()), strict=True))


#: The end of a checkpoint: a digest of what is before it, as Arrow has no checksums.
_SEAL = b"segmentlog seal\n"
_DIGEST_BYTES = 16
_SEAL_BYTES = len(_SEAL) + _DIGEST_BYTES


def sealed(data: bytes) -> bytes:
    """The bytes of a checkpoint with their digest at the end."""
    return data + _SEAL + blake2b(data, digest_size=_DIGEST_BYTES).digest()


def is_sealed(data: bytes) -> bool:
    """Whether a checkpoint has a digest at the end, which is that of its bytes."""
    return data[:-_DIGEST_BYTES].endswith(_SEAL) and sealed(data[:-_SEAL_BYTES]) == data


def _check_checkpoint(about: Mapping[str, Any], table: "pa.Table") -> None:
    """Refuse what `encode_checkpoint` does not make: Arrow would take it, or end the process."""
    import numpy as np
    import pyarrow as pa

    table.validate(full=True)
    for name in ("log", "shift", *ALL_NUMBERS):
        column = table[name]
        if column.type != pa.int64() or column.null_count:
            raise TypeError(f"expected integers in column {name}, found {column.type}")
    objects = table["object"]
    if objects.type != pa.dictionary(pa.int32(), pa.string()) or objects.null_count:
        raise TypeError(f"expected texts in column object, found {objects.type}")
    keys = [key for chunk in objects.chunks for key in chunk.dictionary.to_pylist()]
    snapshots = [each[5] for each in about["logs"] if each[5] is not None]
    for key in (*keys, *(each[1] for each in snapshots)):
        if not is_data_key(key):
            raise ValueError(f"expected the key of a data object, found {key[:80]!r}")
    check_numbers([about["number"]], 1)
    check_numbers([about["time_ms"]])
    if about["format"] == 2:
        check_log_id(about["log"])
        check_types((about["token"],), (str,))
        check_numbers([about["since"]], 0, about["number"])
        if (found := about.get("settings")) is not None:
            for each in (found["defaults"], *found["topics"].values()):
                check_settings(each)
    check_numbers([each for snapshot in snapshots for each in (snapshot[0], *snapshot[2:])])
    for topic, topic_id, n_partitions, lacks in about["topics"]:
        check_types((topic, topic_id), (str, str))
        check_numbers([n_partitions], 1, MOST_PARTITIONS)
        check_numbers(lacks, 0, n_partitions - 1)
    for topic, partition, start, end, epochs, _, *cleaned in about["logs"]:
        check_types((topic,), (str,))
        check_numbers([partition, start, end])
        check_numbers(cleaned, -1, end)
        check_numbers([number for each in epochs for number in each])
    for topic, token, time_ms in about["deleted"]:
        check_types((topic, token, time_ms), (str, str, int))
    log, base, end = (table[name].to_numpy() for name in ("log", "base_offset", "end_offset"))
    n_logs = len(about["logs"])
    in_order = bool((log[:-1] <= log[1:]).all())
    if len(log) and not 0 <= log[0] <= log[-1] < n_logs:
        in_order = False
    follows = (end[:-1] <= base[1:]) | (log[:-1] != log[1:])
    if not in_order or not follows.all() or (base >= end).any():
        raise ValueError("its extents are not in the order of their offsets")
    for name in ALL_NUMBERS:
        least = -1 if name == "max_timestamp" else 1 if name == "size" else 0
        if len(log) and int(np.min(table[name].to_numpy())) < least:
            raise ValueError(f"expected {name} of at least {least}")


def _cleaned(log: PartitionLog) -> list[int]:
    """What a row of a checkpoint has at its end if the partition was compacted by key."""
    return [log.cleaned_to] if log.cleaned_to >= 0 else []


def _joined(columns: "Iterable[array[int]]") -> "pa.Array":
    import numpy as np
    import pyarrow as pa

    parts = [np.frombuffer(each, np.int64) for each in columns if len(each)]
    return pa.array(np.concatenate(parts) if parts else np.empty(0, np.int64))
