"""Logs of magic 0, 1 and 2, cut into slices everywhere, against the reference reader.

Wrappers hide where they begin, and a slice may begin or end inside one.  However a range is cut,
and whatever the indexes contain, its slices together hold the records of the range, each once.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from segmentlog.log.index_builder import rebuild_indexes
from segmentlog.model import TopicPartition
from segmentlog.reads.log import Log
from segmentlog.reads.scan import scan_slice
from segmentlog.testing.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from segmentlog.testing.legacy import encode_message, encode_wrapper, read_log
from segmentlog.testing.reference import Record, encode_batch

_FIRST_MS = 1_700_000_000_000
_LOGS = int(os.environ.get("LEGACY_LOGS", "5"))  # a run of hundreds takes minutes
_COLUMNS = ["offset", "timestamp", "timestampType", "key", "value"]


def _batch(rng: random.Random, offset: int, *, is_compacted: bool) -> tuple[bytes, int]:
    """A batch, message or wrapper from `offset` on, and the offset after it."""
    magic, n = rng.choice([0, 1, 1, 2]), rng.choice([1, 1, 2, 5, 9])
    offsets = sorted(rng.sample(range(2 * n), n)) if is_compacted else list(range(n))
    records = [
        Record(
            offset + each,
            _FIRST_MS + rng.randrange(-500, 500) * (magic > 0) - (magic == 0),
            rng.choice([None, b"k"]),
            bytes(rng.randrange(40)),
        )
        for each in offsets
    ]
    after = records[-1].offset + 1 + is_compacted * rng.randrange(3)
    if magic == 2:
        return encode_batch(records, codec=rng.choice([NONE, GZIP, SNAPPY, LZ4, ZSTD])), after
    if n == 1 and rng.random() < 0.7:
        attributes = 8 if magic and rng.random() < 0.3 else 0
        return encode_message(records[0], magic=magic, attributes=attributes), after
    time_ms = _FIRST_MS + rng.randrange(500) if magic and rng.random() < 0.3 else None
    codec = rng.choice([GZIP, SNAPPY, LZ4])
    return encode_wrapper(records, codec, magic=magic, append_time_ms=time_ms), after


def _segments(rng: random.Random, bases: Sequence[int] = ()) -> dict[int, bytes]:
    """One to four segments, or segments that begin at these offsets."""
    if bases:
        return {base: _segments_from(rng, base, 1)[base] for base in bases}
    return _segments_from(rng, rng.choice([0, 0, 7, 2**33]), rng.choice([1, 1, 2, 4]))


def _segments_from(rng: random.Random, offset: int, n_segments: int) -> dict[int, bytes]:
    is_compacted = rng.random() < 0.4
    segments = {}
    for _ in range(n_segments):
        base, data = offset, b""
        for _ in range(rng.randrange(1, 12)):
            batch, offset = _batch(rng, offset, is_compacted=is_compacted)
            data += batch
        segments[base] = data
    return segments


def _write(path: Path, segments: dict[int, bytes]) -> None:
    for base, data in segments.items():
        (path / f"{base:020d}.log").write_bytes(data)


def _log(path: Path) -> Log:
    return Log(TopicPartition("t", 0), str(path))


def _index(rng: random.Random, path: Path, earlier: dict[int, bytes], kind: str) -> None:
    """A right index, one of earlier contents, one that is cut or wrong, or none."""
    if kind == "none":
        return
    now = {base: (path / f"{base:020d}.log").read_bytes() for base in earlier}
    if kind == "stale":
        _write(path, earlier)
    for segment in _log(path).segments:
        rebuild_indexes(segment, rng.choice([1, 100]))
    _write(path, now)
    if kind == "lying":
        for index in path.glob("*index"):
            data = bytearray(index.read_bytes())
            for at in range(len(data)):
                if rng.random() < 0.1:
                    data[at] = rng.randrange(256)
            index.write_bytes(data[: rng.randrange(len(data) + 1)])


def _rows(log: Log, start: int, end: int, max_bytes: int) -> list[tuple[object, ...]]:
    slices = log.slices(start, end, max_bytes)
    bounds = [each for piece in slices for each in (piece.start_offset, piece.end_offset)]
    assert bounds == sorted(bounds)
    return [
        row
        for piece in slices
        for batch in scan_slice(piece, columns=_COLUMNS)
        for row in zip(
            *[
                column.cast("int64").to_pylist() if name == "timestamp" else column.to_pylist()
                for name, column in zip(_COLUMNS, batch.columns, strict=True)
            ],
            strict=True,
        )
    ]


def _expected(segments: dict[int, bytes]) -> list[tuple[object, ...]]:
    return [
        (each.offset, each.timestamp_ms * 1000 if kind >= 0 else -1000, kind, each.key, each.value)
        for base, data in segments.items()
        for kind, records in read_log(data, 1 << 20, base)
        for each in records
    ]


def _found(rows: Sequence[tuple[object, ...]], time_ms: int) -> object:
    """The first record at or after the time, found by looking at every record."""
    return next((row[:2] for row in rows if int(str(row[1])) >= time_ms * 1000), None)


@pytest.mark.parametrize("kind", ["right", "none", "stale", "lying"])
def test_slices_of_legacy_logs(tmp_path: Path, kind: str) -> None:
    for seed in range(_LOGS):
        rng = random.Random(f"{kind} {seed}")
        path = tmp_path / f"{seed}"
        path.mkdir()
        segments = _segments(rng)
        _write(path, segments)
        _index(rng, path, _segments(rng, list(segments)), kind)
        log, rows = _log(path), _expected(segments)
        first, end_offset = min(segments), log.log_end_offset
        assert end_offset == int(str(rows[-1][0])) + 1
        assert _rows(log, first, end_offset, 0) == rows
        size = sum(map(len, segments.values()))
        for max_bytes in range(1, size + 2, max(size // 30, 1)):
            assert _rows(log, first, end_offset, max_bytes) == rows, (seed, max_bytes)
        for _ in range(15):
            start, end = sorted(rng.randrange(first, end_offset + 1) for _ in range(2))
            wanted = [row for row in rows if start <= int(str(row[0])) < end]
            assert _rows(log, start, end, rng.randrange(size)) == wanted, (seed, start, end)
        for _ in range(30):
            time_ms = _FIRST_MS + rng.randrange(-600, 600)
            found = log.offset_for_timestamp(time_ms)
            answer = (found.offset, found.timestamp_ms * 1000) if found else None
            assert answer == _found(rows, time_ms), (seed, time_ms)


def test_a_lying_index_before_a_wrapper_that_lies_across_the_end(tmp_path: Path) -> None:
    """A wrapper's header has only its last offset.

    A range once lost the wrapper's first records.
    """
    first = encode_message(Record(0, _FIRST_MS, None, b"a"))
    records = [Record(offset, _FIRST_MS, None, b"b") for offset in (1, 2, 3)]
    _write(tmp_path, {0: first + encode_wrapper(records, GZIP)})
    entries = [(2, 1 << 20), (3, len(first))]
    index = b"".join(each.to_bytes(4, "big") for entry in entries for each in entry)
    (tmp_path / f"{0:020d}.index").write_bytes(index)
    for end in range(1, 5):
        assert [row[0] for row in _rows(_log(tmp_path), 0, end, 0)] == list(range(end))
