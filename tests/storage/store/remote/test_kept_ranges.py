"""Ranges of objects that are kept in memory."""

from segmentlog.store.remote.object_store import KeptRanges


def test_a_range_is_found_by_any_part_of_it() -> None:
    """A kept range answers requests for any part of it, and no request that reaches beyond it."""
    kept = KeptRanges(100)
    kept.keep("a", 10, b"0123456789")

    assert b"0123456789" == kept.find("a", 10, 10)
    assert b"345" == kept.find("a", 13, 3)
    assert kept.find("a", 9, 3) is None
    assert kept.find("a", 18, 3) is None
    assert kept.find("b", 13, 3) is None


def test_the_oldest_ranges_go_first() -> None:
    """A range that is read again becomes the newest range."""
    kept = KeptRanges(30)
    for key in "abc":
        kept.keep(key, 0, b"0123456789")
    kept.keep("a", 0, b"9876543210")
    kept.keep("d", 0, b"0123456789")

    assert 30 == kept.n_bytes
    assert [b"98", None, b"01", b"01"] == [kept.find(key, 0, 2) for key in "abcd"]


def test_a_range_that_is_found_stays_longer() -> None:
    """The range that was used longest ago goes first, and not the one that was kept first."""
    kept = KeptRanges(25)
    for key in "abcd":
        kept.keep(key, 0, bytes(10))
        kept.find("a", 0, 10)

    assert [True, False, False, True] == [kept.find(key, 0, 10) is not None for key in "abcd"]


def test_a_range_that_is_too_large_is_not_kept() -> None:
    """No part of the range is kept."""
    kept = KeptRanges(5)
    kept.keep("a", 0, b"0123456789")

    assert 0 == kept.n_bytes
    assert kept.find("a", 0, 1) is None
