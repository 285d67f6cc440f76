"""Fields of decoded keys and values: how many are null, how many are distinct, their ranges.

Each field has a sketch of its own, of a fixed size (`segmentlog.analysis.record_sketch`), so the
memory grows with the fields and not with the records.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.analysis.record_sketch import RecordSketch
from segmentlog.analysis.report import DecodedFigures, FieldFigures, no_subject
from segmentlog.decoding.plain_values import plain_values
from segmentlog.decoding.rows import OTHER_SUBJECT, Decoding, decoded_columns
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.format.kernels import sketches
from segmentlog.kafka_tables.open_table import table
from segmentlog.model import OffsetRange, OnCorruptBatch, OnUndecodable, ScanPolicy
from segmentlog.read_options import DecodeOptions
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory

_MOST_FIELDS = 100  #: of a column, each with a sketch of some hundred kilobytes
_MOST_CAUSES = 5  #: that are named
_MOST_COUNTED = 1_000  #: causes that are told apart: each value could have one of its own
_MOST_TEXT = 256  #: characters of a text that is shown

#: Kinds whose least and largest values mean little, and have bytes of records.
_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_fixed_size_binary)


class FieldScan:
    """Reads the fields of one topic after another, as an analysis asks for them.

    `options`: those of `DecodeOptions`.  `shows_values`: whether texts have ranges, too.  Raises
    `LogDirectoryError` if the directory has no schemas, and nothing names others.
    """

    def __init__(
        self, directory: LogDirectory, options: DecodeOptions, *, shows_values: bool
    ) -> None:
        self._directory, self._shows_values = directory, shows_values
        self._options: DecodeOptions = {**options, "on_undecodable": OnUndecodable.NULL}
        self._columns = decoded_columns(options["decode"])
        self._subjects: set[str] | None = None  # those of the directory, if schemas are there
        if options["decode_schemas"] is None:
            self._subjects = {*_schemas(directory)["subject"].to_pylist()}

    def of_topic(
        self, topic: str, logs: Iterable[tuple[Log, OffsetRange]]
    ) -> list[DecodedFigures]:
        """The figures of each decoded column, from these offsets of partitions.

        What cannot be read is left out: the scan of the bytes has reported it.
        """
        parts = [self._part(name, topic) for name in self._columns]
        scanned = [each for each in parts if isinstance(each, _Column)]
        needed = sorted({name for each in scanned for name in each.scanned})
        policy = ScanPolicy(on_corrupt_batch=OnCorruptBatch.SKIP)
        for log, offsets in logs if scanned else ():
            try:
                for batch in log.scan_offsets(offsets, needed, policy):
                    for each in scanned:
                        each.add(batch)
            except (SegmentLogError, OSError):
                continue
        return [each.figures() if isinstance(each, _Column) else each for each in parts]

    def _part(self, name: str, topic: str) -> "_Column | DecodedFigures":
        """A column to be read, or why it cannot be decoded."""
        if self._subjects is not None and f"{topic}-{name}" not in self._subjects:
            return _not_decoded(name, no_subject(topic, name))
        options: DecodeOptions = {**self._options, "decode": name}
        try:
            decoding = Decoding.of_read(options, [topic], partial(_schemas, self._directory))
        except OptionError as error:
            if error.option != "decode":
                raise
            return _not_decoded(name, error.accepted.removesuffix(OTHER_SUBJECT))
        assert decoding is not None  # noqa: S101 - a column is asked for
        return _Column(name, decoding, shows_values=self._shows_values)


def _not_decoded(name: str, reason: str) -> DecodedFigures:
    return DecodedFigures(name, reason, 0, 0, 0, (), (), 0)


def _schemas(directory: LogDirectory) -> pa.Table:
    newest = directory.refresh(log_ends=True)
    return table(newest.whole, "schemas", on_corrupt_batch=OnCorruptBatch.SKIP)


class _Column:
    """A decoded column of a topic.  `scanned`: the columns of records that it needs."""

    def __init__(self, name: str, decoding: Decoding, *, shows_values: bool) -> None:
        self._name, self._decoding, self._shows_values = name, decoding, shows_values
        self.scanned = decoding.scanned([name])
        self._n_records = self._n_null = self._n_undecodable = 0
        self._causes = Counter[str]()
        self._fields: dict[str, _OneField] = {}
        self._others: set[str] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the values of some records."""
        column, causes = self._decoding.each(batch)[self._name]
        self._n_records += len(column)
        self._n_null += batch.column(self._name).null_count
        self._n_undecodable += len(causes)
        for cause in causes.values():
            is_known = cause in self._causes or len(self._causes) < _MOST_COUNTED
            self._causes[cause if is_known else "other causes"] += 1
        for name, values in leaves(self._name, column.drop_null()):
            field = self._fields.get(name)
            if field is None:
                if len(self._fields) >= _MOST_FIELDS:
                    self._others.add(name)
                    continue
                shown = self._shows_values
                field = self._fields[name] = _OneField(name, values.type, shows_values=shown)
            field.add(values)

    def figures(self) -> DecodedFigures:
        """All of it."""
        causes = sorted(self._causes.items(), key=lambda each: (-each[1], each[0]))
        return DecodedFigures(
            self._name,
            "",
            self._n_records,
            self._n_null,
            self._n_undecodable,
            tuple(cause for cause, _ in causes[:_MOST_CAUSES]),
            tuple(each.figures() for each in self._fields.values()),
            len(self._others),
        )


class _OneField:
    """One field, whose values are neither records nor lists."""

    def __init__(self, name: str, kind: pa.DataType, *, shows_values: bool) -> None:
        self._name, self._kind = name, kind
        self._sketch = RecordSketch(0)
        is_text = any(each(kind) for each in _TEXTS)
        self._has_range = not pa.types.is_null(kind) and (shows_values or not is_text)
        self._range = pa.nulls(0, kind)

    def add(self, values: pa.Array) -> None:
        numbers = pa.nulls(len(values), pa.int64()).fill_null(0)
        batch = pa.RecordBatch.from_pydict(
            {
                "key": as_bytes(values),
                "value": pa.nulls(len(values), pa.binary()),
                "timestamp": numbers,
                "offset": numbers,
            }
        )
        self._sketch.add(batch, 0)
        if self._has_range:
            self._range = _range(pa.concat_arrays([self._range, values]))

    def figures(self) -> FieldFigures:
        sketch = self._sketch
        distinct, error = sketch.distinct
        ends = [_short(each) for each in plain_values(self._range)] or [None, None]
        return FieldFigures(
            name=self._name,
            type=str(self._kind),
            n_values=sketch[sketches.N_RECORDS],
            n_null=sketch[sketches.NULL_KEYS],
            distinct=distinct,
            distinct_error=error,
            least=ends[0],
            largest=ends[1],
            most_bytes=sketch[sketches.LARGEST_KEY],
        )


def _short(value: Any) -> Any:  # noqa: ANN401 - what JSON has
    return value[:_MOST_TEXT] if isinstance(value, str) else value


def leaves(name: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The fields of a column that are neither records nor lists, with their paths.

    A list is the number of its items, and then its items: ``len(items)``, and ``items[].sku``.
    """
    kind = column.type
    if pa.types.is_struct(kind):
        for field, values in zip(kind, column.flatten(), strict=True):
            yield from leaves(f"{name}.{field.name}", values)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        if pa.types.is_map(kind):
            entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
            column = column.cast(pa.list_(entry))
        yield f"len({name})", pc.list_value_length(column)
        yield from leaves(f"{name}[]", column.flatten())
    else:
        yield name, column


def as_bytes(values: pa.Array) -> pa.Array:
    """Values as bytes, which are equal if the values are."""
    kind, types = values.type, pa.types
    if types.is_null(kind) or any(each(kind) for each in _TEXTS):
        return values.cast(pa.binary())
    if types.is_boolean(kind):
        values, kind = values.cast(pa.int8()), pa.int8()
    return values.view(pa.binary(kind.bit_width // 8)).cast(pa.binary())


def _range(values: pa.Array) -> pa.Array:
    """The least and the largest value, or none if all are null."""
    kind = values.type
    if pa.types.is_duration(kind):  # Arrow compares no durations
        return _range(values.cast(pa.int64())).cast(kind)
    found: Any = pc.min_max(values)
    ends = [pa.repeat(found[end], 1) for end in ("min", "max")]
    return pa.concat_arrays(ends).drop_null()
