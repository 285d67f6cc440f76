"""Our own files in JSON: one object, with the number of its format."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from segmentlog.errors import CorruptCheckpointError
from segmentlog.store.readable import read_whole

REMEDY = "this version of segmentlog did not write the file; restore it, or ask for help with it"


def to_json(number: int, fields: Mapping[str, Any]) -> bytes:
    """Bytes of the file.  There is no indent: with one, `json` does not use its encoder in C."""
    return json.dumps({"format": number, **fields}, separators=(",", ":")).encode()


def read_json(path: str, numbers: Sequence[int]) -> dict[str, Any]:
    """The object in one of our own files, if the file has one of these formats."""
    return from_json(read_bytes(path), path, numbers)


def read_bytes(path: str) -> bytes:
    """Bytes of one of our own files, which `from_json` understands.

    Raises `CorruptCheckpointError` if it is not a plain file, or too large; `FileNotFoundError` if
    the file is missing.
    """
    return read_whole(path, lambda reason: CorruptCheckpointError(path, 1, reason, REMEDY))


def from_json(data: bytes, path: str, numbers: Sequence[int]) -> dict[str, Any]:
    """The object in the bytes of the file `path`, if it has one of these formats.

    Raises `CorruptCheckpointError` if it has not.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(path, 1, f"is not JSON: {error}", REMEDY) from None
    number = found.get("format") if isinstance(found, dict) else None
    if type(number) is not int or number not in numbers:  # in Python, `True` equals 1
        expected = " or ".join(map(str, sorted(numbers)))
        reason = f"expected format {expected}, found {str(found)[:80]!r}"
        raise CorruptCheckpointError(path, 1, reason, REMEDY)
    return cast("dict[str, Any]", found)


def check_types(found: Sequence[object], kinds: Sequence[type]) -> None:
    """Refuse a wrong type now; otherwise it would fail a commit after its decision."""
    if [type(each) for each in found] != list(kinds):
        expected = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"expected {expected}; found {str(found)[:80]!r}")
