"""How far offsets are behind the end of a log: by its records, and by their times."""

import random
from pathlib import Path

import numpy as np
import pytest

import segmentlog
from segmentlog.kafka_tables import lags
from segmentlog.kafka_tables.lags import Lags, lags_of
from segmentlog.testing.kafka_log import KafkaLog
from segmentlog.testing.legacy import encode_message, encode_wrapper
from segmentlog.testing.reference import Record


@pytest.mark.parametrize("seed", range(4))
def test_each_offset_of_a_log(tmp_path: Path, seed: int) -> None:
    """Beside the records of a read; markers and gaps do not count, and aborted records do."""
    draw = random.Random(seed)
    log = KafkaLog(tmp_path)
    log.create_topic("t")
    segmentlog.alter_settings(log, "t", {"segment.bytes": "300"})
    time = 1_760_000_000_000
    for _ in range(draw.randint(3, 9)):
        time += draw.randint(-500, 5000)
        records = [{"value": b"v", "timestamp": time}] * draw.randint(1, 5)
        match draw.choice(["write", "commit", "abort", "gap"]):
            case "write":
                log.write("t", records)
            case "gap":
                log.gap("t", 3)
            case how:
                with log.transaction() as transaction:
                    transaction.write("t", records)
                    if how == "abort":
                        transaction.abort()
    log.write("t", [{"value": b"v", "timestamp": time}])
    if seed % 2:
        log.delete_records("t", 3)
    opened = segmentlog.open_log_dir(log).log("t", 0)
    rows = opened.scan(columns=["offset", "timestamp"], read_up_to="logEnd").read_all()
    times = (rows["timestamp"].cast("int64").to_numpy() // 1000).tolist()
    found = [*zip(rows["offset"].to_pylist(), times, strict=True)]
    end = opened.log_end_offset
    asked = [*range(-1, end + 2)]

    records, behind = lags_of(opened, np.array(asked, np.int64))

    for offset, n, ms in zip(asked, records.tolist(), behind.tolist(), strict=True):
        left = [time for each, time in found if each >= offset]
        expected = (len(left), max(left) - left[0] if left else 0)
        assert ((-1, -1) if offset > end else expected) == (n, ms), offset

    # By the batches at the ends of logs, which are known, for several logs at once.
    times = [draw.randint(10**12, 2 * 10**12) for _ in range(9)]
    log.write("u", [{"value": b"v", "timestamp": each} for each in times])
    other = segmentlog.open_log_dir(log).log("u", 0)
    lags, of_others = Lags(), lags_of(other, np.arange(11))
    for row, offset in enumerate(asked):
        lags.add(row, opened, np.array([offset]), offset)
        lags.add(-1, other, np.arange(11), 0)
    assert lags.n_from_tails > len(asked)
    for row, *of_row in lags.found().T.tolist():
        if row < 0:
            assert of_row[1:] == of_others[:, of_row[0]].tolist()
        else:
            assert of_row == [asked[row], records[row], behind[row]]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_that_compaction_has_left(tmp_path: Path, magic: int) -> None:
    """Each is a record; of a wrapper the offsets that are gone are not known."""
    made = [Record(each, 1000 + each if magic else -1, b"k", b"v") for each in (0, 4, 7, 20, 22)]
    messages = [encode_message(each, magic=magic) for each in made[:3]]
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(
        b"".join([*messages, encode_wrapper(made[3:], codec=1, magic=magic)])
    )
    opened = segmentlog.open_log_dir(tmp_path).log("t", 0)
    records, _behind = lags_of(opened, np.array([0, 1, 4, 5, 8, 22, 23]))
    of_wrapper = 22 - 8 + 1
    more = [3, 2, 2, 1, 0]
    assert records.tolist() == [*(n + of_wrapper for n in more), 1, 0]


def test_an_offset_that_is_too_far_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lag in offsets is known, and no header is read for more."""
    log = KafkaLog(tmp_path)
    log.write("t", [b"v"] * 3)
    monkeypatch.setattr(lags, "_MOST_BYTES", 10)
    records, behind = lags_of(segmentlog.open_log_dir(log).log("t", 0), np.array([0, 3]))
    assert ([-1, 0], [-1, 0]) == (records.tolist(), behind.tolist())
