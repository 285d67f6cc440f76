"""The options that several operations on log directories have, each declared once.

An operation lists its options in a class beside its function: those of these groups, and its own;
see `segmentlog.declared`.  The function's arguments, their section of its docstring, and the flags
of its command are made of that class.
"""

import os
from collections.abc import Callable, Mapping
from typing import Annotated, TypedDict

from segmentlog.declared import Declared, declared
from segmentlog.errors import OnFailure
from segmentlog.model import INDEX_INTERVAL_BYTES, LOCK_TIMEOUT_SECONDS, OnCorruptBatch
from segmentlog.read_options import READ_OPTIONS


def dry_run_of(done: str) -> Declared:
    """The option that changes nothing, of an operation that does something: ``removed``."""
    return Declared(
        f"whether nothing is changed, and the result is what would be {done}",
        default=False,
        help=f"Show what would be {done}, and change nothing.",
    )


def settings_of(example: str) -> Declared:
    """The option that overrides settings of topics, with the name of one that matters."""
    return Declared(
        f"of all these topics, by Kafka's names (`{example}`); they override the settings of the "
        "directory",
        flags="--setting -s",
        metavar="NAME=VALUE",
        help="A topic setting; may be repeated.",
    )


class WaitOptions(TypedDict, total=False):
    """Of what holds a directory."""

    lock_timeout_seconds: Annotated[
        float, Declared("how long to wait for another writer", LOCK_TIMEOUT_SECONDS)
    ]


class StaticOptions(TypedDict, total=False):
    """The settings that no log contains."""

    server_properties: Annotated[
        str | os.PathLike[str] | None,
        Declared(
            "the file with the broker's static settings, which no log contains",
            metavar="FILE",
            help="The file with the broker's static settings, if there is one.",
        ),
    ]


class ClusterOptions(StaticOptions, total=False):
    """Where the settings of topics are."""

    metadata: Annotated[
        str | os.PathLike[str] | None,
        Declared(
            "the broker's log directory that holds `__cluster_metadata-0`, if it is another "
            "directory",
            metavar="DIR",
            help="The broker's log directory that holds __cluster_metadata-0, if it is another "
            "directory.",
        ),
    ]


class PurgeOptions(TypedDict, total=False):
    """Of what lets files leave logs."""

    purge: Annotated[
        bool,
        Declared(
            "whether files that have left these logs are removed at once, and not "
            "`file.delete.delay.ms` later. A reader that still needs one fails with "
            "`LogChangedError`",
            help="Remove files of deleted segments at once, without waiting for "
            "file.delete.delay.ms.",
        ),
    ]


class FailureOptions(TypedDict, total=False):
    """Of what goes on after a failure."""

    on_failure: Annotated[
        OnFailure | None,
        Declared(
            "called with the name of each log that fails, such as `orders-0`, and its error; the "
            "others are treated. Without it, the first of these errors is raised at the end"
        ),
    ]


class LogOptions(TypedDict, total=False):
    """Of what looks at one log after the other."""

    on_log: Annotated[
        Callable[[str], object],
        Declared(
            "called with the name of each log's directory before the log is read, such as "
            "`orders-0`"
        ),
    ]


class PhaseOptions(TypedDict, total=False):
    """Of what does several things to a log."""

    on_phase: Annotated[
        Callable[[str], object],
        Declared("called with a log and with what is done to it, such as `orders-0: copies`"),
    ]


class BytesOptions(TypedDict, total=False):
    """Of what reads whole logs."""

    on_bytes: Annotated[
        Callable[[int], object],
        Declared("called with the bytes of `.log` files done since the last call"),
    ]


class IndexOptions(TypedDict, total=False):
    """Of what builds indexes."""

    index_interval_bytes: Annotated[
        int,
        Declared(
            "bytes of log between two index entries, which the log does not contain: the topic's "
            "`index.interval.bytes`",
            INDEX_INTERVAL_BYTES,
            most=2**31 - 1,
            help="Bytes of log between two index entries: the topic's index.interval.bytes.",
        ),
    ]


class DeletedTopicsOptions(TypedDict, total=False):
    """Of what reads the logs of a cluster."""

    include_deleted_topics: Annotated[
        bool,
        READ_OPTIONS["include_deleted_topics"]._replace(
            sentence="whether topics that the cluster has deleted, by its newest metadata, and of "
            "which a broker still has logs, are read, too"
        ),
    ]


class CorruptOptions(TypedDict, total=False):
    """Of what reads records, and may go on after damage."""

    on_corrupt_batch: Annotated[
        OnCorruptBatch | str,
        READ_OPTIONS["on_corrupt_batch"],
    ]


class ReplicaOptions(CorruptOptions, StaticOptions, WaitOptions, PhaseOptions, total=False):
    """Of what writes replicas for the stopped brokers of another cluster."""

    target_metadata: Annotated[
        str | os.PathLike[str] | None,
        Declared(
            "the log directory that holds the target's `__cluster_metadata-0`; by default, the "
            "newest copy in {to}",
            metavar="DIR",
            help="The log directory that holds the target's __cluster_metadata-0.",
        ),
    ]
    leave_out_partitions: Annotated[
        bool,
        Declared(
            "whether a topic is restored although some of its partitions are gone; the target has "
            "them, empty",
            help="Restore a topic even if some of its partitions are gone.",
        ),
    ]
    leave_out_replicas: Annotated[
        bool,
        Declared(
            "whether a partition is restored although the directory of one of its replicas is not "
            "in {to}. By default, that is a problem: the replica would be empty, and its broker "
            "could become the leader",
            help="Restore partitions even if directories of some of their brokers are missing.",
        ),
    ]
    on_records: Annotated[
        Callable[[int], object],
        Declared("called with the number of records of each piece once it is read"),
    ]
    dry_run: Annotated[
        bool,
        Declared(
            "whether nothing is changed, and the result has the problems",
            help="Show the plan and the problems, and change nothing.",
        ),
    ]


class _All(
    WaitOptions,
    ClusterOptions,
    PurgeOptions,
    FailureOptions,
    LogOptions,
    PhaseOptions,
    total=False,
):
    """Those that a dataclass of settings has, too."""


#: Options by their names, for a dataclass of settings.
OPERATION_OPTIONS: Mapping[str, Declared] = declared(_All)
