"""Lines made of columns equal lines made record by record, by the rules of kcat."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentlog.errors import OptionError
from segmentlog.format.records.columns import record_schema
from segmentlog.model import TopicPartition
from segmentlog.tools.message_format import JsonFormat, TextFormat, unescaped

AT = TopicPartition("orders", 2)
SCHEMA = record_schema(include_headers=True, in_milliseconds=True, header_names_as_bytes=True)

some_bytes = (
    st.none() | st.binary(max_size=8) | st.sampled_from([b"", b'{"a":1}', b"\\\n\x01\xff"])
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": some_bytes,
            "value": some_bytes,
            "offset": st.integers(0, 2**62),
            "timestamp": st.integers(-(2**63), 2**63 - 1),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries(
                    {
                        "key": st.sampled_from([b"", b"a\0", "é".encode(), b"\xff"]),
                        "value": some_bytes,
                    }
                ),
                max_size=3,
            ),
        }
    ),
    min_size=1,
    max_size=5,
)


def batch_of(found: list[dict], kind: int = 0) -> pa.RecordBatch:
    """The rows as a scan returns them."""
    filled = [
        each | {"topic": AT.topic, "partition": AT.partition, "timestampType": kind}
        for each in found
    ]
    return pa.RecordBatch.from_pylist(filled, schema=SCHEMA)


def plain_text(row: dict, *, shows_null: bool) -> bytes:
    """A line with every token."""
    key, value = row["key"], row["value"]
    null = b"NULL" if shows_null else b""
    headers = b",".join(
        each["key"]
        + b"="
        + (b"NULL" if each["value"] is None else each["value"].partition(b"\0")[0])
        for each in row["headers"] or ()
    )
    lengths = [-1 if each is None else len(each) for each in (key, value)]
    return b"orders [2] %d %d %s/%d %s/%d %s %s%%\n" % (
        row["offset"],
        row["timestamp"],
        key or null,
        lengths[0],
        value or null,
        lengths[1],
        headers,
        lengths[1].to_bytes(4, "big", signed=True),
    )


def quoted(data: bytes | None) -> bytes:
    """A JSON text by the rules of yajl, or null."""
    if data is None:
        return b"null"
    named = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
    return b'"%s"' % b"".join(
        named.get(code, b"\\u%04X" % code if code < 32 else bytes([code])) for code in data
    )


def plain_json(row: dict, kind: str) -> bytes:
    """An object with every field."""
    headers = b",".join(
        quoted(each["key"]) + b"," + quoted(each["value"]) for each in row["headers"] or ()
    )
    return (
        b'{"topic":"orders","partition":2,"offset":%d,' % row["offset"]
        + (b'"tstype":"%s","ts":%d,' % (kind.encode(), row["timestamp"]) if kind else b"")
        + b'"broker":7,'
        + (b'"headers":[%s],' % headers if row["headers"] else b"")
        + b'"key":%s,"payload":%s}\n' % (quoted(row["key"]), quoted(row["value"]))
    )


@settings(max_examples=200, deadline=None)
@given(rows, st.booleans())
def test_text_is_that_of_single_records(found: list[dict], shows_null: bool) -> None:
    """The rows have nulls, empty values, control bytes and headers; some are slices."""
    lines = TextFormat.parse(r"%t [%p] %o %T %k/%K %s/%S %h %R%%\n", shows_null=shows_null)
    expected = [plain_text(row, shows_null=shows_null) for row in found]

    assert b"".join(expected) == bytes(lines.render(batch_of(found), AT))
    assert b"".join(expected[1:]) == bytes(lines.render(batch_of(found).slice(1), AT))


@settings(max_examples=200, deadline=None)
@given(rows, st.sampled_from([(0, "create"), (1, "logappend"), (-1, "")]))
def test_json_is_that_of_single_records(found: list[dict], kind: tuple[int, str]) -> None:
    """Bytes that are not UTF-8 stay as they are, as kcat writes them."""
    objects = JsonFormat(b"\n", 7)
    expected = [plain_json(row, kind[1]) for row in found]

    assert b"".join(expected) == bytes(objects.render(batch_of(found, kind[0]), AT))
    assert b"".join(expected[1:]) == bytes(objects.render(batch_of(found, kind[0]).slice(1), AT))


def test_json_of_text_can_be_parsed() -> None:
    """Each control character and quotation mark is read back."""
    value = "".join(map(chr, range(128))).encode() + "é\u2028".encode()
    row = {"key": b"k", "value": value, "offset": 1, "timestamp": 5, "headers": None}
    line = bytes(JsonFormat(b"\n", -1).render(batch_of([row]), AT))

    assert value.decode() == json.loads(line)["payload"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\n\t\r", b"\n\t\r"),
        (r"\x1f|\x41g", b"\x1f|Ag"),
        (r"\0x41", b"A"),
        (r"\0X4", b"\x04"),
        (r"\0", b"\0"),
        (r"\65", b"A"),
        (r"\0101", b"A"),
        (r"\08", b"\x008"),
        (r"\q\\", b"q\\"),
        ("é", "é".encode()),
        ("\\", b"\\"),
    ],
)
def test_escapes_are_those_of_kcat(text: str, expected: bytes) -> None:
    """Numbers are hexadecimal, octal or decimal, as for C's strtoul."""
    assert expected == unescaped(text)


@pytest.mark.parametrize("text", ["%", "%q", "%s %"])
def test_unknown_tokens_are_refused(text: str) -> None:
    """The error lists the tokens."""
    with pytest.raises(OptionError, match="%R"):
        TextFormat.parse(text, shows_null=False)


def test_a_format_without_tokens_is_written_for_each_record() -> None:
    """The text needs no column, and is there once for each row."""
    row = {"key": None, "value": None, "offset": 1, "timestamp": 5, "headers": None}

    assert b"x\nx\n" == bytes(
        TextFormat.parse(r"x\n", shows_null=False).render(batch_of([row, row]), AT)
    )


def test_columns_are_those_that_the_tokens_need() -> None:
    """A scan for keys does not decode values and headers."""
    assert ["key", "offset"] == TextFormat.parse("%t %k", shows_null=False).columns
    assert ["headers", "key", "offset", "timestamp", "value"] == TextFormat.parse(
        "%h%K%R%T", shows_null=False
    ).columns
