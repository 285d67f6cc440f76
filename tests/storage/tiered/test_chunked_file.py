"""Files of chunks: frames with other sizes, chunks that are kept, replaced objects, padding."""

import hashlib
import os

import numpy as np
import pytest
import zstandard

from segmentlog import RemoteSegmentError
from segmentlog.store.readable import open_file
from segmentlog.store.remote.object_store import KeptRanges
from segmentlog.tiered import chunked_file
from segmentlog.tiered.aiven_manifest import ChunkIndex
from segmentlog.tiered.chunked_file import ChunkedFile


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(chunked_file, "_kept", KeptRanges(64 << 20))


def opened(path, frames, chunk_bytes=10, file_bytes=None):
    """A file of compressed chunks."""
    path.with_suffix(".new").write_bytes(b"".join(frames))
    path.with_suffix(".new").replace(path)
    ends = np.cumsum([len(each) for each in frames])
    file_bytes = chunk_bytes * len(frames) if file_bytes is None else file_bytes
    chunks = ChunkIndex(chunk_bytes, file_bytes, ends)
    return ChunkedFile(open_file(str(path)), chunks, is_compressed=True, key=None)


def noted_fetches(monkeypatch):
    """First and last chunk of each fetch from now on."""
    noted = []
    real = ChunkedFile._fetch

    def fetch(self, first, last):
        noted.append((first, last))
        return real(self, first, last)

    monkeypatch.setattr(ChunkedFile, "_fetch", fetch)
    return noted


def frame(data, **options):
    return zstandard.ZstdCompressor(**options).compress(data)


#: A frame header that claims 2**60 bytes, and a last block without bytes.
_HUGE = bytes.fromhex("28b52ffd e0") + (1 << 60).to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize(
    "wrong",
    [
        frame(b"x" * 9),
        frame(b"x" * 11),
        frame(b""),
        _HUGE,
        b"not a frame",
        2 * frame(b"x" * 10),
        frame(b"x" * 9, write_content_size=False),
        frame(b"x" * 99, write_content_size=False),
        frame(b"x" * 10)[:-1],
        frame(b"x" * 10) + b"more",
    ],
    ids=range(10),
)
def test_a_chunk_inflates_to_its_size_and_to_no_other(tmp_path, wrong):
    with opened(tmp_path / "a", [frame(b"y" * 10), wrong]) as file:
        assert file.read(0, 10) == b"y" * 10
        with pytest.raises(RemoteSegmentError, match="chunk 1 is not a zstd frame of 10 bytes"):
            file.read(5, 10)


def test_a_frame_without_a_content_size_is_inflated(tmp_path):
    with opened(tmp_path / "a", [frame(b"y" * 10, write_content_size=False)]) as file:
        assert file.read(0, 99) == b"y" * 10


def test_a_kept_chunk_is_not_fetched_with_its_neighbours(tmp_path, monkeypatch):
    frames = [frame(bytes([i]) * 10) for i in range(6)]
    with opened(tmp_path / "a", frames) as file:
        fetched = noted_fetches(monkeypatch)
        file.read(30, 1)
        assert file.read(0, 60) == b"".join(bytes([i]) * 10 for i in range(6))

    assert fetched == [(3, 3), (0, 2), (4, 5)]


def test_a_request_has_a_bound(tmp_path, monkeypatch):
    frames = [frame(bytes([i]) * 10) for i in range(6)]
    monkeypatch.setattr(chunked_file, "_REQUEST_BYTES", 2 * len(frames[0]))
    with opened(tmp_path / "a", frames) as file:
        fetched = noted_fetches(monkeypatch)
        assert len(file.read(0, 60)) == 60

    assert fetched == [(0, 1), (2, 3), (4, 5)]


@pytest.mark.parametrize("in_turn", [True, False])
def test_ranges_that_meet_inside_a_chunk_fetch_it_once(tmp_path, monkeypatch, in_turn):
    """The scan cuts a log into ranges, which several threads read, or one after the other."""
    frames = [frame(bytes([i]) * 10) for i in range(6)]
    fetched = noted_fetches(monkeypatch)
    ranges = [(0, 25), (25, 42), (42, 60)]
    files = [opened(tmp_path / "a", frames) for _ in ranges[:1]]
    files += [
        ChunkedFile(open_file(files[0].path), files[0]._chunks, is_compressed=True, key=None)
        for _ in ranges[1:]
    ]
    found = {}
    for file, (start, end) in zip(files, ranges, strict=True):
        file.expect(start, end)
        found[start] = file.read(start, 5 if not in_turn else end - start)
    for file, (start, end) in zip(files, ranges, strict=True):
        if not in_turn:
            found[start] += file.read(start + 5, end - start - 5)
        file.close()

    assert b"".join(found[start] for start, _ in ranges) == b"".join(
        bytes([i]) * 10 for i in range(6)
    )
    assert sorted(fetched) == [(number, number) for number in range(6)]


def test_chunks_of_a_replaced_object_are_not_used(tmp_path):
    for letter in (b"a", b"b"):
        with opened(tmp_path / "a", [frame(letter * 10)]) as file:
            assert file.read(0, 10) == letter * 10


def test_an_object_that_is_cut_while_it_is_read_is_named(tmp_path):
    frames = [frame(bytes([i]) * 10) for i in range(3)]
    with opened(tmp_path / "a", frames) as file:
        os.truncate(file.path, len(frames[0]) + 3)
        with pytest.raises(RemoteSegmentError, match=r"the object ends at byte .* in its chunk 2"):
            file.read(12, 10)


def test_an_empty_file_has_no_bytes(tmp_path):
    with opened(tmp_path / "a", [], file_bytes=0) as file:
        file.expect(0, 10)
        assert (file.read(0, 10), file.map(), file.status().size) == (b"", None, 0)


# Padding of data keys


def padded(message=b"k" * 32, *, label=b"", first=0, mark=1):
    """OAEP of a message for a modulus of 256 bytes."""
    n_hash = 64
    block = hashlib.sha3_512(label).digest() + bytes(256 - len(message) - 2 * n_hash - 2)
    block += bytes([mark]) + message
    seed = os.urandom(n_hash)
    masked = chunked_file._exclusive_or(block, chunked_file._mask(seed, len(block)))
    masked_seed = chunked_file._exclusive_or(seed, chunked_file._mask(masked, n_hash))
    return bytes([first]) + masked_seed + masked


def test_padding_is_taken_off():
    assert chunked_file._unpad(padded()) == b"k" * 32


@pytest.mark.parametrize(
    "wrong",
    [padded(label=b"x"), padded(first=1), padded(mark=2), padded(mark=0), padded()[:129], None],
    ids=range(6),
)
def test_wrong_padding_is_refused(wrong):
    assert chunked_file._unpad(wrong) is None
