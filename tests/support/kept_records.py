"""The contents of a compacted partition, for comparisons: batches, records, indexes, other files.

Sizes and checksums of compressed batches are left out: two zlibs make two payloads of the same
records.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from segmentlog.testing.legacy import read_message, split_batches
from segmentlog.testing.reference import Record, read_batch

_BOUND = 1 << 26
_HEADER = struct.Struct(">qiibIhiqqqhii")


class Batch(NamedTuple):
    """A batch in its file."""

    base_offset: int
    position: int
    fields: tuple[int, ...]  # the header without sizes and checksum
    # with their offsets and timestamps; of a control batch, its key and value
    records: list[Record]

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which its tombstones may be removed."""
        if len(self.fields) == 2:
            return None
        attributes, base_timestamp = self.fields[1], self.fields[3]
        return base_timestamp if attributes & 0x40 else None

    @property
    def is_compressed(self) -> bool:
        """Whether its bytes depend on a library."""
        return bool(self.fields[1] & 7) and bool(self.records)


def batches_of(path: Path) -> Iterator[Batch]:
    """The batches of one ``.log`` file."""
    position = 0
    for data, least in split_batches(path.read_bytes()):
        base = int.from_bytes(data[:8], "big", signed=True)
        if data[16] < 2:
            _, records = read_message(data, least, _BOUND)
            yield Batch(base, position, (data[16], data[17]), records)
        else:
            _, _, epoch, _, _, *rest = _HEADER.unpack_from(data)
            records = read_batch(data, 0, _BOUND)
            if rest[0] & 0x20 and len(data) > 61:  # the reference skips control records
                records = [Record(base, 0, data[61:], None)]
            yield Batch(base, position, (epoch, *rest), records)
        position += len(data)


def kept(partition: Path) -> dict[str, list[Batch]]:
    """The batches of each segment, without their positions."""
    return {
        path.name: [each._replace(position=0) for each in batches_of(path)]
        for path in sorted(partition.glob("*.log"))
    }


def files_of(partition: Path) -> set[str]:
    """Names of all files that are not put aside."""
    return {path.name for path in partition.iterdir() if path.suffix != ".deleted"}


def index_entries(path: Path) -> list[tuple[int, ...]]:
    """The entries of an index; a missing index has none."""
    form = {".index": ">ii", ".timeindex": ">qi", ".txnindex": ">hqqqq"}[path.suffix]
    data = path.read_bytes() if path.exists() else b""
    return [*struct.iter_unpack(form, data)]
