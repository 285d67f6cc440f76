"""The segments that retention removes: the cases of Kafka's ``UnifiedLogTest``."""

from typing import Any

import pytest

from segmentlog.format.topic_config import TopicConfig
from segmentlog.maintain.retain import LogBounds, Reason, SegmentSpan, find_expired

NOW = 1_000_000
#: Three segments of five records and 100 bytes each, and the number of records in the active one.
THREE = [SegmentSpan(0, 5, 100), SegmentSpan(5, 10, 100), SegmentSpan(10, 15, 100)]
TIMES = {0: 100, 5: 200, 10: 300}


def removed(
    log_start: int = 0,
    high_watermark: int = 15,
    spans: list[SegmentSpan] | None = None,
    times: dict[int, int] | None = None,
    **settings: str,
) -> list[tuple[int, str]]:
    """Base offsets of the removed segments, with reasons; settings have underscores for dots."""
    config = TopicConfig.parse({name.replace("_", "."): text for name, text in settings.items()})
    found = find_expired(
        THREE if spans is None else spans,
        LogBounds(log_start, high_watermark),
        config,
        lambda span: (times or TIMES)[span.base_offset],
        NOW,
    )
    return [(each.span.base_offset, each.reason.value) for each in found]


OFF: dict[str, Any] = {"retention_ms": "-1"}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("-1", []),
        ("301", []),
        ("300", []),  # a log of exactly this size stays
        ("299", []),  # without a segment it would be smaller than the limit
        ("201", []),
        ("200", [0]),  # and may have exactly the limit
        ("199", [0]),
        ("100", [0, 5]),
        ("0", [0, 5, 10]),
    ],
)
def test_size_never_falls_below_the_limit(limit: str, expected: list[int]) -> None:
    """Kafka's rule is ``diff - segment.size >= 0``."""
    assert expected == [base for base, _ in removed(retention_bytes=limit, **OFF)]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (NOW - 100, []),  # strict
        (NOW - 101, [0]),
        (NOW - 201, [0, 5]),
        (NOW - 301, [0, 5, 10]),
        (0, [0, 5, 10]),
        (-1, []),
    ],
)
def test_time_is_strict(limit: int, expected: list[int]) -> None:
    """Kafka's rule is ``now - largestTimestamp > retention.ms``."""
    assert expected == [base for base, _ in removed(retention_ms=str(limit))]


def test_a_walk_stops_at_the_first_segment_that_stays() -> None:
    """Later segments stay, even with older records, and so does a segment of the future."""
    assert [] == removed(times={0: NOW, 5: 0, 10: 0}, retention_ms="10")
    assert [(0, "time")] == removed(times={0: 0, 5: NOW + 9**9, 10: 0}, retention_ms="10")


def test_no_segment_beyond_the_high_watermark() -> None:
    """The high watermark has to reach the end of a removed segment."""
    for high_watermark, expected in ((4, []), (5, [0]), (9, [0]), (14, [0, 5]), (15, [0, 5, 10])):
        assert expected == [
            base for base, _ in removed(high_watermark=high_watermark, retention_ms="0")
        ]
        assert expected == [
            base for base, _ in removed(high_watermark=high_watermark, retention_bytes="0", **OFF)
        ]


def test_an_empty_active_segment_stays() -> None:
    """A log that has lost all records consists of it."""
    spans = [*THREE[:2], SegmentSpan(10, 10, 0)]
    times = {**TIMES, 10: 0}

    assert [(0, "time"), (5, "time")] == removed(
        spans=spans, times=times, high_watermark=10, retention_ms="0"
    )
    assert [] == removed(
        spans=[SegmentSpan(10, 10, 0)], times={10: 0}, high_watermark=10, retention_ms="0"
    )
    assert [] == removed(spans=[], retention_ms="0")


def test_the_rules_in_their_order() -> None:
    """Each rule applies to the segments that the rule before it has left."""
    assert [(0, "start"), (5, "time"), (10, "time")] == removed(log_start=5, retention_ms="0")
    assert [(0, "start"), (5, "size")] == removed(log_start=9, retention_bytes="100", **OFF)
    assert [(0, "size"), (5, "time")] == removed(
        retention_bytes="200", retention_ms=str(NOW - 201)
    )


def test_the_active_segment_does_not_go_by_the_log_start() -> None:
    """It stays even if DeleteRecords has moved the log start to its end."""
    assert [(0, "start"), (5, "start")] == removed(log_start=15, **OFF)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("delete", ["start", "time", "time"]),
        ("compact,delete", ["start", "time", "time"]),
        ("compact", ["start"]),
        ("", ["start"]),
    ],
)
def test_policies(policy: str, expected: list[str]) -> None:
    """Limits need `delete`. The log start applies to every policy."""
    found = removed(log_start=5, retention_ms="0", retention_bytes="0", cleanup_policy=policy)
    by_size = [reason.replace("time", "size") for reason in expected]

    assert by_size == [reason for _, reason in found]


def test_only_the_oldest_segments_are_asked_for_their_times() -> None:
    """Finding a time may need a read of the whole segment."""
    asked = []

    def newest_ms(span: SegmentSpan) -> int:
        asked.append(span.base_offset)
        return NOW

    find_expired(THREE, LogBounds(0, 15), TopicConfig(), newest_ms, NOW)
    assert [0] == asked
    found = find_expired(
        THREE, LogBounds(0, 15), TopicConfig(retention_ms=1), lambda _: NOW - 2, NOW
    )
    assert {(Reason.TIME, NOW - 2)} == {(each.reason, each.newest_ms) for each in found}
