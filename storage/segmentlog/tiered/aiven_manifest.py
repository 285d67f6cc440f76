"""Manifests of Aiven's plugin: where the parts of a remote segment lie, and how to read them.

The plugin stores three objects for each segment, ``….log``, ``….indexes`` and ``….rsm-manifest``,
and the manifest last.  So a segment whose manifest exists is complete.  Members that this module
does not know are ignored: the versions of the plugin write different ones.

The segment file is cut into chunks of one size, the last one shorter.  Each chunk is compressed
and encrypted by itself, so a reader fetches only the chunks that hold the bytes it needs.  A
*fixed* index describes chunks that all have the same size in the object, and a *variable* index
lists the sizes.

Rules: ``SegmentManifestV1``, ``ObjectKeyFactory``, ``SegmentCustomMetadataSerde``,
``FixedSizeChunkIndex``, ``VariableSizeChunkIndex`` and ``ChunkSizesBinaryCodec`` of the plugin
``io.aiven.kafka.tieredstorage``; ``RemoteLogSegmentMetadata`` (KIP-405).
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from segmentlog.errors import RemoteSegmentError
from segmentlog.format.messages.reader import Reader
from segmentlog.model import LARGEST_LONG
from segmentlog.tiered.layout import RemoteLog, RemoteSegment

#: Bytes that encryption adds to a chunk: an initialization vector of 12, and a tag of 16.
ENCRYPTION_BYTES = 28

#: Largest segment file: positions in Kafka's indexes have 31 bits.
_MOST_FILE_BYTES = (1 << 31) - 1

#: Largest list of sizes that the plugin writes, without compression.
_MOST_SIZES_BYTES = 10 << 20
_MOST_BASE64 = 4 * _MOST_SIZES_BYTES // 3 + 4096


class ChunkIndexError(ValueError):
    """A chunk index that contradicts itself; the reason in words, to be continued by a place."""


class ChunkIndex:
    """Places of the chunks of one file in its object.

    `chunk_bytes`: size of each chunk of the file but the last.  `ends`: end of each chunk in the
    object, shape (number of chunks,); or the size of each chunk in the object but the last, and
    the size of the last.  `base`: byte of the object at which the first chunk begins.  Raises
    `ChunkIndexError` if a number is out of bounds, or the number of chunks does not fit the sizes.
    """

    def __init__(
        self,
        chunk_bytes: int,
        file_bytes: int,
        ends: npt.NDArray[np.int64] | tuple[int, int],
        base: int = 0,
    ) -> None:
        if not 0 < chunk_bytes <= _MOST_FILE_BYTES:
            raise ChunkIndexError(f"chunks of {chunk_bytes} bytes")
        if not 0 <= file_bytes <= _MOST_FILE_BYTES:
            raise ChunkIndexError(f"a file of {file_bytes} bytes")
        self.chunk_bytes = chunk_bytes
        self.file_bytes = file_bytes
        self.n_chunks = -(-file_bytes // chunk_bytes)
        self._base = base
        self._ends = ends
        if isinstance(ends, tuple):
            if not all(0 < each <= 2 * _MOST_FILE_BYTES for each in ends):
                raise ChunkIndexError(f"chunks that take {ends[0]} and {ends[1]} bytes")
        elif len(ends) != self.n_chunks:
            raise ChunkIndexError(f"{len(ends)} chunks, but {self.n_chunks} fit its sizes")

    @property
    def object_bytes(self) -> int:
        """Size of all chunks in the object."""
        return self.place(self.n_chunks) - self._base

    def place(self, number: int) -> int:
        """Byte of the object at which a chunk begins; the end of the last, for a chunk more."""
        if isinstance(self._ends, tuple):
            size, last = self._ends
            whole = min(number, max(self.n_chunks - 1, 0)) * size
            return self._base + whole + (last if 0 < self.n_chunks <= number else 0)
        return self._base + (int(self._ends[number - 1]) if number else 0)

    def number_at(self, position: int) -> int:
        """Number of the chunk that holds a byte of the file."""
        return position // self.chunk_bytes

    def size_of(self, number: int) -> int:
        """Bytes of the file in a chunk."""
        return min(self.chunk_bytes, self.file_bytes - number * self.chunk_bytes)


def decode_sizes(text: str) -> npt.NDArray[np.int64]:
    """The list of sizes of a variable chunk index: ends of the chunks, shape (number of chunks,).

    The text is base64 of a zstd frame of: an int32 count; for one chunk, its size as an int32; for
    more, the smallest size as an int32, the width of a difference as one byte, the difference of
    each size but the last, and the last size as an int32.  All numbers are big-endian.

    Raises `ChunkIndexError` if the text is not such a list, or is longer than the plugin writes.
    """
    if len(text) > _MOST_BASE64:
        raise ChunkIndexError(f"a list of sizes of {len(text)} characters")
    try:
        frame = base64.b64decode(text, validate=True)
        claimed = zstandard.get_frame_parameters(frame).content_size
        if claimed > _MOST_SIZES_BYTES:  # an unknown size is the largest of all
            raise ChunkIndexError(f"a list of sizes that claims {claimed} bytes")
        listed = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=_MOST_SIZES_BYTES, allow_extra_data=False
        )
    except (binascii.Error, ValueError, zstandard.ZstdError, MemoryError) as error:
        if isinstance(error, ChunkIndexError):
            raise
        raise ChunkIndexError("a list of sizes that is not base64 of a zstd frame") from error
    sizes = _sizes(listed)
    if sizes.size and int(sizes.min()) <= 0:
        raise ChunkIndexError("a chunk without bytes in its list of sizes")
    return np.cumsum(sizes, dtype=np.int64)


def _sizes(listed: bytes) -> npt.NDArray[np.int64]:
    n_chunks = int.from_bytes(listed[:4], "big", signed=True)
    cut = ChunkIndexError(f"a list of {n_chunks} sizes in {len(listed)} bytes")
    if n_chunks < 0 or len(listed) < 4:
        raise cut
    if n_chunks < 2:
        if len(listed) != 4 + 4 * n_chunks:
            raise cut
        return np.frombuffer(listed, ">i4", n_chunks, 4).astype(np.int64)
    width = listed[8] if len(listed) > 8 else 0
    if not 1 <= width <= 4 or len(listed) != 9 + (n_chunks - 1) * width + 4:
        raise cut
    base = int.from_bytes(listed[4:8], "big", signed=True)
    parts = np.frombuffer(listed, np.uint8, (n_chunks - 1) * width, 9).reshape(-1, width)
    sizes = np.empty(n_chunks, np.int64)
    sizes[:-1] = base
    for place in range(width):
        sizes[:-1] += parts[:, place].astype(np.int64) << (8 * (width - 1 - place))
    sizes[-1] = int.from_bytes(listed[-4:], "big", signed=True)
    return sizes


MANIFEST_SUFFIX = ".rsm-manifest"

#: Largest manifest: its list of sizes is limited by the plugin to 10 MiB before base64.
MOST_MANIFEST_BYTES = 16 << 20

_MOST_INDEX_BYTES = 1 << 28
_MOST_EPOCHS = 1 << 20
_MOST_SECRET = 8192

_RESTORE = "restore the object, or remove the segment from the tier"
_UPGRADE = "upgrade segmentlog, or check that the layout of the tier is aiven"

_NAME = re.compile(r"([0-9]{20})-([A-Za-z0-9_-]{22})(\.log|\.indexes|\.rsm-manifest)")
_FOLDER = re.compile(r"([A-Za-z0-9._-]{1,249})-([A-Za-z0-9_-]{22})")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")

#: First bytes of a Puffin file, which holds the manifest in Iceberg mode.
_PUFFIN = b"PFA1"


class SegmentKey(NamedTuple):
    """The parts of an object's key."""

    #: of the log; the id in base64
    topic: str
    topic_id: str
    partition: int
    base_offset: int  # first offset of the segment
    segment_id: str  # random id of this copy, in base64
    suffix: str  # ``.log``, ``.indexes`` or ``.rsm-manifest``

    @property
    def main(self) -> str:
        """The key without prefix and suffix."""
        folder = f"{self.topic}-{self.topic_id}/{self.partition}"
        return f"{folder}/{self.base_offset:020}-{self.segment_id}"


def parse_key(key: str) -> SegmentKey | None:
    """The parts of a key below the plugin's prefix, or None for the key of another object.

    A key is read from its end: topics and ids contain ``-``, and a topic may end in what looks
    like an id.

    `key`: ``<topic>-<topic id>/<partition>/<start offset>-<segment id>.<suffix>``.
    """
    parts = key.rsplit("/", 2)
    if len(parts) != 3:
        return None
    folder, partition, name = parts
    found = _NAME.fullmatch(name)
    named = _FOLDER.fullmatch(folder)
    if found is None or named is None or not _NUMBER.fullmatch(partition):
        return None
    base, segment_id, suffix = found.groups()
    return SegmentKey(named[1], named[2], int(partition), int(base), segment_id, suffix)


class Encryption(NamedTuple):
    """How a segment is encrypted, as its manifest says."""

    key_pair: str  # id of the RSA key pair
    wrapped: bytes  # data key, encrypted
    aad: bytes  # bytes that each chunk is bound to


class Manifest(NamedTuple):
    """A manifest."""

    chunks: ChunkIndex  # of the segment file
    is_compressed: bool  # whether each chunk of the segment file is a zstd frame
    encryption: Encryption | None  # of all chunks and indexes, or None
    #: ``(position, size)`` in the object of indexes, by the manifest's name of the index; indexes
    #: that the segment does not have are left out
    indexes: Mapping[str, tuple[int, int]]
    #: the part of the broker's metadata of the segment that the manifest repeats, or None
    facts: RemoteSegment | None

    @property
    def is_plain(self) -> bool:
        """Whether the object is the segment file, byte for byte."""
        return not self.is_compressed and self.encryption is None


class _MalformedError(Exception):
    """A member that is missing or wrong; the reason in words."""


def parse_manifest(path: str, data: bytes) -> Manifest:
    """Parse a manifest of this plugin; one of Iceberg mode is a `RemoteSegmentError`, too."""
    if len(data) > MOST_MANIFEST_BYTES:
        reason = f"a manifest of {len(data)} bytes; the largest has {MOST_MANIFEST_BYTES}"
        raise RemoteSegmentError(path, reason, _RESTORE)
    if data.startswith(_PUFFIN):
        raise _of_iceberg(path)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise RemoteSegmentError(path, "the manifest is not JSON", _RESTORE) from None
    try:
        return _manifest(path, _object("the manifest", found))
    except (_MalformedError, ChunkIndexError) as error:
        raise RemoteSegmentError(path, f"the manifest has {error}", _RESTORE) from None


def _manifest(path: str, found: Mapping[str, Any]) -> Manifest:
    if "iceberg" in str(found.get("segmentFormat")).lower() or "dataFiles" in found:
        raise _of_iceberg(path)
    version = found.get("version")
    if version != "1":
        reason = f"the manifest has version {str(version)[:20]!r}, and only version 1 is known"
        raise RemoteSegmentError(path, reason, _UPGRADE)
    is_compressed = found.get("compression", False)
    if not isinstance(is_compressed, bool):
        raise _MalformedError("a member compression that is not true or false")
    encryption = None
    if (given := found.get("encryption")) is not None:
        given = _object("encryption", given)
        pair, colon, wrapped = _text(given, "dataKey", _MOST_SECRET).partition(":")
        if not colon or not pair:
            raise _MalformedError("a member dataKey without the id of a key pair")
        aad = _bytes(_text(given, "aad", _MOST_SECRET), "aad")
        encryption = Encryption(pair, _bytes(wrapped, "dataKey"), aad)
    chunks = _chunks(_object("chunkIndex", found.get("chunkIndex")))
    added = ENCRYPTION_BYTES * chunks.n_chunks if encryption else 0
    if not is_compressed and chunks.object_bytes != chunks.file_bytes + added:
        raise _MalformedError(
            f"chunks of {chunks.object_bytes} bytes for a file of {chunks.file_bytes} bytes "
            "without compression"
        )
    indexes = _indexes(_object("segmentIndexes", found.get("segmentIndexes")))
    facts = found.get("remoteLogSegmentMetadata")
    segment = None if facts is None else _facts(_object("remoteLogSegmentMetadata", facts))
    return Manifest(chunks, is_compressed, encryption, indexes, segment)


def _of_iceberg(path: str) -> RemoteSegmentError:
    return RemoteSegmentError(
        path,
        "the plugin stored this segment in Iceberg mode: the records are in Parquet files of a "
        "table, and there is no segment file",
        "read the Iceberg table",
    )


def _object(name: str, found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise _MalformedError(f"no object {name}")
    return found


def _integer(found: Mapping[str, Any], name: str, least: int, most: int) -> int:
    number = found.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise _MalformedError(f"no member {name} with an integer from {least} to {most}")
    return number


def _text(found: Mapping[str, Any], name: str, most: int) -> str:
    text = found.get(name)
    if not isinstance(text, str) or len(text) > most:
        raise _MalformedError(f"no member {name} with a text of at most {most} characters")
    return text


def _bytes(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _MalformedError(f"a member {name} that is not base64") from None


def _chunks(found: Mapping[str, Any]) -> ChunkIndex:
    most = (1 << 31) - 1
    chunk_bytes = _integer(found, "originalChunkSize", 1, most)
    file_bytes = _integer(found, "originalFileSize", 0, most)
    kind = found.get("type")
    if kind == "fixed":
        size = _integer(found, "transformedChunkSize", 1, most)
        last = _integer(found, "finalTransformedChunkSize", 1 if file_bytes else 0, most)
        return ChunkIndex(chunk_bytes, file_bytes, (size, last or size))
    if kind == "variable":
        sizes = _text(found, "transformedChunks", MOST_MANIFEST_BYTES)
        return ChunkIndex(chunk_bytes, file_bytes, decode_sizes(sizes))
    kind = str(kind)[:20]
    raise _MalformedError(f"a chunk index of the type {kind!r}; fixed and variable are known")


def _indexes(found: Mapping[str, Any]) -> Mapping[str, tuple[int, int]]:
    indexes = {}
    for name, given in found.items():
        if given is not None:
            place = _object(f"segmentIndexes.{name[:40]}", given)
            size = _integer(place, "size", 0, _MOST_INDEX_BYTES)
            indexes[name] = _integer(place, "position", 0, 5 * _MOST_INDEX_BYTES), size
    return indexes


def _facts(found: Mapping[str, Any]) -> RemoteSegment:
    most = LARGEST_LONG
    ids = _object("remoteLogSegmentId", found.get("remoteLogSegmentId"))
    log = _object("topicIdPartition", ids.get("topicIdPartition"))
    partition = _object("topicPartition", log.get("topicPartition"))
    epochs = _object("segmentLeaderEpochs", found.get("segmentLeaderEpochs"))
    if len(epochs) > _MOST_EPOCHS or not all(_NUMBER.fullmatch(each) for each in epochs):
        raise _MalformedError("a member segmentLeaderEpochs that does not list epochs")
    start = _integer(found, "startOffset", 0, most)
    return RemoteSegment(
        RemoteLog(
            _text(partition, "topic", 249),
            _text(log, "topicId", 22),
            _integer(partition, "partition", 0, (1 << 31) - 1),
        ),
        _text(ids, "id", 22),
        start,
        _integer(found, "endOffset", start, most),
        {int(each): _integer(epochs, each, 0, most) for each in epochs},
        _integer(found, "maxTimestampMs", -1, most),
    )


class CustomMetadata(NamedTuple):
    """Fields that the plugin adds to the broker's metadata of a segment; None without."""

    remote_bytes: int | None = None  # size of all objects of the segment
    #: of the objects ``.log`` and ``.indexes``, where they differ from today's setting. The
    #: manifest's key always follows the setting
    prefix: str | None = None
    key: str | None = None


def parse_custom_metadata(data: bytes) -> CustomMetadata | None:
    """The custom metadata of a segment (one tagged section), or None if it is not the plugin's.

    A field is a tag, a size and bytes: 0 a zigzag varint, 1 and 2 a compact string.
    """
    found: dict[int, int | str] = {}
    section = Reader(data)
    try:
        for _ in range(section.varint()):
            tag = section.varint()
            field = section.take(section.varint())
            if tag == 0:  # of up to ten bytes
                number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(field[:10]))
                found[tag] = (number >> 1) ^ -(number & 1)
            elif tag in (1, 2):
                text = Reader(field)
                if text.varint() != text.n_left + 1:
                    return None
                found[tag] = text.take(text.n_left).decode()
    except ValueError:
        return None
    return CustomMetadata(*(found.get(tag) for tag in range(3)))  # type: ignore[arg-type]  # by tag
