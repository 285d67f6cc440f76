"""The largest timestamp of a slice, by the time index."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from segmentlog.model import TopicPartition
from segmentlog.reads.log import Log


@pytest.mark.parametrize("damage", [None, "missing", "wrong"])
def test_no_record_of_a_slice_is_above_the_bound(
    write_log: Callable[..., Path], damage: str | None
) -> None:
    """Timestamps rise and fall. An index that is missing or wrong only makes the bound larger."""
    draw = random.Random(7)
    times = [draw.randrange(1_000 * i, 1_000 * i + 9_000) for i in range(60)]
    segments = [[(i, times[i]) for i in range(base, base + 20)] for base in (0, 20, 40)]
    partition = write_log(segments)
    for path in partition.glob("*.timeindex"):
        if damage == "missing":
            path.unlink()
        elif damage == "wrong":
            entries = path.read_bytes()
            path.write_bytes(
                b"".join(
                    (5).to_bytes(8, "big") + entries[i + 8 : i + 12]
                    for i in range(0, len(entries), 12)
                )
            )
    log = Log(TopicPartition("t", 0), str(partition))
    slices = log.slices(0, 60, 300)

    assert len(slices) > 10
    for each in slices:
        newest = log.newest_timestamp(each)
        assert newest >= max(times[each.start_offset : each.end_offset])
    of_segment = max(times[:20])
    assert (log.newest_timestamp(slices[0]) < of_segment) == (damage is None)


def test_a_bound_is_not_known_of_a_file_that_was_replaced(write_log: Callable[..., Path]) -> None:
    """The slice was cut from another file that had this name."""
    partition = write_log([[(i, 1_000 * i) for i in range(5)]])
    log = Log(TopicPartition("t", 0), str(partition))
    (whole,) = log.slices(0, 5)
    (file,) = whole.files

    assert 4_000 == log.newest_timestamp(whole)
    assert log.newest_timestamp(whole._replace(files=(file._replace(inode=1),))) is None
