"""The features of a cluster, and the levels that each release of Kafka takes.

A node ends if the metadata has a feature that it does not know, or a level that it does not take
(``QuorumFeatures``).  The ranges are those of ``BrokerFeatures.defaultSupportedFeatures`` of each
release.
"""

from collections.abc import Iterator, Mapping

from segmentlog.arguments import refused
from segmentlog.errors import OptionError
from segmentlog.maintain.health.faults import StartAction
from segmentlog.maintain.health.kinds import Fault, FaultKind

#: ``MetadataVersion.LATEST_PRODUCTION`` by release, which also knows later ones, and refuses them.
_METADATA_VERSION = {
    (3, 3): 7,
    (3, 4): 8,
    (3, 5): 11,
    (3, 6): 14,
    (3, 7): 19,
    (3, 8): 20,
    (3, 9): 21,
    (4, 0): 25,
    (4, 1): 27,
    (4, 2): 29,
    (4, 3): 30,
    (4, 4): 33,
}
_LEAST_OF_KAFKA_4 = 7  #: ``metadata.version`` of Kafka 3.3

#: The first releases that know another feature, and its largest level from then on.
_OTHERS: Mapping[str, Mapping[tuple[int, int], int]] = {
    "kraft.version": {(3, 9): 1},
    "transaction.version": {(4, 0): 2},
    "group.version": {(4, 0): 1},
    "eligible.leader.replicas.version": {(4, 0): 1},
    "share.version": {(4, 1): 1, (4, 4): 2},
    "streams.version": {(4, 2): 1},
}


def release_of(option: str, version: object) -> tuple[int, int] | None:
    """The release of a version of Kafka; None without one.  Raises `OptionError`."""
    if version is None:
        return None
    try:
        release = tuple(map(int, version.split(".")[:2])) if type(version) is str else ()
    except ValueError:
        release = ()
    if len(release) != 2:
        raise refused(option, version, "a version of Apache Kafka, such as 4.3 or 3.9.1")
    if release < min(_METADATA_VERSION):
        raise OptionError(option, str(version), "a version with KRaft: 3.3 or later")
    return release[0], release[1]


def levels_of(release: tuple[int, int], feature: str) -> tuple[int, int]:
    """The least and the largest level of a feature that a release takes; 0 of an unknown one."""
    if feature == "metadata.version":
        return (_LEAST_OF_KAFKA_4 if release >= (4, 0) else 1), _METADATA_VERSION[release]
    known = [level for since, level in _OTHERS.get(feature, {}).items() if since <= release]
    return 0, max(known, default=0)


def feature_faults(
    path: str, levels: Mapping[str, int], release: tuple[int, int] | None, version: str | None
) -> Iterator[Fault]:
    """The features of the metadata in a directory that a release does not take."""
    if release is None:
        return
    if release not in _METADATA_VERSION:
        newest = ".".join(map(str, max(_METADATA_VERSION)))
        yield FaultKind.FEATURE.of(
            path,
            f"the features that Kafka {version} takes are not known here (up to {newest}), and "
            "are not compared with those of the cluster",
            action=StartAction.UNKNOWN,
        )
        return
    for feature, found in sorted(levels.items()):
        least, most = levels_of(release, feature)
        if least <= found <= most:
            continue
        if found > most:
            knows = f"knows levels up to {most}" if most else "does not know this feature"
            remedy = "start a broker of a later version"
        else:
            knows = f"takes no level below {least}"
            remedy = (
                "start a broker of Kafka 3.9 first, and raise the level with kafka-features.sh"
            )
        yield FaultKind.FEATURE.of(
            path, f"the cluster's {feature} is {found}, but Kafka {version} {knows}", remedy
        )
