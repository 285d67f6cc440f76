"""Compressed batches: inflated for compaction, and compressed again with the codec they had."""

from collections.abc import Iterator

import numpy as np

from segmentlog.format.kernels import compaction, layout
from segmentlog.format.kernels.memory import Bytes, Int64s
from segmentlog.format.records.compression import Deflater
from segmentlog.format.records.decoder import RecordFiller
from segmentlog.format.records.scanned_batches import ScannedBatches
from segmentlog.model import Codec


def inflated_runs(
    filler: RecordFiller, batches: ScannedBatches
) -> Iterator[tuple[ScannedBatches, slice]]:
    """Runs of `batches`, whose headers are written to; ``filler.inflated`` has their records.

    Yields `run`, some batches, valid until the next step; `rows`, of `batches` that they are.
    Raises `MalformedBatchError` or `UnsupportedFormatError` if a batch cannot be inflated; the
    batches before it come first.
    """
    headers = batches.headers
    attributes = headers[:, layout.ATTRIBUTES]
    # A batch that compaction has emptied has nothing to inflate, whatever its codec.
    is_emptied = (headers[:, layout.SIZE] == layout.HEADER_BYTES) & (
        attributes & layout.LEGACY_MASK == 0
    )
    headers[is_emptied, layout.ATTRIBUTES] &= ~layout.CODEC_MASK
    begin = 0
    while begin < len(headers):
        rest = batches.only(slice(begin, None))
        end = begin + filler.inflate(rest)
        rows = slice(begin, end)
        yield batches.only(rows), rows
        begin = end


class Recompressor:
    """Compresses and seals batches; each codec at Kafka's default level."""

    def __init__(self) -> None:
        self._deflaters: dict[int, Deflater] = {}

    def __call__(self, data: Bytes, lines: Int64s) -> tuple[Bytes, Int64s]:
        """Seal all batches.

        `data`: uint8 array, shape (n_bytes,); batches that lie next to each other.  `lines`: int64
        array, shape (n_batches, `compaction.N_OUT_COLUMNS`); a batch with a codec is neither
        compressed nor sealed.
        """
        todo = np.flatnonzero(lines[:, compaction.CODEC])
        if not len(todo):
            return data, lines
        pieces: list[bytes | memoryview] = []
        view, done = data.data, 0
        starts = lines[todo, layout.RECORDS_START].tolist()
        ends = lines[todo, layout.RECORDS_END].tolist()
        codecs = lines[todo, compaction.CODEC].tolist()
        for row, start, end, codec in zip(todo.tolist(), starts, ends, codecs, strict=True):
            payload = self._deflater(codec).compress(view[start:end])
            pieces += (view[done:start], payload)
            lines[row, layout.SIZE] = layout.HEADER_BYTES + len(payload)
            done = end
        pieces.append(view[done:])
        joined: Bytes = np.frombuffer(bytearray().join(pieces), np.uint8)
        after = np.cumsum(lines[:, layout.SIZE])
        lines[:, layout.POSITION] = after - lines[:, layout.SIZE]
        compaction.seal_batches(joined, lines[todo])
        return joined, lines

    def _deflater(self, codec: int) -> Deflater:
        if codec not in self._deflaters:
            self._deflaters[codec] = Deflater(Codec(codec))
        return self._deflaters[codec]
