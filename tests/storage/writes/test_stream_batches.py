"""Batches of streams: each is committed once, and only by the last run of its query."""

from pathlib import Path

import pyarrow as pa
import pytest
from crashing import Forward, around_calls
from plain_writes import ONE, values, write
from soundness import assert_tidy

from segmentlog.errors import LogDirectoryError, StreamBatchError
from segmentlog.txn.state import FORGOTTEN_AFTER_MS, CommittedBatch, State, StreamBatch
from segmentlog.writes.config import WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.job_files import end_stream

CHECKPOINT = "/checkpoints/orders"


def begin(directory: Path, topic: str | None = "t", *, overwrite: bool = False) -> WriteJob:
    """The job of one batch of the stream."""
    request = WriteRequest(str(directory), topic=topic, stream=CHECKPOINT, overwrite=overwrite)
    return WriteJob.begin(request)


def commit(
    job: WriteJob, number: int, *texts: bytes, query: str = "query", run: str = "run"
) -> bool:
    """Stage these values, and commit them as one batch."""
    stager = job.stager(0)
    stager.add(pa.record_batch({"value": pa.array(texts, pa.binary())}))
    return job.commit([stager.finish()], batch=StreamBatch(query, number, run)).is_new


def test_each_batch_is_recorded_with_its_commit(tmp_path: Path) -> None:
    """The record has the batch's number, the id of its run, and its number of records."""
    assert commit(begin(tmp_path), 0, b"a", b"b")
    assert commit(begin(tmp_path), 1, b"c", run="another")
    assert commit(begin(tmp_path), 5, b"d", query="of another query")

    streams = State.read(str(tmp_path)).streams
    assert {name: batch for name, (batch, _) in streams.items()} == {
        "query": CommittedBatch(1, "another", 1),
        "of another query": CommittedBatch(5, "run", 1),
    }
    assert [b"a", b"b", b"c", b"d"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_the_last_batch_is_not_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that dies after the commit leaves a batch that its next run repeats."""
    assert commit(begin(tmp_path), 0, b"a", b"b")
    assert not commit(begin(tmp_path), 0, b"a", b"b", run="next")

    assert [b"a", b"b"] == values(tmp_path)
    assert "batch 0 of query query was committed before" in caplog.text
    assert_tidy(tmp_path)


@pytest.mark.parametrize(
    ("number", "texts", "said"),
    [
        (7, (b"c", b"d"), r"batch 7 of query query has 2 records.*batch 7 .* with 1, by run run"),
        (7, (), r"batch 7 of query query has 0 records.*batch 7 .* with 1, by run run"),
        (6, (b"c",), r"batch 6 of query query has 1 records.*batch 7 .* with 1, by run run"),
        (6, (), r"batch 6 of query query has 0 records"),
    ],
)
def test_a_batch_that_does_not_follow_is_refused(
    tmp_path: Path, number: int, texts: tuple[bytes, ...], said: str
) -> None:
    """A checkpoint that was rolled back would otherwise lose rows in silence."""
    assert commit(begin(tmp_path), 7, b"a")
    job = begin(tmp_path)
    with pytest.raises(StreamBatchError, match=said) as caught:
        commit(job, number, *texts, run="next")
    job.abort()

    assert "new checkpointLocation" in str(caught.value)
    assert (number, 7) == (caught.value.number, caught.value.last_number)
    assert [b"a"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_run_that_begins_fences_the_run_before(tmp_path: Path) -> None:
    """A killed driver leaves Python workers, which may commit seconds later."""
    late = begin(tmp_path)
    stager = late.stager(0)
    stager.add(pa.record_batch({"value": [b"late"]}))
    extents = stager.finish()
    job = begin(tmp_path)
    assert [job.files.mark] == list(tmp_path.glob("segmentlog.*")), "staged files of the run stay"

    with pytest.raises(LogDirectoryError, match="a later batch or run of its query has begun"):
        late.commit([extents], batch=StreamBatch("query", 0, "late"))
    late.abort()
    assert commit(job, 0, b"a", b"b", run="next")
    assert [b"a", b"b"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_other_jobs_are_left_alone(tmp_path: Path) -> None:
    """The jobs of other streams, and those of no stream, continue."""
    of_no_stream = WriteJob.begin(WriteRequest(str(tmp_path), topic="t"))
    of_another = WriteJob.begin(WriteRequest(str(tmp_path), topic="t", stream="/checkpoints/b"))
    commit(begin(tmp_path), 0, b"a")
    end_stream(str(tmp_path), CHECKPOINT)

    assert commit(of_another, 0, b"b", query="b")
    of_no_stream.check_begun()
    of_no_stream.abort()
    assert [b"a", b"b"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_a_stream_that_is_aborted_leaves_nothing(tmp_path: Path) -> None:
    """Nobody may know the token of its job, because no task has sent a message."""
    commit(begin(tmp_path), 0, b"a")
    begin(tmp_path).stager(0).add(pa.record_batch({"value": [b"lost"]}))
    end_stream(str(tmp_path), CHECKPOINT)

    assert_tidy(tmp_path)


def test_an_empty_batch_costs_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes nothing, and is not recorded: neither it nor a repetition would change a log."""
    commit(begin(tmp_path), 0, b"a")
    before = State.read(str(tmp_path))
    syncs: list[str] = []

    def noted(name: str, forward: Forward) -> object:
        syncs.append(name)
        return forward()

    around_calls(monkeypatch, ["fsync", "fdatasync"], noted)
    commit(begin(tmp_path), 1)

    assert [] == syncs
    assert before == State.read(str(tmp_path))
    commit(begin(tmp_path), 2, b"b")
    assert syncs
    assert [b"a", b"b"] == values(tmp_path)
    assert_tidy(tmp_path)


def test_an_empty_batch_that_overwrites_is_committed(tmp_path: Path) -> None:
    """The last result of a query in complete mode may be no row at all."""
    commit(begin(tmp_path, overwrite=True), 0, b"a")
    assert commit(begin(tmp_path, overwrite=True), 1)
    assert not commit(begin(tmp_path, overwrite=True), 1)

    assert [] == values(tmp_path)
    assert CommittedBatch(1, "run", 0) == State.read(str(tmp_path)).streams["query"][0]


def test_a_batch_goes_to_several_topics_at_once(tmp_path: Path) -> None:
    """It is recorded for the query, and not for each topic: the next may go to other topics."""
    rows = pa.record_batch({"topic": ["a", "b"], "value": [b"1", b"2"]})
    for run in ("run", "next"):
        job = begin(tmp_path, None)
        stager = job.stager(0)
        stager.add(rows)
        committed = job.commit([stager.finish()], batch=StreamBatch("q", 0, run))
        assert (run == "run") == committed.is_new

    assert [b"1"] == values(tmp_path, "a")
    assert [b"2"] == values(tmp_path, "b")


def test_a_stream_is_forgotten_after_a_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions of numbered writes are, too, so that the state does not grow for ever."""
    commit(begin(tmp_path), 0, b"a")
    now = State.read(str(tmp_path)).time_ms
    for share, is_known in ((0.9, True), (1.1, False)):
        later = (now + share * FORGOTTEN_AFTER_MS) / 1000
        monkeypatch.setattr("time.time", lambda later=later: later)
        write(tmp_path, ONE)
        assert is_known == ("query" in State.read(str(tmp_path)).streams)


def test_a_query_that_the_log_has_forgotten_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its batch may be there already; the first batch of a query cannot be."""
    assert commit(begin(tmp_path), 0, b"a")
    assert commit(begin(tmp_path), 1, b"b")
    assert "no earlier batch" not in caplog.text
    assert commit(begin(tmp_path), 7, b"c", query="forgotten")
    assert "query forgotten continues with batch 7, and no earlier batch" in caplog.text
