"""What one would change in a topic, by its figures: the summary that a report begins with."""

from collections.abc import Iterator, Sequence

from segmentlog.analysis.report import (
    AnalysisFinding,
    FindingCode,
    PartitionReport,
    TopicFigures,
    Urgency,
)
from segmentlog.reads.log_directory import TO_LOG_END
from segmentlog.times import iso_time

# Below these, nothing is said: what is small or rare costs nothing.
_MUCH_BYTES = 16 << 20  #: of a topic, of which a part may be worth saving
_MANY_BATCHES = 100
_SMALL_BATCH = 4 << 10
_WORTHWHILE = 0.2  #: part of the bytes
_SKEW = 2.0  #: times the mean of all partitions
_HOT_KEY = 0.1  #: part of the records with a key
_MANY_RECORDS = 1_000
_MANY_ABORTED = 0.05
_MANY_TOMBSTONES = 0.2
_MANY_REPEATED = 0.5
_MANY_HEADERS, _LARGE_HEADERS = 0.5, 200  #: part of all bytes; bytes in a record
_MUCH_OF_KEYS, _LARGE_KEYS = 0.5, 200  #: part of all bytes; bytes in a record
_LATE_MS = 3_600_000
_UNCOMPRESSED = "none"


def findings_of(
    topic: str, figures: TopicFigures, partitions: Sequence[PartitionReport]
) -> tuple[AnalysisFinding, ...]:
    """The findings about a topic."""
    found = _Finder(topic, figures, partitions)
    return tuple(each for find in _FINDERS for each in find(found))


def _n(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _have(n: int, noun: str) -> str:
    return f"{_n(n, noun)} {'has' if n == 1 else 'have'}"


class _Finder:
    def __init__(
        self, topic: str, figures: TopicFigures, partitions: Sequence[PartitionReport]
    ) -> None:
        self._topic, self._figures, self._partitions = topic, figures, partitions

    def _advice(
        self, code: FindingCode, text: str, saved: float = 0, partition: int | None = None
    ) -> AnalysisFinding:
        return AnalysisFinding(Urgency.ADVICE, code, self._topic, partition, text, int(saved))

    def _note(self, code: FindingCode, text: str, partition: int | None = None) -> AnalysisFinding:
        return AnalysisFinding(Urgency.NOTE, code, self._topic, partition, text)

    def problems(self) -> Iterator[AnalysisFinding]:
        for each in self._partitions:
            for text in each.problems:
                yield AnalysisFinding(
                    Urgency.PROBLEM, FindingCode.PROBLEM, self._topic, each.partition, text
                )

    def not_read(self) -> Iterator[AnalysisFinding]:
        for each in self._partitions:
            if each.n_not_read:
                text = (
                    f"{_n(each.n_not_read, 'offset')} from {each.end_offset} on are beyond the "
                    f"high watermark and were not analyzed: {TO_LOG_END} reads them"
                )
                yield self._note(FindingCode.NOT_READ, text, each.partition)

    def compression(self) -> Iterator[AnalysisFinding]:
        """Small batches, and topics without zstd: one finding, because one repairs the other."""
        figures, zstd = self._figures, self._figures.zstd
        batches = figures.batches
        mean = batches.mean_bytes
        is_small = batches.n_batches >= _MANY_BATCHES and mean < _SMALL_BATCH
        joined = (zstd.saved_joined or 0) * batches.n_bytes
        if is_small:
            per_batch = figures.n_records / batches.n_batches
            text = (
                f"batches have {mean:,.0f} bytes and {per_batch:,.1f} records on average, and "
                f"{batches.header_bytes / batches.n_bytes:.0%} of all bytes are their headers: "
                "give producers a higher linger.ms and batch.size"
            )
            if joined >= _WORTHWHILE * batches.n_bytes:
                text += (
                    f"; batches of 128 KiB with zstd would take {zstd.saved_joined:.0%} less space"
                )
            yield self._advice(FindingCode.SMALL_BATCHES, text, joined)
            return
        saved = (zstd.saved or 0) * batches.n_bytes
        if batches.n_bytes < _MUCH_BYTES or saved < _WORTHWHILE * batches.n_bytes:
            return
        codecs = ", ".join(
            "no compression" if each.codec == _UNCOMPRESSED else each.codec
            for each in sorted(batches.codecs, key=lambda each: -each.n_bytes)
        )
        text = (
            f"{codecs}: with zstd, the same batches would take {zstd.saved:.0%} less space: set "
            "compression.type of the producers, or of the topic"
        )
        yield self._advice(FindingCode.COMPRESSION, text, saved)

    def skew(self) -> Iterator[AnalysisFinding]:
        n, total = len(self._partitions), self._figures.n_bytes
        if n < 2 or total < _MUCH_BYTES:
            return
        largest = max(self._partitions, key=lambda each: each.figures.n_bytes)
        times = largest.figures.n_bytes * n / total
        if times >= _SKEW:
            text = (
                f"partition {largest.partition} has {largest.figures.n_bytes / total:.0%} of the "
                f"bytes, {times:.1f} times the mean of the {n} partitions"
            )
            yield self._advice(FindingCode.SKEW, text, 0, largest.partition)

    def hot_keys(self) -> Iterator[AnalysisFinding]:
        keys = self._figures.keys
        n_keys = self._figures.n_records - keys.n_null
        for each in keys.heaviest[:1]:
            if n_keys >= _MANY_RECORDS and each.share >= _HOT_KEY and keys.distinct > 1:
                text = (
                    f"one key has {each.share:.0%} of the records with a key; all of them go to "
                    f"one partition, and to one consumer: the key with the hash {each.id}, "
                    f"{each.n_bytes:,} bytes"
                )
                yield self._advice(FindingCode.HOT_KEY, text, 0, each.partition)

    def clocks(self) -> Iterator[AnalysisFinding]:
        clocks = self._figures.clocks
        if clocks.n_in_future:
            text = (
                f"{_have(clocks.n_in_future, 'record')} a timestamp in the future, up to "
                f"{iso_time(clocks.largest_ms or 0)}: retention by time keeps their segments, and "
                "all later ones, until then"
            )
            yield self._advice(FindingCode.FUTURE_TIMES, text)
        if clocks.n_before_2000:
            text = (
                f"{_have(clocks.n_before_2000, 'record')} a timestamp before the year 2000, "
                f"from {iso_time(clocks.least_ms or 0)} on: probably seconds instead of "
                "milliseconds, or zero; retention by time does not spare them"
            )
            yield self._advice(FindingCode.OLD_TIMES, text)
        if clocks.n_back and clocks.most_back_ms >= _LATE_MS and not clocks.n_before_2000:
            hours = clocks.most_back_ms / 3_600_000
            text = (
                f"{_have(clocks.n_back, 'record')} an older time than the record before, one by "
                f"{hours:,.1f} hours: look-ups by time find the first record that is not older"
            )
            yield self._note(FindingCode.OUT_OF_ORDER, text)

    def transactions(self) -> Iterator[AnalysisFinding]:
        producers, n_records = self._figures.producers, self._figures.n_records
        if (
            producers.n_aborted_records
            and producers.n_aborted_records >= _MANY_ABORTED * n_records
        ):
            text = (
                f"{producers.n_aborted_records / n_records:.0%} of the records belong to aborted "
                "transactions: consumers with read_committed fetch and discard them"
            )
            yield self._advice(FindingCode.ABORTED, text)
        if producers.n_open:
            text = (
                f"{_have(producers.n_open, 'transaction')} no end yet, with "
                f"{_n(producers.n_open_records, 'record')}; consumers with read_committed wait at "
                "the first of them: segmentlog transactions shows how old it is"
            )
            yield self._note(FindingCode.OPEN_TRANSACTIONS, text)

    def compaction(self) -> Iterator[AnalysisFinding]:
        figures, keys = self._figures, self._figures.keys
        is_compacted = "compact" in figures.retention.policy
        if is_compacted and keys.n_null:
            text = (
                f"the topic is compacted, and {_have(keys.n_null, 'record')} no key: compaction "
                "refuses such records, or removes them"
            )
            yield self._advice(FindingCode.NULL_KEYS, text)
        n_keys = figures.n_records - keys.n_null
        if is_compacted and n_keys >= _MANY_RECORDS:
            repeated = max(0, n_keys - keys.distinct) / n_keys
            if repeated >= _MANY_REPEATED:
                text = (
                    f"compaction would remove up to {repeated:.0%} of the records: they have keys "
                    "that come again"
                )
                yield self._note(FindingCode.COMPACTION, text)
        n_tombstones = figures.values.n_tombstones
        if not is_compacted and n_tombstones >= max(_MANY_TOMBSTONES * figures.n_records, 100):
            text = (
                f"{n_tombstones / figures.n_records:.0%} of the records are tombstones, and the "
                "topic is not compacted"
            )
            yield self._note(FindingCode.TOMBSTONES, text)

    def headers(self) -> Iterator[AnalysisFinding]:
        found, n_sampled = self._figures.headers, self._figures.formats.sampled_records
        of_each = found.n_bytes / max(n_sampled, 1)
        if found.share >= _MANY_HEADERS and of_each >= _LARGE_HEADERS:
            often = found.names[0].name if found.names else ""
            text = (
                f"headers take {found.share:.0%} of the bytes of keys, values and headers: "
                f"{_n(round(found.n_headers / n_sampled), 'header')} of "
                f"{_n(round(of_each), 'byte')} in a record, most often {often!r}"
            )
            if found.n_headers > 2 * n_sampled * max(len(found.names), 1):
                text += "; a name is there several times in a record: a client may add it at "
                text += "each attempt, or at each step"
            yield self._advice(FindingCode.HEADERS, text)

    def large_keys(self) -> Iterator[AnalysisFinding]:
        keys, n_records = self._figures.keys, self._figures.n_records
        n_bytes = keys.n_bytes + self._figures.values.n_bytes
        of_each = keys.n_bytes / max(n_records, 1)
        if of_each >= _LARGE_KEYS and keys.n_bytes >= _MUCH_OF_KEYS * n_bytes:
            text = (
                f"keys take {keys.n_bytes / n_bytes:.0%} of the bytes of keys and values: "
                f"{_n(round(of_each), 'byte')} in a record, up to {keys.largest:,}"
            )
            yield self._note(FindingCode.LARGE_KEYS, text)

    def formats(self) -> Iterator[AnalysisFinding]:
        batches = self._figures.batches
        if batches.n_legacy:
            text = (
                f"{_have(batches.n_legacy, 'message')} magic 0 or 1, which brokers from version 4 "
                "on still read, and no producer may write"
            )
            yield self._note(FindingCode.LEGACY, text)
        offsets = self._figures.offsets
        if offsets.n_lost:
            yield AnalysisFinding(
                Urgency.PROBLEM,
                FindingCode.LOST_OFFSETS,
                self._topic,
                None,
                f"segments are gone that had {_n(offsets.n_lost, 'offset')}",
            )


_FINDERS = (
    _Finder.problems,
    _Finder.not_read,
    _Finder.formats,
    _Finder.compression,
    _Finder.skew,
    _Finder.hot_keys,
    _Finder.clocks,
    _Finder.transactions,
    _Finder.compaction,
    _Finder.headers,
    _Finder.large_keys,
)
