"""A log in an object store: commits side by side, in a long log, planning, and speed beside Delta.

The server is S3Proxy, with its objects in memory, on the same machine: it stands for no store, but
shows what the client costs, and how many requests it makes.
"""

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from databases import rows as make_rows
from deltalake import DeltaTable, write_deltalake
from measure import Row, compare
from store_servers import BUCKET, S3Server

import segmentlog
from segmentlog.bucket import clients, places, sequence
from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.commits import Commit
from segmentlog.bucket.extents import PlacedExtent
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import ObstoreObjects
from segmentlog.bucket.sequence import sequence_at
from segmentlog.model import TopicPartition
from segmentlog.store.paths import BucketLocation, bucket_at

__all__ = ["rows"]

_SMALL = pa.table({"value": [b"x" * 100] * 10})


def rows(scratch: Path, *, quick: bool) -> list[Row]:
    """All rows of the table."""
    with S3Server() as server:
        end = f"endpoint_override=http://127.0.0.1:{server.port}&anonymous=true"
        return [
            *_contention(end, 32 if quick else 480),
            *_long_log(f"bucket+file://{scratch}/long", end, 64 if quick else 1024),
            _planning(f"bucket+file://{scratch}/wide", 2_000 if quick else 100_000),
            *_beside_delta(scratch, server, end, 20_000 if quick else 2_000_000, 3),
        ]


def location_of(url: str) -> BucketLocation:
    """The place of a URL."""
    found = bucket_at(url)
    assert found is not None
    return found


def new_process() -> None:
    """Forget what this process knows of stores, as a new one."""
    clients._clients.clear()
    sequence._sequences.clear()
    places._known.clear()
    places._stores.clear()


class _Counted:
    """Counts requests by their kind during a ``with`` block."""

    def __enter__(self) -> Counter[str]:
        self._real = ObstoreObjects._ask
        self.found: Counter[str] = Counter()
        real, found = self._real, self.found

        def ask(
            self: ObstoreObjects, what: str, key: str, request: Callable[[Any], Any], **more: bool
        ) -> Any:
            found[what] += 1
            return real(self, what, key, request, **more)

        ObstoreObjects._ask = ask  # type: ignore[method-assign]
        return self.found

    def __exit__(self, *_: object) -> None:
        ObstoreObjects._ask = self._real  # type: ignore[method-assign]


def _raw_puts(location: BucketLocation) -> float:
    """Seconds of a conditional write of the size of a commit, one after the other."""
    store, data = objects_at(location), bytes(600)
    begin = time.perf_counter()
    for number in range(200):
        store.create(f"raw/{number}", data)
    return (time.perf_counter() - begin) / 200


def _contention(end: str, n_commits: int) -> list[Row]:
    """Writers of one log, each with a client and a state of its own."""
    found = []
    put = _raw_puts(location_of(f"s3://{BUCKET}/raw?{end}"))
    for n_writers in (1, 4, 16):
        # The region has no meaning here, but makes places that share no client.
        urls = [f"s3://{BUCKET}/at-once-{n_writers}?{end}&region=r{i}" for i in range(n_writers)]
        with segmentlog.open_writer(urls[0], "orders", num_partitions=4) as writer:
            writer.append(_SMALL)
        writers = [segmentlog.open_writer(url, "orders") for url in urls]
        for each in writers:
            each.append(_SMALL)
            each.flush()
        times: list[float] = []

        def write(
            writer: Any, times: list[float] = times, n: int = n_commits // n_writers
        ) -> None:
            for _ in range(n):
                writer.append(_SMALL)
                begin = time.perf_counter()
                writer.flush()
                times.append(time.perf_counter() - begin)

        threads = [threading.Thread(target=write, args=(each,)) for each in writers]
        with _Counted() as counts:
            begin = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.perf_counter() - begin
        for each in writers:
            each.close()
        total = len(times)
        made = {name: counts[name] / total for name in ("creating", "writing", "reading")}
        slowest = sorted(times)[int(0.99 * total)]
        found.append(
            Row(
                f"small commits into a store, {n_writers} writer{'s' * (n_writers > 1)} at once",
                "–" if n_writers > 1 else "requests: a PUT for the data, one for the commit",
                "≤ 2.2" if n_writers == 1 else "–",
                f"{sum(made.values()):.2f} requests",
                f"{total / seconds:.0f} commits/s; median {1000 * statistics.median(times):.1f} "
                f"ms, p99 {1000 * slowest:.1f} ms; each {made['writing']:.2f} PUTs of data and "
                f"checkpoints, {made['creating']:.2f} tries of the commit, {made['reading']:.2f} "
                f"GETs, {counts['listing']} lists in all; bound by the order of commits: the "
                f"server makes {1 / put:.0f} conditional writes/s, one after the other",
            )
        )
        new_process()
    return found


def _long_log(local: str, end: str, n_commits: int) -> list[Row]:
    found = []
    for name, url in {"a local directory": local, "a store": f"s3://{BUCKET}/long?{end}"}.items():
        times = []
        with segmentlog.open_writer(url, "orders", num_partitions=8) as writer:
            for _ in range(n_commits):
                writer.append(_SMALL)
                begin = time.perf_counter()
                writer.flush()
                times.append(time.perf_counter() - begin)
        n = min(32, n_commits // 4)
        first, last = times[5 : 5 + n], times[-n:]
        ratio = statistics.median(last) / statistics.median(first)
        found.append(
            Row(
                f"commit number {n_commits} in {name}",
                "commit number 10",
                "≤ 1.2",
                f"{ratio:.2f}",
                f"medians of {n}: {1000 * statistics.median(last):.2f} against "
                f"{1000 * statistics.median(first):.2f} ms; with the checkpoint after every 32 "
                f"commits, {1000 * statistics.mean(last):.2f} against "
                f"{1000 * statistics.mean(first):.2f} ms; bound by the two requests",
            )
        )
        new_process()
    return found


def _planning(url: str, n_extents: int) -> Row:
    """A log of many extents, which are never read."""
    n_partitions = 100
    with segmentlog.open_writer(url, "orders", num_partitions=n_partitions) as writer:
        writer.append(_SMALL)
    location = location_of(url)

    def make(state: LogState) -> Commit:
        job = f"{state.number:016x}"
        extents = []
        for partition in range(n_partitions):
            base = state.logs[TopicPartition("orders", partition)].end
            extents.append(
                PlacedExtent(
                    "orders",
                    partition,
                    f"data/{job}/0-abababab.batches",
                    partition * 1000,
                    1000,
                    base,
                    base + 10,
                    10,
                    1_700_000_000_000 + state.number,
                    base,
                )
            )
        return Commit(state.number + 1, job, job, 1_700_000_000_000, extents=extents)

    for _ in range(n_extents // n_partitions):
        sequence_at(location).append(make)
    times = []
    for _ in range(3):
        new_process()
        begin = time.perf_counter()
        directory = segmentlog.open_log_dir(url)
        n_slices = 0
        for partition in range(n_partitions):
            log = directory.log("orders", partition)
            n_slices += len(log.slices(0, log.end_offset()))
        times.append(time.perf_counter() - begin)
    return Row(
        f"plan {n_extents:,} extents in {n_partitions} partitions, in a new process",
        "–",
        "≤ 1 s",
        f"{statistics.median(times):.2f} s",
        f"{n_slices} slices; {min(times):.2f}–{max(times):.2f} s; bound by the checkpoint, which "
        "is read and decoded, and the names of segments",
    )


def _beside_delta(
    scratch: Path, server: S3Server, end: str, n_rows: int, rounds: int
) -> list[Row]:
    table = make_rows(0, n_rows).select(["key", "value"])
    n_value_bytes = pc.sum(pc.binary_length(table["value"])).as_py()
    options = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_SKIP_SIGNATURE": "true",
        "conditional_put": "etag",
    }
    n_written = iter(range(1_000_000))
    config = segmentlog.ProducerConfig(codec=segmentlog.Codec.SNAPPY)

    def into_log(place: str, query: str) -> tuple[int, ...]:
        url = f"{place}/write-{next(n_written)}{query}"
        with segmentlog.open_writer(url, "orders", config=config) as writer:
            writer.append(table)
        return (n_rows,)

    def into_delta() -> tuple[int, ...]:
        url = f"s3://{BUCKET}/delta-{next(n_written)}"
        write_deltalake(url, table, storage_options=options)
        return (n_rows,)

    def digest(read: pa.Table) -> tuple[int, ...]:
        return read.num_rows, pc.sum(pc.binary_length(read["value"])).as_py()

    local, store = str(scratch), f"s3://{BUCKET}"
    written = compare(
        {
            "log": lambda: into_log(store, f"?{end}"),
            "delta": into_delta,
            "local": lambda: into_log(local, ""),
        },
        rounds,
    )
    places = {"store": f"{store}/read?{end}", "local": f"{local}/read"}
    for place in places.values():
        with segmentlog.open_writer(place, "orders", config=config) as writer:
            writer.append(table)
    write_deltalake(f"{store}/read-delta", table, storage_options=options)
    columns = ["key", "value"]

    def read_log(place: str) -> tuple[int, ...]:
        return digest(segmentlog.read(place, "orders", columns=columns))

    def read_delta() -> tuple[int, ...]:
        found = DeltaTable(f"{store}/read-delta", storage_options=options)
        return digest(found.to_pyarrow_table(columns=columns))

    read = compare(
        {
            "log": lambda: read_log(places["store"]),
            "delta": read_delta,
            "local": lambda: read_log(places["local"]),
        },
        rounds,
    )
    location = location_of(places["store"])
    kept = max(objects_at(location).list("data/"), key=lambda each: each.size)
    data = objects_at(location).read(kept.key, 0, kept.size)

    def put_raw() -> tuple[int, int]:
        objects_at(location).put("raw", [data])
        return len(data), 0

    raw = compare(
        {
            "put": put_raw,
            "get": lambda: (len(objects_at(location).read(kept.key, 0, kept.size)), 0),
        },
        rounds,
    )
    shown = f"{n_rows:,} rows, {n_value_bytes / 1e6:.0f} MB of values"

    def row(work: str, against: str, goal: str, mine: float, other: float, bound: float) -> Row:
        return Row(
            work,
            against,
            goal,
            f"{other / mine:.2f}",
            f"{n_rows / mine / 1e6:.2f} against {n_rows / other / 1e6:.2f} M rows/s; {shown}; "
            f"bound by the server, which takes {bound:.2f} s of {mine:.2f} s for the "
            f"{len(data) / 1e6:.0f} MB alone, and the processor",
        )

    put, get = raw["put"].median, raw["get"].median
    return [
        row("write a log into a store, snappy", "`deltalake` into the same store", "≥ 1.0",
            written["log"].median, written["delta"].median, put),
        row("write a log into a store, snappy", "a log into a local directory", "–",
            written["log"].median, written["local"].median, put),
        row("read a log in a store", "`deltalake` from the same store", "–",
            read["log"].median, read["delta"].median, get),
        row("read a log in a store", "the same log in a local directory", "≥ 0.9",
            read["log"].median, read["local"].median, get),
    ]  # fmt: skip
