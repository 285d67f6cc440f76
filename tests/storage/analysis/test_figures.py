"""Figures at their bounds: several partitions, many names, full tables, and nothing at all."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from segmentlog.analysis import batch_stats, figures, sample
from segmentlog.analysis.figures import histogram, sum_retention
from segmentlog.analysis.record_sketch import RecordSketch
from segmentlog.analysis.report import RetentionForecast, SizeCount
from segmentlog.analysis.sample import Sample
from segmentlog.analysis.scan_partition import ScannedPart, scan_partitions
from segmentlog.format.kernels import sketches
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.testing import codecs
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record, encode_batch

NOW = 1_700_000_000_000


def write(path: Path, *batches: bytes, partition: int = 0) -> Log:
    """A partition of one segment."""
    directory = path / f"t-{partition}"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    return open_log_dir(path).log("t", partition)


def part_of(log: Log) -> ScannedPart:
    directory = open_log_dir(Path(log.path).parent)
    (found,) = scan_partitions(directory, [log.topic_partition], NOW, use_threads=False)
    return found.part


def at(*times: int, key: bytes | None = None) -> bytes:
    """A batch with records at these times."""
    return encode_batch([Record(i, ms, key, b"v") for i, ms in enumerate(times)])


def test_partitions_beside_each_other_have_clocks_of_their_own(tmp_path: Path) -> None:
    """Steps back are added up, the largest one counts, and none lies between two partitions."""
    whole = ScannedPart(NOW)
    for number, times in enumerate([(9, 5, 9), (1, 0, 9, 2), (100,), (3, 1)]):
        whole.merge_beside(part_of(write(tmp_path, at(*times), partition=number)))

    assert 1 + 2 + 0 + 1 == whole.records[sketches.N_BACK]
    assert 7 == whole.records[sketches.MOST_BACK_MS]
    assert (0, 100) == (whole.records[sketches.LEAST_MS], whole.records[sketches.LARGEST_MS])


def test_parts_after_each_other_have_one_clock() -> None:
    """A part that is older than the one before is a step back; one without times changes none."""
    parts = [ScannedPart(NOW) for _ in range(4)]
    for part, times in zip(parts, ((5, 8), (-1,), (7, 9), (9,)), strict=True):
        counters = part.records.counters
        counters[sketches.N_RECORDS] = len(times)
        if times == (-1,):
            counters[sketches.NO_TIME] = 1
            continue
        counters[sketches.FIRST_MS], counters[sketches.LAST_MS] = times[0], times[-1]
        counters[sketches.LEAST_MS], counters[sketches.LARGEST_MS] = min(times), max(times)
    whole = ScannedPart(NOW)
    for part in parts:
        whole.merge(part)
    names = (sketches.FIRST_MS, sketches.LAST_MS, sketches.LEAST_MS, sketches.LARGEST_MS)
    assert [5, 9, 5, 9] == [whole.records[each] for each in names]
    assert (1, 1) == (whole.records[sketches.N_BACK], whole.records[sketches.MOST_BACK_MS])


def test_the_table_of_headers_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows it has, each batch is counted once, with markers and compressed ones."""
    batches, base = list[bytes](), 0
    for number in range(40):
        records = [Record(base + i, NOW + i, b"k", b"v" * number) for i in range(1 + number % 3)]
        codec = codecs.ZSTD if number % 5 == 1 else codecs.NONE
        batches.append(encode_batch(records, codec=codec, producer=(number % 4, 0, number)))
        base += len(records)
    log = write(tmp_path, *batches)
    wanted = part_of(log)
    assert (40, 4) == (wanted.batches.n_batches, len(wanted.batches.producers))
    for rows in (1, 2, 7, 40):
        monkeypatch.setattr(batch_stats, "_TABLE_ROWS", rows)
        assert wanted.batches.to_json() == part_of(log).batches.to_json()
        assert wanted.records.to_json() == part_of(log).records.to_json()


def test_the_first_names_of_headers_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later records of these names count as theirs, and those of other names as others."""
    monkeypatch.setattr(sample, "_MOST_NAMES", 2)
    found, other = Sample(), Sample()
    found.add_headers({b"a": 1, b"b": 2, b"c": 3})
    other.add_headers({b"b": 10, b"d": 20})
    found.merge(other)

    assert ({b"a": 1, b"b": 12}, 23) == (dict(found.headers), found.n_other_headers)


def test_zstd_saves_nothing_where_it_is(tmp_path: Path) -> None:
    """The batches as they are; put together, they would still be smaller."""
    batches = [
        encode_batch(
            [Record(10 * n + i, NOW, b"k", b"value") for i in range(10)], codec=codecs.ZSTD
        )
        for n in range(20)
    ]
    found = part_of(write(tmp_path, *batches)).sample

    assert found.zstd_bytes == found.n_bytes == sum(map(len, batches))
    assert found.joined_bytes < found.zstd_bytes / 3


def test_batches_are_put_together_up_to_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of 50 KB fit into 128 KiB, and not into 60 KB: there is a header more."""
    rng = np.random.default_rng(1)
    batches = [encode_batch([Record(n, NOW, None, rng.bytes(50_000))]) for n in range(2)]
    found = part_of(write(tmp_path, *batches)).sample
    monkeypatch.setattr(sample, "_LARGE_BATCH", 60_000)
    apart = part_of(open_log_dir(tmp_path).log("t", 0)).sample
    assert (found.n_batches, found.n_bytes) == (2, sum(map(len, batches)))
    assert 61 < apart.joined_bytes - found.joined_bytes < 61 + 64


@pytest.mark.parametrize(
    ("counts", "bars"),
    [
        ((), []),
        ((0, 0), []),
        ((3,), [(0, 0, 3)]),
        ((0, 2), [(1, 1, 2)]),
        ((0, 0, 5, 0, 1, 0), [(2, 3, 5), (4, 7, 0), (8, 15, 1)]),
    ],
)
def test_bars_are_those_of_powers_of_two(
    counts: tuple[int, ...], bars: list[tuple[int, int, int]]
) -> None:
    """Without empty bars at both ends, and with those between."""
    assert tuple(SizeCount(*each) for each in bars) == histogram(np.array(counts, np.int64))


def forecast(**given: Any) -> RetentionForecast:
    fields: dict[str, Any] = {
        "policy": "delete",
        "retention_ms": 5,
        "retention_bytes": 7,
        "source": "s",
        "n_due_segments": 0,
        "due_bytes": 0,
        "next_ms": None,
        "next_bytes": 0,
    }
    return RetentionForecast(**fields | given)


def test_retention_of_partitions_adds_up() -> None:
    """The next removal is the earliest, of all partitions that have it then."""
    first = forecast(n_due_segments=1, due_bytes=10, next_ms=9, next_bytes=100)
    second = forecast(n_due_segments=2, due_bytes=20, next_ms=8, next_bytes=200)
    third = forecast(next_ms=8, next_bytes=400)
    assert forecast(n_due_segments=3, due_bytes=30, next_ms=8, next_bytes=600) == sum_retention(
        [first, second, third, forecast(next_bytes=1)]
    )
    assert forecast() == sum_retention([forecast(next_bytes=5)])
    assert RetentionForecast("", -1, -1, "unknown", 0, 0, None, 0) == sum_retention([])


def test_figures_of_nothing() -> None:
    """What was not measured is none, and not zero."""
    found = figures.figures(ScannedPart(NOW), forecast(), {})
    assert (0, 0, None, None) == (
        found.zstd.sampled_batches,
        found.zstd.sampled_bytes,
        found.zstd.saved,
        found.zstd.saved_joined,
    )
    assert (None, None) == (found.clocks.least_ms, found.clocks.largest_ms)


def test_the_heaviest_keys_have_a_part_of_the_records(tmp_path: Path) -> None:
    """At least one of 10,000, and more than one record; at most ten keys are shown."""
    keys = [b"hot"] * 5000 + [b"two"] * 2 + [b"one"] + [b"%d" % i for i in range(14_997)]
    records = [Record(i, NOW, key, None) for i, key in enumerate(keys)]
    found = figures.figures(part_of(write(tmp_path, encode_batch(records))), forecast(), {}).keys
    assert [b"hot"] == [keys[each.offset] for each in found.heaviest][:1]
    sketch = RecordSketch(NOW)
    few = ScannedPart(NOW)
    few.records = sketch
    for number in range(12):
        few.records.merge(_sketched(b"k%d" % number, 2 + number))
    few.records.merge(_sketched(b"once", 1))
    shown = figures.figures(few, forecast(), {}).keys.heaviest
    assert [13, 12, 11, 10, 9, 8, 7, 6, 5, 4] == [each.n_records for each in shown]
    many = ScannedPart(NOW)
    for key, n in ((b"a", 19_998), (b"b", 2)):
        many.records.merge(_sketched(key, n))
    assert 2 == len(figures.figures(many, forecast(), {}).keys.heaviest)
    many.records.merge(_sketched(b"a", 1))
    assert 1 == len(figures.figures(many, forecast(), {}).keys.heaviest)


def _sketched(key: bytes, n: int) -> RecordSketch:
    sketch = RecordSketch(NOW)
    batch = pa.record_batch(
        {
            "key": pa.array([key] * n, pa.binary()),
            "value": pa.nulls(n, pa.binary()),
            "offset": pa.array(range(n), pa.int64()),
            "timestamp": pa.array([NOW] * n, pa.int64()),
        }
    )
    sketch.add(batch, 0)
    return sketch


def test_the_codecs_of_old_messages(tmp_path: Path) -> None:
    """They are in the messages themselves, also where batches of magic 2 follow."""
    plain = encode_message(Record(0, NOW, b"k", b"v"))
    packed = encode_wrapper([Record(i, NOW, b"k", b"v") for i in (1, 2)], codecs.GZIP)
    new = encode_batch([Record(3, NOW, b"k", b"v")], codec=codecs.LZ4)
    found = part_of(write(tmp_path, plain, packed, new)).batches

    assert (3, 2, 0) == (found.n_batches, found.n_legacy, found.n_empty)
    assert {0: 1, 1: 1, 3: 1} == {
        codec: n for codec, n in enumerate(found.codec_batches.tolist()) if n
    }
    assert [len(plain), len(packed), 0, len(new)] == found.codec_bytes.tolist()[:4]
