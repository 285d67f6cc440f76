"""Records of partitions, read past damage; and each as a line of JSON, and as a line to read.

Control records have their meaning, and not their bytes.  Kafka's own records are decoded.  `cat`
alone has other forms, those of kcat: see `message_format`.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from segmentlog.errors import CorruptLogError, StorageError, UnsupportedFormatError
from segmentlog.format.messages.records import KAFKAS_TOPICS, record_as_json
from segmentlog.format.records.header import BatchHeader
from segmentlog.model import (
    METADATA_TOPIC,
    LogSlice,
    OffsetRange,
    OnCorruptBatch,
    ReadUpTo,
    ScanPolicy,
    TimestampType,
)
from segmentlog.reads.log import Log, find_offset
from segmentlog.times import iso_time
from segmentlog.tools.aborted import ABORTED
from segmentlog.tools.decoded import CAUSE_OF, json_by_column
from segmentlog.tools.failures import Failed
from segmentlog.tools.output import (
    Encoding,
    as_text,
    encoder,
    escape,
    escape_in_quotes,
    escape_json,
    to_json,
)

if TYPE_CHECKING:
    from segmentlog.decoding.rows import Decoding
    from segmentlog.format.records.decoder import ControlRecord

_T = TypeVar("_T")
_Pairs: TypeAlias = Sequence[tuple[str, str | None]] | None

#: A value as JSON, and why it could not be decoded; by the names of columns.
_DecodedValue: TypeAlias = tuple[bytes | None, str | None]
_Decoded: TypeAlias = Mapping[str, _DecodedValue]

#: Texts of a key and a value.
TextOfRecord: TypeAlias = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_ABORTED_JSON, _ABORTED_TEXT = ', "aborted": true', "(aborted)"
_MOST_SEQUENCE = 2**31 - 1  #: the next sequence is 0

_TIMESTAMP_TYPES = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


def cut(log: Log, offsets: OffsetRange, *, is_last: bool = True) -> list[LogSlice]:
    """The slices of a range of offsets, small enough for threads to read side by side."""
    from segmentlog.reads.ordered_reads import cut_for_threads

    if offsets.start_offset >= offsets.end_offset:
        return []
    return cut_for_threads(log.slices, offsets, is_last=is_last)


def note_damage(log: Log, since_ms: int | None, failed: Failed) -> None:
    """Note a log in which damage may hold the first record at or after a time.

    A look-up that skips damage begins at the next record, and a read from there meets no damage.
    """
    try:
        if since_ms is not None:
            find_offset(log, since_ms, ReadUpTo.LOG_END)
    except CorruptLogError:  # the look-up that skips it warns
        failed.add(log.topic_partition)


def scan(
    log_slice: LogSlice, columns: Sequence[str], policy: ScanPolicy, failed: Failed
) -> Iterator[pa.RecordBatch]:
    """Rows of a slice; what cannot be read is left out, and named.

    A read that skips damage checks each batch twice, so it begins at the first damaged batch.

    `columns`: names of columns, with ``offset`` among them.  `failed`: gets the partition if
    something is left out.
    """
    from segmentlog.reads.scan import cut_around, scan_slice  # the compiled kernels load here

    while log_slice.files:
        next_offset = log_slice.start_offset
        try:
            for rows in scan_slice(log_slice, columns=columns, policy=policy):
                if rows.num_rows:
                    next_offset = rows.column("offset")[-1].as_py() + 1
                yield rows
            return
        except CorruptLogError:
            if policy.on_corrupt_batch is OnCorruptBatch.SKIP:
                raise
            failed.add(log_slice.topic_partition)
            policy = policy._replace(on_corrupt_batch=OnCorruptBatch.SKIP)
        except (UnsupportedFormatError, StorageError) as error:
            _, log_slice = cut_around(log_slice, error)
            failed.add(log_slice.topic_partition, f"{error}; the read goes on after it")
        log_slice = log_slice._replace(start_offset=max(next_offset, log_slice.start_offset))


class Place(NamedTuple):
    """The partition of a file, and its path."""

    topic: str
    partition: int
    file: str


class RecordText:
    """Keys and values as text; values of headers are written as values.

    Kafka's own records are decoded, unless bytes are wanted.

    `keys`, `values`: the encodings; the attributes `key` and `value` apply them.  `as_topic`: the
    topic whose records they are; by default their own.  `decoding`: of keys or values, which are
    JSON then.
    """

    def __init__(
        self,
        keys: Encoding = Encoding.TEXT,
        values: Encoding = Encoding.TEXT,
        as_topic: str | None = None,
        decoding: "Decoding | None" = None,
    ) -> None:
        self.key, self.value = encoder(keys), encoder(values)
        self.decoding = decoding
        self._decodes = keys is values is Encoding.TEXT
        self._as_topic = as_topic

    def of(self, place: Place) -> TextOfRecord:
        """The function from keys and values to texts, for records of a place."""
        # A snapshot of the metadata may lie anywhere.
        is_snapshot = place.file.endswith(".checkpoint")
        topic = self._as_topic or (METADATA_TOPIC if is_snapshot else place.topic)
        if not self._decodes or topic not in KAFKAS_TOPICS:
            return self._text

        def decoded(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
            as_key, as_value = record_as_json(topic, key, value) or (None, None)
            plain_key, plain_value = self._text(key, value)
            return as_key or plain_key, as_value or plain_value

        return decoded

    def decoded(self, header: BatchHeader, records: pa.RecordBatch) -> Iterator[_Decoded]:
        """Of each record of a batch, JSON and causes by the names of decoded columns."""
        if self.decoding is None or header.is_control:
            return itertools.repeat({}, records.num_rows)
        found = json_by_column(records, self.decoding)
        return (
            {name: (texts[row], causes[row]) for name, (texts, causes) in found.items()}
            for row in range(records.num_rows)
        )

    def _text(self, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
        return (
            None if key is None else self.key(key),
            None if value is None else self.value(value),
        )


#: Offset, timestamp, sizes of key and value, sequence, their texts or the control record, headers.
#: A size is -1 for null.  It is a plain tuple, which takes half the time of one with names.
_Shown: TypeAlias = tuple[
    int, int, int, int, int, str | None, str | None, "ControlRecord | None", _Pairs
]


def _shown(
    place: Place, header: BatchHeader, records: pa.RecordBatch, text: RecordText
) -> Iterator[_Shown]:
    from segmentlog.format.records.decoder import parse_control  # the compiled kernels load here

    text_of, base_offset, base_sequence = text.of(place), header.base_offset, header.base_sequence
    is_control, sequence, control = header.is_control, -1, None
    as_key: str | None
    as_value: str | None
    columns = (records.column(name).to_pylist() for name in _COLUMNS)
    for offset, timestamp, key, value, headers in zip(*columns, strict=True):
        if is_control:
            control, as_key, as_value = parse_control(key, value), None, None
        else:
            as_key, as_value = text_of(key, value)
        if base_sequence >= 0:
            sequence = sequence_after(base_sequence, offset - base_offset)
        key_size = -1 if key is None else len(key)
        value_size = -1 if value is None else len(value)
        pairs = headers and [
            (as_text(name), None if given is None else text.value(given))
            for name, given in map(dict.values, headers)
        ]
        yield offset, timestamp, key_size, value_size, sequence, as_key, as_value, control, pairs


def timestamp_type(header: BatchHeader) -> str:
    """Kafka's name of a batch's timestamp type."""
    kind = header.timestamp_type if header.magic > 0 else TimestampType.NO_TIMESTAMP_TYPE
    return _TIMESTAMP_TYPES[kind]


def sequence_after(base_sequence: int, delta: int) -> int:
    """Sequence of the record `delta` after the first; the largest number is followed by 0."""
    return -1 if base_sequence < 0 else (base_sequence + delta) % (_MOST_SEQUENCE + 1)


def json_lines(
    place: Place, header: BatchHeader, records: pa.RecordBatch, text: RecordText
) -> Iterator[str]:
    """A line of JSON for each record of one batch, with the names that Kafka's dump tool has.

    A line is joined from its parts, and `json` quotes the texts.  A dictionary for each record and
    `to_json` take three times as long for usual records of 110 bytes.
    """
    begin = to_json({"kind": "record", "topic": place.topic, "partition": place.partition})[:-1]
    kind = timestamp_type(header)
    shown = _shown(place, header, records, text)
    for (
        offset,
        timestamp,
        key_size,
        value_size,
        sequence,
        key,
        value,
        control,
        headers,
    ), is_aborted, decoded in zip(
        shown, _marks(records), text.decoded(header, records), strict=True
    ):
        if decoded:
            fields = ", ".join(
                _json_field(name, given, decoded.get(name))
                for name, given in (("key", key), ("value", value))
            )
        elif control is None:
            fields = f'"key": {_json(key)}, "value": {_json(value)}'
        else:
            epoch = "null" if control.coordinator_epoch is None else control.coordinator_epoch
            fields = f'"controlType": {_json(control.type)}, "coordinatorEpoch": {epoch}'
        line = (
            f'{begin}, "offset": {offset}, "timestampType": "{kind}", "timestamp": {timestamp}, '
            f'"keySize": {key_size}, "valueSize": {value_size}, "sequence": {sequence}, {fields}, '
            f'"headers": {_json_headers(headers) if headers else "[]"}'
            f"{_ABORTED_JSON * is_aborted}}}"
        )
        yield escape_json(line) + "\n"


def text_lines(
    place: Place, header: BatchHeader, records: pa.RecordBatch, text: RecordText
) -> Iterator[str]:
    """A line for each record of one batch, further to the right than the line of the batch."""
    found = _shown(place, header, records, text)
    for (
        offset,
        timestamp,
        _,
        _,
        sequence,
        key,
        value,
        control,
        headers,
    ), is_aborted, decoded in zip(
        found, _marks(records), text.decoded(header, records), strict=True
    ):
        shown = [f"{'':>10} | {offset:>8}", iso_time(timestamp)]
        if sequence != -1:
            shown.append(f"sequence={sequence}")
        if control is None:
            as_key, as_value = (
                given if name not in decoded or decoded[name][1] else _as_text(decoded[name][0])
                for name, given in (("key", key), ("value", value))
            )
            shown += _texts(as_key, as_value, _in_quotes)
            causes = {name: cause for name, (_, cause) in decoded.items()}
            shown += _undecodable_texts(causes)
        else:
            shown.append(f"control={control.type}")
            if control.coordinator_epoch is not None:
                shown.append(f"coordinatorEpoch={control.coordinator_epoch}")
        shown += [*_header_texts(headers, _in_quotes), *[_ABORTED_TEXT] * is_aborted]
        yield " ".join(shown) + "\n"


def _marks(records: pa.RecordBatch) -> Sequence[bool]:
    """Whether each record belongs to an aborted transaction."""
    if ABORTED not in records.schema.names:
        return [False] * records.num_rows
    marks: Sequence[bool] = records.column(ABORTED).to_pylist()
    return marks


def row_as_json(row: Mapping[str, Any]) -> str:
    """A row of a scan, with headers if it has the column; timestamps are milliseconds."""
    names = ("topic", "partition", "offset", "timestamp")
    line = to_json({name: row[name] for name in names})[:-1]
    for name in ("key", "value"):
        text, is_decoded = _as_text(row[name]), CAUSE_OF[name] in row
        cause = row.get(CAUSE_OF[name])
        line += f', "{name}": {_json_or_decoded(text, cause, is_decoded=is_decoded)}'
        line += _undecodable_json(name, cause)
    if "headers" in row:
        line += f', "headers": {_json_headers(_pairs(row, _as_text))}'
    if row.get(ABORTED):
        line += _ABORTED_JSON
    return escape_json(f"{line}}}")


def row_as_text(row: Mapping[str, Any], place: str, in_quotes: Callable[[Any], str]) -> str:
    """``orders-0:58 2025-10-10T08:54:18.000Z key='order-58' value='…'``.

    `place`: its partition and its offset.  `in_quotes`: makes texts of bytes.
    """
    texts = _texts(row["key"], row["value"], in_quotes)
    headers = _header_texts(_pairs(row, lambda data: data), in_quotes)
    marks = [_ABORTED_TEXT] if row.get(ABORTED) else []
    marks += _undecodable_texts({name: row.get(each) for name, each in CAUSE_OF.items()})
    return " ".join([place, iso_time(row["timestamp"]), *texts, *headers, *marks])


def _pairs(row: Mapping[str, Any], text: Callable[[bytes], _T]) -> list[tuple[_T, _T]]:
    return [(text(each["key"]), text(each["value"])) for each in row.get("headers") or ()]


def _json_or_decoded(text: str | None, cause: str | None, *, is_decoded: bool) -> str:
    """A text in quotes; what is decoded is JSON already."""
    return text or "null" if is_decoded and cause is None else _json(text)


def _json_field(name: str, given: str | None, decoded: _DecodedValue | None) -> str:
    if decoded is None:
        return f'"{name}": {_json(given)}'
    as_json, cause = decoded
    text = given if cause is not None else _as_text(as_json)
    shown = _json_or_decoded(text, cause, is_decoded=True)
    return f'"{name}": {shown}{_undecodable_json(name, cause)}'


def _undecodable_json(name: str, cause: str | None) -> str:
    return "" if cause is None else f', "{name}Undecodable": {_json(cause)}'


def _undecodable_texts(causes: Mapping[str, str | None]) -> list[str]:
    """A mark for each column that could not be decoded."""
    return [
        f"(undecodable {name}: {escape(cause)})"
        for name, cause in causes.items()
        if cause is not None
    ]


def _json(text: str | None) -> str:
    return "null" if text is None else encode_basestring(text)


def _json_headers(headers: Sequence[tuple[str | None, str | None]]) -> str:
    pairs = (f'{{"key": {_json(key)}, "value": {_json(value)}}}' for key, value in headers)
    return f"[{', '.join(pairs)}]"


def _texts(key: _T, value: _T, in_quotes: Callable[[_T], str]) -> tuple[str, str]:
    return f"key={in_quotes(key)}", f"value={in_quotes(value)}"


def _header_texts(
    headers: Sequence[tuple[_T, _T]] | None, in_quotes: Callable[[_T], str]
) -> list[str]:
    pairs = (f"{in_quotes(name)}={in_quotes(value)}" for name, value in headers or ())
    return [f"headers={{{', '.join(pairs)}}}"] if headers else []


def _as_text(data: bytes | None) -> str | None:
    return None if data is None else as_text(data)


def _in_quotes(text: str | None) -> str:
    """Text that cannot be mistaken for something else."""
    return "null" if text is None else f"'{escape_in_quotes(text)}'"
