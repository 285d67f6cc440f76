"""Sequences of idempotent producers: records get them, and a commit checks those of batches.

A leader remembers the last five batches of a producer (``ProducerStateEntry``), because a producer
has at most five requests in flight.  A flush may have any number of batches, and becomes visible
as a whole, so the check looks further back: the log has all batches, unless retention or
compaction has removed some.  Even then, the producer's state has its last batch, and the flush
contains the batches before it.  Repeated batches are left out, and answered with their offsets.
Anything else that is out of order is refused.

A leader forgets a producer that was idle for ``producer.id.expiration.ms``, and then accepts any
sequence of it.  Here a producer is known as long as the log or its newest snapshot has it.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from segmentlog.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.kernels import layout, producer_table, sequences
from segmentlog.format.kernels.encode import N_BATCH_COLUMNS
from segmentlog.format.kernels.memory import Int64s
from segmentlog.format.kernels.sequences import (
    assign_sequences,
    check_sequences,
    find_lost,
    read_sequences,
    renumber_batches,
)
from segmentlog.format.names import partition_path
from segmentlog.format.records.encoder import EncodedBatches
from segmentlog.format.records.header import ScannedBatches
from segmentlog.log.batches import walk_batches, walk_file
from segmentlog.log.listing import list_segments
from segmentlog.log.producers import ProducerStates
from segmentlog.log.segment import Segment
from segmentlog.model import Appended, TopicPartition
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.readable import open_file
from segmentlog.txn.change import hold
from segmentlog.writes.append import Extent
from segmentlog.writes.config import Producer
from segmentlog.writes.staged_files import (
    JobExtents,
    TaskExtents,
    TaskStage,
    staged_batches,
    staged_errors,
)

_N_SEQUENCES = 2**31
_NO_BATCHES: Int64s = np.empty((0, sequences.BATCH_COLUMNS), np.int64)
_NONE_KNOWN: Int64s = np.empty((0, sequences.KNOWN_COLUMNS), np.int64)


class SequenceNumbers:
    """The sequences of one producer, flush by flush.

    A flush that failed, or whose result is in doubt, is repeated with the same numbers: if the
    flush did take place, its batches are recognised.

    `directory`: the logs, which are read for partitions without a given sequence.
    """

    def __init__(self, producer: Producer, directory: str, lock_timeout_seconds: float) -> None:
        self._producer = producer
        self._directory, self._lock_timeout_seconds = directory, lock_timeout_seconds
        self._flushed: dict[TopicPartition, int] = {}
        self._staged: dict[TopicPartition, int] = {}

    def look_up(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Find the first sequences of partitions; their batches can be numbered then.

        Raises `LogLockedError` or `CorruptLogError` if a log has to be read for its next sequence,
        and cannot be.
        """
        unknown = []
        for each in topic_partitions:
            if each not in self._flushed:
                given = self._producer.first_sequence(each.partition)
                if given is None:
                    unknown.append(each)
                else:
                    self._flushed[each] = given
        if unknown:
            with hold(self._directory, self._lock_timeout_seconds):
                opened = open_log_dir(self._directory)
                self._flushed |= {each: self._after_the_log(opened, each) for each in unknown}

    def _after_the_log(self, opened: LogDirectory, topic_partition: TopicPartition) -> int:
        """The sequence that follows in a log; 0 if it is missing, or does not know the epoch."""
        try:
            log = opened.log(*topic_partition)
        except UnknownTopicOrPartitionError:
            return 0
        producers = _Producers(log.path, log.log_end_offset).producers
        (row,) = producers.rows_of(np.array([self._producer.producer_id])).tolist()
        state = producers.states[row]
        if state[producer_table.EPOCH] != self._producer.producer_epoch:
            return 0
        return int(state[producer_table.LAST_SEQUENCE] + 1) % _N_SEQUENCES

    def number(self, topic_partition: TopicPartition, batches: EncodedBatches) -> None:
        """Give the next batches of a partition their sequences."""
        self._staged[topic_partition] = assign_sequences(
            batches.buffer,
            batches.table,
            self._producer.producer_id,
            self._producer.producer_epoch,
            self._staged.get(topic_partition, self._flushed[topic_partition]),
        )

    def flushed(self) -> None:
        """All records that were numbered are in the log."""
        self._flushed |= self._staged

    def forget(self) -> None:
        """Number the records since the last flush again."""
        self._staged.clear()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Partitions with records since the last flush."""
        return frozenset(self._staged)


def without_duplicates(
    directory: str,
    stage: TaskStage,
    partitions: Collection[TopicPartition],
    ends: Mapping[TopicPartition, int],
    staged: JobExtents,
) -> tuple[JobExtents, tuple[Appended, ...]]:
    """Extents of a flush without the batches that the log has, and the answers to producers.

    `stage`: takes what stays of extents that lose batches.  `partitions`: whose batches may have
    producers.  `ends`: the log end of each partition.  Raises `OutOfOrderSequenceError` or
    `InvalidProducerEpochError` or `InvalidTxnStateError` if a leader would refuse a batch;
    `CorruptLogError` if a header of the log that has to be read cannot be true.
    """
    appended: list[Appended] = []
    kept: list[Extent] = []
    for each in staged.topic_partitions:
        extents = staged.extents(each)
        if each not in partitions or each not in ends:
            kept += extents
            continue
        log = _Producers(partition_path(directory, each), ends[each])
        check = _PartitionCheck(each, log, _fields_of(directory, extents))
        fates = check.fates()
        appended += check.answers(fates)
        is_new = fates[:, sequences.FATE] == sequences.ACCEPTED
        if is_new.all():
            kept += extents
        else:
            _stage_again(directory, stage, each, extents, is_new)
    return JobExtents([TaskExtents.of(kept), stage.close()]), tuple(appended)


class _Producers:
    """The log of a partition, and its producers at its end."""

    def __init__(self, path: str, end: int) -> None:
        self.segments = [Segment(each, is_sealed=False) for each in list_segments(path)]
        self.producers = ProducerStates.load(path, end)
        self.producers.follow_to(self.segments, end)
        self.end = end


class _PartitionCheck:
    """The check of one partition's batches.

    `log`: that they are to be appended to.  `batches`: int64 array, shape (n_batches,
    `sequences.BATCH_COLUMNS`).
    """

    def __init__(self, topic_partition: TopicPartition, log: _Producers, batches: Int64s) -> None:
        self._topic_partition = topic_partition
        self._log = log
        self._batches = batches
        self._rows = log.producers.rows_of(batches[:, sequences.PRODUCER_ID])

    def fates(self) -> Int64s:
        """The fate of each batch, shape (n_batches, `sequences.FATE_COLUMNS`)."""
        n_decided, states, fates = self._decide(_NONE_KNOWN)
        in_log, n_before = None, -1
        while n_before < n_decided < len(fates):
            # The log may contain a refused batch if its sequence is below the expected one.
            found, expected = self._sequences(n_decided, states)
            is_below = (found - expected) % _N_SEQUENCES >= _N_SEQUENCES // 2
            if fates[n_decided, sequences.FATE] != sequences.OUT_OF_ORDER or not is_below:
                break
            in_log, n_before = self._known() if in_log is None else in_log, n_decided
            known = _sorted(np.concatenate([in_log, self._accepted(fates[:n_decided])]))
            n_decided, states, fates = self._decide(known)
        if n_decided < len(fates):
            raise self._refusal(n_decided, states, int(fates[n_decided, sequences.FATE]))
        return fates

    def _decide(self, known: Int64s) -> tuple[int, Int64s, Int64s]:
        """Number of batches that are decided, the states after them, and the fates."""
        states = self._log.producers.states.copy()
        fates: Int64s = np.full((len(self._batches), sequences.FATE_COLUMNS), -1, np.int64)
        n_decided = check_sequences(self._batches, self._rows, self._log.end, states, known, fates)
        return n_decided, states, fates

    def _sequences(self, number: int, states: Int64s) -> tuple[int, int]:
        """First sequence of a batch, and the one that was expected."""
        batch, state = self._batches[number], states[self._rows[number]]
        is_same = batch[sequences.EPOCH] == state[producer_table.EPOCH]
        last = int(state[producer_table.LAST_SEQUENCE]) if is_same else -1
        return int(batch[sequences.FIRST_SEQUENCE]), (last + 1) % _N_SEQUENCES

    def _accepted(self, fates: Int64s) -> Int64s:
        """Batches of this flush that later ones may repeat."""
        n_decided = len(fates)
        is_new = (fates[:, sequences.FATE] == sequences.ACCEPTED) & (self._rows[:n_decided] >= 0)
        lines = _known_lines(self._batches[:n_decided][is_new], self._rows[:n_decided][is_new])
        lines[:, sequences.KNOWN_BASE_OFFSET :] = fates[is_new, sequences.FATE_BASE_OFFSET :]
        return lines

    def _known(self) -> Int64s:
        """Batches that these may repeat, including those that the log has lost."""
        states = self._log.producers.states
        known = _sorted(np.concatenate([self._in_log(), _last_batches(states)]))
        after: Int64s = np.empty((len(states), 3), np.int64)
        lost: Int64s = np.empty((len(self._batches), sequences.KNOWN_COLUMNS), np.int64)
        epochs = states[:, producer_table.EPOCH].copy()
        n_lost = find_lost(self._batches, self._rows, epochs, known, after, lost)
        return np.concatenate([known, lost[:n_lost]])

    def _in_log(self) -> Int64s:
        """Batches of the log that these may repeat, from its newest segment back.

        The search ends where each producer's batches lie below its first one here.  If the log has
        lost that one, the search ends at the log start.
        """
        rows, numbers = np.unique(self._rows, return_index=True)
        missing = {
            int(row): int(self._batches[number, sequences.FIRST_SEQUENCE])
            for row, number in zip(rows, numbers, strict=True)
            if row >= 0
        }
        states = self._log.producers.states
        ids = states[[*missing], producer_table.PRODUCER_ID]
        found = [_NONE_KNOWN]
        for segment in reversed(self._log.segments):
            batches = _fields_of_segment(segment, ids)
            rows = self._log.producers.rows_of(batches[:, sequences.PRODUCER_ID])
            is_same = batches[:, sequences.EPOCH] == states[rows, producer_table.EPOCH]
            found.append(_known_lines(batches[is_same], rows[is_same]))
            for row, first in [*missing.items()]:
                mine = rows == row
                after = (first - batches[mine, sequences.FIRST_SEQUENCE]) % _N_SEQUENCES
                if (after < _N_SEQUENCES // 2).any() or not is_same[mine].all():
                    del missing[row]
            if not missing:
                break
        return np.concatenate(found)

    def _refusal(
        self, number: int, states: Int64s, fate: int
    ) -> OutOfOrderSequenceError | InvalidProducerEpochError | InvalidTxnStateError:
        found, expected = self._sequences(number, states)
        batch, state = self._batches[number], states[self._rows[number]]
        producer_id, epoch = int(batch[sequences.PRODUCER_ID]), int(batch[sequences.EPOCH])
        who = (*self._topic_partition, producer_id, epoch, found)
        if fate == sequences.FENCED:
            return InvalidProducerEpochError(*who, int(state[producer_table.EPOCH]))
        if fate == sequences.IN_TRANSACTION:
            return InvalidTxnStateError(*who, int(state[producer_table.TXN_FIRST_OFFSET]))
        return OutOfOrderSequenceError(*who, expected)

    def answers(self, fates: Int64s) -> Iterator[Appended]:
        """One for each producer and epoch, in the order of their first batches."""
        columns = [sequences.PRODUCER_ID, sequences.EPOCH]
        producers, numbers, which = np.unique(
            self._batches[:, columns], axis=0, return_index=True, return_inverse=True
        )
        counts = self._batches[:, sequences.LAST_OFFSET] - self._batches[:, sequences.BASE_OFFSET]
        counts += 1
        is_known = fates[:, sequences.FATE] == sequences.DUPLICATE
        for number in np.argsort(numbers):
            mine = np.flatnonzero(which.reshape(-1) == number)
            first, last = int(mine[0]), int(mine[-1])
            yield Appended(
                *self._topic_partition,
                producer_id=int(producers[number, 0]),
                producer_epoch=int(producers[number, 1]),
                base_offset=int(fates[first, sequences.FATE_BASE_OFFSET]),
                last_offset=int(fates[last, sequences.FATE_LAST_OFFSET]),
                first_sequence=int(self._batches[first, sequences.FIRST_SEQUENCE]),
                last_sequence=int(self._batches[last, sequences.LAST_SEQUENCE]),
                n_records=int(counts[mine].sum()),
                n_duplicates=int(counts[mine][is_known[mine]].sum()),
            )


def _sorted(known: Int64s) -> Int64s:
    """Lines of a table of known batches, as the kernels look them up."""
    return known[np.lexsort(known.T[::-1])]


def _last_batches(states: Int64s) -> Int64s:
    """Lines of a table of known batches: the last one of each producer that has one."""
    (rows,) = np.nonzero(
        (states[:, producer_table.LAST_OFFSET] >= 0)
        & (states[:, producer_table.LAST_SEQUENCE] >= 0)
    )
    last_sequence = states[rows, producer_table.LAST_SEQUENCE]
    last_offset = states[rows, producer_table.LAST_OFFSET]
    delta = states[rows, producer_table.OFFSET_DELTA]
    lines: Int64s = np.empty((len(rows), sequences.KNOWN_COLUMNS), np.int64)
    lines[:, sequences.KNOWN_ROW] = rows
    lines[:, sequences.KNOWN_EPOCH] = states[rows, producer_table.EPOCH]
    lines[:, sequences.KNOWN_FIRST] = (last_sequence - delta) % _N_SEQUENCES
    lines[:, sequences.KNOWN_LAST] = last_sequence
    lines[:, sequences.KNOWN_BASE_OFFSET] = last_offset - delta
    lines[:, sequences.KNOWN_LAST_OFFSET] = last_offset
    return lines


def _known_lines(batches: Int64s, rows: Int64s) -> Int64s:
    """Lines of a table of known batches, not sorted yet."""
    lines: Int64s = np.empty((len(batches), sequences.KNOWN_COLUMNS), np.int64)
    lines[:, sequences.KNOWN_ROW] = rows
    lines[:, 1:] = batches[:, sequences.EPOCH : sequences.LAST_OFFSET + 1]
    return lines


def _fields(batches: ScannedBatches) -> Int64s:
    fields: Int64s = np.empty((len(batches.headers), sequences.BATCH_COLUMNS), np.int64)
    read_sequences(batches.buf, batches.headers, fields)
    return fields


def _fields_of(directory: str, extents: Iterable[Extent]) -> Int64s:
    """Lines of a table of batches, one for each batch of some extents.

    Raises `StagedFileError` if a staged file holds something else.
    """
    found = [_NO_BATCHES]
    for extent in extents:
        found += [_fields(batches) for batches in extent.held]
        if extent.held:
            continue
        path = os.path.join(directory, extent.file.name)
        with staged_errors(), open_file(path, follow=False) as file:
            walk = walk_file(path, file, extent.start, extent.end)
            found += [_fields(walked.scanned) for walked in walk]
    return np.concatenate(found)


def _fields_of_segment(segment: Segment, producer_ids: Int64s) -> Int64s:
    """Lines of a table of batches, one for each data batch of some producers in a segment."""
    found = [_NO_BATCHES]
    for walked in walk_batches([segment], segment.base_offset):
        headers = walked.scanned.headers
        is_wanted = np.isin(headers[:, layout.PRODUCER_ID], producer_ids)
        is_wanted &= headers[:, layout.ATTRIBUTES] & layout.CONTROL_MASK == 0
        if is_wanted.any():
            found.append(_fields(walked.scanned.only(is_wanted)))
    return np.concatenate(found)


def _stage_again(
    directory: str,
    stage: TaskStage,
    topic_partition: TopicPartition,
    extents: Iterable[Extent],
    is_kept: NDArray[np.bool_],
) -> None:
    """Stage some of the batches of extents once more."""
    at = 0
    for extent in extents:
        with staged_errors():
            for batches in staged_batches(directory, extent, 0, 0):
                kept = is_kept[at : at + len(batches.headers)]
                at += len(kept)
                bounds = np.flatnonzero(np.diff(kept, prepend=False, append=False)).tolist()
                for begin, end in zip(bounds[::2], bounds[1::2], strict=True):
                    stage.add(topic_partition, _relative(batches.only(slice(begin, end))))


def _relative(batches: ScannedBatches) -> EncodedBatches:
    """A copy of batches that lie next to each other, with offsets from 0 on."""
    table: Int64s = np.zeros((len(batches.headers), N_BATCH_COLUMNS), np.int64)
    table[:, : layout.N_HEADER_COLUMNS] = batches.headers[:, : layout.N_HEADER_COLUMNS]
    table[:, layout.POSITION] -= table[0, layout.POSITION]
    copied = EncodedBatches(batches.data.copy(), table)
    renumber_batches(copied.buffer, table)
    return copied
