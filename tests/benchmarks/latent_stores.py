"""A log in an object store whose requests take as long as those of a cloud's store.

``R`` is what a request takes on average.  The server (`latent_store`) says it: it waits so long
before each answer.  With many writers, the two processor cores of one machine are the bound, which
as many machines would not have: so the rows of many writers come with a longer ``R``, too.
"""

import itertools
import math
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import randbytes
from secrets import token_hex

import obstore
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from latent_store import BUCKET, LatentServer
from measure import Row
from object_stores import location_of, new_process
from racing import SMALL, Raced, delta_options, race

import segmentlog
from segmentlog.bucket.checkpoint_objects import interval
from segmentlog.bucket.checkpoints import decode_checkpoint, encode_checkpoint
from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.extents import PartitionLog, PlacedExtent, Topic
from segmentlog.bucket.growing import Growing
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import ObstoreObjects
from segmentlog.bucket.sequence import sequence_at
from segmentlog.model import TopicPartition
from segmentlog.store.remote.object_store import PIECE_BYTES
from segmentlog.store.remote.requests import side_by_side

__all__ = ["rows"]

_MS = (15.0, 40.0)  # what a request takes
_R = sum(_MS) / 2000
_SCALE = 0.150 / _R  # of the longer one
_AT_ONCE = 32
_LINE_MB = 125  # 1 Gbit/s
_LONG_MS = 400.0  # of a request, beside which the work of a processor is little
_ORDERS = TopicPartition("orders", 0)

#: Writers, how much longer a request takes, commits, and the goal.
_RACES = (
    (1, 1.0, 120, "≤ 3.1 requests"),
    (2, 1.0, 200, "≤ 16 R, ≥ 13 commits/s"),
    (4, 1.0, 320, "≤ 16 R"),
    (8, 1.0, 400, "–"),
    (16, 1.0, 960, "≥ 60 commits/s, ≤ 6 requests"),
    (32, 1.0, 960, "–"),
    (8, _SCALE, 200, "≤ 20 R"),
    (16, _SCALE, 400, "≤ 20 R"),
    (32, _SCALE, 640, "≤ 20 R"),
)
_OF_DELTA = {1: 40, 4: 60, 16: 64}


def rows(scratch: Path, *, quick: bool) -> list[Row]:
    """All rows of the table."""
    with LatentServer() as server:
        found, races = list[Row](), dict[int, Raced]()
        for n_writers, scale, n_commits, goal in _RACES:
            raced = _race(server, n_writers, scale, n_commits // 10 if quick else n_commits)
            name = f"{_shown(n_writers)}, R = {1000 * _R * scale:.1f} ms"
            found.append(Row(name, "–", goal, *_figures(raced, scale)))
            if scale == 1.0:
                races[n_writers] = raced
        found += [_beside_plain(server, each, races[each]) for each in (16, 32)]
        for n_writers, n_commits in _OF_DELTA.items():
            raced = _race_of_delta(server, n_writers, n_commits // 4 if quick else n_commits)
            rate, theirs = races[n_writers].rate, "; ".join(_figures(raced))
            found.append(
                Row(
                    _shown(n_writers),
                    f"`deltalake`, R = {1000 * _R:.1f} ms",
                    "≥ 1.0",
                    f"{rate / raced.rate:.1f}",
                    f"{rate:.1f} against {raced.rate:.1f} commits/s; of Delta {theirs}",
                )
            )
        n, n_rows = (200, 40_000) if quick else (2000, 400_000)
        return [
            *found,
            *_small_commits(server, scratch, n),
            *_large_extents(server, scratch, n_rows, segmentlog.Codec.NONE),
            *_large_extents(server, scratch, n_rows, segmentlog.Codec.ZSTD),
            *_long_log(server, scratch, 1_000 if quick else 10_000),
            _checkpoints(20_000 if quick else 500_000),
        ]


def _figures(raced: Raced, scale: float = 1.0) -> tuple[str, str]:
    """What writes have waited; and how many there were, with what they have asked."""
    times = [each / (_R * scale) for each in raced.times]
    p99 = sorted(times)[int(0.99 * len(times))]
    return (
        f"p99 {p99:.1f} R, median {statistics.median(times):.1f} R",
        f"{raced.rate:.1f} commits/s; {raced.requests:.2f} requests each",
    )


def _shown(n_writers: int) -> str:
    return f"small commits, {n_writers} writer{'s' * (n_writers > 1)} at once"


def _race(server: LatentServer, n_writers: int, scale: float, n_commits: int) -> Raced:
    name = f"race-{n_writers}-{scale:.0f}"
    server.wait(0, 0)
    with segmentlog.open_writer(server.url(name), "orders", num_partitions=1) as writer:
        writer.append(SMALL)
    places = [server.url(name, str(i)) for i in range(n_writers)]
    raced = race(server, "log", places, n_commits, (_MS[0] * scale, _MS[1] * scale))
    new_process()
    n_rows = segmentlog.read(server.url(name), "orders").num_rows
    assert n_rows == 10 * (1 + 2 * n_writers + len(raced.times))
    return raced


def _race_of_delta(server: LatentServer, n_writers: int, n_commits: int) -> Raced:
    url, options = f"s3://{BUCKET}/delta-{n_writers}", delta_options(server.port)
    write_deltalake(url, SMALL, storage_options=options)
    raced = race(server, "delta", [url] * n_writers, n_commits, _MS)
    n_rows = DeltaTable(url, storage_options=options).to_pyarrow_table().num_rows
    assert n_rows == 10 * (1 + 2 * n_writers + len(raced.times))
    return raced


def _beside_plain(server: LatentServer, n_writers: int, mine: Raced) -> Row:
    """The same requests without a log, by as many writers."""
    shares = {kind: n / len(mine.times) for kind, n in mine.counts.items()}
    places = [f"plain/{each}" for each in range(n_writers)]
    raced = race(server, "plain", places, len(mine.times), _MS, shares)
    return Row(
        _shown(n_writers),
        "the same plain requests, without a log",
        "–",
        f"{mine.rate / raced.rate:.2f}",
        f"{mine.rate:.1f} against {raced.rate:.1f} commits/s; "
        f"plain requests: {_figures(raced)[0]}",
    )


def _gets(url: str, keys: Sequence[str]) -> float:
    """Seconds of plain GETs, 32 at once."""
    objects = objects_at(location_of(url))
    assert isinstance(objects, ObstoreObjects)
    store = objects.connect().store
    begin = time.perf_counter()
    side_by_side(lambda key: obstore.get(store, key).bytes(), keys, _AT_ONCE)
    return time.perf_counter() - begin


def _timed(work: Callable[[], object], rounds: int = 3) -> float:
    """The median of the seconds that some work takes in a new process."""
    times = []
    for _ in range(rounds):
        new_process()
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _small_commits(server: LatentServer, scratch: Path, n: int) -> list[Row]:
    """A scan and a look-up by time in a log of small extents."""
    server.wait(0, 0)
    local, url = scratch / "small", server.url("small")
    value = pa.table({"value": [b"x" * 900]})
    with segmentlog.open_writer(f"bucket+file://{local}", "orders", num_partitions=1) as writer:
        for number in range(n):
            if number == n // 3:
                sought_ms = time.time_ns() // 1_000_000
            writer.append(value)
            writer.flush()
    server.load(local, "small")
    keys = [each.key for each in objects_at(location_of(url)).list("data/")]
    server.wait(*_MS)

    def scan() -> None:
        assert segmentlog.read(url, "orders").num_rows == n

    plain = statistics.median(_gets(url, keys) for _ in range(3))
    scanned = _timed(scan)
    new_process()
    log = segmentlog.open_log_dir(url).log("orders", 0)
    server.counts()
    begin = time.perf_counter()
    offset = log.offset_for_timestamp(sought_ms)
    looked, counts = time.perf_counter() - begin, server.counts()
    assert offset is not None
    server.wait(0, 0)
    segmentlog.compact(url)
    server.wait(*_MS)
    merged = _timed(scan)
    return [
        Row(
            f"scan of {n:,} commits of 1 kB",
            "the same objects by plain GETs, 32 at once",
            "≤ 1.3",
            f"{scanned / plain:.2f}",
            f"{scanned:.2f} s, with the opening of the log, against {plain:.2f} s",
        ),
        Row(
            f"the same after `segmentlog compact`: {n:,} commits as one extent",
            "–",
            "≤ 0.3 s",
            f"{merged:.2f} s",
            f"{scanned / merged:.0f} times as fast as before",
        ),
        Row(
            f"look up a time in {n:,} extents of an open log",
            "–",
            "≤ 3 GETs",
            f"{counts['GET']} GETs",
            f"{counts['LIST']} lists; {1000 * looked:.0f} ms",
        ),
    ]


def _large_extents(
    server: LatentServer, scratch: Path, n_rows: int, codec: segmentlog.Codec
) -> list[Row]:
    """Reads of records that zstd makes half as large, if they are compressed."""
    server.wait(0, 0)
    local, url = scratch / f"large-{codec.name}", server.url(f"large-{codec.name}")
    config = segmentlog.ProducerConfig(codec=codec)
    rows = pa.table({"value": [randbytes(500).hex() for _ in range(n_rows // 8)]})
    with segmentlog.open_writer(
        f"bucket+file://{local}", "orders", num_partitions=1, config=config
    ) as writer:
        for _ in range(8):
            writer.append(rows)
            writer.flush()
    server.load(local, f"large-{codec.name}")
    held = [*objects_at(location_of(url)).list("data/")]
    ranges = [
        (each.key, at, min(PIECE_BYTES, each.size - at))
        for each in held
        for at in range(0, each.size, PIECE_BYTES)
    ]
    n_bytes = sum(each.size for each in held)

    def plain() -> None:
        objects = objects_at(location_of(url))
        side_by_side(lambda each: objects.read(*each), ranges, _AT_ONCE)

    def scan(url: str = url) -> None:
        assert segmentlog.read(url, "orders", columns=["offset"]).num_rows == n_rows // 8 * 8

    of = "" if codec is segmentlog.Codec.NONE else f" of {codec.name.lower()}"
    alone, found = _timed(partial(scan, f"bucket+file://{local}")), list[Row]()
    for line_mb, goal in ((_LINE_MB, "–" if of else "≥ 0.9"), (0, "–")):
        server.wait(*_MS, line_mb)
        mine, theirs = _timed(scan), _timed(plain)
        line = f"over a line of {line_mb} MB/s" if line_mb else "without a bound of the line"
        found.append(
            Row(
                f"read {n_bytes / 1e6:.0f} MB in {len(held)} large extents{of}, {line}",
                "plain GETs of ranges of 2 MiB, 32 at once",
                goal,
                f"{theirs / mine:.2f}",
                f"{n_bytes / mine / 1e6:.0f} against {n_bytes / theirs / 1e6:.0f} MB/s; the same "
                f"log in a local directory is read with {n_bytes / alone / 1e6:.0f} MB/s",
            )
        )
    return found


def _long_log(server: LatentServer, scratch: Path, n: int) -> list[Row]:
    """Open a log of many commits, and find the newest one after many others."""
    server.wait(0, 0)
    local, url = scratch / "long", server.url("long")
    with segmentlog.open_writer(f"bucket+file://{local}", "orders", num_partitions=1) as writer:
        writer.append(SMALL)
    found = sequence_at(location_of(f"bucket+file://{local}"))

    def make(state: LogState) -> Commit:
        job, base = token_hex(8), state.logs[_ORDERS].end
        extent = PlacedExtent(
            *_ORDERS,
            f"data/{job}/0-abababab.batches",
            0,
            1000,
            base,
            base + 10,
            10,
            1_700_000_000_000 + state.number,
            base,
        )
        return Commit(state.number + 1, job * 2, job, int(time.time() * 1000), extents=[extent])

    n_behind = 300
    while found.known.number < n - n_behind:
        found.append(make)
    server.load(local, "long")
    behind = [sequence_at(location_of(server.url("long", f"{each}"))) for each in range(3)]
    for each in behind:
        each.refresh()
    while found.known.number < n:
        found.append(make)
    server.load(local, "long")

    def open_it() -> None:
        new_process()
        assert sequence_at(location_of(url)).refresh().number == n

    def follow() -> None:
        assert behind.pop().refresh().number == n

    return [
        _in_round_trips(
            server,
            f"open a log of {n:,} commits in a new process",
            open_it,
            "≤ 6 round trips, ≤ 1 s",
        ),
        _in_round_trips(server, f"follow {n_behind} commits of others", follow, "≤ 3 round trips"),
    ]


def _in_round_trips(server: LatentServer, name: str, work: Callable[[], object], goal: str) -> Row:
    """What some work takes with usual requests, and how many of them wait for each other."""
    seconds = list[float]()
    for least_ms, most_ms in ((0.0, 0.0), (_LONG_MS, _LONG_MS), _MS):
        server.wait(least_ms, most_ms)
        server.counts()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    n_requests = server.counts().total()
    trips = (seconds[1] - seconds[0]) / _LONG_MS * 1000
    detail = f"{seconds[2]:.2f} s, {n_requests} requests; {seconds[0]:.2f} s of a processor"
    return Row(name, "–", goal, f"{trips:.1f} round trips", detail)


def _checkpoints(n: int) -> Row:
    """The checkpoint of a log whose commits all are of the last month, each with an extent."""
    jobs = [token_hex(8) for _ in range(n)]
    log = PartitionLog(end=10 * n, n_extents=n)
    log.extents.objects = [f"data/{job}/0-{token_hex(4)}.batches" for job in jobs]
    log.extents.shifts = array("q", range(0, 10 * n, 10))
    given = {
        "size": [1000] * n,
        "base_offset": range(0, 10 * n, 10),
        "n_records": [10] * n,
        "end_offset": range(10, 10 * n + 10, 10),
        "max_timestamp": range(n),
        "digest": [hash(each) & (2**62 - 1) for each in jobs],
    }
    log.extents.columns = {
        name: array("q", given.get(name, [0] * n)) for name in log.extents.columns
    }
    state = replace(
        LogState(log_id=token_hex(16)),
        number=n,
        token=token_hex(16),
        time_ms=n,
        topics={"orders": Topic("a" * 22, 1)},
        logs={_ORDERS: log},
        ended=Growing(dict(zip(jobs, zip(itertools.repeat(""), range(n)), strict=False))),
    )
    begin = time.perf_counter()
    data = encode_checkpoint(state)
    seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    decode_checkpoint(data, "")
    decoded, every = time.perf_counter() - begin, interval(state)
    # Each has the size of its time; intervals double with it.
    sizes = [len(data) * at / n for at in range(32, n + 1, 32) if at % _interval_at(at) == 0]
    return Row(
        f"checkpoints of {n:,} commits, a commit's part of one",
        "–",
        "≤ 100 ms",
        f"{1000 * seconds / every:.1f} ms",
        f"{len(data) / 1e6:.0f} MB each {every:,} commits, {seconds:.1f} s to encode and "
        f"{decoded:.1f} s to decode; {len(sizes):,} of them have {sum(sizes) / 1e9:.1f} GB in "
        f"all, and a sweep keeps the newest 3; of 256 MiB with about "
        f"{math.floor((256 << 20) / (len(data) / n) / 1e5) / 10:.1f} M commits",
    )


def _interval_at(n_commits: int) -> int:
    return 1 << (max(2 * n_commits // 256, 32).bit_length() - 1)
