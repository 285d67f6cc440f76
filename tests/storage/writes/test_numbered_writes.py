"""Writes with a name and a version: which topics are left out, and for how long."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plain_writes import ONE, values, write
from soundness import assert_tidy

import segmentlog
from segmentlog.errors import CorruptCheckpointError
from segmentlog.model import TopicPartition
from segmentlog.txn.change import hold
from segmentlog.txn.state import STATE_FILE, CommittedBatch, Deletion, NumberedWrite, State
from segmentlog.txn.topics import take_out
from segmentlog.writes import commit
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.staged_files import JobExtents

DAY = 24 * 3600
LATER = 1_900_000_000_000  #: epoch ms, in 2030


def to_topics(*topics: str) -> pa.Table:
    """A row for each of these topics."""
    return pa.table({"value": [b"v"] * len(topics), "topic": list(topics)})


def n_rows(directory: Path, *topics: str) -> list[int]:
    """The number of rows of each topic."""
    return [len(values(directory, topic)) for topic in topics]


def names(directory: Path) -> set[str]:
    """Names that have a version in the state."""
    return {app_id for app_id, _ in State.read(str(directory)).versions}


def rewrite_state(directory: Path, **fields: object) -> None:
    """Replace fields in the file of the state."""
    path = directory / STATE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


class Clock:
    """The machine's wall clock, which continues from the time to which it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = time.time
        self.ahead = 0.0
        monkeypatch.setattr(time, "time", lambda: self._real() + self.ahead)

    def advance(self, days: int) -> None:
        """Move the clock by this many days."""
        self.ahead += days * DAY


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the test may set."""
    return Clock(monkeypatch)


def test_the_second_topic_of_a_version_is_written(tmp_path: Path) -> None:
    """Two writes send one batch of a streaming query to two topics."""
    for topic in ("orders", "audit", "orders", "audit"):
        write(tmp_path, ONE, topic=topic, txn_app_id="query-7", txn_version=42)
    assert [1, 1] == n_rows(tmp_path, "orders", "audit")
    write(tmp_path, ONE, topic="audit", txn_app_id="query-7", txn_version=43)
    write(tmp_path, ONE, topic="orders", txn_app_id="query-8", txn_version=42)
    assert [2, 2] == n_rows(tmp_path, "orders", "audit")


def test_topics_that_have_the_version_are_left_out_of_a_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other topics are written, and a warning names the topics that are left out."""
    write(tmp_path, ONE, topic="orders", txn_app_id="app", txn_version=5)
    write(tmp_path, ONE, topic="audit", txn_app_id="app", txn_version=3)
    caplog.clear()
    rows = to_topics("orders", "audit", "other", "orders")
    write(tmp_path, rows, topic=None, txn_app_id="app", txn_version=4)
    assert [1, 2, 1] == n_rows(tmp_path, "orders", "audit", "other")
    (warning,) = caplog.messages
    assert "version 4 of 'app' is not written to 'orders', which has version 5" in warning
    assert "audit" not in warning

    caplog.clear()
    write(tmp_path, rows, topic=None, txn_app_id="app", txn_version=4)
    assert [1, 2, 1] == n_rows(tmp_path, "orders", "audit", "other")
    (warning,) = caplog.messages
    assert "'audit', which has version 4; 'orders', which has version 5; 'other'" in warning
    write(tmp_path, rows, topic=None, txn_app_id="app", txn_version=6)
    assert [3, 3, 2] == n_rows(tmp_path, "orders", "audit", "other")
    assert_tidy(tmp_path)


def test_a_warning_that_would_name_very_many_topics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names some of them, and their number."""
    rows = to_topics(*(f"t{number:02d}" for number in range(30)))
    for _ in range(2):
        write(tmp_path, rows, topic=None, txn_app_id="app", txn_version=1)
    (warning,) = caplog.messages
    assert "'t09'" in warning
    assert "'t10'" not in warning
    assert "20 more" in warning


def test_a_commit_says_whether_it_has_written_anything(tmp_path: Path) -> None:
    """The answer is no only if every topic was left out."""

    def committed(*topics: str, topic: str | None = None) -> bool:
        numbered = NumberedWrite("app", 1)
        job = WriteJob.begin(
            WriteRequest(str(tmp_path), ProducerConfig(), topic=topic, numbered=numbered)
        )
        stager = job.stager(0)
        for batch in to_topics(*topics).to_batches() if topics else ():
            stager.add(batch)
        return job.commit([stager.finish()]).is_new

    done = [committed(*topics) for topics in ("a", "a", "ab", "ba")]
    assert [True, False, True, False] == done
    assert [True, False] == [committed(topic="c"), committed("c", topic="c")]
    assert [True, True] == [committed(), committed()]  # without a topic, nothing is left out
    assert [1, 1, 0] == n_rows(tmp_path, "a", "b", "c")


def test_a_version_without_rows_counts_for_its_topic(tmp_path: Path) -> None:
    """A retry may have rows, but the version is already committed."""
    write(tmp_path, topic="t", txn_app_id="app", txn_version=1)
    write(tmp_path, ONE, topic="t", txn_app_id="app", txn_version=1)
    assert [] == values(tmp_path)
    write(tmp_path, ONE, topic="u", txn_app_id="app", txn_version=1)
    assert [b"v"] == values(tmp_path, "u")


def test_a_topic_that_is_left_out_is_not_emptied(tmp_path: Path) -> None:
    """The overwrite was already done, and others may have written since."""
    write(tmp_path, ONE, ONE, txn_app_id="app", txn_version=1)
    write(tmp_path, ONE, txn_app_id="app", txn_version=2, overwrite=True)
    write(tmp_path, ONE)
    write(tmp_path, ONE, txn_app_id="app", txn_version=2, overwrite=True)
    assert [b"v", b"v"] == values(tmp_path)
    write(tmp_path, ONE, topic="u", txn_app_id="app", txn_version=2, overwrite=True)
    assert [b"v"] == values(tmp_path, "u")
    assert [b"v", b"v"] == values(tmp_path)


def test_a_topic_that_is_left_out_beside_another_is_not_emptied(tmp_path: Path) -> None:
    """One commit overwrites both topics."""
    numbered = NumberedWrite("app", 1)
    write(tmp_path, ONE, topic="t", txn_app_id=numbered.app_id, txn_version=numbered.version)
    write(tmp_path, ONE, topic="u")
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig(), numbered=numbered))
    stager = job.stager(0)
    stager.add(to_topics("t", "u").to_batches()[0])
    emptied = [TopicPartition("t", 0), TopicPartition("u", 0)]
    settings = commit.CommitSettings(numbered=numbered, emptied=emptied)
    with hold(str(tmp_path), 0) as held:
        commit.commit_staged(held, job.token, JobExtents([stager.finish()]), settings)
    job.abort()
    logs = [segmentlog.open_log_dir(tmp_path).log(topic, 0) for topic in ("t", "u")]
    assert [(0, 1), (1, 2)] == [(log.log_start_offset, log.log_end_offset) for log in logs]


def test_the_versions_of_a_topic_that_a_broker_has_deleted(tmp_path: Path) -> None:
    """They do not count for the next topic of its name, also in a mirror; others do."""
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    for topic in "tu":
        write(logs, ONE, topic=topic, txn_app_id="app", txn_version=5)
    segmentlog.mirror(logs, to=copy)
    take_out(str(logs), "t", keeps_settings=True)
    for version in (3, 5, 5):
        write(logs, to_topics("t", "u"), topic=None, txn_app_id="app", txn_version=version)
    assert [2, 1] == n_rows(logs, "t", "u")

    take_out(str(copy), "t", keeps_settings=True)
    write(copy, ONE, topic="t")
    state, now = State.read(str(copy)), State.read(str(logs))
    merged = state.with_writes_of(now, {"t", "u"}, lambda *_: True, [])
    assert [5, 5] == [merged.versions["app", topic][0] for topic in "tu"]
    assert state.topic_ids == merged.topic_ids != now.topic_ids


def test_a_version_does_not_count_in_an_empty_log_without_an_id(tmp_path: Path) -> None:
    """A broker has deleted the topic, and a new one was not made in full, on a full disk."""
    for _ in range(2):
        write(tmp_path, ONE, txn_app_id="app", txn_version=3)
    assert [1] == n_rows(tmp_path, "t")
    take_out(str(tmp_path), "t", keeps_settings=True)
    partition = tmp_path / "t-0"
    partition.mkdir()
    (partition / f"{0:020d}.log").touch()
    checkpoint = tmp_path / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 0\n")
    for _ in range(2):
        write(tmp_path, ONE, txn_app_id="app", txn_version=3)
    assert [1] == n_rows(tmp_path, "t")


def test_a_version_is_forgotten_30_days_after_its_last_commit(
    tmp_path: Path, clock: Clock
) -> None:
    """The next commit of any job forgets it. Versions in use stay."""
    write(tmp_path, ONE, txn_app_id="old", txn_version=1)
    write(tmp_path, ONE, topic="u", txn_app_id="old", txn_version=1)
    for version in range(3):
        write(tmp_path, ONE, txn_app_id="daily", txn_version=version)
        write(tmp_path, ONE, topic="u", txn_app_id="old", txn_version=2 + version)
        clock.advance(days=14)
    assert {("old", "t"), ("old", "u"), ("daily", "t")} == set(State.read(str(tmp_path)).versions)
    write(tmp_path, ONE)
    assert {("old", "u"), ("daily", "t")} == set(State.read(str(tmp_path)).versions)
    before = len(values(tmp_path))
    write(tmp_path, ONE, txn_app_id="old", txn_version=1)
    write(tmp_path, ONE, txn_app_id="daily", txn_version=2)
    assert before + 1 == len(values(tmp_path))


@pytest.mark.parametrize("years", [1, -1, 8000, -56])
def test_a_clock_that_was_wrong_for_some_commits(tmp_path: Path, clock: Clock, years: int) -> None:
    """No version is forgotten, and none is kept for ever."""
    write(tmp_path, ONE, txn_app_id="before", txn_version=1)
    real, clock.ahead = clock.ahead, years * 365.0 * DAY
    for version in range(3):
        write(tmp_path, ONE, txn_app_id="meanwhile", txn_version=version)
    clock.ahead = real
    for version in range(3):
        write(tmp_path, ONE, txn_app_id="after", txn_version=version)
    assert {"before", "meanwhile", "after"} == names(tmp_path)
    for app_id in ("before", "meanwhile"):
        write(tmp_path, ONE, txn_app_id=app_id, txn_version=1)
    assert 7 == len(values(tmp_path))
    for _ in range(4):
        clock.advance(days=20)
        write(tmp_path, ONE, txn_app_id="still", txn_version=int(clock.ahead))
    assert {"still"} == names(tmp_path)


def test_versions_keep_their_age_where_the_clock_jumps_forward(
    tmp_path: Path, clock: Clock
) -> None:
    """The clock was years late. The jump does not count, and the days before it do."""
    write(tmp_path, ONE, txn_app_id="app", txn_version=1)
    for days in (20, 20_000, 9):
        clock.advance(days=days)
        write(tmp_path, ONE)
        assert {"app"} == names(tmp_path)
    clock.advance(days=2)
    write(tmp_path, ONE)
    assert set() == names(tmp_path)


def test_a_version_from_the_future_is_as_one_of_now(tmp_path: Path, clock: Clock) -> None:
    """The version is forgotten 30 days later."""
    write(tmp_path, ONE, txn_app_id="app", txn_version=1)
    columns: dict[str, Any] = json.loads((tmp_path / STATE_FILE).read_text())["versions"]
    rewrite_state(tmp_path, versions={**columns, "time_ms": [2**62]})
    for _ in range(3):
        write(tmp_path, ONE)
        assert {"app"} == names(tmp_path)
        clock.advance(days=11)
    write(tmp_path, ONE)
    assert set() == names(tmp_path)


COLUMNS = {"app_id": ["a"], "topic": ["t"], "version": [1], "time_ms": [1]}


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 3},
        {"format": 0},
        {"format": True},
        {"format": 2.0},
        {"format": None},
        {"format": [2]},
        {"sequence": "1"},
        {"sequence": None},
        {"token": 1},
        {"token": ["x"]},
        {"time_ms": 1.5},
        {"time_ms": None},
        {"versions": None},
        {"versions": []},
        {"versions": {}},
        {"versions": {"app": 1}},
        {"versions": {**COLUMNS, "app_id": [1]}},
        {"versions": {**COLUMNS, "topic": [None]}},
        {"versions": {**COLUMNS, "topic": [["t"]]}},
        {"versions": {**COLUMNS, "version": ["1"]}},
        {"versions": {**COLUMNS, "version": [True]}},
        {"versions": {**COLUMNS, "version": [1.0]}},
        {"versions": {**COLUMNS, "version": [{"a": [1]}]}},
        {"versions": {**COLUMNS, "time_ms": [None]}},
        {"versions": {**COLUMNS, "time_ms": [1, 2]}},
        {"versions": {**COLUMNS, "time_ms": []}},
        {"versions": {**COLUMNS, "app_id": ["a", "b"]}},
        {"versions": {**COLUMNS, "version": "1"}},
        {"versions": {**COLUMNS, "version": {"1": 1}}},
        {"versions": {**COLUMNS, "version": 1}},
        {"aside": None},
        {"aside": 7},
        {"aside": "t"},
        {"aside": {"t": 1}},
        {"aside": [7]},
        {"aside": [["t"]]},
        {"deleted": None},
        {"deleted": [["t", "token"]]},
        {"topic_ids": ["t"]},
        {"topic_ids": {"t": 1}},
    ],
    ids=lambda fields: json.dumps(fields).replace(" ", ""),
)
def test_a_state_that_nobody_has_written(tmp_path: Path, fields: dict[str, object]) -> None:
    """The state is refused, and nothing is written."""
    write(tmp_path, ONE, txn_app_id="app", txn_version=1)
    rewrite_state(tmp_path, **fields)
    before = (tmp_path / STATE_FILE).read_bytes()
    with pytest.raises(CorruptCheckpointError, match=r"segmentlog\.state"):
        write(tmp_path, ONE, txn_app_id="app", txn_version=2)
    assert before == (tmp_path / STATE_FILE).read_bytes()


def test_a_state_of_nothing_but_brackets(tmp_path: Path) -> None:
    """Any depth and any numbers are refused."""
    write(tmp_path, ONE)
    for data in (b"[" * 100_000, b"{" * 9, b"7" * 9_999, b"null", b"[]", b"\xff\xfe", b"\0", b""):
        (tmp_path / STATE_FILE).write_bytes(data)
        with pytest.raises(CorruptCheckpointError):
            State.read(str(tmp_path))


def test_the_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Names with unprintable characters come back, too."""
    versions = {("a", "t"): (0, 1), ("a", "u"): (2**63 - 1, -5), ('\ud800\n"', ""): (1, 2**60)}
    deleted = (Deletion("u", "token", 7),)
    streams = {"query": (CommittedBatch(3, "run", 9), 5)}
    ids = {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}
    state = State(7, "token", LATER, versions, ["t"], deleted, streams, topic_ids=ids)
    (tmp_path / STATE_FILE).write_bytes(state.encode())
    assert state == State.read(str(tmp_path))
    empty = State(1, "token", LATER, aside=[])
    (tmp_path / STATE_FILE).write_bytes(empty.encode())
    assert empty == State.read(str(tmp_path))
