"""Commits of a log in an object store: what they say, and their objects.

A commit names extents.  Everything that a reader or a writer has to know follows from the commits
in their order (`segmentlog.bucket.log_state`), so each of them arrives at the same state.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, cast

from segmentlog.bucket.extents import (
    ALL_NUMBERS,
    INDEX_SIZES,
    MORE_NUMBERS,
    NUMBERS,
    PlacedExtent,
    StoredSnapshot,
    Topic,
)
from segmentlog.bucket.objects import is_data_key
from segmentlog.errors import CorruptCheckpointError, OptionError
from segmentlog.format.names import DirectoryState, parse_partition_directory
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.txn.state import (
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
    from_json,
    list_of,
    to_json,
)

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
MOST_PARTITIONS = 1_000_000  # of a topic; more would fill the memory of each reader

#: Columns of a commit's extents that are numbers from 0 on.
_FROM_0 = ("partition", "start", "base_offset", "shift", "n_records")

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
        for name in ALL_NUMBERS:
            column = [getattr(each, name) for each in self.extents]
            if name in NUMBERS or any(column):
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
        names = (*NUMBERS, "shift", *MORE_NUMBERS)
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
            {name: topic_of(*each) for name, *each in found["created"]},
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


def topic_of(topic_id: str, n_partitions: int, lacks: Sequence[int] = ()) -> Topic:
    """A topic as commits and checkpoints have it."""
    return Topic(topic_id, n_partitions, tuple(lacks))


def check_numbers(given: object, least: int = 0, most: int = LARGEST_LONG) -> None:
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


def _live(topic: str) -> tuple[TopicPartition, DirectoryState]:
    """What the directory of the first partition of a topic is parsed as."""
    return TopicPartition(topic, 0), DirectoryState.CURRENT


def _check_commit(found: Mapping[str, Any]) -> None:
    """Refuse what no writer makes; what depends on the state, `LogState.after` refuses."""
    check_types((found["token"], found["job"]), (str, str))
    check_numbers([found["number"]], 1)
    check_numbers([found["time_ms"]])
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
        check_numbers([n_partitions], 1, MOST_PARTITIONS)
        for each in lacks:
            check_numbers(each, 0, n_partitions - 1)
    for topic, partition, start in found["starts"]:
        check_types((topic,), (str,))
        check_numbers([partition, start])
    for topic, partition, first, end in found.get("replaced", ()):
        check_types((topic,), (str,))
        check_numbers([partition, first, end])
        if first >= end:
            raise ValueError(f"offsets [{first}, {end}) of {topic}-{partition} are none")
    for topic, partition, offset in found.get("cleaned", ()):
        check_types((topic,), (str,))
        check_numbers([partition, offset])
    for topic, partition, epochs, starts in found.get("epochs", ()):
        check_types((topic,), (str,))
        check_numbers([partition])
        for column in (epochs, starts):
            check_numbers(column)
            if column != sorted(column):
                raise ValueError(f"expected leader epochs that rise, found {str(column)[:80]!r}")
    snapshots = found.get("snapshots", ())
    for topic, partition, offset, key, start, size in snapshots:
        check_types((topic, key), (str, str))
        check_numbers([partition, offset, start, size])
    for key in (*found["objects"], *(each[3] for each in snapshots)):
        if not is_data_key(key):
            raise ValueError(f"expected the key of a data object, found {key[:80]!r}")
    check_types((settings := found.get("settings", {}),), (dict,))
    for each in settings.values():
        check_settings(each)
    columns = found["extents"]
    check_numbers(columns["topic"], 0, len(found["topics"]) - 1)
    check_numbers(columns["object"], 0, len(found["objects"]) - 1)
    # Each writer checks the commits of all others: one check of joined columns is several times
    # as quick as one of each.
    more = [columns[name] for name in MORE_NUMBERS if name in columns]
    check_numbers(_in_a_row(*(columns[name] for name in _FROM_0), *more))
    check_numbers(_in_a_row(columns["size"], columns["end_offset"]), 1)
    check_numbers(columns["max_timestamp"], -1)
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


def check_settings(found: object) -> None:
    """Refuse what are no names and values: who uses settings checks that they are known."""
    check_types((found,), (dict,))
    texts = [*cast("dict[str, object]", found).values()]
    list_of(texts, str)
