"""The figures of a report, from what was found in a part of a log."""

from collections.abc import Iterable, Mapping

import numpy as np

from segmentlog.analysis import report
from segmentlog.analysis.sample import FORMATS, Sample
from segmentlog.analysis.scan_partition import ScannedPart
from segmentlog.format.kernels import layout, sketches
from segmentlog.format.kernels.memory import Int64s
from segmentlog.model import Codec

_MOST_HEAVY = 10
_LEAST_SHARE = 0.0001  #: of the records, of one of the heaviest keys


def figures(
    part: ScannedPart, retention: report.RetentionForecast, schemas: Mapping[int, tuple[str, str]]
) -> report.TopicFigures:
    """The figures of a partition, or of a topic.

    `schemas`: type and subject of each schema, by its id.
    """
    batches, records, sample = part.batches, part.records, part.sample
    n_keys = part.n_records - records[sketches.NULL_KEYS]
    distinct, distinct_error = records.distinct
    error = records.heaviest_error
    heaviest = tuple(
        report.HeavyKey(
            f"{each.hashed:016x}",
            each.length,
            each.n_records,
            each.n_records + error,
            each.n_records / n_keys,
            each.partition,
            each.offset,
        )
        for each in records.heaviest(_MOST_HEAVY)
        if each.n_records > 1 and each.n_records >= _LEAST_SHARE * n_keys
    )
    n_timed = part.n_records - records[sketches.NO_TIME]
    # Numbers may look like ids of schemas: the sample tells which of them the values have.
    has_ids = not sample.values or sample.values["registry"] > 0
    return report.TopicFigures(
        n_records=part.n_records,
        n_bytes=part.n_bytes,
        n_segments=part.n_segments,
        batches=report.BatchFigures(
            batches.n_batches,
            batches.n_bytes,
            batches.n_control,
            batches.n_legacy,
            batches.n_empty,
            (batches.n_batches - batches.n_legacy) * layout.HEADER_BYTES,
            tuple(
                report.CodecUse(_codec(codec), n, int(batches.codec_bytes[codec]))
                for codec, n in enumerate(batches.codec_batches.tolist())
                if n
            ),
            histogram(batches.sizes),
        ),
        zstd=_zstd(sample),
        keys=report.KeyFigures(
            records[sketches.NULL_KEYS],
            records[sketches.KEY_BYTES],
            records[sketches.LARGEST_KEY],
            distinct,
            distinct_error,
            histogram(records.key_sizes),
            heaviest,
        ),
        values=report.ValueFigures(
            records[sketches.NULL_VALUES],
            records[sketches.TOMBSTONES],
            records[sketches.VALUE_BYTES],
            records[sketches.LARGEST_VALUE],
            histogram(records.value_sizes),
        ),
        formats=report.FormatFigures(
            sample.n_records,
            _formats(sample.keys),
            _formats(sample.values),
            tuple(
                report.SchemaUse(schema, n, *schemas.get(schema, ("", "")))
                for schema, n in (records.schema_ids() if has_ids else ())
            ),
            records[sketches.OTHER_IDS] if has_ids else 0,
        ),
        headers=report.HeaderFigures(
            sample.n_with_headers,
            tuple(
                report.HeaderUse(name.decode("utf-8", "backslashreplace"), n, n / sample.n_records)
                for name, n in sorted(sample.headers.items(), key=lambda each: (-each[1], each[0]))
            ),
            sample.n_other_headers,
            sample.n_headers,
            sample.header_bytes,
            sample.header_bytes / max(sample.header_bytes + sample.other_bytes, 1),
        ),
        producers=report.ProducerFigures(
            len(batches.producers),
            batches.has_more_producers,
            batches.n_idempotent,
            batches.n_transactional,
            batches.n_commits,
            batches.n_aborts,
            batches.aborted_records,
            len(batches.open_records),
            sum(batches.open_records.values()),
        ),
        clocks=report.ClockFigures(
            records[sketches.LEAST_MS] if n_timed else None,
            records[sketches.LARGEST_MS] if n_timed else None,
            records[sketches.N_BACK],
            records[sketches.MOST_BACK_MS],
            records[sketches.NO_TIME],
            records[sketches.BEFORE],
            records[sketches.AFTER],
            batches.n_append_time,
        ),
        offsets=report.OffsetFigures(
            part.n_records,
            part.n_deleted,
            batches.control_records,
            part.n_removed,
            part.n_lost,
            part.n_unreadable,
        ),
        retention=retention,
    )


def _codec(codec: int) -> str:
    return Codec(codec).name.lower() if codec <= max(Codec) else f"codec {codec}"


def histogram(counts: Int64s) -> tuple[report.SizeCount, ...]:
    """The bars of sizes by the number of their bits, without empty ones at both ends."""
    found = np.flatnonzero(counts)
    if not len(found):
        return ()
    return tuple(
        report.SizeCount(1 << (bits - 1) if bits else 0, (1 << bits) - 1, int(counts[bits]))
        for bits in range(int(found[0]), int(found[-1]) + 1)
    )


def _zstd(sample: Sample) -> report.ZstdSavings:
    if not sample.n_bytes:
        return report.ZstdSavings(0, 0, None, None)
    saved, joined = (
        1 - each / sample.n_bytes for each in (sample.zstd_bytes, sample.joined_bytes)
    )
    return report.ZstdSavings(sample.n_batches, sample.n_bytes, saved, joined)


def _formats(counts: Mapping[str, int]) -> tuple[report.FormatUse, ...]:
    total = sum(counts.values())
    return tuple(
        report.FormatUse(name, counts[name], counts[name] / total)
        for name in sorted(counts, key=lambda name: (-counts[name], FORMATS.index(name)))
    )


def sum_retention(found: Iterable[report.RetentionForecast]) -> report.RetentionForecast:
    """What retention removes from several partitions of a topic."""
    every = list(found)
    if not every:
        return report.RetentionForecast("", -1, -1, "unknown", 0, 0, None, 0)
    times = [each.next_ms for each in every if each.next_ms is not None]
    next_ms = min(times, default=None)
    return report.RetentionForecast(
        every[0].policy,
        every[0].retention_ms,
        every[0].retention_bytes,
        every[0].source,
        sum(each.n_due_segments for each in every),
        sum(each.due_bytes for each in every),
        next_ms,
        sum(each.next_bytes for each in every if each.next_ms == next_ms is not None),
    )
