"""``segmentlog.table`` and ``segmentlog.tables``: what Kafka knows about itself, as tables."""

import os

import pyarrow as pa

from segmentlog.arguments import one_of
from segmentlog.dialects import nearest, one_dialect
from segmentlog.errors import OptionError
from segmentlog.format.newer import noting
from segmentlog.model import METADATA_TOPIC, OnCorruptBatch
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.reads.metadata_log import metadata_path
from segmentlog.store.failures import Failures, OnFailure


@one_dialect()
def tables(path: str | os.PathLike[str] | LogDirectory) -> list[str]:
    """Names of the tables that a log directory has, for `table`.

    Parameters
    ----------
    path : a log directory; or what `open_log_dir` has opened, such as several directories.

    Raises
    ------
    LogDirectoryError
        If the path is not a log directory.
    """
    # The tables and what makes them load here, and not in a process that asks for none.
    from segmentlog.kafka_tables.cluster_metadata import TABLES_WITHOUT_METADATA, is_of_zookeeper
    from segmentlog.kafka_tables.make_table import TABLES

    directory = _opened(path)
    topics = directory.topics(internal=True)
    held = {""}
    if any(metadata_path(each) for each in directory.paths):
        held.add(METADATA_TOPIC)
    named = TABLES_WITHOUT_METADATA if is_of_zookeeper(directory) else ()
    return [
        name
        for name, each in TABLES.items()
        if each.topic in held or name in named or each.topics(topics)
    ]


@one_dialect()
def table(
    path: str | os.PathLike[str] | LogDirectory,
    name: str,
    *,
    history: bool = False,
    on_corrupt_batch: OnCorruptBatch | str = OnCorruptBatch.FAIL,
    topic: str | None = None,
    on_failure: OnFailure | None = None,
    strict: bool = False,
) -> pa.Table:
    """A table of what Kafka has written about itself, from the disk alone.

    ::

        segmentlog.table("/var/lib/kafka", "group_offsets")
        segmentlog.table("/var/lib/kafka", "group_offsets", history=True)

    Parameters
    ----------
    path : a log directory; or what `open_log_dir` has opened, such as several directories.
    name : of the table; ``storage/docs/tables.md`` lists all tables and their columns.
    history : whether every change is a row, in the order of each partition, and not only the last
        state.
    on_corrupt_batch : ``skip`` leaves out batches that are damaged, and records that cannot be
        read, with a warning.
    topic : that the records are in, if the settings of Kafka Connect, of MirrorMaker 2 or of a
        schema registry give it another name than that of the documentation.
    on_failure : called with the name of each partition that cannot be read, and its error; the
        table then has the rows of the other partitions.  Without it, the first of these errors is
        raised, with a note about each other one.
    strict : whether a record that is newer than the Kafka that this version knows is an error, and
        not a warning.

    Returns
    -------
    pyarrow.Table
        Topics are read to the end of their logs, as a coordinator reads them when it starts.

    Raises
    ------
    OptionError
        If there is no table of this name, it has no history, or its topic has a fixed name.
    LogDirectoryError
        If the path is not a log directory, or does not hold the topic of the table.
    MalformedRecordError
        If a record cannot be read: Kafka would not load its partition either; with `strict`, if
        it is newer than what this version knows.
    CorruptLogError
        If a batch is damaged.
    """
    table_schema(name, history=history, topic=topic)
    policy = one_of("on_corrupt_batch", on_corrupt_batch, OnCorruptBatch)
    from segmentlog.kafka_tables.make_table import make_table
    from segmentlog.kafka_tables.source import Source

    failures = Failures(on_failure)
    with noting(f"table {name}", is_strict=strict):
        source = Source(_opened(path), policy, failures)
        found = make_table(source, name, is_history=history, topic=topic)
    failures.end()
    return found


def table_schema(name: str, *, history: bool = False, topic: str | None = None) -> pa.Schema:
    """The columns of a table.

    Raises `OptionError` if there is no table of this name, it has no history, or its topic has a
    fixed name.
    """
    from segmentlog.kafka_tables.columns import schema_of
    from segmentlog.kafka_tables.make_table import TABLES

    found = TABLES.get(name)
    if found is None:
        near = nearest(str(name), TABLES, 0.5)
        meant = f"did you mean {near}? " if near else ""
        raise OptionError("table", str(name), f"{meant}give one of {', '.join(TABLES)}")
    if history and not found.history:
        accepted = "leave it out: the table is computed from the last state of several topics"
        raise OptionError("history", "true", accepted)
    if topic is not None and not (found.pattern or name == "schemas"):
        raise OptionError("topic", topic, f"leave it out: Kafka fixes the topic of {name}")
    return schema_of(found.history if history else found.columns)


def _opened(path: str | os.PathLike[str] | LogDirectory) -> LogDirectory:
    return path if isinstance(path, LogDirectory) else open_log_dir(path)
