"""Manifests, keys of objects, chunk indexes and custom metadata of Aiven's plugin are parsed."""

import base64
import contextlib
import json
import struct

import numpy as np
import pytest
import zstandard
from aiven_plugin import custom_metadata, encode_sizes
from hypothesis import given
from hypothesis import strategies as st

from segmentlog import RemoteSegmentError
from segmentlog.tiered.aiven_manifest import (
    ChunkIndex,
    ChunkIndexError,
    CustomMetadata,
    decode_sizes,
    parse_custom_metadata,
    parse_key,
    parse_manifest,
)
from segmentlog.tiered.layout import RemoteLog, RemoteSegment

TOPIC_ID, SEGMENT_ID = "FgX88cFkRWirCb1Q_nEBwA", "-_Xh88cFkRWirCb1Q-nEBw"

#: A manifest that the plugin wrote, with other ids.
WRITTEN = {
    "version": "1",
    "chunkIndex": {
        "type": "fixed",
        "originalChunkSize": 10000,
        "originalFileSize": 29683,
        "transformedChunkSize": 10000,
        "finalTransformedChunkSize": 9683,
    },
    "segmentIndexes": {
        "offset": {"position": 0, "size": 40},
        "timestamp": {"position": 40, "size": 60},
        "producerSnapshot": {"position": 100, "size": 56},
        "leaderEpoch": {"position": 156, "size": 8},
        "transaction": None,
    },
    "compression": False,
    "remoteLogSegmentMetadata": {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": TOPIC_ID,
                "topicPartition": {"topic": "tiered", "partition": 0},
            },
            "id": SEGMENT_ID,
        },
        "startOffset": 0,
        "endOffset": 331,
        "maxTimestampMs": 1_700_000_000_000,
        "brokerId": 1,
        "eventTimestampMs": 1_700_000_000_001,
        "segmentLeaderEpochs": {"0": 0},
        "txnIdxEmpty": True,
    },
}


def changed(**members):
    """The manifest with other members; a name with two underscores leads into an object."""
    found = json.loads(json.dumps(WRITTEN))
    for name, value in members.items():
        place = found
        *path, last = name.split("__")
        for each in path:
            place = place[each]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return json.dumps(found).encode()


def test_a_manifest_of_the_plugin_is_parsed():
    manifest = parse_manifest("m", changed())

    chunks = manifest.chunks
    assert (chunks.chunk_bytes, chunks.file_bytes, chunks.n_chunks) == (10000, 29683, 3)
    assert [chunks.place(each) for each in range(4)] == [0, 10000, 20000, 29683]
    assert [chunks.size_of(each) for each in range(3)] == [10000, 10000, 9683]
    assert manifest.is_plain
    assert dict(manifest.indexes) == {
        "offset": (0, 40),
        "timestamp": (40, 60),
        "producerSnapshot": (100, 56),
        "leaderEpoch": (156, 8),
    }
    log = RemoteLog("tiered", TOPIC_ID, 0)
    assert manifest.facts == RemoteSegment(log, SEGMENT_ID, 0, 331, {0: 0}, 1_700_000_000_000)


def test_the_plugins_own_metadata_may_be_missing():
    assert parse_manifest("m", changed(remoteLogSegmentMetadata=...)).facts is None


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"version": "2"}, "has version '2', and only version 1 is known"),
        ({"version": ...}, "has version 'None'"),
        ({"chunkIndex": ...}, "has no object chunkIndex"),
        ({"chunkIndex__type": "odd"}, "type 'odd'; fixed and variable are known"),
        ({"chunkIndex__originalChunkSize": 0}, "no member originalChunkSize with an integer"),
        ({"chunkIndex__originalChunkSize": True}, "no member originalChunkSize"),
        ({"chunkIndex__originalChunkSize": 1}, "chunks of"),
        ({"chunkIndex__originalFileSize": -1}, "no member originalFileSize"),
        ({"chunkIndex__originalFileSize": 1 << 31}, "no member originalFileSize"),
        ({"chunkIndex__transformedChunkSize": 9999}, "chunks of 29681 bytes for a file of 29683"),
        ({"chunkIndex__finalTransformedChunkSize": 1e3}, "no member finalTransformedChunkSize"),
        ({"compression": "yes"}, "compression that is not true or false"),
        ({"encryption": {"dataKey": "abc", "aad": ""}}, "dataKey without the id"),
        ({"encryption": {"dataKey": "k:***", "aad": ""}}, "dataKey that is not base64"),
        ({"encryption": {"dataKey": "k:QQ==", "aad": "é"}}, "aad that is not base64"),
        ({"encryption": {"dataKey": "k" * 9000, "aad": ""}}, "no member dataKey with a text"),
        ({"encryption": {"dataKey": "k:QQ==", "aad": "QQ=="}}, "without compression"),
        ({"segmentIndexes": []}, "no object segmentIndexes"),
        ({"segmentIndexes__offset": 4}, "no object segmentIndexes.offset"),
        ({"segmentIndexes__offset__size": 1 << 40}, "no member size"),
        ({"segmentIndexes__offset__position": -4}, "no member position"),
        ({"remoteLogSegmentMetadata": 4}, "no object remoteLogSegmentMetadata"),
        ({"remoteLogSegmentMetadata__endOffset": -1}, "no member endOffset"),
        ({"remoteLogSegmentMetadata__segmentLeaderEpochs": {"x": 0}}, "segmentLeaderEpochs that"),
        ({"remoteLogSegmentMetadata__segmentLeaderEpochs": {"0": "x"}}, "no member 0"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(members, said):
    with pytest.raises(RemoteSegmentError, match=said) as found:
        parse_manifest("s3://b/m.rsm-manifest", changed(**members))

    assert str(found.value).startswith("s3://b/m.rsm-manifest: the manifest has ")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"[]", b"7", b'{"version":' + b"9" * 9000]
)
def test_other_bytes_are_no_manifest(data):
    with pytest.raises(RemoteSegmentError, match="the manifest"):
        parse_manifest("m", data)


def test_a_manifest_has_a_bound():
    with pytest.raises(RemoteSegmentError, match="the largest has 16777216"):
        parse_manifest("m", bytes((16 << 20) + 1))


@pytest.mark.parametrize(
    "data", [b"PFA1\x00rest", changed(segmentFormat="iceberg"), changed(dataFiles=["a.parquet"])]
)
def test_iceberg_mode_is_refused_by_name(data):
    with pytest.raises(RemoteSegmentError, match="Iceberg mode"):
        parse_manifest("m", data)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=4,
)


def _places(found, path=()):
    """Paths of all members of a manifest."""
    for name, value in found.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from _places(value, (*path, name))


@given(
    st.sampled_from([*_places(WRITTEN), ("encryption",)]),
    _VALUES,
    st.sampled_from(sorted(WRITTEN)),
)
def test_any_value_of_a_member_is_parsed_or_refused(path, value, dropped):
    found = json.loads(changed(**{"__".join(path): value}))
    for data in (found, {name: each for name, each in found.items() if name != dropped}):
        with contextlib.suppress(RemoteSegmentError):
            parse_manifest("m", json.dumps(data).encode())


# Keys


@pytest.mark.parametrize("topic", ["orders", "a-b_c.d", f"x-{TOPIC_ID}", f"-{TOPIC_ID}-", "-"])
def test_a_key_is_parsed_from_its_end(topic):
    key = f"{topic}-{TOPIC_ID}/12/{42:020}-{SEGMENT_ID}.indexes"

    found = parse_key(key)

    assert found == (topic, TOPIC_ID, 12, 42, SEGMENT_ID, ".indexes")
    assert found.main == key.removesuffix(".indexes")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a/b",
        f"orders-{TOPIC_ID}/0/{0:020}-{SEGMENT_ID}.txt",
        f"orders-{TOPIC_ID}/0/{0:019}-{SEGMENT_ID}.log",
        f"orders-{TOPIC_ID}/x/{0:020}-{SEGMENT_ID}.log",
        f"orders-{TOPIC_ID}/007/{0:020}-{SEGMENT_ID}.log",
        f"orders-{TOPIC_ID[1:]}/0/{0:020}-{SEGMENT_ID}.log",
        f"{TOPIC_ID}/0/{0:020}-{SEGMENT_ID}.log",
        f"-{TOPIC_ID}/0/{0:020}-{SEGMENT_ID}.log",
        f"or ders-{TOPIC_ID}/0/{0:020}-{SEGMENT_ID}.log",
        f"orders-{TOPIC_ID}/0/{0:020}-{SEGMENT_ID}.log\n",
    ],
)
def test_another_key_is_not_parsed(key):
    assert parse_key(key) is None


# Chunk indexes


def test_the_plugins_sample_of_sizes_is_decoded():
    """The text stands in a manifest that the plugin wrote."""
    assert decode_sizes("KLUv/SAPeQAAAAAAAwAAJkMB8wAAACUt").tolist() == [10_038, 19_833, 29_350]


@given(st.lists(st.integers(1, 2**31 - 1), max_size=40))
def test_a_list_of_sizes_is_decoded(sizes):
    assert decode_sizes(encode_sizes(sizes)).tolist() == np.cumsum(sizes, dtype=np.int64).tolist()


def frame(listed: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor().compress(listed)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "QUJD",
        frame(b""),
        frame(b"\0\0"),
        frame(struct.pack(">i", -1)),
        frame(struct.pack(">i", 1)),
        frame(struct.pack(">ii", 1, 0)),
        frame(struct.pack(">i", 9)),
        frame(struct.pack(">iiBi", 2**31 - 1, 1, 1, 1)),
        frame(struct.pack(">iiBBi", 2, 1, 0, 1, 1)),
        frame(struct.pack(">iiBBi", 2, 1, 9, 1, 1)),
        frame(struct.pack(">iiBBi", 2, -5, 1, 1, 1)),
        frame(struct.pack(">iiB", 0, 1, 1)),
        encode_sizes([5, 6, 7])[:-4],
        frame(bytes((10 << 20) + 1)),
        "A" * (15 << 20),
        base64.b64encode(
            zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
        ).decode(),
        base64.b64encode(2 * zstandard.ZstdCompressor().compress(bytes(4))).decode(),
    ],
    ids=range(19),
)
def test_another_list_of_sizes_is_refused(text):
    with pytest.raises(ChunkIndexError):
        decode_sizes(text)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_list_of_sizes_has_to_fit_the_file(change):
    sizes = encode_sizes([7] * (3 + change))
    index = {
        "type": "variable",
        "originalChunkSize": 10,
        "originalFileSize": 21,
        "transformedChunks": sizes,
    }

    with pytest.raises(RemoteSegmentError, match="but 3 fit its sizes"):
        parse_manifest("m", changed(chunkIndex=index, compression=True))


def test_places_of_a_variable_index():
    index = ChunkIndex(10, 25, np.array([5, 16, 20], np.int64), base=100)

    assert [index.place(each) for each in range(4)] == [100, 105, 116, 120]
    assert index.object_bytes == 20


@pytest.mark.parametrize(("chunk_bytes", "n"), [(1, 2**31 - 1), (10**6, 2148), (2**31 - 1, 1)])
def test_a_fixed_index_takes_no_memory_for_its_chunks(chunk_bytes, n):
    index = ChunkIndex(chunk_bytes, 2**31 - 1, (chunk_bytes + 28, 30))

    assert index.n_chunks == n
    assert index.place(n) == index.object_bytes == (n - 1) * (chunk_bytes + 28) + 30


def test_an_empty_file_has_no_chunk():
    assert ChunkIndex(10, 0, (38, 38)).object_bytes == 0


# Custom metadata


def test_custom_metadata_of_the_plugin_is_parsed():
    """The first bytes are those that the plugin wrote."""
    data = bytes.fromhex("03 00 03 8cde03 01 0e 0e") + b"some/pre-fix/" + b"\x02\x04\x04abc"

    assert parse_custom_metadata(data) == CustomMetadata(30_598, "some/pre-fix/", "abc")


@given(st.none() | st.integers(0, 2**60), st.none() | st.text(), st.none() | st.text(max_size=300))
def test_custom_metadata_is_parsed(size, prefix, key):
    assert parse_custom_metadata(custom_metadata(size, prefix, key)) == (size, prefix, key)


@given(st.binary(max_size=60))
def test_other_custom_metadata_is_no_error(data):
    found = parse_custom_metadata(data)

    assert found is None or isinstance(found, CustomMetadata)
