"""The state of a log in an object store, which its commits add up to."""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import TypeVar

from segmentlog.bucket.commits import NOT_DONE, Commit
from segmentlog.bucket.extents import Extents, PartitionLog, Topic
from segmentlog.bucket.growing import Growing
from segmentlog.model import TopicPartition
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.state import (
    FORGOTTEN_AFTER_MS,
    MOST_SPANS,
    Ranges,
    Spans,
    Streams,
    forget_old,
    newest_spans,
    spans_of,
)

_Key = TypeVar("_Key")
_Found = TypeVar("_Found")

#: Commits after which a state forgets what is too old.
_FORGETS_EVERY = 32


@dataclass(slots=True)
class LogState:
    """A log after a commit.  `after` makes a new one, which shares what has not changed."""

    number: int = 0  # of the last commit
    time_ms: int = 0  # of the last commit
    topics: dict[str, Topic] = field(default_factory=dict)
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    versions: Growing[tuple[str, str], tuple[int, int]] = field(default_factory=Growing)
    streams: Streams = field(default_factory=dict)
    #: jobs that have committed or were retired, with the time; none of them may commit any more
    ended: Growing[str, tuple[str, int]] = field(default_factory=Growing)
    #: objects of extents that have left the log, with the time: readers may still need them
    left: Growing[str, tuple[str, int]] = field(default_factory=Growing)
    #: deleted topics, each with the commit's token and time: one of that name now is another one
    deleted: Growing[str, tuple[str, int]] = field(default_factory=Growing)
    token: str = ""  # of the last commit; empty before all, and if a checkpoint does not say it
    log_id: str = ""  # of the log, from commit `since` on; empty in layout 1
    since: int = 0
    features: tuple[str, ...] = ()  # see `Commit`
    settings: SettingsFile = field(default_factory=SettingsFile)  # of topics
    #: where the records of `versions` and `streams` lie, with the times of those, as far as it is
    #: known: a checkpoint of an earlier version does not say it
    spans: Growing[tuple[str, str], tuple[Ranges, int]] = field(default_factory=Growing)

    def after(self, commit: Commit) -> "LogState":
        """The state once a commit has followed.

        A commit of another log only takes its number: a request of somebody who knew the log that
        was here before has come late.  Raises `ValueError` if the commit cannot follow this state.
        """
        if self.log_id and commit.log_id != self.log_id:
            return replace(self, number=commit.number, token=commit.token)
        if commit.log_id and commit.previous != self.token:
            raise ValueError(
                f"it was made after another commit {self.number}: objects of two logs, or of two "
                "backups, lie side by side"
            )
        now_ms = commit.time_ms
        # A jump of the clock moves all times, at once.  Else a table is only gone through now and
        # then: what is kept for longer costs a few bytes.
        forgets = commit.number % _FORGETS_EVERY == 0 or now_ms - self.time_ms > FORGOTTEN_AFTER_MS

        def kept(table: Growing[_Key, tuple[_Found, int]]) -> Growing[_Key, tuple[_Found, int]]:
            return Growing(forget_old(table, self.time_ms, now_ms)) if forgets else table

        state = LogState(
            commit.number,
            now_ms,
            dict(self.topics),
            dict(self.logs),
            kept(self.versions),
            forget_old(self.streams, self.time_ms, now_ms),
            kept(self.ended),
            kept(self.left),
            kept(self.deleted),
            commit.token,
            commit.log_id,
            self.since or (commit.number if commit.log_id else 0),
            (*dict.fromkeys((*self.features, *commit.features)),),
            self.settings,
            kept(self.spans),
        )
        state._take(commit)
        for part in commit.parts:
            state.take_part(part)
        return state

    def last_spans(self) -> Spans:
        """Where the records of the last numbered writes and batches of queries lie.

        As in a log directory, only those of the last commits are kept; the others are not known.
        """
        found = nlargest(MOST_SPANS, self.spans.items(), key=lambda each: each[1][1])
        return newest_spans({key: ranges for key, (ranges, _) in reversed(found)})

    def take_part(self, part: Commit) -> None:
        """Change this state, which nobody else has yet, by a part of its commit.

        Raises `ValueError` if the part cannot follow; the state is of no use then.
        """
        if not part.job or part.job in self.ended:
            raise ValueError(f"job {part.job!r} takes part, and has ended before")
        self._take(part)

    def _take(self, commit: Commit) -> None:
        """Change this state, which nobody else has yet, by a commit without its parts."""
        self.settings = self.settings.without(commit.deleted)
        for topic, settings in commit.settings.items():
            self.settings = self.settings.having(topic or None, settings)
        left = self._take_topics(commit)
        left += self._take_extents(commit)
        left += self._take_starts(commit)
        for at, offset in commit.cleaned.items():
            if (log := self._log(at)).end < offset:
                raise ValueError(f"{at} ends at {log.end}, and cannot be compacted up to {offset}")
            self.logs[at] = replace(log, cleaned_to=max(log.cleaned_to, offset))
        for at, epochs in commit.epochs.items():
            self.logs[at] = replace(self._log(at), epochs=epochs)
        for at, snapshot in commit.snapshots.items():
            log = self._log(at)
            if log.snapshot:
                left.append(log.snapshot.object)
            self.logs[at] = replace(log, snapshot=snapshot)
        self._take_writes(commit)
        jobs = [job for job in (commit.job, *commit.retired) if job]
        self.ended = self.ended.grown(dict.fromkeys(jobs, ("", self.time_ms)))
        self.left = self.left.grown(dict.fromkeys(left, ("", self.time_ms)))

    def _log(self, at: TopicPartition) -> PartitionLog:
        """A partition that a commit names; raises `ValueError` if there is none."""
        found = self.logs.get(at)
        if found is None:
            raise ValueError(f"there is no partition {at}")
        return found

    def _take_topics(self, commit: Commit) -> list[str]:
        """Delete topics, and create others; returns the objects of extents that leave."""
        left: list[str] = []
        for topic in commit.deleted:
            gone = self.topics.pop(topic, None)
            for partition in range(gone.n_partitions if gone else 0):
                log = self.logs.pop(TopicPartition(topic, partition), PartitionLog())
                left += log.needed_objects()
        if commit.deleted:
            deleted = dict.fromkeys(commit.deleted, (commit.token, self.time_ms))
            self.deleted = self.deleted.grown(deleted)
            # A write of one of these versions counts as not done: its records are gone.
            self.versions = self.versions.without(lambda key: key[1] in commit.deleted)
            self.spans = self.spans.without(lambda key: key[1] in commit.deleted)
        for topic, found in commit.created.items():
            before = self.topics.get(topic)
            if before is not None and before.n_partitions > found.n_partitions:
                raise ValueError(f"topic {topic!r} would lose partitions")
            self.topics[topic] = found
            for partition in range(found.n_partitions):
                if partition not in found.lacks:
                    self.logs.setdefault(TopicPartition(topic, partition), PartitionLog())
        return left

    def _take_extents(self, commit: Commit) -> list[str]:
        """Add extents, some in place of others; returns the objects of those that leave."""
        left: list[str] = []
        changed: dict[TopicPartition, PartitionLog] = {}
        after: dict[TopicPartition, Extents] = {}  # what follows the replaced extents
        for at, offsets in commit.replaced.items():
            old = self._log(at)
            changed[at], after[at] = old.without(*offsets)
            begin, stop = changed[at].n_extents, old.n_extents - len(after[at])
            left += old.objects[begin:stop]
        for extent in commit.extents:
            at = TopicPartition(extent.topic, extent.partition)
            if at in after and extent.base_offset >= commit.replaced[at][1]:
                changed[at].follow_with(after.pop(at))
            log = changed.get(at)
            if log is None:
                log = changed[at] = self._log(at).grown()
            if not log.end <= extent.base_offset < extent.end_offset:
                shown = f"[{extent.base_offset}, {extent.end_offset})"
                raise ValueError(f"offsets {shown} of {at} do not follow {log.end}")
            log.add(extent)
        for at, extents in after.items():
            changed[at].follow_with(extents)
        for at in commit.replaced:
            changed[at].end = max(changed[at].end, self.logs[at].end)
        self.logs.update(changed)
        return left

    def _take_starts(self, commit: Commit) -> list[str]:
        """Move starts of partitions; returns the objects of extents that leave."""
        left: list[str] = []
        for at, start in commit.starts.items():
            log = self._log(at)
            # A mirror follows a log that has lost all of its records, and begins later.
            is_mirrored = at in commit.epochs
            if not log.start <= start or (start > log.end and not is_mirrored):
                raise ValueError(f"{at} cannot begin at {start}: it has [{log.start}, {log.end})")
            n = log.n_extents
            first = bisect_right(log.extents.columns["end_offset"], start, 0, n)
            left += log.objects[:first]
            self.logs[at] = replace(
                log,
                start=start,
                end=max(log.end, start),
                extents=log.extents.part(first, n),
                n_extents=n - first,
            )
        return left

    def _take_writes(self, commit: Commit) -> None:
        """Change the numbered writes and batches that count, and where their records lie."""
        others: set[tuple[str, str]] = {  # of a mirror, which may not know where their records lie
            key
            for key, (number, _) in commit.versions.items()
            if self.versions.get(key, (-1, 0))[0] != number
        }
        others |= {
            (query, "")
            for query, (batch, _) in commit.streams.items()
            if query not in self.streams or self.streams[query][0] != batch
        }
        if not others.isdisjoint(self.spans):
            self.spans = self.spans.without(others.__contains__)
        versions, spans = dict(commit.versions), dict(commit.spans)
        if commit.version is not None:
            app_id, number, topics = commit.version
            keys = {(app_id, topic): (number, self.time_ms) for topic in topics}
            versions |= keys
            spans |= spans_of(keys, commit.ranges())
        self.streams |= commit.streams
        if commit.batch is not None:
            query, batch = commit.batch
            self.streams[query] = batch, self.time_ms
            spans |= spans_of([(query, "")], commit.ranges())
        self.versions = self.versions.grown(versions)
        if any(number == NOT_DONE for number, _ in versions.values()):
            self.versions = self.versions.without(lambda key: versions.get(key, (0, 0))[0] < 0)
        for query, (batch, _) in commit.streams.items():
            if batch.number == NOT_DONE:
                del self.streams[query]
        self.spans = self.spans.grown(self.with_times(spans))

    def with_times(self, spans: Spans) -> dict[tuple[str, str], tuple[Ranges, int]]:
        """Spans with the times of their writes; those of other writes are left out."""
        found = dict[tuple[str, str], tuple[Ranges, int]]()
        for key, ranges in spans.items():
            known = self.versions.get(key) if key[1] else self.streams.get(key[0])
            if known is not None:
                found[key] = ranges, known[1]
        return found

    def objects(self) -> set[str]:
        """Keys of the data objects that extents lie in."""
        return {key for log in self.logs.values() for key in log.needed_objects()}
