"""Logs of every format: a consumer gets each record once, or an error where there is damage."""

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from flipping import LOGS, Flip, FlippedLog, flips_of, is_hidden, plant
from kafka_protocol import FetchError, RawClient, consume

import segmentlog
from segmentlog.testing.reference import BadBatchError, UnknownFormatError

Rows = list[tuple[int, bytes | None]]


def rows_of(
    log: FlippedLog,
    n_bytes: int = 1 << 20,
    on_corrupt_batch: str | None = None,
    level: str = "read_committed",
) -> Rows | None:
    """What a consumer gets; None if it gets an error."""
    with (
        segmentlog.serve(log.directory, on_corrupt_batch=on_corrupt_batch) as server,
        RawClient(server.bootstrap_servers) as client,
    ):
        is_committed = level == "read_committed"
        try:
            found = consume(client, "t", 0, is_committed=is_committed, max_bytes=n_bytes)
        except (FetchError, BadBatchError, UnknownFormatError):
            return None
    return [(each.offset, each.value) for each in found]


def expected_of(log: FlippedLog, level: str = "read_committed") -> Rows:
    """The model of the log, or for committed records, what the engine reads."""
    if level == "read_uncommitted":
        return [(offset, value) for offset, _, value in log.rows]
    rows = (
        segmentlog.open_log_dir(log.directory).log("t", 0).scan(isolation_level=level).read_all()
    )
    columns = rows.column("offset").to_pylist(), rows.column("value").to_pylist()
    return list(zip(*columns, strict=True))


WAYS = [(True, 1, None), (False, 1 << 20, "fail"), (True, 300, "skip")]


@pytest.mark.parametrize("name", ["v0 gzip", "v1 lz4", "v2 zstd", "compacted", "transactions"])
def test_each_record_comes_once(tmp_path: Path, name: str) -> None:
    """With and without indexes, a batch at a time and all at once, checked or not."""
    compare(tmp_path, name, WAYS)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOGS)
def test_each_record_comes_once_in_every_way(tmp_path: Path, name: str) -> None:
    compare(
        tmp_path, name, [*itertools.product((True, False), (1, 1 << 20), (None, "fail", "skip"))]
    )


def compare(tmp_path: Path, name: str, ways: Sequence[tuple[bool, int, str | None]]) -> None:
    for number, (has_indexes, n_bytes, on_corrupt_batch) in enumerate(ways):
        log = plant(
            tmp_path / str(number), name, has_indexes=has_indexes, has_checkpoints=has_indexes
        )
        for level in ("read_uncommitted", "read_committed"):
            expected = expected_of(log, level)
            assert expected
            assert expected == rows_of(log, n_bytes, on_corrupt_batch, level), (number, level)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_flipped_bits_are_errors(tmp_path: Path, name: str) -> None:
    """Records of a log with a flipped bit: all of them, or an error."""
    wrong_flips(tmp_path, name, 150)


@pytest.mark.parametrize("name", ["v2 zstd", "transactions"])
def test_some_flipped_bits_are_errors(tmp_path: Path, name: str) -> None:
    wrong_flips(tmp_path, name, 3)


def wrong_flips(tmp_path: Path, name: str, n_flips: int) -> None:
    rng = random.Random(f"{name} 72")
    log = plant(tmp_path / "log", name, has_indexes=True, has_checkpoints=True)
    kinds = flips_of(log)
    for i in range(n_flips):
        flip = rng.choice(kinds[i % len(kinds)])
        if is_hidden(log, flip) or is_within(log, flip):
            continue
        data = bytearray(flip.path.read_bytes())
        data[flip.byte] ^= 1 << flip.bit
        before, expected = flip.path.read_bytes(), expected_of(log)
        flip.path.write_bytes(data)
        try:
            found = rows_of(log, rng.choice([1, 300, 1 << 20]), rng.choice([None, "fail"]))
        finally:
            flip.path.write_bytes(before)
        assert found is None or found == expected, flip


def is_within(log: FlippedLog, flip: Flip) -> bool:
    """Whether the offset of a compressed message of magic 1 still lies between its neighbours'.

    No checksum covers it, and only the messages inside show where they begin: a broker sends them.
    """
    batch = flip.batch
    if batch is None or not batch.is_wrapper or batch.data[16] != 1 or flip.at >= 8:
        return False
    lasts = [each.last_offset for batches in log.segments.values() for each in batches]
    i = lasts.index(batch.last_offset)
    flipped = batch.last_offset ^ 1 << (8 * (7 - flip.at) + flip.bit)
    return (lasts[i - 1] if i else -1) < flipped < (lasts[i + 1] if lasts[i + 1 :] else log.end)
