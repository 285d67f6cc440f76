"""Logs of a broker, read from a tier in Aiven's layout, are equal to the logs on its disk."""

import itertools
from pathlib import Path

import pytest
from aiven_plugin import AivenPlugin, KeyPair, new_id

from segmentlog import open_log_dir
from segmentlog.reads.scan import scan_slice
from segmentlog.store.remote.object_store import KeptRanges
from segmentlog.tiered import chunked_file
from segmentlog.tiered.chunked_file import ChunkedFile

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.1"
FORMS = pytest.mark.parametrize(
    ("compresses", "encrypts"),
    list(itertools.product([False, True], [False, True])),
    ids=["plain", "encrypted", "zstd", "zstd-encrypted"],
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> KeyPair:
    return KeyPair(tmp_path_factory.mktemp("keys"))


def tier(root, names, keys, *, compresses, encrypts, chunk_bytes=300):
    """A tier with all segments of some partitions; returns the options that read it."""
    plugin = AivenPlugin(root, "", chunk_bytes, compresses, keys if encrypts else None)
    for name in names:
        plugin.copy_partition(GOLDEN / name, new_id(), with_last=True)
    return {
        "remote_storage": root,
        "remote_storage_layout": "aiven",
        "remote_storage_key_file": str(keys.file) if encrypts else None,
    }


@FORMS
@pytest.mark.parametrize("name", ["segments-0", "transactions-0", "compacted-transactions-0"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_tier_reads_equal_to_the_log(tmp_path, keys, name, compresses, encrypts, isolation):
    options = tier(tmp_path, [name], keys, compresses=compresses, encrypts=encrypts)
    topic, _, partition = name.rpartition("-")
    there = open_log_dir(**options).log(topic, int(partition))
    here = open_log_dir(GOLDEN).log(topic, int(partition))
    expected = here.scan(isolation_level=isolation, include_headers=True).read_all()

    assert there.scan(isolation_level=isolation, include_headers=True).read_all() == expected
    assert (there.log_start_offset, there.end_offset()) == (0, here.end_offset())
    stable = expected["offset"][-1].as_py() + 1  # the log has an open transaction
    for start in range(0, stable, 7):
        end = min(start + 9, stable)
        there_part = there.scan(start, end, isolation_level=isolation).read_all()
        assert there_part == here.scan(start, end, isolation_level=isolation).read_all()
    for timestamp in expected["timestamp"][::5]:
        moment = timestamp.as_py()
        assert there.offset_for_timestamp(moment) == here.offset_for_timestamp(moment)


@FORMS
def test_slices_are_cut_inside_remote_segments(tmp_path, keys, compresses, encrypts):
    options = tier(tmp_path, ["segments-0"], keys, compresses=compresses, encrypts=encrypts)
    log = open_log_dir(**options).log("segments", 0)
    expected = open_log_dir(GOLDEN).log("segments", 0).scan().read_all()

    slices = log.slices(0, log.end_offset(), 500)

    assert len(slices) > 4
    rows = [row for each in slices for batch in scan_slice(each) for row in batch.to_pylist()]
    assert rows == expected.to_pylist()


def test_a_range_of_a_log_fetches_the_chunks_with_its_bytes(tmp_path, keys, monkeypatch):
    """Chunks of one segment of four, each of them once."""
    options = tier(
        tmp_path, ["segments-0"], keys, compresses=False, encrypts=True, chunk_bytes=100
    )
    log = open_log_dir(**options).log("segments", 0)
    log.end_offset()
    expected = open_log_dir(GOLDEN).log("segments", 0).scan(20, 22).read_all()
    monkeypatch.setattr(chunked_file, "_kept", KeptRanges(64 << 20))
    fetched = []
    real = ChunkedFile._fetch

    def fetch(self, first, last):
        if self.path.endswith(".log"):
            fetched.extend((self.path, number) for number in range(first, last + 1))
        return real(self, first, last)

    monkeypatch.setattr(ChunkedFile, "_fetch", fetch)

    assert log.scan(20, 22).read_all() == expected
    assert len({path for path, _ in fetched}) == 1
    assert 0 < len(fetched) == len(set(fetched)) <= 8
