"""The findings of an analysis: each at its bound, one below it, and in words."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from segmentlog.analysis.figures import figures, sum_retention
from segmentlog.analysis.findings import findings_of
from segmentlog.analysis.report import (
    AnalysisFinding,
    CodecUse,
    FindingCode,
    HeavyKey,
    PartitionReport,
    TopicFigures,
    Urgency,
)
from segmentlog.analysis.scan_partition import ScannedPart

CODE = FindingCode
MIB = 1 << 20
T0 = 1_700_000_000_000


def of(given: Mapping[str, Any]) -> TopicFigures:
    """The figures of nothing, with others in the place of some: ``keys.n_null``."""
    made = figures(ScannedPart(T0), sum_retention(()), {})
    for name, value in given.items():
        group, _, field = name.rpartition(".")
        inner = replace(getattr(made, group), **{field: value}) if group else value
        made = replace(made, **{group or field: inner})
    return made


def found(given: Mapping[str, Any], *sizes: int) -> tuple[AnalysisFinding, ...]:
    """The findings of a topic, with partitions of some sizes."""
    partitions = [
        PartitionReport(number, 0, 9, 0, of({"n_bytes": size}), ())
        for number, size in enumerate(sizes)
    ]
    return findings_of("t", of(given), partitions)


def heavy(share: float) -> tuple[HeavyKey, ...]:
    """A key with part of the records."""
    return (HeavyKey("beef", 1234, 9, 9, share, 2, 5),)


SMALL = {
    "n_records": 300,
    "batches.n_batches": 100,
    "batches.n_bytes": 100 * 4095,
    "batches.header_bytes": 6100,
}
LARGE = {
    "n_records": 300,
    "batches.n_batches": 100,
    "batches.n_bytes": 16 * MIB,
    "zstd.saved": 0.2,
    "batches.codecs": (CodecUse("none", 9, 5), CodecUse("gzip", 9, 7)),
}
HOT = {"n_records": 1500, "keys.n_null": 500, "keys.distinct": 2, "keys.heaviest": heavy(0.1)}
KEYS = {"n_records": 15, "keys.n_bytes": 3000, "keys.largest": 900, "values.n_bytes": 3000}
BACK = {"clocks.n_back": 1, "clocks.most_back_ms": 3_600_000}
ABORTED = {"n_records": 100, "producers.n_aborted_records": 5}
REPEATED = {
    "n_records": 1000,
    "keys.distinct": 500,
    "retention.policy": "delete,compact",
}
TOMBSTONES = {"n_records": 500, "values.n_tombstones": 100}

#: Figures at a bound, the finding, what is changed to get below the bound, and words of the text.
CASES: list[tuple[dict[str, Any], FindingCode, list[dict[str, Any]], str]] = [
    (SMALL, CODE.SMALL_BATCHES, [{"batches.n_batches": 99}, {"batches.n_bytes": 409_600}],
     "batches have 4,095 bytes and 3.0 records on average, and 1% of all bytes are their headers"),
    (LARGE, CODE.COMPRESSION, [{"batches.n_bytes": 16 * MIB - 1}, {"zstd.saved": 0.199},
                               {"zstd.saved": None}],
     "gzip, no compression: with zstd, the same batches would take 20% less space"),
    (HOT, CODE.HOT_KEY, [{"n_records": 1499}, {"keys.n_null": 501}, {"keys.distinct": 1},
                         {"keys.heaviest": heavy(0.09)}],
     "one key has 10% of the records with a key"),
    ({"clocks.n_in_future": 1, "clocks.largest_ms": T0}, CODE.FUTURE_TIMES,
     [{"clocks.n_in_future": 0}], "1 record has a timestamp in the future, up to 2023-11-14"),
    ({"clocks.n_before_2000": 2000, "clocks.least_ms": 5}, CODE.OLD_TIMES,
     [{"clocks.n_before_2000": 0}], "2,000 records have a timestamp before the year 2000"),
    (BACK, CODE.OUT_OF_ORDER, [{"clocks.most_back_ms": 3_599_999}, {"clocks.n_back": 0}],
     "1 record has an older time than the record before, one by 1.0 hours"),
    (ABORTED, CODE.ABORTED, [{"producers.n_aborted_records": 4}, {"n_records": 101}],
     "5% of the records belong to aborted transactions"),
    ({"producers.n_open": 1, "producers.n_open_records": 7}, CODE.OPEN_TRANSACTIONS,
     [{"producers.n_open": 0}], "1 transaction has no end yet, with 7 records; consumers"),
    ({"keys.n_null": 1, "retention.policy": "compact"}, CODE.NULL_KEYS,
     [{"keys.n_null": 0}, {"retention.policy": "delete"}],
     "the topic is compacted, and 1 record has no key: compaction refuses such records"),
    (REPEATED, CODE.COMPACTION, [{"n_records": 999, "keys.distinct": 0}, {"keys.distinct": 501},
                                 {"retention.policy": "delete"}],
     "compaction would remove up to 50% of the records"),
    (TOMBSTONES, CODE.TOMBSTONES, [{"n_records": 501}, {"n_records": 1, "values.n_tombstones": 99},
                                   {"retention.policy": "compact"}],
     "20% of the records are tombstones, and the topic is not compacted"),
    ({"batches.n_legacy": 1}, CODE.LEGACY, [{"batches.n_legacy": 0}],
     "1 message has magic 0 or 1"),
    (KEYS, CODE.LARGE_KEYS, [{"values.n_bytes": 3001}, {"n_records": 16}],
     "keys take 50% of the bytes of keys and values: 200 bytes in a record, up to 900"),
    ({"offsets.n_lost": 1000}, CODE.LOST_OFFSETS, [{"offsets.n_lost": 0}],
     "segments are gone that had 1,000 offsets"),
]  # fmt: skip
NOTES = {
    CODE.OUT_OF_ORDER,
    CODE.OPEN_TRANSACTIONS,
    CODE.COMPACTION,
    CODE.TOMBSTONES,
    CODE.LEGACY,
    CODE.LARGE_KEYS,
}


@pytest.mark.parametrize(
    ("given", "code", "below", "text"), CASES, ids=lambda each: str(each)[:20]
)
def test_a_finding_begins_at_its_bound(
    given: dict[str, Any], code: FindingCode, below: list[dict[str, Any]], text: str
) -> None:
    """Nothing else is found, and below the bound nothing at all."""
    (finding,) = found(given)
    urgency = Urgency.NOTE if code in NOTES else Urgency.ADVICE
    urgency = Urgency.PROBLEM if code is CODE.LOST_OFFSETS else urgency

    assert (code, urgency, "t") == (finding.code, finding.urgency, finding.topic)
    assert text in finding.text
    if code is CODE.HOT_KEY:
        assert "the key with the hash beef, 1,234 bytes" in finding.text
        assert 2 == finding.partition
    for change in below:
        assert () == found(given | change), change


def test_savings_are_those_of_all_bytes() -> None:
    """Of the batches as they are, or, if they are small, put together."""
    (finding,) = found(LARGE | {"zstd.saved": 0.25})
    assert 4 * MIB == finding.saved_bytes
    (finding,) = found(SMALL | {"zstd.saved": 0.1, "zstd.saved_joined": 0.5})
    assert 50 * 4095 == finding.saved_bytes
    assert finding.text.endswith("; batches of 128 KiB with zstd would take 50% less space")
    (finding,) = found(SMALL | {"zstd.saved_joined": 0.19})
    assert finding.text.endswith("a higher linger.ms and batch.size")
    (finding,) = found(SMALL | {"zstd.saved_joined": 0.2})
    assert "take 20% less" in finding.text


@pytest.mark.parametrize(
    ("sizes", "is_found"),
    [
        ((8, 12, 4), False),
        ((4, 16, 4), True),
        ((4, 15, 5), False),
        ((24,), False),
        ((1, 14), False),
        ((12, 12), False),
        ((24, 0), True),
    ],
)
def test_skew_is_twice_the_mean_of_a_large_topic(sizes: tuple[int, ...], is_found: bool) -> None:
    """The partition is named, and its share; a small topic, or one partition, has none."""
    total = sum(sizes) * MIB
    findings = found({"n_bytes": total}, *(each * MIB for each in sizes))
    assert is_found == bool(findings)
    for each in findings:
        largest = sizes.index(max(sizes))
        assert (CODE.SKEW, largest) == (each.code, each.partition)
        share = f"{max(sizes) / sum(sizes):.0%}"
        assert f"partition {largest} has {share} of the bytes, 2.0 times the mean" in each.text


def test_the_least_size_of_a_topic_with_skew() -> None:
    """16 MiB of all partitions."""
    assert found({"n_bytes": 16 * MIB}, 16 * MIB, 0)
    assert not found({"n_bytes": 16 * MIB - 1}, 16 * MIB - 1, 0)


def test_old_times_hide_how_far_records_are_out_of_order() -> None:
    """A record of 1970 is older than any other one, which says nothing more."""
    given = BACK | {"clocks.n_before_2000": 1, "clocks.least_ms": 0}
    assert [CODE.OLD_TIMES] == [each.code for each in found(given)]


def test_problems_come_first_with_their_partition() -> None:
    """One finding for each."""
    partition = PartitionReport(3, 0, 9, 0, of({}), ("damaged", "gone"))
    first, second = findings_of("t", of({"n_bytes": 1}), [partition])
    assert (CODE.PROBLEM, Urgency.PROBLEM, 3, "damaged") == (
        first.code,
        first.urgency,
        first.partition,
        first.text,
    )
    assert "gone" == second.text
