"""Retention without a broker: remove the segments that a broker's next check would remove.

Three rules apply in turn, each to the segments that the rule before it has left
(``UnifiedLog.deleteOldSegments``).  Each rule walks from the oldest segment, and stops at the
first segment that it keeps.

1. **Start**: segments whose successor begins at or below the log start.  This rule applies to
   logs of any ``cleanup.policy``; the others apply if the policy has ``delete``.
2. **Size**: the oldest segments, as long as the log keeps ``retention.bytes`` without them.
3. **Time**: segments whose newest timestamp is more than ``retention.ms`` ago.

No rule removes a segment that reaches beyond the high watermark, or an active segment without
records.  If all segments go, the log rolls first, and its active segment goes as well.

`segmentlog.maintain.move_log_starts` has the durable steps.
"""

import copy
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache, partial
from itertools import pairwise, takewhile
from typing import Annotated, NamedTuple, Unpack

from segmentlog.arguments import takes, topic_names
from segmentlog.bucket.upkeep import move_starts, newest_times, place_in_store
from segmentlog.cluster.directory_settings import (
    OF_RETENTION,
    DirectorySettings,
    Source,
    log_directory,
    partitions_for_upkeep,
)
from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.segment import Segment
from segmentlog.model import TopicPartition
from segmentlog.operation_options import (
    ClusterOptions,
    FailureOptions,
    PurgeOptions,
    WaitOptions,
    dry_run_of,
    settings_of,
)
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.store.readable import is_url
from segmentlog.store.system_errors import Failures, storage_errors
from segmentlog.times import iso_time, likely_unit
from segmentlog.txn.change import hold
from segmentlog.txn.effects import PutAside


class Reason(StrEnum):
    """The rule by which a segment is removed."""

    START = "start"  #: it lies below the log start
    SIZE = "size"  #: ``retention.bytes``
    TIME = "time"  #: ``retention.ms``


class SegmentSpan(NamedTuple):
    """One segment; `end_offset` is the base of the next segment, or the log end."""

    base_offset: int
    end_offset: int
    n_bytes: int


class LogBounds(NamedTuple):
    """The offsets at which a log begins, and up to which its records are replicated."""

    log_start: int
    high_watermark: int


class Expired(NamedTuple):
    """A segment to remove; `newest_ms` is its newest timestamp (epoch) if that is the reason."""

    span: SegmentSpan
    reason: Reason
    newest_ms: int | None = None


_AS_TOTAL = -2  #: a limit of local retention that is that of all retention

_LAST_DATE_MS = 253_402_300_799_999  #: the end of the year 9999

_LIMITS = {Reason.SIZE: "retention.bytes", Reason.TIME: "retention.ms"}


class RemovedSegment(NamedTuple):
    """A segment that retention has removed, or would remove.

    Attributes
    ----------
    base_offset, end_offset : its first offset, and the offset after it.
    n_bytes : of its ``.log`` file.
    reason : the rule that removes it.
    newest_ms : its newest timestamp (epoch) if that is the reason, or else None.
    limit : the setting that the segment exceeds, as ``retention.ms=604800000``; empty below the
        log start.
    source : the place that has this setting, as in `segmentlog.Setting`; empty below the log
        start.
    """

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    n_bytes: int
    reason: Reason
    newest_ms: int | None
    limit: str
    source: str = ""


class Hold(StrEnum):
    """The reason for which a segment stays."""

    HIGH_WATERMARK = "high-watermark"  #: it reaches beyond the high watermark
    EMPTY = "empty"  #: it is the active segment, and has no records
    POLICY = "policy"  #: ``cleanup.policy`` has no ``delete``
    NO_LIMIT = "no-limit"  #: neither ``retention.ms`` nor ``retention.bytes`` is a limit
    LIMITS = "limits"  #: it is younger, and the log without it smaller, than the limits


class KeptSegment(NamedTuple):
    """The oldest segment that retention leaves in a partition: no later segment goes before it.

    Attributes
    ----------
    base_offset, end_offset : its first offset, and the offset after it.
    n_bytes : of its ``.log`` file.
    hold : the rule that keeps it.
    newest_ms : its newest timestamp (epoch), or the time of its file if its records have none;
        None unless `retention.ms` is a limit that keeps it.
    newest_offset : the first record with this timestamp, or -1 without one.
    until_ms : when `retention.ms` will have passed (epoch), or None; None after the year 9999.
    n_waiting, n_bytes_waiting : later segments that are older than `retention.ms`, and wait for
        this one; counted if its newest timestamp is in the future.
    n_local, n_bytes_local : segments from this one on that a broker removes from its disk by
        ``local.retention.ms`` or ``local.retention.bytes``, once its tier has them.
    reason : all this in words.
    """

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    n_bytes: int
    hold: Hold
    newest_ms: int | None
    newest_offset: int
    until_ms: int | None
    n_waiting: int
    n_bytes_waiting: int
    reason: str
    n_local: int = 0
    n_bytes_local: int = 0


class _Plan(NamedTuple):
    """The segments that go from one log, and the offset at which the log begins afterwards."""

    topic_partition: TopicPartition
    expired: list[Expired]
    new_start: int
    is_emptied: bool
    kept: KeptSegment | None = None


class RetainOptions(ClusterOptions, PurgeOptions, WaitOptions, FailureOptions, total=False):
    """Those of `segmentlog.retain`.

    Parameters
    ----------
    kafka_defaults : whether to use Kafka's defaults for limits that are not set: one week, and no
        limit in bytes.  With `server_properties`, these defaults always apply.
    on_kept : called at the end for each partition that keeps segments, with the oldest of them,
        and the reason for which it stays.
    """

    settings: Annotated[Mapping[str, str] | None, settings_of("retention.ms")]
    dry_run: Annotated[bool, dry_run_of("removed")]
    kafka_defaults: bool
    on_kept: Callable[[KeptSegment], object] | None


@takes(RetainOptions)
@storage_errors()
def retain(
    path: str | os.PathLike[str],
    topics: str | Collection[str] = (),
    **options: Unpack[RetainOptions],
) -> list[RemovedSegment]:
    """Remove expired segments from a log directory on which no broker is running.

    Operations that a crash has interrupted are finished or undone first.  The log starts of all
    partitions move at once; after a crash, either all of them have moved or none.

    Parameters
    ----------
    path : the log directory, or the URL of a log in an object store.
    topics : one name or several; all topics if empty, but none of brokers' own if `settings` are
        given.
    **options : those of `RetainOptions`.

    Returns
    -------
    list of RemovedSegment
        In the order of topics, partitions and offsets.

    Raises
    ------
    OptionError
        If a setting is unknown, or has a value that is not accepted; if no file contains the
        settings of a broker's topics; if a limit that nobody has set would remove records, and
        `kafka_defaults` is not given.
    UnknownTopicOrPartitionError
        If the directory does not hold a topic.
    LogDirectoryError
        If `path` is not a log directory; if a log is damaged, or may not be written to.
    LogLockedError
        If a broker or a writer holds the directory.
    CorruptLogError, CorruptCheckpointError
        If a log, a checkpoint or the settings cannot be read.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    from segmentlog.maintain.move_log_starts import LogStartMove  # the compiled kernels load here

    failures = Failures(options["on_failure"])
    topics = topic_names("topics", topics)
    settings = options["settings"]
    TopicConfig.parse({} if settings is None else settings)
    location = place_in_store(path)
    directory = log_directory(path) if location is None else location.root

    # Called under the lock: another process may change settings while this one waits.
    known = cache(
        partial(
            DirectorySettings.read,
            directory,
            options["settings"],
            options["metadata"],
            options["server_properties"],
            kafka_defaults=options["kafka_defaults"],
            topics=topics,
            purge=options["purge"],
            needs=OF_RETENTION,
        )
    )

    def planned(
        failures: Failures, partitions: Iterable[TopicPartition] | None = None
    ) -> list[_Plan]:
        if partitions is None:
            partitions = partitions_for_upkeep(
                directory, topics, has_settings=bool(options["settings"])
            )
        newest = None if location is None else partial(newest_times, location)
        return _plans(
            directory,
            partitions,
            known(),
            failures,
            explains=options["on_kept"] is not None,
            newest_of=newest,
        )

    def room() -> PutAside:
        plans = planned(Failures(lambda *_: None))  # the retention itself names damaged logs
        going = [each for each in plans if each.expired]
        ends = [(*each.topic_partition, each.expired[-1].span.end_offset) for each in going]
        return PutAside(ends)

    if location is not None:
        plans = planned(failures)
        kept = {each.topic_partition: each.kept for each in plans}
        starts = {each.topic_partition: each.new_start for each in plans if each.expired}
        if starts and not options["dry_run"]:
            opened = open_log_dir(directory)
            move_starts(location, starts, {at: opened.log(*at).known_topic_id for at in starts})
    else:
        with hold(
            directory,
            options["lock_timeout_seconds"],
            lambda topic: known().config(topic),
            dry_run=options["dry_run"],
            make_room=lambda held: held.remove_due(topics or None),
            effects=lambda: [room()],
        ) as held:
            plans = planned(failures)
            kept = {each.topic_partition: each.kept for each in plans}
            found = [each.topic_partition for each in plans if each.expired]
            if held.may_write and found:
                move = LogStartMove(held, found, failures)
                # Preparing may have cut a torn tail, and with it the end of the log.
                plans = planned(failures, move.partitions)
                kept |= {each.topic_partition: each.kept for each in plans}
                going = [each for each in plans if each.expired]
                starts = {each.topic_partition: each.new_start for each in going}
                emptied = {each.topic_partition for each in going if each.is_emptied}
                if starts:
                    move.commit(starts, emptied)
            elif found:
                # The kernels load here.
                from segmentlog.writes.prepare import check_ready

                for at in found:
                    with failures.of(at):
                        check_ready(held, at)
                plans = [
                    each for each in plans if str(each.topic_partition) not in failures.errors
                ]
                kept = {each.topic_partition: each.kept for each in plans}
    if options["on_kept"] is not None:
        for each in filter(None, kept.values()):
            options["on_kept"](each)
    failures.end()
    return [each for plan in plans for each in _removed(plan, known())]


def _plans(
    directory: str,
    partitions: Iterable[TopicPartition],
    settings: DirectorySettings,
    failures: Failures,
    *,
    explains: bool,
    newest_of: Callable[[TopicPartition], Mapping[int, int]] | None,
) -> list[_Plan]:
    """The plan of each log; with the reason for which its oldest segment stays, if `explains`.

    `newest_of`: the newest timestamps of the segments of a log, if they are known.
    """
    opened, now_ms = open_log_dir(directory), int(time.time() * 1000)
    plans = []
    for each in partitions:
        config = settings.config(each.topic)
        with failures.of(each):
            log = opened.log(*each)
            plan = _plan(log, config, now_ms, newest_of(each) if newest_of else None)
            if explains:
                plan = plan._replace(kept=_kept(log, settings, len(plan.expired), now_ms))
            plans.append(plan)
    _refuse_unset(plans, settings)
    return plans


def _refuse_unset(plans: Iterable[_Plan], settings: DirectorySettings) -> None:
    """Refuse to remove anything because of a limit that nobody has set.

    Raises `OptionError` for the first topic; it names the setting, and what would be removed.
    """
    refused: dict[tuple[str, str], list[SegmentSpan]] = {}
    for plan in plans:
        topic = plan.topic_partition.topic
        for each in plan.expired:
            unset = settings.unset(topic, _LIMITS[each.reason]) if each.reason in _LIMITS else None
            if unset is not None:
                refused.setdefault((unset, topic), []).append(each.span)
    for (name, topic), spans in refused.items():
        n_bytes = sum(each.n_bytes for each in spans)
        found = settings.of(topic)[name]
        places = (
            "name the broker's server.properties (server_properties, --server-properties), "
            if found.source is Source.UNSEEN
            else "keep it with segmentlog configure, "
        )
        accepted = (
            f"it is not set for topic {topic!r}, and {len(spans)} segments with {n_bytes} bytes "
            f"would be removed by Kafka's default, {found.value}: give the setting in the call, "
            f"{places}or allow Kafka's defaults (kafka_defaults=True, --kafka-defaults)"
        )
        raise OptionError(name, "", accepted)


def _plan(
    log: Log, config: TopicConfig, now_ms: int, newest: Mapping[int, int] | None = None
) -> _Plan:
    spans = spans_of(log)
    bounds = _bounds(log)
    by_base = {each.base_offset: each for each in log.segments}

    def newest_ms(span: SegmentSpan) -> int:
        if newest is None:
            return _in_use(by_base, span).newest_ms()
        # Of a log in a store: without timestamps, the age of a segment is not known.
        found = newest.get(span.base_offset, -1)
        return found if found >= 0 else now_ms

    expired = find_expired(spans, bounds, config, newest_ms, now_ms)
    end = expired[-1].span.end_offset if expired else bounds.log_start
    new_start, is_emptied = max(end, bounds.log_start), len(expired) == len(spans) > 0
    return _Plan(log.topic_partition, expired, new_start, is_emptied)


def _in_use(by_base: Mapping[int, Segment], span: SegmentSpan) -> Segment:
    """The segment without a torn tail."""
    segment = copy.copy(by_base[span.base_offset])
    segment.size = span.n_bytes
    return segment


def _kept(
    log: Log, settings: DirectorySettings, n_expired: int, now_ms: int
) -> KeptSegment | None:
    """The oldest segment that stays, and why; None if no segment stays."""
    spans, config = spans_of(log)[n_expired:], settings.config(log.topic_partition.topic)
    if not spans:
        return None
    shown = {
        name: f"{name}={each.value} ({each.source})"
        for name, each in settings.of(log.topic_partition.topic).items()
    }
    kept = _with_reason(log, spans, config, now_ms, shown)
    if not config.remote_storage_enable or is_url(log.path):
        return kept
    # A broker takes these out of its disk alone. Here, nothing shows that the tier has them.
    local = replace(
        config,
        cleanup_policy=frozenset({"delete"}),
        retention_ms=_local(config.local_retention_ms, config.retention_ms),
        retention_bytes=_local(config.local_retention_bytes, config.retention_bytes),
    )
    by_base = {each.base_offset: each for each in log.segments}
    found = find_expired(
        spans, _bounds(log), local, lambda span: _in_use(by_base, span).newest_ms(), now_ms
    )
    going = [each.span for each in found if each.span is not spans[-1]]  # it is never copied
    n_bytes = sum(each.n_bytes for each in going)
    limits = f"{shown['local.retention.ms']} and {shown['local.retention.bytes']}"
    reason = (
        f"{kept.reason}; {shown['remote.storage.enable']}: by {limits}, a broker removes "
        f"{len(going)} segments with {n_bytes:,} bytes from its disk, once its tier has them"
    )
    return kept._replace(n_local=len(going), n_bytes_local=n_bytes, reason=reason)


def _local(limit: int, total: int) -> int:
    """A limit of the disk; -2 stands for that of the whole log (``LogConfig``)."""
    return total if limit == _AS_TOTAL else limit


def _with_reason(
    log: Log,
    spans: Sequence[SegmentSpan],
    config: TopicConfig,
    now_ms: int,
    shown: Mapping[str, str],
) -> KeptSegment:
    """The first of some segments, and why it stays; `shown` has the settings in words."""
    first, bounds = spans[0], _bounds(log)
    kept = KeptSegment(
        *log.topic_partition,
        *first,
        Hold.LIMITS,
        None,
        -1,
        None,
        0,
        0,
        "",
    )
    if first is spans[-1] and not first.n_bytes:
        return kept._replace(
            hold=Hold.EMPTY, reason="it is the active segment, and has no records"
        )
    if bounds.high_watermark < first.end_offset:
        reason = f"it reaches beyond the high watermark, {bounds.high_watermark}"
        return kept._replace(hold=Hold.HIGH_WATERMARK, reason=reason)
    if "delete" not in config.cleanup_policy:
        return kept._replace(hold=Hold.POLICY, reason=f"{shown['cleanup.policy']} has no delete")
    if config.retention_ms < 0 and config.retention_bytes < 0:
        reason = f"{shown['retention.ms']} and {shown['retention.bytes']} are no limits"
        return kept._replace(hold=Hold.NO_LIMIT, reason=reason)
    reasons = []
    if config.retention_ms >= 0:
        kept, reason = _too_young(kept, log, spans, config, now_ms, shown["retention.ms"])
        reasons.append(reason)
    if config.retention_bytes >= 0:
        n_left = sum(each.n_bytes for each in spans[1:])
        reasons.append(
            f"without it, the log would have {n_left:,} bytes, and {shown['retention.bytes']} "
            "keeps more"
        )
    return kept._replace(reason="; ".join(reasons))


def _too_young(
    kept: KeptSegment,
    log: Log,
    spans: Sequence[SegmentSpan],
    config: TopicConfig,
    now_ms: int,
    limit: str,
) -> tuple[KeptSegment, str]:
    """A segment that ``retention.ms`` keeps, with its newest record, and the reason in words."""
    by_base = {each.base_offset: each for each in log.segments}
    first = _in_use(by_base, spans[0])
    offset, newest = _newest_offset(first), first.newest_ms()
    until = newest + config.retention_ms
    ends = until <= _LAST_DATE_MS
    what = (
        f"its records have no timestamps, and its file was last written at {iso_time(newest)}"
        if offset < 0
        else f"its newest record, offset {offset}, is from {iso_time(newest)}"
    )
    keeps = f"keeps it until {iso_time(until)}" if ends else "keeps it for ever"
    reason = f"{what}{doubtful_time(newest)}, and {limit} {keeps}"
    kept = kept._replace(newest_ms=newest, newest_offset=offset, until_ms=until if ends else None)
    if newest <= now_ms:
        return kept, reason
    waiting = [
        each
        for each in _removable(spans[1:], _bounds(log))
        if now_ms - _in_use(by_base, each).newest_ms() > config.retention_ms
    ]
    n_bytes = sum(each.n_bytes for each in waiting)
    kept = kept._replace(n_waiting=len(waiting), n_bytes_waiting=n_bytes)
    held_back = (
        f"; {len(waiting)} later segments with {n_bytes:,} bytes are older, and wait for it"
        if waiting
        else ""
    )
    return kept, f"{reason}: this time is in the future{held_back}"


def _newest_offset(segment: Segment) -> int:
    """The first record with the largest timestamp of a segment; -1 without timestamps."""
    with segment.opened() as opened:
        placed = opened.newest_batch()
        if placed is None:
            return -1
        header = placed.header
        if header.records_count <= 1:
            return header.last_offset
        # The compiled kernels load here.
        from segmentlog.format.records.decoder import read_timestamps

        batch = opened.file.read(placed.position, header.size_in_bytes)
        try:
            offsets, times = read_timestamps(batch, segment.path, placed.position)
        except SegmentLogError:  # the records are damaged, and retention looks at headers alone
            return header.base_offset
    newest = offsets[times == header.max_timestamp]
    return int(newest[0]) if len(newest) else header.base_offset


def doubtful_time(timestamp_ms: int) -> str:
    """For messages: the unit of a time that is probably not in milliseconds; or empty."""
    unit = likely_unit(timestamp_ms)
    return "" if unit is None else f" (it looks like {unit[0]}, of {iso_time(unit[1])})"


def plan_retention(log: Log, config: TopicConfig, now_ms: int) -> list[Expired]:
    """The segments of a log that retention removes at a time (epoch)."""
    return list(_plan(log, config, now_ms).expired)


def find_expired(
    spans: Sequence[SegmentSpan],
    bounds: LogBounds,
    config: TopicConfig,
    newest_ms: Callable[[SegmentSpan], int],
    now_ms: int,
) -> list[Expired]:
    """The segments to remove, in the order of their offsets.

    A timestamp in the future keeps its segment, as with a broker.

    `spans`: all segments of the log; the last one is active.  `newest_ms`: newest timestamp of a
    segment (epoch), or the time at which its file was last written if it has none
    (``LogSegment.largestTimestamp``).  It is asked for the oldest segments only.  `now_ms`: the
    time by which ages are computed (epoch).
    """
    expired = [
        Expired(span, Reason.START)
        for span in takewhile(
            lambda span: span is not spans[-1] and span.end_offset <= bounds.log_start,
            _removable(spans, bounds),
        )
    ]
    if "delete" not in config.cleanup_policy:
        return expired
    left = spans[len(expired) :]
    if config.retention_bytes >= 0:
        room = sum(span.n_bytes for span in left) - config.retention_bytes
        for span in _removable(left, bounds):
            room -= span.n_bytes
            if room < 0:
                break
            expired.append(Expired(span, Reason.SIZE))
    if config.retention_ms >= 0:
        for span in _removable(spans[len(expired) :], bounds):
            newest = newest_ms(span)
            if now_ms - newest <= config.retention_ms:
                break
            expired.append(Expired(span, Reason.TIME, newest))
    return expired


def _removable(spans: Sequence[SegmentSpan], bounds: LogBounds) -> Iterator[SegmentSpan]:
    """The oldest segments, up to the first that no rule may remove."""
    for span in spans:
        is_empty = span is spans[-1] and not span.n_bytes
        if is_empty or bounds.high_watermark < span.end_offset:
            return
        yield span


def spans_of(log: Log) -> list[SegmentSpan]:
    """The segments of a log, each with the offset after it; without a torn tail."""
    segments = log.segments
    spans = [
        SegmentSpan(each.base_offset, after.base_offset, each.size)
        for each, after in pairwise(segments)
    ]
    if segments:
        end = log.log_end_offset
        spans.append(SegmentSpan(segments[-1].base_offset, end, log.end.position))
    return spans


def removed_below(log: Log, log_start: int) -> list[SegmentSpan]:
    """The segments to remove once a log begins at `log_start`; the active segment stays."""
    return [each for each in spans_of(log)[:-1] if each.end_offset <= log_start]


def _bounds(log: Log) -> LogBounds:
    high_watermark = log.high_watermark
    return LogBounds(
        log.log_start_offset, log.log_end_offset if high_watermark is None else high_watermark
    )


def _removed(plan: _Plan, settings: DirectorySettings) -> list[RemovedSegment]:
    topic, partition = plan.topic_partition
    found = settings.of(topic)
    limits = {
        reason: (f"{name}={found[name].value}", str(found[name].source))
        for reason, name in _LIMITS.items()
    }
    return [
        RemovedSegment(topic, partition, *span, reason, newest_ms, *limits.get(reason, ("", "")))
        for span, reason, newest_ms in plan.expired
    ]
