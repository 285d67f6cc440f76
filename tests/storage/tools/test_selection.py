"""Ranges of offsets and times."""

import pytest

from segmentlog.format.records.header import parse_header
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.walk import Selection, last_offset

T0 = 1_700_000_000_000
HEADER = parse_header(encode_batch([Record(10, T0, b"k", b"v"), Record(19, T0 + 9, b"k", b"v")]))


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), True),
        (Selection(from_offset=19), True),
        (Selection(from_offset=20), False),
        (Selection(to_offset=10), False),
        (Selection(to_offset=11), True),
        (Selection(from_ms=T0 + 9), True),
        (Selection(from_ms=T0 + 10), False),
        (Selection(to_ms=T0 + 1), True),
        (Selection(to_ms=T0), False),
    ],
)
def test_batches_are_chosen_by_their_headers(selection: Selection, expected: bool) -> None:
    """A range is half-open at both ends."""
    assert expected == selection.matches(HEADER)


def test_a_batch_that_begins_too_late_may_hold_older_records() -> None:
    """The first record's time is not a lower bound, so the records are read."""
    assert Selection(to_ms=T0).may_hold(HEADER)
    assert not Selection(to_ms=T0).matches(HEADER)


def test_a_delete_horizon_is_no_time_of_a_record() -> None:
    """Compaction stores it in place of the first record's time.

    The newest record's time decides then.
    """
    horizon = HEADER._replace(attributes=0x40, base_timestamp=T0 + 10**9)

    assert Selection(to_ms=T0 + 10).matches(horizon)
    assert not Selection(to_ms=T0 + 9).matches(horizon)


def test_old_messages_have_one_offset() -> None:
    """A compressed message of magic 0 or 1 has only the offset of its last record."""
    message = HEADER._replace(magic=1, attributes=0, last_offset_delta=-1)
    wrapper = message._replace(attributes=1)

    assert 10 == last_offset(message)
    assert [False, True] == [Selection(to_offset=n).may_hold(message) for n in (10, 11)]
    assert Selection(to_offset=5).may_hold(wrapper)
    assert Selection(from_ms=2**60).may_hold(message._replace(magic=0))
