"""A following server, whose logs are swept, compacted, erased and deleted beside its consumers."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_protocol import FetchError, RawClient, batches_of, records_of
from tiers import copy_segment, remove_local, written
from waiting import wait_for

import segmentlog

_OFFSET_OUT_OF_RANGE, _STORAGE_ERROR = 1, 56
_LATEST, _EARLIEST = -1, -2


class Consumer:
    """Reads one partition from offset 0, as a client does, until it is told where it ends."""

    def __init__(self, servers: str) -> None:
        self.found: list[tuple[int, bytes | None, bytes | None]] = []
        self.jumps: list[tuple[int, int]] = []  # offsets that were gone when they were asked for
        self.errors: list[int] = []
        self.offset = 0
        self._servers, self._stop, self._failed = servers, threading.Event(), []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with RawClient(self._servers, 30) as client:
                while not self._stop.is_set():
                    self._next(client)
        except Exception as error:  # noqa: BLE001 - the test raises it
            self._failed.append(error)

    def _next(self, client: RawClient) -> None:
        answer = client.fetch("t", 0, self.offset, max_bytes=3_000, wait_ms=50)
        if answer.error_code == _OFFSET_OUT_OF_RANGE:
            start = client.list_offset("t", 0, _EARLIEST).offset
            if start > self.offset:
                self.jumps.append((self.offset, start))
                self.offset = start
        elif answer.error_code == _STORAGE_ERROR:  # a client asks again
            self.errors.append(int(answer.error_code))
            time.sleep(0.01)
        elif answer.error_code:
            raise FetchError(int(answer.error_code))
        for batch in batches_of(answer.records or b""):
            for each in records_of(batch.data):
                if each.offset >= self.offset:
                    self.found.append((each.offset, each.key, each.value))
            self.offset = max(self.offset, batch.last_offset + 1)

    def read_up_to(self, end: int) -> None:
        """Wait until the consumer has read up to an offset, and end it."""
        try:
            wait_for(
                lambda: self.offset >= end or self._failed,
                lambda: f"{self.offset} of {end}; errors {self.errors[-3:]}",
                pause=0.05,
            )
        finally:
            self._stop.set()
            self._thread.join()
        if self._failed:
            raise self._failed[0]


class Model:
    """What was written, and which offsets nobody has to see any more."""

    def __init__(self, place: str, rng: random.Random) -> None:
        self._place, self._rng = place, rng
        self.written: list[tuple[bytes, bytes]] = []
        self.start = 0
        self.is_compacted = False

    def write(self) -> None:
        n = len(self.written)
        rows = [
            (b"k%d" % self._rng.randrange(20), b"%d-" % (n + i) + self._rng.randbytes(200))
            for i in range(self._rng.randrange(1, 30))
        ]
        keys, values = zip(*rows, strict=True)
        with segmentlog.open_writer(self._place, "t", num_partitions=1) as writer:
            writer.append(pa.table({"key": list(keys), "value": list(values)}))
            if self._rng.random() < 0.5:
                writer.flush()
                writer.roll()
        self.written += rows

    def delete(self) -> None:
        offset = self._rng.randint(self.start, len(self.written))
        segmentlog.delete_records(self._place, "t", 0, offset=offset)
        self.start = max(self.start, offset)

    def compact(self) -> None:
        self.is_compacted = True
        segmentlog.compact(self._place, "t", settings={"cleanup.policy": "compact"})

    def sweep(self) -> None:
        segmentlog.sweep(self._place, longest_read_days=0, longest_job_days=0)

    def check(self, consumer: Consumer) -> None:
        """Each record as it was written, once, in order; none is left out that has to be there."""
        offsets = [offset for offset, *_ in consumer.found]
        assert offsets == sorted(set(offsets))
        for offset, key, value in consumer.found:
            assert (key, value) == self.written[offset], offset
        for begin, end in consumer.jumps:
            assert begin < end <= self.start
        last = {key: offset for offset, (key, _) in enumerate(self.written)}
        seen = {*offsets}
        for begin, end in consumer.jumps:
            seen |= {*range(begin, end)}
        lost = [
            offset
            for offset, (key, _) in enumerate(self.written)
            if offset not in seen
            and offset >= self.start
            and not (self.is_compacted and last[key] > offset)
        ]
        assert [] == lost


def _places(tmp_path: Path) -> Iterator[tuple[str, str]]:
    yield "directory", str(tmp_path / "kafka")
    yield "bucket", f"bucket+file://{tmp_path}/log"


@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_consumers_beside_upkeep(tmp_path: Path, kind: str) -> None:
    """No wrong record, none twice, none lost but those that were deleted or compacted away."""
    place, seed = dict(_places(tmp_path))[kind], random.randrange(1 << 32)
    rng = random.Random(seed)
    model = Model(place, rng)
    model.write()
    with segmentlog.serve(place, follow=True, read_up_to="logEnd") as server:
        consumers = [Consumer(server.bootstrap_servers) for _ in range(2)]
        steps: list[Callable[[], None]] = [model.write, model.write, model.write]
        steps += [model.delete, model.compact]
        if kind == "bucket":
            steps.append(model.sweep)
        for _ in range(25):
            rng.choice(steps)()
            time.sleep(rng.choice([0, 0.02, 0.2]))
        model.write()
        for each in consumers:
            each.read_up_to(len(model.written))
            try:
                model.check(each)
            except AssertionError as error:
                error.add_note(f"seed {seed}")
                raise


def test_a_remote_segment_that_is_removed(tmp_path: Path) -> None:
    """By the retention of a broker: clients are told that the offset is gone, or ask again.

    Nobody jumps over records of the segments that are left.
    """
    partition = written(tmp_path / "kafka", n_segments=4, n_records=10)
    copies = [copy_segment(partition, tmp_path / "tier", base, base + 10) for base in (0, 10, 20)]
    remove_local(partition, 0, 10, 20)
    with segmentlog.serve(
        tmp_path / "kafka", remote_storage=tmp_path / "tier", follow=True, read_up_to="logEnd"
    ) as server:
        with RawClient(server.bootstrap_servers) as client:
            assert client.fetch("t", 0, 0, max_bytes=1).records
            assert client.fetch("t", 0, 5, max_bytes=1).records
        for path in copies[0].parent.glob(f"{copies[0].stem}.*"):
            path.unlink()
        consumer = Consumer(server.bootstrap_servers)
        consumer.read_up_to(40)
        assert [*range(10, 40)] == [offset for offset, *_ in consumer.found]
        assert [(0, 10)] == consumer.jumps
