"""Messages of magic 0 and 1, as Kafka's own classes wrote them."""

from pathlib import Path

import pytest

import segmentlog
from segmentlog.errors import MalformedBatchError
from segmentlog.model import Codec, TimestampAndOffset
from segmentlog.testing.legacy import encode_wrapper
from segmentlog.testing.reference import Record

#: Records (1000, "k1", "v1") and (1005, null, "v2") at offsets 10 and 11, written by the record
#: classes of Apache Kafka 4.0.
WRITTEN_BY_KAFKA = {
    "magic 0": (
        "000000000000000a0000001257e7496e0000000000026b31000000027631000000000000000b00000010"
        "d5960a780000ffffffff000000027632"
    ),
    "magic 1": (
        "000000000000000a0000001ab1a6ec76010000000000000003e8000000026b3100000002763100000000"
        "0000000b000000185fce508c010000000000000003edffffffff000000027632"
    ),
    "magic 0, gzip": (
        "000000000000000b00000047d19cd4fe0001ffffffff000000391f8b08000000000000ff636000032e20"
        "160a7fee9907e631651b82c8324388240337100b5c9dc655c1c0f01f08c072460055fb8b673a000000"
    ),
    "magic 0, snappy": (
        "000000000000000b000000569912e0070002ffffffff0000004882534e41505059000000000100000001"
        "000000343a00000901200a0000001257e7496e050f1c026b31000000027601060101500b00000010d596"
        "0a780000ffffffff000000027632"
    ),
    "magic 0, lz4": (
        "000000000000000b00000052579e4bac0003ffffffff0000004404224d1860401a350000001200010091"
        "0a0000001257e7496e0f0080026b3100000002760600000200f0060b00000010d5960a780000ffffffff"
        "00000002763200000000"
    ),
    "magic 1, gzip": (
        "000000000000000b000000516c52daaa010100000000000003edffffffff0000003b1f8b080000000000"
        "00ff63608003a98dcbde94314239cc2f800453b621882c33840a822425e2cf05f4c055bdfd0f04603546"
        "004a4df2984a000000"
    ),
    "magic 1, snappy": (
        "000000000000000b00000062a169a48e010200000000000003edffffffff0000004c82534e4150505900"
        "0000000100000001000000384a00001901141ab1a6ec76010d101c03e8000000026b3101060076010601"
        "01011d10185fce508c010901012c03edffffffff000000027632"
    ),
    "magic 1, lz4": (
        "000000000000000b0000005f0d317b63010300000000000003edffffffff0000004904224d186040823a"
        "00000016000100631ab1a6ec760110008003e8000000026b31060010760600000200001d0050185fce50"
        "8c0900000200c003edffffffff00000002763200000000"
    ),
}


@pytest.fixture(params=WRITTEN_BY_KAFKA)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> segmentlog.Log:
    """A log with one of these files."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    name = "00000000000000000000.log"
    (partition / name).write_bytes(bytes.fromhex(WRITTEN_BY_KAFKA[request.param]))
    return segmentlog.open_log_dir(tmp_path).log("t", 0)


def is_magic_0(log: segmentlog.Log) -> bool:
    return next(log.segments[0].headers(0)).header.magic == 0


def test_both_records_come_out(log: segmentlog.Log) -> None:
    """Keys, values and offsets are as written; magic 0 gives timestamp -1 and type -1."""
    rows = log.scan(include_headers=True).read_all().to_pydict()

    assert [10, 11] == rows["offset"]
    assert [b"k1", None] == rows["key"]
    assert [b"v1", b"v2"] == rows["value"]
    assert [None, None] == rows["headers"]
    assert [-1, -1] == rows["timestampType"] if is_magic_0(log) else [0, 0]
    times = [round(time.timestamp() * 1000) for time in rows["timestamp"]]
    assert ([-1, -1] if is_magic_0(log) else [1000, 1005]) == times


@pytest.mark.parametrize(("start", "end"), [(10, 11), (11, 12), (10, 10), (11, 11)])
def test_ranges_begin_and_end_inside_a_wrapper(log: segmentlog.Log, start: int, end: int) -> None:
    """A wrapper's offset is that of its last record; the records before it are found as well."""
    rows = log.scan(start, end, columns=["offset"]).read_all()["offset"].to_pylist()

    assert list(range(start, end)) == rows


def test_a_record_is_found_by_its_time(log: segmentlog.Log) -> None:
    """Messages of magic 1 are found by their timestamps, and messages of magic 0 have none."""
    expected = None if is_magic_0(log) else TimestampAndOffset(1005, 11)

    assert expected == log.offset_for_timestamp(1001)
    assert log.offset_for_timestamp(1006) is None


def test_every_flipped_byte_is_noticed(log: segmentlog.Log) -> None:
    """Checksums cover everything except offset and size.

    Wrong offsets and sizes contradict other fields, or move the rows.
    """
    whole = log.scan().read_all()
    path = Path(log.segments[0].path)
    data = path.read_bytes()
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        path.write_bytes(damaged)
        try:
            rows = segmentlog.open_log_dir(path.parents[1]).log("t", 0).scan().read_all()
        except segmentlog.SegmentLogError:
            continue

        assert whole != rows, at


@pytest.mark.parametrize("magic", [0, 1])
def test_records_before_a_bad_wrapper_come_before_its_error(tmp_path: Path, magic: int) -> None:
    """The checksum of the bad wrapper is right, but the offsets inside fall.

    All wrappers are inflated together.
    """
    wrappers = [
        encode_wrapper([Record(each, 5, b"k", b"v") for each in inside], Codec.GZIP, magic=magic)
        for inside in ([0, 1], [2, 3], [5, 4], [6, 7])
    ]
    partition = tmp_path / "t-0"
    partition.mkdir()
    (partition / "00000000000000000000.log").write_bytes(b"".join(wrappers))
    log = segmentlog.open_log_dir(tmp_path).log("t", 0)
    scan = log.scan(0, 8, columns=["offset"])

    assert [0, 1, 2, 3] == scan.read_next_batch()["offset"].to_pylist()
    with pytest.raises(MalformedBatchError, match="message inside") as caught:
        scan.read_next_batch()
    assert len(wrappers[0] + wrappers[1]) == caught.value.position
