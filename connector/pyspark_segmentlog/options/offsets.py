"""Start and end of a read: ``earliest``, ``latest``, JSON as for Spark's ``kafka``, a checkpoint.

::

    {"orders": {"0": 23, "1": -2}, "payments": "latest"}
    checkpoint:/checkpoints/orders

-2 stands for earliest and -1 for latest; a topic may also map to either word for all of its
partitions.  A map must name exactly the partitions that are read.  The checkpoint of a streaming
query names the partitions that the query knows; a stream begins others at earliest.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.reads import exists, read_stream_checkpoint, readable_path, topic_ids_of

logger = logging.getLogger(__name__)

EARLIEST = -2
LATEST = -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_LARGEST_PARTITION = 2**31 - 1
_CHECKPOINT = "checkpoint:"


@dataclass(frozen=True, slots=True)
class OffsetBound:
    """One end of a read, before the existing offsets are known."""

    option: str  # name of the option, for messages
    text: str  # the user's text
    #: `EARLIEST` or `LATEST` for all partitions, or None if they are named
    everywhere: int | None = None
    topics: tuple[tuple[str, int], ...] = ()  # `EARLIEST` or `LATEST` by topic
    #: offsets, `EARLIEST` or `LATEST` by partition
    partitions: tuple[tuple[TopicPartition, int], ...] = ()
    #: the ids of topics, where a checkpoint has them, or the map
    topic_ids: tuple[tuple[str, str], ...] = ()
    #: whether `partitions` are those of a checkpoint: other partitions are at `EARLIEST`, and it
    #: may name partitions that are not read
    is_checkpoint: bool = False
    #: why the checkpoint could not be read; it is raised when the bound is needed.  A stream that
    #: has its own checkpoint needs no start.
    error: SegmentLogError | None = None

    @classmethod
    def parse(cls, option: str, text: str) -> "OffsetBound":
        """Parse the value of ``startingOffsets`` or ``endingOffsets``; a checkpoint is read now.

        Raises `ValueError` if the text is neither of the words nor such a map; `OptionError` if a
        map has a name twice, or a checkpoint does not have one source with offsets;
        `LogDirectoryError` or `CorruptCheckpointError` or `StorageError` if a checkpoint cannot be
        read.
        """
        word = _WORDS.get(text.strip().lower())
        if word is not None:
            return cls(option, text, everywhere=word)
        if is_checkpoint(text):
            return cls._of_checkpoint(option, text)
        return cls._parse_map(option, text)

    @classmethod
    def _of_checkpoint(cls, option: str, text: str) -> "OffsetBound":
        """The offsets of ``checkpoint:PATH``, or of ``checkpoint:PATH#SOURCE``."""
        path = text.strip()[len(_CHECKPOINT) :].strip()
        source = None
        before, mark, after = path.rpartition("#")
        if mark and not exists(readable_path(path)):
            path, source = before, after
        checkpoint = read_stream_checkpoint(path)
        try:
            offsets = checkpoint.offsets(source)
        except OptionError as error:
            accepted = (
                f"{error.accepted} as {_CHECKPOINT}PATH#SOURCE" if source else error.accepted
            )
            raise OptionError(option, text, accepted) from None
        (name,) = (each for each, found in checkpoint.sources.items() if found is offsets)
        ids = checkpoint.topic_ids[name]
        return cls(
            option, text, None, (), tuple(offsets.items()), tuple(ids.items()), is_checkpoint=True
        )

    @classmethod
    def _parse_map(cls, option: str, text: str) -> "OffsetBound":
        topics: list[tuple[str, int]] = []
        maps: dict[str, object] = {}
        for topic, entry in load_object(option, text).items():
            if isinstance(entry, str) and entry.lower() in _WORDS:
                topics.append((topic, _WORDS[entry.lower()]))
            else:
                maps[topic] = entry
        partitions: list[tuple[TopicPartition, int]] = []
        for topic_partition, offset in parse_partitions(option, text, maps):
            if type(offset) is not int or not EARLIEST <= offset <= LARGEST_LONG:
                raise ValueError
            partitions.append((topic_partition, offset))
        ids = tuple(topic_ids_of(maps).items())
        return cls(option, text, None, tuple(topics), tuple(partitions), ids)

    def refuse(self, refused: int) -> None:
        """Refuse `LATEST` as the start of a batch query, or `EARLIEST` as the end of one."""
        name = "latest (-1)" if refused == LATEST else "earliest (-2)"
        verb = "start" if refused == LATEST else "end"
        other = "earliest" if refused == LATEST else "latest"
        accepted = f"a batch query may not {verb} at {name}"
        remedy = f": give {other} or offsets"
        if self.everywhere == refused:
            raise OptionError(self.option, self.text, accepted + remedy)
        for where, offset in (*self.topics, *self.partitions):
            if offset == refused:
                raise OptionError(self.option, self.text, f"{accepted}, as {where} does{remedy}")

    def resolve(self, assigned: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """An offset, `EARLIEST` or `LATEST` for each partition that is read."""
        if self.error is not None:
            raise self.error
        wanted = sorted(assigned)
        if self.everywhere is not None:
            return dict.fromkeys(wanted, self.everywhere)
        topics, found = dict(self.topics), dict(self.partitions)
        if self.is_checkpoint:
            return {each: found.get(each, EARLIEST) for each in wanted}
        found |= {each: topics[each.topic] for each in wanted if each.topic in topics}
        idle = topics.keys() - {each.topic for each in wanted}
        check_partitions(
            self.option, self.text, found, wanted, idle, ", with -2 for earliest and -1 for latest"
        )
        return {each: found[each] for each in wanted}

    def warn_of_missing(self, wanted: Iterable[TopicPartition]) -> None:
        """Log the partitions of topics that are read which only a checkpoint knows."""
        if not self.is_checkpoint:
            return
        read = set(wanted)
        topics = {each.topic for each in read}
        missing = [
            each for each, _ in self.partitions if each.topic in topics and each not in read
        ]
        if missing:
            logger.warning(
                "option %r: the checkpoint names partitions that are not read: %s; a broker's log "
                "directory holds only its own replicas",
                self.option,
                listed(map(str, missing)),
            )

    def asked(self, topic_partition: TopicPartition) -> int | None:
        """The offset, `EARLIEST` or `LATEST` of a partition, or None if it is not named."""
        if self.everywhere is not None:
            return self.everywhere
        of_topic = dict(self.topics).get(topic_partition.topic)
        if self.is_checkpoint:
            of_topic = EARLIEST
        return dict(self.partitions).get(topic_partition, of_topic)


def is_checkpoint(text: str) -> bool:
    """Whether the value of an option names the checkpoint of a query."""
    return text.strip()[: len(_CHECKPOINT)].lower() == _CHECKPOINT


def check_partitions(
    option: str,
    text: str,
    found: Iterable[TopicPartition],
    wanted: Iterable[TopicPartition],
    idle: Iterable[str] = (),
    hint: str = "",
) -> None:
    """Refuse a map of other partitions than those that are read.

    `option`, `text`: name of the option, and its text.  `idle`: topics that the map names and that
    have no partition among these.  `hint`: what to give for a partition.
    """
    wanted = list(wanted)
    if set(found) != set(wanted) or set(idle):
        given = sorted([*map(str, found), *idle])
        accepted = (
            f"it must name exactly the partitions that are read{hint}: the read has "
            f"{listed(map(str, wanted))}, and the option names {listed(given)}"
        )
        raise OptionError(option, text, accepted)


def listed(names: Iterable[str]) -> str:
    """At most twenty names in a row, and how many more there are."""
    names = list(names)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def load_object(option: str, text: str) -> Mapping[str, object]:
    """A JSON object without repeated keys."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise OptionError(option, text, _twice(key))
            found[key] = value
        return found

    try:
        loaded = json.loads(text, object_pairs_hook=unique)
    except OptionError:
        raise
    except (ValueError, RecursionError):  # ValueError also for a number of thousands of digits
        raise ValueError from None  # without the reason, which is about the text, not the option
    if not isinstance(loaded, dict):
        raise ValueError
    return loaded


def parse_partitions(
    option: str, text: str, loaded: Mapping[str, object]
) -> list[tuple[TopicPartition, object]]:
    """The values of ``{"topic": {"partition": value}}``, unchecked."""
    found: dict[TopicPartition, object] = {}
    for topic, entry in loaded.items():
        if not isinstance(entry, dict):
            raise ValueError
        for partition, value in entry.items():
            if not partition.isdecimal() or int(partition) > _LARGEST_PARTITION:
                raise ValueError
            topic_partition = TopicPartition(topic, int(partition))
            if topic_partition in found:  # as "0" and as "00"
                raise OptionError(option, text, _twice(str(topic_partition)))
            found[topic_partition] = value
    return list(found.items())


def _twice(name: str) -> str:
    return (
        f"it names {name!r} twice: give each topic once, either with one word or with its "
        "partitions"
    )


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """The partitions of an ``assign`` option: ``{"orders": [0, 1]}``."""
    found: list[TopicPartition] = []
    for topic, partitions in load_object("assign", text).items():
        if not isinstance(partitions, list):
            raise ValueError
        for partition in partitions:
            if type(partition) is not int or not 0 <= partition <= _LARGEST_PARTITION:
                raise ValueError
            found.append(TopicPartition(topic, partition))
    if not found:
        raise ValueError
    return tuple(sorted(set(found)))
