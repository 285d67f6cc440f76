"""The rows of a table by the columns that name records: these columns, and their values.

The columns are found in each file of a table, by names that may be those of nested columns.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segmentlog.arguments import instance_of
from segmentlog.audits.record_sums import check_type, sums_of
from segmentlog.errors import ColumnError, OptionError
from segmentlog.format.kernels.memory import Int64s
from segmentlog.model import TopicPartition

_MOST_IN_TABLE = 1 << 20  # partitions: 8 MiB
_MOST_UNKNOWN = 1000  # partitions that the log lacks and whose rows are counted
_MOST_OTHERS = 5  # topics of rows that are named

#: A column: its name, and those of the fields inside it.
Place: TypeAlias = tuple[str, ...]


class Columns(NamedTuple):
    """The columns that name the record of a row; `topic` is None if there is no such column.

    `compared`: columns that are compared with those of records, after their names there.
    """

    partition: Place
    offset: Place
    topic: Place | None
    compared: tuple[tuple[str, Place], ...] = ()

    @property
    def places(self) -> list[Place]:
        """The columns, each once."""
        named = [self.partition, self.offset, *filter(None, [self.topic])]
        return [*dict.fromkeys([*named, *(place for _, place in self.compared)])]


class ColumnNames(NamedTuple):
    """The names of these columns, as the user gives them.

    `topic`: None for a column ``topic``, if there is one; empty if there is no such column.
    `compared`: columns of records, and the names of those of the table; an empty name is that of
    the record's column, if the table has it.
    """

    partition: str
    offset: str
    topic: str | None
    compared: tuple[tuple[str, str], ...] = ()

    @classmethod
    def checked(
        cls, partition: str, offset: str, topic: str | None, compared: tuple[tuple[str, str], ...]
    ) -> "ColumnNames":
        """The names.

        Raises `OptionError` if one of them is no text.
        """
        given = {"partition_column": partition, "offset_column": offset, "topic_column": topic}
        for option, name in given.items():
            if not (name is None and option == "topic_column"):
                instance_of(option, name, str, "give the name of a column")
        return cls(partition, offset, topic, compared)

    def settled(self, columns: Columns) -> "ColumnNames":
        """The names with which all files of a table are read, after the columns of the first."""
        compared = tuple((name, shown(place)) for name, place in columns.compared)
        return self._replace(compared=compared)

    def of(self, schema: pa.Schema, n_topics: int, file: str = "") -> Columns:
        """The columns of a table, or of a file of it.

        `n_topics`: of the log that is audited.  Raises `ColumnError` if a column is missing, or
        has a type that is no number, or that cannot be compared.
        """
        partition = _find(schema, "partition_column", self.partition, file)
        offset = _find(schema, "offset_column", self.offset, file)
        for place in (partition, offset):
            kind = _type_at(schema, place)
            if not (_is_whole(kind) or _is_text(kind) or pa.types.is_null(kind)):
                raise ColumnError(
                    shown(place), str(kind), _where("give a column of whole numbers", file)
                )
        topic = self._topic(schema, offset, file)
        if topic is None and n_topics > 1:
            accepted = (
                f"{n_topics} topics are audited: name the column with topic_column, or one topic; "
                f"the table has {_listed(schema)}"
            )
            raise ColumnError("topic", "missing", _where(accepted, file))
        return Columns(partition, offset, topic, tuple(self._compared(schema, offset, file)))

    def _compared(
        self, schema: pa.Schema, offset: Place, file: str
    ) -> Iterator[tuple[str, Place]]:
        found = 0
        for column, name in self.compared:
            # As of a topic: beside a nested offset first.
            around = [] if name else [*dict.fromkeys((offset[:-1], ()))]
            there = [each for each in around if _alike(schema, (*each, column))]
            if not name and not there:
                continue
            given = name or shown((*there[0], column))
            place = _find(schema, "columns", given, file)
            check_type(column, shown(place), _type_at(schema, place), file)
            found += 1
            yield column, place
        if self.compared and not found:
            names = ", ".join(name for name, _ in self.compared)
            accepted = (
                f"the table has none of them, but {_listed(schema)}: give NAME=COLUMN, such as "
                "key=record_key"
            )
            raise ColumnError(names, "missing", _where(accepted, file))

    def _topic(self, schema: pa.Schema, offset: Place, file: str) -> Place | None:
        if self.topic == "":
            return None
        if self.topic is not None:
            place = _find(schema, "topic_column", self.topic, file)
        else:
            # Beside a nested offset first: a table may have topics of its own, too.
            places = [(*around, "topic") for around in dict.fromkeys((offset[:-1], ()))]
            there = [each for each in places if _alike(schema, each)]
            if not there:
                return None
            place = _find(schema, "topic_column", shown(there[0]), file)
        kind = _type_at(schema, place)
        if not (_is_text(kind) or pa.types.is_null(kind) or _is_bytes(kind)):
            accepted = "give a column with names of topics"
            if self.topic is None:
                accepted += f": {_OTHER_TOPICS}"
            raise ColumnError(shown(place), str(kind), _where(accepted, file))
        return place


_OTHER_TOPICS = (
    "name it with topic_column (--topic-column), or give an empty name if all rows are of the "
    "topic that is audited"
)


def shown(place: Place) -> str:
    """A column as it is written."""
    return ".".join(place)


def _where(accepted: str, file: str) -> str:
    return f"{accepted} (in {file})" if file else accepted


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type without the encoding by a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_whole(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_integer(kind) or is_.is_decimal(kind) or is_.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_binary_view(kind))


def _listed(schema: pa.Schema) -> str:
    names = []
    for field in schema:
        if pa.types.is_struct(field.type):
            names += [f"{field.name}.{inner.name}" for inner in field.type]
        else:
            names.append(field.name)
    return ", ".join(map(repr, names)) or "no columns"


def _fields(schema: pa.Schema | pa.DataType) -> list[pa.Field]:
    is_nested = isinstance(schema, pa.Schema) or pa.types.is_struct(schema)
    return [*schema] if is_nested else []


def _type_at(schema: pa.Schema, place: Place) -> pa.DataType:
    """The type of a column that is there."""
    kind: pa.Schema | pa.DataType = schema
    for name in place:
        (kind,) = (each.type for each in _fields(kind) if each.name == name)
    return _plain(kind)


def _alike(schema: pa.Schema | pa.DataType, place: Place) -> list[Place]:
    """The columns of a name: those in the same capitals, or else in others, as SQL finds them."""
    head, *inside = place
    fields = _fields(schema)
    names = [each for each in fields if each.name == head]
    names = names or [each for each in fields if each.name.lower() == head.lower()]
    if not inside:
        return [(each.name,) for each in names]
    return [(each.name, *rest) for each in names for rest in _alike(each.type, tuple(inside))]


def _find(schema: pa.Schema, option: str, name: str, file: str) -> Place:
    """The column of a name, which may be that of a field inside of another column."""
    parts = name.split(".")
    found: list[Place] = []
    for at in range(len(parts), 0, -1):  # a name of a column may have dots itself
        found = found or _alike(schema, (".".join(parts[:at]), *parts[at:]))
    if len(found) == 1:
        return found[0]
    value = "missing" if not found else "present more than once"
    flag = f"--{option.replace('_', '-')}"
    accepted = f"the table has {_listed(schema)}: name it with {option} ({flag})"
    raise ColumnError(name, value, _where(accepted, file))


class RowCounts:
    """What was found in a table beside the offsets of the partitions that are audited."""

    def __init__(self) -> None:
        self.n_rows = 0
        self.n_of_other_topics = 0
        self.n_without_offset = 0  # a null in one of the columns
        self.of_unknown_partitions: dict[TopicPartition, int] = {}
        self.has_known_topic = False  # whether a row is of a topic that the log has
        self.others: dict[str, None] = {}  # some names of topics that it lacks

    def add_unknown(self, unknown: Iterable[tuple[TopicPartition, int]]) -> None:
        """Count rows of partitions that the log lacks, up to `_MOST_UNKNOWN` partitions."""
        found = self.of_unknown_partitions
        for each, n_rows in unknown:
            if each in found or len(found) < _MOST_UNKNOWN:
                found[each] = found.get(each, 0) + n_rows

    def add_others(self, names: Iterable[str]) -> None:
        """Note names of topics that the log lacks, up to `_MOST_OTHERS`."""
        for name in names:
            if len(self.others) < _MOST_OTHERS:
                self.others[name] = None

    def check_topics(self, names: ColumnNames) -> None:
        """Refuse a column ``topic``, which nobody has named, that has no topic of the log.

        Raises `OptionError`.
        """
        if names.topic is None and self.others and not self.has_known_topic:
            listed = ", ".join(map(repr, self.others))
            accepted = f"this column has no topic of the log, but {listed}: {_OTHER_TOPICS}"
            raise OptionError("topic_column", "topic", accepted)

    def add(self, other: "RowCounts") -> None:
        """Count the rows of another part of the table, too."""
        self.n_rows += other.n_rows
        self.n_of_other_topics += other.n_of_other_topics
        self.n_without_offset += other.n_without_offset
        self.has_known_topic |= other.has_known_topic
        self.add_others(other.others)
        self.add_unknown(other.of_unknown_partitions.items())


class TakesOffsets(Protocol):
    """Where the offsets of rows go: `TableOffsets`, or an `OffsetCollector`."""

    def add(self, codes: Int64s, offsets: Int64s) -> None:
        """Take rows, by the numbers of their partitions; there may be none."""


class TakesSums(Protocol):
    """Where the checksums of rows go: `RowSums`, or `SumsByCode`."""

    def add(self, codes: Int64s, offsets: Int64s, sums: Int64s) -> None:
        """Take rows, by the numbers of their partitions; there may be none."""


class RowCollector:
    """Gives the offsets of rows to `to`, by the numbers of their partitions, and counts the rest.

    `codes`: numbers of the partitions that are audited.  `others`: partitions that the log has,
    and that are not audited; their rows are not counted.  `topics`: all that the log has.  `sums`:
    gets the checksums of rows, if columns are compared.
    """

    def __init__(
        self,
        codes: Mapping[TopicPartition, int],
        others: Collection[TopicPartition],
        topics: Collection[str],
        to: TakesOffsets,
        sums: TakesSums | None = None,
    ) -> None:
        self._to, self._topics, self._sums = to, topics, sums
        audited = dict.fromkeys(each.topic for each in codes)
        self._known = {topic: _Lookup(topic, codes, others) for topic in audited}
        self.counts = RowCounts()

    def add(self, batch: pa.RecordBatch, columns: Columns) -> None:
        """Take rows.

        Raises `ColumnError` if a value is no whole number.
        """
        counts = self.counts
        counts.n_rows += batch.num_rows
        if not batch.num_rows:
            return
        places = [columns.partition, columns.offset, *filter(None, [columns.topic])]
        given = [_decoded(column_at(batch, place)) for place in places]
        sums = self._sums_of(batch, columns)
        if any(each.null_count for each in given):
            is_whole = pc.is_valid(given[0])
            for each in given[1:]:
                is_whole = pc.and_(is_whole, pc.is_valid(each))
            if columns.topic is not None:
                self._leave_out(given[2].filter(pc.invert(is_whole)))
            else:
                counts.n_without_offset += batch.num_rows - is_whole.true_count
            given = [each.filter(is_whole) for each in given]
            if sums is not None:
                sums = sums[is_whole.to_numpy(zero_copy_only=False)]
        partitions = _numbers(shown(columns.partition), given[0])
        offsets = _numbers(shown(columns.offset), given[1])
        if columns.topic is None:
            for lookup in self._known.values():  # of the only topic
                self._add(lookup, partitions, offsets, sums)
            return
        names = _names(shown(columns.topic), given[2]).dictionary_encode()
        which = names.indices.to_numpy()
        for i, topic in enumerate(names.dictionary.to_pylist()):
            is_its = which == i
            if topic not in self._known:
                self._count_other(topic, int(is_its.sum()))
            elif len(names.dictionary) == 1:
                self._add(self._known[topic], partitions, offsets, sums)
            else:
                its = None if sums is None else sums[is_its]
                self._add(self._known[topic], partitions[is_its], offsets[is_its], its)

    def _sums_of(self, batch: pa.RecordBatch, columns: Columns) -> Int64s | None:
        if self._sums is None or not columns.compared:
            return None
        given = [(name, _decoded(column_at(batch, place))) for name, place in columns.compared]
        return sums_of(given, batch.num_rows)

    def _leave_out(self, topics: pa.Array) -> None:
        """Count rows that lack one of the columns, unless they are of another topic."""
        for each in pc.value_counts(topics).to_pylist():
            topic = each["values"]
            topic = topic.decode(errors="replace") if isinstance(topic, bytes) else topic
            if topic is None or topic in self._known:
                self.counts.n_without_offset += each["counts"]
            else:
                self._count_other(topic, each["counts"])

    def _count_other(self, topic: str, n_rows: int) -> None:
        self.counts.n_of_other_topics += n_rows
        if topic in self._topics:
            self.counts.has_known_topic = True
        else:
            self.counts.add_others([topic])

    def _add(
        self, lookup: "_Lookup", partitions: Int64s, offsets: Int64s, sums: Int64s | None
    ) -> None:
        """Add rows of one topic."""
        self.counts.has_known_topic = True
        if not len(partitions):
            return
        codes = lookup.of(partitions)
        if codes.min() < 0:
            self._count_unknown(lookup.topic, partitions[codes == lookup.UNKNOWN])
            is_audited = codes >= 0
            codes, offsets = codes[is_audited], offsets[is_audited]
            sums = None if sums is None else sums[is_audited]
        self._to.add(codes, offsets)
        if self._sums is not None and sums is not None:
            self._sums.add(codes, offsets, sums)

    def _count_unknown(self, topic: str, partitions: Int64s) -> None:
        values, numbers = np.unique(partitions, return_counts=True)
        self.counts.add_unknown(
            (TopicPartition(topic, partition), n_rows)
            for partition, n_rows in zip(values.tolist(), numbers.tolist(), strict=True)
        )


class _Lookup:
    """The numbers of the partitions of a topic."""

    UNKNOWN, OTHER = -1, -2

    def __init__(
        self, topic: str, codes: Mapping[TopicPartition, int], others: Collection[TopicPartition]
    ) -> None:
        self.topic = topic
        of_topic = {each.partition: code for each, code in codes.items() if each.topic == topic}
        of_topic |= {each.partition: self.OTHER for each in others if each.topic == topic}
        self._known: Int64s = np.array(sorted(of_topic), np.int64)
        self._codes: Int64s = np.array([of_topic[each] for each in sorted(of_topic)], np.int64)
        # Rows are looked up in a table, unless a directory has the name of a partition that no
        # topic has.
        is_small = self._known < _MOST_IN_TABLE
        size = int(self._known[is_small].max(initial=0)) + 1
        self._table: Int64s = np.full(size, self.UNKNOWN, np.int64)
        self._table[self._known[is_small]] = self._codes[is_small]

    def of(self, partitions: Int64s) -> Int64s:
        """The number of each, or what it is instead."""
        if partitions.min() >= 0 and partitions.max() < len(self._table):
            return self._table[partitions]
        at = np.minimum(self._known.searchsorted(partitions), len(self._known) - 1)
        return np.where(self._known[at] == partitions, self._codes[at], self.UNKNOWN)


def column_at(batch: pa.RecordBatch, place: Place) -> pa.Array:
    """A column of a batch; null where a column around it is null."""
    column = batch.column(batch.schema.names.index(place[0]))
    return pc.struct_field(column, [*place[1:]]) if len(place) > 1 else column


def _decoded(column: pa.Array) -> pa.Array:
    """A column without a dictionary, whose values may be nulls, too, and without views."""
    # Arrow has no kernels that take or count views.
    if pa.types.is_dictionary(column.type):
        values = _without_views(column.dictionary)
        return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    return _without_views(column)


def _without_views(column: pa.Array) -> pa.Array:
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary_view(column.type) else column


def _numbers(name: str, column: pa.Array) -> Int64s:
    """A column without nulls as int64.

    Raises `ColumnError` for a value that is no whole number of 64 bits.
    """
    if pa.types.is_decimal32(column.type):  # of which Arrow makes whole numbers by a detour alone
        column = column.cast(pa.decimal64(18, column.type.scale))
    try:
        numbers: Int64s = column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        accepted = f"its values must be whole numbers of 64 bits ({in_a_line(error)})"
        raise ColumnError(name, str(column.type), accepted) from error
    return numbers


def _names(name: str, column: pa.Array) -> pa.Array:
    """A column without nulls as text.

    Raises `ColumnError` for bytes that are none.
    """
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        accepted = f"its values must be names of topics ({in_a_line(error)})"
        raise ColumnError(name, str(column.type), accepted) from error


def in_a_line(error: BaseException) -> str:
    """The message of an error of another library."""
    if isinstance(error, FileNotFoundError):  # pyarrow's has nothing but the path
        return "there is no such file or directory"
    return " ".join(str(error).split())[:300] or type(error).__name__
