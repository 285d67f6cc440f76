"""The answer of a leader to a producer: where its records are."""

from typing import NamedTuple

__all__ = ["Appended"]


class Appended(NamedTuple):
    """Records of one producer in one partition that a flush has brought, now or before.

    Attributes
    ----------
    base_offset, last_offset : of the first and the last record; other producers' records may lie
        between them.
    first_sequence, last_sequence : of the same records, or -1 without a producer id.
    n_records : number of records.
    n_duplicates : how many of them the log had before, and were not written again.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_offset: int
    last_offset: int
    first_sequence: int
    last_sequence: int
    n_records: int
    n_duplicates: int
