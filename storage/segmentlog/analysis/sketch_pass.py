"""One pass from the bytes of usual batches to the sketches and numbers of an analysis."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from segmentlog.analysis.batch_stats import BatchStats
from segmentlog.analysis.record_sketch import RecordSketch
from segmentlog.format.kernels import one_pass, output, sketch_windows, sketches, status
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.records.decoder import MOST_ROWS
from segmentlog.format.records.one_pass import OnePassDecoder, Stop
from segmentlog.model import ALL_OFFSETS

_PLACES = 1 << 10  #: of records in a batch, at first


class SketchPass(OnePassDecoder):
    """Takes the usual batches of a slice into `sketch` and `batches`, and yields no rows.

    `others`: of `OnePassDecoder`, which has the rest of what a scan asks for.
    """

    def __init__(self, sketch: RecordSketch, batches: BatchStats, *others: Any) -> None:  # noqa: ANN401
        super().__init__(*others)
        self._sketch, self._batches = sketch, batches
        self._places: Int64s = np.empty(_PLACES * sketches.PLACE_SIZE, np.int64)

    def decode(
        self,
        buf: Bytes,
        start: int,
        end: int,
        next_offset: int,
        *,
        offset_limit: int = ALL_OFFSETS.end_offset,
        most_bytes: int = 0,
        window: Int64s | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Take the usual batches from byte `start` on; see `OnePassDecoder.decode`."""
        self.position, self.next_offset = start, next_offset
        if window is None:
            window = np.zeros(one_pass.N_WINDOW_COLUMNS, np.int64)
            window[one_pass.WINDOW_END] = end
        state, batches, pread = self._state, self._batches, window[one_pass.WINDOW_PREAD]
        while True:
            # While a sample is due, the window does not move before it is taken.
            window[one_pass.WINDOW_PREAD] = 0 if batches.samples else pread
            before = batches.n_waiting
            state[sketch_windows.N_HEADERS], state[sketch_windows.N_CONTROL] = before, 0
            code, self.position, self.next_offset = sketch_windows.sketch_windows(
                buf,
                self.position,
                self.next_offset,
                self._offsets.start_offset,
                min(self._offsets.end_offset, offset_limit),
                self._max_inflated_bytes,
                self._workspace.codecs.addresses,
                self._workspace.inflated,
                self._topic_partition.partition,
                self._places,
                self._sketch.arrays,
                batches.headers,
                state,
                window,
            )
            self.flushed_offset = self.next_offset
            n = int(state[sketch_windows.N_HEADERS]) - before
            batches.note(
                self.path,
                buf,
                n,
                int(window[one_pass.WINDOW_POSITION]),
                looks_into=bool(state[sketch_windows.N_CONTROL]),
            )
            if code == status.TABLE_FULL:
                batches.finish()
            elif not self._provide(code):
                break
        window[one_pass.WINDOW_PREAD] = pread
        in_vain = code in (status.OUTPUT_FULL, status.SCRATCH_FULL)
        self.stop = Stop.UNUSUAL if in_vain else Stop(code)
        return iter(())

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Nothing: no rows wait."""
        return iter(())

    def _provide(self, code: int) -> bool:
        if code != status.OUTPUT_FULL:
            return super()._provide(code)
        n_records = int(self._state[output.DETAIL])
        if n_records > MOST_ROWS:
            return False
        self._places = np.empty(n_records * sketches.PLACE_SIZE, np.int64)
        return True
