"""Rows whose keys or values become the columns of their schemas: ``segmentlog.decode``, and reads.

A `Decoding` goes to all who read parts of a read: it can be pickled.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from segmentlog.arguments import instance_of, one_dialect, one_of, refused, texts, whole_number
from segmentlog.decoding.decode import ColumnDecoder, Registered, as_it_is
from segmentlog.decoding.schema import OF_PACKAGE
from segmentlog.decoding.sources import is_schema_file, schemas_of
from segmentlog.errors import OptionError, UndecodableValueError
from segmentlog.format.records.columns import COLUMNS
from segmentlog.kafka_tables.open_table import table
from segmentlog.model import OnCorruptBatch, OnUndecodable, TopicPartition, ValueFrame
from segmentlog.read_options import DecodeOptions
from segmentlog.reads.log_directory import LogDirectory

logger = logging.getLogger(__name__)

_MOST_NAMED = 5  #: causes that a warning names
_MOST_COUNTED = 1_000  #: causes that are told apart: each value could have one of its own

#: The column of causes, if values that cannot be decoded are null.
CAUSE = "undecodable"

#: The end of the reason for which a topic has no schema of its own.
OTHER_SUBJECT = "; decode_subject names another"

_DECODED = ("key", "value")
_WORDS = "give 'key', 'value' or 'key,value'"


@one_dialect()
def decode(
    rows: Any,  # noqa: ANN401 - all that has Arrow's protocol of streams
    schemas: str | os.PathLike[str] | LogDirectory | pa.Table,
    subject: str | None = None,
    *,
    column: str = "value",
    version: int | None = None,
    frame: ValueFrame | str = ValueFrame.CONFLUENT,
    on_undecodable: OnUndecodable | str = OnUndecodable.FAIL,
) -> Any:  # noqa: ANN401 - as `rows` is
    """Rows whose keys or values are columns of their schemas, in Avro, JSON or protobuf.

    ::

        rows = segmentlog.read("/var/lib/kafka", "orders", include_headers=True)
        segmentlog.decode(rows, "/var/lib/kafka", "orders-value")

    All values are resolved to one schema of the subject by the rules of its format.  Avro's are:
    fields by their names and aliases, defaults, and promotions of numbers.  In protobuf, fields
    have numbers, and in JSON they have names.

    Parameters
    ----------
    rows : a ``pyarrow.Table``; or a stream, such as a dataset or a ``RecordBatchReader``.  With a
        column ``headers``, ids and GUIDs in headers count, too.
    schemas : the log directory that has the registry's topic ``_schemas``, or its table
        ``schemas``; or the address of a registry, ``https://user:password@host:port``; or a file,
        ``*.avsc``, ``*.proto`` or ``*.json``, whose schema all values have.  Deleted versions of a
        registry count: values name them.
    subject : the subject whose schema the result has; serializers name it ``TOPIC-value`` or
        ``TOPIC-key`` by default.  It can be left out if there is only one.
    column : ``value`` or ``key``.
    version : of the subject; by default the newest that is not deleted.
    frame : what names the schema of a value: ``confluent``, ``apicurio`` or ``glue`` for a frame
        that the serializers of that registry write, or ``none`` for values without one.
    on_undecodable : ``fail`` ends with the first value that cannot be decoded; ``null`` makes it
        null, and adds a column ``undecodable`` with the cause; ``skip`` leaves the row out, and
        logs how many were left out, and why.

    Returns
    -------
    pyarrow.Table or pyarrow.RecordBatchReader
        A table if `rows` is one; else a stream, which decodes while it is read.  The column has
        the type of the schema: a struct for a record.  A null stays null.

    Raises
    ------
    OptionError
        If the subject or the version is not there, the schema is not one of its format, Arrow has
        no type for it, a package of the extra ``schemas`` is missing, or a column.
    UndecodableValueError
        At a value that cannot be decoded: it has no id, the id has no schema or several, or its
        bytes do not have the form of the schema.

    Notes
    -----
    Bytes after the end of a value are left out, as the registry's deserializers do.  Messages
    of protobuf, flat records of Avro, and most objects of JSON are decoded as columns, and all
    others one by one.
    """
    on_undecodable = one_of("on_undecodable", on_undecodable, OnUndecodable)
    frame = one_of("frame", frame, ValueFrame)
    if column not in _DECODED:
        raise OptionError("column", str(column), "it is 'key' or 'value'")
    if version is not None:
        version = whole_number("version", version, 1)
    try:
        reader = pa.RecordBatchReader.from_stream(rows)
    except TypeError:
        raise refused("rows", rows, "give a table, or a stream of Arrow") from None
    registered = Registered(schemas_of(schemas, subject))
    decoder = ColumnDecoder(registered, column, subject, version, frame=frame)
    decoding = Decoding([decoder], on_undecodable)
    schema = decoding.schema_of(reader.schema)

    def batches() -> Iterator[pa.RecordBatch]:
        skipped = decoding.new_count()
        for batch in reader:
            yield decoding.decoded(batch, schema.names, skipped)
        skipped.warn()

    decoded = pa.RecordBatchReader.from_batches(schema, batches())
    return decoded.read_all() if isinstance(rows, pa.Table) else decoded


class Skipped:
    """Why rows are left out of a query, counted by all of its threads.

    `columns`: those that are decoded.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        # Threads that read slices count under the lock; the sum is read once they have ended.
        self._causes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, causes: Collection[str]) -> None:
        """Count the causes of rows."""
        with self._lock:
            for cause in causes:
                is_known = cause in self._causes or len(self._causes) < _MOST_COUNTED
                self._causes[cause if is_known else "other causes"] += 1

    def warn(self) -> None:
        """Log how many rows were left out, and why."""
        n = self._causes.total()
        if n:
            most = self._causes.most_common(_MOST_NAMED)
            logger.warning(
                "%d %s of which the %s cannot be decoded %s left out: %s",
                n,
                "row" if n == 1 else "rows",
                " or the ".join(self._columns),
                "is" if n == 1 else "are",
                "; ".join(f"{n}: {cause}" for cause, n in most),
            )


class Decoding:
    """Decodes the keys, the values, or both, of rows of a read."""

    def __init__(self, decoders: Sequence[ColumnDecoder], on_undecodable: OnUndecodable) -> None:
        self._decoders = {each.column: each for each in decoders}
        self._on_undecodable = on_undecodable

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are decoded: some of ``key`` and ``value``."""
        return tuple(self._decoders)

    @property
    def skips(self) -> bool:
        """Whether rows are left out, so that even their number needs their keys and values."""
        return self._on_undecodable == OnUndecodable.SKIP

    @property
    def made(self) -> frozenset[str]:
        """The columns that are not those of records."""
        return frozenset({*self._decoders, CAUSE})

    @property
    def has_cause(self) -> bool:
        """Whether there is a column of causes."""
        return self._on_undecodable == OnUndecodable.NULL

    def type_of(self, column: str) -> pa.DataType:
        """The type of a decoded column."""
        return self._decoders[column].type

    def new_count(self) -> Skipped:
        """What counts the rows that a query leaves out."""
        return Skipped(self.columns)

    @classmethod
    def of_read(
        cls,
        options: DecodeOptions,
        topics: Collection[str],
        look_up: Callable[[], pa.Table],
        fitted: Mapping[str, Callable[[pa.DataType], pa.DataType]] | None = None,
        searched: Collection[str] = (),
    ) -> "Decoding | None":
        """That of a read with checked options; None if nothing is to be decoded.

        `look_up`: finds the table ``schemas``; is pickled with what is returned.  `fitted`: as
        `ColumnDecoder` takes it, by column; None if types are taken as they are.  `searched`: the
        columns of which older versions may be taken, too.
        """
        asked = decoded_columns(options["decode"])
        subject, version = options["decode_subject"], options["decode_version"]
        source, frame = options["decode_schemas"], options["decode_frame"]
        if subject is not None:
            instance_of("decode_subject", subject, str, "give the name of a subject")
        if source is not None:
            words = "give a path, or the address of a registry"
            instance_of("decode_schemas", source, (str, os.PathLike), words)
        is_file = is_schema_file(source)
        for name, given, is_of_one in (
            ("decode_subject", subject, True),
            ("decode_version", version, True),
            ("decode_schemas", source, is_file),
            ("decode_frame", frame, False),
        ):
            if given is not None and not asked:
                raise OptionError(name, str(given), "it belongs to decode, which is not given")
            if given is not None and is_of_one and len(asked) > 1:
                accepted = "keys and values have schemas of their own: decode one of the two"
                raise OptionError(name, str(given), accepted)
        if not asked:
            return None
        if is_file and subject is None:
            subjects: dict[str, str | None] = dict.fromkeys(asked)
        else:
            subjects = {each: subject or _subject(each, topics) for each in asked}
        known: Registered | None = None
        decoders = []
        for name, found in subjects.items():
            look = look_up if source is None else partial(_schemas_from, source, found)
            if known is None or source is not None:
                known = Registered(look())
            try:
                decoders.append(
                    ColumnDecoder(
                        known,
                        name,
                        found,
                        version,
                        None if is_file else look,
                        as_it_is if fitted is None else fitted[name],
                        searches=name in searched,
                        frame=ValueFrame(frame or ValueFrame.CONFLUENT),
                    )
                )
            except OptionError as error:
                if error.option == OF_PACKAGE:
                    raise OptionError("decode", name, error.accepted) from None
                if error.option == "version":
                    raise OptionError("decode_version", error.value, error.accepted) from None
                if subject is not None:
                    raise OptionError("decode_subject", error.value, error.accepted) from None
                accepted = f"subject {found}: {error.accepted}{OTHER_SUBJECT}"
                if is_file:
                    raise OptionError("decode_schemas", str(source), error.accepted) from None
                raise OptionError("decode", name, accepted) from None
        return cls(decoders, OnUndecodable(options["on_undecodable"]))

    def with_all_rows(self) -> "Decoding":
        """The same, with null where it would leave out a row."""
        decoders = [*self._decoders.values()]
        return Decoding(decoders, OnUndecodable.NULL) if self.skips else self

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """The schema of rows that had `schema`."""
        for name, decoder in self._decoders.items():
            index = schema.get_field_index(name)
            if index < 0:
                raise refused("rows", schema.names, f"the column {name} is missing")
            kind = schema.field(index).type
            if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
                raise refused("rows", str(kind), f"the column {name} has bytes")
            schema = schema.set(index, pa.field(name, decoder.type))
        if self.has_cause:
            schema = schema.append(pa.field(CAUSE, pa.string()))
        return schema

    def scanned(self, wanted: Collection[str]) -> list[str]:
        """The columns of records that `decoded` needs, in their order."""
        needed = {*wanted} - {CAUSE}
        if read := self._needed(wanted):
            needed |= {*read, "offset"}
            if any(self._decoders[name].uses_headers for name in read):
                needed.add("headers")
        return [name for name in COLUMNS if name in needed]

    def _needed(self, wanted: Collection[str]) -> list[str]:
        """The columns to decode, if these are wanted."""
        if self.skips or CAUSE in wanted:
            return [*self._decoders]
        return [name for name in self._decoders if name in wanted]

    def each(self, batch: pa.RecordBatch) -> dict[str, tuple[pa.Array, dict[int, str]]]:
        """Each decoded column, and by rows, why a value of it is null and was not."""
        return {name: each.decoded(batch) for name, each in self._decoders.items()}

    def decoded(
        self,
        batch: pa.RecordBatch,
        wanted: Sequence[str],
        skipped: Skipped | None,
        topic_partition: TopicPartition | None = None,
    ) -> pa.RecordBatch:
        """The wanted columns of rows with at least the columns `scanned`.

        `topic_partition`: of the rows, if they do not have it.  Raises `UndecodableValueError`.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        needed, causes = self._needed(wanted), dict[int, str]()
        for name in needed:
            columns[name], found = self._decoders[name].decoded(batch)
            if found and self._on_undecodable == OnUndecodable.FAIL:
                raise _undecodable(batch, name, found, topic_partition)
            for row, cause in found.items():
                told = f"{name}: {cause}" if len(self._decoders) > 1 else cause
                causes[row] = f"{causes[row]}; {told}" if row in causes else told
        if CAUSE in wanted:
            columns[CAUSE] = pa.nulls(len(batch), pa.string())
            if causes:
                columns[CAUSE] = pa.array(map(causes.get, range(len(batch))), pa.string())
        new = {CAUSE: pa.string(), **{name: self._decoders[name].type for name in needed}}
        fields = [
            pa.field(name, new[name]) if name in new else batch.schema.field(name)
            for name in wanted
        ]
        made = pa.RecordBatch.from_arrays(
            [columns[name] for name in wanted], schema=pa.schema(fields, batch.schema.metadata)
        )
        if causes and self.skips:
            if skipped is not None:
                skipped.add(causes.values())
            keeps = np.ones(len(batch), bool)
            keeps[[*causes]] = False
            made = made.filter(pa.array(keeps))
        return made


def _schemas_from(source: str | os.PathLike[str], subject: str | None) -> pa.Table:
    """The table ``schemas`` of the option ``decode_schemas``."""
    try:
        return schemas_of(source, subject)
    except OptionError as error:
        raise OptionError("decode_schemas", error.value, error.accepted) from None


def look_up_schemas(
    opens: Callable[..., LogDirectory], paths: Sequence[str], on_corrupt_batch: OnCorruptBatch
) -> pa.Table:
    """The table ``schemas`` of log directories as they are now."""
    return table(opens(*paths).whole, "schemas", on_corrupt_batch=on_corrupt_batch)


def decoded_columns(given: object) -> list[str]:
    """The columns that the option ``decode`` names: one, several, or several with commas."""
    if given is None:
        return []
    named = [each.strip() for text in texts("decode", given, _WORDS) for each in text.split(",")]
    for each in named:
        if each not in _DECODED:
            raise OptionError("decode", each, _WORDS)
    return [name for name in _DECODED if name in named]


def _subject(column: str, topics: Collection[str]) -> str:
    """The subject that serializers give the keys or values of the only topic of a read."""
    if len(topics) == 1:
        return f"{next(iter(topics))}-{column}"
    shown = ", ".join(sorted(topics)[:_MOST_NAMED]) or "none"
    accepted = (
        f"a read has one schema, and its topics are {shown}: read one topic, or give "
        "decode_subject for all of them"
    )
    raise OptionError("decode", column, accepted)


def _undecodable(
    batch: pa.RecordBatch,
    column: str,
    causes: Mapping[int, str],
    topic_partition: TopicPartition | None,
) -> UndecodableValueError:
    row = min(causes)
    place: list[Any] = [
        batch.column(name)[row].as_py() if name in batch.schema.names else unknown
        for name, unknown in (("topic", "?"), ("partition", -1), ("offset", row))
    ]
    topic, partition = topic_partition or place[:2]
    offset = place[2]
    return UndecodableValueError(topic, partition, offset, column, causes[row])
