"""Commands that read whole topics once, against a scan, a copy, and a writer of Parquet."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import query_data
from measure import Row, compare
from planning import run_program

import segmentlog
from segmentlog.model import Codec
from segmentlog.tools.dump import dump_paths
from segmentlog.tools.records import RecordText
from segmentlog.tools.sinks import CountingSink, Format, open_sink
from segmentlog.tools.walk import Selection

__all__ = ["rows"]

_N_CLONED = 12  #: partitions of a clone
_ANALYZE = """
before = peak()
import segmentlog
found = segmentlog.analyze(sys.argv[1])
print(peak() - before, found.topics[0].figures.n_records)
"""

_Found = tuple[int, ...]


def rows(scratch: Path, n_records: int, rounds: int) -> list[Row]:
    """The rows of the table about whole topics."""
    found = []
    for codec in (Codec.NONE, Codec.ZSTD):
        directory = scratch / codec.name.lower()
        query_data.write(directory, n_records, query_data.N_PARTITIONS, codec)
        found += [
            *_analyze(directory, codec, rounds),
            _clone(directory, codec, rounds),
            _dump(directory, codec, rounds),
        ]
    return [*found, _memory(scratch, n_records)]


def _n_bytes(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.rglob("*.log"))


def _scanned(directory: Path) -> _Found:
    batches = segmentlog.dataset(directory).scanner().to_batches()
    return (sum(each.num_rows for each in batches),)


def _analyzed(directory: Path) -> _Found:
    return (segmentlog.analyze(directory).topics[0].figures.n_records,)


def _parsed(directory: Path) -> _Found:
    batches = segmentlog.dataset(directory).scanner(["offset"]).to_batches()
    return (sum(each.num_rows for each in batches),)


def _analyze(directory: Path, codec: Codec, rounds: int) -> list[Row]:
    contestants: dict[str, Callable[[], _Found]] = {
        "ours": partial(_analyzed, directory),
        "theirs": partial(_scanned, directory),
        "limit": partial(_parsed, directory),
    }
    results = compare(contestants, 3 * rounds)  # each takes a fraction of a second
    ours, theirs, limit = results["ours"], results["theirs"], results["limit"]
    (n_records,), n_bytes = ours.digest, _n_bytes(directory)
    detail = (
        f"{n_records / ours.median / 1e6:.1f} against {n_records / theirs.median / 1e6:.1f} M "
        f"records/s, {n_bytes / ours.median / 1e6:.0f} MB/s of log; ±{ours.spread:.0%}, "
        f"±{theirs.spread:.0%}; bound by the copy out of the page cache, by checksums, and by the "
        "sketches of keys"
    )
    against = "a scan of all columns without headers"
    work = f"`segmentlog.analyze`, {codec.name.lower()}"
    of_limit = f"{n_records / limit.median / 1e6:.1f} M records/s; ±{limit.spread:.0%}"
    return [
        Row(work, against, "≥ 0.7", f"{theirs.median / ours.median:.2f}", detail),
        Row(
            "the limit for the row above: a scan of the offsets alone",
            against,
            "–",
            f"{theirs.median / limit.median:.2f}",
            of_limit,
        ),
    ]


def _clone(directory: Path, codec: Codec, rounds: int) -> Row:
    made, numbers = directory.with_name("cloned"), count()

    def cloned() -> _Found:
        to = made / str(next(numbers))
        found = segmentlog.clone(
            directory,
            query_data.TOPIC,
            "clone",
            to=to,
            num_partitions=_N_CLONED,
            order="timestamp",
        )
        return (sum(each.n_records for each in found.partitions),)

    def copied() -> _Found:
        config = segmentlog.ProducerConfig(use_timestamps=True, codec=codec)
        n = 0
        with segmentlog.open_writer(
            made / str(next(numbers)), "copy", num_partitions=_N_CLONED, config=config
        ) as writer:
            source = segmentlog.dataset(directory, include_headers=True)
            for batch in source.scanner(("key", "value", "timestamp", "headers")).to_batches():
                writer.append(batch)
                n += batch.num_rows
        return (n,)

    contestants: dict[str, Callable[[], _Found]] = {"ours": cloned, "theirs": copied}
    results = compare(contestants, rounds, between=lambda: shutil.rmtree(made, ignore_errors=True))
    shutil.rmtree(made)
    ours, theirs = results["ours"], results["theirs"]
    (n_records,) = ours.digest
    detail = (
        f"{n_records / ours.median / 1e6:.2f} against {n_records / theirs.median / 1e6:.2f} M "
        f"records/s; ±{ours.spread:.0%}, ±{theirs.spread:.0%}; bound by the merge by time, and by "
        "the writer"
    )
    work = f"`segmentlog.clone` over {_N_CLONED} partitions, {codec.name.lower()}"
    return Row(
        work,
        "a read and a write of the records, in no order",
        "≥ 0.8",
        f"{theirs.median / ours.median:.2f}",
        detail,
    )


def _dump(directory: Path, codec: Codec, rounds: int) -> Row:
    """A dump to Parquet, which has more columns, against a scan and a writer, in one thread."""
    path = directory.with_name("dumped.parquet")

    def dumped() -> _Found:
        with open_sink(Format.PARQUET, str(path), RecordText(), with_records=True) as sink:
            found = CountingSink(sink, None, with_records=True)
            dump_paths([str(directory)], found, Selection(), with_records=True)
        return (found.n_records,)

    def written() -> _Found:
        scanner = segmentlog.dataset(directory, include_headers=True).scanner(use_threads=False)
        n = 0
        with pq.ParquetWriter(path, scanner.projected_schema, compression="zstd") as writer:
            for batch in scanner.to_batches():
                writer.write_batch(batch)
                n += batch.num_rows
        return (n,)

    contestants: dict[str, Callable[[], _Found]] = {"ours": dumped, "theirs": written}
    results = compare(contestants, rounds, between=lambda: path.unlink(missing_ok=True))
    path.unlink()
    ours, theirs = results["ours"], results["theirs"]
    (n_records,) = ours.digest
    detail = (
        f"{n_records / ours.median / 1e6:.2f} against {n_records / theirs.median / 1e6:.2f} M "
        f"records/s; ±{ours.spread:.0%}, ±{theirs.spread:.0%}; bound by the writer of Parquet"
    )
    return Row(
        f"`segmentlog dump --records --format parquet`, {codec.name.lower()}",
        "a scan, and pyarrow's writer with the same settings, one thread each",
        "≥ 0.63",
        f"{theirs.median / ours.median:.2f}",
        detail,
    )


def _memory(scratch: Path, n_records: int) -> Row:
    """An analysis in new interpreters, of a log and of another that is four times as long."""
    found = {}
    for n in (n_records // 4, n_records):
        directory = scratch / f"memory-{n}"
        query_data.write(directory, n, query_data.N_PARTITIONS)
        most, _ = run_program(_ANALYZE, os.environ, str(directory))
        found[_n_bytes(directory)] = most
        shutil.rmtree(directory)
    each = ", ".join(f"{size / 1e6:.0f} MB of log {most:.0f} MB" for size, most in found.items())
    detail = f"{each}; bound by imports, and by the windows and sketches of two threads"
    return Row(
        "memory of an analysis over the interpreter",
        "–",
        "< 400 MB",
        f"{max(found.values()):.0f} MB",
        detail,
    )
