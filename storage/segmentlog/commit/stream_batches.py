"""The last batch of each streaming query, so that a batch that is repeated is written once.

A query that fails after a commit, and before Spark has noted it, repeats the batch.  Only the last
batch can be repeated: Spark begins a batch once the batch before is noted.  An earlier batch, or
another number of records, shows that the checkpoint is not the one that the log knows.  Its rows
may be others, so it is an error: to leave it out would lose them, and to write it could repeat
them.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from segmentlog.commit.json_file import check_types
from segmentlog.errors import StreamBatchError

__all__ = ["CommittedBatch", "StreamBatch", "Streams", "decode_streams", "encode_streams"]


class CommittedBatch(NamedTuple):
    """The last batch of a query: its number, the run that committed it, and its records."""

    number: int
    run: str
    n_records: int


#: By query: its last batch, and the time of the commit (epoch ms).
Streams = dict[str, tuple[CommittedBatch, int]]


class StreamBatch(NamedTuple):
    """A batch that is about to be committed.

    Attributes
    ----------
    query : id of the query, which its checkpoint keeps.
    number : of the batch in the query.
    run : id of this run of the query.
    """

    query: str
    number: int
    run: str

    def committed(self, n_records: int) -> CommittedBatch:
        """The batch as its commit records it."""
        return CommittedBatch(self.number, self.run, n_records)

    def is_repeated(self, streams: Streams, n_records: int) -> bool:
        """Whether the batch was committed before, with as many records.

        Raises
        ------
        StreamBatchError
            If another batch was committed instead.
        """
        if self.query not in streams:
            return False
        last, _ = streams[self.query]
        if self.number > last.number:
            return False
        if (self.number, n_records) != (last.number, last.n_records):
            raise StreamBatchError(
                self.query, self.number, n_records, last.number, last.n_records, last.run
            )
        return True


def encode_streams(streams: Streams) -> list[list[Any]]:
    """A list for each query."""
    return [[query, *batch, time_ms] for query, (batch, time_ms) in streams.items()]


def decode_streams(found: Iterable[Any]) -> Streams:
    """The inverse.

    Raises
    ------
    TypeError, ValueError
        If `found` is not what `encode_streams` returns.
    """
    streams: Streams = {}
    for query, *batch, time_ms in found:
        check_types((query, *batch, time_ms), (str, int, str, int, int))
        streams[query] = CommittedBatch(*batch), time_ms
    return streams
