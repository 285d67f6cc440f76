"""Our files in JSON are read, or refused with a reason."""

from pathlib import Path

import pytest

from segmentlog.errors import CorruptCheckpointError
from segmentlog.txn.state import check_types, read_json, to_json


def test_a_written_file_is_read(tmp_path: Path) -> None:
    """A file begins with the number of its format, which has to be one that the reader knows."""
    path = tmp_path / "segmentlog.state"
    path.write_bytes(to_json(2, {"token": "t", "sizes": [1, 2]}))

    assert b'{"format":2,"token":"t","sizes":[1,2]}' == path.read_bytes()
    assert {"format": 2, "token": "t", "sizes": [1, 2]} == read_json(str(path), [1, 2])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not JSON"),
        (b'{"format":1', "is not JSON"),
        (b"\xff\xfe\xfd", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", r"expected format 1 or 2, found '\[1\]'"),
        (b"{}", "expected format 1 or 2, found '{}'"),
        (b'{"format":3}', "expected format 1 or 2"),
        (b'{"format":true}', "expected format 1 or 2"),
        (b'{"format":1.0}', "expected format 1 or 2"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    """The message names the file, what was expected, and what to do."""
    path = tmp_path / "segmentlog.state"
    path.write_bytes(data)

    with pytest.raises(CorruptCheckpointError, match=reason) as caught:
        read_json(str(path), [2, 1])
    assert (str(path), 1) == (caught.value.path, caught.value.line)
    assert "this version of segmentlog did not write the file" in str(caught.value)


def test_values_are_of_their_types() -> None:
    """`True` is not accepted as an integer, although Python treats it as one."""
    check_types([1, "a"], [int, str])
    for wrong in ([True, "a"], [1, None], [1], [1, "a", 2]):
        with pytest.raises(TypeError, match="expected int, str; found"):
            check_types(wrong, [int, str])
