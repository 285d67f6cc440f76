"""A tier in the layout of Aiven's plugin is read as the broker's own files."""

import base64
import itertools
import json
import os
import pickle
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiven_plugin import AivenPlugin, KeyPair, custom_metadata, new_id
from stores_here import CountingStore, serve, store_of

from segmentlog import OptionError, RemoteSegmentError, StorageError
from segmentlog.store.remote.object_store import KeptRanges
from segmentlog.tiered import aiven, chunked_file
from segmentlog.tiered.aiven import AivenTier
from segmentlog.tiered.layout import RemoteFileKind, RemoteLog, RemoteSegment

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.1"
FORMS = list(itertools.product([False, True], [False, True]))
IDS = ["plain", "encrypted", "zstd", "zstd-encrypted"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> KeyPair:
    return KeyPair(tmp_path_factory.mktemp("keys"))


def tier_of(root: Path, name: str, keys=None, *, compresses=False, prefix="", chunk_bytes=256):
    """A tier with the closed segments of a golden partition; also its log."""
    topic_id = new_id()
    plugin = AivenPlugin(root, prefix, chunk_bytes, compresses, keys)
    mains = plugin.copy_partition(GOLDEN / name, topic_id)
    topic, _, partition = name.rpartition("-")
    return plugin, RemoteLog(topic, topic_id, int(partition)), mains


def read(file) -> bytes:
    with file:
        return file.read(0, file.status().size)


@pytest.mark.parametrize(("compresses", "encrypts"), FORMS, ids=IDS)
@pytest.mark.parametrize("name", ["segments-0", "transactions-0", "retention-by-size-0"])
def test_every_part_of_a_segment_has_the_bytes_of_the_broker(
    tmp_path, keys, name, compresses, encrypts
):
    _plugin, log, mains = tier_of(
        tmp_path, name, keys if encrypts else None, compresses=compresses
    )
    tier = AivenTier(str(tmp_path), str(keys.file))

    assert tier.logs() == [log]
    segments = tier.segments(log)

    assert len(segments) == len(mains) == 3
    for segment in segments:
        local = GOLDEN / name / f"{segment.start_offset:020}.log"
        assert segment.n_bytes == local.stat().st_size
        assert read(tier.open(segment, RemoteFileKind.LOG)) == local.read_bytes()
        for part in (
            RemoteFileKind.OFFSET_INDEX,
            RemoteFileKind.TIME_INDEX,
            RemoteFileKind.TRANSACTION_INDEX,
        ):
            index, found = local.with_suffix(f".{part}"), tier.open(segment, part)
            assert (found is not None) == (
                index.exists() or part is not RemoteFileKind.TRANSACTION_INDEX
            )
            if found is not None:
                assert read(found) == (index.read_bytes() if index.exists() else b"")
        after = local.with_name(f"{segment.end_offset + 1:020}.snapshot")
        assert read(tier.open(segment, RemoteFileKind.SNAPSHOT)) == after.read_bytes()
        epochs = (GOLDEN / name / "leader-epoch-checkpoint").read_bytes()
        assert read(tier.open(segment, RemoteFileKind.LEADER_EPOCHS)) == epochs


@pytest.mark.parametrize(("compresses", "encrypts"), FORMS, ids=IDS)
def test_a_range_has_the_bytes_of_the_file(tmp_path, keys, compresses, encrypts):
    _plugin, log, _ = tier_of(
        tmp_path, "segments-0", keys if encrypts else None, compresses=compresses, chunk_bytes=97
    )
    tier = AivenTier(str(tmp_path), str(keys.file))
    segment = tier.segments(log)[1]
    expected = (GOLDEN / "segments-0" / f"{segment.start_offset:020}.log").read_bytes()
    size = len(expected)

    with tier.open(segment, RemoteFileKind.LOG) as file:
        for start, end in [
            (0, 1),
            (96, 98),
            (97, 194),
            (0, size),
            (size - 1, size + 9),
            (size, 9),
        ]:
            assert file.read(start, max(end - start, 0)) == expected[start:end]
        buffer = bytearray(300)
        assert file.read_into(memoryview(buffer), 50) == min(300, size - 50)
        assert bytes(buffer[: size - 50]) == expected[50:350]
    with tier.open(segment, RemoteFileKind.LOG) as file:
        file.expect(10, size)
        assert file.read(10, size) == expected[10:]
        file.check_unchanged()


class _Counting:
    """An open file that notes the ranges that are read from it."""

    def __init__(self, file, noted):
        self._file, self._noted = file, noted

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read_into(self, buffer, position):
        self._noted.append((position, position + len(buffer)))
        return self._file.read_into(buffer, position)


@pytest.mark.parametrize(("compresses", "encrypts"), FORMS[1:], ids=IDS[1:])
def test_a_read_fetches_the_chunks_it_needs_and_neighbours_together(
    tmp_path, keys, compresses, encrypts, monkeypatch
):
    _plugin, log, _ = tier_of(
        tmp_path, "segments-0", keys if encrypts else None, compresses=compresses, chunk_bytes=50
    )
    tier = AivenTier(str(tmp_path), str(keys.file))
    segment = tier.segments(log)[0]
    noted: list[tuple[int, int]] = []
    real = aiven.open_file
    monkeypatch.setattr(aiven, "open_file", lambda path: _Counting(real(path), noted))
    monkeypatch.setattr(chunked_file, "_kept", KeptRanges(64 << 20))
    with tier.open(segment, RemoteFileKind.LOG) as file:
        chunks = file._chunks
        place = chunks.place

        file.read(120, 10)
        assert noted == [(place(2), place(3))]
        file.read(210, 100)  # of three chunks, in one request
        assert noted[1:] == [(place(4), place(7))]
        file.read(110, 80)  # of the chunks 2 and 3, the first of which is kept
        assert noted[2:] == [(place(3), place(4))]
    with tier.open(segment, RemoteFileKind.LOG) as file:
        file.read(120, 70)  # the process keeps chunks of closed files
        assert len(noted) == 3
        assert place(chunks.n_chunks) == Path(file.path).stat().st_size


def test_the_facts_of_a_segment_come_from_one_manifest(tmp_path):
    _plugin, log, mains = tier_of(tmp_path, "transactions-0")
    tier = AivenTier(str(tmp_path))

    segments = tier.segments(log)

    starts = [int(each.rpartition("/")[2][:20]) for each in mains]
    assert [each.start_offset for each in segments] == starts
    assert [each.end_offset + 1 for each in segments[:-1]] == starts[1:]
    assert [each.segment_id for each in segments] == [each[-22:] for each in mains]
    assert all(each.epochs == {0: each.start_offset} for each in segments)
    assert all(each.max_timestamp_ms > 1_600_000_000_000 for each in segments)


def test_a_segment_without_a_manifest_is_left_out(tmp_path):
    plugin, log, mains = tier_of(tmp_path, "segments-0")
    plugin.path(mains[1], ".rsm-manifest").unlink()

    assert len(AivenTier(str(tmp_path)).segments(log)) == 2


def test_a_prefix_without_a_slash_is_part_of_the_folder(tmp_path):
    _plugin, log, mains = tier_of(tmp_path, "segments-0", prefix="clusters/pre-")
    tier = AivenTier(str(tmp_path / "clusters"))

    assert tier.logs() == [log]
    assert len(tier.segments(log)) == 3
    listed = RemoteSegment(log, mains[0][-22:], 0)  # of the broker's metadata
    assert read(AivenTier(str(tmp_path / "clusters")).open(listed, RemoteFileKind.LOG))


def test_other_objects_are_passed_over(tmp_path):
    _plugin, log, _ = tier_of(tmp_path, "segments-0")
    (tmp_path / "a-folder-with-a-rather-long-name" / "0").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    folder = tmp_path / f"{log.topic}-{log.topic_id}"
    (folder / "0" / "x.rsm-manifest").write_text("mine")
    (folder / "readme").write_text("mine")

    assert AivenTier(str(tmp_path)).logs() == [log]


def test_metadata_overrides_the_place_of_the_log_and_the_indexes(tmp_path):
    plugin, log, mains = tier_of(tmp_path, "segments-0")
    expected = plugin.path(mains[0], ".log").read_bytes()
    for suffix in (".log", ".indexes"):
        moved = tmp_path / "old" / f"elsewhere{suffix}"
        moved.parent.mkdir(exist_ok=True)
        plugin.path(mains[0], suffix).rename(moved)
    tier = AivenTier(str(tmp_path))
    listed = tier.segments(log)[0]
    with pytest.raises(RemoteSegmentError, match="is missing"):
        tier.open(listed, RemoteFileKind.LOG)

    segment = listed._replace(custom_metadata=custom_metadata(123_456, "old/", "elsewhere"))

    assert read(tier.open(segment, RemoteFileKind.LOG)) == expected
    assert tier.open(segment, RemoteFileKind.TIME_INDEX).path == str(
        tmp_path / "old" / "elsewhere.indexes"
    )


@pytest.mark.parametrize(
    ("prefix", "key"),
    [
        (None, "../other/x"),
        (None, "a/../../other/x"),
        ("../other/", None),
        ("..", "/other/x"),
        (None, "/other/x"),
        ("", "./../other/x"),
        (None, "other/x\0"),
    ],
)
def test_metadata_names_no_object_outside_the_tier(tmp_path, prefix, key):
    """A producer of the metadata topic could show the files of others."""
    plugin, log, mains = tier_of(tmp_path / "tier", "segments-0")
    (tmp_path / "other").mkdir()
    for suffix in (".log", ".indexes"):
        shutil.copy(plugin.path(mains[0], suffix), tmp_path / "other" / f"x{suffix}")
    tier = AivenTier(str(tmp_path / "tier"))
    segment = tier.segments(log)[0]._replace(custom_metadata=custom_metadata(1, prefix, key))
    for part in (RemoteFileKind.LOG, RemoteFileKind.TIME_INDEX):
        with pytest.raises(RemoteSegmentError, match="names an object outside the tier"):
            tier.open(segment, part)


def test_a_segment_of_the_metadata_is_opened_without_a_listing(tmp_path, keys):
    _plugin, log, mains = tier_of(tmp_path, "segments-0", keys)
    tier = AivenTier(str(tmp_path), f"other=/nowhere.pem,{keys.name}={keys.file}")
    segment = RemoteSegment(log, mains[0][-22:], 0)

    expected = (GOLDEN / "segments-0" / f"{0:020}.log").read_bytes()
    assert read(tier.open(segment, RemoteFileKind.LOG)) == expected


# Requests to a store


@pytest.mark.parametrize(("compresses", "encrypts"), FORMS, ids=IDS)
def test_a_store_gets_a_listing_and_a_request_for_each_manifest_and_each_range(
    tmp_path, keys, compresses, encrypts, monkeypatch
):
    given = keys if encrypts else None
    _plugin, log, mains = tier_of(
        tmp_path, "segments-0", given, compresses=compresses, chunk_bytes=100
    )
    store = CountingStore(store_of(tmp_path))
    url = serve(monkeypatch, store, "tier")
    tier = AivenTier(url, str(keys.file))

    assert tier.logs() == [log]
    segments = tier.segments(log)
    assert [each[0] for each in store.requests if each[0] == "list"] == ["list"]
    read_keys = [each[1] for each in store.requests if each[0] == "read"]
    assert sorted(read_keys) == sorted(f"{each}.rsm-manifest" for each in mains)

    store.requests.clear()
    expected = (GOLDEN / "segments-0" / f"{segments[1].start_offset:020}.log").read_bytes()
    with tier.open(segments[1], RemoteFileKind.LOG) as file:
        file.expect(120, 500)
        assert file.read(120, 380) == expected[120:500]
        ranges = [each[2:] for each in store.requests if each[0] == "read"]
    if compresses or encrypts:
        assert ranges == [(file._chunks.place(1), file._chunks.place(5))]
    else:
        assert ranges == [(120, 500)]


def test_an_object_that_is_replaced_while_it_is_read_is_named(tmp_path, keys, monkeypatch):
    plugin, log, mains = tier_of(tmp_path, "segments-0", keys)
    tier = AivenTier(serve(monkeypatch, store_of(tmp_path), "tier"), str(keys.file))
    segment = tier.segments(log)[0]
    path = plugin.path(mains[0], ".log")

    with tier.open(segment, RemoteFileKind.LOG) as file:
        file.expect(0, 300)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(StorageError, match="was replaced by another one") as found:
            file.check_unchanged()

    assert found.value.filename == f"test://tier/{mains[0]}.log"


# Errors


def test_a_wrong_key_is_an_error_that_names_the_manifest_and_no_key(tmp_path, keys):
    _plugin, log, _ = tier_of(tmp_path / "tier", "segments-0", keys)
    for bits in (2048, 3072):
        other = KeyPair(tmp_path, "other", bits)
        tier = AivenTier(str(tmp_path / "tier"), str(other.file))
        segment = tier.segments(log)[0]

        with pytest.raises(RemoteSegmentError, match="was not encrypted for the private") as found:
            tier.open(segment, RemoteFileKind.LOG)

        assert found.value.path.endswith(".rsm-manifest")
        assert "BEGIN" not in str(found.value)


@pytest.mark.parametrize("change", [lambda wrapped: b"\0" + wrapped, lambda _: b"\xff" * 256])
def test_a_data_key_that_does_not_fit_the_private_key_is_refused(tmp_path, keys, change):
    plugin, log, mains = tier_of(tmp_path, "segments-0", keys)
    path = plugin.path(mains[0], ".rsm-manifest")
    found = json.loads(path.read_bytes())
    name, _, wrapped = found["encryption"]["dataKey"].partition(":")
    wrapped = base64.b64encode(change(base64.b64decode(wrapped))).decode()
    found["encryption"]["dataKey"] = f"{name}:{wrapped}"
    path.write_text(json.dumps(found))
    tier = AivenTier(str(tmp_path), str(keys.file))

    with pytest.raises(RemoteSegmentError, match="was not encrypted for the private key"):
        tier.open(tier.segments(log)[0], RemoteFileKind.LOG)


def test_an_encrypted_segment_needs_a_key(tmp_path, keys):
    _plugin, log, _ = tier_of(tmp_path, "segments-0", keys)
    for given in ("", f"another={keys.file}"):
        tier = AivenTier(str(tmp_path), given)
        with pytest.raises(RemoteSegmentError, match="key pair 'key-1', and no file was given"):
            tier.open(tier.segments(log)[0], RemoteFileKind.LOG)


def test_without_the_package_the_error_names_the_extra(tmp_path, keys, monkeypatch):
    _plugin, log, _ = tier_of(tmp_path, "segments-0", keys)
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    monkeypatch.setitem(
        __import__("sys").modules, "cryptography.hazmat.primitives.ciphers.aead", None
    )
    tier = AivenTier(str(tmp_path), str(keys.file))

    with pytest.raises(RemoteSegmentError, match=r"install pyspark-segmentlog\[tiered\]"):
        tier.open(tier.segments(log)[0], RemoteFileKind.LOG)


@pytest.mark.parametrize("content", [b"", b"secret words", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_file_that_is_not_a_key_is_not_quoted(tmp_path, keys, content):
    _plugin, log, _ = tier_of(tmp_path / "tier", "segments-0", keys)
    (tmp_path / "key.pem").write_bytes(content)
    tier = AivenTier(str(tmp_path / "tier"), str(tmp_path / "key.pem"))

    with pytest.raises(OptionError, match="is not a private key in PEM") as found:
        tier.open(tier.segments(log)[0], RemoteFileKind.LOG)

    assert "secret" not in str(found.value)
    assert "AAAA" not in str(found.value)


@pytest.mark.parametrize("given", ["a=", "=b", "a=b,a=c", "a=b,,c=d"])
def test_pairs_of_keys_are_checked(given):
    with pytest.raises(OptionError, match="remote_storage_key_file"):
        AivenTier("/nowhere", given)


def test_a_missing_key_file_is_named(tmp_path, keys):
    _plugin, log, _ = tier_of(tmp_path, "segments-0", keys)
    tier = AivenTier(str(tmp_path), "/nowhere.pem")

    with pytest.raises(OptionError, match=r"'/nowhere\.pem'; the file cannot be read"):
        tier.open(tier.segments(log)[0], RemoteFileKind.LOG)


def test_tasks_get_the_names_of_key_files_and_no_key(keys):
    tier = AivenTier("/nowhere", str(keys.file))
    vars(tier._keys)["_read"]["x"] = "a key"

    assert b"a key" not in pickle.dumps(tier._keys)
    assert pickle.loads(pickle.dumps(tier._keys))._files == {"": str(keys.file)}


@pytest.mark.parametrize(("compresses", "encrypts"), FORMS, ids=IDS)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_log_of_another_size_is_named(tmp_path, keys, compresses, encrypts, change):
    plugin, log, mains = tier_of(
        tmp_path, "segments-0", keys if encrypts else None, compresses=compresses
    )
    path = plugin.path(mains[0], ".log")
    os.truncate(path, path.stat().st_size + change)
    tier = AivenTier(str(tmp_path), str(keys.file))

    with pytest.raises(RemoteSegmentError, match="its manifest describes") as found:
        tier.open(tier.segments(log)[0], RemoteFileKind.LOG)

    assert found.value.path == str(path)


@pytest.mark.parametrize(
    ("compresses", "encrypts", "said"),
    [(False, True, "tag of its chunk 1"), (True, True, "tag of its"), (True, False, "zstd frame")],
)
def test_a_changed_byte_of_a_chunk_is_named(tmp_path, keys, compresses, encrypts, said):
    plugin, log, mains = tier_of(
        tmp_path, "segments-0", keys if encrypts else None, compresses=compresses, chunk_bytes=100
    )
    path = plugin.path(mains[0], ".log")
    data = bytearray(path.read_bytes())
    tier = AivenTier(str(tmp_path), str(keys.file))
    segment = tier.segments(log)[0]
    with tier.open(segment, RemoteFileKind.LOG) as file:
        at = file._chunks.place(1)
    data[at + 1] ^= 1
    path.write_bytes(data)

    with pytest.raises(RemoteSegmentError, match=said) as found:
        read(tier.open(segment, RemoteFileKind.LOG))

    assert found.value.path == str(path)


def test_the_log_of_another_segment_is_named(tmp_path, keys):
    plugin, log, mains = tier_of(tmp_path, "segments-0", keys, chunk_bytes=1 << 20)
    one, other = (plugin.path(each, ".log") for each in mains[:2])
    if one.stat().st_size != other.stat().st_size:
        one, other = (plugin.path(each, ".log") for each in mains[1:3])
    other.write_bytes(one.read_bytes())
    tier = AivenTier(str(tmp_path), str(keys.file))

    segments = tier.segments(log)

    with pytest.raises(RemoteSegmentError) as found:
        [read(tier.open(each, RemoteFileKind.LOG)) for each in segments]

    assert found.value.path == str(other)


def test_the_manifest_of_another_segment_is_named(tmp_path):
    plugin, log, mains = tier_of(tmp_path, "segments-0")
    one, other = (plugin.path(each, ".rsm-manifest") for each in mains[:2])
    other.write_bytes(one.read_bytes())

    with pytest.raises(RemoteSegmentError, match="it is the manifest of segment") as found:
        AivenTier(str(tmp_path)).segments(log)

    assert found.value.path == str(other)


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_a_missing_object_is_named(tmp_path, suffix):
    plugin, log, mains = tier_of(tmp_path, "segments-0")
    plugin.path(mains[0], suffix).unlink()
    tier = AivenTier(str(tmp_path))
    part = RemoteFileKind.LOG if suffix == ".log" else RemoteFileKind.OFFSET_INDEX

    with pytest.raises(RemoteSegmentError, match="the object is missing") as found:
        tier.open(tier.segments(log)[0], part)

    assert found.value.path == str(plugin.path(mains[0], suffix))


def test_short_indexes_are_named(tmp_path):
    plugin, log, mains = tier_of(tmp_path, "segments-0")
    os.truncate(plugin.path(mains[0], ".indexes"), 3)
    tier = AivenTier(str(tmp_path))

    with pytest.raises(RemoteSegmentError, match="describes more"):
        tier.open(tier.segments(log)[0], RemoteFileKind.LEADER_EPOCHS)


def test_a_segment_that_is_deleted_during_a_listing_is_left_out(tmp_path, monkeypatch):
    plugin, log, mains = tier_of(tmp_path, "segments-0")
    gone = plugin.path(mains[1], ".rsm-manifest")
    real = aiven.parse_key

    def deleting(key):
        gone.unlink(missing_ok=True)
        return real(key)

    tier = AivenTier(str(tmp_path))
    monkeypatch.setattr(aiven, "parse_key", deleting)

    assert len(tier.segments(log)) == 2


def test_a_manifest_of_unknown_members_is_read(tmp_path):
    plugin, log, mains = tier_of(tmp_path, "segments-0")
    path = plugin.path(mains[0], ".rsm-manifest")
    found = json.loads(path.read_bytes())
    found["later"] = {"a": [1]}
    found["remoteLogSegmentMetadata"]["later"] = True
    del found["remoteLogSegmentMetadata"]["txnIdxEmpty"]
    path.write_text(json.dumps(found))

    assert len(AivenTier(str(tmp_path)).segments(log)) == 3


def test_threads_list_a_tier_once(tmp_path, monkeypatch):
    """All threads of a read ask for the folders of logs at the same time."""
    tier = AivenTier(str(tmp_path))
    n_listed, all_ask, real = 0, threading.Barrier(8), AivenTier._listed

    def counting(self, topics=()):
        nonlocal n_listed
        n_listed += 1
        time.sleep(0.05)
        return real(self, topics)

    def ask(_):
        all_ask.wait()
        return tier.logs()

    monkeypatch.setattr(AivenTier, "_listed", counting)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, range(8)))

    assert 1 == n_listed
    assert all(each == found[0] for each in found)
