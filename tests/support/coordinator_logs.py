"""Logs of coordinators that tests build: commits, transactions, groups."""

import itertools
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from segmentlog.format.checksum import crc32c
from segmentlog.format.messages.reader import Field
from segmentlog.format.messages.records import coordinator_schemas, framed_schemas
from segmentlog.testing.reference import Record, encode_batch

MARKER_VALUE = bytes(6)
BOTH = 0x30  # control and transactional
_SIZES = {"bool": 1, "i8": 1, "i16": 2, "u16": 2, "i32": 4, "i64": 8}


def text(value: str) -> bytes:
    """A string with its length."""
    return struct.pack(">h", len(value.encode())) + value.encode()


def commit_key(group: str, topic: str = "t", partition: int = 0, kind: int = 1) -> bytes:
    """The key of a commit."""
    return struct.pack(">h", kind) + text(group) + text(topic) + struct.pack(">i", partition)


def commit_value(
    offset: int, version: int = 3, metadata: str = "", tail: bytes | None = None
) -> bytes:
    """The value of a commit at time 1000."""
    out = struct.pack(">hq", version, offset)
    out += struct.pack(">i", 5) if version >= 3 else b""
    compact = bytes([len(metadata) + 1]) + metadata.encode()
    out += compact if version >= 4 else text(metadata)
    out += struct.pack(">q", 1000) + (struct.pack(">q", 2000) if version == 1 else b"")
    return out + (tail if tail is not None else b"\0" if version >= 4 else b"")


class Coordinator:
    """A partition of a coordinator's topic, batch by batch."""

    def __init__(self) -> None:
        self.data = b""
        self._offsets = itertools.count()

    def add(
        self,
        *records: tuple[bytes | None, bytes | None],
        producer: int = -1,
        control: bool = False,
    ) -> "Coordinator":
        """A batch, in a transaction if it has a producer."""
        made = [Record(next(self._offsets), 10, *record) for record in records]
        batch = bytearray(
            encode_batch(made, attributes=BOTH if control else 0x10 if producer >= 0 else 0)
        )
        batch[43:51] = struct.pack(">q", producer)
        batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))
        self.data += bytes(batch)
        return self

    def end(self, producer: int, how: int) -> "Coordinator":
        """An end marker: 1 commits, and 0 aborts."""
        return self.add(
            (struct.pack(">hh", 0, how), MARKER_VALUE), producer=producer, control=True
        )

    def write(
        self, directory: Path, partition: int = 0, topic: str = "__consumer_offsets"
    ) -> Path:
        """The directory, with the partition."""
        path = directory / f"{topic}-{partition}"
        path.mkdir(parents=True)
        (path / f"{0:020d}.log").write_bytes(self.data)
        return directory


def write_commits(directory: Path, committed: Iterable[tuple[str, int, int]]) -> None:
    """The log of some groups: what each has committed in partitions of the topic ``t``."""
    records = [
        (commit_key(group, partition=partition), commit_value(offset))
        for group, partition, offset in committed
    ]
    Coordinator().add(*records).write(directory)


def message(
    topic: str, kind: int, key: dict[str, Any], value: dict[str, Any] | None
) -> tuple[bytes, bytes | None]:
    """Key and value of a record of a type, in the newest version; other fields are zero."""
    of_key, of_value = coordinator_schemas(topic)[kind]
    encoded = struct.pack(">h", kind) + _struct(of_key.fields, key, 0, is_flexible=False)
    if value is None:
        return encoded, None
    version = of_value.versions.most
    is_flexible = version in of_value.flexible
    fields = _struct(of_value.fields, value, version, is_flexible=is_flexible)
    return encoded, struct.pack(">h", version) + fields


def framed(topic: str, kind: int, value: dict[str, Any]) -> tuple[None, bytes]:
    """A framed record of a type, in the newest version; other fields are zero."""
    schema = framed_schemas(topic)[kind]
    version = schema.versions.most
    return None, bytes([1, kind, version]) + _struct(
        schema.fields, value, version, is_flexible=True
    )


def _struct(
    fields: tuple[Field, ...], given: dict[str, Any], version: int, *, is_flexible: bool
) -> bytes:
    """Fields of a struct; tagged fields that are not given are left out."""
    out, tagged = b"", []
    for each in fields:
        if version not in each.versions:
            continue
        if not is_flexible or each.tag is None:
            out += _value(each, given.get(each.column), version, is_flexible=is_flexible)
        elif each.column in given:
            content = _value(each, given[each.column], version, is_flexible=True)
            tagged.append(bytes([each.tag, len(content)]) + content)
    return out + (bytes([len(tagged)]) + b"".join(tagged) if is_flexible else b"")


def _value(field: Field, given: Any, version: int, *, is_flexible: bool) -> bytes:
    def length(n: int, width: int) -> bytes:
        return bytes([n + 1]) if is_flexible else n.to_bytes(width, "big")

    if field.is_array:
        element = Field(field.name, field.column, field.kind, field.fields)
        parts = [_value(element, each, version, is_flexible=is_flexible) for each in given or ()]
        return length(len(parts), 4) + b"".join(parts)
    if field.kind == "struct":
        if field.is_nullable:
            return b"\xff"
        return _struct(field.fields, given or {}, version, is_flexible=is_flexible)
    if field.kind == "str":
        data = (given or "").encode()
        return length(len(data), 2) + data
    if field.kind == "bytes":
        return length(len(given or b""), 4) + (given or b"")
    if field.kind == "uuid":
        return given.bytes if given else bytes(16)
    if field.kind == "f64":
        return struct.pack(">d", given or 0)
    return int(given or 0).to_bytes(_SIZES[field.kind], "big", signed=field.kind != "u16")
