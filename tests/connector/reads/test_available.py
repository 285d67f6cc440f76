"""The part of a range that exists, and the treatment of the rest."""

import pytest

from pyspark_segmentlog.options.offsets import EARLIEST, LATEST
from pyspark_segmentlog.reads.offset_ranges import available
from segmentlog.errors import OffsetOutOfRangeError
from segmentlog.model import OffsetRange, TopicPartition

T0 = TopicPartition("t", 0)
THERE = OffsetRange(100, 200)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((EARLIEST, LATEST), (100, 200)),
        ((EARLIEST, 150), (100, 150)),
        ((150, LATEST), (150, 200)),
        ((100, 200), (100, 200)),
        ((200, LATEST), (200, 200)),
        ((7, 7), (7, 7)),  # the range is empty, so nothing is missing
        ((999, 999), (999, 999)),
    ],
)
def test_a_range_that_is_there_is_bound(
    asked: tuple[int, int], expected: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Words become offsets, without a warning."""
    found = available(T0, OffsetRange(*asked), THERE, fail_on_data_loss=True)

    assert expected == found
    assert [] == caplog.messages


@pytest.mark.parametrize(
    ("asked", "named", "skipped", "expected"),
    [
        ((50, 150), 50, "[50, 100)", (100, 150)),
        ((50, 60), 50, "[50, 60)", (100, 100)),
        ((150, 250), 250, "[200, 250)", (150, 200)),
        ((300, 400), 300, "[300, 400)", (300, 300)),
        ((0, 201), 0, "[0, 100) and [200, 201)", (100, 200)),
        ((EARLIEST, 201), 201, "[200, 201)", (100, 200)),
        ((99, LATEST), 99, "[99, 100)", (100, 200)),
    ],
)
def test_a_part_that_is_not_there_is_an_error_or_is_skipped(
    asked: tuple[int, int],
    named: int,
    skipped: str,
    expected: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error names the offset and the range. The log names the skipped offsets."""
    with pytest.raises(OffsetOutOfRangeError, match=rf"t-0: offset {named} .* \[100, 200\)"):
        available(T0, OffsetRange(*asked), THERE, fail_on_data_loss=True)
    assert [] == caplog.messages

    found = available(T0, OffsetRange(*asked), THERE, fail_on_data_loss=False)

    assert expected == found
    (message,) = caplog.messages
    assert f"t-0: offsets {skipped} do not exist and are skipped" in message


@pytest.mark.parametrize(
    ("asked", "expected"),
    [((EARLIEST, 50), (100, 100)), ((20, 150), (100, 150)), ((20, 50), (100, 100))],
)
def test_a_read_that_follows_retention_leaves_the_deleted_out_in_silence(
    asked: tuple[int, int], expected: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets above the end are still data loss."""
    follow = {"fail_on_data_loss": True, "follows_retention": True}

    assert expected == available(T0, OffsetRange(*asked), THERE, **follow)
    assert [] == caplog.messages
    with pytest.raises(OffsetOutOfRangeError, match="offset 300"):
        available(T0, OffsetRange(20, 300), THERE, **follow)
