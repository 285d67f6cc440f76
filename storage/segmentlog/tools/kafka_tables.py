"""``groups``, ``transactions``, ``cluster``, ``schemas`` and ``table``, about Kafka itself."""

import base64
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

from segmentlog.analysis.schema_use import schema_use
from segmentlog.arguments import nearest
from segmentlog.cluster.known_losses import missing_offsets
from segmentlog.errors import CorruptLogError, MalformedRecordError, OptionError, SegmentLogError
from segmentlog.kafka_tables import table as read_table
from segmentlog.kafka_tables.cluster_metadata import (
    NO_METADATA,
    TABLES_WITHOUT_METADATA,
    is_of_zookeeper,
    rows_without_metadata,
)
from segmentlog.kafka_tables.columns import rows_to_table
from segmentlog.kafka_tables.open_table import TABLES
from segmentlog.kafka_tables.source import TableSource
from segmentlog.model import METADATA_TOPIC, OnCorruptBatch, ReadUpTo
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.system_errors import Failures
from segmentlog.times import iso_time
from segmentlog.tools.arguments import JsonLines, OnDamage, command, complete_topic
from segmentlog.tools.failures import Failed
from segmentlog.tools.output import aligned, as_given, counted, escape, write_json
from segmentlog.tools.progress import progress

logger = logging.getLogger(__name__)

Directories = Annotated[list[str], typer.Argument(metavar="DIR", help="Log directories.")]
History = Annotated[
    bool,
    typer.Option("--history", help="Print every change, in order, as one JSON object per line."),
]

_LAG = (
    "group",
    "kind",
    "state",
    "topic",
    "partition",
    "offset",
    "log_end_offset",
    "lag",
    "lag_records",
    "lag_ms",
)
_TRANSACTION = (
    "transactional_id",
    "transaction_status",
    "producer_id",
    "producer_epoch",
    "transaction_last_update_timestamp",
)
_OPEN = (
    "topic",
    "partition",
    "first_offset",
    "transactional_id",
    "transaction_status",
    "producer_id",
    "first_timestamp",
)
_IDS = ("cluster_id", "node_id", "directory_id")
_BROKER = ("broker_id", "rack", "fenced", "in_controlled_shutdown", "broker_epoch")
_SCHEMA = ("subject", "version", "id", "schema_type", "deleted", "schema")
_USE = (
    "topic",
    "column",
    "subject",
    "version",
    "id",
    "records",
    "first_timestamp",
    "last_timestamp",
    "first_partition",
    "first_offset",
)
_CONFIG = ("resource_type", "resource_name", "name", "value")

_MOST_SHOWN = 60


@command(
    "segmentlog groups /var/lib/kafka",
    "segmentlog groups /var/lib/kafka --group billing --json",
    "segmentlog groups /var/lib/kafka --history",
)
def groups(
    paths: Directories,
    group: Annotated[
        list[str] | None, typer.Option(help="Only this group; may be repeated.")
    ] = None,
    as_json: JsonLines = False,
    history: History = False,
    on_corrupt_batch: OnDamage = OnCorruptBatch.FAIL,
) -> None:
    """Show the groups of consumers, their committed offsets, and their lag.

    The lag is the end of the log minus the committed offset. It is negative if the log was
    truncated after the commit. A partition that is not in the directory has no log end and no lag.
    lag_records counts records alone, without the end markers of transactions, and lag_ms is the
    time between the first of them and the newest. The groups that are furthest behind come first,
    each with its largest lags first; a line below the table has the sums of each group.
    Offsets in an open transaction do not count; JSON shows them as pending_offset.
    """
    read = _TablesRead(paths, on_corrupt_batch)
    if history:
        rows = read.rows("group_offsets", is_history=True)
    else:
        lag = read.rows("consumer_lag")
        with_offsets = {row["group"] for row in lag}
        rows = lag + [row for row in read.rows("groups") if row["group"] not in with_offsets]
        rows = _largest_first(rows)
    rows = _of_groups(group, rows, read)
    if as_json or history:
        _write_rows(rows)
    else:
        _write_table(_LAG, rows)
        sys.stdout.writelines(_sums(rows))
    read.failed.end()


def _largest_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by the lag of their group, and then by their own; ties by name."""
    behind = Counter[str]()
    for row in rows:
        behind[row["group"]] += max(records_behind(row), 0)
    return sorted(
        rows,
        key=lambda row: (
            -behind[row["group"]],
            row["group"],
            -records_behind(row),
            row.get("topic") or "",
            row.get("partition") or 0,
        ),
    )


def records_behind(row: Mapping[str, Any]) -> int:
    """How many records a row of ``consumer_lag`` is behind; its offsets, if they are not known."""
    records, lag = row.get("lag_records"), row.get("lag")
    return (lag or 0) if records is None else int(records)


def _sums(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each group with several partitions: all that it is behind."""
    for group, found in groupby(rows, lambda row: row["group"]):
        own = [row for row in found if row.get("topic") is not None]
        if len(own) < 2:
            continue
        records = sum(max(records_behind(row), 0) for row in own)
        latest = max((row["lag_ms"] for row in own if row["lag_ms"] is not None), default=0)
        behind = f", at the most {latest:,} ms behind" if latest else ""
        n = counted(records=records, partitions=len(own)).replace(", ", " in ")
        yield f"{escape(group)}: {n}{behind}\n"


def _of_groups(
    wanted: Collection[str] | None, rows: list[dict[str, Any]], read: "_TablesRead"
) -> list[dict[str, Any]]:
    """The rows of some groups; of all of them if none is named."""
    known = {row["group"] for row in rows}
    for group in wanted or ():
        if group not in known and not read.failed.names:
            near = nearest(group, known)
            held = ", ".join(sorted(known)) or "none"
            hint = f"did you mean {near!r}?" if near else f"the groups are {held}"
            raise OptionError("--group", group, f"there is no such group; {hint}")
    return [row for row in rows if not wanted or row["group"] in wanted]


@command(
    "segmentlog transactions /var/lib/kafka",
    "segmentlog transactions /var/lib/kafka --json",
    "segmentlog transactions /var/lib/kafka --history",
)
def transactions(
    paths: Directories,
    as_json: JsonLines = False,
    history: History = False,
    on_corrupt_batch: OnDamage = OnCorruptBatch.FAIL,
) -> None:
    """Show transactional ids, and the transactions that hold back the last stable offset.

    The first table shows the last state of each id. The second table shows the partitions in which
    a transaction has no end marker, and the state of the transaction. A coordinator would abort an
    Ongoing transaction after its timeout, and write the end markers of a transaction in a Prepare
    state.
    """
    read = _TablesRead(paths, on_corrupt_batch)
    if history:
        _write_rows(read.rows("transactions", is_history=True))
        read.failed.end()
        return
    known = []
    with read.failed.of("transactions"):  # the partitions show what the coordinators' topic lacks
        known = read.rows("transactions")
    opened = read.rows("open_transactions")
    known.sort(key=lambda row: str(row["transactional_id"]))
    if as_json:
        _write_tables({"transactions": known, "open_transactions": opened})
    else:
        _write_table(_TRANSACTION, known)
        if opened:
            sys.stdout.write("\nopen:\n")
            _write_table(_OPEN, opened)
    read.failed.end()


@command(
    "segmentlog cluster /var/lib/kafka",
    "segmentlog cluster /var/lib/kafka --json",
    "segmentlog cluster /var/lib/kafka --history",
)
def cluster(
    paths: Directories,
    as_json: JsonLines = False,
    history: History = False,
    on_corrupt_batch: OnDamage = OnCorruptBatch.FAIL,
) -> None:
    """Show a cluster by its metadata: features, brokers, topics, settings, and ACLs.

    The first lines have the ids of the cluster, of the node and of each log directory, from
    meta.properties.

    JSON output contains every row of every table of the metadata. Secrets are hidden. The log
    directories of a cluster with ZooKeeper have no metadata: they show only the broker, its topics
    and its partitions.
    """
    read = _TablesRead(paths, on_corrupt_batch)
    for row in () if history else _directory_ids(read.directory):
        if as_json:
            _write_rows([{"table": "log_directories", **row}])
            continue
        shown = (f"{name.replace('_', ' ')} {_cell(row[name])}" for name in _IDS)
        sys.stdout.write(f"{escape(as_given(row['path'], paths))}: {', '.join(shown)}\n")
    names = [name for name, each in TABLES.items() if each.topic == METADATA_TOPIC]
    if not history and is_of_zookeeper(read.directory):
        logger.warning(NO_METADATA)
        source = TableSource(read.directory, on_corrupt_batch, Failures(read.failed.add))
        found = {
            name: rows_to_table(
                [*rows_without_metadata(source, name)], TABLES[name].columns
            ).to_pylist()
            for name in TABLES_WITHOUT_METADATA
        }
    else:
        found = {name: read.rows(name, is_history=history) for name in names}
    if as_json or history:
        _write_tables(found)
    else:
        _write_cluster(found)
    read.failed.end()


def _write_cluster(found: Mapping[str, list[dict[str, Any]]]) -> None:
    """Write what people look for in the tables of the metadata."""
    sys.stdout.write("\n")
    if "features" not in found:
        _write_table(_BROKER[:1], found["brokers"])
        sys.stdout.write("\n")
        _write_table(("topic", "topic_id", "partitions"), _topics(found))
        return
    features = (f"{row['name']} {row['feature_level']}" for row in found["features"])
    sys.stdout.write(f"features: {escape(', '.join(sorted(features)))}\n\n")
    _write_table(_BROKER, sorted(found["brokers"], key=lambda row: int(row["broker_id"])))
    sys.stdout.write("\n")
    _write_table(("topic", "topic_id", "partitions", "replicas", "without_leader"), _topics(found))
    sys.stdout.write("\n")
    _write_table(_CONFIG, sorted(found["configs"], key=lambda row: [str(row[n]) for n in _CONFIG]))
    counts = (f"{name} {len(found[name])}" for name in ("quotas", "acls", "scram_users"))
    sys.stdout.write(f"\n{', '.join(counts)}\n")


@command(
    "segmentlog schemas /var/lib/kafka",
    "segmentlog schemas /var/lib/kafka --topic my-schemas --json",
    "segmentlog schemas /var/lib/kafka --used-by orders",
    "segmentlog schemas /var/lib/kafka --history",
)
def schemas(
    paths: Directories,
    topic: Annotated[str, typer.Option(help="The topic of the schema registry.")] = "_schemas",
    used_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Show instead which schemas the records of this topic have, and how many have "
            "none; may be repeated.",
            autocompletion=complete_topic,
        ),
    ] = None,
    as_json: JsonLines = False,
    history: History = False,
    on_corrupt_batch: OnDamage = OnCorruptBatch.FAIL,
) -> None:
    """Show the schemas of a registry (Confluent, Karapace).

    The table shows the beginning of each schema, and JSON output contains the whole schema. A
    softly deleted schema can still be resolved by its id.
    """
    read = _TablesRead(paths, on_corrupt_batch)
    if used_by:
        rows = read.uses(used_by)
        if as_json:
            _write_rows(rows)
        else:
            _write_table(_USE, rows)
        read.failed.end()
        return
    rows = read.rows("schemas", is_history=history, topic=topic)
    if not history:
        rows.sort(key=lambda row: (row["subject"], row["version"]))
    if as_json or history:
        _write_rows(rows)
    else:
        _write_table(_SCHEMA, [row | {"schema": _beginning(row["schema"])} for row in rows])
    read.failed.end()


@command(
    "segmentlog table consumer_lag /var/lib/kafka",
    "segmentlog table remote_segments /var/lib/kafka --history",
    "segmentlog table connect_configs /var/lib/kafka --topic my-configs --json",
)
def table(
    name: Annotated[
        str, typer.Argument(help="The table; the error about a wrong name lists all tables.")
    ],
    paths: Directories,
    topic: Annotated[
        str | None,
        typer.Option(
            help="The topic to read, for tables of Connect, MirrorMaker 2 and registries."
        ),
    ] = None,
    as_json: JsonLines = False,
    history: History = False,
    strict: Annotated[
        bool, typer.Option(help="Fail at a record that is newer than the known Kafka.")
    ] = False,
    on_corrupt_batch: OnDamage = OnCorruptBatch.FAIL,
) -> None:
    """Show any table of what Kafka knows about itself.

    Columns without a value in any row are left out, except in JSON. Bytes are shown in Base64.
    """
    read = _TablesRead(paths, on_corrupt_batch)
    rows = read.rows(name, is_history=history, topic=topic, strict=strict)
    if as_json or history:
        _write_rows(rows)
    else:
        names = [each.name for each in TABLES[name].columns]
        has_value = {each for row in rows for each, value in row.items() if value is not None}
        _write_table([each for each in names if not rows or each in has_value], rows)
    read.failed.end()


def _directory_ids(directory: LogDirectory) -> list[dict[str, Any]]:
    """The ids of each log directory; null without ``meta.properties``, or without the id."""
    return [
        {
            "path": path,
            "cluster_id": found.get("cluster.id"),
            "node_id": found.get("node.id", found.get("broker.id")),
            "directory_id": found.get("directory.id"),
        }
        for path, found in zip(directory.paths, directory.meta_properties(), strict=True)
    ]


def _beginning(schema: str) -> str:
    """The first characters of a schema, in one line."""
    text = " ".join(schema.split())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def _topics(found: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Topics with the numbers of their partitions, and of those that nobody leads."""
    partitions = [(row["topic"], row["topic_id"], row) for row in found["partitions"]]
    n_partitions = Counter(each[:2] for each in partitions)
    n_leaderless = Counter(each[:2] for each in partitions if (each[2]["leader"] or 0) < 0)
    n_replicas = {each[:2]: len(each[2]["replicas"] or ()) for each in partitions}
    names = sorted(((row["topic"], row["topic_id"]) for row in found["topics"]), key=str)
    return [
        {
            "topic": each[0],
            "topic_id": each[1],
            "partitions": n_partitions[each],
            "replicas": n_replicas.get(each),
            "without_leader": n_leaderless[each],
        }
        for each in names
    ]


class _TablesRead:
    """Tables of some directories, without what cannot be read.

    `on_corrupt_batch`: whether the rest of a damaged partition is shown.
    """

    def __init__(self, paths: Sequence[str], on_corrupt_batch: OnCorruptBatch) -> None:
        self.directory = open_log_dir(paths[0], *paths[1:])
        self.failed = Failed()
        self._skips = on_corrupt_batch is OnCorruptBatch.SKIP

    def rows(
        self,
        name: str,
        *,
        is_history: bool = False,
        topic: str | None = None,
        strict: bool = False,
    ) -> list[dict[str, Any]]:
        read = partial(
            read_table, self.directory, name, history=is_history, topic=topic, strict=strict
        )
        bad: dict[str, SegmentLogError] = {}
        with progress(f"read {name}", None, is_bytes=False):
            found = read(on_failure=bad.__setitem__)
            if bad and self._skips:
                found = read(on_failure=self.failed.add, on_corrupt_batch=OnCorruptBatch.SKIP)
        for each, error in bad.items():  # the library's warnings name what a read has skipped
            reason = f"{error}; nothing of it is shown"
            if isinstance(error, CorruptLogError | MalformedRecordError):
                reason += ": --on-corrupt-batch skip shows the rest of it"
            self.failed.add(each, "" if self._skips else reason)
        named = [each.topic for each in TABLES.values() if each.topic]
        missing = self.directory.missing_partitions(named)
        held = {
            *self.directory.topics(internal=True),
            *(each.topic_partition.topic for each in missing),
        }
        read_of = [topic] if topic else TABLES[name].topics(held)
        if name == "consumer_lag":
            read_of = [*read_of, *pc.unique(found["topic"]).drop_null().to_pylist()]
        self._tell_missing(read_of)
        return _rows_of(found)

    def uses(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of `schema_use`; a damaged topic has rows only if damage is skipped."""
        rows: list[dict[str, Any]] = []
        for topic in topics:
            look = partial(
                schema_use,
                self.directory,
                topic,
                read_up_to=ReadUpTo.LOG_END,
                fail_on_data_loss=False,
            )
            with progress(f"read {topic}", None, is_bytes=False):
                try:
                    rows += _rows_of(look())
                except CorruptLogError as error:
                    reason = f"{error}; nothing of it is shown: --on-corrupt-batch skip shows "
                    self.failed.add(topic, "" if self._skips else f"{reason}the rest of it")
                    if self._skips:
                        rows += _rows_of(look(on_corrupt_batch=OnCorruptBatch.SKIP))
        self._tell_missing(topics)
        return rows

    def _tell_missing(self, topics: Sequence[str]) -> None:
        """Name the partitions of the tables' topics that are not there, or lack offsets."""
        for lost in self.directory.missing_partitions(topics) if topics else ():
            self.failed.add(lost.topic_partition, lost.reason)
        for each in self.directory.topic_partitions():
            if each.topic in topics:
                with self.failed.of(each):
                    for reason in missing_offsets(self.directory.log(*each)):
                        self.failed.add(each, reason)


def _rows_of(found: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as they are shown: times are texts."""
    for at, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            # Python has no time after the year 9999, and a producer may send microseconds as
            # milliseconds.
            given = found[field.name].cast(pa.int64()).to_pylist()
            texts = [None if each is None else iso_time(each // 1000) for each in given]
            found = found.set_column(at, field.name, pa.array(texts))
    rows: list[dict[str, Any]] = found.to_pylist()
    for name in [each.name for each in found.schema if pa.types.is_map(each.type)]:
        for row in rows:  # `to_pylist` makes no dicts before pyarrow 20
            row[name] = None if row[name] is None else dict(row[name])
    return rows


def _write_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        write_json({name: _plain(value) for name, value in row.items()})


def _write_tables(found: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """Write the rows of several tables, each with the name of its table."""
    for name, rows in found.items():
        _write_rows({"table": name, **row} for row in rows)


def _plain(value: Any) -> Any:  # noqa: ANN401 (a cell has any type)
    """A value of JSON: bytes in Base64, and a number that JSON does not have as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _write_table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    right = [
        bool(rows)
        and all(
            value is None or (isinstance(value, int) and not isinstance(value, bool))
            for value in (row.get(name) for row in rows)
        )
        for name in names
    ]
    sys.stdout.write(aligned(names, cells, right))


def _cell(value: Any) -> str:  # noqa: ANN401 (the same)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | dict):
        return escape(json.dumps(_plain(value), ensure_ascii=False))
    return escape(str(_plain(value)))
