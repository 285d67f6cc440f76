"""Numbers and text files as Java parses them: what a broker takes, and not what is meant."""

import re
from typing import NamedTuple

_NUMBER = re.compile(r"[+-]?[0-9]+")


def java_int(text: str) -> int | None:
    """``Integer.parseInt``: None if it would fail."""
    return _in_range(text, 1 << 31)


def java_long(text: str) -> int | None:
    """``Long.parseLong``: None if it would fail."""
    return _in_range(text, 1 << 63)


def _in_range(text: str, limit: int) -> int | None:
    if not _NUMBER.fullmatch(text) or len(text) > 64:
        return None
    number = int(text)
    return number if -limit <= number < limit else None


def java_lines(data: bytes) -> list[str]:
    """The lines of a file in UTF-8; raises `UnicodeDecodeError` as Java's reader fails."""
    lines = re.split(r"\r\n|\r|\n", data.decode())
    return lines[:-1] if not lines[-1] else lines


def java_words(line: str) -> list[str]:
    r"""``line.split("\\s+")``: blanks at the begin make an empty word, those at the end none."""
    words = re.split(r"[ \t\n\x0b\f\r]+", line)
    while words and not words[-1]:
        words.pop()
    return words


class CheckpointFault(NamedTuple):
    """Why Kafka's ``CheckpointFile`` does not take a file."""

    line: int
    reason: str
    #: a line has the right number of words, and one of them is no number, or the count is below 0:
    #: another exception, which brokers survive
    is_word: bool = False


def checkpoint_fault(data: bytes, n_words: int) -> CheckpointFault | None:
    """The first fault of a checkpoint whose lines have so many words, the last two numbers."""
    try:
        lines = java_lines(data)
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        return CheckpointFault(number, f"it is not UTF-8: byte {data[error.start]:#04x}")
    if not lines:
        return None
    if java_int(lines[0]) != 0:
        return CheckpointFault(1, f"expected version 0, found {lines[0][:80]!r}")
    if len(lines) < 2:
        return None
    count = java_int(lines[1])
    if count is None or count < 0:
        reason = f"expected the number of entries, found {lines[1][:80]!r}"
        return CheckpointFault(2, reason, is_word=count is not None)
    numbers = (java_int, java_long)
    for number, line in enumerate(lines[2:], start=3):
        words = java_words(line)
        if len(words) != n_words:
            expected = "topic partition offset" if n_words == 3 else "epoch offset"
            return CheckpointFault(number, f"expected {expected!r}, found {line[:80]!r}")
        if any(parse(word) is None for parse, word in zip(numbers, words[-2:], strict=True)):
            return CheckpointFault(number, f"a word is no number: {line[:80]!r}", is_word=True)
    if count != len(lines) - 2:
        reason = f"line 2 announces {count} entries, but the file has {len(lines) - 2}"
        return CheckpointFault(2, reason)
    return None
