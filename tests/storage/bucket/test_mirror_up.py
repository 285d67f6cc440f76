"""Log directories mirrored into a log in an object store, and back."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from faulty_store import FaultyClient, MemoryStore, client_at

import segmentlog
from segmentlog.bucket import sequence
from segmentlog.bucket.checkpoint_objects import HINT, checkpoint_key
from segmentlog.bucket.checkpoints import decode_checkpoint, encode_checkpoint
from segmentlog.bucket.data_objects import Upload
from segmentlog.bucket.disk import bucket_disk
from segmentlog.bucket.growing import Growing
from segmentlog.bucket.objects import ObstoreObjects
from segmentlog.bucket.sequence import commit_key, sequence_at
from segmentlog.bucket.upkeep import sweep_objects
from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.reads.scan import scan_slice
from segmentlog.store.paths import bucket_at
from segmentlog.txn.state import State, StreamBatch
from segmentlog.writes.config import WriteRequest
from segmentlog.writes.job import WriteJob

_GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"bucket+file://{tmp_path}/bucket"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    return directory


def _write(path: str | Path, values: list[str], **options) -> None:
    with segmentlog.open_writer(path, "orders", **options) as writer:
        writer.append(pa.table({"key": values, "value": values}))


def _copied(source: str | Path, to: str | Path, **options) -> list[int]:
    return [each.n_copied for each in segmentlog.mirror(source, to=to, **options)]


def _equal(left: str | Path, right: str | Path) -> bool:
    return {each.comparison for each in segmentlog.compare(left, right)} == {"equal"}


def _rows(path: str | Path, topic: str, **options) -> pa.Table:
    found = segmentlog.read(path, topic, **options)
    return found.sort_by([("partition", "ascending"), ("offset", "ascending")])


@pytest.mark.parametrize("version", ["2.8.2", "4.3.1"])
def test_what_brokers_have_written_comes_back(version: str, url: str, tmp_path: Path) -> None:
    """Magic 0 to 2, every codec, compaction, transactions, moved log starts."""
    source, back = _GOLDEN / f"kafka-{version}", tmp_path / "back"
    assert sum(_copied(source, url)) > 0
    assert _equal(source, url)
    assert sum(_copied(source, url)) == 0
    segmentlog.mirror(url, to=back)
    assert _equal(source, back)
    opened = segmentlog.open_log_dir(source)
    for topic, partition in opened.topic_partitions():
        name, log = f"{topic}-{partition}", opened.log(topic, partition)
        copy = segmentlog.open_log_dir(url).log(topic, partition)
        assert copy.topic_id == log.topic_id or log.topic_id is None
        assert (copy.log_start_offset, copy.log_end_offset) == (
            log.log_start_offset,
            log.log_end_offset,
        )
        assert copy.open_transactions() == log.open_transactions()
        for file in (source / name).glob("*.txnindex"):
            assert file.read_bytes() == (back / name / file.name).read_bytes()
    for topic in ("transactions", "compacted-transactions") if version == "4.3.1" else ():
        rows = _rows(source, topic, isolation_level="read_committed")
        assert rows.equals(_rows(url, topic, isolation_level="read_committed"))
        name = f"{topic}-0"
        epochs = "leader-epoch-checkpoint"
        assert (source / name / epochs).read_bytes() == (back / name / epochs).read_bytes()
    for path in (url, back):
        assert {each.severity for each in segmentlog.verify(path)} <= {"note"}


def test_only_what_is_new_moves(source: Path, url: str, monkeypatch) -> None:
    _write(source, [f"a{i}" for i in range(500)], num_partitions=2)
    planned = _copied(source, url, dry_run=True)
    assert planned == _copied(source, url)
    _write(source, ["b"])
    location = bucket_at(url)
    assert location is not None
    sequence_at(location).objects.delete(["segmentlog/mirrored.json"])  # a hint, nothing else
    read: list[str] = []
    real = ObstoreObjects.read

    def noted(self: ObstoreObjects, key: str, start: int, n_bytes: int) -> bytes:
        read.append(key)
        return real(self, key, start, n_bytes)

    monkeypatch.setattr(ObstoreObjects, "read", noted)
    again = _copied(source, url)
    assert sorted(bool(each) for each in again) == [False, True]
    assert sum(again) < 200
    assert read == []  # nothing is downloaded
    assert _equal(source, url)


def test_nothing_above_the_high_watermark_moves(source: Path, url: str) -> None:
    """A broker on the source may still lose what is not replicated."""
    for value in "abc":
        _write(source, [value])
    checkpoint = source / "replication-offset-checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("orders 0 3", "orders 0 2"))
    segmentlog.mirror(source, to=url)
    assert _rows(url, "orders")["value"].to_pylist() == [b"a", b"b"]
    checkpoint.write_text(checkpoint.read_text().replace("orders 0 2", "orders 0 3"))
    segmentlog.mirror(source, to=url)
    assert _rows(url, "orders")["value"].to_pylist() == [b"a", b"b", b"c"]


def test_compaction_and_retention_are_followed(source: Path, url: str, tmp_path: Path) -> None:
    for number in range(4):
        _write(source, [f"k{i}" for i in range(20)], config=segmentlog.ProducerConfig())
        if number == 1:
            segmentlog.mirror(source, to=url)
    segmentlog.mirror(source, to=url)
    settings = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0"}
    before = _rows(source, "orders").num_rows
    segmentlog.compact(source, settings=settings, roll=True)
    assert _rows(source, "orders").num_rows < before
    (mirrored,) = segmentlog.mirror(source, to=url)
    assert mirrored.n_copied > 0
    assert mirrored.n_put_aside > 0
    assert _equal(source, url)
    segmentlog.delete_records(source, "orders", 0, offset=70)
    segmentlog.mirror(source, to=url)
    assert _equal(source, url)
    assert segmentlog.open_log_dir(url).log("orders", 0).log_start_offset == 70
    assert len(segmentlog.sweep(url, longest_read_days=0).keys) > 0
    segmentlog.mirror(url, to=tmp_path / "back")
    assert _equal(source, tmp_path / "back")


def _with_secrets(url: str, n_partitions: int, n_writes: int) -> None:
    """Writes whose objects each have records of all partitions, and those of a second topic."""
    for number in range(n_writes):
        values = [f"{number}-{i}" for i in range(4 * n_partitions)]
        places = [i % n_partitions for i in range(len(values))]
        keys = [f"alice{number}" if i == n_partitions else each for i, each in enumerate(values)]
        values[n_partitions] = f"SECRET{number}"
        rows = {"key": keys, "value": values, "partition": pa.array(places, pa.int32())}
        with segmentlog.open_writer(url, "orders", num_partitions=n_partitions) as writer:
            writer.append(pa.table(rows))


def _holding(place: Path, what: bytes) -> set[str]:
    files = place.glob("data/*/*.batches")
    return {str(each.relative_to(place)) for each in files if what in each.read_bytes()}


@pytest.mark.parametrize("erased", [["alice0"], ["alice1"], ["alice0", "alice2"]])
@pytest.mark.parametrize("topic_only", [False, True])
def test_erased_records_are_gone_with_the_next_sweep(
    erased: list[str], url: str, tmp_path: Path, *, topic_only: bool
) -> None:
    """Whatever else was in their objects, of other partitions and other topics, moves."""
    config = segmentlog.ProducerConfig(codec=segmentlog.Codec.NONE)
    other = tmp_path / "other"
    other.mkdir()
    _with_secrets(str(other), 3, 4)
    with segmentlog.open_writer(str(other), "clicks", config=config) as writer:
        writer.append(pa.table({"value": ["c"] * 50}))
    segmentlog.mirror(other, to=url)  # one object with the extents of both topics
    before = _rows(url, "orders"), _rows(url, "clicks")
    segmentlog.mirror(url, to=tmp_path / "directory")
    segmentlog.erase(tmp_path / "directory", erased, topics=["orders"], purge=True)
    topics = ["orders"] if topic_only else []
    segmentlog.mirror(tmp_path / "directory", to=url, topics=topics)
    place = tmp_path / "bucket"
    secrets = {name.replace("alice", "SECRET").encode() for name in erased}
    held = {key for each in secrets for key in _holding(place, each)}
    assert held  # readers may still need them
    first = segmentlog.sweep(url)
    assert (first.keys, {*first.kept} >= held) == ((), True)
    swept = segmentlog.sweep(url, longest_read_days=0)
    assert held <= {*swept.keys}
    assert swept.kept == ()
    assert not {key for each in secrets for key in _holding(place, each)}
    assert segmentlog.verify(url, shallow=False) is not None
    assert [*segmentlog.verify(url)] == []
    after = _rows(url, "orders"), _rows(url, "clicks")
    names = [name.encode() for name in erased]
    left = before[0].filter(pc.invert(pc.is_in(before[0]["key"], pa.array(names, pa.binary()))))
    assert after == (left, before[1])
    assert _equal(tmp_path / "directory", url)


def test_a_process_that_knows_an_older_commit_looks_for_newer_ones(
    url: str, tmp_path: Path
) -> None:
    """A driver has planned by a commit that exchanged extents; its worker knows the one before."""
    _with_secrets(url, 1, 3)
    segmentlog.mirror(url, to=tmp_path / "directory")
    disk = bucket_disk(segmentlog.open_log_dir(url).paths[0])
    older = disk.state
    segmentlog.erase(tmp_path / "directory", ["alice1"], topics=["orders"], purge=True)
    segmentlog.mirror(tmp_path / "directory", to=url)
    segmentlog.sweep(url, longest_read_days=0)
    log = segmentlog.open_log_dir(url).log("orders", 0)
    slices = log.slices(0, log.end_offset())
    disk._state = older
    batches = [batch for each in slices for batch in scan_slice(each, columns=["value"])]
    found = [value for batch in batches for value in batch["value"].to_pylist()]
    assert b"SECRET1" not in found
    assert len(found) == 11


def test_what_is_appended_while_objects_are_written_again(
    url: str, tmp_path: Path, monkeypatch
) -> None:
    _with_secrets(url, 2, 3)
    segmentlog.mirror(url, to=tmp_path / "directory")
    segmentlog.erase(tmp_path / "directory", ["alice1"], topics=["orders"], purge=True)
    finish = Upload.finish

    def with_others(self: Upload) -> None:
        finish(self)
        with segmentlog.open_writer(url, "others") as writer:
            writer.append(pa.table({"value": ["meanwhile"]}))

    monkeypatch.setattr(Upload, "finish", with_others)
    segmentlog.mirror(tmp_path / "directory", to=url)
    segmentlog.sweep(url, longest_read_days=0, longest_job_days=0)
    assert not _holding(tmp_path / "bucket", b"SECRET1")
    assert _holding(tmp_path / "bucket", b"SECRET2")
    assert [*segmentlog.verify(url)] == []
    assert _rows(url, "others")["value"].to_pylist() == [b"meanwhile"]
    assert _rows(url, "orders").num_rows == 23


def test_numbered_writes_come_over(source: Path, url: str, tmp_path: Path) -> None:
    _write(source, ["a"], txn_app_id="load", txn_version=3)
    segmentlog.mirror(source, to=url)
    segmentlog.mirror(url, to=tmp_path / "back")
    _write(tmp_path / "back", ["a"], txn_app_id="load", txn_version=3)
    assert _rows(tmp_path / "back", "orders").num_rows == 1


def _batch(path: str | Path, topic: str) -> bool:
    """Write the first batch of a query; whether it is new."""
    request = WriteRequest(str(path), topic=topic, stream="/checkpoint", num_partitions=1)
    job = WriteJob.begin(request)
    stager = job.stager(0)
    stager.add(pa.record_batch({"value": ["x"]}))
    return job.commit([stager.finish()], batch=StreamBatch("query", 0, "run")).is_new


def _numbered(path: str | Path, version: int) -> None:
    """A numbered write to the second of two partitions."""
    rows = pa.table({"value": ["y"], "partition": pa.array([1], pa.int32())})
    with segmentlog.open_writer(
        path, "u", num_partitions=2, txn_app_id="app", txn_version=version
    ) as writer:
        writer.append(rows)


def _forget_spans(url: str) -> None:
    """Write a checkpoint as versions of segmentlog did that noted no offsets of writes."""
    objects, state = sequence_at(bucket_at(url)).objects, sequence_at(bucket_at(url)).refresh()
    data = encode_checkpoint(replace(state, spans=Growing()))
    objects.put(checkpoint_key(state.number), [data])
    digest = blake2b(data, digest_size=16).hexdigest()
    hint = {"checkpoint": state.number, "digest": digest, "log": state.log_id}
    objects.put(HINT, [json.dumps(hint).encode()])


def test_writes_of_what_is_not_mirrored_do_not_count(url: str, tmp_path: Path) -> None:
    """A place that has got another topic, or another partition, gets their records once."""
    _batch(url, "t")
    rows = pa.table({"value": ["y"], "partition": pa.array([1], pa.int32())})
    with segmentlog.open_writer(
        url, "orders", num_partitions=2, txn_app_id="app", txn_version=4
    ) as writer:
        writer.append(rows)
    for topics, partitions, counts in ((("orders",), (0,), 0), (("orders",), (), 1), ((), (), 2)):
        to = tmp_path / f"to{counts}"
        segmentlog.mirror(url, to=to, topics=topics, partitions=partitions)
        state = State.read(str(to))
        assert counts == len(state.versions) + len(state.streams)
        assert _batch(to, "t") == (counts < 2)
        assert segmentlog.read(to, "t")["value"].to_pylist() == [b"x"]


def test_a_write_does_not_count_once_a_partition_comes_without_its_records(
    source: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A numbered write, and a batch of a query, to the partitions of two topics."""
    older = tmp_path / "older"
    rows = pa.table({"value": ["a", "b"], "partition": pa.array([0, 1], pa.int32())})

    def write(place: str | Path) -> None:
        with segmentlog.open_writer(place, "orders", txn_app_id="app", txn_version=0) as writer:
            writer.append(rows)
        request = WriteRequest(str(place), topic="orders", stream="/checkpoint")
        job = WriteJob.begin(request)
        stager = job.stager(0)
        stager.add(rows.to_batches()[0])
        job.commit([stager.finish()], batch=StreamBatch("query", 5, "run"))

    with segmentlog.open_writer(source, "orders", num_partitions=2) as writer:
        writer.append(rows)
    shutil.copytree(source, older)
    write(source)
    segmentlog.mirror(source, to=url, partitions=[0])
    segmentlog.mirror(older, to=url, partitions=[1])
    monkeypatch.setattr(sequence, "_sequences", {})
    state = sequence_at(bucket_at(url)).refresh()
    assert not dict(state.versions) | state.streams | dict(state.spans)
    data = encode_checkpoint(state)
    assert encode_checkpoint(decode_checkpoint(data, url)) == data

    segmentlog.mirror(source, to=url)
    state = sequence_at(bucket_at(url)).refresh()
    assert len(state.versions) == len(state.streams) == 1
    write(url)
    assert segmentlog.read(url, "orders").num_rows == 6


@pytest.mark.parametrize("case", ["written", "joined", "mirrored up", "of an earlier version"])
def test_writes_do_not_count_without_their_records_whatever_became_of_their_objects(
    case: str, source: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(source) if case == "mirrored up" else url
    _write(place, ["a"])
    for _ in range(2):
        _numbered(place, 2)
        _batch(place, "t")
        with segmentlog.open_writer(place, "t") as writer:
            writer.append(pa.table({"value": ["y"]}))
    if case == "joined":
        segmentlog.compact(url)
    elif case == "mirrored up":
        segmentlog.mirror(source, to=url)
    elif case == "of an earlier version":
        _forget_spans(url)
        monkeypatch.setattr(sequence, "_sequences", {})
    one, half, whole = tmp_path / "one", tmp_path / "half", tmp_path / "whole"
    segmentlog.mirror(url, to=one, topics=["orders"])
    assert _batch(one, "t")
    segmentlog.mirror(url, to=half, topics=["u"], partitions=[0])
    assert not State.read(str(half)).versions
    segmentlog.mirror(url, to=whole)
    assert not _batch(whole, "t")
    _numbered(whole, 2)
    assert segmentlog.read(whole, "u").num_rows == 1
    state = sequence_at(bucket_at(url)).refresh()
    assert decode_checkpoint(encode_checkpoint(state), url).last_spans() == state.last_spans()
    assert [*segmentlog.verify(url)] == []


@pytest.mark.parametrize("case", ["truncated", "other records", "another topic", "written to"])
def test_a_source_that_diverges_is_refused(case: str, source: Path, url: str) -> None:
    _write(source, ["a"])
    _write(source, ["b"])
    segmentlog.mirror(source, to=url)
    match = "truncated"
    if case == "another topic":
        match = "created again"
        segmentlog.delete_topic(source, "orders")
        _write(source, ["a", "b"])
    elif case == "written to":
        _write(url, ["c"])
    else:
        metadata = (source / "orders-0/partition.metadata").read_bytes()
        shutil.rmtree(source)
        source.mkdir()
        _write(source, ["a", "x"] if case == "other records" else ["a"])
        (source / "orders-0/partition.metadata").write_bytes(metadata)
    rows = _rows(url, "orders")
    with pytest.raises(LogDirectoryError, match=match):
        segmentlog.mirror(source, to=url)
    assert rows.equals(_rows(url, "orders"))


def test_leader_epochs_are_not_broken(url: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(_GOLDEN / "kafka-4.3.1", source)
    epochs = source / "codec-none-0/leader-epoch-checkpoint"
    epochs.write_text(epochs.read_text() + "5 40\n")
    epochs.write_text(epochs.read_text().replace("0\n1\n", "0\n2\n", 1))
    log = next((source / "codec-none-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[12:16] = (5).to_bytes(4, "big")
    log.write_bytes(data)
    epochs.write_text("0\n1\n5 0\n")
    segmentlog.mirror(source, to=url, topics=["codec-none"])
    with (
        pytest.raises(LogDirectoryError, match="leader epochs"),
        segmentlog.open_writer(url, "codec-none") as writer,
    ):
        writer.append(pa.table({"value": ["a"]}))


def test_a_broker_is_not_assigned_to_a_store(source: Path, url: str) -> None:
    _write(source, ["a"])
    with pytest.raises(OptionError, match="no log directory of a broker"):
        segmentlog.mirror(source, to=url, assigned=True)


def test_a_log_in_a_store_is_compacted_by_way_of_a_directory(url: str, tmp_path: Path) -> None:
    for _ in range(3):
        _write(url, [f"k{i}" for i in range(10)])
    before = {each["offset"]: each for each in _rows(url, "orders").to_pylist()}
    segmentlog.mirror(url, to=tmp_path / "here")
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    segmentlog.compact(tmp_path / "here", settings=settings)
    segmentlog.mirror(tmp_path / "here", to=url)
    rows = _rows(url, "orders").to_pylist()
    assert [each["offset"] for each in rows] == [*range(20, 30)]
    assert rows == [before[each] for each in range(20, 30)]
    _write(url, ["next"])
    assert _rows(url, "orders")["offset"].to_pylist()[-1] == 30
    assert {each.severity for each in segmentlog.verify(url)} <= {"note"}
    assert len(segmentlog.sweep(url, longest_read_days=0).keys) >= 2
    assert _rows(url, "orders").num_rows == 11


def test_nothing_is_asked_once_the_commit_is_there(source: Path) -> None:
    """A later request that fails must not make a mirror fail that has taken place."""
    store = MemoryStore()
    _write(source, ["a"])
    segmentlog.mirror(source, to=client_at(FaultyClient(store)).root)
    assert store.requests[store.requests.index(("create", commit_key(1))) + 1 :] == [
        ("put", "segmentlog/mirrored.json")
    ]


@pytest.mark.parametrize(
    "hint", [b"[", b'{"partitions":[[1]]}', None], ids=["cut", "other", "large"]
)
def test_a_hint_that_makes_no_sense_is_passed_over(
    source: Path, url: str, tmp_path: Path, hint: bytes | None
) -> None:
    _write(source, ["a"])
    _copied(source, url)
    with (tmp_path / "bucket/segmentlog/mirrored.json").open("wb") as file:
        file.write(hint or b"")
        if hint is None:
            file.truncate(1 << 40)
    _write(source, ["b"])
    _copied(source, url)
    assert _equal(source, url)


def _sweep(url: str) -> None:
    location = bucket_at(url)
    assert location is not None
    sweep_objects(location, -1, -1, dry_run=False)


def _another_topic(url: str) -> None:
    """A writer makes the topic, and has no rows for the partition of the mirror."""
    rows = pa.table({"value": ["b"], "partition": pa.array([1], pa.int32())})
    with segmentlog.open_writer(url, "orders", num_partitions=2) as writer:
        writer.append(rows)


@pytest.mark.parametrize(
    ("act", "said"), [(_sweep, "the job has ended"), (_another_topic, "has the id")]
)
def test_what_others_do_between_the_upload_and_the_commit(
    source: Path, url: str, monkeypatch, act: Callable[[str], None], said: str
) -> None:
    """A sweep has removed its objects, or the topic is another one.

    The commit named objects that were gone, or mixed the records of two topics.
    """
    _write(source, ["a"], num_partitions=1)
    finish = Upload.finish

    def overtaken(self: Upload) -> None:
        finish(self)
        act(url)

    with monkeypatch.context() as patch:
        patch.setattr(Upload, "finish", overtaken)
        with pytest.raises(LogDirectoryError, match=said):
            segmentlog.mirror(source, to=url)
    assert segmentlog.verify(url) == []
    if act is _sweep:
        _copied(source, url)
        assert _equal(source, url)


def test_a_log_begins_where_its_source_does_although_compaction_has_left_nothing_there(
    source: Path, url: str, tmp_path: Path
) -> None:
    """In the store, on the way back, and once more up; a group goes on at its old offset."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    back, again = tmp_path / "back", f"{url}-2"
    _write(source, [f"k{i % 5}" for i in range(30)])
    segmentlog.mirror(source, to=url)
    _write(source, [f"k{i % 5}" for i in range(30)])
    segmentlog.compact(source, "orders", settings=settings, roll=True, purge=True)
    segmentlog.mirror(source, to=url)
    segmentlog.mirror(url, to=back)
    segmentlog.mirror(back, to=again)
    for path in (source, url, back, again):
        log = segmentlog.open_log_dir(path).log("orders", 0)
        assert (0, 60) == (log.log_start_offset, log.log_end_offset), path
        assert 5 == log.scan(start_offset=10).read_all().num_rows, path
        assert {each.severity for each in segmentlog.verify(path)} <= {"note"}, path
        assert _equal(source, path)
    assert [0] == _copied(source, url)
    _write(source, ["new"])
    for left, right in ((source, url), (url, back), (back, again)):
        segmentlog.mirror(left, to=right)
    assert _equal(source, again)
