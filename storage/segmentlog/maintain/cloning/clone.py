"""Clone a topic: its records under another name, perhaps over another number of partitions.

Records are read and written again, and become visible in one change.  If their partitions change,
all partitions of the source are merged by time, because readers, retention and look-ups by time
expect that time rises in a log.  A merge keeps the order of each partition of the source, and so
that of each key that is in one partition alone.  Records with the same key go to the partition
that the Java client chooses.
"""

import logging
import os
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

from segmentlog.arguments import (
    instance_of,
    keywords_of,
    number_by_word,
    one_dialect,
    one_of,
    path_texts,
    refused,
    texts,
    whole_number,
)
from segmentlog.cluster.replicated import open_replicas
from segmentlog.declared import Declared
from segmentlog.errors import OptionError
from segmentlog.format.names import check_topic_name
from segmentlog.format.topic_config import check_stored
from segmentlog.maintain.restoration.plan import TOPICS_OF_BROKERS, GroupOffset
from segmentlog.model import (
    LOCK_TIMEOUT_SECONDS,
    Codec,
    OnCorruptBatch,
    ReadUpTo,
    ValueFrame,
)
from segmentlog.operation_options import OPERATION_OPTIONS, dry_run_of, settings_of
from segmentlog.read_options import READ_OPTIONS
from segmentlog.reads.log_directory import LogDirectory, open_log_dir
from segmentlog.store.durable import OutputFile
from segmentlog.store.system_errors import storage_errors
from segmentlog.times import Time
from segmentlog.txn.topics import MOST_PARTITIONS

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentlog.decoding.masks import Replacement
    from segmentlog.format.kernels.memory import Int64s
    from segmentlog.maintain.cloning.cloned_rows import Cloned

logger = logging.getLogger(__name__)

#: Changes a record batch: rows may be left out.
Transform: TypeAlias = Callable[["pa.RecordBatch"], "pa.RecordBatch | pa.Table"]

#: Old ids of schemas and their new ones: numbers, or GUIDs as text.
SchemaIds: TypeAlias = Mapping[int, int] | Mapping[str, str] | Mapping[int | str, int | str]

_LARGEST_ID = 2**31 - 1
_IDS = "give old and new ids: {17: 42}; or old and new GUIDs, as text"


class NullKeys(StrEnum):
    """The new partitions of records without a key."""

    SPREAD = "spread"  #: any, as of a producer
    KEEP_ORDER = "keep-order"  #: one for all that come from one partition
    REFUSE = "refuse"  #: none: such a record is an error


class Order(StrEnum):
    """The order of the records of a key that stands in several partitions."""

    OFFSET = "offset"  #: that of its partition: with several partitions, it has none
    TIMESTAMP = "timestamp"  #: that of time


class ClonedTransactions(StrEnum):
    """The treatment of transactions that are not ended."""

    REFUSE = "refuse"
    LEAVE_OUT = "leave-out"  #: all records from the beginning of the first one on are left out


class ClonedPartition(NamedTuple):
    """A partition of a clone.

    Attributes
    ----------
    topic, partition : its name and number.
    n_records : number of records.
    log_start_offset, log_end_offset : half-open range of their offsets.
    """

    topic: str
    partition: int
    n_records: int
    log_start_offset: int
    log_end_offset: int


class ClonedGroup(NamedTuple):
    """A group of the source, in a clone.

    Attributes
    ----------
    group : its name.
    n_read : records of the clone that it had read in the source.
    n_repeated : how many of them it reads once more; it skips none.
    """

    group: str
    n_read: int
    n_repeated: int


class Clone(NamedTuple):
    """The result of `clone`.

    Attributes
    ----------
    partitions : of the clone, in their order.
    groups : the groups of the source, sorted, with what they repeat.
    offsets : places of the groups in the clone, sorted; see `offsets_csv`.
    n_left_out : records that `transform` has left out.
    unknown_schema_ids : up to about twenty ids of schemas that were met and that the maps lack.
        If nothing is to have such an id, a value only looks as if it had one.
    unread_groups : partitions of ``__consumer_offsets`` that cannot be read, or only in part:
        groups that they store may be missing.  The log has the reasons.
    n_changed_keys, n_changed_values : records whose key or value `transform` has changed.  If it
        has changed nothing at all, a warning says so.
    """

    partitions: tuple[ClonedPartition, ...]
    groups: tuple[ClonedGroup, ...]
    offsets: tuple[GroupOffset, ...]
    n_left_out: int
    unknown_schema_ids: tuple[int, ...]
    unread_groups: tuple[str, ...]
    n_changed_keys: int = 0
    n_changed_values: int = 0


@dataclass(frozen=True, slots=True)
class CloneSettings:
    """The arguments of `segmentlog.clone` after the path.

    Raises `OptionError` if a value is not accepted.

    Parameters
    ----------
    topic : to clone.
    new_topic : the name of the clone.
    to : the log directory of the clone.  By default, that of the source.  In the directory of a
        broker, which is stopped, the new topic must exist, without records.
    num_partitions : partitions of the clone: each record goes to the one that Kafka's Java client
        chooses for its key.  By default, records keep their partitions, and each partition keeps
        its order.
    order : the order of a key that occurs in several partitions, once they change: ``offset``
        refuses such keys, because their records have no order, and ``timestamp`` orders them by
        time.  Records of one key in one partition keep their order in both cases.
    null_keys : the new partitions of records without a key: ``spread`` over all, without an order,
        as by a producer; ``keep-order``, one for all that were in one partition, in their order;
        or ``refuse`` them.
    transform : called with record batches with the columns ``key``, ``value``, ``partition``,
        ``offset``, ``timestamp``, ``timestampType`` and ``headers``, whose names are binary.  It
        returns a batch or a table with these columns.  Rows may be left out, and ``partition`` and
        ``offset``, which do not change, show which rows are left.  Partitions are chosen by the
        new keys.  It may be called twice for a row.
    mask : fields of values and keys that a registry's serializers have written, by paths such as
        ``value.email`` or ``value.items[].sku``; or a mapping from paths to other values, or to
        functions from an old value to a new one.  Texts without another value become
        ``[hidden]``, numbers 0, bytes zeros of the same length; null stays null.  A value is
        written again by the schema that it names, in the same frame.  One that cannot be decoded
        ends the clone.  `transform` comes first.
    schema_ids, key_schema_ids : old ids of a schema registry and the new ones, for values and for
        keys: in front of the bytes, or in a header.  GUIDs, as text, are replaced in headers.
        Other ids stay, and are named in the result.
    keep_offsets : whether records also keep their offsets.
    codec : of the batches, if the topic's ``compression.type`` does not say; by default that of
        the source.
    settings : of the clone, by Kafka's names, above the source's own, which it takes over.  A
        broker's topic has its settings in the cluster, and not from here.
    open_transactions : the treatment of transactions that are not ended: ``leave-out`` leaves out
        all records from the first of them on, in its partition; ``refuse`` refuses such a source.
        Aborted records are left out.
    overwrite : whether the clone replaces all records of an existing topic.
    show_keys : whether an error shows keys, and not only their places.
    offset_map : a Parquet file that gets the old and the new place of each record.  It gets its
        name after the commit; `segmentlog.maintain.offset_map` describes it.
    """

    topic: str
    new_topic: str
    _: KW_ONLY
    to: Annotated[
        str | os.PathLike[str] | None,
        Declared(shown_default="that of the source", metavar="DIR"),
    ] = None
    num_partitions: Annotated[
        int | None,
        Declared(
            least=1, most=MOST_PARTITIONS, flags="--partitions --num-partitions", metavar="N"
        ),
    ] = None
    order: Order | str = Order.OFFSET
    null_keys: NullKeys | str = NullKeys.SPREAD
    transform: Transform | None = None
    mask: Collection[str] | Mapping[str, "Replacement"] = ()
    decode_schemas: Annotated[
        str | os.PathLike[str] | None,
        READ_OPTIONS["decode_schemas"]._replace(
            help="With --mask: where schemas are, if not in the same directories: another log "
            "directory, the address of a registry, or a file."
        ),
    ] = None
    decode_frame: Annotated[
        ValueFrame | str | None,
        READ_OPTIONS["decode_frame"]._replace(
            help="With --mask: what names the schema of a value."
        ),
    ] = None
    schema_ids: SchemaIds = field(default_factory=dict)
    key_schema_ids: SchemaIds = field(default_factory=dict)
    keep_offsets: bool = False
    codec: Codec | None = None
    settings: Annotated[
        Mapping[str, str] | None, settings_of("compression.type")._replace(sentence="")
    ] = None
    since: Annotated[Time | None, READ_OPTIONS["since"]._replace(help="")] = None
    until: Annotated[Time | None, READ_OPTIONS["until"]._replace(help="")] = None
    read_up_to: Annotated[ReadUpTo | str, READ_OPTIONS["read_up_to"]] = ReadUpTo.HIGH_WATERMARK
    open_transactions: ClonedTransactions | str = ClonedTransactions.REFUSE
    on_corrupt_batch: Annotated[OnCorruptBatch | str, READ_OPTIONS["on_corrupt_batch"]] = (
        OnCorruptBatch.FAIL
    )
    overwrite: bool = False
    show_keys: bool = False
    dry_run: Annotated[bool, dry_run_of("cloned")] = False
    lock_timeout_seconds: Annotated[float, OPERATION_OPTIONS["lock_timeout_seconds"]] = (
        LOCK_TIMEOUT_SECONDS
    )
    offset_map: Annotated[str | os.PathLike[str] | None, Declared(metavar="FILE.parquet")] = None

    def __post_init__(self) -> None:
        for option, kind in _WORDS.items():
            object.__setattr__(self, option, one_of(option, getattr(self, option), kind))
        for option in ("topic", "new_topic"):
            name = getattr(self, option)
            instance_of(option, name, str, "give the name of a topic")
            if name in TOPICS_OF_BROKERS:
                accepted = "give a topic of applications: brokers write their own by themselves"
                raise OptionError(option, name, accepted)
        try:
            check_topic_name(self.new_topic)
        except OptionError as error:
            raise OptionError("new_topic", error.value, error.accepted) from None
        for option in ("schema_ids", "key_schema_ids"):
            _check_schema_ids(option, getattr(self, option))
        if self.num_partitions is not None:
            whole_number("num_partitions", self.num_partitions, 1, MOST_PARTITIONS)
        if self.transform is not None and not callable(self.transform):
            accepted = "give a function that takes a record batch and returns one"
            raise refused("transform", self.transform, accepted)
        object.__setattr__(self, "mask", _masks_of(self.mask))
        for option in ("decode_schemas", "decode_frame"):
            given = getattr(self, option)
            if given is not None and not self.mask:
                raise OptionError(option, str(given), "it belongs to mask, which is not given")
        if self.decode_frame is not None:
            object.__setattr__(
                self, "decode_frame", one_of("decode_frame", self.decode_frame, ValueFrame)
            )
        if self.codec is not None:
            object.__setattr__(self, "codec", number_by_word("codec", self.codec, Codec))
        if self.keep_offsets and (self.num_partitions is not None or self.overwrite):
            other = "overwrite" if self.num_partitions is None else "num_partitions"
            accepted = f"offsets mean something in the same partitions alone: leave out {other}"
            raise OptionError("keep_offsets", "True", accepted)
        check_stored({} if self.settings is None else self.settings)


@dataclass(frozen=True, slots=True)
class CloneHereSettings(CloneSettings):
    """Those of a clone that this process makes alone.

    Parameters
    ----------
    on_records : called with the number of records of each piece once it is read.
    on_phase : called with what is done.
    """

    _: KW_ONLY
    on_records: Callable[[int], object] = lambda _: None
    on_phase: Callable[[str], object] = lambda _: None


_WORDS: Mapping[str, type[StrEnum]] = {
    "order": Order,
    "null_keys": NullKeys,
    "read_up_to": ReadUpTo,
    "open_transactions": ClonedTransactions,
    "on_corrupt_batch": OnCorruptBatch,
}


def _masks_of(given: object) -> Mapping[str, "Replacement"]:
    """Replacements by paths, of which each begins with a column.  Raises `OptionError`."""
    words = "give paths such as 'value.email', or a mapping from paths to other values"
    found = given if isinstance(given, Mapping) else dict.fromkeys(texts("mask", given, words))
    for path in found:
        if not isinstance(path, str) or not re.match(r"(?:key|value)(?:$|[.\[])", path):
            raise refused("mask", path, "a path begins with value or key: 'value.email'")
    return found


def _check_schema_ids(option: str, given: object) -> None:
    """Refuse a map that has others than ids, or GUIDs, on both sides of an entry.

    Raises `OptionError` with the entry.
    """
    instance_of(option, given, Mapping, _IDS)
    assert isinstance(given, Mapping)  # noqa: S101 - checked
    for old, new in given.items():
        if isinstance(old, str) and isinstance(new, str):
            for each in (old, new):
                try:
                    uuid.UUID(each)
                except ValueError:
                    raise refused(option, each, _IDS) from None
        elif isinstance(old, str) or isinstance(new, str):
            raise refused(option, {old: new}, _IDS)
        else:
            whole_number(option, old, 0, _LARGEST_ID, "ids")
            whole_number(option, new, 0, _LARGEST_ID, "ids")


SourcePath: TypeAlias = str | os.PathLike[str] | LogDirectory | Sequence[str | os.PathLike[str]]


def open_source(path: SourcePath) -> LogDirectory:
    """The directory of a source, or several of a cluster's brokers."""
    if isinstance(path, LogDirectory):
        return path
    if isinstance(path, str | os.PathLike):
        return open_log_dir(path)
    return open_replicas(*path_texts("path", path))


@one_dialect()
@storage_errors()
@keywords_of(CloneHereSettings)
def clone(
    path: SourcePath,
    given: CloneHereSettings,
) -> Clone:
    """Clone a topic under another name, perhaps over another number of partitions.

    ::

        segmentlog.clone("/var/lib/kafka", "orders", "orders-v2", to="/data/logs",
                         num_partitions=24)

    Nothing of the clone is visible before all of it is.  A clone that was killed can be run again.

    Parameters
    ----------
    path : the log directory of the source, or several of a cluster's brokers; or what
        `open_log_dir` or `open_replicas` has opened, for example with a tier.
    **options : those of `CloneSettings`.

    Returns
    -------
    Clone
        With the places of the groups in the clone, if the source has ``__consumer_offsets``: give
        them to `offsets_csv`.  A group skips no record.

    Raises
    ------
    SplitKeyError
        If a key occurs in several partitions, and `order` is ``offset``.
    LogDirectoryError
        If a path is not a log directory; if the clone's topic has records, or gets some meanwhile;
        if a transaction is open.
    UnknownTopicOrPartitionError
        If there is no such topic; if a broker's directory does not have the new one.
    OptionError, ColumnError
        If an argument is not accepted; if `transform` raises, or returns other rows; if a record
        has no key, and `null_keys` is ``refuse``.
    LogLockedError
        If a broker or a writer holds the directory of the clone.
    CorruptLogError, MalformedRecordError, UnsupportedFormatError, LogChangedError
        If the source cannot be read.
    RecordTooLargeError, InvalidRecordError
        If the clone cannot hold a record.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.

    Notes
    -----
    A group that has read the source up to about one time in all partitions repeats the few records
    around that time: exactly `ClonedGroup.n_repeated`.  A group that has not read one partition
    stands at the first record of it, and reads later records of other partitions again.
    """
    # The kernels load here.
    from segmentlog.maintain.cloning.job import CloneJob
    from segmentlog.maintain.cloning.task import run_task
    from segmentlog.maintain.offset_map import CLONED_MAP_SCHEMA, OffsetMapWriter

    source = open_source(path)
    with ExitStack() as stack:
        file = None
        if given.offset_map is not None and not given.dry_run:
            file = stack.enter_context(OutputFile("offset_map", given.offset_map))
        job = stack.enter_context(CloneJob(source, given))
        given.on_phase("copies")
        with (
            nullcontext()
            if file is None
            else OffsetMapWriter(file.file, CLONED_MAP_SCHEMA) as places
        ):
            bases = job.bases

            def note(made: "Cloned", numbers: "Int64s") -> None:
                if places is not None:
                    kept = given.keep_offsets
                    offsets = made.offsets if kept else bases[made.targets] + numbers
                    places.add(given.topic, made.partitions, made.offsets, made.targets, offsets)

            (task,) = job.tasks(1)
            outcome = run_task(
                task,
                commits_here=True,
                on_records=given.on_records,
                on_misplaced=job.check_keys,
                on_cloned=note,
            )
            ends = job.ends_of([outcome])
            if places is not None:
                places.end(given.topic, *ends, is_kept=given.num_partitions is None)
        if file is not None:
            file.finish()  # a full disk is noticed before a record is visible
        given.on_phase("becomes visible")
        found = job.commit([outcome])
        if file is not None:
            try:
                file.publish()
            except BaseException:
                logger.warning("the topic is cloned, without the offset map")
                raise
        return found
