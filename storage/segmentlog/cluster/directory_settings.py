"""The settings of each topic of a log directory: where they come from, and their changes.

Also what else upkeep asks first: the directory, its partitions, and what the metadata of the
cluster knows of them.

The first of these sources that contains a setting takes precedence:

1. the call;
2. in a broker's directory, the topic's own settings in the metadata of its cluster; then the
   dynamic settings of this node, then those of all brokers (``DynamicBrokerConfig`` has this
   order);
3. in any other directory, the topic's own settings in ``segmentlog.settings``, then its defaults;
   in both kinds of directories, a ``server.properties``, if one is named;
4. Kafka's defaults.

No log contains a broker's static settings.  Without its ``server.properties``, a setting that no
other source contains is *unseen*: Kafka's default is only a guess.

A broker's settings that are defaults of its topics have other names in the broker
(``ServerTopicConfigSynonyms``, ``LogConfig``).  The broker's older names count hours and minutes.
If several names of a setting are set, the one with the finest unit counts.
"""

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Unpack

from segmentlog.arguments import instance_of, takes, texts, topic_names
from segmentlog.errors import (
    LogDirectoryError,
    MalformedRecordError,
    OptionError,
    SegmentLogError,
)
from segmentlog.format.messages.reader import uuid_text
from segmentlog.format.names import SETTINGS_FILE, check_topic_name
from segmentlog.format.newer import KNOWN_KAFKA, LEFT, note, notes_of
from segmentlog.format.topic_config import (
    TopicConfig,
    check_stored,
    setting_names,
    setting_text,
)
from segmentlog.log.checkpoint import read_meta_properties, read_properties
from segmentlog.model import INTERNAL_TOPICS, TopicPartition
from segmentlog.operation_options import ClusterOptions, WaitOptions
from segmentlog.reads.choose import partitions_of
from segmentlog.reads.cluster_image import BROKER, TOPIC, ClusterMetadata, Row
from segmentlog.reads.log_directory import open_log_dir, open_without_listing
from segmentlog.reads.metadata_log import is_of_a_broker, metadata_path
from segmentlog.store.durable import make_directory, sync_ancestors
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.paths import is_bucket, local_path, parse_bucket, writable_path
from segmentlog.store.readable import survey
from segmentlog.store.system_errors import in_words, storage_errors
from segmentlog.txn.change import hold
from segmentlog.txn.effects import AlterSettings
from segmentlog.txn.guard import decided_intents
from segmentlog.txn.settings_file import SettingsFile

#: Settings that decide which records go.
OF_RETENTION = ("cleanup.policy", "retention.ms", "retention.bytes")
OF_COMPACTION = ("cleanup.policy", "min.compaction.lag.ms", "delete.retention.ms")

logger = logging.getLogger(__name__)

_REMEDY = "put the copy of another controller or broker in its place"


@dataclass
class ClusterSettings:
    """The settings in a cluster's metadata, by Kafka's names."""

    #: topics' own settings, by topic; a topic without settings has an empty entry
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    #: dynamic settings of brokers, by node id in text; ``""`` are those of all brokers
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)
    metadata_level: int | None = None  # level of ``metadata.version``, or None if it is not known


def read_cluster_settings(directory: str) -> ClusterSettings:
    """The settings in the cluster's metadata in a log directory."""
    return settings_of_cluster(ClusterMetadata([directory]))


def settings_of_cluster(metadata: ClusterMetadata) -> ClusterSettings:
    """The settings in the metadata of a cluster; none without a copy of it."""
    tables = _tables(metadata, "topics", "configs", "features")
    settings = ClusterSettings({row["topic"]: {} for row in tables["topics"].values()})
    if "metadata.version" in tables["features"]:
        settings.metadata_level = tables["features"]["metadata.version"]["feature_level"]
    by_kind: Mapping[int, dict[str, dict[str, str]]] = {
        TOPIC: settings.topics,
        BROKER: settings.brokers,
    }
    for (kind, resource, name), row in tables["configs"].items():
        if kind in by_kind:
            by_kind[kind].setdefault(resource, {})[name] = row["value"]
    return settings


def read_partition_counts(metadata: ClusterMetadata) -> dict[str, int]:
    """The numbers of partitions of topics in the metadata of a cluster, by topic."""
    tables = _tables(metadata, "topics", "partitions")
    counts = Counter(topic_id for topic_id, _ in tables["partitions"])
    return {row["topic"]: counts[topic_id] for topic_id, row in tables["topics"].items()}


def read_partition_ids(metadata: ClusterMetadata) -> set[tuple[str, int]]:
    """Topic ids, as Kafka prints them, and numbers of all partitions in the metadata."""
    keys = _tables(metadata, "partitions")["partitions"]
    return {(uuid_text(topic_id), number) for topic_id, number in keys}


def _tables(metadata: ClusterMetadata, *names: str) -> Mapping[str, Mapping[Any, Row]]:
    path = metadata.path or ""
    try:
        newer = notes_of(lambda: metadata.tables(*names))
    except MalformedRecordError as error:
        reason = f"its record at offset {error.offset} cannot be read: {error.reason}"
        raise LogDirectoryError(path, f"{reason}; {_REMEDY}") from error
    except LogDirectoryError as error:
        raise LogDirectoryError(error.path, f"{error.reason}; {_REMEDY}") from error
    for each in newer:
        if each.endswith(LEFT):  # records are removed by these settings
            raise LogDirectoryError(path, f"{each}, is newer than Kafka {KNOWN_KAFKA}; {_REMEDY}")
        note(each)
    return metadata.tables(*names)


_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000

#: A broker's names of a topic's settings, the first of which counts; its value times the factor
#: is the topic's.
_SYNONYMS: Mapping[str, Mapping[str, int]] = {
    "segment.bytes": {"log.segment.bytes": 1},
    "segment.ms": {"log.roll.ms": 1, "log.roll.hours": _HOUR_MS},
    "segment.index.bytes": {"log.index.size.max.bytes": 1},
    "index.interval.bytes": {"log.index.interval.bytes": 1},
    "max.message.bytes": {"message.max.bytes": 1},
    "message.timestamp.type": {"log.message.timestamp.type": 1},
    "compression.type": {"compression.type": 1},
    "flush.messages": {"log.flush.interval.messages": 1},
    "cleanup.policy": {"log.cleanup.policy": 1},
    "retention.ms": {
        "log.retention.ms": 1,
        "log.retention.minutes": _MINUTE_MS,
        "log.retention.hours": _HOUR_MS,
    },
    "retention.bytes": {"log.retention.bytes": 1},
    "file.delete.delay.ms": {"log.segment.delete.delay.ms": 1},
    "delete.retention.ms": {"log.cleaner.delete.retention.ms": 1},
    "min.cleanable.dirty.ratio": {"log.cleaner.min.cleanable.ratio": 1},
    "min.compaction.lag.ms": {"log.cleaner.min.compaction.lag.ms": 1},
    "local.retention.ms": {"log.local.retention.ms": 1},
    "local.retention.bytes": {"log.local.retention.bytes": 1},
    "max.compaction.lag.ms": {"log.cleaner.max.compaction.lag.ms": 1},
}


def topic_defaults(broker: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Defaults of topics that a broker's settings give: name, value, and the broker's name."""
    for name, synonyms in _SYNONYMS.items():
        for broker_name, factor in synonyms.items():
            text = broker.get(broker_name, "").strip()
            if not text:
                continue
            if factor > 1 and text.lstrip("-").isdecimal():
                text = "-1" if int(text) < 0 else str(int(text) * factor)
            yield name, text, broker_name
            break


#: Settings that brokers give to their internal topics when they create them.
_INTERNAL = {
    "__consumer_offsets": {"cleanup.policy": "compact"},
    "__transaction_state": {"cleanup.policy": "compact"},
    "__share_group_state": {"cleanup.policy": "delete", "retention.ms": "-1"},
}

#: A broker's setting for its tests alone, which overrides its other name.
_UNDER_ANOTHER_NAME = {"internal.segment.bytes": "segment.bytes"}


class Source(StrEnum):
    """The origin of a setting."""

    CALL = "call"
    TOPIC = "topic"  #: the topic's own, in the cluster's metadata
    NODE = "node"  #: dynamic, of this broker
    BROKERS = "brokers"  #: dynamic, of all brokers
    SERVER_PROPERTIES = "server.properties"
    FILE = SETTINGS_FILE  #: the topic's own, in a directory without a broker
    FILE_DEFAULTS = f"{SETTINGS_FILE}, defaults"
    INTERNAL = "Kafka's own topic"
    DEFAULT = "Kafka's default"
    UNSEEN = "Kafka's default, or server.properties"  #: which this call does not name


class Setting(NamedTuple):
    """The value of a setting, as text, and where it comes from."""

    value: str
    source: Source


def log_directory(path: str | os.PathLike[str]) -> str:
    """The absolute path of a log directory.

    Raises `LogDirectoryError` if `path` is something else.
    """
    directory = local_path(path)
    refuse_partition(directory)
    # Otherwise the lock would leave a file anywhere.
    open_without_listing(directory).topic_partitions()
    return directory


def partitions_for_upkeep(
    directory: str, topics: str | Collection[str], *, has_settings: bool
) -> list[TopicPartition]:
    """The partitions that upkeep looks at.

    Settings that are given for all topics are not meant for those of brokers: a policy of
    ``delete`` would take away committed offsets.

    `topics`: one name or several; all topics if empty, but none of brokers' own if `has_settings`.
    """
    topics = topic_names("topics", topics)
    chosen = partitions_of(open_log_dir(directory), topics)
    if topics or not has_settings:
        return chosen
    return [each for each in chosen if each.topic not in INTERNAL_TOPICS]


@contextlib.contextmanager
def _may_lack(needs: Collection[str] | None, given: Mapping[str, str] | None) -> Iterator[None]:
    """Read settings, or warn that they cannot be read, if all that decide were given."""
    try:
        yield
    except (SegmentLogError, OSError) as error:
        if needs is None:
            raise
        if missing := [each for each in needs if each not in (given or {})]:
            if not isinstance(error, LogDirectoryError):
                raise
            hint = f"name a complete copy (metadata), or also give {', '.join(missing)}"
            raise LogDirectoryError(error.path, f"{error.reason}; or {hint}") from error
        logger.warning(
            "%s; the settings in it do not count: those that were given do, and Kafka's defaults",
            in_words(error),
        )


class DirectorySettings:
    """The settings of a directory's topics, as they were when they were read.

    `file`: the settings in ``segmentlog.settings``, in a directory without a broker.  `is_unseen`:
    whether the broker may have static settings that were not given.
    """

    def __init__(
        self,
        given: Mapping[str, str] | None = None,
        *,
        cluster: ClusterSettings | None = None,
        node_id: str = "",
        server_properties: Mapping[str, str] | None = None,
        file: SettingsFile | None = None,
        is_unseen: bool = False,
        kafka_defaults: bool = True,
        topics: Collection[str] = (),
        purge: bool = False,
    ) -> None:
        self._given = given or {}
        self._given_to = topics
        self._purge = {"file.delete.delay.ms": "0"} if purge else {}
        self._default = Source.UNSEEN if is_unseen else Source.DEFAULT
        self._kafka_defaults = kafka_defaults
        self._cluster = cluster or ClusterSettings()
        self._file = file or SettingsFile()
        self._defaults: dict[str, Setting] = {}
        self._configs: dict[str | None, TopicConfig] = {}
        brokers = self._cluster.brokers
        merged: dict[str, str] = {}
        sources: dict[str, Source] = {}
        for settings, source in (
            (server_properties or {}, Source.SERVER_PROPERTIES),
            (brokers.get("", {}), Source.BROKERS),
            (brokers.get(node_id, {}) if node_id else {}, Source.NODE),
        ):
            merged |= settings
            sources |= dict.fromkeys(settings, source)
        for name, value, broker_name in topic_defaults(merged):
            self._defaults[name] = Setting(value, sources[broker_name])

    @classmethod
    def read(
        cls,
        directory: str,
        given: Mapping[str, str] | None = None,
        metadata: str | os.PathLike[str] | None = None,
        server_properties: str | os.PathLike[str] | None = None,
        *,
        is_optional: bool = False,
        kafka_defaults: bool = False,
        topics: str | Collection[str] = (),
        purge: bool = False,
        needs: Collection[str] | None = None,
        cluster_at: Callable[[str], ClusterSettings] | None = None,
    ) -> "DirectorySettings":
        """The settings of a log directory.

        `metadata`: the log directory that holds ``__cluster_metadata-0``, if it is not this one.
        `server_properties`: the file with a broker's static settings, which are not in the
        metadata.  `is_optional`: whether a broker's directory without metadata has Kafka's
        defaults.  `kafka_defaults`: whether Kafka's defaults may remove records, where no setting
        was given.  `topics`: to which `given` applies: one or several; all but brokers' own if
        empty.  `purge`: whether ``file.delete.delay.ms`` is 0 for these topics, or for all.
        `needs`: settings without which the caller cannot do; if all of them are given, metadata
        that cannot be read is named by a warning, and not an error.  `cluster_at`: reads those
        in a log directory's metadata; who asks for several directories keeps what was read.
        """
        TopicConfig.parse({} if given is None else given)
        topics = [topics] if isinstance(topics, str) and topics else topics
        static: Mapping[str, str] = {}
        if server_properties is not None:
            static, kafka_defaults = read_properties(local_path(server_properties)), True
        settings = partial(
            cls,
            given,
            server_properties=static,
            kafka_defaults=kafka_defaults,
            topics=topics,
            purge=purge,
        )
        if not is_of_a_broker(directory):
            # Before the settings: a guard that is gone by now has applied its effects to them.
            decided, file = decided_intents(directory), SettingsFile()
            with _may_lack(needs, given):
                file = SettingsFile.read(directory)
            for intent in decided:
                file = file.without(intent.taken_out)
                for effect in intent.effects:
                    file = effect.altered(file) if isinstance(effect, AlterSettings) else file
            return settings(file=file)
        place = directory if metadata is None else local_path(metadata)
        cluster = None
        if metadata_path(place) is not None:
            with _may_lack(needs, given):
                cluster = (cluster_at or read_cluster_settings)(place)
        elif metadata is not None:
            raise LogDirectoryError(place, "holds no __cluster_metadata-0")
        elif not is_optional and "cleanup.policy" not in (given or {}):
            accepted = (
                f"{directory} belongs to a broker, and the metadata of its cluster is in another "
                "log directory: name that directory, or give cleanup.policy and the other "
                "settings"
            )
            raise OptionError("metadata", "", accepted)
        properties = read_meta_properties(directory)
        node_id = properties.get("node.id") or properties.get("broker.id") or ""
        return settings(cluster=cluster, node_id=node_id, is_unseen=not kafka_defaults)

    @property
    def metadata_level(self) -> int | None:
        """Level of the cluster's ``metadata.version``, or None if it is not known."""
        return self._cluster.metadata_level

    @property
    def topics(self) -> Collection[str]:
        """Topics with their own settings."""
        return sorted({*self._file.topics, *self._cluster.topics})

    def of(self, topic: str | None) -> dict[str, Setting]:
        """All settings of a topic, by Kafka's names, or those of topics without their own."""
        known = TopicConfig()
        found = {
            name: Setting(setting_text(getattr(known, attribute)), self._default)
            for name, attribute in setting_names().items()
        }
        layers = (
            (_INTERNAL.get(topic or "", {}), Source.INTERNAL),
            (self._file.defaults, Source.FILE_DEFAULTS),
            (self._file.of(topic) if topic else {}, Source.FILE),
        )
        found |= self._defaults
        for settings, source in layers:
            found |= _known(settings, source)
        own = self._cluster.topics.get(topic or "", {})
        found |= _known(own, Source.TOPIC)
        for name, meant in _UNDER_ANOTHER_NAME.items():
            if name in own:
                found[meant] = Setting(own[name], Source.TOPIC)
        is_given = topic in self._given_to if self._given_to else topic not in INTERNAL_TOPICS
        if is_given:
            found |= _known(self._given, Source.CALL)
        if not self._given_to or topic in self._given_to:
            found |= _known(self._purge, Source.CALL)
        return found

    def unset(self, topic: str, limit: str) -> str | None:
        """The setting that forbids retention by a limit, because it was never set; or None.

        Kafka's default removes records after a week, and a directory without settings may be a
        backup, so somebody has to ask for that.  The default policy ``delete`` is harmless while
        the limit is set; but an unseen ``server.properties`` may contain
        ``log.cleanup.policy=compact``.
        """
        found = self.of(topic)
        if found["cleanup.policy"].source is Source.UNSEEN:
            return "cleanup.policy"
        is_set = found[limit].source not in (Source.DEFAULT, Source.UNSEEN)
        return None if is_set or self._kafka_defaults else limit

    def config(self, topic: str | None) -> TopicConfig:
        if topic not in self._configs:
            settings = {name: each.value for name, each in self.of(topic).items()}
            self._configs[topic] = TopicConfig.parse(settings)
        return self._configs[topic]


def _known(settings: Mapping[str, str], source: Source) -> dict[str, Setting]:
    names: Collection[str] = setting_names()
    return {name: Setting(value, source) for name, value in settings.items() if name in names}


@takes(ClusterOptions)
@storage_errors()
def topic_settings(
    path: str | os.PathLike[str],
    topic: str | None = None,
    **options: Unpack[ClusterOptions],
) -> dict[str, Setting]:
    """The settings of a topic, by Kafka's names, and where each of them comes from.

    Parameters
    ----------
    path : a log directory, or the URL of a log in an object store.
    topic : its name, or None for topics without their own settings.
    **options : those of `ClusterOptions`.

    Raises
    ------
    OptionError
        If the metadata of a broker's directory is somewhere else, and is not named.
    LogDirectoryError, CorruptLogError, CorruptCheckpointError
        If `path` is a partition directory; if the metadata, or a file with settings, cannot be
        read.
    """
    from segmentlog.bucket.upkeep import place_in_store  # the client of stores loads here

    location = place_in_store(path)
    directory = local_path(path) if location is None else location.root
    if topic is not None:
        instance_of("topic", topic, str, "give the name of a topic")
    if location is None:
        refuse_partition(directory)
    else:
        survey(directory)  # the settings are those of the newest commit
    static, metadata = options["server_properties"], options["metadata"]
    return DirectorySettings.read(directory, None, metadata, static).of(topic)


@takes(WaitOptions)
@storage_errors()
def alter_settings(
    path: str | os.PathLike[str],
    topic: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    remove: Collection[str] = (),
    **options: Unpack[WaitOptions],
) -> None:
    """Store settings in a place without a broker: jobs, retention and compaction use them.

    Operations that a crash has interrupted are finished or undone first.  In an object store, the
    settings are a commit of the log.

    Parameters
    ----------
    path : a log directory, or the URL of a log in an object store; it is made if it is missing.
    topic : its name, or None for the defaults of all topics.
    settings : by Kafka's names (``segment.bytes``); settings that are not named stay.
    remove : names of settings to remove.
    **options : those of `WaitOptions`.

    Raises
    ------
    OptionError
        If a setting is unknown or not accepted; in a broker's directory, whose settings are kept
        by its cluster.
    LogDirectoryError
        If `path` is a partition directory; if an interrupted operation cannot be undone; if a log
        in a store has layout 1.
    LogLockedError
        If a writer holds the directory.
    CorruptCheckpointError
        If the file of settings, or a commit, cannot be read.
    CommitInDoubtError, SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    directory = writable_path(path)
    if topic is not None:
        check_topic_name(topic)
    removed = texts("remove", remove, "give names of settings")
    for name in removed:
        if name not in setting_names():
            raise OptionError(name, "", f"settings are {', '.join(setting_names())}")
    settings = {} if settings is None else settings
    check_stored(settings)
    if is_bucket(directory):
        from segmentlog.bucket.upkeep import alter_topic_settings, place_in_store

        location = place_in_store(directory) or parse_bucket(directory)[0]
        alter_topic_settings(location, topic, settings, removed)
        return
    refuse_partition(directory)
    if is_of_a_broker(directory):
        accepted = "a broker's topics have their settings in the cluster: use kafka-configs.sh"
        raise OptionError("path", directory, accepted)
    make_directory(directory)
    # Without unfinished changes: finishing a deletion removes the settings of its topic.
    with hold(directory, options["lock_timeout_seconds"]):
        known = SettingsFile.read(directory)
        known.altered(topic, settings, removed).write(directory)
        sync_ancestors(directory)
