"""Committed offsets are folded as a group coordinator folds them."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from coordinator_logs import Coordinator, text
from coordinator_logs import commit_key as key
from coordinator_logs import commit_value as value
from hypothesis import given, settings
from hypothesis import strategies as st

import segmentlog
from segmentlog.errors import CorruptLogError
from segmentlog.kafka_tables import group_offsets
from segmentlog.kafka_tables.group_offsets import TransactionFate, transaction_fates

TOPIC_ID = uuid.UUID(int=7)
PRINTED = "AAAAAAAAAAAAAAAAAAAABw"


def offsets(directory: Path, **options: Any) -> list[tuple[object, ...]]:
    """Group, topic, partition, offset and pending offset."""
    names = ["group", "topic", "partition", "offset", "pending_offset"]
    rows = segmentlog.table(directory, "group_offsets", **options).select(names).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=str)


def test_all_versions_of_a_commit(tmp_path: Path) -> None:
    """Every field is there, whatever the version; a version without a field has null."""
    id_tail = bytes([1, 0, 16]) + TOPIC_ID.bytes
    unknown = bytes([2, 0, 16]) + TOPIC_ID.bytes + bytes([9, 1, 1])
    groups = Coordinator().add(
        *((key(f"v{v}"), value(v, v, "a ü")) for v in range(4)),
        (key("v4"), value(4, 4)),
        (key("id", "t" * 200, 3), value(5, 4, "m", id_tail)),
        (key("old", kind=0), value(6, 1)),
        (key("tags"), value(7, 4, "m", unknown)),
    )
    table = segmentlog.table(groups.write(tmp_path), "group_offsets")
    rows = {row["group"]: row for row in table.to_pylist()}

    assert {"v0": 0, "v1": 1, "v2": 2, "v3": 3, "v4": 4, "id": 5, "old": 6, "tags": 7} == {
        name: row["offset"] for name, row in rows.items()
    }
    assert [None, None, None, 5, 5] == [rows[f"v{v}"]["leader_epoch"] for v in range(5)]
    assert ["a ü", "a ü", "a ü", "a ü", "", "m"] == [
        rows[name]["metadata"] for name in ("v0", "v1", "v2", "v3", "v4", "id")
    ]
    assert {None, PRINTED} == {rows[name]["topic_id"] for name in ("v3", "v4", "id", "tags")}
    assert PRINTED == rows["id"]["topic_id"] == rows["tags"]["topic_id"]
    assert ("t" * 200, 3, 5) == tuple(
        rows["id"][n] for n in ("topic", "partition", "record_offset")
    )
    assert [1.0] * 8 == [row["commit_timestamp"].timestamp() for row in rows.values()]
    assert {"v1", "old"} == {name for name, row in rows.items() if row["expire_timestamp"]}


def test_the_last_commit_counts_and_a_tombstone_removes(tmp_path: Path) -> None:
    """Keys of types 0 and 1 are one key. Other records do not matter."""
    groups = (
        Coordinator()
        .add(
            (key("a"), value(1)),
            (key("b"), value(2)),
            (key("a", partition=1), value(3)),
            (b"\0\2" + text("a"), None),
            (b"\0\x63x", b"y"),
            (key("a", kind=0), value(4)),
            (key("b"), None),
            (key("c"), None),
        )
        .add((key("a", partition=1), value(1)))
    )

    assert [("a", "t", 0, 4, None), ("a", "t", 1, 1, None)] == offsets(groups.write(tmp_path))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("p5", [("g", "t", 0, None, 5)]),
        ("p5 commit", [("g", "t", 0, 5, None)]),
        ("p5 abort", []),
        ("n3 p5 abort", [("g", "t", 0, 3, None)]),
        ("n3 p5", [("g", "t", 0, 3, 5)]),
        ("n3 p5 p6", [("g", "t", 0, 3, 6)]),
        ("p5 n3 commit", [("g", "t", 0, 3, None)]),  # the record of 3 has the greater offset
        ("p5 n3", [("g", "t", 0, 3, 5)]),
        ("p5 delete", []),
        ("p5 delete commit", []),
        ("n3 p5 delete p6", [("g", "t", 0, None, 6)]),
        ("p5 commit p6 abort p7", [("g", "t", 0, 5, 7)]),
    ],
)
def test_a_transaction_counts_after_its_marker(
    tmp_path: Path, steps: str, expected: list[tuple[object, ...]]
) -> None:
    """`n3` commits offset 3 outside of transactions, and `p5` commits offset 5 in one."""
    groups = Coordinator().add((key("x"), value(0)))
    for step in steps.split():
        if step in ("commit", "abort"):
            groups.end(7, int(step == "commit"))
        elif step == "delete":
            groups.add((key("g"), None))
        else:
            groups.add(
                (key("g"), value(int(step[1:]))),
                producer=7 if step[0] == "p" else -1,
            )

    assert [*expected, ("x", "t", 0, 0, None)] == offsets(groups.write(tmp_path))


def test_a_history_has_every_change(tmp_path: Path) -> None:
    """Each commit and each removal is a row, with its transaction and its place."""
    groups = Coordinator().add((key("g"), value(1))).add((key("g"), value(2)), producer=7)
    groups.add((key("g"), value(3)), producer=8).end(7, 1).end(8, 0)
    groups.add((key("g"), None), (key("g"), value(4))).add((key("g"), value(5)), producer=7)
    table = segmentlog.table(groups.write(tmp_path, 3), "group_offsets", history=True)
    names = ["offset", "producer_id", "transaction", "record_offset", "change"]

    assert [
        (1, None, None, 0, "set"),
        (2, 7, "committed", 1, "set"),
        (3, 8, "aborted", 2, "set"),
        (None, None, None, 5, "removed"),
        (4, None, None, 6, "set"),
        (5, 7, "open", 7, "set"),
    ] == [tuple(row[n] for n in names) for row in table.to_pylist()]
    assert {3} == set(table["record_partition"].to_pylist())


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((key("g"), b"\xff\xf9"), "OffsetCommitValue has version -7, known are 0 to 4"),
        ((key("g"), value(1)[:-3]), "inside a field"),
        ((key("g")[:-1], value(1)), "inside a field"),
        ((b"\0\1\xff\xff" + key("g")[5:], value(1)), "group is null"),
        ((key("g"), b""), "inside a field"),
        ((b"\0\1\0\1\xff" + key("g")[5:], value(1)), "can't decode byte 0xff"),
        (
            (key("g"), value(1, 4, "", bytes([1, 0, 15]) + bytes(15))),
            "inside a field",
        ),
        (
            (key("g"), value(1, 4, "", b"\xff\xff\xff\xff\xff")),
            "varint has more than 5 bytes",
        ),
    ],
)
def test_a_commit_that_cannot_be_read_is_an_error(
    tmp_path: Path, bad: tuple[bytes, bytes], reason: str
) -> None:
    """The error names file and offset. With `skip`, the record is left out."""
    groups = Coordinator().add((key("x"), value(1)), bad, (key("y"), value(2)))
    directory = groups.write(tmp_path)
    for history in (False, True):
        with pytest.raises(segmentlog.MalformedRecordError, match=reason) as caught:
            segmentlog.table(directory, "group_offsets", history=history)
        assert (1, f"{0:020d}.log") == (caught.value.offset, Path(caught.value.path).name)

    assert [("x", "t", 0, 1, None), ("y", "t", 0, 2, None)] == offsets(
        directory, on_corrupt_batch="skip"
    )


def test_tables_and_their_names(tmp_path: Path) -> None:
    """A directory without the topic has no such table, and the error says so."""
    directory = Coordinator().add((key("x"), value(1))).write(tmp_path / "a")
    (tmp_path / "b" / "t-0").mkdir(parents=True)

    assert "group_offsets" in segmentlog.tables(directory)
    expected = ["open_transactions", "producers", "unknown_records"]
    assert expected == segmentlog.tables(tmp_path / "b")
    with pytest.raises(segmentlog.LogDirectoryError, match="holds no partition of __consumer_off"):
        segmentlog.table(tmp_path / "b", "group_offsets")
    with pytest.raises(segmentlog.OptionError, match="give one of group_offsets"):
        segmentlog.table(directory, "offsets")


def replayed(events: list[tuple[str, int, int]]) -> list[tuple[object, ...]]:
    """Offset and pending offset of each group, as a coordinator replays events."""
    stored: dict[int, int] = {}
    pending: dict[int, dict[int, int]] = {}
    for offset, (kind, group, producer) in enumerate(events):
        if kind == "commit":
            stored[group] = offset
        elif kind == "transactional":
            pending.setdefault(producer, {})[group] = offset
        elif kind == "tombstone":
            for each in (stored, *pending.values()):
                each.pop(group, None)
        else:
            for key, own in pending.pop(producer, {}).items():
                if kind == "end" and own > stored.get(key, -1):
                    stored[key] = own
    waiting = [(own, key) for each in pending.values() for key, own in each.items()]
    newest = {key: own for own, key in sorted(waiting)}
    return sorted(
        ((f"{key}", "t", 0, stored.get(key), newest.get(key)) for key in {*stored, *newest}),
        key=str,
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["commit", "transactional", "transactional", "tombstone", "end", "abort"]
            ),
            st.integers(0, 2),
            st.integers(1, 3),
        ),
        min_size=1,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_events_are_folded_as_a_coordinator_replays_them(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int, int]]
) -> None:
    """Commits, transactions of three producers, markers and tombstones come in any order."""
    groups = Coordinator()
    for offset, (kind, group, producer) in enumerate(events):
        if kind == "commit":
            groups.add((key(f"{group}"), value(offset)))
        elif kind == "transactional":
            groups.add((key(f"{group}"), value(offset)), producer=producer)
        elif kind == "tombstone":
            groups.add((key(f"{group}"), None))
        else:
            groups.end(producer, int(kind == "end"))

    assert replayed(events) == offsets(groups.write(tmp_path_factory.mktemp("log")))


@pytest.mark.parametrize("where", [3, 8, 10, 11, 70], ids=lambda each: f"byte {each}")
def test_transactions_after_damage_are_decided_by_their_markers(
    tmp_path: Path, where: int
) -> None:
    """An aborted commit is not taken for one outside of transactions, and a pending one is not."""
    groups = Coordinator().add((key("a"), value(1)))
    begin = len(groups.data)
    groups.add((key("b"), value(2)))
    groups.add((key("c"), value(3)), producer=7).end(7, 0)
    groups.add((key("d"), value(4)), producer=7).end(7, 1)
    groups.add((key("e"), value(5)), producer=8)
    data = bytearray(groups.data)
    data[begin + where] ^= 0x15
    groups.data = bytes(data)
    groups.write(tmp_path)

    expected = [("a", "t", 0, 1, None), ("d", "t", 0, 4, None), ("e", "t", 0, None, 5)]
    assert expected == offsets(tmp_path, on_corrupt_batch="skip")
    with pytest.raises(CorruptLogError):
        offsets(tmp_path)


def test_a_damaged_marker_decides_nothing(tmp_path: Path) -> None:
    """The next marker of the producer does not decide about a commit before the damage."""
    groups = Coordinator().add((key("a"), value(1)), producer=7)
    begin = len(groups.data)
    groups.end(7, 0).add((key("b"), value(2)), producer=7).end(7, 1)
    data = bytearray(groups.data)
    data[begin + 70] ^= 1
    groups.data = bytes(data)
    groups.write(tmp_path)

    expected = [("a", "t", 0, None, 1), ("b", "t", 0, 2, None)]
    assert expected == offsets(tmp_path, on_corrupt_batch="skip")


def test_records_that_a_broker_appends_meanwhile_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of a transaction that began after the markers were read is not a plain commit."""
    groups = Coordinator().add((key("a"), value(1)))
    groups.write(tmp_path)
    log = segmentlog.open_log_dir(tmp_path).log("__consumer_offsets", 0)
    fates = transaction_fates(log)
    groups.add((key("b"), value(2)), producer=7)
    path = tmp_path / "__consumer_offsets-0" / f"{0:020d}.log"
    path.write_bytes(groups.data)
    monkeypatch.setattr(group_offsets, "transaction_fates", lambda log, skips: fates)

    assert [("a", "t", 0, 1, None)] == offsets(tmp_path)


def test_a_segment_that_a_broker_has_cleaned_meanwhile(tmp_path: Path) -> None:
    """The log is listed again if the cleaner has replaced a file since it was listed."""
    groups = Coordinator().add((key("a"), value(1)))
    groups.add((key("b"), value(2)), producer=7).end(7, 1)
    groups.write(tmp_path)
    log = segmentlog.open_log_dir(tmp_path).log("__consumer_offsets", 0)
    assert 3 == log.log_end_offset
    path = tmp_path / "__consumer_offsets-0" / f"{0:020d}.log"
    path.rename(path.with_name(f"{1:020d}.log"))
    begin = len(Coordinator().add((key("a"), value(1))).data)
    path.with_name(f"{1:020d}.log").write_bytes(groups.data[begin:])

    assert [TransactionFate.COMMITTED] == transaction_fates(log).fates.tolist()


@pytest.mark.parametrize("name", ["group_offsets", "groups", "consumer_lag"])
def test_a_damaged_end_that_a_high_watermark_has_promised(tmp_path: Path, name: str) -> None:
    """The damage is an error, and not an earlier state. With `skip`, it is left out."""
    groups = Coordinator().add((key("a"), value(1)))
    groups.add((key("b"), value(2)))
    groups.data = groups.data[:-1] + bytes([groups.data[-1] ^ 1])
    groups.write(tmp_path)
    promise = tmp_path / "replication-offset-checkpoint"
    for promised, is_refused in ((1, False), (2, True)):
        promise.write_text(f"0\n1\n__consumer_offsets 0 {promised}\n")
        if is_refused:
            with pytest.raises(CorruptLogError):
                segmentlog.table(tmp_path, name)
        found = segmentlog.table(tmp_path, name, on_corrupt_batch="skip" if is_refused else "fail")
        assert ["a"] == found["group"].to_pylist()
