"""Show and change the settings of topics: `topic_settings` and `alter_settings`."""

import os
from collections.abc import Collection, Mapping

from segmentlog.arguments import instance_of, texts
from segmentlog.cluster.directory_settings import DirectorySettings, Setting, is_of_a_broker
from segmentlog.dialects import one_dialect
from segmentlog.errors import OptionError
from segmentlog.format.names import check_topic_name
from segmentlog.format.topic_config import TopicConfig, setting_names
from segmentlog.model import LOCK_TIMEOUT_SECONDS
from segmentlog.store.durable import make_directory, sync_ancestors
from segmentlog.store.partitions import refuse_partition
from segmentlog.store.paths import local_path
from segmentlog.store.system_errors import storage_errors
from segmentlog.txn.held import hold
from segmentlog.txn.settings_file import SettingsFile


@one_dialect()
@storage_errors()
def topic_settings(
    path: str | os.PathLike[str],
    topic: str | None = None,
    *,
    metadata: str | os.PathLike[str] | None = None,
    server_properties: str | os.PathLike[str] | None = None,
) -> dict[str, Setting]:
    """The settings of a topic, by Kafka's names, and where each of them comes from.

    Parameters
    ----------
    path : a log directory.
    topic : its name, or None for topics without their own settings.
    metadata : in a broker's directory, the broker's log directory that holds
        ``__cluster_metadata-0``, if that is a different one.
    server_properties : the file with the broker's static settings, which no log contains.

    Raises
    ------
    OptionError
        If the metadata of a broker's directory is somewhere else, and is not named.
    LogDirectoryError, CorruptLogError, CorruptCheckpointError
        If `path` is a partition directory; if the metadata, or a file with settings, cannot be
        read.
    """
    directory = local_path(path)
    if topic is not None:
        instance_of("topic", topic, str, "give the name of a topic")
    refuse_partition(directory)
    return DirectorySettings.read(directory, None, metadata, server_properties).of(topic)


@one_dialect()
@storage_errors()
def alter_settings(
    path: str | os.PathLike[str],
    topic: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    remove: Collection[str] = (),
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> None:
    """Store settings in a directory without a broker: jobs, retention and compaction use them.

    Operations that a crash has interrupted are finished or undone first.

    Parameters
    ----------
    path : a log directory; it is made if it is missing.
    topic : its name, or None for the defaults of all topics.
    settings : by Kafka's names (``segment.bytes``); settings that are not named stay.
    remove : names of settings to remove.
    lock_timeout_seconds : how long to wait for a writer.

    Raises
    ------
    OptionError
        If a setting is unknown or not accepted; in a broker's directory, whose settings are kept
        by its cluster.
    LogDirectoryError
        If `path` is a partition directory; if an interrupted operation cannot be undone.
    LogLockedError
        If a writer holds the directory.
    CorruptCheckpointError
        If the file of settings cannot be read.
    SyncFailedError, StorageError
        If the disk is full or fails, or if this user lacks a permission.
    """
    directory = local_path(path)
    if topic is not None:
        check_topic_name(topic)
    removed = texts("remove", remove, "give names of settings")
    for name in removed:
        if name not in setting_names():
            raise OptionError(name, "", f"settings are {', '.join(setting_names())}")
    refuse_partition(directory)
    if is_of_a_broker(directory):
        accepted = "a broker's topics have their settings in the cluster: use kafka-configs.sh"
        raise OptionError("path", directory, accepted)
    TopicConfig.parse(settings or {})
    make_directory(directory)
    # Without unfinished changes: finishing a deletion removes the settings of its topic.
    with hold(directory, lock_timeout_seconds):
        known = SettingsFile.read(directory)
        known.altered(topic, settings or {}, removed).write(directory)
        sync_ancestors(directory)
