"""The offsets at which a checkpoint of Spark Structured Streaming stands.

::

    checkpoint/offsets/7      planned before batch 7 runs: where it ends, a line for each source
    checkpoint/commits/7      written after batch 7 has ended
    checkpoint/sources/0/0    where `kafka` began to read its first source

A file of ``offsets`` has a version, a line of settings, and the sources, in the order of the query
(``v1``) or by name or number (``v2``)::

    v1                                       v2
    {"batchWatermarkMs":0,…}                 {"batchWatermarkMs":0,…}
    {"orders":{"0":23,"1":17}}               0:{"orders":{"0":23,"1":17}}
    -                                        1:-

A ``-`` is a source that has no offset yet.  The offset of a partition is the next one to read.

Offsets mean nothing in a topic that was deleted and created again.  So `segmentlog` adds the ids
of topics, as topics without partitions whose names no topic can have: ``"orders@ID":{}``.  `kafka`
and earlier versions of `segmentlog` find no offsets there, and read the others.  A log in an
object store has such an id of its own, which names a commit: ``"@42-TOKEN":{}``.  If an earlier
backup of the log is restored, and others go on there, it has another commit of that number.
Rules: ``OffsetSeqLog``, ``CommitLog`` and ``KafkaSourceInitialOffsetWriter`` of Spark.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from segmentlog.arguments import one_dialect
from segmentlog.errors import CorruptCheckpointError, LogDirectoryError, OptionError
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.store.paths import readable_path, why_not_there
from segmentlog.store.readable import exists, is_directory, is_url, list_names, read_whole
from segmentlog.store.remote.location import without_options
from segmentlog.store.system_errors import storage_errors

#: The next offset by partition; -2 is earliest and -1 latest.
Offsets: TypeAlias = Mapping[TopicPartition, int]

_LEAST, _LARGEST = -2, LARGEST_LONG
_VOID = "-"
_BEFORE_ID = "@"  #: no name of a topic has it
OF_LOG = ""  #: stands for the log, instead of a topic, where ids of topics are
_VERSION = re.compile(r"v([0-9]{1,9})\s*")
_TORN = "restore the checkpoint from a copy that was made while its query was stopped"


class StreamCheckpoint(NamedTuple):
    """The place of a query: the end of its last committed batch."""

    path: str  # of the checkpoint
    batch: int  # number of the last committed batch, or -1 if none is committed
    #: number of the batch that is planned and not committed, or None.  A restart of the query runs
    #: it again.
    planned_batch: int | None
    #: the offsets after `batch` by the number of each source, or by its name if the query names
    #: its sources; None for a source whose offsets are not those of partitions, or that has none
    #: yet
    sources: Mapping[str, Offsets | None]
    #: the ids of the topics of each source, by topic, as far as the checkpoint has them
    topic_ids: Mapping[str, Mapping[str, str]] = MappingProxyType({})

    def offsets(self, source: str | None = None) -> Offsets:
        """The offsets of a source.

        `source`: its number or name; may be left out if one source alone has offsets of
        partitions.  Raises `OptionError` if there is no such source, it has no offsets of
        partitions, or several have.
        """
        shown = _shown(self.path)
        known = [name for name, found in self.sources.items() if found is not None]
        theirs = f"the sources of {shown} with offsets of partitions are {', '.join(known)}"
        if not known:
            accepted = (
                f"{shown} has no offsets of partitions: none of its sources is kafka or "
                "segmentlog, or no batch is committed yet"
            )
            raise OptionError("source", source or "", accepted)
        if source is None and len(known) > 1:
            raise OptionError("source", "", f"name one source: {theirs}")
        found = self.sources.get(known[0] if source is None else source)
        if found is None:
            raise OptionError("source", str(source), f"{theirs}; name one of them")
        return found


def read_stream_checkpoint(path: str | os.PathLike[str]) -> StreamCheckpoint:
    """Read where the query of a checkpoint stands; the query may run meanwhile.

    `path`: the ``checkpointLocation`` of a query: a local path, a ``file:`` URL, or a URL of an
    object store.  Raises `LogDirectoryError` if it is not a checkpoint of a streaming query;
    `CorruptCheckpointError` if one of its files is torn, or is of an unknown version;
    `StorageError` if the disk or the store fails.
    """
    path = readable_path(path)
    with storage_errors(path):
        _check_is_checkpoint(path)
        # A batch is planned before it is committed: this order never misses a committed plan.
        committed = max(_batches(f"{path}/commits"), default=-1)
        planned = max(_batches(f"{path}/offsets"), default=-1)
        if committed >= 0:
            of_commit = f"{path}/commits/{committed}"  # checked, as Spark does at the beginning
            _, lines = _lines(of_commit, (1, 2))
            _check_json(of_commit, 2, lines[0] if lines else "")
            sources = _read_offsets(f"{path}/offsets/{committed}")
            if planned > committed:
                _read_offsets(f"{path}/offsets/{planned}")  # raises if it is torn
        elif planned >= 0:  # the query stands where it began
            sources = dict.fromkeys(_read_offsets(f"{path}/offsets/{planned}"), _VOID)
        else:
            sources = {}
        names = [each for each in _names(f"{path}/sources") if exists(f"{path}/sources/{each}/0")]
        starts = sorted(names, key=lambda name: (not name.isdecimal(), len(name), name))
        known, ids = dict[str, Offsets | None](), dict[str, Mapping[str, str]]()
        for name, text in {**dict.fromkeys(starts, _VOID), **sources}.items():
            if text == _VOID and name in starts:
                known[name], ids[name] = read_initial(f"{path}/sources/{name}/0")
                continue
            known[name] = offsets_of_json(text)
            ids[name] = {} if known[name] is None else topic_ids_of(json.loads(text))
    not_committed = planned if planned > committed else None
    return StreamCheckpoint(path, committed, not_committed, known, ids)


class CheckpointOffsets(dict[tuple[str, int], int]):
    """Where a query stands, by partition, and the ids of its topics, by topic.

    The query has read nothing of a partition that is not there.
    """

    topic_ids: Mapping[str, str] = MappingProxyType({})


@one_dialect()
def checkpoint_offsets(
    checkpoint: str | os.PathLike[str], source: str | None = None
) -> dict[tuple[str, int], int]:
    """The next offsets that a streaming query of Spark reads, from its checkpoint.

    ::

        read = segmentlog.checkpoint_offsets("/checkpoints/orders")
        rest = segmentlog.read("/var/lib/kafka", "orders", starting_offsets=read)

    Parameters
    ----------
    checkpoint : the ``checkpointLocation`` of a query, as `open_log_dir` takes paths.
    source : number of the source in the query, or its name; may be left out if one source alone
        has offsets of partitions.

    Returns
    -------
    dict
        Offsets after the last committed batch by (topic, partition).  Partitions that the query
        has yet to begin at their earliest offset are left out: as ``starting_offsets``, this dict
        begins at their earliest offset, and as ``ending_offsets``, it reads nothing of them.  The
        dict keeps this, and the ids of topics if the checkpoint has them, but copies of its
        entries do not: `segmentlog.read` refuses offsets of a topic that was deleted and created
        again.

    Raises
    ------
    LogDirectoryError
        If it is not a checkpoint.
    CorruptCheckpointError
        If one of its files is torn, or is of an unknown version.
    OptionError
        If there is no such source, or if several have offsets and none is named.
    StorageError
        If the disk or the store fails.
    """
    place = read_stream_checkpoint(checkpoint)
    found = place.offsets(source)
    (name,) = (each for each, theirs in place.sources.items() if theirs is found)
    offsets = CheckpointOffsets({each: offset for each, offset in found.items() if offset >= 0})
    offsets.topic_ids = dict(place.topic_ids[name])
    return offsets


def offsets_of_json(text: str) -> dict[TopicPartition, int] | None:
    """Offsets in the form of `kafka`, sorted; None for a source that has another form."""
    try:
        return offsets_of_topics(json.loads(text))
    except (ValueError, RecursionError):
        return None


def offsets_of_topics(topics: object) -> dict[TopicPartition, int] | None:
    """Offsets of parsed JSON in the form of `kafka`, sorted; None if it has another form."""
    if not isinstance(topics, dict):
        return None
    found: dict[TopicPartition, int] = {}
    for topic, entry in topics.items():
        if not isinstance(entry, dict):
            return None
        for partition, offset in entry.items():
            is_partition = partition.isdecimal() and len(partition) <= 10
            if not is_partition or type(offset) is not int or not _LEAST <= offset <= _LARGEST:
                return None
            found[TopicPartition(topic, int(partition))] = offset
    return dict(sorted(found.items()))


def offsets_as_topics(
    offsets: Offsets, topic_ids: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, int]]:
    """Offsets in the form of `kafka`, for JSON: topics sorted, partitions as numbers; then ids."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    known = [each for each in (*topics, OF_LOG) if each in topic_ids]
    return topics | {f"{each}{_BEFORE_ID}{topic_ids[each]}": {} for each in known}


def offsets_as_json(offsets: Offsets, topic_ids: Mapping[str, str] = MappingProxyType({})) -> str:
    """The text of `offsets_as_topics`, without blanks."""
    topics = offsets_as_topics(offsets, topic_ids)
    return json.dumps(topics, ensure_ascii=False, separators=(",", ":"))


def topic_ids_of(topics: Mapping[str, object]) -> dict[str, str]:
    """The ids that parsed JSON of `offsets_as_topics` has, by topic."""
    found = (name.split(_BEFORE_ID) for name, entry in topics.items() if entry == {})
    return {parts[0]: parts[1] for parts in found if len(parts) == 2}


def made_again(now: str | None, then: str | None) -> str:
    """That a topic has another id than in a checkpoint, as the end of a sentence; or nothing."""
    is_other = now and then and now != then
    return f"its topic was deleted and created again (id {now}, not {then})" if is_other else ""


def _shown(path: str) -> str:
    """A path in messages: credentials may stand in the options of a URL."""
    return without_options(path) if is_url(path) else path


def _check_is_checkpoint(path: str) -> None:
    shown = _shown(path)
    if not is_directory(path):
        reason = "it is a file" if exists(path) else why_not_there(path)
        raise LogDirectoryError(shown, f"{reason}; name the checkpointLocation of a query")
    if not {"offsets", "metadata"} & set(list_names(path)):
        reason = (
            "it is not a checkpoint of a streaming query, which has a file 'metadata' and a "
            "directory 'offsets'; name the checkpointLocation of a query"
        )
        raise LogDirectoryError(shown, reason)


def _names(directory: str) -> list[str]:
    try:
        return list_names(directory)
    except FileNotFoundError:
        return []


def _batches(directory: str) -> list[int]:
    """Numbers of the batches that have a file; temporary files and checksums have other names."""
    return [int(name) for name in _names(directory) if name.isdecimal()]


def _lines(path: str, versions: Sequence[int]) -> tuple[int, list[str]]:
    """The version of a file, and the lines after it."""
    return _parsed(path, read_whole(path, _refusal(path), follow=True), versions)


def _parsed(path: str, data: bytes, versions: Sequence[int]) -> tuple[int, list[str]]:
    shown = _shown(path)
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CorruptCheckpointError(shown, line, "it is not UTF-8", _TORN) from None
    version = _VERSION.fullmatch(lines[0])
    if version is None:
        reason = f"expected a version such as v1, found {lines[0][:40]!r}"
        raise CorruptCheckpointError(shown, 1, reason, _TORN)
    if int(version[1]) not in versions:
        known = " and ".join(f"v{each}" for each in versions)
        reason = f"the version is {version[0].strip()}, and segmentlog knows {known}"
        remedy = "upgrade segmentlog, or give the offsets themselves"
        raise CorruptCheckpointError(shown, 1, reason, remedy)
    return int(version[1]), lines[1:]


def _read_offsets(path: str) -> dict[str, str]:
    """The text of each source in a file of ``offsets``, by number or name, if it has one."""
    shown = _shown(path)
    try:
        version, lines = _lines(path, (1, 2))
    except FileNotFoundError:
        reason = "its batch is committed, but the file with the offsets of the batch is missing"
        raise CorruptCheckpointError(shown, 1, reason, _TORN) from None
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) < 2:
        reason = "the file ends before the offset of a source"
        raise CorruptCheckpointError(shown, len(lines) + 1, reason, _TORN)
    if lines[0].strip():
        _check_json(path, 2, lines[0])
    found = {}
    for number, line in enumerate(lines[1:]):
        name, text = str(number), line
        if version > 1:
            name, colon, text = line.partition(":")
            if not colon or not name:
                reason = f"expected a source and its offset, found {line[:40]!r}"
                raise CorruptCheckpointError(shown, number + 3, reason, _TORN)
        if text != _VOID:
            _check_json(path, number + 3, text)
        found[name] = text
    return found


@storage_errors()
def read_initial(path: str) -> tuple[dict[TopicPartition, int] | None, dict[str, str]]:
    """The offsets at which a source of `kafka` began, and known ids of its topics, by topic."""
    # The offsets are None if they are those of another source. The first byte of the file is 0 for
    # the sake of Spark 2.1.0, which wrote the length of the text there, and no version.
    data = read_whole(path, _refusal(path), follow=True)
    if data[:1] == b"\0" and data[1:2] == b"v":
        _, lines = _parsed(path, data[1:], (1,))
        text = "\n".join(lines)
        number = 2
    elif data[:1] == b"v":
        return None, {}  # a log of another source, such as that of files
    else:
        text, number = data[1:].decode(errors="replace"), 1
    topics = _check_json(path, number, text)
    return offsets_of_topics(topics), topic_ids_of(topics) if isinstance(topics, dict) else {}


def _check_json(path: str, line: int, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        reason = f"expected JSON, found {text[:40]!r}"
        raise CorruptCheckpointError(_shown(path), line, reason, _TORN) from None


def _refusal(path: str) -> Callable[[str], CorruptCheckpointError]:
    return lambda why: CorruptCheckpointError(_shown(path), 1, f"it {why}", _TORN)
