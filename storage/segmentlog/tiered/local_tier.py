"""Kafka's own ``LocalTieredStorage``, which tests and demonstrations of tiered storage use.

Layout: ``<topic>-<partition>-<topic id>/<start offset>-<segment id>.<part>``, in the directory
``kafka-tiered-storage`` below the directory of the broker's setting.  Topic ids contain ``-`` and
``_``, so names are read from their end.

Rules: ``RemoteLogSegmentFileset``, ``RemoteTopicPartitionDirectory``.
"""

import os
import re
from collections.abc import Collection

from segmentlog.errors import RemoteSegmentError
from segmentlog.format.names import parse_partition_directory
from segmentlog.store.readable import (
    FileType,
    ReadableFile,
    is_directory,
    list_entries,
    list_names,
    open_file,
    survey,
)
from segmentlog.tiered.layout import Part, RemoteLog, RemoteObject, RemoteSegment

_BELOW = "kafka-tiered-storage"

_ID = r"[A-Za-z0-9_-]{22}"
_DIRECTORY = re.compile(rf"(?P<partition>.+-[0-9]+)-(?P<id>{_ID})")
_LOG = re.compile(rf"(?P<offset>[0-9]{{20}})-(?P<id>{_ID})\.log")
_OBJECT = re.compile(rf"[0-9]{{20}}-(?P<id>{_ID})\.(?:{'|'.join(Part)})")


class LocalTier:
    """See `segmentlog.tiered.layout.Layout`.

    `root`: the directory of the broker's setting (``rsm.config.dir``), or the one below it: a
    path, or a URL in the form of a path.
    """

    def __init__(self, root: str) -> None:
        survey(root)
        below = os.path.join(root, _BELOW)
        self._root = below if is_directory(below) else root

    def logs(self, topics: Collection[str] = ()) -> list[RemoteLog]:
        found = []
        for entry in list_entries(self._root):
            named = _DIRECTORY.fullmatch(entry.name)
            parsed = named and parse_partition_directory(named["partition"])
            if entry.type is FileType.DIRECTORY and named and parsed:
                topic, partition = parsed[0]
                if not topics or topic in topics:
                    found.append(RemoteLog(topic, named["id"], partition))
        return found

    def segments(self, log: RemoteLog) -> list[RemoteSegment]:
        """See `Layout`; a copy that was interrupted lacks the part that is written last."""
        names = {*list_names(self.folder(log))}
        found = []
        for name in names:
            named = _LOG.fullmatch(name)
            if named and f"{name.removesuffix('.log')}.{Part.LEADER_EPOCHS}" in names:
                found.append(RemoteSegment(log, named["id"], int(named["offset"])))
        return found

    def objects(self, log: RemoteLog) -> list[RemoteObject]:
        directory = self.folder(log)
        try:
            names = sorted(list_names(directory))
        except FileNotFoundError:
            return []
        found = ((name, _OBJECT.fullmatch(name)) for name in names)
        return [
            RemoteObject(os.path.join(directory, name), named["id"] if named else "")
            for name, named in found
        ]

    def open(self, segment: RemoteSegment, part: Part) -> ReadableFile | None:
        name = f"{segment.start_offset:020d}-{segment.segment_id}.{part}"
        path = os.path.join(self.folder(segment.log), name)
        try:
            return open_file(path)
        except FileNotFoundError:
            if part is not Part.LOG:  # the log is scanned, as without a local index
                return None
            reason = "the object is missing, although other objects of its segment are there"
            raise RemoteSegmentError(path, reason, _REMEDY) from None

    def folder(self, log: RemoteLog) -> str:
        return os.path.join(self._root, f"{log.topic}-{log.partition}-{log.topic_id}")


_REMEDY = "restore the object, or remove the segment from the tier"
