"""A log directory as readers see it: scans, datasets, look-ups by time, and open readers."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import segmentlog
from random_operations.model import Model, PlainLog, Row
from segmentlog.cluster.directory_settings import Source
from segmentlog.errors import LogChangedError, LogDirectoryError, UnknownTopicOrPartitionError
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_CHECKPOINT
from segmentlog.log.checkpoint import read_offsets, read_topic_id
from segmentlog.maintain.verification.findings import Severity
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.model import TopicPartition
from segmentlog.reads.log import Log
from segmentlog.txn.guard import list_guards


class SeenLog(NamedTuple):
    """One partition: the log start, the log end, the high watermark, and all rows."""

    start: int
    end: int
    high_watermark: int
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Seen:
    """A log directory; a partition that has never had a record is left out."""

    logs: Mapping[TopicPartition, SeenLog]
    settings: Mapping[str | None, Mapping[str, str]]

    def log(self, topic_partition: TopicPartition) -> SeenLog:
        """One partition; a missing one is empty."""
        return self.logs.get(topic_partition, SeenLog(0, 0, 0, ()))


def look(directory: Path, names: tuple[str | None, ...] = (), *, twice: bool = True) -> Seen:
    """Read all partitions of a directory, each by itself, and as a dataset if `twice`.

    `names` : topics whose settings are read; None is for the defaults of all topics.
    """
    settings = {topic: _settings(directory, topic) for topic in names}
    logs = dict[TopicPartition, SeenLog]()
    opened = _opened(directory)
    if opened is not None:
        for each in opened.topic_partitions():
            log = opened.log(*each)
            rows = rows_of(log)
            end, high_watermark = log.log_end_offset, log.high_watermark
            mark = end if high_watermark is None else high_watermark
            seen = SeenLog(log.log_start_offset, end, mark, rows)
            if seen[:2] != (0, 0) or rows:
                logs[each] = seen
        if twice:
            _assert_dataset_equal(opened, logs)
    return Seen(logs, {topic: known for topic, known in settings.items() if known})


def _opened(directory: Path) -> segmentlog.LogDirectory | None:
    """The directory; None if it holds no partition yet."""
    try:
        return segmentlog.open_log_dir(directory)
    except LogDirectoryError:
        assert not [*directory.glob("*-*/*.log")], "a directory with logs cannot be opened"
        return None


def _settings(directory: Path, topic: str | None) -> dict[str, str]:
    """The settings of a topic that the directory has."""
    known = segmentlog.topic_settings(directory, topic)
    source = Source.FILE if topic else Source.FILE_DEFAULTS
    return {name: each.value for name, each in known.items() if each.source == source}


def _rows(table: pa.Table) -> tuple[Row, ...]:
    names = ("offset", "timestamp", "timestampType", "key", "value", "headers")
    table = table.select(names).set_column(
        1, "timestamp", table["timestamp"].cast(pa.int64()).combine_chunks()
    )
    columns = [table[name].to_pylist() for name in names]
    return tuple(
        Row(
            offset,
            at // 1000,
            kind,
            key,
            value,
            tuple((h["key"], h["value"]) for h in heads or ()),
        )
        for offset, at, kind, key, value, heads in zip(*columns, strict=True)
    )


def rows_of(log: Log) -> tuple[Row, ...]:
    """All rows of an opened log."""
    return _rows(log.scan(include_headers=True).read_all())


def _assert_dataset_equal(
    opened: segmentlog.LogDirectory, logs: Mapping[TopicPartition, SeenLog]
) -> None:
    """A dataset of all topics has the rows of all scans."""
    table = segmentlog.dataset(opened).to_table(columns=["topic", "partition", "offset", "value"])
    found = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=str)
    expected = [(*each, row.offset, row.value) for each, log in logs.items() for row in log.rows]
    assert found == sorted(expected, key=str), "a dataset and scans do not have the same rows"


def assert_equal(seen: Seen, model: Model) -> None:
    """Readers see the rows, the bounds and the settings of a model."""
    for each in sorted({*seen.logs, *model.logs}):
        log, expected = seen.log(each), model.logs.get(each, PlainLog())
        if log.rows != expected.rows:
            missing = [row for row in expected.rows if row not in set(log.rows)]
            more = [row for row in log.rows if row not in set(expected.rows)]
            what = f"{len(log.rows)} rows of {len(expected.rows)}"
            message = f"{each}: {what}, missing {missing[:2]}, more {more[:2]}"
            raise AssertionError(message)
        bounds = (log.start, log.end, log.high_watermark)
        wanted = (expected.start, expected.end, expected.end)
        assert bounds == wanted, f"{each}: start, end, high watermark are {bounds}, not {wanted}"
    assert seen.settings == model.settings, f"settings {seen.settings}, not {model.settings}"


def assert_found_by_time(directory: Path, model: Model, rng: random.Random) -> None:
    """Look-ups by time find the first row at or after the time, and reads by time begin there.

    A look-up, as a broker's, searches the first segment that has ever reached the time: it may
    find nothing where a row that was newer is hidden or was compacted.
    """
    known = sorted(each for each, log in model.logs.items() if log.times)
    if not known:
        return
    where = rng.choice(known)
    expected = model.logs[where]
    wanted_ms = rng.choice(expected.times[-60:])[1] + rng.randint(-1, 1)
    log = segmentlog.open_log_dir(directory).log(*where)
    found, offset = log.offset_for_timestamp(wanted_ms), expected.first_at(wanted_ms)
    left = {each.offset for each in expected.rows}
    is_shadowed = any(at >= wanted_ms and each not in left for each, at in expected.times)
    if found is None and is_shadowed:
        return
    what = f"{where}: first row at {wanted_ms}"
    assert (found and found.offset) == offset, f"{what} is {found}, not {offset}"
    scanned = log.scan(since=wanted_ms, columns=["offset"]).read_all()
    after = sorted(each for each in left if offset is not None and each >= offset)
    assert scanned["offset"].to_pylist() == after, f"{what}: a scan from there on"
    bound = pc.field("timestamp") >= pa.scalar(wanted_ms, pa.timestamp("ms", "UTC"))
    is_here = pc.field("partition") == where.partition
    table = segmentlog.dataset(directory, topics=where.topic).to_table(
        columns=["offset"], filter=bound & is_here
    )
    newer = [each.offset for each in expected.rows if each.timestamp_ms >= wanted_ms]
    assert table["offset"].to_pylist() == newer, f"{what}: a filter by time"


def assert_sound(directory: Path) -> None:
    """`verify` finds nothing, and no commit is unfinished."""
    opened = _opened(directory)
    if opened is None:
        return
    assert not list_guards(str(directory)), f"a guard still stands: {list_guards(str(directory))}"
    for each in opened.topic_partitions():
        found = LogCheck(opened.log(*each), with_records=True).findings()
        bad = [str(finding) for finding in found if finding.severity != Severity.NOTE]
        assert not bad, f"verify finds in {each}: {bad}"


def assert_trusted(directory: Path) -> None:
    """A broker that finds the mark of a clean stop trusts files that are sound.

    It builds missing indexes; a guard, or an exchange that is not finished, is recovered first.
    """
    is_marked = (directory / CLEAN_SHUTDOWN_FILE).exists()
    if not is_marked or list_guards(str(directory)):
        return
    if [*directory.rglob("*.swap"), *directory.rglob("*.cleaned")]:
        return
    points = read_offsets(str(directory), RECOVERY_POINT_CHECKPOINT)
    for log in segmentlog.open_log_dir(directory):
        found = [each for each in LogCheck(log).findings() if each.severity != Severity.NOTE]
        bad = [str(each) for each in found if Path(each.path).exists()]
        assert not bad, f"a broker trusts {log.topic_partition}, in which verify finds {bad}"
        point = points.get(log.topic_partition, log.log_end_offset)
        assert point <= log.log_end_offset, f"{log.topic_partition} is recovered from {point} on"


def assert_identified(directory: Path, model: Model, topics: Mapping[str, int]) -> None:
    """A topic with records has all of its partitions, and one topic id.

    `topics`: with their numbers of partitions.
    """
    for topic, n_partitions in topics.items():
        if not any(model.log(topic, each).rows for each in range(n_partitions)):
            continue
        paths = [directory / f"{topic}-{each}" for each in range(n_partitions)]
        lacking = [each.name for each in paths if not [*each.glob("*.log*")]]
        assert not lacking, f"{lacking} have no log"
        ids = {each.name: read_topic_id(str(each)) for each in paths}
        assert len({*ids.values()} - {None}) == len({*ids.values()}) == 1, f"topic ids: {ids}"


def bases_of(log: Log) -> list[int]:
    """Base offsets of the segments that readers see."""
    return [each.base_offset for each in log.segments]


class Held:
    """A reader that is opened before an operation, and reads after it.

    It may have opened the directory only, looked at the bounds of its scan, or read a first part.
    """

    def __init__(self, directory: Path, model: Model, rng: random.Random) -> None:
        self._where: TopicPartition | None = None
        opened = _opened(directory)
        known = sorted(each for each, log in model.logs.items() if log.rows)
        if opened is None or not known:
            return
        self._where = rng.choice(known)
        self._rows, self._end = model.logs[self._where].rows, model.logs[self._where].end
        self._log = opened.log(*self._where)
        self._stage = rng.choice(("opened", "bounded", "begun"))
        self._reader: Any = None
        self._first: list[pa.RecordBatch] = []
        if self._stage != "opened":
            self._reader = self._log.scan(include_headers=True, use_threads=rng.random() < 0.5)
        if self._stage == "begun":
            self._first = [self._reader.read_next_batch()]

    def check(self, after: Model, *, are_files_kept: bool) -> None:
        """The reader sees the log of before or after the operation, or raises `LogChangedError`.

        A reader that has begun reads on in files that were put aside, while they are kept.  Once
        they are gone, compaction may have removed some rows of its rest: a newer row of each key
        is there.
        """
        if self._where is None:
            return
        log = after.logs.get(self._where, PlainLog())
        now = [each for each in log.rows if each.offset < self._end]
        has_to_go_on = are_files_kept and self._stage == "begun"
        try:
            reader = self._reader or self._log.scan(include_headers=True)
            batches = [*self._first, *reader]
            rows = _rows(pa.Table.from_batches(batches, reader.schema))
        except (LogChangedError, UnknownTopicOrPartitionError) as error:
            if has_to_go_on:
                message = f"{self._name} has failed: {error}"
                raise AssertionError(message) from error
            return
        allowed = [self._rows] if has_to_go_on else [self._rows, tuple(now)]
        if rows in allowed:
            return
        is_between = {*now} <= {*rows} <= {*self._rows} and not are_files_kept
        missing = [each.offset for each in self._rows if each not in set(rows)]
        more = [each for each in rows if each not in set(self._rows)]
        what = f"has {len(rows)} rows of {len(self._rows)}, or of {len(now)} now"
        assert is_between, f"{self._name} {what}; missing {missing}, more {more[:2]}"

    @property
    def _name(self) -> str:
        return f"a reader of {self._where} that was {self._stage} before"
