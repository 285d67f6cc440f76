"""A log directory as a plain value: rows, bounds, settings, producers and numbered writes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from segmentlog.model import TopicPartition
from segmentlog.writes.config import ProducerConfig


class NewRow(NamedTuple):
    """A row to append; without an offset, it takes the next one.

    `is_append_time` : whether the timestamp is a log's append time.
    """

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int | None = None
    is_append_time: bool = False


class Row(NamedTuple):
    """A row as a reader sees it."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


#: The horizon of a tombstone that no pass has kept.
_NEVER = 2**62

#: From when on compaction removes a tombstone: the first pass that keeps it decides that for good.
#: After passes of which nobody knows whether they reached it, each of these times may be right.
Horizons = frozenset[int]


@dataclass(frozen=True)
class PlainLog:
    """One partition."""

    start: int = 0
    end: int = 0
    rows: tuple[Row, ...] = ()  # what a reader sees, in order
    # offset and timestamp of every row that was ever appended: hidden and compacted rows may
    # still decide when a segment expires
    times: tuple[tuple[int, int], ...] = ()
    # of tombstones that a pass has kept, or may have kept, by offset
    horizons: Mapping[int, Horizons] = field(default_factory=dict)

    def appended(self, rows: Iterable[NewRow]) -> "PlainLog":
        """The log with further rows."""
        end, new = self.end, []
        for each in rows:
            offset = end if each.offset is None else each.offset
            assert offset >= end, "the model is asked for an offset twice"
            kind = int(each.is_append_time)
            new.append(Row(offset, each.timestamp_ms, kind, each.key, each.value, each.headers))
            end = offset + 1
        times = [(each.offset, each.timestamp_ms) for each in new]
        return replace(self, end=end, rows=(*self.rows, *new), times=(*self.times, *times))

    def starting_at(self, start: int) -> "PlainLog":
        """The log without rows below an offset."""
        if start <= self.start:
            return self
        rows = tuple(each for each in self.rows if each.offset >= start)
        return replace(self, start=start, end=max(self.end, start), rows=rows)

    def restored(self) -> "PlainLog":
        """The log that a restoration makes: it knows nothing but the rows."""
        times = tuple((each.offset, each.timestamp_ms) for each in self.rows)
        return PlainLog(self.rows[0].offset, self.rows[-1].offset + 1, self.rows, times)

    def first_at(self, timestamp_ms: int) -> int | None:
        """The offset of the first row at or after a time."""
        newer = (each.offset for each in self.rows if each.timestamp_ms >= timestamp_ms)
        return next(newer, None)

    def compacted(
        self, kept: Sequence[Row], active: int, now_ms: int, retention_ms: int, *, is_sure: bool
    ) -> "PlainLog":
        """The log after a pass over the rows below `active` that has left the rows `kept`."""
        below = [each for each in self.rows if each.offset < active and each.key is not None]
        last = {each.key: each.offset for each in below}
        left = {each.offset: each for each in kept}
        strange = [each for each in kept if each not in set(self.rows)]
        assert not strange, f"rows that were never written: {strange[:3]}"
        horizons = dict[int, Horizons]()
        for row in self.rows:
            is_left = row.offset in left
            if row.offset >= active:
                assert is_left, f"compaction removed {row} of the active segment, from {active} on"
            elif row.key is None or row.offset < last[row.key]:
                assert not is_left, f"compaction kept {row}, active is {active}, last {last}"
            elif row.value is not None:
                assert is_left, f"compaction removed the last row of its key: {row}"
            else:
                known = self._horizons(row)
                assert is_left or min(known) <= now_ms, f"removed too early: {row}, {known}"
                assert not is_left or not is_sure or now_ms < max(known), (
                    f"kept too long: {row}, {known}"
                )
                horizons[row.offset] = _after_a_pass(known, now_ms, retention_ms, is_sure=is_sure)
        return replace(self, rows=tuple(kept), horizons=horizons)

    def erased(self, kept: Sequence[Row], keys: Collection[bytes], *, is_sure: bool) -> "PlainLog":
        """The log after an erasure of keys that has left the rows `kept`."""
        others = tuple(each for each in self.rows if each.key not in keys)
        if is_sure:
            assert others == kept, f"an erasure of {keys} has left {kept}, and not {others}"
        left = {*kept}
        assert left <= {*self.rows}, f"rows that were never written: {left - {*self.rows}}"
        assert {*others} <= left, f"erased with other keys: {[*({*others} - left)][:3]}"
        return replace(self, rows=tuple(each for each in self.rows if each in left))

    def passed_over(self, now_ms: int, retention_ms: int) -> "PlainLog":
        """The log if it is not known whether a pass that changed no row took place."""
        new = {
            each.offset: _after_a_pass(self._horizons(each), now_ms, retention_ms, is_sure=False)
            for each in self.rows
            if each.value is None and each.key is not None
        }
        return replace(self, horizons=new)

    def _horizons(self, row: Row) -> Horizons:
        return self.horizons.get(row.offset, frozenset({_NEVER}))


def _after_a_pass(known: Horizons, now_ms: int, retention_ms: int, *, is_sure: bool) -> Horizons:
    """The horizons of a tombstone that a pass has kept, or passed by if that is not sure."""
    reached = {now_ms + retention_ms if at == _NEVER else at for at in known if now_ms < at}
    return frozenset(reached if is_sure else reached | known)


class Flush(NamedTuple):
    """The last flush of an idempotent producer to a topic, and whether the log has it."""

    producer_epoch: int
    sequences: Mapping[int, int]
    rows: tuple[NewRow, ...]
    config: ProducerConfig
    is_committed: bool


@dataclass(frozen=True)
class Model:
    """A log directory."""

    # partitions; a partition without records may or may not have a directory
    logs: Mapping[TopicPartition, PlainLog] = field(default_factory=dict)
    # by topic, or None for the defaults of all topics
    settings: Mapping[str | None, Mapping[str, str]] = field(default_factory=dict)
    # the next sequence of each partition, by producer id and topic
    sequences: Mapping[tuple[int, str], Mapping[int, int]] = field(default_factory=dict)
    # the last flush of each producer to a topic
    flushes: Mapping[tuple[int, str], Flush] = field(default_factory=dict)
    # of the last numbered write, by its name and topic
    numbers: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def log(self, topic: str, partition: int) -> PlainLog:
        """One partition; a missing one is empty."""
        return self.logs.get(TopicPartition(topic, partition), PlainLog())

    def has(self, topic: str) -> bool:
        """Whether a topic has ever had a record."""
        return any(each.topic == topic for each in self.logs)

    def changed(
        self, topic: str, n_partitions: int, change: Callable[[int, PlainLog], PlainLog]
    ) -> "Model":
        """The model with each log of a topic changed."""
        new = {
            TopicPartition(topic, number): change(number, self.log(topic, number))
            for number in range(n_partitions)
        }
        return replace(self, logs={**self.logs, **new})

    def appended(self, topic: str, n_partitions: int, rows: Sequence[NewRow]) -> "Model":
        """The model with further rows in a topic."""

        def change(number: int, log: PlainLog) -> PlainLog:
            return log.appended(each for each in rows if each.partition == number)

        return self.changed(topic, n_partitions, change)

    def without(self, topic: str) -> "Model":
        """The model without a topic, and without everything about it."""
        return Model(
            {each: log for each, log in self.logs.items() if each.topic != topic},
            {name: known for name, known in self.settings.items() if name != topic},
            {key: known for key, known in self.sequences.items() if key[1] != topic},
            {key: known for key, known in self.flushes.items() if key[1] != topic},
            {key: number for key, number in self.numbers.items() if key[1] != topic},
        )

    def with_settings(self, topic: str | None, settings: Mapping[str, str]) -> "Model":
        """The model with other settings of a topic."""
        new = {**self.settings, topic: settings}
        return replace(self, settings={name: known for name, known in new.items() if known})

    def with_flush(self, producer_id: int, topic: str, flush: Flush) -> "Model":
        """The model with the last flush of a producer."""
        return replace(self, flushes={**self.flushes, (producer_id, topic): flush})
