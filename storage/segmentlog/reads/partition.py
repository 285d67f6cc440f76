"""The files of one log.

Readers of records ask a partition for its segments, its snapshots and its checkpoints.  Writers,
upkeep and recovery list the directory themselves: they need a mounted file system.

All files of a log are in one directory of a `Disk` (`segmentlog.store.contract`), and
`Partition.of_slice` finds the directory from the first file of a slice.  A log that lies in two
places has a disk that shows both as one directory, as `segmentlog.tiered.disk` does for a local
log and its tier.
"""

import os
from collections.abc import Sequence

from segmentlog.errors import LogChangedError
from segmentlog.file_columns import SliceFile
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT
from segmentlog.log.checkpoint import read_leader_epochs
from segmentlog.log.listing import ListedFiles, list_segments
from segmentlog.log.metadata import known_topic_id, read_topic_id
from segmentlog.log.producer_snapshot import ProducerSnapshot, newest_snapshot
from segmentlog.log.segment import Segment
from segmentlog.model import LogSlice, OffsetRange
from segmentlog.store.aside import names_aside
from segmentlog.store.contract import ReadableFile
from segmentlog.store.readable import is_directory, open_file


class FileChangedError(Exception):
    """A file has changed since planning."""


class Partition:
    """The files of one log.

    `path`: the directory of its files; errors name it.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Partition({self.path!r})"

    @classmethod
    def of_file(cls, path: str) -> "Partition":
        """The partition that holds a ``.log`` file."""
        return cls(os.path.dirname(path))

    @classmethod
    def of_slice(cls, log_slice: LogSlice) -> "Partition":
        """The partition that a slice with files was cut from."""
        return cls.of_file(log_slice.files[0].path)

    def is_there(self) -> bool:
        """Whether the partition still exists: it may have been deleted, or moved away."""
        return is_directory(self.path)

    def files(self) -> ListedFiles:
        """Its ``.log`` files now; see `segmentlog.log.listing.list_segments`.

        Raises `LogDirectoryError` if they cannot be listed.
        """
        return list_segments(self.path)

    def segments(self) -> tuple[Segment, ...]:
        """Its segments now, beside a writer: no index is mapped, and the last one is active."""
        files = self.files()
        limits: Sequence[int | None] = [*(each.base_offset for each in files[1:]), None]
        return tuple(
            Segment(each, is_sealed=False, is_active=limit is None, offset_limit=limit)
            for each, limit in zip(files, limits, strict=False)
        )

    def snapshot(
        self, first_offset: int, last_offset: int
    ) -> tuple[int, list[ProducerSnapshot]] | None:
        """Offset and producers of the newest readable snapshot between two offsets, or None."""
        return newest_snapshot(self.path, first_offset, last_offset)

    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """Leader epochs and their start offsets, by ``leader-epoch-checkpoint``.

        Raises `CorruptCheckpointError` if the checkpoint cannot be read.
        """
        return read_leader_epochs(os.path.join(self.path, LEADER_EPOCH_CHECKPOINT))

    def topic_id(self) -> str | None:
        """Topic id as Kafka prints it; None without ``partition.metadata``.

        Raises `CorruptCheckpointError` if the file cannot be read.
        """
        return read_topic_id(self.path)

    def known_topic_id(self) -> str:
        """`topic_id`; empty if nothing shows it, if the file cannot be read, and at a URL."""
        return known_topic_id(self.path)

    def check_topic(self, topic_id: str, offsets: OffsetRange) -> None:
        """Refuse what was just read, or opened, if it may be of another topic than the known one.

        Inodes do not show it: file systems reuse them.

        Raises `LogChangedError` if the topic was deleted, and created again under its name.
        """
        now = self.known_topic_id() if topic_id else ""
        if now and now != topic_id:
            reason = f"its topic was deleted, and another was created (id {now}, not {topic_id})"
            raise LogChangedError(self.path, *offsets, reason)


def open_planned(file: SliceFile) -> ReadableFile:
    """A file of a slice, opened, even if retention or compaction has just put it aside.

    Compaction puts another file under the name.  That file cannot replace the planned one.  A
    record that was the last of its key when the read was planned may be missing, because of a
    record after the end of the read.  And if the planned range ends between two batches of the new
    file, records after that end would be lost without an error.

    Raises `FileChangedError` if another file has taken its name; `OSError` if it cannot be opened.
    """
    missing: dict[str, FileNotFoundError] = {}
    for path in (file.path, *names_aside(file.path, file.inode)):
        try:
            opened = open_file(path)
        except FileNotFoundError as error:
            missing[path] = error
            continue
        opened.expect(file.start, file.end)
        # From here on, `status` describes an object as it is opened now.
        if file.inode in (0, opened.status().inode):
            return opened
        opened.close()
    if file.path in missing:
        raise missing[file.path]  # users know this name, not the renamed file's
    message = f"{file.path} is not the file that was planned"
    raise FileChangedError(message)
