"""Bytes of a log to Arrow batches in one pass, for the batches that nearly all logs consist of.

A `OnePassDecoder` stops before every batch that is not of the usual kind.  A `BatchScanner` and a
`RecordDecoder` take that batch, and name its fault if it has one.  A `Workspace` has the memory,
and the open file, that the slices of one read leave to one another.
"""

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from segmentlog.format.kernels import one_pass, output, status
from segmentlog.format.kernels.memory import COPY_SLACK, Bytes, Int64s
from segmentlog.format.kernels.one_pass import decode_windows
from segmentlog.format.kernels.scan import SMALLEST_RECORD_BYTES
from segmentlog.format.records.columns import (
    CONSTANT_COLUMNS,
    Arenas,
    Constants,
    Output,
    is_in_milliseconds,
)
from segmentlog.format.records.decoder import FIRST_ROWS, MOST_BYTES, MOST_ROWS
from segmentlog.format.records.native_codecs import NativeCodecs
from segmentlog.model import (
    ALL_OFFSETS,
    LARGEST_LONG,
    LEAST_LONG,
    MAX_INFLATED_BATCH_BYTES,
    OffsetRange,
    TimestampRange,
    TimestampType,
    TopicPartition,
)
from segmentlog.native import address_of

_MOST_KEPT_BYTES = 8 << 20  # a slice of unusually large batches leaves nothing to the next one


class _Closable(Protocol):
    def close(self) -> None: ...


class Workspace:
    """Working memory of one slice at a time, and the file that the slice before it ended in.

    `window`: uint8 array, shape (n_bytes,), of bytes of a file; `COPY_SLACK` belong to no batch.
    `inflated`: uint8 array, shape (n_bytes,), of one inflated batch, with `COPY_SLACK` after it.
    `codecs`: for the thread that reads the slice.
    """

    def __init__(self) -> None:
        self.window: Bytes = np.empty(0, np.uint8)
        self.inflated: Bytes = np.empty(COPY_SLACK, np.uint8)
        self.codecs = NativeCodecs()
        self._left: tuple[str, int, _Closable] | None = None

    def take_file(self, path: str, inode: int) -> Any:  # noqa: ANN401 - what `leave_file` got
        """The file that was left, for the caller to close; None if it is another one."""
        if self._left is None or self._left[:2] != (path, inode):
            self.close()
            return None
        file, self._left = self._left[2], None
        return file

    def leave_file(self, path: str, inode: int, file: _Closable) -> None:
        """Leave an open file to the next slice, most often of the same segment."""
        # The next slice does not open it, nor prove whose it is: each call of the system hands the
        # interpreter's lock over. Two threads take 3 % less time without these calls.
        self.close()
        self._left = path, inode, file

    def close(self) -> None:
        """Close the file that was left; the memory stays."""
        left, self._left = self._left, None
        if left is not None:
            left[2].close()


class ReadMemory:
    """Working memory for the threads of one read, which begins in the thread that makes it.

    `batch_bytes`: most bytes of the keys, and of the values, of an Arrow batch, unless one batch
    of the log has more; by default, each decoder has its own bound.  `are_first`: whether no rows
    were made yet; a user may wait for the first ones.
    """

    def __init__(self, batch_bytes: int = sys.maxsize) -> None:
        self.batch_bytes = batch_bytes
        self._consumer = threading.get_ident()
        self.are_first = True
        self._workspaces: deque[Workspace] = deque()
        self._is_closed = False

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Workspace]:
        """Working memory for one slice, which it leaves to the next one unless it fails."""
        # With it, two threads take 5 % less time for slices of 16 MiB, 7 % for slices of zstd.
        try:
            lent = self._workspaces.pop()  # the last one is in the cache
        except IndexError:
            lent = Workspace()
        is_kept = False
        try:
            yield lent
            is_kept = lent.window.nbytes + lent.inflated.nbytes <= _MOST_KEPT_BYTES
        finally:
            if is_kept:
                self._workspaces.append(lent)
            if not is_kept or self._is_closed:  # the consumer did not wait for this thread
                lent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that slices have left."""
        self._is_closed = True
        for each in list(self._workspaces):  # a thread may still leave one
            each.close()

    @property
    def are_ahead(self) -> bool:
        """Whether the thread that asks is not the consumer."""
        return threading.get_ident() != self._consumer


_MICROSECONDS, _MILLISECONDS = 1000, 1  # in a millisecond
_ROOM_BYTES = 8 << 20
_SMALL_ROOM_BYTES = 1 << 20  # a read of so few bytes takes no arena
_SCRATCH_BYTES = 256 << 10  # for one inflated batch: it should stay in the second cache
_ARENAS = Arenas(_ROOM_BYTES + COPY_SLACK, 2)  # for keys, and for values
_IN_VAIN = (status.OUTPUT_FULL, status.SCRATCH_FULL)  # at the end: the batch is too large


class Stop(Enum):
    """Why a call of `OnePassDecoder.decode` ended."""

    END = status.OK
    CUT_SHORT = status.NEED_MORE  #: the next batch is not whole
    UNUSUAL = status.UNUSUAL  #: the careful decoder has to take the next batch


class OnePassDecoder:
    """Turns the bytes of usual batches of one partition into Arrow batches.

    An Arrow batch may hold rows of several buffers.  It stays open until it is full, until an
    unusual batch comes, or until `flush` is called.

    `timestamps`: batches that cannot have records of these times are skipped.  `needle`: so are
    batches without these bytes, where the system has a quick search.  `position`,
    `next_offset`: byte of the buffer, and offset, after the last batch taken.  `flushed_offset`:
    offset after the last batch whose rows were yielded.  `stop`: why the last call of `decode`
    ended.  `path`: the file of the bytes, for errors.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        schema: pa.Schema,
        offsets: OffsetRange = ALL_OFFSETS,
        max_inflated_batch_bytes: int = MAX_INFLATED_BATCH_BYTES,
        timestamps: TimestampRange | None = None,
        memory: ReadMemory | None = None,
        workspace: Workspace | None = None,
        needle: bytes = b"",
    ) -> None:
        self._needle: Int64s = np.zeros(one_pass.N_NEEDLE_COLUMNS, np.int64)
        self._needle_bytes: Bytes = np.frombuffer(needle, np.uint8)  # which has to stay
        if needle:
            address = self._needle_bytes.ctypes.data
            self._needle[:] = address_of("memmem"), address, len(needle)
        self._topic_partition, self._offsets = topic_partition, offsets
        self._memory = memory or ReadMemory()
        self._workspace = workspace or Workspace()
        first_ms, end_ms = timestamps or (LEAST_LONG, LARGEST_LONG + 1)
        self._first_ms = min(max(first_ms, LEAST_LONG), LARGEST_LONG)
        self._last_ms = min(max(end_ms - 1, LEAST_LONG), LARGEST_LONG)
        self._schema = schema
        self._scale = _MILLISECONDS if is_in_milliseconds(schema) else _MICROSECONDS
        self._constants = Constants.of(topic_partition)
        self._state: Int64s = np.zeros(output.N_STATE, np.int64)
        self._state[output.LEAVES_HEADERS_OUT] = "headers" not in schema.names
        self._room: Output | None = None
        self._max_inflated_bytes = max_inflated_batch_bytes
        is_awaited = self._memory.are_first and not self._memory.are_ahead
        self._n_rows = FIRST_ROWS if is_awaited else MOST_ROWS
        self._room_bytes = min(self._memory.batch_bytes, _ROOM_BYTES)
        self.path, self.position = "", 0
        self.next_offset = self.flushed_offset = ALL_OFFSETS.start_offset
        self.stop = Stop.END

    @staticmethod
    def suits(schema: pa.Schema) -> bool:
        """Whether these columns can be decoded in one pass."""
        # The careful decoder takes headers that are not null, headers without keys and values, and
        # columns that need no records at all.
        names = {*schema.names}
        reads_records = "headers" not in names or bool(names & {"key", "value"})
        return reads_records and not CONSTANT_COLUMNS.issuperset(names)

    def decode(
        self,
        buf: Bytes,
        start: int,
        end: int,
        next_offset: int,
        *,
        offset_limit: int = ALL_OFFSETS.end_offset,
        most_bytes: int = _ROOM_BYTES,
        window: Int64s | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Full Arrow batches of the usual batches from byte `start` on.

        `buf`: uint8 array, shape (n_bytes,); read only, and valid until the iterator ends; the
        last `segmentlog.format.kernels.memory.COPY_SLACK` bytes belong to no usual batch.
        `start`, `end`: half-open byte range that begins at a batch.  `next_offset`: the least base
        offset that the first batch may have.  `offset_limit`: a batch that reaches this offset is
        not usual.  `most_bytes`: bytes of the range and of all that is still to come.  `window`:
        int64 array, shape (`segmentlog.format.kernels.one_pass.N_WINDOW_COLUMNS`,), of a window
        that may move on over its file, with `end` in it; `buf` is written then, and `position` is
        a byte of the moved window.
        """
        self.position, self.next_offset = start, next_offset
        if window is None:
            window = np.zeros(one_pass.N_WINDOW_COLUMNS, np.int64)
            window[one_pass.WINDOW_END] = end
        range_start, range_end = self._offsets
        range_end = min(range_end, offset_limit)
        codecs = self._workspace.codecs
        while True:
            if self._room is None:
                is_inflating = self._workspace.inflated.size > COPY_SLACK
                n_bytes = self._room_bytes
                self._make_room(
                    self._n_rows, n_bytes if is_inflating else min(most_bytes, n_bytes)
                )
            code, self.position, self.next_offset = decode_windows(
                buf, self.position, self.next_offset, range_start, range_end, self._first_ms,
                self._last_ms, self._scale, self._max_inflated_bytes, codecs.addresses,
                self._workspace.inflated, self._needle, self._arrays, self._state, window,
            )  # fmt: skip
            if code == status.OUTPUT_FULL and self._state[output.N_ROWS]:
                yield from self.flush()
            elif code == status.UNUSUAL and self.next_offset < range_start:
                # The range may begin inside this batch: `flush` cuts off the rows before it.
                range_start = self.next_offset
            elif not self._provide(code):
                break
        if code in _IN_VAIN:
            code = status.UNUSUAL
        if code == status.UNUSUAL:
            yield from self.flush()
        self.stop = Stop(code)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The rows that were not yet yielded."""
        self.flushed_offset = self.next_offset
        # Not used again, even if it has no rows: nulls of the unusual batch may be marked in it.
        room, self._room = self._room, None
        if room is None or not self._state[output.N_ROWS]:
            return
        self._n_rows = MOST_ROWS
        self._memory.are_first = False
        timestamp_type = TimestampType(int(self._state[output.TIMESTAMP_TYPE] != 0))
        self._state[output.LIST_NULLS] = self._state[output.N_ROWS]  # else they are unusual
        rows = room.to_arrow(self._state, self._constants, timestamp_type)
        offsets = self._arrays.offsets[: rows.num_rows]
        if offsets[0] < self._offsets.start_offset:  # the range begins inside a batch
            rows = rows.slice(int(np.searchsorted(offsets, self._offsets.start_offset)))
        if rows.num_rows:
            yield rows

    def _provide(self, code: int) -> bool:
        """Provide what the kernel needs for the next batch; return whether it may try again."""
        if code == status.OUTPUT_FULL:  # an empty output is too small for the batch
            n_rows, n_bytes = self._state[output.DETAIL : output.DETAIL_2 + 1].tolist()
            if n_rows > MOST_ROWS or n_bytes > MOST_BYTES:
                return False
            self._make_room(max(n_rows, self._n_rows), n_bytes)
            return True
        if code == status.CODEC_NEEDED:
            self._workspace.codecs.load(int(self._state[output.DETAIL]))
            return True
        n_bytes = self._workspace.inflated.size - COPY_SLACK
        if code != status.SCRATCH_FULL or n_bytes >= min(MOST_BYTES, self._max_inflated_bytes):
            return False
        n_bytes = min(max(2 * n_bytes, _SCRATCH_BYTES), MOST_BYTES)
        self._workspace.inflated = np.empty(n_bytes + COPY_SLACK, np.uint8)
        return True

    def _make_room(self, n_rows: int, n_bytes: int) -> None:
        n_rows = min(n_rows, n_bytes // SMALLEST_RECORD_BYTES + 1)
        if _SMALL_ROOM_BYTES < n_bytes <= _ROOM_BYTES:
            n_bytes = max(n_bytes, self._room_bytes)
            self._room = Output(self._schema, n_rows, n_bytes, 0, _ARENAS)
        else:
            self._room = Output(self._schema, n_rows, n_bytes, 0)
        arrays = self._room.plain_arrays
        if not len(arrays.offsets):
            arrays = arrays._replace(offsets=np.empty(n_rows, np.int64))
        if not len(arrays.timestamps):
            arrays = arrays._replace(timestamps=np.empty(n_rows, np.int64))
        self._arrays = arrays
        self._room.begin(self._state)
