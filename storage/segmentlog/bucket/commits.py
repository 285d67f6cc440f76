"""Commits, and the state of a log that they add up to.

A commit names extents: ranges of data objects with the batches of one partition, and the offsets
that they get.  Everything that a reader or a writer has to know follows from the commits in their
order, so each of them arrives at the same state.  A checkpoint is such a state, written down.
"""

import json
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from heapq import nlargest
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from segmentlog.bucket.growing import Growing
from segmentlog.bucket.objects import is_data_key
from segmentlog.errors import CorruptCheckpointError, OptionError
from segmentlog.format.names import DirectoryState, parse_partition_directory
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.txn.settings_file import SettingsFile
from segmentlog.txn.state import (
    FORGOTTEN_AFTER_MS,
    MOST_SPANS,
    REMEDY,
    CommittedBatch,
    Ranges,
    Spans,
    Streams,
    Versions,
    check_types,
    decode_spans,
    decode_streams,
    decode_versions,
    encode_spans,
    encode_streams,
    encode_versions,
    forget_old,
    from_json,
    list_of,
    newest_spans,
    spans_of,
    to_json,
)

if TYPE_CHECKING:
    import pyarrow as pa

_Key = TypeVar("_Key")
_Found = TypeVar("_Found")

#: 1 is that of a log of layout 1; 2 names the log, and the commit before.
COMMIT_FORMATS = (1, 2)

#: What a commit may need that a reader has to know.  An unknown one is refused, so a later version
#: can change what commits mean without another layout.
SETTINGS = "settings"  #: of topics; a checkpoint of a writer that does not know them lacks them
COMPACTION = "compaction"  #: by key; such a checkpoint would lack `PartitionLog.cleaned_to`
PARTS = "parts"  #: of a commit that several writers have made together
KNOWN_FEATURES = frozenset({SETTINGS, COMPACTION, PARTS})

_LOG_ID = re.compile(r"[0-9a-f]{32}")
_TOPIC_ID = re.compile(r"[0-9A-Za-z_-]{22}")
_MOST_PARTITIONS = 1_000_000  # of a topic; more would fill the memory of each reader
CHECKPOINT_FORMATS = (1, 2)  #: as those of commits

#: Commits after which a state forgets what is too old.
_FORGETS_EVERY = 32

#: Integers of an extent beside its object and shift, in the order of `PlacedExtent`.
_NUMBERS = ("start", "size", "base_offset", "end_offset", "n_records", "max_timestamp")

#: More of them, which a commit leaves out if all of them are 0.
_MORE_NUMBERS = ("offset_index", "time_index", "transaction_index", "digest")
_ALL_NUMBERS = (*_NUMBERS, *_MORE_NUMBERS)

#: Columns of a commit's extents that are numbers from 0 on.
_FROM_0 = ("partition", "start", "base_offset", "shift", "n_records")

#: Bytes that follow the batches of an extent in its object: its indexes, one after the other.
INDEX_SIZES = ("offset_index", "time_index", "transaction_index")


class PlacedExtent(NamedTuple):
    """Batches of one partition that follow each other in a data object, with their offsets."""

    topic: str
    partition: int
    object: str  # key of the data object
    start: int  # byte of the object
    size: int  # in bytes
    base_offset: int  # of the first record, in the log
    end_offset: int  # after the last record
    n_records: int
    max_timestamp: int  # epoch milliseconds; -1 for none
    #: added to the base offset of each batch, it gives the one in the log
    shift: int
    #: bytes of its indexes, which follow it in the object; 0 for none
    offset_index: int = 0
    time_index: int = 0
    transaction_index: int = 0
    digest: int = 0  # of the bytes of the batches, by `digest_of_extent`; 0 if it is not known

    @property
    def end(self) -> int:
        """Byte of the object after the extent and its indexes."""
        indexes = self.offset_index + self.time_index + self.transaction_index
        return self.start + self.size + indexes


class StoredSnapshot(NamedTuple):
    """The producers of a partition at an offset: a ``.snapshot`` file in a data object."""

    offset: int
    object: str
    start: int
    size: int


class Topic(NamedTuple):
    """A topic of a log."""

    topic_id: str  # as Kafka prints it
    n_partitions: int
    #: partitions that the log does not have: those of other brokers than the mirrored one
    lacks: tuple[int, ...] = ()


class Extents:
    """The extents of one partition, as columns, in the order of their offsets.

    They only grow.  Several states share one of them, and each knows how many are its own
    (`PartitionLog.n_extents`): a commit costs what it adds, however long the log is.
    """

    __slots__ = ("columns", "objects", "shifts")

    def __init__(self) -> None:
        self.objects: list[str] = []  # keys; the same text for all extents of an object
        self.shifts = array("q")
        self.columns: dict[str, array[int]] = {name: array("q") for name in _ALL_NUMBERS}

    def __len__(self) -> int:
        return len(self.objects)

    def add(self, extent: PlacedExtent) -> None:
        """Append an extent."""
        self.objects.append(extent.object)
        self.shifts.append(extent.shift)
        for name in _ALL_NUMBERS:
            self.columns[name].append(getattr(extent, name))

    def part(self, begin: int, end: int) -> "Extents":
        """A copy of some extents."""
        found = Extents()
        found.objects, found.shifts = self.objects[begin:end], self.shifts[begin:end]
        found.columns = {name: column[begin:end] for name, column in self.columns.items()}
        return found

    def extend(self, others: "Extents") -> None:
        """Append extents."""
        self.objects += others.objects
        self.shifts += others.shifts
        for name, column in others.columns.items():
            self.columns[name] += column


@dataclass(slots=True)
class PartitionLog:
    """One partition: its bounds, and its extents."""

    start: int = 0  # log start offset
    end: int = 0  # log end offset
    extents: Extents = field(default_factory=Extents)
    n_extents: int = 0  # of `extents`; later ones belong to later states
    #: leader epochs and the offsets at which they begin, of a log that a mirror has brought
    epochs: tuple[tuple[int, int], ...] = ()
    snapshot: StoredSnapshot | None = None  # the newest one that a mirror has brought
    cleaned_to: int = -1  # up to where it was compacted by key; -1 if it was not

    def column(self, name: str) -> "array[int]":
        """A column of the extents of this state."""
        return self.extents.columns[name][: self.n_extents]

    @property
    def objects(self) -> list[str]:
        """Keys of the data objects of the extents."""
        return self.extents.objects[: self.n_extents]

    def placed(
        self, at: TopicPartition, begin: int = 0, end: int | None = None
    ) -> list[PlacedExtent]:
        """All extents, or those from number `begin` on, of the partition `at`."""
        part = slice(begin, self.n_extents if end is None else end)
        columns = [self.extents.columns[name][part] for name in _NUMBERS]
        more = [self.extents.columns[name][part] for name in _MORE_NUMBERS]
        rows = zip(
            self.extents.objects[part], *columns, self.extents.shifts[part], *more, strict=True
        )
        return [PlacedExtent(*at, *each) for each in rows]

    def grown(self) -> "PartitionLog":
        """The partition of the next state, to which extents may be added."""
        extents, n = self.extents, self.n_extents
        if len(extents) > n:  # another state has grown from this one
            extents = extents.part(0, n)
        return replace(self, extents=extents)

    def add(self, extent: PlacedExtent) -> None:
        """Append an extent."""
        self.extents.add(extent)
        self.n_extents += 1
        self.end = extent.end_offset

    def follow_with(self, others: Extents) -> None:
        """Append the extents that follow replaced ones.

        Raises `ValueError` if they do not follow.
        """
        if len(others):
            if others.columns["base_offset"][0] < self.end:
                raise ValueError(f"offset {self.end} lies within the next extent")
            self.extents.extend(others)
            self.n_extents += len(others)
            self.end = others.columns["end_offset"][-1]

    def without(self, first: int, end: int) -> "tuple[PartitionLog, Extents]":
        """The partition up to the extents between two offsets, and the extents after them.

        Raises `ValueError` if an extent lies on one of the two offsets.
        """
        bases, n = self.extents.columns["base_offset"], self.n_extents
        begin, stop = bisect_left(bases, first, 0, n), bisect_left(bases, end, 0, n)
        ends = self.extents.columns["end_offset"]
        if (begin and ends[begin - 1] > first) or (stop and ends[stop - 1] > end):
            raise ValueError(f"an extent does not lie in offsets [{first}, {end})")
        before = replace(self, extents=self.extents.part(0, begin), n_extents=begin)
        before.end = ends[begin - 1] if begin else 0
        return before, self.extents.part(stop, n)


#: In place of the number of a write, or of a batch: it does not count any more.
NOT_DONE = -1


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of a log; all of it happens at once."""

    number: int  # from 1
    token: str  # random: shows after a lost answer whose commit has this number
    job: str  # whose data objects it names, or empty
    time_ms: int  # by the clock of the writer (epoch)
    created: Mapping[str, Topic] = field(default_factory=dict)  # new topics, or more partitions
    deleted: Sequence[str] = ()  # topics; before new ones are created
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)  # new log starts
    extents: Sequence[PlacedExtent] = ()
    #: of a numbered write: its name, its version, and the topics that it is noted for
    version: tuple[str, int, Sequence[str]] | None = None
    batch: tuple[str, CommittedBatch] | None = None  # of a streaming query
    retired: Sequence[str] = ()  # jobs that may not commit any more
    #: ranges of offsets whose extents leave: those of this commit take their places
    replaced: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    #: offsets up to which partitions are compacted by key
    cleaned: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: of a mirror: what the logs have beside their batches, and the writes that count
    epochs: Mapping[TopicPartition, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    snapshots: Mapping[TopicPartition, StoredSnapshot] = field(default_factory=dict)
    versions: Versions = field(default_factory=dict)
    streams: Streams = field(default_factory=dict)
    #: where the records of those lie, as far as the sources know it
    spans: Spans = field(default_factory=dict)
    #: all settings of topics that have got others; those of the topic "" are the defaults
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: the log that it belongs to, and the token of the commit before; empty in layout 1
    log_id: str = ""
    previous: str = ""
    features: Sequence[str] = ()  # that a reader of it, and of all later ones, has to know
    #: commits of other writers, which follow this one in their order under the same number
    parts: "Sequence[Commit]" = ()

    def ranges(self) -> Ranges:
        """The offsets of its extents in each partition."""
        found = dict[TopicPartition, tuple[int, int]]()
        for each in self.extents:
            at = TopicPartition(each.topic, each.partition)
            found[at] = found.get(at, (each.base_offset, 0))[0], each.end_offset
        return found

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the writes that it consists of."""
        return (self.token, *(each.token for each in self.parts))

    def encode(self) -> bytes:
        """The bytes of its object."""
        more: dict[str, Any] = {"number": self.number, "time_ms": self.time_ms}
        if self.log_id:
            more |= {"log": self.log_id, "previous": self.previous}
            more["features"] = [*self.features]
        if self.parts:
            more["parts"] = [each.as_part() for each in self.parts]
        return to_json(2 if self.log_id else 1, more | self._fields())

    def with_parts(self, parts: "Sequence[Commit]") -> "Commit":
        """A commit that others follow under its number, if there are any."""
        if not parts:
            return self
        features = (*self.features, *(name for each in parts for name in each.features), PARTS)
        return replace(self, parts=parts, features=tuple(dict.fromkeys(features)))

    def as_part(self) -> dict[str, Any]:
        """What a commit is as a part of another one, for JSON."""
        return {name: found for name, found in self._fields().items() if found}

    def _fields(self) -> dict[str, Any]:
        """What a commit has, and a part of one."""
        topics = [*dict.fromkeys(each.topic for each in self.extents)]
        objects = [*dict.fromkeys(each.object for each in self.extents)]
        topic_numbers = {each: number for number, each in enumerate(topics)}
        object_numbers = {each: number for number, each in enumerate(objects)}
        extents: dict[str, list[int]] = {
            "topic": [topic_numbers[each.topic] for each in self.extents],
            "partition": [each.partition for each in self.extents],
            "object": [object_numbers[each.object] for each in self.extents],
            "shift": [each.shift for each in self.extents],
        }
        for name in _ALL_NUMBERS:
            column = [getattr(each, name) for each in self.extents]
            if name in _NUMBERS or any(column):
                extents[name] = column
        version, batch = self.version, self.batch
        more: dict[str, Any] = {
            "replaced": [[*at, *offsets] for at, offsets in self.replaced.items()],
            "cleaned": [[*at, offset] for at, offset in self.cleaned.items()],
            "epochs": [[*at, *zip(*starts, strict=True)] for at, starts in self.epochs.items()],
            "snapshots": [[*at, *each] for at, each in self.snapshots.items()],
            "settings": {topic: dict(each) for topic, each in self.settings.items()},
        }
        if self.versions or self.streams or self.spans:
            more["versions"] = encode_versions(self.versions)
            more["streams"] = encode_streams(self.streams)
            more["spans"] = encode_spans(self.spans)
        return {name: found for name, found in more.items() if found} | {
            "token": self.token,
            "job": self.job,
            "created": [[name, *each] for name, each in self.created.items()],
            "deleted": [*self.deleted],
            "starts": [[*each, start] for each, start in self.starts.items()],
            "topics": topics,
            "objects": objects,
            "extents": extents,
            "version": version and [version[0], version[1], [*version[2]]],
            "batch": batch and [batch[0], *batch[1]],
            "retired": [*self.retired],
        }

    @classmethod
    def decode(cls, data: bytes, path: str) -> "Commit":
        """The commit in an object; `path` names it in errors.

        Raises `CorruptCheckpointError` if the bytes are none, or of a newer format.
        """
        found = from_json(data, path, COMMIT_FORMATS)
        try:
            check_features(found.get("features", []), path)
            commit = cls._of(found)
            parts = list_of(found.get("parts", []), dict)
            if not parts:
                return commit
            if PARTS not in commit.features or any(each.keys() & _OF_WHOLE for each in parts):
                raise ValueError("expected parts that have none, and a feature that names them")
            of_part = partial(cls.of_part, number=commit.number, time_ms=commit.time_ms)
            return replace(commit, parts=[of_part(each) for each in parts])
        except CorruptCheckpointError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OptionError) as error:
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", REMEDY) from None

    @classmethod
    def of_part(cls, found: Mapping[str, Any], number: int, time_ms: int) -> "Commit":
        """The inverse of `as_part`; raises all kinds of errors if `found` is malformed."""
        whole = {"format": 1, "number": number, "time_ms": time_ms}
        return cls._of({**_NO_PART, **found, **whole})

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> "Commit":
        _check_commit(found)
        topics, objects, columns = found["topics"], found["objects"], found["extents"]
        zeros = [0] * len(columns["topic"])
        names = (*_NUMBERS, "shift", *_MORE_NUMBERS)
        extents = [
            PlacedExtent(topics[topic], partition, objects[key], *numbers)
            for topic, partition, key, *numbers in zip(
                columns["topic"],
                columns["partition"],
                columns["object"],
                *(columns.get(name, zeros) for name in names),
                strict=True,
            )
        ]
        version, batch = found["version"], found["batch"]
        return cls(
            found["number"],
            found["token"],
            found["job"],
            found["time_ms"],
            {name: _topic(*each) for name, *each in found["created"]},
            found["deleted"],
            {TopicPartition(topic, number): start for topic, number, start in found["starts"]},
            extents,
            None if version is None else (version[0], version[1], version[2]),
            None if batch is None else (batch[0], CommittedBatch(*batch[1:])),
            found["retired"],
            {
                TopicPartition(topic, number): (first, end)
                for topic, number, first, end in found.get("replaced", ())
            },
            {
                TopicPartition(topic, number): offset
                for topic, number, offset in found.get("cleaned", ())
            },
            {
                TopicPartition(topic, number): tuple(zip(epochs, starts, strict=True))
                for topic, number, epochs, starts in found.get("epochs", ())
            },
            {
                TopicPartition(topic, number): StoredSnapshot(*each)
                for topic, number, *each in found.get("snapshots", ())
            },
            decode_versions(found["versions"]) if "versions" in found else {},
            decode_streams(found["streams"]) if "streams" in found else {},
            decode_spans(found.get("spans", ())),
            found.get("settings", {}),
            found["log"] if found["format"] == 2 else "",
            found.get("previous", "") if found["format"] == 2 else "",
            found.get("features", []),
        )


#: Fields that only a whole commit has.
_OF_WHOLE = frozenset({"format", "number", "time_ms", "log", "previous", "features", "parts"})

#: Fields that a part may leave out, as they are empty.
_NO_PART: Mapping[str, Any] = {
    "created": [],
    "deleted": [],
    "starts": [],
    "topics": [],
    "objects": [],
    "version": None,
    "batch": None,
    "retired": [],
}


def check_features(needed: object, path: str) -> None:
    """Refuse what needs something that this version does not know.

    Raises `CorruptCheckpointError`; `TypeError` if `needed` is no list of names.
    """
    unknown = {*list_of(needed, str)} - KNOWN_FEATURES
    if unknown:
        shown = ", ".join(sorted(unknown))[:200]
        reason = f"needs what this version of segmentlog does not know: {shown}"
        raise CorruptCheckpointError(path, 1, reason, "update segmentlog here")


def check_log_id(found: object) -> None:
    """Refuse what is no id of a log; raises `ValueError` or `TypeError`."""
    check_types((found,), (str,))
    if _LOG_ID.fullmatch(str(found)) is None:
        raise ValueError(f"expected the id of a log, found {str(found)[:80]!r}")


def _topic(topic_id: str, n_partitions: int, lacks: Sequence[int] = ()) -> Topic:
    return Topic(topic_id, n_partitions, tuple(lacks))


def _numbers(given: object, least: int = 0, most: int = LARGEST_LONG) -> None:
    """Refuse a list that holds anything but integers within bounds."""
    found = list_of(given, int)
    if found and not least <= min(found) <= max(found) <= most:
        raise ValueError(f"expected integers from {least} to {most}, found {str(found)[:80]!r}")


def _in_a_row(*columns: object) -> list[Any]:
    """Lists as one; raises `TypeError` if one of them is none."""
    for each in columns:
        if type(each) is not list:
            raise TypeError(f"expected a list, found {str(each)[:80]!r}")
    return [*chain.from_iterable(cast("tuple[list[Any], ...]", columns))]


def digest_of_extent(pieces: Iterable[bytes]) -> int:
    """A digest of batches as a commit has it: 63 bits, and never 0."""
    digest = blake2b(digest_size=8)
    for piece in pieces:
        digest.update(piece)
    return int.from_bytes(digest.digest(), "big") >> 1 or 1


def _live(topic: str) -> tuple[TopicPartition, DirectoryState]:
    """What the directory of the first partition of a topic is parsed as."""
    return TopicPartition(topic, 0), DirectoryState.CURRENT


def _check_commit(found: Mapping[str, Any]) -> None:
    """Refuse what no writer makes; what depends on the state, `LogState.after` refuses."""
    check_types((found["token"], found["job"]), (str, str))
    _numbers([found["number"]], 1)
    _numbers([found["time_ms"]])
    if found["format"] == 2:
        check_log_id(found["log"])
        check_types((found.get("previous", ""),), (str,))
    for name in ("deleted", "retired", "topics", "objects"):
        list_of(found[name], str)
    for topic, topic_id, n_partitions, *lacks in found["created"]:
        check_types((topic, topic_id), (str, str))
        # Brokers' own topics come by a mirror.
        if parse_partition_directory(f"{topic}-0") != _live(topic):
            raise ValueError(f"expected the name of a topic, found {topic[:80]!r}")
        if _TOPIC_ID.fullmatch(topic_id) is None:
            raise ValueError(f"expected the id of a topic, found {topic_id[:80]!r}")
        _numbers([n_partitions], 1, _MOST_PARTITIONS)
        for each in lacks:
            _numbers(each, 0, n_partitions - 1)
    for topic, partition, start in found["starts"]:
        check_types((topic,), (str,))
        _numbers([partition, start])
    for topic, partition, first, end in found.get("replaced", ()):
        check_types((topic,), (str,))
        _numbers([partition, first, end])
        if first >= end:
            raise ValueError(f"offsets [{first}, {end}) of {topic}-{partition} are none")
    for topic, partition, offset in found.get("cleaned", ()):
        check_types((topic,), (str,))
        _numbers([partition, offset])
    for topic, partition, epochs, starts in found.get("epochs", ()):
        check_types((topic,), (str,))
        _numbers([partition])
        for column in (epochs, starts):
            _numbers(column)
            if column != sorted(column):
                raise ValueError(f"expected leader epochs that rise, found {str(column)[:80]!r}")
    snapshots = found.get("snapshots", ())
    for topic, partition, offset, key, start, size in snapshots:
        check_types((topic, key), (str, str))
        _numbers([partition, offset, start, size])
    for key in (*found["objects"], *(each[3] for each in snapshots)):
        if not is_data_key(key):
            raise ValueError(f"expected the key of a data object, found {key[:80]!r}")
    check_types((settings := found.get("settings", {}),), (dict,))
    for each in settings.values():
        _check_settings(each)
    columns = found["extents"]
    _numbers(columns["topic"], 0, len(found["topics"]) - 1)
    _numbers(columns["object"], 0, len(found["objects"]) - 1)
    # Each writer checks the commits of all others: one check of joined columns is several times
    # as quick as one of each.
    more = [columns[name] for name in _MORE_NUMBERS if name in columns]
    _numbers(_in_a_row(*(columns[name] for name in _FROM_0), *more))
    _numbers(_in_a_row(columns["size"], columns["end_offset"]), 1)
    _numbers(columns["max_timestamp"], -1)
    names = ("object", "start", "size", "base_offset", "end_offset", "n_records", "shift")
    zeros = [0] * len(columns["size"])
    indexes = (columns.get(name, zeros) for name in INDEX_SIZES)
    rows = zip(*(columns[name] for name in names), *indexes, strict=True)
    last, end = -1, 0
    for key, start, size, base, stop, n_records, shift, *sizes in sorted(rows):
        if (key == last and start < end) or start + size + sum(sizes) > LARGEST_LONG:
            raise ValueError(f"extents overlap at byte {start} of {found['objects'][key]}")
        last, end = key, start + size + sum(sizes)
        if n_records > stop - base or shift not in (0, base):
            raise ValueError(f"an extent with offsets [{base}, {stop}) does not fit its records")
    version, batch = found["version"], found["batch"]
    if version is not None:
        check_types(version, (str, int, list))
        list_of(version[2], str)
    if batch is not None:
        check_types(batch, (str, int, str, int))


def _check_settings(found: object) -> None:
    """Refuse what are no names and values: who uses settings checks that they are known."""
    check_types((found,), (dict,))
    texts = [*cast("dict[str, object]", found).values()]
    list_of(texts, str)


@dataclass(slots=True)
class LogState:
    """A log after a commit.  `after` makes a new one, which shares what has not changed."""

    number: int = 0  # of the last commit
    time_ms: int = 0  # of the last commit
    topics: dict[str, Topic] = field(default_factory=dict)
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    versions: Growing[tuple[str, str], tuple[int, int]] = field(default_factory=Growing)
    streams: Streams = field(default_factory=dict)
    #: jobs that have committed or were retired, with the time; none of them may commit any more
    ended: Growing[str, tuple[str, int]] = field(default_factory=Growing)
    #: objects of extents that have left the log, with the time: readers may still need them
    left: Growing[str, tuple[str, int]] = field(default_factory=Growing)
    #: deleted topics, each with the commit's token and time: one of that name now is another one
    deleted: Growing[str, tuple[str, int]] = field(default_factory=Growing)
    token: str = ""  # of the last commit; empty before all, and if a checkpoint does not say it
    log_id: str = ""  # of the log, from commit `since` on; empty in layout 1
    since: int = 0
    features: tuple[str, ...] = ()  # see `Commit`
    settings: SettingsFile = field(default_factory=SettingsFile)  # of topics
    #: where the records of `versions` and `streams` lie, with the times of those, as far as it is
    #: known: a checkpoint of an earlier version does not say it
    spans: Growing[tuple[str, str], tuple[Ranges, int]] = field(default_factory=Growing)

    def after(self, commit: Commit) -> "LogState":
        """The state once a commit has followed.

        A commit of another log only takes its number: a request of somebody who knew the log that
        was here before has come late.  Raises `ValueError` if the commit cannot follow this state.
        """
        if self.log_id and commit.log_id != self.log_id:
            return replace(self, number=commit.number, token=commit.token)
        if commit.log_id and commit.previous != self.token:
            raise ValueError(
                f"it was made after another commit {self.number}: objects of two logs, or of two "
                "backups, lie side by side"
            )
        now_ms = commit.time_ms
        # A jump of the clock moves all times, at once.  Else a table is only gone through now and
        # then: what is kept for longer costs a few bytes.
        forgets = commit.number % _FORGETS_EVERY == 0 or now_ms - self.time_ms > FORGOTTEN_AFTER_MS

        def kept(table: Growing[_Key, tuple[_Found, int]]) -> Growing[_Key, tuple[_Found, int]]:
            return Growing(forget_old(table, self.time_ms, now_ms)) if forgets else table

        state = LogState(
            commit.number,
            now_ms,
            dict(self.topics),
            dict(self.logs),
            kept(self.versions),
            forget_old(self.streams, self.time_ms, now_ms),
            kept(self.ended),
            kept(self.left),
            kept(self.deleted),
            commit.token,
            commit.log_id,
            self.since or (commit.number if commit.log_id else 0),
            (*dict.fromkeys((*self.features, *commit.features)),),
            self.settings,
            kept(self.spans),
        )
        state._take(commit)
        for part in commit.parts:
            state.take_part(part)
        return state

    def last_spans(self) -> Spans:
        """Where the records of the last numbered writes and batches of queries lie.

        As in a log directory, only those of the last commits are kept; the others are not known.
        """
        found = nlargest(MOST_SPANS, self.spans.items(), key=lambda each: each[1][1])
        return newest_spans({key: ranges for key, (ranges, _) in reversed(found)})

    def take_part(self, part: Commit) -> None:
        """Change this state, which nobody else has yet, by a part of its commit.

        Raises `ValueError` if the part cannot follow; the state is of no use then.
        """
        if not part.job or part.job in self.ended:
            raise ValueError(f"job {part.job!r} takes part, and has ended before")
        self._take(part)

    def _take(self, commit: Commit) -> None:
        state, now_ms = self, self.time_ms
        state.settings = state.settings.without(commit.deleted)
        for topic, settings in commit.settings.items():
            state.settings = state.settings.having(topic or None, settings)
        left: list[str] = []  # objects of extents that leave now
        for topic in commit.deleted:
            gone = state.topics.pop(topic, None)
            for partition in range(gone.n_partitions if gone else 0):
                left += _objects_of(
                    state.logs.pop(TopicPartition(topic, partition), PartitionLog())
                )
        if commit.deleted:
            state.deleted = state.deleted.grown(
                dict.fromkeys(commit.deleted, (commit.token, now_ms))
            )
            # A write of one of these versions counts as not done: its records are gone.
            state.versions = state.versions.without(lambda key: key[1] in commit.deleted)
            state.spans = state.spans.without(lambda key: key[1] in commit.deleted)
        for topic, found in commit.created.items():
            before = state.topics.get(topic)
            if before is not None and before.n_partitions > found.n_partitions:
                raise ValueError(f"topic {topic!r} would lose partitions")
            state.topics[topic] = found
            for partition in range(found.n_partitions):
                if partition not in found.lacks:
                    state.logs.setdefault(TopicPartition(topic, partition), PartitionLog())
        changed: dict[TopicPartition, PartitionLog] = {}
        after: dict[TopicPartition, Extents] = {}  # what follows the replaced extents
        for at, offsets in commit.replaced.items():
            if at not in state.logs:
                raise ValueError(f"there is no partition {at}")
            old = state.logs[at]
            changed[at], after[at] = old.without(*offsets)
            begin, stop = changed[at].n_extents, old.n_extents - len(after[at])
            left += old.objects[begin:stop]
        for extent in commit.extents:
            at = TopicPartition(extent.topic, extent.partition)
            if at in after and extent.base_offset >= commit.replaced[at][1]:
                changed[at].follow_with(after.pop(at))
            log = changed.get(at)
            if log is None:
                if at not in state.logs:
                    raise ValueError(f"there is no partition {at}")
                log = changed[at] = state.logs[at].grown()
            if not log.end <= extent.base_offset < extent.end_offset:
                shown = f"[{extent.base_offset}, {extent.end_offset})"
                raise ValueError(f"offsets {shown} of {at} do not follow {log.end}")
            log.add(extent)
        for at, extents in after.items():
            changed[at].follow_with(extents)
        for at in commit.replaced:
            changed[at].end = max(changed[at].end, state.logs[at].end)
        state.logs.update(changed)
        for at, start in commit.starts.items():
            if at not in state.logs:
                raise ValueError(f"there is no partition {at}")
            log = state.logs[at]
            # A mirror follows a log that has lost all of its records, and begins later.
            is_mirrored = at in commit.epochs
            if not log.start <= start or (start > log.end and not is_mirrored):
                raise ValueError(f"{at} cannot begin at {start}: it has [{log.start}, {log.end})")
            n = log.n_extents
            first = bisect_right(log.extents.columns["end_offset"], start, 0, n)
            left += log.objects[:first]
            state.logs[at] = replace(
                log,
                start=start,
                end=max(log.end, start),
                extents=log.extents.part(first, n),
                n_extents=n - first,
            )
        for at, offset in commit.cleaned.items():
            if at not in state.logs or offset > state.logs[at].end:
                raise ValueError(f"{at} cannot be compacted up to {offset}")
            cleaned_to = max(state.logs[at].cleaned_to, offset)
            state.logs[at] = replace(state.logs[at], cleaned_to=cleaned_to)
        for at, epochs in commit.epochs.items():
            if at not in state.logs:
                raise ValueError(f"there is no partition {at}")
            state.logs[at] = replace(state.logs[at], epochs=epochs)
        for at, snapshot in commit.snapshots.items():
            if at not in state.logs:
                raise ValueError(f"there is no partition {at}")
            if before_it := state.logs[at].snapshot:
                left.append(before_it.object)
            state.logs[at] = replace(state.logs[at], snapshot=snapshot)
        state._take_writes(commit)
        jobs = [job for job in (commit.job, *commit.retired) if job]
        state.ended = state.ended.grown(dict.fromkeys(jobs, ("", now_ms)))
        state.left = state.left.grown(dict.fromkeys(left, ("", now_ms)))

    def _take_writes(self, commit: Commit) -> None:
        """Change the numbered writes and batches that count, and where their records lie."""
        others: set[tuple[str, str]] = {  # of a mirror, which may not know where their records lie
            key
            for key, (number, _) in commit.versions.items()
            if self.versions.get(key, (-1, 0))[0] != number
        }
        others |= {
            (query, "")
            for query, (batch, _) in commit.streams.items()
            if query not in self.streams or self.streams[query][0] != batch
        }
        if not others.isdisjoint(self.spans):
            self.spans = self.spans.without(others.__contains__)
        versions, spans = dict(commit.versions), dict(commit.spans)
        if commit.version is not None:
            app_id, number, topics = commit.version
            keys = {(app_id, topic): (number, self.time_ms) for topic in topics}
            versions |= keys
            spans |= spans_of(keys, commit.ranges())
        self.streams |= commit.streams
        if commit.batch is not None:
            query, batch = commit.batch
            self.streams[query] = batch, self.time_ms
            spans |= spans_of([(query, "")], commit.ranges())
        self.versions = self.versions.grown(versions)
        if any(number == NOT_DONE for number, _ in versions.values()):
            self.versions = self.versions.without(lambda key: versions.get(key, (0, 0))[0] < 0)
        for query, (batch, _) in commit.streams.items():
            if batch.number == NOT_DONE:
                del self.streams[query]
        self.spans = self.spans.grown(self._with_times(spans))

    def _with_times(self, spans: Spans) -> dict[tuple[str, str], tuple[Ranges, int]]:
        """Spans with the times of their writes; those of other writes are left out."""
        found = dict[tuple[str, str], tuple[Ranges, int]]()
        for key, ranges in spans.items():
            known = self.versions.get(key) if key[1] else self.streams.get(key[0])
            if known is not None:
                found[key] = ranges, known[1]
        return found

    def objects(self) -> set[str]:
        """Keys of the data objects that extents lie in."""
        return {key for log in self.logs.values() for key in _objects_of(log)}

    # --- checkpoints

    def encode(self) -> bytes:
        """The bytes of a checkpoint: a file of Arrow with a row for each extent."""
        import numpy as np  # neither is needed to commit
        import pyarrow as pa

        partitions = [*self.logs.items()]
        lengths = [log.n_extents for _, log in partitions]
        keys = [key for _, log in partitions for key in log.objects]
        columns: dict[str, pa.Array] = {
            "log": pa.array(np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)),
            "object": pa.array(keys, pa.string()).dictionary_encode(),
            "shift": _joined(log.extents.shifts[: log.n_extents] for _, log in partitions),
        }
        for name in _ALL_NUMBERS:
            columns[name] = _joined(log.column(name) for _, log in partitions)
        about: dict[str, Any] = {
            "format": 2 if self.log_id else 1,
            "number": self.number,
            "time_ms": self.time_ms,
            "topics": [[name, *each] for name, each in self.topics.items()],
            "logs": [
                [*at, log.start, log.end, log.epochs, log.snapshot, *_cleaned(log)]
                for at, log in partitions
            ],
            "versions": encode_versions(self.versions),
            "streams": encode_streams(self.streams),
            "spans": encode_spans(self.last_spans()),
            "deleted": [[topic, *each] for topic, each in self.deleted.items()],
        }
        if self.log_id:
            about |= {"token": self.token, "log": self.log_id, "since": self.since}
            about["features"] = [*self.features]
            about["settings"] = self.settings.fields()
        metadata = {
            _ABOUT: json.dumps(about).encode(),
            _ENDED: _file_of(_columns_of(self.ended)),
            _LEFT: _file_of(_columns_of(self.left)),
        }
        found = _file_of(pa.table(columns).replace_schema_metadata(metadata))
        return sealed(found) if self.log_id else found

    @classmethod
    def decode(cls, data: bytes, path: str) -> "LogState":
        """The state in a checkpoint; `path` names it in errors.

        Raises `CorruptCheckpointError` if the bytes are none, or of a newer format.
        """
        import pyarrow as pa

        try:
            data = data[:-_SEAL_BYTES] if is_sealed(data) else data
            table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
            metadata = table.schema.metadata or {}
            about = from_json(metadata[_ABOUT], path, CHECKPOINT_FORMATS)
            check_features(about.get("features", []), path)
            _check_checkpoint(about, table)
            ended, left = (_rows_of(metadata[name]) for name in (_ENDED, _LEFT))
            return cls._of(about, table, ended, left)
        except (
            pa.ArrowException,
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            AttributeError,
            OSError,
            OverflowError,
            MemoryError,
        ) as error:
            if isinstance(error, CorruptCheckpointError):
                raise
            raise CorruptCheckpointError(path, 1, f"cannot be read: {error!r}", REMEDY) from None

    @classmethod
    def _of(
        cls,
        about: Mapping[str, Any],
        table: "pa.Table",
        ended: dict[str, tuple[str, int]],
        left: dict[str, tuple[str, int]],
    ) -> "LogState":
        import numpy as np

        table = table.combine_chunks()
        logs: dict[TopicPartition, PartitionLog] = {}
        counts = np.bincount(table["log"].to_numpy(), minlength=len(about["logs"]))
        ends = np.cumsum(counts).tolist()
        keys = list[str]()
        for chunk in table["object"].chunks:  # each text once
            texts = chunk.dictionary.to_pylist()
            keys += [texts[i] for i in chunk.indices.to_pylist()]
        numbers = {name: table[name].to_numpy() for name in ("shift", *_ALL_NUMBERS)}
        begin = 0
        for (topic, partition, start, end, epochs, snapshot, *more), stop in zip(
            about["logs"], ends, strict=True
        ):
            extents = Extents()
            extents.objects = keys[begin:stop]
            extents.shifts = array("q", numbers["shift"][begin:stop].tobytes())
            extents.columns = {
                name: array("q", numbers[name][begin:stop].tobytes()) for name in _ALL_NUMBERS
            }
            found = PartitionLog(
                start,
                end,
                extents,
                stop - begin,
                tuple((epoch, at) for epoch, at in epochs),
                snapshot and StoredSnapshot(*snapshot),
                *more,
            )
            logs[TopicPartition(topic, partition)] = found
            begin = stop
        state = cls(
            about["number"],
            about["time_ms"],
            {name: _topic(*each) for name, *each in about["topics"]},
            logs,
            Growing(decode_versions(about["versions"])),
            decode_streams(about["streams"]),
            Growing(ended),
            Growing(left),
            Growing({topic: (token, time_ms) for topic, token, time_ms in about["deleted"]}),
            about.get("token", ""),
            about.get("log", ""),
            about.get("since", 0),
            tuple(about.get("features", [])),
            SettingsFile(**about["settings"]) if "settings" in about else SettingsFile(),
        )
        spans = decode_spans(about.get("spans", ()))
        return replace(state, spans=Growing(state._with_times(spans)))


#: Metadata of a checkpoint: what it is about, as JSON; and files of Arrow with the jobs that have
#: ended, and the objects that extents have left, each with the time.
_ABOUT, _ENDED, _LEFT = b"segmentlog", b"segmentlog ended", b"segmentlog left"


def _file_of(table: "pa.Table") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _columns_of(rows: Growing[str, tuple[str, int]]) -> "pa.Table":
    """Texts with times, as columns: a million of them in JSON would take seconds."""
    import pyarrow as pa

    found = rows.items()
    times = pa.array([time_ms for _, (_, time_ms) in found], pa.int64())
    return pa.table({"key": pa.array([key for key, _ in found], pa.string()), "time_ms": times})


def _rows_of(data: bytes) -> dict[str, tuple[str, int]]:
    """The inverse; raises `TypeError`, `ValueError` or an error of Arrow."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    table.validate(full=True)
    keys, times = table["key"], table["time_ms"]
    if (keys.type, times.type) != (pa.string(), pa.int64()) or keys.null_count or times.null_count:
        raise TypeError(f"expected texts and integers, found {keys.type} and {times.type}")
    texts = keys.to_pylist()
    return dict(zip(texts, zip(repeat(""), times.to_pylist()), strict=True))


#: The end of a checkpoint: a digest of what is before it, as Arrow has no checksums.
_SEAL = b"segmentlog seal\n"
_DIGEST_BYTES = 16
_SEAL_BYTES = len(_SEAL) + _DIGEST_BYTES


def sealed(data: bytes) -> bytes:
    """The bytes of a checkpoint with their digest at the end."""
    return data + _SEAL + blake2b(data, digest_size=_DIGEST_BYTES).digest()


def is_sealed(data: bytes) -> bool:
    """Whether a checkpoint has a digest at the end, which is that of its bytes."""
    return data[:-_DIGEST_BYTES].endswith(_SEAL) and sealed(data[:-_SEAL_BYTES]) == data


def _check_checkpoint(about: Mapping[str, Any], table: "pa.Table") -> None:
    """Refuse what `LogState.encode` does not make: Arrow would take it, or end the process."""
    import numpy as np
    import pyarrow as pa

    table.validate(full=True)
    for name in ("log", "shift", *_ALL_NUMBERS):
        column = table[name]
        if column.type != pa.int64() or column.null_count:
            raise TypeError(f"expected integers in column {name}, found {column.type}")
    objects = table["object"]
    if objects.type != pa.dictionary(pa.int32(), pa.string()) or objects.null_count:
        raise TypeError(f"expected texts in column object, found {objects.type}")
    keys = [key for chunk in objects.chunks for key in chunk.dictionary.to_pylist()]
    snapshots = [each[5] for each in about["logs"] if each[5] is not None]
    for key in (*keys, *(each[1] for each in snapshots)):
        if not is_data_key(key):
            raise ValueError(f"expected the key of a data object, found {key[:80]!r}")
    _numbers([about["number"]], 1)
    _numbers([about["time_ms"]])
    if about["format"] == 2:
        check_log_id(about["log"])
        check_types((about["token"],), (str,))
        _numbers([about["since"]], 0, about["number"])
        if (found := about.get("settings")) is not None:
            for each in (found["defaults"], *found["topics"].values()):
                _check_settings(each)
    _numbers([each for snapshot in snapshots for each in (snapshot[0], *snapshot[2:])])
    for topic, topic_id, n_partitions, lacks in about["topics"]:
        check_types((topic, topic_id), (str, str))
        _numbers([n_partitions], 1, _MOST_PARTITIONS)
        _numbers(lacks, 0, n_partitions - 1)
    for topic, partition, start, end, epochs, _, *cleaned in about["logs"]:
        check_types((topic,), (str,))
        _numbers([partition, start, end])
        _numbers(cleaned, -1, end)
        _numbers([number for each in epochs for number in each])
    for topic, token, time_ms in about["deleted"]:
        check_types((topic, token, time_ms), (str, str, int))
    log, base, end = (table[name].to_numpy() for name in ("log", "base_offset", "end_offset"))
    n_logs = len(about["logs"])
    in_order = bool((log[:-1] <= log[1:]).all())
    if len(log) and not 0 <= log[0] <= log[-1] < n_logs:
        in_order = False
    follows = (end[:-1] <= base[1:]) | (log[:-1] != log[1:])
    if not in_order or not follows.all() or (base >= end).any():
        raise ValueError("its extents are not in the order of their offsets")
    for name in _ALL_NUMBERS:
        least = -1 if name == "max_timestamp" else 1 if name == "size" else 0
        if len(log) and int(np.min(table[name].to_numpy())) < least:
            raise ValueError(f"expected {name} of at least {least}")


def _cleaned(log: PartitionLog) -> list[int]:
    """What a row of a checkpoint has at its end if the partition was compacted by key."""
    return [log.cleaned_to] if log.cleaned_to >= 0 else []


def _objects_of(log: PartitionLog) -> list[str]:
    """Keys of the data objects that a partition needs."""
    return [*log.objects, log.snapshot.object] if log.snapshot else log.objects


def _joined(columns: "Iterable[array[int]]") -> "pa.Array":
    import numpy as np
    import pyarrow as pa

    parts = [np.frombuffer(each, np.int64) for each in columns if len(each)]
    return pa.array(np.concatenate(parts) if parts else np.empty(0, np.int64))
