"""Operations on a log directory, and the models that may hold after each of them.

An operation is a function that draws its details from a `Scene` and returns a `Plan`; it has a
row in `OPERATIONS`.
"""

import itertools
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from other_cluster import format_brokers, restore_to

import segmentlog
from random_operations.looking import (
    Seen,
    assert_equal,
    assert_trusted,
    bases_of,
    look,
    rows_of,
)
from random_operations.model import Flush, Model, NewRow, PlainLog
from segmentlog.errors import (
    InvalidProducerEpochError,
    LogDirectoryError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from segmentlog.format.names import CLEAN_SHUTDOWN_FILE, HIGH_WATERMARK_CHECKPOINT
from segmentlog.format.topic_config import TopicConfig
from segmentlog.log.checkpoint import readable_offsets
from segmentlog.model import Codec, TopicPartition
from segmentlog.reads.log import Log
from segmentlog.txn.guard import list_guards
from segmentlog.txn.topics import take_out
from segmentlog.writes.config import Producer, ProducerConfig

#: How an operation has ended: it returned, it raised an error of an operation that did nothing,
#: or its progress is not known.
DONE, REFUSED, CUT = "done", "refused", "cut"

#: Topics, each with its number of partitions.
TOPICS: Mapping[str, int] = {"a": 2, "b": 1}

#: The topic that is a clone of ``b``, and all topics.
CLONE = "c"
ALL_TOPICS: Mapping[str, int] = {**TOPICS, CLONE: 1}

_KEYS = (None, *(b"k%d" % number for number in range(6)))
_INDEX_INTERVAL_BYTES = 100
_DAY_MS = 24 * 3600 * 1000
_LARGE_BYTES = 9000  # more than some settings of segment.bytes


@dataclass
class Mirrored:
    """A mirror: `models` are those that it may have; there is none before the first mirror.

    If `is_mixed`, each partition may have that of another model: only sound logs were mirrored.
    """

    directory: Path
    models: list[Model]
    is_mixed: bool = False

    def seen(self) -> Model:
        """The model that readers see.

        Until a mirror that removes records is finished, they see the offsets that both models
        have, before or after the exchange of segments; a recovery finishes it then.
        """
        found = look(self.directory, twice=False)
        models = self.models
        if self.is_mixed:
            partitions = sorted({each for model in models for each in model.logs})
            known = [[model.logs.get(each, PlainLog()) for model in models] for each in partitions]
            models = [
                Model(dict(zip(partitions, logs, strict=True)))
                for logs in itertools.product(*known)
            ]
        errors = []
        for each in models:
            try:
                assert_equal(found, replace(each, settings={}))
            except AssertionError as error:
                errors.append(str(error))
            else:
                return each
        if list_guards(str(self.directory)) and self._begins_all(found):
            segmentlog.recover(self.directory)
            if not list_guards(str(self.directory)):
                return self.seen()
        message = "the mirror: " + "; nor: ".join(errors)
        raise AssertionError(message)

    def _begins_all(self, found: Seen) -> bool:
        """Whether each partition is that of a model, as far as all have offsets or are equal."""
        for each, log in found.logs.items():
            known = [model.logs.get(each, PlainLog()) for model in self.models]
            start, end = max(one.start for one in known), min(one.end for one in known)
            begun = [tuple(row for row in one.rows if start <= row.offset < end) for one in known]
            differs = min(
                (row.offset for one in begun for row in set(one) ^ {*begun[0]}), default=end
            )
            same = tuple(row for row in begun[0] if row.offset < differs)
            # One may have been compacted, and both have other records from an offset on.
            rows = [{row.offset: row for row in one} for one in begun]
            both = set.intersection(*map(set, rows))
            cut = min((each for each in both if len({one[each] for one in rows}) > 1), default=end)
            below = [tuple(row for row in one if row.offset < cut) for one in begun]
            if log.rows not in [same, *begun, *below, *(one.rows for one in known)]:
                return False
        return True

    def remove(self) -> None:
        """Begin a new one."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.models, self.is_mixed = [], False


@dataclass
class Scene:
    """The directory that an operation is planned on.

    `keys`, `segment_bytes`: what rows and segments are drawn from.
    """

    directory: Path
    model: Model
    rng: random.Random  # details are drawn from it
    now_ms: int  # the time of the clock
    wait: Callable[[int], None]  # moves the clock by some milliseconds
    mirrored: Mirrored  # the directory beside, to which this one is mirrored
    is_powered: bool  # whether the power may be cut, so that writers have to sync
    # what a broker has deleted, unless somebody has removed the directories since
    renamed: list["RenamedTopic"] = field(default_factory=list)
    # with their numbers of partitions
    topics: Mapping[str, int] = field(default_factory=lambda: TOPICS)
    made: Sequence[str] | None = None  # topics that exist; by default those with records
    keys: Sequence[bytes | None] = _KEYS
    segment_bytes: Sequence[int] = (400, 1000, 100_000)
    slot: int = 0  # of the process, if several work side by side
    # whether operations were cut off whose effects a power cut may still take back
    is_unsettled: bool = False

    def topic(self) -> str:
        """A random topic."""
        return self.rng.choice([*self.topics])

    def log(self, topic_partition: TopicPartition) -> segmentlog.Log:
        """One partition, as a reader sees it."""
        return segmentlog.open_log_dir(self.directory).log(*topic_partition)

    def rows(self, topic: str, most: int = 12) -> tuple[NewRow, ...]:
        """Some rows; two values of a sequence are rarely equal."""
        return tuple(self._row(topic) for _ in range(self.rng.randint(1, most)))

    def _row(self, topic: str) -> NewRow:
        rng, key = self.rng, self.rng.choice(self.keys)
        is_tombstone = key is not None and rng.random() < 0.2
        value = None if is_tombstone else b"%08x" % rng.getrandbits(32) + bytes(rng.randint(0, 60))
        headers = tuple((f"h{n}", rng.choice((None, b"x"))) for n in range(rng.randint(0, 2)))
        at = self.now_ms - rng.choice((0, 0, rng.randint(0, 5000), rng.randint(0, _DAY_MS)))
        return NewRow(rng.randrange(self.topics[topic]), at, key, value, headers)

    def config(self) -> ProducerConfig:
        """Settings of a producer: few or many batches and segments, any codec."""
        rng = self.rng
        return ProducerConfig(
            TopicConfig(
                segment_bytes=rng.choice(self.segment_bytes),
                index_interval_bytes=_INDEX_INTERVAL_BYTES,
            ),
            codec=rng.choice((Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD)),
            batch_size=rng.choice((1, 150, 500, 10_000)),
            use_timestamps=True,
            flush=rng.random() < 0.8 or self.is_powered,
        )


#: What a part of an operation does to a model.
Effect = Callable[[Model], Model]


@dataclass(frozen=True)
class Plan:
    """An operation and the models that may hold after it."""

    # does it; it calls its argument after each part that is done for good
    act: Callable[[Callable[[], None]], object]
    states: Sequence[Model]  # models before the first part, and after each part
    refusal: type[Exception] | None = None  # the error that has to be raised, if one has to
    # whether an error leaves it open if the operation was done
    is_open: bool = field(default=False, kw_only=True)
    # for how long replaced files stay: readers that have planned to read them still can
    delay_ms: int = field(default=60_000, kw_only=True)
    # the model that holds after an operation whose result depends on segments, by what a reader
    # sees and how the operation has ended; None if `states` have it
    judge: Callable[[Seen, str], Model] | None = None
    # is called without a fault once the operation has ended, and with how it did; before anybody
    # looks, but after a power cut.  What it returns are the models that may hold then; None if
    # it did nothing to the directory
    follow: Callable[[str], Sequence[Model] | None] | None = field(default=None, kw_only=True)
    # whether what was not synced before is synced once the operation is done
    is_settled: bool = field(default=True, kw_only=True)
    # what each part does to any model, so that others may come between the parts
    effects: Sequence[Effect] = field(default=(), kw_only=True)

    @classmethod
    def of(
        cls, model: Model, act: Callable[[Callable[[], None]], object], *effects: Effect
    ) -> "Plan":
        """An operation whose parts have these effects."""
        states = itertools.accumulate(effects, lambda each, effect: effect(each), initial=model)
        return cls(act, [*states], effects=effects)

    def allowed(self, seen: Seen, ending: str, n_done: int) -> list[Model]:
        """The models that may hold, by how the operation has ended and how many parts it did."""
        if self.judge is not None:
            return [self.judge(seen, ending)]
        if ending == DONE:
            return [self.states[-1]]
        is_known = ending == REFUSED and not self.is_open
        return [*self.states[n_done : n_done + (1 if is_known else 2)]]


def _table(topic: str, rows: Sequence[NewRow], *, preserves: bool = False) -> pa.Table:
    headers = [[{"key": key, "value": value} for key, value in each.headers] for each in rows]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "topic": pa.array([topic] * len(rows), pa.string()),
        "partition": pa.array([each.partition for each in rows], pa.int32()),
        "timestamp": pa.array([each.timestamp_ms for each in rows], pa.timestamp("ms", "UTC")),
        "key": pa.array([each.key for each in rows], pa.binary()),
        "value": pa.array([each.value for each in rows], pa.binary()),
        "headers": pa.array(headers, kind),
    }
    if preserves:
        columns["offset"] = pa.array([each.offset for each in rows], pa.int64())
        kinds = [int(each.is_append_time) for each in rows]
        columns["timestampType"] = pa.array(kinds, pa.int32())
    return pa.table(columns)


def append(scene: Scene) -> Plan:
    """One to three flushes of one writer, some of which begin a new segment."""
    topic, config = scene.topic(), scene.config()
    n_partitions = scene.topics[topic]
    flushes = [scene.rows(topic) for _ in range(scene.rng.choice((1, 1, 2, 3)))]
    rolls = [scene.rng.random() < 0.3 for _ in flushes]

    def act(done: Callable[[], None]) -> None:
        writer = segmentlog.open_writer(
            scene.directory, topic, num_partitions=n_partitions, config=config
        )
        with writer:
            for rows, has_to_roll in zip(flushes, rolls, strict=True):
                if has_to_roll:
                    writer.roll()
                writer.append(_table(topic, rows))
                writer.flush()
                done()

    return Plan.of(
        scene.model, act, *(partial(_appended, scene, {topic: rows}) for rows in flushes)
    )


def _appended(scene: Scene, rows: Mapping[str, Sequence[NewRow]], model: Model) -> Model:
    """The model with further rows of these topics."""
    for topic, new in rows.items():
        model = model.appended(topic, scene.topics[topic], new)
    return model


def _emptied(scene: Scene, topic: str, model: Model) -> Model:
    """The model without the rows of a topic."""
    return model.changed(topic, scene.topics[topic], lambda _, log: log.starting_at(log.end))


def _job(
    scene: Scene, topic: str, rows: Sequence[NewRow], config: ProducerConfig, **how: Any
) -> Callable[[Callable[[], None]], None]:
    """One job to a topic, which is done when its writer is closed."""

    def act(done: Callable[[], None]) -> None:
        with segmentlog.open_writer(
            scene.directory, topic, num_partitions=scene.topics[topic], config=config, **how
        ) as writer:
            writer.append(_table(topic, rows, preserves="preserve" in how))
        done()

    return act


def append_large(scene: Scene) -> Plan:
    """A job whose staged files are segments: they are moved into the log."""
    topic = scene.topic()
    rows = [
        each._replace(value=each.value and each.value + bytes(_LARGE_BYTES), partition=0)
        for _ in range(2)
        for each in scene.rows(topic)
    ]
    config = replace(
        scene.config(),
        topic_config=TopicConfig(segment_bytes=100_000, index_interval_bytes=100),
        batch_size=100,
        buffer_memory=40_000,
        codec=Codec.NONE,
    )
    act = _job(scene, topic, rows, config)
    return Plan.of(scene.model, act, partial(_appended, scene, {topic: rows}))


def append_to_both(scene: Scene) -> Plan:
    """One job to all existing topics: all partitions have it at once, or none."""
    topics = [each for each in scene.topics if scene.model.has(each)]
    if scene.made is not None:
        topics = [*scene.made]
    if not topics:
        return append(scene)
    rows = {topic: scene.rows(topic) for topic in topics}
    config = scene.config()

    def act(done: Callable[[], None]) -> None:
        with segmentlog.open_writer(scene.directory, config=config) as writer:
            for topic in topics:
                writer.append(_table(topic, rows[topic]))
        done()

    return Plan.of(scene.model, act, partial(_appended, scene, rows))


def abort(scene: Scene) -> Plan:
    """Rows that are staged and then given up."""
    topic, config = scene.topic(), scene.config()
    rows = scene.rows(topic)

    def act(done: Callable[[], None]) -> None:
        writer = segmentlog.open_writer(
            scene.directory, topic, num_partitions=scene.topics[topic], config=config
        )
        writer.append(_table(topic, rows))
        writer.abort()
        done()

    return Plan(act, [scene.model, scene.model])


def overwrite(scene: Scene) -> Plan:
    """A job whose rows replace all earlier rows of a topic."""
    topic, config = scene.topic(), scene.config()
    rows = scene.rows(topic)

    def replaced(model: Model) -> Model:
        return _appended(scene, {topic: rows}, _emptied(scene, topic, model))

    return Plan.of(scene.model, _job(scene, topic, rows, config, overwrite=True), replaced)


def preserve(scene: Scene) -> Plan:
    """Rows that keep their offsets, which may have gaps; some lie below the log end."""
    topic, rng = scene.topic(), scene.rng
    ends = [scene.model.log(topic, each).end for each in range(scene.topics[topic])]
    is_refused = rng.random() < 0.15 and max(ends) > 0
    rows: list[NewRow] = []
    for each in scene.rows(topic):
        offset = ends[each.partition] + rng.choice((0, 0, 0, 1, 7))
        ends[each.partition] = offset + 1
        rows.append(each._replace(offset=offset, is_append_time=rng.random() < 0.2))
    if is_refused:
        low = max(range(scene.topics[topic]), key=lambda each: scene.model.log(topic, each).end)
        rows = [each for each in rows if each.partition != low]
        offset = rng.randrange(scene.model.log(topic, low).end)
        rows.insert(0, scene.rows(topic)[0]._replace(partition=low, offset=offset))
    act = _job(scene, topic, rows, scene.config(), preserve=True)
    if is_refused:
        return Plan(act, [scene.model], refusal=OffsetsOutOfOrderError)
    firsts = {each.partition: each.offset for each in reversed(rows)}
    bases = {}
    for number in range(scene.topics[topic]):
        log = scene.model.log(topic, number)
        if log.start == log.end:
            bases[number] = bases_of(scene.log(TopicPartition(topic, number))) if log.end else [0]
    if any(len(each) > 1 for each in bases.values()) and list_guards(str(scene.directory)):
        return append(scene)  # only the recovery decides which of these segments are left

    def moved(number: int, log: PlainLog) -> PlainLog:
        """A log without records, and without older segments, begins at the first offset."""
        first = firsts.get(number)
        return log if first is None or bases.get(number) != [log.end] else log.starting_at(first)

    after = scene.model.changed(topic, scene.topics[topic], moved)
    return Plan(act, [scene.model, after.appended(topic, scene.topics[topic], rows)])


def produce(scene: Scene) -> Plan:
    """A flush of an idempotent producer, which may have a new epoch, or an old one."""
    topic, rng = scene.topic(), scene.rng
    producer_id = rng.randrange(3) + 10 * scene.slot
    known = scene.model.sequences.get((producer_id, topic), {})
    last = scene.model.flushes.get((producer_id, topic))
    epoch = last.producer_epoch if last else 0
    if last and not last.is_committed:
        known = last.sequences  # its epoch may be new, and then the log knows none of its numbers
    if rng.random() < 0.1:
        epoch, known = epoch + 1, {}
    rows = scene.rows(topic, 20)
    sequences = {each: known.get(each, 0) for each in range(scene.topics[topic])}
    flush = Flush(epoch, sequences, rows, scene.config(), is_committed=False)
    return _flush(scene, producer_id, topic, flush)


def repeat(scene: Scene) -> Plan:
    """A repeat of a producer's last flush, which is written once, whatever was removed since."""
    if not scene.model.flushes:
        return produce(scene)
    producer_id, topic = scene.rng.choice([*scene.model.flushes])
    return _flush(scene, producer_id, topic, scene.model.flushes[producer_id, topic])


def _flush(scene: Scene, producer_id: int, topic: str, flush: Flush) -> Plan:
    """A flush whose rows are appended unless the log has them."""
    known, n_partitions = scene.model.with_flush(producer_id, topic, flush), scene.topics[topic]

    def written(model: Model) -> Model:
        if flush.is_committed:
            return model
        after = model.with_flush(producer_id, topic, flush._replace(is_committed=True))
        after = after.appended(topic, n_partitions, flush.rows)
        sequences = dict(flush.sequences)
        for each in flush.rows:
            sequences[each.partition] += 1
        return replace(after, sequences={**after.sequences, (producer_id, topic): sequences})

    producer = Producer(producer_id, flush.producer_epoch, flush.sequences)

    def act(done: Callable[[], None]) -> None:
        with segmentlog.open_writer(
            scene.directory,
            topic,
            num_partitions=n_partitions,
            config=flush.config,
            producer=producer,
        ) as writer:
            writer.append(_table(topic, flush.rows))
        done()
        n_repeated = sum(each.n_duplicates for each in writer.appended)
        expected = len(flush.rows) if flush.is_committed else 0
        if scene.slot and n_repeated == len(flush.rows):
            return  # it was killed after its commit
        assert n_repeated == expected, f"{n_repeated} records were repeated, not {expected}"

    return Plan.of(known, act, written)


def fenced(scene: Scene) -> Plan:
    """A flush with a producer's epoch that a higher epoch has fenced."""
    newer = [key for key, each in scene.model.flushes.items() if each.producer_epoch > 0]
    newer = [key for key in newer if scene.model.flushes[key].is_committed]
    if not newer:
        return produce(scene)
    producer_id, topic = scene.rng.choice(newer)
    partition = scene.model.flushes[producer_id, topic].rows[0].partition
    rows = [scene.rows(topic)[0]._replace(partition=partition)]
    epoch = scene.model.flushes[producer_id, topic].producer_epoch - 1
    act = _job(scene, topic, rows, scene.config(), producer=Producer(producer_id, epoch, 1000))
    return Plan(act, [scene.model], refusal=InvalidProducerEpochError)


def number(scene: Scene) -> Plan:
    """A numbered write, which may be a repeated one, and may replace the earlier records."""
    topic, rng = scene.topic(), scene.rng
    name = f"{rng.choice('xy')}{scene.slot or ''}"
    last = scene.model.numbers.get((name, topic), -1)
    version = max(0, last + rng.choice((-1, 0, 1, 1, 2)))
    replaces = rng.random() < 0.3
    rows, config = scene.rows(topic), scene.config()

    def written(model: Model) -> Model:
        if version <= last:
            return model
        after = _emptied(scene, topic, model) if replaces else model
        after = _appended(scene, {topic: rows}, after)
        return replace(after, numbers={**after.numbers, (name, topic): version})

    how = {"txn_app_id": name, "txn_version": version, "overwrite": replaces}
    act = _job(scene, topic, rows, config, **how)
    return Plan.of(scene.model, act, written)


def delete_records(scene: Scene) -> Plan:
    """Rows of a partition below an offset, or before a time."""
    known = [each for each, log in scene.model.logs.items() if log.end]
    if not known:
        return append(scene)
    rng, topic_partition = scene.rng, scene.rng.choice(sorted(known))
    log = scene.model.logs[topic_partition]
    offset, before_ms = rng.choice((-1, rng.randint(log.start, log.end))), None
    new_start = log.end if offset == -1 else offset
    if rng.random() < 0.3 and log.rows:
        before_ms, found = rng.choice(log.rows).timestamp_ms + rng.randint(-1, 1), None
        found = log.first_at(before_ms)
        new_start = log.end if found is None else found
    delay_ms = rng.choice((0, 60_000))
    changed = {**scene.model.logs, topic_partition: log.starting_at(new_start)}

    def act(done: Callable[[], None]) -> None:
        segmentlog.delete_records(
            scene.directory,
            *topic_partition,
            offset=None if before_ms is not None else offset,
            before=before_ms,
            settings={"file.delete.delay.ms": str(delay_ms)},
        )
        done()

    return Plan(act, [scene.model, replace(scene.model, logs=changed)], delay_ms=delay_ms)


def delete_topic(scene: Scene) -> Plan:
    """Delete a topic with its partitions, settings and numbers.

    If an earlier deletion has left files of the topic, and nothing has come since, the deletion
    removes these files.  Settings that were given since are for the next topic of this name.
    """
    topic = scene.topic()
    left = [*scene.directory.glob(f"{topic}-*")]
    is_there = any(path.name.removeprefix(f"{topic}-").isdigit() for path in left)
    # A writer that was cut off has noted the partitions that it was to make.
    noted = readable_offsets(str(scene.directory), HIGH_WATERMARK_CHECKPOINT)
    is_there |= any(each.topic == topic for each in noted)

    def act(done: Callable[[], None]) -> None:
        try:
            segmentlog.delete_topic(scene.directory, topic)
        except UnknownTopicOrPartitionError:
            if scene.model.has(topic):
                raise  # else an earlier deletion was decided, and this one has finished it
        done()

    if not left:
        return append(scene)
    # Also what a broker has renamed goes, perhaps in part.
    scene.renamed[:] = [each for each in scene.renamed if each.topic != topic]
    after = scene.model.without(topic) if is_there else scene.model
    return Plan(act, [scene.model, after], delay_ms=0)


def alter_settings(scene: Scene) -> Plan:
    """Settings of a topic, or the defaults of all topics."""
    rng = scene.rng
    topic = rng.choice((None, *TOPICS))
    known = dict(scene.model.settings.get(topic, {}))
    new = rng.choice(
        (
            {"segment.bytes": str(rng.choice((500, 5000)))},
            {"retention.ms": str(rng.choice((-1, _DAY_MS)))},
            {"cleanup.policy": rng.choice(("compact", "delete", "compact,delete"))},
        )
    )
    removed = [name for name in known if name not in new and rng.random() < 0.3]
    after = {name: value for name, value in {**known, **new}.items() if name not in removed}

    def act(done: Callable[[], None]) -> None:
        segmentlog.alter_settings(scene.directory, topic, new, remove=removed)
        done()

    return Plan(act, [scene.model, scene.model.with_settings(topic, after)], is_open=True)


def clone(scene: Scene) -> Plan:
    """A clone of ``b`` in the place of the last one, with its own settings and perhaps others.

    The settings come with the records, or not at all.
    """
    source = scene.model.log("b", 0)
    if not source.rows:
        return append(scene)
    rng = scene.rng
    given = rng.choice(({}, {"retention.ms": str(rng.choice((-1, _DAY_MS)))}))
    if any(len(each.value or b"") >= _LARGE_BYTES for each in source.rows):
        given = {**given, "segment.bytes": "100000"}  # those of ``b`` may have been lowered since
    rows = [
        NewRow(
            0,
            each.timestamp_ms,
            each.key,
            each.value,
            each.headers,
            is_append_time=bool(each.timestamp_type),
        )
        for each in source.rows
    ]

    def cloned(model: Model) -> Model:
        own = {**model.settings.get(CLONE, {}), **model.settings.get("b", {}), **given}
        after = model.changed(CLONE, 1, lambda _, log: log.starting_at(log.end).appended(rows))
        return after.with_settings(CLONE, own) if own else after

    def act(done: Callable[[], None]) -> None:
        segmentlog.clone(scene.directory, "b", CLONE, settings=given, overwrite=True)
        done()

    return Plan.of(scene.model, act, cloned)


def compact(scene: Scene) -> Plan:
    """All topics or one, with the last row of each key kept; or only segments that are merged."""
    rng = scene.rng
    chosen = [topic for topic in TOPICS if scene.model.has(topic) and rng.random() < 0.7]
    if not any(scene.model.logs.values()):
        return append(scene)
    retention_ms, delay_ms = rng.choice((0, 60_000, _DAY_MS)), rng.choice((0, 60_000))
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": str(retention_ms),
        "segment.bytes": str(rng.choice((1000, 100_000))),
        "index.interval.bytes": str(_INDEX_INTERVAL_BYTES),
        "file.delete.delay.ms": str(delay_ms),
    }
    passed: set[TopicPartition] = set()

    def act(done: Callable[[], None]) -> None:
        found = segmentlog.compact(scene.directory, chosen, settings=settings, now_ms=scene.now_ms)
        passed.update(TopicPartition(each.topic, each.partition) for each in found)
        done()

    def judge(seen: Seen, ending: str) -> Model:
        logs = dict(scene.model.logs)
        for each, log in scene.model.logs.items():
            if chosen and each.topic not in chosen:
                continue
            kept = seen.log(each).rows
            if (ending == DONE and each in passed) or kept != log.rows:
                assert log.rows or not kept, f"{each} has rows from nowhere: {kept[:2]}"
                active = max(base for base in bases_of(scene.log(each)) if base <= log.end)
                is_sure = ending == DONE
                logs[each] = log.compacted(
                    kept, active, scene.now_ms, retention_ms, is_sure=is_sure
                )
            elif ending != DONE:
                logs[each] = log.passed_over(scene.now_ms, retention_ms)
        return replace(scene.model, logs=logs)

    return Plan(act, [scene.model], judge=judge, delay_ms=delay_ms)


def erase(scene: Scene) -> Plan:
    """One key or two of a topic, in all of its partitions.

    An erasure that is cut off leaves each segment before it or after it.
    """
    rng = scene.rng
    topic = rng.choice((*TOPICS,))
    known = {
        row.key
        for each, log in scene.model.logs.items()
        for row in log.rows
        if each.topic == topic and row.key is not None
    }
    if not known:
        return append(scene)
    keys = rng.sample(sorted(known), min(len(known), rng.choice((1, 2))))
    is_purged = rng.random() < 0.3

    def act(done: Callable[[], None]) -> None:
        segmentlog.erase(scene.directory, keys, topic, purge=is_purged)
        done()

    def judge(seen: Seen, ending: str) -> Model:
        logs = {
            each: log.erased(seen.log(each).rows, keys, is_sure=ending == DONE)
            for each, log in scene.model.logs.items()
            if each.topic == topic
        }
        return replace(scene.model, logs={**scene.model.logs, **logs})

    return Plan(act, [scene.model], judge=judge, delay_ms=0 if is_purged else 60_000)


def retain(scene: Scene) -> Plan:
    """Segments that are too old, or too many; the log starts of all partitions move at once."""
    rng = scene.rng
    if not any(log.end for log in scene.model.logs.values()):
        return append(scene)
    is_by_time, delay_ms = rng.random() < 0.6, rng.choice((0, 60_000))
    limit = rng.choice((0, 1000, 60_000, _DAY_MS)) if is_by_time else rng.choice((0, 500, 2000))
    settings = {
        "cleanup.policy": "delete",
        "retention.ms": str(limit) if is_by_time else "-1",
        "retention.bytes": "-1" if is_by_time else str(limit),
        "file.delete.delay.ms": str(delay_ms),
    }
    bounds = {
        each: _starts_by_time(scene, each, limit) if is_by_time else (log.start, log.end)
        for each, log in scene.model.logs.items()
        if log.end
    }

    def act(done: Callable[[], None]) -> None:
        segmentlog.retain(scene.directory, settings=settings)
        done()

    def judge(seen: Seen, ending: str) -> Model:
        moved = {each: scene.model.logs[each].starting_at(seen.log(each).start) for each in bounds}
        is_moved = any(log.start > scene.model.logs[each].start for each, log in moved.items())
        if not is_moved and ending != DONE:
            return scene.model
        for each, (least, most) in bounds.items():
            start = seen.log(each).start
            if ending == REFUSED and start == scene.model.logs[each].start:
                continue  # it may be the log that cannot be read
            what = f"{each} starts at {start} after retention, and not at {least} to {most}"
            assert least <= start <= most, f"{what}: {settings}"
        return replace(scene.model, logs={**scene.model.logs, **moved})

    return Plan(act, [scene.model], judge=judge, delay_ms=delay_ms)


def _starts_by_time(scene: Scene, topic_partition: TopicPartition, limit: int) -> tuple[int, int]:
    """The least and the largest log start that retention by time may lead to.

    The newest timestamp of a segment is that of a visible row, or of a row that is hidden or was
    compacted.  A segment without rows has the time of its file.
    """
    log = scene.model.logs[topic_partition]
    bases = [base for base in bases_of(scene.log(topic_partition)) if base <= log.end]
    least = most = log.start
    is_sure = True
    for base, end in zip(bases, [*bases[1:], log.end], strict=True):
        if base == end and end == log.end:
            break
        ever = [at for offset, at in log.times if base <= offset < end]
        now = [each.timestamp_ms for each in log.rows if base <= each.offset < end]
        if end > log.start and now and scene.now_ms - max(now) <= limit:
            break
        most = max(most, end)
        is_old = bool(now) and scene.now_ms - max(ever) > limit
        is_sure = is_sure and (end <= log.start or is_old)
        least = max(least, end) if is_sure else least
    return least, most


def recover(scene: Scene) -> Plan:
    """The command ``recover``."""

    def act(done: Callable[[], None]) -> None:
        if [*scene.directory.glob("*-[0-9]"), *scene.directory.glob("*.unfinished.*")]:
            steps = segmentlog.recover(scene.directory, index_interval_bytes=_INDEX_INTERVAL_BYTES)
            failed = [each for each in steps if each.kind is segmentlog.RecoveryKind.LOG_FAILED]
            if failed:
                raise OSError(f"recover: {failed}")
        done()

    return Plan(act, [scene.model, scene.model])


def reindex(scene: Scene) -> Plan:
    """The command ``reindex``, after ``recover``, which it may ask for."""

    def act(done: Callable[[], None]) -> None:
        recover(scene).act(lambda: None)
        if any(log.end for log in scene.model.logs.values()):
            indexed = segmentlog.reindex(
                scene.directory, index_interval_bytes=_INDEX_INTERVAL_BYTES
            )
            errors = [each.error for each in indexed if each.error is not None]
            if errors:
                raise OSError(f"reindex: {errors}")
        done()

    return Plan(act, [scene.model, scene.model])


def mirror(scene: Scene) -> Plan:
    """Mirror to the directory beside, to which somebody may write then.

    A mirror keeps topics that the source has deleted; here, the administrator begins a new one.
    """
    mirrored, to = scene.mirrored, scene.mirrored.directory
    writes_then = scene.rng.random() < 0.2
    topic, rows, config = scene.topic(), scene.rows("b"), scene.config()
    if not [*scene.directory.glob("*-[0-9]/*.log")]:
        return append(scene)
    there = segmentlog.open_log_dir(scene.directory).topics()  # without one that is to go
    for each in to.glob("*-[0-9]"):
        known, here = (path / "partition.metadata" for path in (each, scene.directory / each.name))
        is_other = known.exists() and here.exists() and known.read_bytes() != here.read_bytes()
        if is_other or not here.exists() or each.name.rpartition("-")[0] not in there:
            mirrored.remove()
            break

    def act(done: Callable[[], None]) -> None:
        mirrored.models = [*(mirrored.models or [Model()]), scene.model]
        try:
            segmentlog.mirror(scene.directory, to=to)
        except LogDirectoryError as error:
            # A commit that is finished now had the other topic's id.
            if "the topic was created again" not in str(error):
                raise
            mirrored.remove()
            mirrored.models = [Model(), scene.model]
            segmentlog.mirror(scene.directory, to=to)
        mirrored.models, mirrored.is_mixed = [scene.model], False
        done()

    def follow(ending: str) -> None:
        mirrored.is_mixed |= ending == REFUSED
        if mirrored.models:
            mirrored.seen()
        if ending == DONE:
            assert_trusted(to)
            if writes_then and [*to.glob(f"{topic}-[0-9]")]:
                written = [each._replace(partition=0) for each in rows]
                with segmentlog.open_writer(to, topic, config=config) as writer:
                    writer.append(_table(topic, written))
                mirrored.models = [scene.model.appended(topic, scene.topics[topic], written)]
                mirrored.seen()

    return Plan(act, [scene.model, scene.model], follow=follow, is_settled=False)


def fail_over(scene: Scene) -> Plan:
    """The mirror, which may be older, takes the place of the directory, which becomes the mirror.

    A mirror leaves settings to the administrator.
    """
    mirrored, here = scene.mirrored, scene.directory
    is_there = mirrored.models and not mirrored.is_mixed
    if not is_there or not [*mirrored.directory.glob("*-[0-9]/*.log")]:
        return mirror(scene)
    after = replace(mirrored.seen(), settings=scene.model.settings)

    def act(done: Callable[[], None]) -> None:
        left = here.with_name("left")
        if list_guards(str(here)):
            segmentlog.recover(here)  # an unfinished deletion may still have settings
        here.rename(left)
        mirrored.directory.rename(here)
        left.rename(mirrored.directory)
        _take_settings(mirrored.directory, here)
        mirrored.models = [scene.model]
        done()

    return Plan(act, [scene.model, after], delay_ms=0)


def _take_settings(old: Path, new: Path) -> None:
    (new / "segmentlog.settings").unlink(missing_ok=True)
    if (old / "segmentlog.settings").exists():
        shutil.copy(old / "segmentlog.settings", new)


#: The cluster that takes a restoration: two brokers, the second one with a replica of each
#: partition 0.
_NODES = (1, 2)


def restore(scene: Scene) -> Plan:
    """Restore all topics on two brokers, again if a fault cut it off; then perhaps serve those.

    Each broker has all records of its partitions of a topic or none, and all after the second run.
    """
    rng, here = scene.rng, scene.directory
    takes_over = rng.random() < 0.3

    def whole_topics() -> list[str]:
        """Topics that a restoration takes, which refuses one without some of its partitions.

        A writer that was killed while it made a topic has left some, and a power cut fewer.
        """
        there = segmentlog.open_log_dir(here).topics() if [*here.glob("*-[0-9]/*.log")] else {}
        return [each for each, numbers in there.items() if len(numbers) == ALL_TOPICS[each]]

    topics = whole_topics()
    if not topics:
        return append(scene)
    logs = {each: log for each, log in scene.model.logs.items() if log.rows}
    assert {each.topic for each in logs} <= {*topics}
    targets = [here.with_name(f"restored-{node}") for node in _NODES]
    after = replace(
        Model({each: log.restored() for each, log in logs.items()}),
        settings=scene.model.settings,
    )

    def run() -> None:
        replicas = {
            topic: [_NODES[: 1 if each else 2] for each in range(ALL_TOPICS[topic])]
            for topic in whole_topics()
        }
        if replicas:
            restore_to(here, targets, replicas)

    def act(done: Callable[[], None]) -> None:
        run()
        done()

    def seen_at(number: int) -> list[Model]:
        """The models of a broker: with all topics first, and with any part of them."""
        mine = {each: log for each, log in after.logs.items() if not number or not each.partition}
        there = sorted({each.topic for each in mine})
        return [
            replace(
                after,
                settings={},
                logs={each: log for each, log in mine.items() if each.topic in restored},
            )
            for n in range(len(there), -1, -1)
            for restored in itertools.combinations(there, n)
        ]

    def follow(ending: str) -> Sequence[Model] | None:
        if scene.is_unsettled and ending != DONE:  # the directory may have another model now
            run()
            for number, each in enumerate(targets):
                there, mine = look(each, twice=False).logs, look(here, twice=False).logs
                assert {at: log.rows for at, log in there.items() if log.rows} == {
                    at: log.rows
                    for at, log in mine.items()
                    if log.rows and (not number or not at.partition)
                }
            return None
        for is_again in (False, True):
            for number, each in enumerate(targets):
                models = seen_at(number)
                models = models[:1] if is_again or ending == DONE else models
                Mirrored(each, models).seen()
            if not is_again:
                run()
        if not takes_over:
            return None
        (targets[0] / "meta.properties").unlink()
        segmentlog.recover(here)  # an unfinished change may have settings in its guard
        _take_settings(here, targets[0])
        shutil.rmtree(here)
        targets[0].rename(here)
        return [after]

    for each in targets:
        shutil.rmtree(each, ignore_errors=True)
    format_brokers(*targets)
    return Plan(
        act,
        [scene.model, scene.model],
        follow=follow,
        is_settled=False,
        delay_ms=0 if takes_over else 60_000,
    )


class RenamedTopic(NamedTuple):
    """A topic that a broker has deleted: the ids of its directories, and their logs."""

    topic: str
    logs: Mapping[str, PlainLog]  # by the id in the name of a directory, by partition


def lose_topic(scene: Scene) -> Plan:
    """A broker deletes a topic: it renames the partitions, and knows nothing of our own files.

    The directories have all records of the files, also those below the log start.
    """
    topic, here = scene.topic(), scene.directory
    found = segmentlog.open_log_dir(here).topics() if [*here.glob("*-[0-9]/*.log")] else {}
    is_whole = len(found.get(topic, ())) == scene.topics[topic]
    is_there = any(scene.model.log(topic, each).rows for each in range(scene.topics[topic]))
    if not is_whole or not is_there or [*here.glob("*.unfinished.*")]:
        return append(scene)

    def act(done: Callable[[], None]) -> None:
        logs = []
        for partition in range(scene.topics[topic]):
            log = Log(TopicPartition(topic, partition), str(here / f"{topic}-{partition}"))
            kept = rows_of(log)
            known = scene.model.log(topic, partition)
            assert known.rows == tuple(each for each in kept if each.offset >= known.start)
            times = tuple((each.offset, each.timestamp_ms) for each in kept)
            logs.append(PlainLog(rows=kept, times=times))
        renamed = sorted(Path(each) for each in take_out(str(here), topic, keeps_settings=True))
        ids = [_unique_id(each) for each in renamed]
        scene.renamed.append(RenamedTopic(topic, dict(zip(ids, logs, strict=True))))
        done()

    settings = scene.model.settings
    after = replace(scene.model.without(topic), settings=settings)
    return Plan(act, [scene.model, after], delay_ms=0)


def _unique_id(path: Path) -> str:
    """The random id in the name of a renamed directory."""
    return path.name.rpartition(".")[2].removesuffix("-delete")


def undelete(scene: Scene) -> Plan:
    """A topic comes back from its renamed directories, here or elsewhere, under any name.

    A run that was cut off is repeated at once, but after a power cut, which may have taken more.
    """
    rng, here = scene.rng, scene.directory
    there = {_unique_id(each) for each in here.glob("*-delete")}
    known = [each for each in scene.renamed if each.logs.keys() <= there]
    if not known:
        return append(scene)
    chosen = rng.choice(known)
    # With those of a deletion that was cut off, whose records nobody knows.
    of_name = {_unique_id(each) for each in here.glob(f"{chosen.topic}-[0-9].*-delete")}
    logs = [each.restored() if each.rows else each for each in chosen.logs.values()]
    options: dict[str, Any] = {}
    if of_name != chosen.logs.keys() or rng.random() < 0.5:
        options["ids"] = [*chosen.logs]
    fitting = [each for each, n in ALL_TOPICS.items() if n == len(logs)]
    name = rng.choice([chosen.topic, chosen.topic, *fitting])
    if name != chosen.topic:
        options["as_topic"] = name
    after = replace(
        scene.model,
        logs={**scene.model.logs, **{TopicPartition(name, i): log for i, log in enumerate(logs)}},
    )
    is_here = rng.random() < 0.6
    # A run that was killed after its commit may be repeated: it finds its records.
    is_done = all(
        TopicPartition(name, i) in scene.model.logs and scene.model.log(name, i).rows == log.rows
        for i, log in enumerate(logs)
    )
    has_records = any(scene.model.log(name, i).end for i in range(len(logs)))
    is_refused = is_here and has_records and not is_done
    saved = here.with_name("saved")
    shutil.rmtree(saved, ignore_errors=True)

    def run() -> None:
        segmentlog.undelete(here, chosen.topic, to=None if is_here else saved, **options)

    def act(done: Callable[[], None]) -> None:
        run()
        done()

    def follow_here(ending: str) -> Sequence[Model] | None:
        if ending == DONE or is_refused or scene.is_powered:
            return None
        segmentlog.recover(here)
        if not look(here, twice=False).log(TopicPartition(name, 0)).end:
            run()
        return [after]

    def follow_there(ending: str) -> None:
        model = Model({TopicPartition(name, i): log for i, log in enumerate(logs)})
        if ending != DONE and saved.exists():
            found = Mirrored(saved, [model, Model()]).seen()
            if not found.logs:
                run()
        elif ending != DONE:
            run()
        Mirrored(saved, [model]).seen()

    if not is_here:
        return Plan(act, [scene.model] * 2, follow=follow_there, is_settled=False)
    if is_refused:
        return Plan(act, [scene.model], refusal=LogDirectoryError)
    if has_records:
        return Plan(act, [scene.model])
    settings = {**scene.model.settings.get(None, {}), **scene.model.settings.get(name, {})}
    limit = int(settings.get("segment.bytes", 1 << 30))  # it may have been lowered since
    if any(len(row.value or b"") > limit for log in logs for row in log.rows):
        return Plan(act, [scene.model], refusal=RecordTooLargeError)
    return Plan(act, [scene.model, after], follow=follow_here)


def unmark(scene: Scene) -> Plan:
    """Remove the mark of a clean stop, as after a broker's crash, and perhaps indexes.

    A batch that the crash has torn, or zeros, may lie after the end of a log then.  No broker runs
    where a guard stands.
    """
    rng = scene.rng
    if [*scene.directory.glob("*.unfinished.*")]:
        return append(scene)
    logs = [sorted(path.glob("*.log")) for path in sorted(scene.directory.glob("*-[0-9]"))]
    segments = [each[-1] for each in logs if each]

    def act(done: Callable[[], None]) -> None:
        (scene.directory / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
        for path in segments:
            if rng.random() < 0.3:
                with path.open("ab") as file:
                    file.write(_torn(scene, path))
            for kind in ("index", "timeindex"):
                if rng.random() < 0.2:
                    path.with_suffix(f".{kind}").unlink(missing_ok=True)
        done()

    return Plan(act, [scene.model], is_settled=False)


def _torn(scene: Scene, path: Path) -> bytes:
    """The first part of a batch at the end of a log, or zeros."""
    topic, _, number = path.parent.name.rpartition("-")
    end = scene.model.log(topic, int(number)).end
    batch = path.read_bytes()[8:64]
    if len(batch) < 56 or scene.rng.random() < 0.5:
        return bytes(scene.rng.randint(1, 100))
    return (end.to_bytes(8, "big") + batch)[: scene.rng.randint(1, 62)]


def wait(scene: Scene) -> Plan:
    """Time passes: replaced files are due, and producers are idle."""
    n_ms = scene.rng.choice((1000, 120_000, 3_600_000, _DAY_MS + 1))

    def act(done: Callable[[], None]) -> None:
        scene.wait(n_ms)
        done()

    return Plan(act, [scene.model], is_settled=False)


@dataclass(frozen=True)
class Kind:
    """An operation, how often it is drawn, and whether a fault may meet it."""

    plan: Callable[[Scene], Plan]
    weight: int
    may_fail: bool = field(default=True, kw_only=True)


OPERATIONS: Mapping[str, Kind] = {
    "append": Kind(append, 6),
    "append_large": Kind(append_large, 1),
    "append_to_both": Kind(append_to_both, 2),
    "abort": Kind(abort, 1),
    "overwrite": Kind(overwrite, 3),
    "preserve": Kind(preserve, 2),
    "produce": Kind(produce, 5),
    "repeat": Kind(repeat, 4),
    "fenced": Kind(fenced, 1),
    "number": Kind(number, 3),
    "delete_records": Kind(delete_records, 3),
    "delete_topic": Kind(delete_topic, 2),
    "alter_settings": Kind(alter_settings, 1),
    "clone": Kind(clone, 2),
    "compact": Kind(compact, 5),
    "erase": Kind(erase, 3),
    "retain": Kind(retain, 3),
    "recover": Kind(recover, 2),
    "reindex": Kind(reindex, 1),
    "mirror": Kind(mirror, 5),
    "fail_over": Kind(fail_over, 2, may_fail=False),
    "restore": Kind(restore, 2),
    "lose_topic": Kind(lose_topic, 3, may_fail=False),
    "undelete": Kind(undelete, 3),
    "unmark": Kind(unmark, 2, may_fail=False),
    "wait": Kind(wait, 2, may_fail=False),
}
