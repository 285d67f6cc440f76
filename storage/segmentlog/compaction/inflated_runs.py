"""Scanned batches, a run at a time, with the records of compressed batches inflated."""

from collections.abc import Iterator

from segmentlog.kernels import layout
from segmentlog.records.filler import RecordFiller
from segmentlog.records.scanned_batches import ScannedBatches

__all__ = ["inflated_runs"]


def inflated_runs(
    filler: RecordFiller, batches: ScannedBatches
) -> Iterator[tuple[ScannedBatches, slice]]:
    """Runs of `batches`, whose headers are written to; ``filler.inflated`` has their records.

    Yields
    ------
    run : some batches, valid until the next step.
    rows : of `batches` that they are.

    Raises
    ------
    MalformedBatchError, UnsupportedFormatError
        If a batch cannot be inflated; the batches before it come first.
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
