"""JSON lines that are joined from parts equal the lines that `json` writes."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentlog.format.records.decoder import RECORDS_SCHEMA, parse_control
from segmentlog.format.records.header import BatchHeader, parse_header
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.aborted import ABORTED
from segmentlog.tools.dump import dump_paths
from segmentlog.tools.output import Encoding, as_text, to_json
from segmentlog.tools.records import (
    Place,
    RecordText,
    json_lines,
    sequence_after,
    timestamp_type,
)
from segmentlog.tools.sinks import JsonSink
from segmentlog.tools.walk import Selection

GOLDEN = Path(__file__).parents[2] / "golden"
PLACE = Place("to\u202epic", 2, "file")
HEADER = parse_header(encode_batch([Record(7, 1, b"k", b"v")]))

texts = st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass"))
some_bytes = st.none() | st.binary(max_size=12) | texts
headers = st.none() | st.lists(
    st.fixed_dictionaries(
        {"key": st.text(st.characters(exclude_categories=["Cs"]), max_size=5), "value": some_bytes}
    ),
    max_size=3,
)
longs = st.integers(-(2**63), 2**63 - 1)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "offset": st.integers(0, 2**62),
            "timestamp": longs,
            "key": some_bytes,
            "value": some_bytes,
            "headers": headers,
        }
    ),
    min_size=1,
    max_size=6,
)


def one_by_one(
    place: Place, header: BatchHeader, records: pa.RecordBatch, text: RecordText
) -> str:
    """The expected lines, each made of a dictionary."""
    lines = []
    for each in records.to_pylist():
        key, value = each["key"], each["value"]
        row = {
            "kind": "record",
            "topic": place.topic,
            "partition": place.partition,
            "offset": each["offset"],
            "timestampType": timestamp_type(header),
            "timestamp": each["timestamp"],
            "keySize": -1 if key is None else len(key),
            "valueSize": -1 if value is None else len(value),
            "sequence": sequence_after(header.base_sequence, each["offset"] - header.base_offset),
        }
        if header.is_control:
            control = parse_control(key, value)
            row |= {"controlType": control.type, "coordinatorEpoch": control.coordinator_epoch}
        else:
            row["key"], row["value"] = text.of(place)(key, value)
        row["headers"] = [
            {
                "key": as_text(header["key"]),
                "value": None if header["value"] is None else text.value(header["value"]),
            }
            for header in each["headers"] or ()
        ]
        if each.get(ABORTED):
            row["aborted"] = True
        lines.append(to_json(row) + "\n")
    return "".join(lines)


@settings(max_examples=300, deadline=None)
@given(rows, st.sampled_from(Encoding), st.sampled_from(Encoding), st.integers(-1, 2**31 - 1))
def test_lines_are_those_of_rows(
    found: list[dict], keys: Encoding, values: Encoding, base_sequence: int
) -> None:
    """The rows have nulls, bytes that are not text, and unprintable characters.

    Some are slices.
    """
    header = HEADER._replace(base_sequence=base_sequence)
    whole = pa.RecordBatch.from_pylist(found, schema=RECORDS_SCHEMA)
    for records in (whole, whole.slice(1), whole.slice(0, 1), whole.filter(_every_other(whole))):
        text = RecordText(keys, values)
        lines = "".join(json_lines(PLACE, header, records, text))

        assert one_by_one(PLACE, header, records, text) == lines


def _every_other(records: pa.RecordBatch) -> pa.Array:
    return pa.array([i % 2 == 0 for i in range(records.num_rows)])


def test_every_character_and_every_byte() -> None:
    """Each character is a value, and so is every pair of bytes that begins a sequence."""
    alone = [chr(code).encode("utf-8", "surrogatepass") for code in range(0x30000)]
    alone += [chr(code).encode() for code in range(0xE0000, 0xE0200)] + ["\U0010ffff".encode()]
    pairs = [
        bytes([a, b]) + tail
        for a in range(128, 256)
        for b in range(0, 256, 3)
        for tail in (b"", b"\x80", b"\x80\x80")
    ]
    values = [b"".join(alone), b"|".join(pairs), *pairs[::97], bytes(range(256))]
    found = [
        {"offset": i, "timestamp": 1, "key": None, "value": value, "headers": None}
        for i, value in enumerate(values)
    ]
    records = pa.RecordBatch.from_pylist(found, schema=RECORDS_SCHEMA)
    lines = "".join(json_lines(PLACE, HEADER, records, RecordText()))

    assert one_by_one(PLACE, HEADER, records, RecordText()) == lines
    assert all(line.isprintable() for line in lines.splitlines())
    assert len(values) == len([json.loads(line) for line in lines.splitlines()])


class RowSink(JsonSink):
    """A sink that makes each line of a dictionary."""

    def records(self, place: Place, header: BatchHeader, records: pa.RecordBatch) -> None:
        self._write(one_by_one(place, header, records, self._text))


@pytest.mark.parametrize("name", ["kafka-2.8.2", "kafka-3.9.2", "kafka-4.3.1"])
@pytest.mark.parametrize("encoding", Encoding)
def test_dumps_of_brokers_are_those_of_rows(name: str, encoding: Encoding) -> None:
    """The logs have all formats, tombstones, headers, control records and every codec."""
    dumps = []
    for kind in (JsonSink, RowSink):
        lines: list[str] = []
        sink = kind(lines.append, RecordText(encoding, encoding))
        dump_paths([str(GOLDEN / name)], sink, Selection(), with_records=True)
        dumps.append("".join(lines))

    assert dumps[0] == dumps[1]
    assert dumps[0].count('"kind": "record"') > 300
