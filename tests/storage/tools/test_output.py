"""Text from a log is safe to print, and shows every byte of the log."""

import json
import sys
import unicodedata

import pytest

from segmentlog.times import iso_time
from segmentlog.tools.output import Encoding, encoder, escape, time_cell, to_json

HOSTILE = {
    "an ANSI sequence": "\x1b[2J\x1b]0;title\x07",
    "line breaks": "a\r\nb\x0b\x0c\x85\u2028\u2029",
    "C1": "\x9b31m\x90\x9d",
    "DEL": "\x7f",
    "NUL": "\0",
    "bidirectional controls": "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f",
    "invisible": "\u200b\u2060\ufeff\U000e0041",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_nothing_but_printable_characters_is_left(text: str) -> None:
    """Text and JSON output have only printable characters, whatever a key contains."""
    row = {"key": text}

    assert escape(text).isprintable()
    assert to_json(row).isprintable()
    assert row == json.loads(to_json(row))


def test_every_control_and_format_character_is_escaped() -> None:
    """Every control, format, surrogate and separator character of Unicode is escaped."""
    bad = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    kept = [
        code
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in bad and escape(chr(code)) == chr(code)
    ]

    assert [] == kept


def test_all_other_characters_stay() -> None:
    """Text and JSON keep printable characters of Unicode, and JSON is lossless.

    Beyond the first plane, whole blocks are alike: every seventh character is tried.
    """
    rest = range(0x10000, sys.maxunicode + 1, 7)
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10000), *rest]))
    printable = {char for char in text if char.isprintable()}
    line = to_json({"key": text})

    assert line.isprintable()
    assert printable <= set(line)
    assert printable <= set(escape(text))
    assert text == json.loads(line)["key"]


@pytest.mark.parametrize("text", ["", "order-1", "заказ", "注文", "é", '{"a": "b"}', "🚚"])
def test_printable_text_stays_as_it_is(text: str) -> None:
    """Letters of any script are not escaped."""
    assert text == escape(text)
    assert text == json.loads(to_json({"key": text}))["key"]
    assert json.dumps(text, ensure_ascii=False) in to_json({"key": text})


def test_escapes_differ_from_text_that_looks_like_them() -> None:
    """A byte that is not text, a control character and a backslash have different escapes."""
    as_text = encoder(Encoding.TEXT)
    forms = [escape(as_text(data)) for data in (b"\x85", b"\\x85", "\x85".encode(), b"\x1b")]

    assert ["\\x85", "\\\\x85", "\\u0085", "\\x1b"] == forms


def test_bytes_that_are_no_text_are_readable_json() -> None:
    """JSON has no bytes, so they are written as escapes in a valid line."""
    line = to_json({"key": encoder(Encoding.TEXT)(b"a\xff\xfe")})

    assert {"key": "a\\xff\\xfe"} == json.loads(line)


def test_hex_and_base64_keep_every_byte() -> None:
    """These encodings are for bytes that are not text."""
    data = bytes(range(256))

    assert data == bytes.fromhex(encoder(Encoding.HEX)(data))
    assert "AAEC" == encoder(Encoding.BASE64)(b"\0\1\2")


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (-1, "none"),
        (-2, "1969-12-31T23:59:59.998Z"),
        (2**62, str(2**62)),
        (-(2**63), str(-(2**63))),
    ],
)
def test_times_outside_the_calendar_are_numbers(timestamp_ms: int, text: str) -> None:
    """A producer may write nanoseconds instead of milliseconds, which must not end a dump."""
    assert text == iso_time(timestamp_ms)


def test_a_time_in_a_table_is_whole_seconds_or_the_number_itself() -> None:
    """A number without a calendar date keeps all of its digits."""
    assert "2023-11-14T22:13:20Z" == time_cell(1_700_000_000_999)
    assert str(2**63 - 1) == time_cell(2**63 - 1)
    assert "-" == time_cell(None)
