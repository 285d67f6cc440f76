"""A sample of the batches of a log: what zstd would save, formats, and names of headers.

These would take longer than the scan itself, so a few batches in a row are taken from each few MiB
of a log.  The choice depends on the bytes alone: two analyses of a log take the same batches.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.format.kernels import formats, layout
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.records.columns import record_schema
from segmentlog.format.records.compression import InflateError, Inflater
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.interleaved import binary_arrays
from segmentlog.model import LEAST_LONG, MAX_INFLATED_BATCH_BYTES, Codec, TopicPartition

#: Formats of keys and values, in the order of `segmentlog.format.kernels.formats`.
FORMATS = ("registry", "json", "text", "compressed", "binary")

_EVERY_BYTES = 8 << 20  #: of a log: a sample is taken in so many
_FIRST_BYTES, _LATER_BYTES = 128 << 10, 32 << 10  #: of batches in a row
_MOST_BYTES = 1 << 20  #: of one batch; a larger one is not taken
_LEVEL = 3  #: Kafka's default for zstd
_LARGE_BATCH = 128 << 10  #: that small batches are put together to
_MOST_NAMES = 256
_LONG_BYTES, _SEVERAL = 8, 8
_LONG_ID_BYTES = 9  #: a zero, and the id of a schema in eight bytes
_COUNTERS = (
    "n_batches",
    "n_bytes",
    "inflated_bytes",
    "zstd_bytes",
    "joined_bytes",
    "n_records",
    "n_with_headers",
    "n_other_headers",
    "n_headers",
    "header_bytes",
    "other_bytes",
)


class Sample:
    """Numbers of batches that were taken from a log.

    `n_bytes`: of the batches as they are; `zstd_bytes`: of each of them with zstd; `joined_bytes`:
    with zstd, and put together to batches of 128 KiB.  `keys` and `values`: records by format;
    null is none.  `headers`: records by the name of a header.  `header_bytes`, `other_bytes`: of
    the names and values of headers, and of keys and values.
    """

    def __init__(self) -> None:
        self.n_batches = self.n_bytes = self.inflated_bytes = 0
        self.zstd_bytes = self.joined_bytes = 0
        self.n_records = self.n_with_headers = self.n_other_headers = 0
        self.n_headers = self.header_bytes = self.other_bytes = 0
        self.keys: Counter[str] = Counter()
        self.values: Counter[str] = Counter()
        self.headers: Counter[bytes] = Counter()

    def merge(self, other: "Sample") -> None:
        """Add the batches of another sample."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.keys.update(other.keys)
        self.values.update(other.values)
        self.add_headers(other.headers)

    def add_headers(self, found: Mapping[bytes, int]) -> None:
        """Add numbers of records by the name of a header, as far as there is room for names."""
        for name, n in found.items():
            if name in self.headers or len(self.headers) < _MOST_NAMES:
                self.headers[name] += n
            else:
                self.n_other_headers += n

    def to_json(self) -> dict[str, Any]:
        """All of it, for another process; `from_json` is the inverse."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _COUNTERS}
        headers = [(name.hex(), n) for name, n in self.headers.items()]
        return found | {"keys": self.keys, "values": self.values, "headers": headers}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Sample":
        """The inverse of `to_json`."""
        sample = cls()
        for name in _COUNTERS:
            setattr(sample, name, int(found[name]))
        sample.keys, sample.values = Counter(found["keys"]), Counter(found["values"])
        sample.headers = Counter({bytes.fromhex(name): n for name, n in found["headers"]})
        return sample


class Sampler:
    """Takes batches from the windows of a scan of a slice, and decodes them at its end.

    `takes_more`: whether more is taken at the beginning: most partitions are small.
    """

    def __init__(self, topic_partition: TopicPartition, *, takes_more: bool) -> None:
        self._topic_partition = topic_partition
        self._taken: list[tuple[str, Bytes]] = []
        self._most_bytes = _FIRST_BYTES if takes_more else _LATER_BYTES
        self._next = self._seen = 0

    @property
    def is_due(self) -> bool:
        """Whether some of the next batches are taken; the others may be skipped."""
        return self._seen >= self._next

    def skip(self, n_bytes: int) -> None:
        """Pass over batches of so many bytes."""
        self._seen += n_bytes

    def see(self, path: str, buf: Bytes, headers: Int64s) -> None:
        """Take some of the batches of a window; their headers have places in `buf`."""
        begin = int(headers[0, layout.POSITION])
        self.skip(int(headers[-1, layout.POSITION] + headers[-1, layout.SIZE]) - begin)
        most, self._most_bytes = self._most_bytes, _LATER_BYTES
        end = begin
        for position, size in headers[:, [layout.POSITION, layout.SIZE]].tolist():
            if position != end or (end > begin and position + size - begin > most):
                break
            if size > _MOST_BYTES:
                break
            end = position + size
        if end == begin:
            return
        self._next = self._seen + _EVERY_BYTES
        taken: Bytes = np.zeros(end - begin + COPY_SLACK, np.uint8)
        taken[: end - begin] = buf[begin:end]
        self._taken.append((path, taken[: end - begin]))

    def finish(self) -> Sample:
        """The sample, without batches that cannot be read: the scan reports those."""
        sample = Sample()
        for path, data in self._taken:
            try:
                self._decode(path, data, sample)
            except (CorruptLogError, UnsupportedFormatError, InflateError):
                continue
        self._taken = []
        return sample

    def _decode(self, path: str, data: Bytes, sample: Sample) -> None:
        scanned = BatchScanner(path, LEAST_LONG).scan(data, 0, len(data), 0)
        _measure(data, scanned.headers, sample)
        schema = record_schema(["key", "value", "headers"], header_names_as_bytes=True)
        decoder = RecordDecoder(self._topic_partition, schema)
        for batch in decoder.decode(scanned):
            sample.n_records += batch.num_rows
            for name, counts in (("key", sample.keys), ("value", sample.values)):
                counts.update(formats_of(batch.column(name)))
                sample.other_bytes += _n_bytes(batch.column(name))
            _add_headers(batch.column("headers"), sample)


def _measure(data: Bytes, headers: Int64s, sample: Sample) -> None:
    """Compress the records of batches again."""
    inflater, compress = Inflater(MAX_INFLATED_BATCH_BYTES), zstandard.ZstdCompressor(_LEVEL)
    row_of, view = headers.tolist(), data.data
    joined, n_joined = list[bytes](), 0

    def end_joined() -> None:
        nonlocal joined, n_joined
        if joined:
            sample.joined_bytes += layout.HEADER_BYTES + len(compress.compress(b"".join(joined)))
        joined, n_joined = [], 0

    for row in row_of:
        attributes = row[layout.ATTRIBUTES]
        if attributes & (layout.CONTROL_MASK | layout.LEGACY_MASK):
            continue
        records = view[row[layout.RECORDS_START] : row[layout.RECORDS_END]]
        codec = attributes & layout.CODEC_MASK
        if codec != Codec.NONE:
            inflater.clear()
            begin, end = inflater.append(codec, records)
            records = inflater.buffer.data[begin:end]
        plain = bytes(records)
        sample.n_batches += 1
        sample.n_bytes += row[layout.SIZE]
        sample.inflated_bytes += len(plain)
        sample.zstd_bytes += layout.HEADER_BYTES + (
            row[layout.SIZE] - layout.HEADER_BYTES
            if codec == Codec.ZSTD
            else len(compress.compress(plain))
        )
        if n_joined + len(plain) > _LARGE_BATCH:
            end_joined()
        joined.append(plain)
        n_joined += len(plain)
    end_joined()


def formats_of(column: pa.Array) -> dict[str, int]:
    """The number of values of each of `FORMATS`; null and empty values have none."""
    counts: Int64s = np.zeros(formats.N_FORMATS, np.int64)
    formats.count_formats(binary_arrays(column), counts)
    found = dict(zip(FORMATS, counts.tolist(), strict=True))
    n_numbers = _n_numbers(column, found["registry"]) if found["registry"] else 0
    found["registry"] -= n_numbers
    found["binary"] += n_numbers
    return {name: n for name, n in found.items() if n}


def _n_numbers(column: pa.Array, n_framed: int) -> int:
    """The number of values that begin like the id of a schema, and are none of a registry.

    A long of 8 bytes, or 0.0, begins with zeros.  After the id of 8 bytes that Apicurio's
    serializers write, a payload follows.  A time in milliseconds begins like an id, too: if all of
    several values have 8 bytes, they are numbers, and no payloads of 3 bytes each.
    """
    if n_framed >= _SEVERAL:
        is_framed = pc.match_substring_regex(column, rb"(?s)^\x00[\x00-\x7f]")
        is_long = pc.and_(is_framed, pc.equal(pc.binary_length(column), _LONG_BYTES))
        if pc.sum(is_long).as_py() == n_framed:
            return n_framed
    is_zero = pc.starts_with(column, b"\0\0\0\0\0")
    has_long_id = pc.greater(pc.binary_length(column), _LONG_ID_BYTES)
    no_id = pc.equal(pc.binary_slice(column, 0, _LONG_ID_BYTES), bytes(_LONG_ID_BYTES))
    is_number = pc.and_(is_zero, pc.or_(pc.invert(has_long_id), no_id))
    return pc.sum(is_number).as_py() or 0


def _n_bytes(column: pa.Array) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0


def _add_headers(column: pa.Array, sample: Sample) -> None:
    """Count the records that have headers, those with each name, and their bytes."""
    names, flat = list(_names(column)), column.flatten()
    sample.n_headers += len(names)
    sample.header_bytes += _n_bytes(flat.field("key")) + _n_bytes(flat.field("value"))
    if names:
        sample.n_with_headers += len({row for row, _ in names})
        sample.add_headers(Counter(name for _, name in set(names)))


def _names(column: pa.Array) -> Iterator[tuple[int, bytes]]:
    """Rows and names of headers."""
    flat = column.flatten()
    ends = column.offsets.to_numpy()
    rows = np.repeat(np.arange(len(column)), np.diff(ends))
    yield from zip(rows.tolist(), flat.field("key").to_pylist(), strict=True)
