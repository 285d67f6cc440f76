"""Choose partitions for rows as Kafka's producers do (``BuiltInPartitioner``)."""

import numpy as np
import pyarrow as pa

from segmentlog.errors import InvalidRecordError
from segmentlog.format.kernels import partition, status
from segmentlog.format.kernels.memory import Bytes, Int32s, Int64s
from segmentlog.format.kernels.source import SourceArrays
from segmentlog.format.records.source import array_view, bitmap_view, buffer_view, pooled_array

_NO_PARTITIONS: Int32s = array_view(np.empty(0, np.int32))
_NO_BITMAP: Bytes = array_view(np.empty(0, np.uint8))


class Partitioner:
    """Chooses partitions for the rows of one topic, batch by batch.

    `batch_size`: bytes of rows without a key that go to one partition before the next partition.
    `first_partition`: the partition that these rows begin with; parallel tasks begin with
    different ones.
    """

    def __init__(
        self, topic: str, n_partitions: int, batch_size: int, first_partition: int = 0
    ) -> None:
        self._topic = topic
        self._n_partitions = n_partitions
        self._batch_size = batch_size
        self._sticky: Int64s = np.zeros(partition.N_STICKY, np.int64)
        self._sticky[partition.STICKY_PARTITION] = first_partition % n_partitions

    def choose(self, source: SourceArrays, explicit: pa.Array | None = None) -> Int32s:
        """Partition of each row; int32 array, shape (n_rows,).

        A partition that a row names takes precedence over the hash of its key; an empty key is a
        key.  Rows without either stay together for about a batch's size.

        `source`: the columns, as `segmentlog.format.records.source.record_source` gives them.
        `explicit`: int32 column, null where a row leaves the choice to the partitioner.  Raises
        `InvalidRecordError` if a row names a partition that the topic does not have.
        """
        named, valid, first_bit = _NO_PARTITIONS, _NO_BITMAP, 0
        if explicit is not None and len(explicit):
            start = explicit.offset * 4
            named = buffer_view(explicit.buffers()[1], np.int32, len(explicit), start)
            valid, first_bit = bitmap_view(explicit)
        chosen: Int32s = pooled_array(len(source.timestamps), np.int32)
        code, row = partition.choose_partitions(
            source, named, valid, first_bit,
            self._n_partitions, self._batch_size, self._sticky, chosen,
        )  # fmt: skip
        if code != status.OK:
            reason = f"it names partition {named[row]}, but the topic has partitions 0 to "
            reason += f"{self._n_partitions - 1}; num_partitions "
            reason += "(in Spark numPartitions) is the number of partitions of a new topic"
            raise InvalidRecordError(self._topic, int(named[row]), row, reason)
        return chosen


def group_rows(partitions: Int32s, n_partitions: int) -> tuple[Int64s, Int64s]:
    """Sort the rows by partition, keeping their order within each.

    `partitions`: int32 array, shape (n_rows,); each from 0 to ``n_partitions - 1``.  Returns
    `rows`, an int64 array, shape (n_rows,); `starts`, an int64 array, shape (n_partitions + 1,);
    partition ``p`` has ``rows[starts[p] : starts[p + 1]]``.  Raises `IndexError` if a partition is
    outside this range.
    """
    if len(partitions) and not 0 <= partitions.min() <= partitions.max() < n_partitions:
        message = f"partitions are from 0 to {n_partitions - 1}"
        raise IndexError(message)
    rows: Int64s = pooled_array(len(partitions), np.int64)
    starts: Int64s = np.empty(n_partitions + 1, np.int64)
    partition.group_rows(partitions, starts, rows)
    return rows, starts
