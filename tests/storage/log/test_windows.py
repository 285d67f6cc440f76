"""Windows over a file: every batch comes once and whole, wherever the windows begin and end."""

from pathlib import Path

import pytest

from segmentlog.errors import (
    ChecksumMismatchError,
    CorruptLogError,
    MalformedBatchError,
    TruncatedBatchError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.records.decoder import BatchScanner
from segmentlog.log.windows import BatchWindows
from segmentlog.store.readable import open_file
from segmentlog.testing.reference import Record, encode_batch

SIZES = [10, 900, 20, 3000, 5, 5, 64]
BATCHES = [
    encode_batch([Record(offset, 0, None, bytes(size))]) for offset, size in enumerate(SIZES)
]
DATA = b"".join(BATCHES)


def found(
    path: Path, window_bytes: int, end: int = len(DATA), most_read: int = 1 << 20
) -> tuple[list[int], bytes, CorruptLogError | None]:
    """Base offsets and bytes of the batches of a file, and the error after them."""
    offsets: list[int] = []
    data = b""
    with open_file(str(path)) as file:

        def read_into(buffer: memoryview, position: int) -> int:
            return file.read_into(buffer[:most_read], position)

        windows = BatchWindows(window_bytes)
        try:
            for batches in windows.batches(read_into, BatchScanner(str(path), 0), 0, end):
                assert len(data) == batches.position_of(0)
                offsets += batches.headers[:, layout.BASE_OFFSET].tolist()
                data += batches.data.tobytes()
        except CorruptLogError as error:
            return offsets, data, error
    return offsets, data, None


@pytest.mark.parametrize("window_bytes", [1, 12, 61, 80, 1000, len(DATA) - 1, len(DATA), 1 << 20])
@pytest.mark.parametrize("most_read", [7, 1 << 20])
def test_every_batch_comes_once(tmp_path: Path, window_bytes: int, most_read: int) -> None:
    """Some batches are larger than a window, and the disk returns fewer bytes than requested."""
    path = tmp_path / "f.log"
    path.write_bytes(DATA)

    offsets = list(range(len(SIZES)))
    assert (offsets, DATA, None) == found(path, window_bytes, most_read=most_read)


@pytest.mark.parametrize("window_bytes", [12, 100, 1000, 1 << 20])
@pytest.mark.parametrize("is_shrunk", [False, True])
def test_an_end_inside_a_batch_is_an_error_after_the_whole_ones(
    tmp_path: Path, window_bytes: int, is_shrunk: bool
) -> None:
    """The file was torn when it was listed, or was cut later, at any byte."""
    path = tmp_path / "f.log"
    path.write_bytes(DATA)
    ends = [sum(map(len, BATCHES[:i])) for i in range(len(BATCHES) + 1)]
    for n_bytes in range(len(DATA) - 1, 0, -5):
        with path.open("r+b") as file:
            file.truncate(n_bytes)
        n_whole = sum(end <= n_bytes for end in ends) - 1

        offsets, data, error = found(path, window_bytes, len(DATA) if is_shrunk else n_bytes)

        assert (list(range(n_whole)), DATA[: ends[n_whole]]) == (offsets, data)
        left = n_bytes - ends[n_whole]
        if not left and not is_shrunk:
            assert error is None
            continue
        assert isinstance(error, TruncatedBatchError)
        needed = len(BATCHES[n_whole]) if left >= layout.LOG_OVERHEAD else layout.LOG_OVERHEAD
        assert (ends[n_whole], needed, left) == (error.position, error.needed, error.available)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("n_bytes", "needed"), [(1, 12), (11, 12), *((n, 17) for n in range(12, 17)), (17, None)]
)
def test_zeros_too_few_for_a_header_are_an_error(
    tmp_path: Path, n_bytes: int, needed: int | None
) -> None:
    """Twelve zeros look like a batch of twelve bytes without a magic number."""
    path = tmp_path / "f.log"
    path.write_bytes(DATA + bytes(n_bytes))

    offsets, _, error = found(path, 1 << 20, len(DATA) + n_bytes)

    assert list(range(len(SIZES))) == offsets
    assert len(DATA) == error.position
    if needed is None:
        assert isinstance(error, MalformedBatchError)
    else:
        assert isinstance(error, TruncatedBatchError)
        assert (needed, n_bytes) == (error.needed, error.available)


def test_damage_is_an_error_after_the_good_batches(tmp_path: Path) -> None:
    """The good batches of the window come before the error."""
    damaged = bytearray(DATA)
    damaged[-1] ^= 1
    path = tmp_path / "f.log"
    path.write_bytes(damaged)

    offsets, _, error = found(path, 1 << 20)

    assert list(range(len(SIZES) - 1)) == offsets
    assert isinstance(error, ChecksumMismatchError)
    assert len(DATA) - len(BATCHES[-1]) == error.position
