"""Files as Java parses them; the outcomes are those of Kafka 4.3.1 (`tests/interop`)."""

import pytest
from damaged_starts import CHECKPOINTS

from segmentlog.log.checkpoint import parse_properties
from segmentlog.maintain.health.java import checkpoint_fault, java_int, java_long


@pytest.mark.parametrize(("data", "expected"), CHECKPOINTS.items())
def test_a_checkpoint_is_read_as_a_broker_reads_it(data: bytes, expected: str) -> None:
    """A word in place of a number is another error than a malformed line."""
    fault = checkpoint_fault(data, 3)
    assert expected == ("read" if fault is None else "survives" if fault.is_word else "fails")


def test_the_fault_names_the_line() -> None:
    """Of leader epochs, too."""
    fault = checkpoint_fault(b"0\n2\n0 0\n1 \xff\n", 2)
    assert fault is not None
    assert (4, "it is not UTF-8: byte 0xff") == (fault.line, fault.reason)
    assert checkpoint_fault(b"0\n1\n0 0\n", 2) is None


def test_numbers_have_the_range_of_their_type() -> None:
    """And no blanks."""
    assert [7, -7, 7, None, None, None, None] == [
        java_int(each) for each in ("7", "-7", "+7", "7 ", "", "2147483648", "0x7")
    ]
    assert [2**63 - 1, None] == [java_long(str(each)) for each in (2**63 - 1, 2**63)]


PROPERTIES = {
    b"a=1 \nb = 2\nc:3\nd 4\n": {"a": "1 ", "b": "2", "c": "3", "d": "4"},
    b"# a=1\n! b=2\n\n  c=3": {"c": "3"},
    b"a=1\\\n   2\nb=3\\\\\nc=4": {"a": "12", "b": "3\\", "c": "4"},
    b"a=\\u0041\\t\\x\r\nb=\r": {"a": "A\tx", "b": ""},
    b"a=\xb1\x85\x0bx": {"a": "\xb1\x85\x0bx"},
    b"a\\=b=c": {"a=b": "c"},
    b"a=1\\": {"a": "1"},
}


@pytest.mark.parametrize(("data", "expected"), PROPERTIES.items())
def test_properties_are_those_that_java_loads(data: bytes, expected: dict[str, str]) -> None:
    """Blanks at the end of a value stay, and a backslash continues a line."""
    assert expected == parse_properties(data)


def test_a_malformed_escape_is_an_error() -> None:
    """Java's, too."""
    with pytest.raises(ValueError, match="hexadecimal"):
        parse_properties(b"a=\\u12")
