"""``segmentlog dump``: every batch, record, index entry and line of files, also damaged ones."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import pyarrow as pa
import typer

from segmentlog.cluster.known_losses import missing_offsets
from segmentlog.errors import (
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptLogError,
    LogDirectoryError,
    SegmentLogError,
    UnsupportedFormatError,
)
from segmentlog.format.kernels import layout
from segmentlog.format.messages.records import KAFKAS_TOPICS
from segmentlog.format.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    FileKind,
    parse_partition_directory,
    parse_segment_file,
)
from segmentlog.format.records.header import BatchHeader, ScannedBatches, parse_header
from segmentlog.kafka_tables.cluster_metadata import hide_secrets
from segmentlog.kafka_tables.connect import hide_connect_secrets
from segmentlog.log.checkpoint import (
    read_leader_epochs,
    read_meta_properties,
    read_offsets,
    read_topic_id,
)
from segmentlog.log.indexes import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    read_transaction_index,
)
from segmentlog.log.listing import SegmentFiles
from segmentlog.log.producer_snapshot import ProducerSnapshot, read_snapshot
from segmentlog.log.segment import Segment, find_log_end
from segmentlog.model import METADATA_TOPIC, TopicPartition
from segmentlog.read_options import DECODES, DatasetOptions
from segmentlog.reads.choose import missing_of, partitions_of
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.other_systems import refuse_other_systems
from segmentlog.store.paths import opened_path
from segmentlog.store.readable import (
    ReadableFile,
    is_directory,
    is_file,
    open_file,
    status_of,
    survey,
)
from segmentlog.tools import arguments
from segmentlog.tools.aborted import AbortedRecords
from segmentlog.tools.decoded import FLAGS, decoding_of
from segmentlog.tools.failures import Failed
from segmentlog.tools.output import Encoding, as_given, counted, escape
from segmentlog.tools.progress import progress, shows_bar_beside_output
from segmentlog.tools.records import Place, RecordText
from segmentlog.tools.sinks import CountingSink, EnoughError, Format, Sink, TakeRun, open_sink
from segmentlog.tools.usage import write_not_in_use
from segmentlog.tools.walk import FoundBytes, Selection, walk

_T = TypeVar("_T")
Entry = Mapping[str, object]


def is_index_file(path: str) -> bool:
    """Whether `path` has the name of a file that this module reads."""
    if Path(path).name in TEXT_FILES:
        return True
    parsed = parse_segment_file(Path(path).name)
    return parsed is not None and parsed.kind != FileKind.LOG


def entries(path: str) -> Iterator[Entry]:
    """Rows under Kafka's names; a row with the field ``problem`` stands for damage.

    Raises `OSError` if the file cannot be read; `CorruptCheckpointError` if it is a checkpoint or
    a file of ids in a form that no broker writes.
    """
    if reads := TEXT_FILES.get(Path(path).name):
        return iter(reads(path))
    with open_file(path):  # an index that cannot be opened would otherwise look empty
        parsed = parse_segment_file(Path(path).name)
    base_offset = parsed.offset if parsed else 0
    match parsed.kind if parsed else None:
        case FileKind.OFFSET_INDEX:
            return _index_entries(OffsetIndex(path, base_offset, mapped=False), path)
        case FileKind.TIME_INDEX:
            return _index_entries(TimeIndex(path, base_offset, mapped=False), path)
        case FileKind.TRANSACTION_INDEX:
            return _until_damage(read_transaction_index, _aborted_transaction, path)
        case _:
            return _until_damage(read_snapshot, _producer, path)


def _offsets(path: str) -> list[Entry]:
    found = read_offsets(*os.path.split(path)).items()
    return [{**each._asdict(), "offset": offset} for each, offset in found]


#: The reader of each text file of a broker.
TEXT_FILES: Mapping[str, Callable[[str], list[Entry]]] = {
    RECOVERY_POINT_CHECKPOINT: _offsets,
    HIGH_WATERMARK_CHECKPOINT: _offsets,
    LOG_START_CHECKPOINT: _offsets,
    CLEANER_OFFSET_CHECKPOINT: _offsets,
    LEADER_EPOCH_CHECKPOINT: lambda path: [
        {"epoch": epoch, "startOffset": start}
        for epoch, start in read_leader_epochs(path, takes_newer=True)
    ],
    PARTITION_METADATA_FILE: lambda path: [{"topicId": read_topic_id(os.path.dirname(path))}],
    META_PROPERTIES_FILE: lambda path: [
        {"key": key, "value": value}
        for key, value in read_meta_properties(os.path.dirname(path)).items()
    ],
}


def _index_entries(opened: OffsetIndex | TimeIndex, path: str) -> Iterator[Entry]:
    with opened as index:
        for slot in range(index.n_entries):
            fields = index.entry(slot)._asdict()
            yield {name.removesuffix("_ms"): value for name, value in fields.items()}
    if left := status_of(path, follow=True).size % index.entry_bytes:
        yield {"problem": f"{left} bytes at the end are not a whole entry of {index.entry_bytes}"}


def _until_damage(
    read: Callable[[str], Iterable[_T]], row: Callable[[_T], Entry], path: str
) -> Iterator[Entry]:
    try:
        yield from map(row, read(path))
    except CorruptIndexError as error:
        yield {"problem": error.reason}


def _aborted_transaction(entry: AbortedTransaction) -> Entry:
    return {
        "version": 0,  # the only version
        "producerId": entry.producer_id,
        "firstOffset": entry.first_offset,
        "lastOffset": entry.last_offset,
        "lastStableOffset": entry.last_stable_offset,
    }


def _producer(producer: ProducerSnapshot) -> Entry:
    """One producer, and its last batch if it has written one."""
    first = producer.current_txn_first_offset
    row: dict[str, object] = {
        "producerId": producer.producer_id,
        "producerEpoch": producer.producer_epoch,
        "coordinatorEpoch": producer.coordinator_epoch,
        "currentTxnFirstOffset": None if first < 0 else first,
        "lastTimestamp": producer.timestamp_ms,
    }
    if producer.last_offset >= 0:
        last, delta = producer.last_sequence, producer.offset_delta
        first_sequence = (last - delta) % 2**31 if last >= 0 else -1
        row |= {"firstSequence": first_sequence, "lastSequence": last}
        row |= {"lastOffset": producer.last_offset, "offsetDelta": delta}
        row |= {"timestamp": producer.timestamp_ms}
    return row


_PROGRESS_BYTES = 1 << 20  #: between two calls of `progress`


@arguments.command(
    "segmentlog dump /var/lib/kafka/orders-0/00000000000000000000.log --records",
    "segmentlog dump /var/lib/kafka --topic orders --partition 0 --start-offset 1500",
    "segmentlog dump /var/lib/kafka --topic orders --since 2026-03-01 --format json",
    "segmentlog dump /var/lib/kafka --topic orders --records --last 1000 --key order-58",
    "segmentlog dump /backup/orders-0/00000000000000000000.log --records --values base64",
    "segmentlog dump /backup/orders-0 --records --format parquet -o orders.parquet",
    "segmentlog dump /backup/orders-0 --records --decode --format parquet -o orders.parquet",
    "segmentlog dump /var/lib/kafka/orders-0/00000000000000000000.timeindex",
    "segmentlog dump /var/lib/kafka/replication-offset-checkpoint",
    "segmentlog dump /tmp/00000000000000000000.log --records --as __consumer_offsets",
)
@arguments.flags(DatasetOptions, "since", "until", "last", *FLAGS)
def dump(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help=arguments.PATHS_HELP
            + " Or .index, .timeindex, .txnindex, .snapshot; snapshots of KRaft (.checkpoint); "
            "replication-offset-checkpoint and similar, leader-epoch-checkpoint; "
            "partition.metadata, meta.properties.",
        ),
    ],
    topic: arguments.Topics = None,
    partition: arguments.Partitions = None,
    records: Annotated[bool, typer.Option(help="Show records, too.")] = False,
    output_format: Annotated[
        Format,
        typer.Option(
            "--format", "-f", help="The form of the output; arrow is an Arrow IPC stream."
        ),
    ] = Format.TABLE,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="The file to write, which must not exist yet."),
    ] = None,
    start_offset: Annotated[
        int | None, typer.Option(help="The first offset to show.", min=0)
    ] = None,
    end_offset: Annotated[
        int | None, typer.Option(help="The offset to stop before.", min=0)
    ] = None,
    *,
    given: dict[str, Any],
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Stop after N records or batches.", min=1)
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only records with this key.")] = None,
    keys: Annotated[Encoding, typer.Option(help="How keys are written.")] = Encoding.TEXT,
    values: Annotated[
        Encoding, typer.Option(help="How values and headers are written.")
    ] = Encoding.TEXT,
    as_topic: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="TOPIC",
            help="Decode records as those of this topic of Kafka's own: for a loose file, "
            "whatever its directory is called.",
        ),
    ] = None,
) -> None:
    """Show every batch of segment files, and with --records every record.

    Damaged batches are shown with the reason, and the dump continues after them. The exit status
    is then 1. Control records are shown with their meaning. Records of aborted transactions are
    marked in text and JSON, unless a single file is dumped. Records of Kafka's own topics are
    decoded (commits, groups, transactions, metadata), unless --keys or --values asks for bytes.
    With --decode, values are JSON by their schemas, and columns in Arrow and Parquet.
    Characters that would move a terminal's cursor, or hide or reorder text, are written as
    escapes. Without --records, a range of times uses batch headers: the times of the first record
    and of the newest one.
    """
    if key is not None and not records:
        raise typer.BadParameter("--key selects records: give --records too")
    if as_topic is not None and as_topic not in KAFKAS_TOPICS:
        raise typer.BadParameter(f"--as takes one of {', '.join(KAFKAS_TOPICS)}")
    if as_topic is not None and not records:
        raise typer.BadParameter("--as decodes records: give --records too")
    if not records and (keys, values) != (Encoding.TEXT, Encoding.TEXT):
        raise typer.BadParameter("--keys and --values write records: give --records too")
    files = [each for each in paths if is_file(opened_path(each))]
    if files and (topic or partition):
        raise typer.BadParameter(
            f"--topic and --partition choose from a directory, and {escape(files[0])} is a file: "
            "leave them out"
        )
    if given["decode"] and not records:
        raise typer.BadParameter("--decode decodes records: give --records too")
    wanted_key = None if key is None else os.fsencode(key)
    bounds = (start_offset, end_offset, given["since"], given["until"])
    selection = Selection.of(*bounds)._replace(last=given["last"], key=wanted_key)
    topics, partitions = topic or (), partition or ()
    failed = Failed()
    with ExitStack() as stack:
        bar = total = None
        shows_bar = output is not None or shows_bar_beside_output()
        if shows_bar and sys.stderr.isatty():
            total = _size_of(paths, selection, topics, partitions)
        if shows_bar:
            bar = stack.enter_context(progress("dump", total))
        decoding = None
        if any(given[name] is not None for name in DECODES):
            directory = open_log_dir(*paths)
            decoding = decoding_of(given, directory, topics or [*directory.topics()])
        text = RecordText(keys, values, as_topic, decoding)
        opened = open_sink(output_format, output, text, with_records=records)
        count = CountingSink(stack.enter_context(opened), limit, with_records=records)
        with suppress(EnoughError):
            dump_paths(
                paths,
                count,
                selection,
                topics=topics,
                partitions=partitions,
                with_records=records,
                as_topic=as_topic,
                progress=bar.advance if bar else lambda _: None,
                failed=failed,
            )
    for each in paths:
        if is_directory(path := opened_path(each)):
            write_not_in_use(open_log_dir(path), topics)
    if output is not None:
        found = {"records": count.n_records} if records else {"batches": count.batches}
        found |= {"entries": count.entries} if count.entries else {}
        size = counted(**found, bytes=os.path.getsize(output))
        sys.stdout.write(f"{escape(output)}: {size}\n")
    elif not (
        failed.names or count.is_damaged or count.batches or count.n_records or count.entries
    ):
        sys.stderr.write("nothing is selected: no batch is within the given bounds\n")
    failed.end()
    if count.is_damaged:
        raise typer.Exit(arguments.PROBLEM)


class _SelectedSegment(NamedTuple):
    """A segment, its place, and the selected part of it."""

    place: Place
    segment: Segment
    selection: Selection
    aborted: AbortedRecords


def dump_paths(
    paths: Sequence[str],
    sink: Sink,
    selection: Selection,
    *,
    topics: Sequence[str] = (),
    partitions: Sequence[int] = (),
    with_records: bool = False,
    as_topic: str | None = None,
    progress: Callable[[int], object] = lambda _: None,
    failed: Failed | None = None,
) -> None:
    """Dump files and directories to `sink`.

    `paths`: log directories, partition directories, or files of a partition.  `selection`: offsets
    and times to dump.  `topics`, `partitions`: to dump from a directory; all if empty.
    `with_records`: whether to dump records as well.  `as_topic`: the topic whose secrets are
    hidden; by default that of each file.  `progress`: called with the number of bytes of segments
    that are done.  `failed`: gets what cannot be read, and partitions that lack offsets.  Raises
    `SegmentLogError` if a path is none of these, or holds no such topic.
    """
    failed = failed or Failed()
    for given in paths:
        with failed.of(given) if len(paths) > 1 else nullcontext():
            path = opened_path(given)
            survey(path)
            if is_file(path) and is_index_file(path):
                for row in entries(path):
                    sink.entry(given, row)
                continue
            for source in _sources(path, topics, partitions, selection, failed):
                file = as_given(source.segment.path, [given])
                shown = source._replace(place=source.place._replace(file=file))
                topic = as_topic or shown.place.topic
                with failed.of(file):
                    _dump_segment(shown, sink, progress, topic if with_records else None)


def _size_of(
    paths: Sequence[str], selection: Selection, topics: Sequence[str], partitions: Sequence[int]
) -> int | None:
    """Bytes of the segments that a dump reads; None if it will end in an error."""
    try:
        return sum(
            source.segment.size
            for path in map(opened_path, paths)
            if not (is_file(path) and is_index_file(path))
            for source in _sources(path, topics, partitions, selection, None)
        )
    except (SegmentLogError, OSError):
        return None


def _sources(
    path: str,
    topics: Sequence[str],
    partitions: Sequence[int],
    selection: Selection,
    failed: Failed | None,
) -> Iterator[_SelectedSegment]:
    """Segments of a path that may hold selected records, by partition and offset."""
    if is_file(path):
        place, segment = _lone_segment(path)
        end = find_log_end(segment).offset if selection.last is not None else 0
        yield _SelectedSegment(place, segment, selection.of_log(end), AbortedRecords(None))
        return
    directory = open_log_dir(path)
    missing = missing_of(directory, topics, partitions)
    if failed:
        for lost in missing:
            failed.add(lost.topic_partition, f"it is not dumped: {lost.reason}")
    for each in partitions_of(directory, topics, partitions, missing):
        with failed.of(each) if failed else nullcontext():
            yield from _sources_of(_of_files(directory, each), selection)
            if failed:
                for reason in missing_offsets(directory.log(*each)):
                    failed.add(each, reason)


def _of_files(directory: LogDirectory, topic_partition: TopicPartition) -> Log:
    """The log of a partition; without its checkpoints, which a dump of batches does not need."""
    try:
        return directory.log(*topic_partition)
    except CorruptCheckpointError:
        return directory.log_without_checkpoints(topic_partition)


def _sources_of(log: Log, selection: Selection) -> Iterator[_SelectedSegment]:
    """Segments of a log that may hold selected records."""
    segments = log.segments
    wanted = selection.of_log(log.log_end_offset) if selection.last is not None else selection
    aborted = AbortedRecords(log)
    next_bases = (*(segment.base_offset for segment in segments[1:]), 2**63)
    for segment, next_base in zip(segments, next_bases, strict=False):  # a log may have none
        if next_base > wanted.from_offset and segment.base_offset < wanted.to_offset:
            place = Place(*log.topic_partition, segment.path)
            yield _SelectedSegment(place, segment, wanted, aborted)


def _lone_segment(path: str) -> tuple[Place, Segment]:
    """A ``.log`` file in any state, or a snapshot of KRaft, which is written in the same way."""
    file = Path(path)
    refuse_other_systems(path)
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
    source: _SelectedSegment, sink: Sink, progress: Callable[[int], object], topic: str | None
) -> None:
    """Dump one file from the first selected batch.

    `topic`: the topic whose records are dumped; None for batches alone.
    """
    place, segment, selection, aborted = source
    begin = segment.floor_position(selection.from_offset) if selection.from_offset > 0 else 0
    wanted = selection.matches if topic is None else selection.may_hold
    done = 0
    with open_file(segment.path) as file:
        records = None
        if topic is not None:
            records = _RecordDump(place, file, sink, selection, topic, aborted)
        take = None if records is None else sink.run
        for found in walk(segment, file, begin, wanted, in_runs=take is not None):
            if isinstance(found, ScannedBatches):
                position = found.file_end
                if records is not None and take is not None:
                    records.dump_run(found, take)
            else:
                position = found.position
                if records is None or found.problem or found.header is None:
                    sink.batch(place, found)
                else:
                    records.dump(found, found.header)
            if position - done >= _PROGRESS_BYTES:
                progress(position - done)
                done = position
    progress(segment.size - done)


class _RecordDump:
    """Dumps batches of one file with their records."""

    def __init__(
        self,
        place: Place,
        file: ReadableFile,
        sink: Sink,
        selection: Selection,
        topic: str,
        aborted: AbortedRecords,
    ) -> None:
        # The compiled kernels load here.
        from segmentlog.format.records.decoder import BatchReader

        self._place = place
        self._file = file
        self._sink = sink
        self._selection = selection
        self._aborted = aborted
        self._reader = BatchReader(place.file)
        # A snapshot of the metadata may lie anywhere.
        self._is_metadata = topic == METADATA_TOPIC or place.file.endswith(".checkpoint")

    def dump(self, found: FoundBytes, header: BatchHeader) -> None:
        """Dump a batch if one of its records is selected."""
        batch = self._file.read(found.position, header.size_in_bytes)
        is_shown = False  # it is shown once its first records are read, which may be damaged
        try:
            for piece in self._reader.records(batch, found.position):
                records = self._selection.records(piece)
                if not header.is_control:
                    records = _without_secrets(records, is_metadata=self._is_metadata)
                    if header.is_transactional:
                        records = self._aborted.marked(records)
                if records.num_rows and not is_shown:
                    self._sink.batch(self._place, found)
                    is_shown = True
                if records.num_rows:
                    self._sink.records(self._place, header, records)
            if not is_shown and self._selection.matches_empty(header):
                self._sink.batch(self._place, found)
        except SegmentLogError as error:
            self._bad(found, error)

    def dump_run(self, run: ScannedBatches, take: TakeRun) -> None:
        """Dump the selected records of good batches, which `take` gets."""
        run = run.only(self._selection.may_hold_each(run.headers))
        try:
            for piece in self._reader.records_of(run):
                records = self._selection.records(piece)
                if records.num_rows:
                    records = _without_secrets(records, is_metadata=self._is_metadata)
                    take(self._place, run.headers, records)
        except (CorruptLogError, UnsupportedFormatError) as error:
            positions = run.file_position + run.headers[:, layout.POSITION]
            bad = int(positions.searchsorted(error.position))
            for position in positions[bad:].tolist():
                header = parse_header(self._file.read(position, layout.HEADER_BYTES))
                found = FoundBytes(position, header.size_in_bytes, header)
                if position == error.position:
                    self._bad(found, error)
                else:
                    self.dump(found, header)

    def _bad(self, found: FoundBytes, error: SegmentLogError) -> None:
        reason = getattr(error, "reason", "") or str(error)
        self._sink.batch(self._place, found._replace(problem=reason))


def _without_secrets(records: pa.RecordBatch, *, is_metadata: bool) -> pa.RecordBatch:
    """Records of the metadata, or of any topic; Kafka's own dump tool prints credentials."""
    if not is_metadata:
        return hide_connect_secrets(records)
    at = records.schema.get_field_index("value")
    hidden = hide_secrets(records.column(at).to_pylist())
    return records.set_column(at, records.schema.field(at), pa.array(hidden, pa.binary()))
