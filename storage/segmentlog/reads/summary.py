"""Logs in a line and in a table, for people at a prompt or in a notebook.

Nothing here raises: a log that cannot be read is shown with the reason.
"""

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from segmentlog.errors import SegmentLogError
from segmentlog.log.segment import Segment
from segmentlog.masking import with_plain_buckets

if TYPE_CHECKING:
    from segmentlog.reads.log import Log

_HEADINGS = ("topic", "partition", "start", "end", "segments", "bytes", "first", "last")
_LEFT = ' style="text-align:left"'
_SECOND = 1000


def in_a_line(log: "Log") -> str:
    """``'orders-0', offsets [0, 335), 6,381 bytes in 1 segment, '/data/orders-0'``."""
    try:
        n_segments = len(log.segments)
        found = (
            f"offsets [{log.log_start_offset}, {log.log_end_offset}), {log.size_bytes:,} bytes in "
            f"{n_segments:,} segment{'' if n_segments == 1 else 's'}"
        )
    except (SegmentLogError, OSError) as error:
        found = f"cannot be read: {_printable(str(error))}"
    return f"{str(log.topic_partition)!r}, {found}, {with_plain_buckets(log.path)!r}"


def html_table(title: str, logs: "Iterable[Log]", n_left_out: int = 0) -> str:
    """An HTML table with a row a log; every text is escaped."""
    headings = "".join(f"<th>{each}</th>" for each in _HEADINGS)
    rows = "".join(f"<tr>{_row(log)}</tr>" for log in logs)
    more = f"<div>and {n_left_out:,} more partitions</div>" if n_left_out else ""
    return (
        f"<div>{_escaped(title)}</div>"
        f"<table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>{more}"
    )


def _row(log: "Log") -> str:
    topic, partition = log.topic_partition
    name = f"<td{_LEFT}>{_escaped(topic)}</td><td>{partition}</td>"
    try:
        first, last = _times(log.segments)
        cells = (
            str(log.log_start_offset),
            str(log.log_end_offset),
            f"{len(log.segments):,}",
            f"{log.size_bytes:,}",
            first,
            last,
        )
    except (SegmentLogError, OSError) as error:
        reason = f"cannot be read: {_escaped(str(error))}"
        return f'{name}<td colspan="{len(_HEADINGS) - 2}"{_LEFT}>{reason}</td>'
    return name + "".join(f"<td>{each}</td>" for each in cells)


def _escaped(text: str) -> str:
    """Text for a page, which notebooks encode as UTF-8: not every name of a file has that."""
    return html.escape(_printable(text))


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _times(segments: Sequence[Segment]) -> tuple[str, str]:
    """Time of the first record, and the largest of the last segment; empty without records."""
    filled = [each for each in segments if each.size]
    if not filled:
        return "", ""
    first = next((each.header.first_timestamp for each in filled[0].headers(0)), -1)
    return _utc(first), _utc(filled[-1].largest_timestamp())


def _utc(timestamp_ms: int) -> str:
    """``2025-10-09 08:58:08``, in UTC; the number if no calendar has it."""
    if timestamp_ms < 0:
        return ""
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=timestamp_ms // _SECOND)
    except OverflowError:
        return str(timestamp_ms)
    return f"{time:%Y-%m-%d %H:%M:%S}"
