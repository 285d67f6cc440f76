"""Records and rows by checksums over some of their columns: is a row that of its offset's record.

A checksum has 64 bits, and is made column by column, without an object for a value.  Columns of a
table that mean the same as those of a record give the same checksum: text is its bytes in UTF-8,
and a time is its number of microseconds since 1970, whatever its unit.  A time without a zone is
in UTC, as Parquet's and Iceberg's are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from segmentlog.arguments import texts
from segmentlog.audits.spill import SpillFile
from segmentlog.errors import ColumnError, OptionError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.value_hashes import hash_values

_Words = NDArray[np.uint64]

#: Rows that are sorted together: 24 MiB, and in memory before they go to the temporary file.
_MOST_COLLECTED = 1 << 20
_MOST_IN_MEMORY = 1 << 22

_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)
_HALF = np.uint64(32)
_NULL = np.uint64(0xA076_1D64_78BD_642F)
_PER_SECOND = {"s": 1_000_000, "ms": 1000, "us": 1}
_NS_OF_US = 1000

_is = pa.types


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        _is.is_binary(kind)
        or _is.is_large_binary(kind)
        or _is.is_fixed_size_binary(kind)
        or _is.is_string(kind)
        or _is.is_large_string(kind)
        or _is.is_string_view(kind)
        or _is.is_binary_view(kind)
    )


def _is_time(kind: pa.DataType) -> bool:
    return bool(_is.is_timestamp(kind) or _is.is_integer(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if not (_is.is_list(kind) or _is.is_large_list(kind)) or not _is.is_struct(kind.value_type):
        return False
    types = {each.name: each.type for each in kind.value_type}
    return {"key", "value"} <= {*types} and _is_bytes(types["key"]) and _is_bytes(types["value"])


#: The columns that can be compared: what has their types, and these types in words.
COMPARED: Mapping[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "timestamp": (_is_time, "a timestamp, or milliseconds since 1970"),
    "timestampType": (_is.is_integer, "a whole number"),
    "key": (_is_bytes, "bytes or text"),
    "value": (_is_bytes, "bytes or text"),
    "headers": (_is_headers, "a list of structs with key and value"),
}


def compared_columns(given: str | Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Columns of records, and of each the name in the table: empty for the same, if it is there.

    Raises `OptionError` if there is no such column.
    """
    accepted = (
        f"columns are {', '.join(COMPARED)}; key=record_key names the table's column for the key"
    )
    found: dict[str, str] = {}
    for text in texts("columns", given.split(",") if isinstance(given, str) else given, accepted):
        name, mark, place = text.strip().partition("=")
        known = {each.lower().replace("_", ""): each for each in COMPARED}
        column = known.get(name.strip().lower().replace("_", ""))
        if column is None or column in found or (mark and not place.strip()):
            raise OptionError("columns", text, accepted)
        found[column] = place.strip()
    return tuple(found.items())


def check_type(column: str, shown: str, kind: pa.DataType, file: str) -> None:
    """Refuse a column of a table that cannot be compared with that of records.

    Raises `ColumnError`.
    """
    fits, accepted = COMPARED[column]
    if not (fits(kind) or _is.is_null(kind)):
        accepted = f"to compare it with {column}, give {accepted}"
        raise ColumnError(shown, str(kind), f"{accepted} (in {file})" if file else accepted)


def sums_of(columns: Sequence[tuple[str, pa.Array]], n_rows: int) -> Int64s:
    """The checksum of each row over columns, by their names in records; in this order."""
    sums: _Words = np.zeros(n_rows, np.uint64)
    for name, column in columns:
        sums = _mixed(sums, _hashes(name, column))
    return sums.view(np.int64)


def _mixed(words: _Words, others: _Words) -> _Words:
    """Two words of each row as one, which depends on their order."""
    mixed = (words ^ others) * _MULTIPLIER
    mixed ^= mixed >> _HALF
    mixed = (mixed + others) * _MULTIPLIER
    return mixed ^ (mixed >> _HALF)


def _hashes(name: str, column: pa.Array) -> _Words:
    if _is.is_null(column.type):
        of_null = np.uint64(0) if name == "headers" else _NULL
        return np.full(len(column), of_null, np.uint64)
    if name == "headers":
        return _of_headers(column)
    if name in ("key", "value"):
        return _of_bytes(column)
    numbers = _microseconds(column) if name == "timestamp" else _int64s(column)
    hashes = _mixed(numbers.view(np.uint64), np.zeros(len(column), np.uint64))
    return _with_nulls(hashes, column)


def _with_nulls(hashes: _Words, column: pa.Array) -> _Words:
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _int64s(column: pa.Array) -> Int64s:
    """Whole numbers, with any number for a null."""
    if _is.is_uint64(column.type):
        column = column.view(pa.int64())  # numbers that do not fit are no record's anyway
    filled = column.cast(pa.int64()).fill_null(0)
    return np.array(filled.to_numpy(), np.int64)


def _microseconds(column: pa.Array) -> Int64s:
    kind = column.type
    if _is.is_integer(kind):  # milliseconds, as a record has them
        return _int64s(column) * 1000
    numbers = _int64s(column.view(pa.int64()))
    if kind.unit != "ns":
        return numbers * _PER_SECOND[kind.unit]
    # A record has no nanoseconds: a time that has is that of none.
    is_whole = numbers % _NS_OF_US == 0
    return np.where(is_whole, numbers // _NS_OF_US, np.iinfo(np.int64).min + 1 + numbers % 1000)


def _of_bytes(column: pa.Array) -> _Words:
    if _is.is_string_view(column.type) or _is.is_string(column.type):
        column = column.cast(pa.large_string())
    column = column.cast(pa.large_binary())
    hashes = np.empty(len(column), np.int64)
    if not len(column):
        return hashes.view(np.uint64)
    _, ends, data = column.buffers()
    ends = np.frombuffer(ends, np.int64)[column.offset : column.offset + len(column) + 1]
    # Not every library makes the bytes of a column without bytes.
    found = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    if ends[0] < 0 or ends[-1] > len(found) or (ends[1:] < ends[:-1]).any():
        raise pa.ArrowInvalid("the ends of its values are not in order")
    hash_values(found, np.ascontiguousarray(ends), hashes)
    return _with_nulls(hashes.view(np.uint64), column)


def _of_headers(column: pa.Array) -> _Words:
    """Of lists of headers in their order; a record without headers has none, or an empty list."""
    lengths = pc.list_value_length(column).fill_null(0)
    ends = np.append(0, np.cumsum(lengths.to_numpy()))
    entries = column.flatten()
    n_entries = len(entries)
    places = np.arange(n_entries) - np.repeat(ends[:-1], np.diff(ends))
    hashes: _Words = places.astype(np.uint64)
    for name in ("key", "value"):
        hashes = _mixed(hashes, _of_bytes(pc.struct_field(entries, name)))
    totals = np.append(np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64))
    found: _Words = totals[ends[1:]] - totals[ends[:-1]]
    return found


class _SumRun(NamedTuple):
    """Rows of several partitions, sorted by partition and offset."""

    codes: Int64s  # the partitions
    begins: Int64s  # of each, and the end of the last one
    offsets: Int64s
    sums: Int64s

    def within(self, code: int, begin: int, end: int) -> tuple[Int64s, Int64s]:
        """The rows of a partition with offsets in ``[begin, end)``."""
        i = int(self.codes.searchsorted(code))
        if i == len(self.codes) or self.codes[i] != code:
            return self.offsets[:0], self.sums[:0]
        low, high = self.begins[i : i + 2].tolist()
        offsets = self.offsets[low:high]
        low, high = low + int(offsets.searchsorted(begin)), low + int(offsets.searchsorted(end))
        return self.offsets[low:high], self.sums[low:high]


class RowSums:
    """The checksums of all rows by partition and offset, in bounded memory.

    First `add` is called for all of them, then `finish`, and then `within`.
    """

    def __init__(self, spill: SpillFile) -> None:
        self._spill = spill
        self._collected: list[tuple[Int64s, Int64s, Int64s]] = []
        self._n_collected = 0
        self._runs: list[_SumRun] = []
        self._n_in_memory = 0

    def add(self, codes: Int64s, offsets: Int64s, sums: Int64s) -> None:
        """Take rows; `codes`: the caller's numbers of their partitions."""
        if len(codes):
            self._collected.append((codes, offsets, sums))
            self._n_collected += len(codes)
        if self._n_collected >= _MOST_COLLECTED:
            self._sort()

    def _sort(self) -> None:
        if not self._collected:
            return
        codes, offsets, sums = map(np.concatenate, zip(*self._collected, strict=True))
        self._collected, self._n_collected = [], 0
        order = np.lexsort((offsets, codes))
        codes = codes[order]
        begins = np.append(0, np.flatnonzero(np.diff(codes)) + 1)
        run = _SumRun(
            codes[begins],
            np.append(begins, len(codes)).astype(np.int64),
            offsets[order],
            sums[order],
        )
        self._n_in_memory += len(codes)
        if self._n_in_memory > _MOST_IN_MEMORY:
            self._n_in_memory -= len(codes)
            places = [self._spill.write(each) for each in run]
            run = _SumRun(
                *(self._spill.mapped(at, len(each)) for at, each in zip(places, run, strict=True))
            )
        self._runs.append(run)

    def finish(self) -> None:
        """All rows were added."""
        self._sort()

    def within(self, code: int, begin: int, end: int) -> tuple[Int64s, Int64s]:
        """Offsets and checksums of the rows of a partition in ``[begin, end)``, in any order."""
        found = [each.within(code, begin, end) for each in self._runs]
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        offsets, sums = map(np.concatenate, zip(*found, strict=True))
        return offsets, sums


def rows_that_differ(
    batches: Iterator[pa.RecordBatch], names: Sequence[str], code: int, rows: RowSums
) -> Iterator[tuple[int, Int64s]]:
    """Compare the records of a log with the rows of the same offsets.

    `batches`: records in the order of their offsets, with the columns ``offset`` and `names`.
    Yields for each batch the number of its offsets that have rows, and the offset of each row that
    differs, sorted.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        offsets = batch.column("offset").to_numpy()
        of_rows, found = rows.within(code, int(offsets[0]), int(offsets[-1]) + 1)
        if not len(of_rows):
            continue
        sums = sums_of([(name, batch.column(name)) for name in names], batch.num_rows)
        at = np.minimum(offsets.searchsorted(of_rows), len(offsets) - 1)
        is_there = offsets[at] == of_rows
        is_other = is_there & (sums[at] != found)
        yield len(np.unique(of_rows[is_there])), np.sort(of_rows[is_other])


class SumsByCode:
    """Rows with their checksums by partition, on their way to other processes."""

    def __init__(self) -> None:
        self._held: defaultdict[int, list[tuple[Int64s, Int64s]]] = defaultdict(list)
        self.n_rows = 0

    def add(self, codes: Int64s, offsets: Int64s, sums: Int64s) -> None:
        """Take rows."""
        self.n_rows += len(codes)
        for code in np.unique(codes).tolist():
            is_its = codes == code
            self._held[code].append((offsets[is_its], sums[is_its]))

    def take(self) -> Iterator[tuple[int, Int64s, Int64s]]:
        """All rows so far, once: partition, offsets and checksums."""
        held, self._held, self.n_rows = self._held, defaultdict(list), 0
        for code, parts in held.items():
            offsets, sums = map(np.concatenate, zip(*parts, strict=True))
            yield code, offsets, sums
