"""Kafka's own log and cleaner on a directory, without a broker, at a given time of day.

Opened on ``.log`` files alone, they make all other files of a partition, as after a crash.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kafka_here.gateway import Gateway
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE
from segmentlog.log.checkpoint import read_offsets, write_offsets

#: Of each topic, by Kafka's names.
Settings = Mapping[str, Mapping[str, object]]

#: Of a broker with default settings: half of the I/O buffer of one thread, and its load factor.
_IO_BUFFER_BYTES = 512 * 1024 // 2
_MAX_MESSAGE_BYTES = 1_048_588
_LOAD_FACTOR = 0.9
_NEVER = 2**31 - 1
_MOST_ROUNDS = 1000  #: of each topic; a map of a few keys takes dozens


class Cleaned(NamedTuple):
    """One round of the cleaner: the log, its beginning, and the beginning of the next round."""

    topic: str
    first_dirty: int
    end: int


class KafkaLogs:
    """The partitions of one log directory, as a broker's `LogManager` holds them.

    `gateway`: the JVM with Kafka's classes. `directory`: holds ``<topic>-0`` for each topic, or
    will hold it. `settings`: of each topic; partitions of no other topic are opened. `now_ms`: the
    time of day for everything that is done.
    """

    def __init__(self, gateway: Gateway, directory: Path, settings: Settings, now_ms: int) -> None:
        self._gateway, self._jvm = gateway, gateway.jvm
        self._kafka = gateway.jvm.org.apache.kafka
        self._classes = self._kafka.storage.internals.log
        self.directory, self.now_ms = directory, now_ms
        self._time = self._fixed_time(now_ms)
        self._failures = self._classes.LogDirFailureChannel(1)
        self._scheduler = self._kafka.server.util.KafkaScheduler(1)
        self._pool = self._jvm.java.util.concurrent.ConcurrentHashMap()
        self._settings = settings

    def __enter__(self) -> "KafkaLogs":
        self._scheduler.startup()
        directory = str(self.directory)
        starts = read_offsets(directory, "log-start-offset-checkpoint")
        points = read_offsets(directory, "recovery-point-offset-checkpoint")
        is_clean = (self.directory / CLEAN_SHUTDOWN_FILE).exists()
        for topic, settings in self._settings.items():
            known = (topic, 0)
            start, point = starts.get(known, 0), points.get(known, 0)  # type: ignore[call-overload]
            log = self._open(topic, settings, start, point, is_clean=is_clean)
            self._pool.put(self._partition(topic), log)
        return self

    def __exit__(self, *_: object) -> None:
        """Close as a broker that stops, with checkpoints and the mark of a clean stop."""
        from segmentlog.model import TopicPartition

        directory = str(self.directory)
        starts, ends = {}, {}
        for topic in self._settings:
            log = self.log(topic)
            known = TopicPartition(topic, 0)
            ends[known] = int(log.logEndOffset())
            if log.logStartOffset() > log.logSegments().get(0).baseOffset():
                starts[known] = int(log.logStartOffset())
            log.flush(True)
            log.close()
        self._scheduler.shutdown()
        write_offsets(directory, "log-start-offset-checkpoint", starts)
        write_offsets(directory, "recovery-point-offset-checkpoint", ends)
        write_offsets(directory, "replication-offset-checkpoint", ends)
        (self.directory / CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":1}')

    def log(self, topic: str) -> Any:
        """The `UnifiedLog` of a topic."""
        return self._pool.get(self._partition(topic))

    def clean(self, *, map_bytes: int = 4 << 20) -> list[Cleaned]:
        """Let the cleaner run until no log is dirty enough; it writes its checkpoint.

        `map_bytes`: of the offset map; an entry has 24 bytes.
        """
        most_rounds = _MOST_ROUNDS * len(self._settings)
        manager = self._classes.LogCleanerManager(
            [self._file(self.directory)], self._pool, self._failures
        )
        cleaner = self._cleaner(map_bytes)
        done: list[Cleaned] = []
        try:
            while True:
                stats = self._classes.PreCleanStats()
                found = manager.grabFilthiestCompactedLog(self._time, stats)
                if not found.isPresent():
                    break
                done.append(self._round(manager, cleaner, found.get()))
                assert len(done) <= most_rounds, f"still dirty: {done[-9:]}"
        finally:
            manager.removeMetrics()
        return done

    def _round(self, manager: Any, cleaner: Any, dirty: Any) -> Cleaned:
        partition = dirty.topicPartition()
        end = int(cleaner.doClean(dirty, self.now_ms).getKey())
        manager.doneCleaning(partition, dirty.log().parentDirFile(), end)
        return Cleaned(str(partition.topic()), int(dirty.firstDirtyOffset()), end)

    def _cleaner(self, map_bytes: int) -> Any:
        system = self._kafka.common.utils.Time.SYSTEM
        throttler = self._kafka.storage.internals.utils.Throttler(
            1e18, 300, "cleaner-io", "bytes", system
        )
        return self._classes.Cleaner(
            0,
            self._classes.SkimpyOffsetMap(map_bytes),
            _IO_BUFFER_BYTES,
            _MAX_MESSAGE_BYTES,
            _LOAD_FACTOR,
            throttler,
            self._time,
            self._ignoring_consumer(),
        )

    def _open(
        self, topic: str, settings: Mapping[str, object], start: int, point: int, *, is_clean: bool
    ) -> Any:
        path = self.directory / f"{topic}-0"
        path.mkdir(parents=True, exist_ok=True)
        properties = self._jvm.java.util.Properties()
        for key, value in settings.items():
            properties.put(key, str(value))
        topic_id = self._jvm.java.util.Optional.empty()  # the partition has one
        if not (path / "partition.metadata").exists():
            new_id = self._kafka.common.Uuid(1, zlib.crc32(topic.encode()))
            topic_id = self._jvm.java.util.Optional.of(new_id)
        log = self._classes.UnifiedLog.create(
            self._file(path),
            self._classes.LogConfig(properties),
            start,
            point,
            self._scheduler,
            self._kafka.storage.log.metrics.BrokerTopicStats(),
            self._time,
            _NEVER,
            self._classes.ProducerStateManagerConfig(_NEVER, False),
            _NEVER,
            self._failures,
            is_clean,
            topic_id,
        )
        log.updateHighWatermark(log.logEndOffset())
        return log

    def _partition(self, topic: str) -> Any:
        return self._kafka.common.TopicPartition(topic, 0)

    def _file(self, path: Path) -> Any:
        return self._jvm.java.io.File(str(path))

    def _class(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(name)

    def _fixed_time(self, now_ms: int) -> Any:
        """Kafka's `Time`, whose every method returns `now_ms`, without a call into Python."""
        invoke = self._jvm.java.lang.invoke
        names = ("java.lang.Object", "java.lang.reflect.Method", "[Ljava.lang.Object;")
        number = self._jvm.java.lang.Long
        constant = invoke.MethodHandles.constant(
            self._class("java.lang.Object"), number.valueOf(str(now_ms))
        )
        handle = invoke.MethodHandles.dropArguments(constant, 0, [*map(self._class, names)])
        handler = invoke.MethodHandleProxies.asInterfaceInstance(
            self._class("java.lang.reflect.InvocationHandler"), handle
        )
        time = self._class("org.apache.kafka.common.utils.Time")
        interfaces = self._gateway.java.new_array(self._jvm.java.lang.Class, 1)
        interfaces[0] = time
        return self._jvm.java.lang.reflect.Proxy.newProxyInstance(
            time.getClassLoader(), interfaces, handler
        )

    def _ignoring_consumer(self) -> Any:
        """Kafka's check whether a cleaning has been aborted, which never finds an abort."""
        invoke = self._jvm.java.lang.invoke
        kind = invoke.MethodType.methodType(
            self._jvm.java.lang.Void.TYPE, self._class("java.lang.Object")
        )
        return invoke.MethodHandleProxies.asInterfaceInstance(
            self._class("java.util.function.Consumer"), invoke.MethodHandles.empty(kind)
        )
