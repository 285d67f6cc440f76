"""The offset at which a copy of a partition parts from the log, by leader epochs alone."""

import pytest

from segmentlog.cluster.copies import EpochEnds, common_end


def ends(log_end: int, *starts: tuple[int, int], log_start: int = 0) -> EpochEnds:
    """A copy with these epochs."""
    return EpochEnds(starts, log_start, log_end)


@pytest.mark.parametrize(
    ("copy", "log", "expected"),
    [
        # These three were decided by brokers of Kafka 4.3.1 that were killed in sequence.
        (ends(421, (0, 0)), ends(700, (0, 0), (1, 301), (2, 501)), 301),
        (ends(341, (0, 0)), ends(341, (0, 0), (1, 300), (2, 341)), 300),
        (ends(400, (0, 0)), ends(380, (0, 0), (2, 300)), 300),
        # A copy that has not fetched everything.
        (ends(200, (0, 0)), ends(500, (0, 0), (1, 300)), 200),
        (ends(500, (0, 0)), ends(500, (0, 0)), 500),
        # An epoch that the log lacks: its leader was never followed.
        (ends(250, (0, 0), (1, 200)), ends(300, (0, 0), (2, 180)), 180),
        (ends(80, (0, 0), (2, 50)), ends(200, (0, 0), (1, 40), (3, 100)), 40),
        # Nothing in common.
        (ends(80, (0, 0), (2, 50)), ends(200, (1, 0), (3, 100)), 0),
        (ends(90, (0, 0)), ends(200, (3, 60), log_start=60), 60),
        # Retention has removed earlier records of either.
        (ends(90, (1, 40), log_start=40), ends(200, (0, 0), (1, 30)), 90),
        (ends(90, (0, 0)), ends(200, (0, 50), (1, 70), log_start=50), 70),
        # A log that a copy has outrun, by a leader that is not among the directories.
        (ends(90, (0, 0), (5, 60)), ends(80, (0, 0)), 60),
        (ends(0), ends(80, (0, 0)), 0),
        (ends(70, (0, 0)), ends(0), 0),
    ],
)
def test_the_common_end(copy: EpochEnds, log: EpochEnds, expected: int) -> None:
    """The batches below it are in both."""
    assert common_end(copy, log) == expected


def test_a_log_shares_all_of_itself() -> None:
    """It is never cut."""
    log = ends(700, (0, 0), (1, 301), (2, 501))
    assert common_end(log, log) == 700
