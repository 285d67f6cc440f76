"""``segmentlog.settings``: the settings of topics in a directory without a broker.

::

    {"format": 1,
     "defaults": {"segment.bytes": "67108864"},
     "topics": {"orders": {"retention.ms": "86400000"}}}

Names and values are Kafka's, as text.  The file is replaced as a whole, under the lock of its
directory.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from segmentlog.errors import CorruptCheckpointError, OptionError
from segmentlog.format.names import SETTINGS_FILE
from segmentlog.format.topic_config import TopicConfig
from segmentlog.store.durable import replace_file
from segmentlog.txn.state import REMEDY, check_types, read_json, to_json

SETTINGS_FORMAT = 1

_Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """The contents of the file; a missing file has none."""

    defaults: _Settings = field(default_factory=dict)  # settings of all topics
    #: settings of single topics, which come before `defaults`
    topics: Mapping[str, _Settings] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is a setting."""
        return bool(self.defaults or self.topics)

    @classmethod
    def read(cls, directory: str) -> "SettingsFile":
        """The file of a log directory; no settings without one."""
        path = os.path.join(directory, SETTINGS_FILE)
        try:
            found = read_json(path, (SETTINGS_FORMAT,))
        except FileNotFoundError:
            return cls()
        try:
            check_types((found["defaults"], found["topics"]), (dict, dict))
            for settings in (found["defaults"], *found["topics"].values()):
                check_types(tuple(settings.values()), (str,) * len(settings))
                TopicConfig.parse(settings)
            return cls(found["defaults"], found["topics"])
        except (KeyError, TypeError, AttributeError, OptionError) as error:
            what = str(error) if isinstance(error, OptionError) else repr(error)
            raise CorruptCheckpointError(path, 1, f"cannot be read: {what}", REMEDY) from None

    def of(self, topic: str | None) -> _Settings:
        """The settings of one topic, or the defaults."""
        return self.defaults if topic is None else self.topics.get(topic, {})

    def altered(
        self, topic: str | None, settings: _Settings, removed: Collection[str] = ()
    ) -> "SettingsFile":
        """The contents with other settings of a topic, or with other defaults."""
        TopicConfig.parse(settings)
        kept = {name: text for name, text in self.of(topic).items() if name not in removed}
        kept |= {name: text.strip() for name, text in settings.items()}
        return self.having(topic, kept)

    def having(self, topic: str | None, settings: _Settings) -> "SettingsFile":
        """The contents with these settings alone of a topic, or with these defaults."""
        if topic is None:
            return SettingsFile(settings, self.topics)
        others = {name: each for name, each in self.topics.items() if name != topic}
        return SettingsFile(self.defaults, others | ({topic: settings} if settings else {}))

    def without(self, topics: Collection[str]) -> "SettingsFile":
        """The contents without the settings of these topics."""
        kept = {name: each for name, each in self.topics.items() if name not in topics}
        return SettingsFile(self.defaults, kept)

    @classmethod
    def forget(cls, directory: str, topic: str) -> None:
        """Forget the settings of a deleted topic; it can be repeated."""
        known = cls.read(directory)
        if topic in known.topics:
            known.without((topic,)).write(directory)

    def write(self, directory: str) -> None:
        """Replace the file, durably; the caller holds the lock."""
        replace_file(os.path.join(directory, SETTINGS_FILE), self.encode())

    def encode(self) -> bytes:
        """The bytes of the file."""
        return to_json(SETTINGS_FORMAT, self.fields())

    def fields(self) -> dict[str, Mapping[str, Any]]:
        """The contents, by the names in the file."""
        return {"defaults": dict(self.defaults), "topics": dict(self.topics)}
