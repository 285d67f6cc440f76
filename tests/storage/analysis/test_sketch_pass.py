"""One pass to sketches: as a scan and its rows give them, in all shapes of logs."""

import importlib.util
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from segmentlog import native
from segmentlog.analysis import scan_partition as scanning
from segmentlog.analysis.batch_stats import BatchStats
from segmentlog.analysis.record_sketch import COLUMNS, RecordSketch
from segmentlog.analysis.sample import FORMATS, formats_of
from segmentlog.analysis.scan_partition import ScannedPart, ScannedPartition, scan_partitions
from segmentlog.format.kernels import formats, one_pass, sketch_windows, sketches
from segmentlog.format.records.one_pass import OnePassDecoder
from segmentlog.reads.choose import partitions_of
from segmentlog.reads.log import Log
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.testing import codecs
from segmentlog.testing.reference import Record, encode_batch

NOW = 1_700_000_000_000
GOLDEN = Path(__file__).parents[2] / "golden"


def in_python(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of kernels as Python runs it."""
    monkeypatch.setattr(native, "_compiled", None)
    spec = importlib.util.find_spec(module.__name__)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def drawn(rng: random.Random, base: int) -> Record:
    """A record of any kind."""
    key, value = (
        None if rng.random() < 0.2 else rng.choice([b"", b"\0\0\0\0", b"{"]) + rng.randbytes(size)
        for size in (rng.randrange(12), rng.choice([0, 1, 30, 5000]))
    )
    headers = ((b"h", None),) if rng.random() < 0.1 else ()
    return Record(base, NOW + rng.choice([-NOW - 1, -NOW, 0, 5, 10**9]), key, value, headers)


def write(path: Path, seed: int) -> Log:
    """A partition with batches of every kind that is not damaged."""
    rng, offset, batches = random.Random(seed), 0, list[bytes]()
    for _ in range(60):
        offset += rng.choice([0, 0, 0, 7])
        n = rng.choice([1, 3, 40])
        records = [drawn(rng, offset + i) for i in range(n)]
        kept = [each for each in records if rng.random() < 0.9]
        batches.append(
            encode_batch(
                kept or records[-1:],
                codec=rng.choice([codecs.NONE, codecs.NONE, codecs.ZSTD, codecs.LZ4, codecs.GZIP]),
                attributes=rng.choice([0, 0, 8]),
            )
        )
        offset += n
    (path / "t-0").mkdir(parents=True)
    (path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    return open_log_dir(path).log("t", 0)


def scanned(log: Log) -> ScannedPartition:
    directory = open_log_dir(Path(log.path).parent)
    (found,) = scan_partitions(directory, [log.topic_partition], NOW, use_threads=False)
    return found


def of_rows(log: Log) -> ScannedPart:
    """What the rows of a scan give."""
    part = ScannedPart(NOW)
    for batch in log.scan(columns=[*COLUMNS], use_threads=False):
        times = batch.column("timestamp").cast(pa.int64())
        milliseconds = pa.array(times.to_numpy() // 1000)
        at = batch.schema.names.index("timestamp")
        part.records.add(batch.set_column(at, "timestamp", milliseconds), 0)
    return part


@pytest.mark.parametrize("seed", range(4))
def test_one_pass_gives_what_the_rows_of_a_scan_give(tmp_path: Path, seed: int) -> None:
    """Codecs, nulls, headers, gaps, and times of both types."""
    log = write(tmp_path, seed)
    found, wanted = scanned(log).part.records, of_rows(log).records

    assert wanted.counters.tolist() == found.counters.tolist()
    assert wanted.to_json() == found.to_json()


def test_one_pass_takes_all_but_the_unusual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of usual batches, also compressed ones, no row is made; so they are not read twice."""
    batches = [
        encode_batch(
            [Record(10 * n + i, NOW, b"k%d" % i, b"v" * 20) for i in range(10)], codec=codec
        )
        for n, codec in enumerate([codecs.NONE, codecs.ZSTD, codecs.LZ4] * 9)
    ]
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    rows = list[int]()
    monkeypatch.setattr(RecordSketch, "add", lambda self, batch, _: rows.append(batch.num_rows))
    found = scanned(open_log_dir(tmp_path).log("t", 0)).part

    assert ([], 270, 27) == (rows, found.n_records, found.batches.n_batches)


@pytest.mark.parametrize("name", ["kafka-2.8.2", "kafka-4.3.1"])
def test_batches_are_counted_as_a_look_at_all_windows_counts_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each topic that a broker has written: with transactions, compacted, of old formats."""
    directory = open_log_dir(GOLDEN / name)
    logs = [directory.log(*each) for each in partitions_of(directory, ())]
    assert len(logs) > 5
    found = [scanned(log) for log in logs]

    def rows_alone(sketch: RecordSketch, batches: BatchStats, *others: Any) -> OnePassDecoder:
        made = OnePassDecoder(*others)
        shown, decode = batches.see, made.decode

        def decode_seen(buf: Any, start: int, end: int, *args: Any, **kwargs: Any) -> Any:
            window = kwargs["window"]
            window[one_pass.WINDOW_PREAD] = 0  # it does not move
            shown(made.path, buf, start, end, int(window[one_pass.WINDOW_POSITION]))
            return decode(buf, start, end, *args, **kwargs)

        monkeypatch.setattr(made, "decode", decode_seen)
        return made

    monkeypatch.setattr(scanning, "SketchPass", rows_alone)
    for log, each in zip(logs, found, strict=True):
        wanted = scanned(log)
        ours, theirs = each.part.to_json(), wanted.part.to_json()
        del ours["sample"], theirs["sample"]  # may have batches before the start of the log
        assert theirs == ours, log.path
        assert wanted.problems == each.problems


def test_the_kernel_in_plain_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the same sketches and the same headers."""
    log = write(tmp_path, 9)
    compiled = scanned(log).part.to_json()
    plain = in_python(sketch_windows, monkeypatch)
    monkeypatch.setattr(sketch_windows, "sketch_windows", plain.sketch_windows)

    assert compiled == scanned(log).part.to_json()


def test_a_batch_with_more_records_than_there_is_room_for(tmp_path: Path) -> None:
    """The room grows, up to the records of an Arrow batch; a larger batch is read with care."""
    base, batches = 0, list[bytes]()
    for n in (5000, 3, 60_000, 2):
        batches.append(encode_batch([Record(base + i, NOW, b"%d" % i, None) for i in range(n)]))
        base += n
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    log = open_log_dir(tmp_path).log("t", 0)
    found = scanned(log).part

    ours, wanted = found.records.counters, of_rows(log).records.counters
    wanted[sketches.N_SEEN] = ours[sketches.N_SEEN]  # of the last part
    assert wanted.tolist() == ours.tolist()
    assert (65_005, 4) == (found.n_records, found.batches.n_batches)


def format_in_python(value: bytes | None) -> str:
    """The format of a value, as the documents tell it."""
    if not value:
        return ""
    has_id = any(value[1:5]) or (len(value) > 9 and any(value[1:9]))  # no schema has the id 0
    if len(value) >= 5 and value[0] == 0 and value[1] < 0x80 and has_id:
        return "registry"
    try:
        value.decode()
        is_text = not any(each < 0x20 and each not in b"\t\n\r" for each in value)
    except UnicodeDecodeError:
        is_text = False
    if is_text:
        return "json" if value[:1] + value[-1:] in (b"{}", b"[]") else "text"
    heads = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
    return "compressed" if value.startswith(heads) else "binary"


VALUES = [
    None, b"", b"\0", b"\0\0\0\0", b"\0\0\0\0\0", b"\0\x7f\0\0\0", b"\0\x80\0\0\0", b"{", b"{}",
    b"[]", b"{]", b"[}", b"{\"a\": 1}", b"{\"\0\": 1}", b"a", b"\t\n\r", b"\x1f", b"\x1f\x8b",
    b"\x1f\x8b\x08", b"\x28\xb5\x2f", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18",
    b"\x04\x22\x4d\x19", b"\x7f", b"\x80", b"\xc2", b"\xc2\x80", b"\xc1\xbf",
    b"\xdf\xbf", b"\xe0\x9f\xbf",
    b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xef\xbf\xbf", b"\xef\xbf",
    b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80", b"\xe1\x80\xc0", b"\xf1\x80\x80\xc0", "ünï".encode(), b"\xc3\xbc\x01",
]  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False])
def test_formats_are_told_apart(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is what Python decodes, at every bound of UTF-8; and a value ends where it ends."""
    rng = random.Random(3)
    more = [rng.choice([b"", b"\0", b"{"]) + rng.randbytes(rng.randrange(6)) for _ in range(500)]
    if not compiled:
        plain = in_python(formats, monkeypatch)
        monkeypatch.setattr(formats, "count_formats", plain.count_formats)
    for value in [*VALUES, *more]:
        name = format_in_python(value)
        column = pa.array([b"}\x80", value, b"\x80\0"], pa.binary()).slice(1, 1)
        assert ({name: 1} if name else {}) == formats_of(column), value
    wanted = Counter(map(format_in_python, VALUES))
    del wanted[""]
    assert wanted == formats_of(pa.array(VALUES, pa.binary()))
    assert len(FORMATS) == formats.N_FORMATS
