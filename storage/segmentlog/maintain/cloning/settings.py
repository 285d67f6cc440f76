"""What a clone asks for, checked before anything is read, and what it answers."""

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from segmentlog.arguments import instance_of, one_of, refused, whole_number
from segmentlog.errors import OptionError
from segmentlog.format.names import check_topic_name
from segmentlog.format.topic_config import TopicConfig
from segmentlog.maintain.restoration.plan import TOPICS_OF_BROKERS, GroupOffset
from segmentlog.model import LOCK_TIMEOUT_SECONDS, Codec, OnCorruptBatch, ReadUpTo
from segmentlog.times import Time
from segmentlog.txn.topics import MOST_PARTITIONS

if TYPE_CHECKING:
    import pyarrow as pa

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
    """

    partitions: tuple[ClonedPartition, ...]
    groups: tuple[ClonedGroup, ...]
    offsets: tuple[GroupOffset, ...]
    n_left_out: int
    unknown_schema_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloneSettings:
    """The arguments of `segmentlog.clone` after the path, which documents them.

    Raises `OptionError` if a value is not accepted.
    """

    topic: str
    new_topic: str
    _: KW_ONLY
    to: str | os.PathLike[str] | None = None
    num_partitions: int | None = None
    order: Order | str = Order.OFFSET
    null_keys: NullKeys | str = NullKeys.SPREAD
    transform: Transform | None = None
    schema_ids: SchemaIds = field(default_factory=dict)
    key_schema_ids: SchemaIds = field(default_factory=dict)
    keep_offsets: bool = False
    codec: Codec | None = None
    settings: Mapping[str, str] | None = None
    since: Time | None = None
    until: Time | None = None
    read_up_to: ReadUpTo | str = ReadUpTo.HIGH_WATERMARK
    open_transactions: ClonedTransactions | str = ClonedTransactions.REFUSE
    on_corrupt_batch: OnCorruptBatch | str = OnCorruptBatch.FAIL
    overwrite: bool = False
    show_keys: bool = False
    dry_run: bool = False
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS
    offset_map: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for option, kind in _WORDS.items():
            object.__setattr__(self, option, one_of(option, getattr(self, option), kind))
        for option in ("topic", "new_topic"):
            name = getattr(self, option)
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
        instance_of("codec", self.codec, (Codec, NoneType), "give a Codec")
        if self.keep_offsets and (self.num_partitions is not None or self.overwrite):
            other = "overwrite" if self.num_partitions is None else "num_partitions"
            accepted = f"offsets mean something in the same partitions alone: leave out {other}"
            raise OptionError("keep_offsets", "True", accepted)
        TopicConfig.parse(self.settings or {})


@dataclass(frozen=True, slots=True)
class CloneHereSettings(CloneSettings):
    """Those of a clone that this process makes alone."""

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
