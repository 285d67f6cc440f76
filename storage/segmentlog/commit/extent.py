"""The place of one partition's staged batches: a file, and the bytes in it."""

from typing import NamedTuple

from segmentlog.model import TopicPartition

__all__ = ["RELATIVE", "Extent"]

RELATIVE = -1  #: in the place of an offset: offsets count from 0


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
    first_offset: int = RELATIVE  #: -1 when offsets count from 0, to be moved to the log end
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

    def end_offset(self, next_offset: int) -> int:
        """The log end once the extent is appended at `next_offset`."""
        return self.last_offset + 1 if self.has_offsets else next_offset + self.n_records
