"""Rows of a dump: one for each batch, record or index entry, under Kafka's names for the fields.

The names are those of Kafka's own dump tool, in its order.  A value that Kafka's tool prints as
one word (``OptionalLong.empty``) is null here.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from segmentlog.format.kernels import layout
from segmentlog.format.messages.as_json import KAFKAS_TOPICS, record_as_json
from segmentlog.format.records.header import BatchHeader
from segmentlog.model import METADATA_TOPIC, Codec, TimestampType
from segmentlog.tools.selection import last_offset
from segmentlog.tools.text import Encoding, as_text, encoder
from segmentlog.tools.walk import Found

Row = dict[str, object]

#: Texts of a key and a value.
TextOfRecord: TypeAlias = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]

_MOST_SEQUENCE = 2**31 - 1  #: the next sequence is 0

#: The columns of a table of batches; a row of `batch_row` has the same names.
BATCH_SCHEMA: pa.Schema = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("file", pa.string()),
        ("baseOffset", pa.int64()),
        ("lastOffset", pa.int64()),
        ("count", pa.int32()),
        ("baseSequence", pa.int32()),
        ("lastSequence", pa.int32()),
        ("producerId", pa.int64()),
        ("producerEpoch", pa.int16()),
        ("partitionLeaderEpoch", pa.int32()),
        ("isTransactional", pa.bool_()),
        ("isControl", pa.bool_()),
        ("deleteHorizonMs", pa.int64()),
        ("position", pa.int64()),
        ("timestampType", pa.string()),
        ("baseTimestamp", pa.int64()),
        ("maxTimestamp", pa.int64()),
        ("size", pa.int64()),
        ("magic", pa.int8()),
        ("codec", pa.string()),
        ("attributes", pa.int16()),
        ("crc", pa.uint32()),
        ("isValid", pa.bool_()),
        ("problem", pa.string()),
    ]
)

_TIMESTAMP_TYPES = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


class Place(NamedTuple):
    """The partition of a file, and its path."""

    topic: str
    partition: int
    file: str


def codec_name(codec: int) -> str:
    """Kafka's name of a codec; the number itself if Kafka has no name."""
    return Codec(codec).name.lower() if codec in set(Codec) else str(codec)


def timestamp_type(header: BatchHeader) -> str:
    """Kafka's name of a batch's timestamp type."""
    kind = header.timestamp_type if header.magic > 0 else TimestampType.NO_TIMESTAMP_TYPE
    return _TIMESTAMP_TYPES[kind]


def sequence_after(base_sequence: int, delta: int) -> int:
    """Sequence of the record `delta` after the first; the largest number is followed by 0."""
    if base_sequence < 0:
        return -1
    return (base_sequence + delta) % (_MOST_SEQUENCE + 1)


def batch_row(place: Place, found: Found) -> Row:
    """One batch, or a place without a batch, which has few fields."""
    row: Row = dict.fromkeys(BATCH_SCHEMA.names)
    row |= place._asdict()
    header = found.header
    if header is not None:
        row |= (
            _legacy_fields(header) if header.magic < layout.FIRST_BATCH_MAGIC else _fields(header)
        )
        row["timestampType"] = timestamp_type(header)
        row["maxTimestamp"] = header.max_timestamp
        row["codec"] = codec_name(header.codec)
        row["magic"], row["attributes"] = header.magic, header.attributes
        row["crc"] = header.crc
    row["position"], row["problem"] = found.position, found.problem or None
    row["size"] = found.n_bytes if header is None else header.size_in_bytes
    row["isValid"] = not found.problem
    return row


def _fields(header: BatchHeader) -> Row:
    """The fields that only magic 2 has."""
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.records_count,
        "baseSequence": header.base_sequence,
        "lastSequence": sequence_after(header.base_sequence, header.last_offset_delta),
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.delete_horizon_ms,
        "baseTimestamp": header.base_timestamp,
    }


def _legacy_fields(header: BatchHeader) -> Row:
    """A message of magic 0 or 1; its first offset depends on its compressed content."""
    is_alone = header.codec == 0
    return {
        "baseOffset": header.base_offset if is_alone else None,
        "lastOffset": last_offset(header),
        "count": 1 if is_alone else None,
    }


class RecordText:
    """Keys and values as text; values of headers are written as values.

    Kafka's own records are decoded, unless bytes are wanted.

    `keys`, `values`: the encodings; the attributes `key` and `value` apply them.  `as_topic`: the
    topic whose records they are; by default their own.
    """

    def __init__(
        self,
        keys: Encoding = Encoding.TEXT,
        values: Encoding = Encoding.TEXT,
        as_topic: str | None = None,
    ) -> None:
        self.key, self.value = encoder(keys), encoder(values)
        self._decodes = keys is values is Encoding.TEXT
        self._as_topic = as_topic

    def of(self, place: Place) -> TextOfRecord:
        """The function from keys and values to texts, for records of a place."""
        # A snapshot of the metadata may lie anywhere.
        is_snapshot = place.file.endswith(".checkpoint")
        topic = self._as_topic or (METADATA_TOPIC if is_snapshot else place.topic)
        if not self._decodes or topic not in KAFKAS_TOPICS:
            return self._text
        return lambda key, value: self._decoded(topic, key, value)

    def _text(self, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
        return (
            None if key is None else self.key(key),
            None if value is None else self.value(value),
        )

    def _decoded(
        self, topic: str, key: bytes | None, value: bytes | None
    ) -> tuple[str | None, str | None]:
        """Key and value of a record of Kafka's own; as they are if they are not one."""
        as_key, as_value = record_as_json(topic, key, value) or (None, None)
        plain_key, plain_value = self._text(key, value)
        return as_key or plain_key, as_value or plain_value


def record_rows(
    place: Place, header: BatchHeader, records: pa.RecordBatch, text: RecordText
) -> Iterator[Row]:
    """A row for each record of one batch; control records have their meaning, not their bytes."""
    kind, text_of = timestamp_type(header), text.of(place)
    for record in records.to_pylist():
        key, value = record["key"], record["value"]
        row: Row = {
            "topic": place.topic,
            "partition": place.partition,
            "offset": record["offset"],
            "timestampType": kind,
            "timestamp": record["timestamp"],
            "keySize": -1 if key is None else len(key),
            "valueSize": -1 if value is None else len(value),
            "sequence": sequence_after(
                header.base_sequence, record["offset"] - header.base_offset
            ),
        }
        if header.is_control:
            row |= _control_fields(key, value)
        else:
            row["key"], row["value"] = text_of(key, value)
        row["headers"] = [
            {
                "key": as_text(each["key"]),
                "value": None if each["value"] is None else text.value(each["value"]),
            }
            for each in record["headers"] or ()
        ]
        yield row


def _control_fields(key: bytes | None, value: bytes | None) -> Row:
    from segmentlog.format.records.one_batch import parse_control  # the compiled kernels load here

    control = parse_control(key, value)
    return {"controlType": control.type, "coordinatorEpoch": control.coordinator_epoch}
