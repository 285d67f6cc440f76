"""Damaged and hostile objects of logs in object stores, and what deleted topics leave there."""

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import segmentlog
from segmentlog.bucket import checkpoint_objects, checkpoints, sequence, upkeep
from segmentlog.bucket.checkpoint_objects import checkpoint_key
from segmentlog.bucket.sequence import Sequence, commit_key, sequence_at
from segmentlog.errors import (
    CorruptCheckpointError,
    LogChangedError,
    LogDirectoryError,
    RemoteSegmentError,
    SegmentLogError,
    StorageError,
)
from segmentlog.masking import with_plain_buckets
from segmentlog.store.paths import bucket_at


def _write(url: str, values: list[str], **options: Any) -> None:
    with segmentlog.open_writer(url, "orders", **options) as writer:
        writer.append(pa.table({"key": values, "value": values}))


def _in_extents(name: str, value: object) -> Callable[[Any], None]:
    def change(commit: Any) -> None:
        commit["extents"][name][0] = value

    return change


def _with(name: str, value: object) -> Callable[[Any], None]:
    def change(commit: Any) -> None:
        commit[name] = value

    return change


HOSTILE = {
    "beyond a long": _in_extents("base_offset", 2**70),
    "a float": _in_extents("base_offset", 2.0),
    "a bool": _in_extents("base_offset", True),
    "a negative offset": _in_extents("base_offset", -5),
    "offsets that the log has": _in_extents("base_offset", 0),
    "a negative size": _in_extents("size", -5),
    "an unknown partition": _in_extents("partition", 9),
    "a text": _in_extents("partition", "0"),
    "no such object": _in_extents("object", -1),
    "an end before the base": _in_extents("end_offset", 1),
    "too many records": _in_extents("n_records", 10**12),
    "another shift": _in_extents("shift", -(10**12)),
    "a key outside": _with("objects", ["../../other"]),
    "an absolute key": _with("objects", ["/etc/hostname"]),
    "a key that is a number": _with("objects", [5]),
    "a time beyond a long": _with("time_ms", 2**70),
    "a topic's name outside": _with("created", [["../x", "A" * 22, 1]]),
    "negative partitions": _with("created", [["x", "A" * 22, -1]]),
    "too many partitions": _with("created", [["x", "A" * 22, 2**40]]),
    "a start of nothing": _with("starts", [["nowhere", 0, 5]]),
    "a negative start": _with("starts", [["orders", 0, -5]]),
    "a start beyond the end": _with("starts", [["orders", 0, 99]]),
    "deleted as a text": _with("deleted", "orders"),
    "retired as a number": _with("retired", 5),
    "a version of texts": _with("version", ["a", "b", ["orders"]]),
    "a batch of texts": _with("batch", ["a", "b", "c", "d"]),
    "a token that is none": _with("token", None),
    "settings that are a list": _with("settings", []),
    "settings of a topic that are a text": _with("settings", {"orders": "retention.ms"}),
    "a setting that is a number": _with("settings", {"orders": {"retention.ms": 5}}),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_commit_is_a_typed_error(tmp_path: Path, change: Callable[[Any], None]) -> None:
    """Whatever a commit says, no row of it is wrong, and nothing outside is read."""
    url = f"bucket+file://{tmp_path}/log"
    _write(url, ["a", "b"])
    _write(url, ["c"])
    path = tmp_path / "log" / commit_key(2)
    commit = json.loads(path.read_text())
    change(commit)
    path.write_text(json.dumps(commit))
    location = bucket_at(url)
    assert location is not None
    with pytest.raises(CorruptCheckpointError, match=r"00000002\.json"):
        Sequence(sequence_at(location).objects, location).refresh()


@pytest.mark.parametrize("name", ["checkpoint", "hint"])
def test_a_damaged_checkpoint_or_hint_costs_time_only(tmp_path: Path, name: str) -> None:
    """Arrow has no checksums: of 220 flipped bits, 53 gave other offsets, and one a crash."""
    url = f"bucket+file://{tmp_path}/log"
    for number in range(33):
        _write(url, [str(number)])
    location = bucket_at(url)
    assert location is not None
    objects = sequence_at(location).objects
    good = checkpoints.encode_checkpoint(Sequence(objects, location).refresh())
    key = checkpoint_key(32) if name == "checkpoint" else "segmentlog/newest.json"
    path = tmp_path / "log" / key
    data = path.read_bytes()
    damages = [data[:n] for n in (0, 10, len(data) - 5)]
    damages += [
        data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        for at in range(3, len(data), max(len(data) // 40, 1))
    ]
    if name == "hint":
        damages += [b"[" * 100_000, b'{"checkpoint":' + b"9" * 4000 + b',"digest":""}']
    for damaged in damages:
        path.write_bytes(damaged)
        assert good == checkpoints.encode_checkpoint(Sequence(objects, location).refresh())


_CHECKPOINTS: dict[str, tuple[str, list[object]]] = {
    "a key outside": ("object", ["../../other"]),
    "a log that is none": ("log", [2**40]),
    "a missing number": ("base_offset", [None]),
    "a float": ("size", [1.5]),
    "an end before the base": ("end_offset", [0]),
    "a negative start": ("start", [-(2**62)]),
    "a text that is missing": ("object", [None]),
    "a snapshot that is none": ("", [5, "/etc/hostname", 0, 10]),
    "jobs that are numbers": ("segmentlog ended", [5]),
    "a job without a name": ("segmentlog ended", [None]),
}


@pytest.mark.parametrize("name", _CHECKPOINTS)
def test_a_hostile_checkpoint_is_passed_over(name: str, tmp_path: Path) -> None:
    """One with the right digest: Arrow took such numbers, or ended the process."""
    url = f"bucket+file://{tmp_path}/log"
    for number in range(32):
        _write(url, [str(number)])
    location = bucket_at(url)
    assert location is not None
    objects = sequence_at(location).objects
    good = checkpoints.encode_checkpoint(Sequence(objects, location).refresh())
    data = objects.get(checkpoint_key(32))
    table = pa.ipc.open_file(pa.BufferReader(data[: -checkpoints._SEAL_BYTES])).read_all()
    column, values = _CHECKPOINTS[name]
    metadata = dict(table.schema.metadata)
    if column == "segmentlog ended":
        rows = pa.table({"key": values, "time_ms": [1] * len(values)})
        ended = {column.encode(): checkpoints._file_of(rows)}
        table = table.replace_schema_metadata(metadata | ended)
    elif column:
        at, old = table.schema.get_field_index(column), table[column].to_pylist()
        found = pa.array([*values, *old[1:]])
        found = found.dictionary_encode() if column == "object" else found
        table = table.set_column(at, column, found)
    else:
        about = json.loads(metadata[b"segmentlog"])
        about["logs"][0][5] = values
        more = {b"segmentlog": json.dumps(about).encode()}
        table = table.replace_schema_metadata(metadata | more)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    hostile = sink.getvalue().to_pybytes()
    with pytest.raises(CorruptCheckpointError):
        checkpoints.decode_checkpoint(hostile, "")
    objects.put(checkpoint_key(32), [hostile])
    hint = {"checkpoint": 32, "digest": checkpoint_objects._digest(hostile)}
    objects.put("segmentlog/newest.json", [json.dumps(hint).encode()])
    assert good == checkpoints.encode_checkpoint(Sequence(objects, location).refresh())


def test_a_forked_process_is_told_to_spawn(tmp_path: Path) -> None:
    """The threads of the client do not outlive a fork: a request would never end."""
    url = f"bucket+file://{tmp_path}/log"
    _write(url, ["a"])
    code = (
        "import os, sys, segmentlog\n"
        "segmentlog.read(sys.argv[1], 'orders')\n"
        "child = os.fork()\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "try:\n"
        "    segmentlog.read(sys.argv[1], 'orders')\n"
        "except segmentlog.LogDirectoryError as error:\n"
        "    os._exit(7 if 'forkserver' in str(error) else 8)\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, url], timeout=60, check=False)
    assert done.returncode == 7


def test_a_version_is_forgotten_with_its_rows(url: str) -> None:
    numbered = {"txn_app_id": "load", "txn_version": 0}
    _write(url, ["a"], **numbered)
    _write(url, ["a"], **numbered)
    assert segmentlog.read(url, "orders").num_rows == 1
    segmentlog.delete_topic(url, "orders")
    _write(url, ["a"], **numbered)
    assert segmentlog.read(url, "orders").num_rows == 1


def test_a_reader_notices_a_topic_that_was_made_again(url: str) -> None:
    _write(url, [str(i) for i in range(20)], num_partitions=2)
    opened = segmentlog.open_log_dir(url)
    assert opened.log("orders", 0).end_offset() > 0
    segmentlog.delete_topic(url, "orders")
    _write(url, [f"new-{i}" for i in range(20)], num_partitions=2)
    segmentlog.open_log_dir(url)  # another reader of this process sees the new one
    with pytest.raises((LogChangedError, LogDirectoryError)):
        opened.log("orders", 1).scan().read_all()


def test_a_mirror_keeps_versions_and_refuses_another_topic(url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    _write(url, ["a"], txn_app_id="load", txn_version=0)
    [*segmentlog.mirror(url, to=copy)]
    _write(str(copy), ["a"], txn_app_id="load", txn_version=0)
    assert segmentlog.read(copy, "orders").num_rows == 1
    segmentlog.delete_topic(url, "orders")
    _write(url, ["again"])
    with pytest.raises(LogDirectoryError, match="created again"):
        [*segmentlog.mirror(url, to=copy)]


def test_credentials_are_in_no_message(tmp_path: Path) -> None:
    nobody = "s3://KEY:SECRET@bucket/p?endpoint_override=http://127.0.0.1:9"
    for url in (nobody, "bucket+hdfs://KEY:SECRET@h/p"):
        with pytest.raises(segmentlog.SegmentLogError) as raised:
            segmentlog.sweep(url, dry_run=True)
        assert "SECRET" not in str(raised.value)
        with pytest.raises(segmentlog.SegmentLogError) as raised:
            _write(url, ["a"])
        assert "SECRET" not in str(raised.value)


def test_a_large_commit_is_not_read(tmp_path: Path, monkeypatch) -> None:
    url = f"bucket+file://{tmp_path}/log"
    _write(url, ["a"])
    with (tmp_path / "log" / commit_key(2)).open("wb") as file:
        file.truncate(1 << 40)
    location = bucket_at(url)
    assert location is not None
    with pytest.raises(StorageError, match=r"00000002\.json.*1099511627776 bytes"):
        Sequence(sequence_at(location).objects, location).refresh()
    (tmp_path / "log" / commit_key(2)).unlink()
    monkeypatch.setattr(sequence, "MOST_WHOLE_BYTES", 100)  # nobody could read it
    with pytest.raises(LogDirectoryError, match="fewer partitions"):
        _write(url, ["b"])


def test_a_sweep_asks_the_store_for_the_time(tmp_path: Path, monkeypatch) -> None:
    """A clock that is ten days ahead must not end jobs that have just begun."""
    url = f"bucket+file://{tmp_path}/log"
    _write(url, ["a"])
    writer = segmentlog.open_writer(url, "orders")
    writer.append(pa.table({"value": ["b"]}))
    job, staged = writer._job, writer._stager.finish()
    real = upkeep.time.time
    clock = SimpleNamespace(time=lambda: real() + 10 * 24 * 3600)
    monkeypatch.setattr(upkeep, "time", clock)
    assert segmentlog.sweep(url) == ((), 0, (), ())
    job.commit([staged])
    assert segmentlog.read(url, "orders").num_rows == 2


@pytest.fixture(scope="module")
def log_of_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a checkpoint and three commits after it."""
    log = tmp_path_factory.mktemp("commits") / "log"
    for number in range(35):
        _write(f"bucket+file://{log}", [str(number)])
    return log


@pytest.mark.parametrize("is_hinted", [True, False])
@pytest.mark.parametrize("removed", [[34], [33], [3], [1], [*range(2, 20)], [35], [33, 34, 35]])
def test_a_commit_that_is_missing_before_later_ones(
    log_of_commits: Path, tmp_path: Path, removed: list[int], *, is_hinted: bool
) -> None:
    """Its records and all later ones were left out, and the next writer took its number."""
    log = shutil.copytree(log_of_commits, tmp_path / "log")
    location = bucket_at(f"bucket+file://{log}")
    assert location is not None
    if not is_hinted:
        (log / "segmentlog/newest.json").write_text("{}")
        (log / checkpoint_key(32)).unlink()
    for number in removed:
        (log / commit_key(number)).unlink()
    needed = [*range(33 if is_hinted else 1, 36)]
    fresh = Sequence(sequence_at(location).objects, location)
    is_lost = removed[-1] < 35 and set(removed) & set(needed)
    if is_lost:
        with pytest.raises(CorruptCheckpointError, match="the commit is missing") as failed:
            fresh.refresh()
        assert failed.value.path == f"{location}/{commit_key(removed[0])}"
    else:
        assert fresh.refresh().number == (35 if removed[-1] < 35 else removed[0] - 1)


def test_a_commit_that_comes_while_later_ones_are_asked_for(
    log_of_commits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is there at the second look was no hole."""
    location = bucket_at(f"bucket+file://{log_of_commits}")
    assert location is not None
    objects, late = sequence_at(location).objects, [commit_key(34)]
    get = objects.get
    monkeypatch.setattr(
        objects,
        "get",
        lambda key: late.clear() if key in late else get(key),  # None, once
    )
    assert Sequence(objects, location).refresh().number == 35
    assert not late


_READS: dict[str, Callable[[str], object]] = {
    "read": lambda url: segmentlog.read(url, "orders"),
    "dataset": lambda url: segmentlog.dataset(url, "orders").to_table(),
    "scan": lambda url: segmentlog.open_log_dir(url).log("orders", 0).scan().read_all(),
    "look-up": lambda url: segmentlog.open_log_dir(url).log("orders", 0).offset_for_timestamp(5),
    "mirror": lambda url: segmentlog.mirror(url, to=f"{url.removeprefix('bucket+file://')}-to"),
}


@pytest.mark.parametrize("read", _READS.values(), ids=_READS)
def test_a_data_object_that_was_removed_is_named_with_its_offsets(
    log_of_commits: Path, tmp_path: Path, read: Callable[[str], object]
) -> None:
    """To load the path again, as the message said, does not help."""
    log = shutil.copytree(log_of_commits, tmp_path / "log")
    url = f"bucket+file://{log}"
    commit = json.loads((log / commit_key(1)).read_text())
    (log / commit["objects"][0]).unlink()
    with pytest.raises(
        RemoteSegmentError, match=r"offsets \[0, 1\) of orders-0; restore"
    ) as failed:
        read(url)
    assert str(failed.value).startswith(
        f"{url}/{commit['objects'][0]}: the data object is missing"
    )


_ERRORS: dict[str, tuple[Callable[[str], object], str]] = {
    "topic": (lambda url: segmentlog.read(url, "other"), "{} holds no topic"),
    "partition": (
        lambda url: segmentlog.open_log_dir(url).log("orders", 7),
        "{} holds no partition",
    ),
    "checksum": (
        lambda url: segmentlog.read(url, "orders"),
        "{}/orders-0/00000000000000000000.log: batch",
    ),
    "path": (lambda url: segmentlog.open_log_dir(f"{url}/orders-9"), "{}/orders-9: there is no"),
}


@pytest.mark.parametrize(("act", "said"), _ERRORS.values(), ids=_ERRORS)
def test_errors_show_the_url_that_the_user_knows(
    tmp_path: Path, act: Callable[[str], object], said: str
) -> None:
    """The path that stands for it here has other signs, and the options of the URL."""
    url = f"bucket+file://{tmp_path}/log"
    _write(url, ["a"])
    opened = segmentlog.open_log_dir(url)
    for each in (opened, opened.log("orders", 0), segmentlog.dataset(url, "orders")):
        assert url in repr(each)
    (data,) = (tmp_path / "log").glob("data/*/*.batches")
    data.write_bytes(data.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(SegmentLogError) as failed:
        act(url)
    assert str(failed.value).startswith(said.format(url))
    assert ";prefix=" not in str(pickle.loads(pickle.dumps(failed.value)))


def test_a_url_is_shown_without_its_options() -> None:
    """Of the stores; what follows the path stays."""
    for shown, path in {
        "s3://bucket/a b/orders-0": "bucket+s3://bucket;region=x;prefix=a%20b/orders-0",
        "s3://bucket: x": "bucket+s3://bucket;prefix=: x",
        "abfs://host/c": "bucket+abfs://host;account_key=…;prefix=c",
        "bucket+file:///a/t-0, b": "bucket+file://;prefix=%2Fa/t-0, b",
    }.items():
        assert with_plain_buckets(path) == shown


def test_a_sweep_removes_nothing_if_commits_are_missing(
    log_of_commits: Path, tmp_path: Path
) -> None:
    """More of them than a process asks for at once: what the later ones name seemed unused."""
    log = shutil.copytree(log_of_commits, tmp_path / "log")
    url = f"bucket+file://{log}"
    for number in range(36, 45):
        _write(url, [str(number)])
    for number in range(33, 44):
        (log / commit_key(number)).unlink()
    before = {*log.glob("data/*/*")}
    location = bucket_at(url)
    assert location is not None
    fresh = Sequence(sequence_at(location).objects, location)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "sequence_at", lambda _: fresh)
        with pytest.raises(CorruptCheckpointError, match="the commit is missing"):
            upkeep.sweep_objects(location, -1, -1, dry_run=False)
    assert {*log.glob("data/*/*")} == before
