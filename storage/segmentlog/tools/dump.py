"""The contents of segment files: every batch, optionally every record, including damaged ones."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from segmentlog.disk.contract import ReadableFile
from segmentlog.disk.paths import readable_path
from segmentlog.disk.readable import is_file, open_file, status_of, survey
from segmentlog.disk.remote.location import is_url, without_options
from segmentlog.errors import LogDirectoryError, SegmentLogError
from segmentlog.logs.log_directory import LogDirectory, MissingPartition, open_log_dir
from segmentlog.model import TopicPartition
from segmentlog.names import parse_partition_directory, parse_segment_file
from segmentlog.records.header import BatchHeader
from segmentlog.segments.listing import SegmentFiles
from segmentlog.segments.log_end import find_log_end
from segmentlog.segments.segment import Segment
from segmentlog.tools.index_entries import entries, is_index_file
from segmentlog.tools.rows import Place
from segmentlog.tools.selection import Selection
from segmentlog.tools.sinks import Sink
from segmentlog.tools.walk import Found, walk

__all__ = ["as_given", "dump_paths", "missing_of", "partitions_of", "size_of"]


logger = logging.getLogger(__name__)

_PROGRESS_BYTES = 1 << 20  #: between two calls of `progress`


class _Source(NamedTuple):
    """A segment, its place, and the selected part of it."""

    place: Place
    segment: Segment
    selection: Selection


def dump_paths(
    paths: Sequence[str],
    sink: Sink,
    selection: Selection,
    *,
    topics: Sequence[str] = (),
    partitions: Sequence[int] = (),
    with_records: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> bool:
    """Dump files and directories to `sink`; return whether everything that was read is valid.

    Parameters
    ----------
    paths : log directories, partition directories, or files of a partition.
    sink : takes the dump.
    selection : offsets and times to dump.
    topics, partitions : to dump from a directory; all if empty.
    with_records : whether to dump records as well.
    progress : called with the number of bytes of segments that are done.

    Raises
    ------
    SegmentLogError
        If a path is none of these, or holds no such topic.
    """
    is_valid = True
    for given in paths:
        path = readable_path(given)
        survey(path)
        if is_file(path) and is_index_file(path):
            is_valid &= _dump_entries(given, path, sink)
            continue
        for source in _sources(path, topics, partitions, selection, warns=True):
            file = as_given(source.segment.path, [given])
            shown = source._replace(place=source.place._replace(file=file))
            is_valid &= _dump_segment(shown, sink, progress, with_records=with_records)
    return is_valid


def size_of(
    paths: Sequence[str], selection: Selection, topics: Sequence[str], partitions: Sequence[int]
) -> int | None:
    """Bytes of the segments that a dump reads; None if it will end in an error."""
    try:
        return sum(
            source.segment.size
            for path in map(readable_path, paths)
            if not (is_file(path) and is_index_file(path))
            for source in _sources(path, topics, partitions, selection)
        )
    except (SegmentLogError, OSError):
        return None


def as_given(file: str, paths: Sequence[str]) -> str:
    """Path of `file`, below or beside one of `paths`, with the beginning that the user wrote.

    At a URL, it is the path without options.
    """
    if is_url(file):
        return without_options(file)
    for given in paths:
        begin, root = given, readable_path(given)
        if is_file(root):
            begin, root = os.path.dirname(begin), os.path.dirname(root)
        below = os.path.relpath(file, root)
        if below == os.curdir:
            return begin
        if below.partition(os.sep)[0] != os.pardir:
            return os.path.join(begin, below)
    return file


def _dump_entries(given: str, path: str, sink: Sink) -> bool:
    is_valid = True
    for row in entries(path):
        sink.entry(given, row)
        is_valid &= "problem" not in row
    return is_valid


def _sources(
    path: str,
    topics: Sequence[str],
    partitions: Sequence[int],
    selection: Selection,
    *,
    warns: bool = False,
) -> Iterator[_Source]:
    """Segments of a path that may hold selected records, by partition and offset."""
    if is_file(path):
        place, segment = _lone_segment(path)
        end = find_log_end(segment).offset if selection.last is not None else 0
        yield _Source(place, segment, selection.of_log(end))
        return
    directory = open_log_dir(path)
    for each in missing_of(directory, topics, partitions) if warns else ():
        logger.warning("%s is not dumped: %s", each.topic_partition, each.reason)
    for topic, partition in partitions_of(directory, topics, partitions):
        log = directory.log(topic, partition)
        segments = log.segments
        wanted = selection.of_log(log.log_end_offset) if selection.last is not None else selection
        next_bases = (*(segment.base_offset for segment in segments[1:]), 2**63)
        for segment, next_base in zip(segments, next_bases, strict=False):  # a log may have none
            if next_base > wanted.from_offset and segment.base_offset < wanted.to_offset:
                yield _Source(Place(topic, partition, segment.path), segment, wanted)


def partitions_of(
    directory: LogDirectory, topics: Sequence[str], partitions: Sequence[int] = ()
) -> list[TopicPartition]:
    """The selected topic-partitions, sorted.

    Raises
    ------
    UnknownTopicOrPartitionError
        If one of `topics` is missing, or has none of `partitions`.
    """
    known = directory.topics(internal=True)
    for topic in topics:
        if topic not in known or (partitions and not set(partitions) & set(known[topic])):
            directory.log(topic, partitions[0] if partitions else -1)
    return [
        found
        for found in directory.topic_partitions()
        if (not topics or found.topic in topics)
        and (not partitions or found.partition in partitions)
    ]


def missing_of(
    directory: LogDirectory, topics: Sequence[str], partitions: Sequence[int] = ()
) -> list[MissingPartition]:
    """The selected topic-partitions whose directories are gone, sorted."""
    return [
        each
        for each in directory.missing_partitions(topics or None)
        if not partitions or each.topic_partition.partition in partitions
    ]


def _lone_segment(path: str) -> tuple[Place, Segment]:
    """A ``.log`` file in any state, or a snapshot of KRaft, which is written in the same way."""
    file = Path(path)
    name = parse_segment_file(file.name)
    digits = file.name.partition("-")[0]
    if name is None and file.suffix != ".checkpoint" and ".log" not in file.name:
        reason = "is neither a .log file, an index or snapshot beside one, nor a checkpoint"
        raise LogDirectoryError(path, reason)
    base_offset = name.offset if name else int(digits) if digits.isdecimal() else 0
    parsed = parse_partition_directory(file.parent.name)
    topic, partition = parsed[0] if parsed else (file.parent.name, 0)
    files = SegmentFiles(base_offset, path, status_of(path, follow=True).size)
    return Place(topic, partition, path), Segment(files, is_sealed=False)


def _dump_segment(
    source: _Source, sink: Sink, progress: Callable[[int], object], *, with_records: bool
) -> bool:
    """Dump one file from the first selected batch; return whether all batches are valid."""
    place, segment, selection = source
    begin = segment.floor_position(selection.from_offset) if selection.from_offset > 0 else 0
    wanted = selection.may_hold if with_records else selection.matches
    is_valid, done = True, 0
    with open_file(segment.path) as file:
        records = _RecordDump(place, file, sink, selection) if with_records else None
        for found in walk(segment, file, begin, wanted):
            if records is None or found.problem or found.header is None:
                sink.batch(place, found)
            else:
                is_valid &= records.dump(found, found.header)
            is_valid &= not found.problem
            if found.position - done >= _PROGRESS_BYTES:
                progress(found.position - done)
                done = found.position
    progress(segment.size - done)
    return is_valid


class _RecordDump:
    """Dumps batches of one file with their records."""

    def __init__(self, place: Place, file: ReadableFile, sink: Sink, selection: Selection) -> None:
        from segmentlog.records.one_batch import BatchReader  # the compiled kernels load here

        self._place = place
        self._file = file
        self._sink = sink
        self._selection = selection
        self._reader = BatchReader(place.file)

    def dump(self, found: Found, header: BatchHeader) -> bool:
        """Dump a batch if one of its records is selected; return whether they can be read."""
        batch = self._file.read(found.position, header.size_in_bytes)
        is_shown = False  # it is shown once its first records are read, which may be damaged
        try:
            for piece in self._reader.records(batch, found.position):
                records = self._selection.records(piece)
                if records.num_rows and not is_shown:
                    self._sink.batch(self._place, found)
                    is_shown = True
                if records.num_rows:
                    self._sink.records(self._place, header, records)
            if not is_shown and self._selection.matches_empty(header):
                self._sink.batch(self._place, found)
        except SegmentLogError as error:
            reason = getattr(error, "reason", "") or str(error)
            self._sink.batch(self._place, found._replace(problem=reason))
            return False
        return True
