"""The place of one partition's staged batches: a file, and the bytes in it.

A file of one partition may be staged for a certain place in the log (`log_places`).  Its name then
says for which, as names of segments do: extents stay as small as they are, and a driver holds up
to eighty million of them.
"""

from typing import NamedTuple

from segmentlog.model import TopicPartition

__all__ = ["RELATIVE", "STAGE_SUFFIX", "Extent", "staged_name"]

STAGE_SUFFIX = ".stage"

RELATIVE = -1  #: in the place of an offset: offsets count on from the log end


#: ``segmentlog.<token>.<task>.<random>.<number>.<offset>.<leader epoch>.stage``
_N_PARTS_WITH_PLACE = 8


class Extent(NamedTuple):
    """Batches of one partition that follow each other in a staged file.

    An extent is small and picklable: it travels from the writing task to the commit on the driver.
    """

    topic: str
    partition: int
    name: str  #: of the staged file, in the log directory
    start: int
    end: int
    n_records: int
    first_offset: int = RELATIVE  #: -1 when offsets are to be moved to the log end
    last_offset: int = RELATIVE
    is_own: bool = False  #: whether nothing else is in the file

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the batches."""
        return TopicPartition(self.topic, self.partition)

    @property
    def has_offsets(self) -> bool:
        """Whether its records keep their offsets."""
        return self.first_offset != RELATIVE

    @property
    def staged_from(self) -> int:
        """Base offset of its first batch, as it stands in the file."""
        return self.first_offset if self.has_offsets else _place(self.name)[0]

    @property
    def staged_epoch(self) -> int:
        """Leader epoch of its batches, as it stands in the file."""
        return _place(self.name)[1]

    def shift_to(self, next_offset: int) -> int:
        """Added to the base offset of each batch, it gives the one in the log.

        Parameters
        ----------
        next_offset : the log end.
        """
        return 0 if self.has_offsets else next_offset - self.staged_from

    def end_offset(self, next_offset: int) -> int:
        """The log end once the extent is appended at `next_offset`."""
        return self.last_offset + 1 if self.has_offsets else next_offset + self.n_records


def staged_name(stem: str, number: int, offset: int = 0, leader_epoch: int = 0) -> str:
    """Name of a staged file.

    Parameters
    ----------
    stem : ``segmentlog.<token>.<task>.<random>``
    number : of the file among those of the task attempt.
    offset, leader_epoch : of its first batch.
    """
    place = f".{offset}.{leader_epoch}" if offset or leader_epoch else ""
    return f"{stem}.{number}{place}{STAGE_SUFFIX}"


def _place(name: str) -> tuple[int, int]:
    """Offset and leader epoch in a name of `staged_name`."""
    parts = name.split(".")
    return (int(parts[5]), int(parts[6])) if len(parts) == _N_PARTS_WITH_PLACE else (0, 0)
