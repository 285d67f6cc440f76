"""Clones that are killed, that meet a full disk, or that run beside one another."""

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cloned_places import places_of
from crashing import Crash, crash_at, cut_loop, fail_at
from namespaces import mounted
from soundness import assert_settled

import segmentlog
from segmentlog.cluster.directory_settings import Source
from segmentlog.errors import LogDirectoryError, OptionError, StorageError
from segmentlog.maintain import offset_map
from segmentlog.maintain.cloning import job as module
from segmentlog.maintain.cloning.clone import CloneSettings
from segmentlog.maintain.cloning.task import run_task
from segmentlog.maintain.offset_map import MapPieces

pytestmark = pytest.mark.linux

EPOCH_MS = 1_700_000_000_000
GROWING = ("pwrite", "rename", "replace", "link", "mkdir")  # calls that need room on a disk
CLONE = (sys.executable, "-m", "segmentlog", "clone", "--partitions", "2")


def write(path: Path, n_records: int, n_bytes: int = 20) -> Path:
    """A topic of three partitions."""
    value = os.urandom(n_bytes)
    table = pa.table(
        {
            "key": [b"%d" % (i % 50) for i in range(n_records)],
            "value": [b"%09d" % i + value for i in range(n_records)],
            "timestamp": pa.array(
                range(EPOCH_MS, EPOCH_MS + n_records), pa.timestamp("ms", "UTC")
            ),
        }
    )
    config = segmentlog.ProducerConfig(use_timestamps=True, batch_size=500)
    with segmentlog.open_writer(path, "t", num_partitions=3, config=config) as writer:
        writer.append(table)
    return path


def numbers(path: Path) -> list[int]:
    """The records of the clone, sorted."""
    values = segmentlog.read(path, "u", columns=["value"])["value"].to_pylist()
    return sorted(int(each[:9]) for each in values)


def test_of_two_clones_that_are_ready_one_becomes_visible(tmp_path: Path) -> None:
    """The other one is told to run again, and its records are not mixed in."""
    source, to = write(tmp_path / "s", 300), tmp_path / "c"

    def overtake(phase: str) -> None:
        if phase == "becomes visible":
            segmentlog.clone(source, "t", "u", to=to, num_partitions=2)

    given: dict[str, Any] = {"num_partitions": 3, "offset_map": tmp_path / "map.parquet"}
    with pytest.raises(LogDirectoryError):
        segmentlog.clone(source, "t", "u", to=to, on_phase=overtake, **given)
    assert [0, 1] == [*segmentlog.open_log_dir(to).topics()["u"]]
    assert numbers(to) == list(range(300))
    assert {"s", "c"} == {each.name for each in tmp_path.iterdir()}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    with mounted(place, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        yield place


@pytest.mark.parametrize("n_partitions", [None, 2])
def test_a_disk_that_fills_up(disk: Path, tmp_path: Path, n_partitions: int | None) -> None:
    """The error names it, nothing is left of the clone, and a smaller one succeeds."""
    source, to = write(tmp_path / "s", 100, 20_000), disk / "logs"
    given: dict[str, Any] = {"num_partitions": n_partitions, "offset_map": disk / "map.parquet"}
    with pytest.raises(StorageError, match="No space left on device") as caught:
        segmentlog.clone(source, "t", "u", to=to, **given)
    assert str(caught.value.filename).startswith(str(disk))
    assert {} == segmentlog.open_log_dir(to).topics()
    assert ["logs"] == [each.name for each in disk.iterdir()]
    assert not list(to.glob("segmentlog.*.*"))

    small = write(tmp_path / "small", 10)
    segmentlog.clone(small, "t", "u", to=to, **given)
    assert numbers(to) == list(range(10))
    assert 10 == sum(pq.read_table(given["offset_map"])["n_records"].to_pylist())


@pytest.mark.parametrize(
    "given", [{"num_partitions": 4}, {}, {"keep_offsets": True}], ids=["new", "kept", "offsets"]
)
def test_a_map_of_several_tasks_is_that_of_one(
    tmp_path: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order in which they end; and a piece that is missing is named."""
    monkeypatch.setattr(offset_map, "_MOST_ROWS", 20)
    source, whole = write(tmp_path / "s", 300), tmp_path / "whole.parquet"
    segmentlog.clone(source, "t", "u", to=tmp_path / "one", offset_map=whole, **given)

    settings = CloneSettings("t", "u", to=tmp_path / "several", **given)
    path = tmp_path / "pieces.parquet"
    with (
        MapPieces(path) as pieces,
        module.CloneJob(segmentlog.open_log_dir(source), settings) as job,
    ):
        tasks = job.tasks(3, pieces.directory)
        assert 3 == len(tasks)
        outcomes = [run_task(each) for each in reversed(tasks)]
        job.join_map(pieces, outcomes)
        job.commit(outcomes)
        pieces.publish()
    assert places_of(whole) == places_of(path)
    n_rows = pq.read_metadata(path).num_rows
    assert pq.read_metadata(whole).num_row_groups > 1 or n_rows < 20
    assert numbers(tmp_path / "several") == list(range(300))
    assert {"one", "several", "s", whole.name, path.name} == {e.name for e in tmp_path.iterdir()}

    with MapPieces(tmp_path / "none.parquet") as pieces:
        counts = [each.groups.counts for each in outcomes]
        with pytest.raises(OptionError, match="at the same path"):
            pieces.join("t", counts, counts[0], ({}, counts[0]), is_kept=True)
    assert not list(tmp_path.glob("*none*"))


OLD = {"retention.ms": "-1"}  # of the topic that a clone replaces
NEW = {"retention.ms": "3600000", "segment.bytes": "5000"}


def begun(path: Path, *, is_there: bool) -> Path:
    """A directory in which the clone's topic has a record and settings, or does not exist."""
    with segmentlog.open_writer(path, "other") as writer:
        writer.append(pa.table({"value": ["x"]}))
    if is_there:
        with segmentlog.open_writer(path, "u", num_partitions=2) as writer:
            writer.append(pa.table({"value": ["999999999"]}))
        segmentlog.alter_settings(path, "u", OLD)
    return path


def is_cloned(path: Path, *, is_there: bool) -> bool:
    """Whether readers see the clone with its settings, and not what was there before."""
    has_topic = "u" in segmentlog.open_log_dir(path).topics()
    seen = numbers(path) if has_topic else []
    known = segmentlog.topic_settings(path, "u")
    settings = {name: each.value for name, each in known.items() if each.source == Source.FILE}
    before = ([999999999], OLD) if is_there else ([], {})
    assert (seen, settings) in [before, (list(range(40)), OLD | NEW if is_there else NEW)]
    return len(seen) == 40


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("kind", ["dies", "full"])
@cut_loop
def test_a_clone_that_is_cut_at_any_call_leaves_no_settings(
    tmp_path: Path, kind: str, every: int, *, is_there: bool
) -> None:
    """Before and after the next writer, and once the clone was run again."""
    source = write(tmp_path / "s", 40)
    given: dict[str, Any] = {"num_partitions": 2, "settings": NEW, "overwrite": is_there}
    base, outcomes = begun(tmp_path / "base", is_there=is_there), []
    for number in range(0, 10_000, every):
        to = tmp_path / str(number)
        shutil.copytree(base, to)
        with pytest.MonkeyPatch.context() as patch:
            made = (
                crash_at(patch, number)
                if kind == "dies"
                else fail_at(patch, number, errno.ENOSPC, is_final=True, calls=GROWING)
            )
            with contextlib.suppress(Crash, StorageError):
                segmentlog.clone(source, "t", "u", to=to, **given)
        is_new = is_cloned(to, is_there=is_there)
        with segmentlog.open_writer(to, "other") as writer:  # finishes or undoes
            writer.append(pa.table({"value": ["x"]}))
        assert is_new == is_cloned(to, is_there=is_there), number
        if is_new and not is_there:
            with pytest.raises(LogDirectoryError, match="has records of a topic"):
                segmentlog.clone(source, "t", "u", to=to, **given)
        else:
            segmentlog.clone(source, "t", "u", to=to, **given)
        assert is_cloned(to, is_there=is_there), number
        assert_settled(to)
        shutil.rmtree(to)
        outcomes.append(is_new)
        if len(made) < number:
            break
    assert {False, True} == {*outcomes}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_clone_that_is_killed_anywhere_is_whole_or_not_there(tmp_path: Path) -> None:
    """After each kill, and after the clone that follows."""
    source = write(tmp_path / "s", 40_000)
    command = [*CLONE, str(source), "t", "u"]
    outcomes = {"none": 0, "whole": 0}
    for seed in range(25):
        to = tmp_path / f"c{seed}"
        given = [*command, "--to", str(to), "--offset-map", f"{to}.parquet"]
        running = subprocess.Popen(given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            running.wait(random.Random(seed).uniform(0.2, 1.6))
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        try:
            is_there = "u" in segmentlog.open_log_dir(to).topics()
        except LogDirectoryError:
            is_there = False
        outcomes["whole" if is_there else "none"] += 1
        if not is_there:
            subprocess.run(given, check=True, stdout=subprocess.DEVNULL)
        assert numbers(to) == list(range(40_000))
        assert {"segmentlog.state"} >= {each.name for each in to.glob("segmentlog.*")}
    assert outcomes["none"] > 0, outcomes


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commands_that_clone_at_once(tmp_path: Path) -> None:
    """At most one becomes visible, and each other one says why it does not."""
    source = write(tmp_path / "s", 20_000)
    command = [*CLONE, str(source), "t", "u"]
    for round_number in range(6):
        to = tmp_path / f"c{round_number}"
        running = [
            subprocess.Popen([*command, "--to", str(to)], stderr=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        messages = [each.communicate(timeout=120)[1] for each in running]
        codes = [each.returncode for each in running]
        assert codes.count(0) <= 1, (codes, messages)
        assert set(codes) <= {0, 2}, (codes, messages)
        assert all("Traceback" not in each for each in messages), messages
        if 0 not in codes:
            subprocess.run([*command, "--to", str(to)], check=True)
        assert numbers(to) == list(range(20_000))
