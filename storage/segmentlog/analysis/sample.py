"""A sample of the batches of a log: what zstd would save, formats, and names of headers.

These would take longer than the scan itself, so a few batches in a row are taken from each few MiB
of a log.  The choice depends on the bytes alone: two analyses of a log take the same batches.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from segmentlog.errors import CorruptLogError, UnsupportedFormatError
from segmentlog.format.kernels import layout
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.kernels.sketches import FRAME_BYTES
from segmentlog.format.records.compression import InflateError, Inflater
from segmentlog.format.records.decoder import BatchScanner, RecordDecoder
from segmentlog.format.records.schema import record_schema
from segmentlog.model import MAX_INFLATED_BATCH_BYTES, Codec, TopicPartition

#: Formats of keys and values, in the order in which they are tried.
FORMATS = ("registry", "json", "text", "compressed", "binary")

_EVERY_BYTES = 8 << 20  #: of a log: a sample is taken in so many
_FIRST_BYTES, _LATER_BYTES = 128 << 10, 32 << 10  #: of batches in a row
_MOST_BYTES = 1 << 20  #: of one batch; a larger one is not taken
_LEVEL = 3  #: Kafka's default for zstd
_LARGE_BATCH = 128 << 10  #: that small batches are put together to
_MOST_NAMES = 256
_MAGICS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")  # gzip, zstd, LZ4
_COUNTERS = (
    "n_batches", "n_bytes", "inflated_bytes", "zstd_bytes", "joined_bytes", "n_records",
    "n_with_headers", "n_other_headers",
)  # fmt: skip


class Sample:
    """Numbers of batches that were taken from a log.

    `n_bytes`: of the batches as they are; `zstd_bytes`: of each of them with zstd; `joined_bytes`:
    with zstd, and put together to batches of 128 KiB.  `keys` and `values`: records by format;
    null is none.  `headers`: records by the name of a header.
    """

    def __init__(self) -> None:
        self.n_batches = self.n_bytes = self.inflated_bytes = 0
        self.zstd_bytes = self.joined_bytes = 0
        self.n_records = self.n_with_headers = self.n_other_headers = 0
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

    def see(self, path: str, buf: Bytes, headers: Int64s) -> None:
        """Take some of the batches of a window; their headers have places in `buf`."""
        total = int(headers[-1, layout.POSITION] + headers[-1, layout.SIZE])
        begin = int(headers[0, layout.POSITION])
        self._seen += total - begin
        if self._seen < self._next:
            return
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
        scanned = BatchScanner(path, -(2**63)).scan(data, 0, len(data), 0)
        _measure(data, scanned.headers, sample)
        schema = record_schema(["key", "value", "headers"], header_names_as_bytes=True)
        decoder = RecordDecoder(self._topic_partition, schema)
        for batch in decoder.decode(scanned):
            sample.n_records += batch.num_rows
            for name, counts in (("key", sample.keys), ("value", sample.values)):
                counts.update(formats_of(batch.column(name)))
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
    places = np.frombuffer(column.buffers()[1], np.int32)
    ends = places[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = column.buffers()[2]
    # A decoder reserves more room for values than the few of a sample need.
    start, end = int(ends[0]), int(ends[-1])
    found: Bytes = np.zeros(end - start + FRAME_BYTES, np.uint8)
    if end > start:
        found[: end - start] = np.frombuffer(data, np.uint8)[start:end]
    ends -= start
    begins, lengths = ends[:-1], np.diff(ends)
    left = lengths > 0
    if not left.any():
        return {}
    begins, last = np.where(left, begins, 0), np.where(left, ends[1:] - 1, 0)
    counts: dict[str, int] = {}

    def take(name: str, matches: Any) -> None:  # noqa: ANN401 - an array of booleans
        nonlocal left
        n = int(np.count_nonzero(left & matches))
        if n:
            counts[name] = n
        left = left & ~matches

    first = found[begins]
    take("registry", (first == 0) & (lengths >= FRAME_BYTES) & (found[begins + 1] < 0x80))
    is_text = _are_text(column, found, ends)
    take("json", is_text & np.isin(first, [0x7B, 0x5B]) & (found[last] == first + 2))
    take("text", is_text)
    heads = np.stack([found[begins + i] for i in range(4)], axis=1)
    is_packed = np.zeros(len(left), np.bool_)
    for magic in _MAGICS:
        n = len(magic)
        is_packed |= (lengths >= n) & (heads[:, :n] == np.frombuffer(magic, np.uint8)).all(axis=1)
    take("compressed", is_packed)
    take("binary", left)
    return counts


def _are_text(column: pa.Array, data: Bytes, ends: Int64s) -> Any:  # noqa: ANN401 - the same
    """Whether values are UTF-8 without control characters; false for null."""

    def has_any(matches: Any) -> Any:  # noqa: ANN401 - the same
        before = np.concatenate([[0], np.cumsum(matches)])
        return before[ends[1:]] != before[ends[:-1]]

    is_text = column.is_valid().to_numpy(zero_copy_only=False)
    is_text &= ~has_any((data < 0x20) & (data != 0x09) & (data != 0x0A) & (data != 0x0D))
    # Nearly all binary values have a control character, and ASCII is UTF-8: few are left.
    for row in np.flatnonzero(is_text & has_any(data >= 0x80)).tolist():
        try:
            data[ends[row] : ends[row + 1]].tobytes().decode()
        except UnicodeDecodeError:
            is_text[row] = False
    return is_text


def _add_headers(column: pa.Array, sample: Sample) -> None:
    """Count the records that have headers, and those with each name."""
    names = list(_names(column))
    if names:
        sample.n_with_headers += len({row for row, _ in names})
        sample.add_headers(Counter(name for _, name in set(names)))


def _names(column: pa.Array) -> Iterator[tuple[int, bytes]]:
    """Rows and names of headers."""
    flat = column.flatten()
    ends = column.offsets.to_numpy()
    rows = np.repeat(np.arange(len(column)), np.diff(ends))
    yield from zip(rows.tolist(), flat.field("key").to_pylist(), strict=True)
