"""The result of an analysis: plain values, which become JSON.

`VERSION` changes when a field is removed, or gets another meaning; fields may be added.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from segmentlog.arguments import class_of_one_dialect

VERSION = 1


@dataclass(frozen=True, slots=True)
class CodecUse:
    """Batches with one codec."""

    codec: str
    n_batches: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class SizeCount:
    """A bar of a histogram: how many sizes are at least `least` and at most `most` bytes."""

    least: int
    most: int
    count: int


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Batches, by their headers.

    `n_batches` and `n_bytes` include the `n_control_batches` of brokers.  `n_records` is that of
    their headers, which messages of magic 0 and 1, the `n_legacy`, do not have.  `n_empty` are
    what compaction leaves for a producer.  `header_bytes` of `n_bytes` are headers.
    """

    n_batches: int
    n_bytes: int
    n_control_batches: int
    n_legacy: int
    n_empty: int
    header_bytes: int
    codecs: tuple[CodecUse, ...]
    sizes: tuple[SizeCount, ...]

    @property
    def mean_bytes(self) -> float:
        """Bytes of a batch of records."""
        return self.n_bytes / self.n_batches if self.n_batches else 0.0


@dataclass(frozen=True, slots=True)
class ZstdSavings:
    """What zstd would save, measured on `sampled_bytes` in `sampled_batches`.

    `saved` is the part of all bytes that it would save with batches as they are, and
    `saved_joined` with batches that are put together to 128 KiB; both may be below 0.  None if no
    batch was sampled.
    """

    sampled_batches: int
    sampled_bytes: int
    saved: float | None
    saved_joined: float | None


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """One of the keys with the most records.

    It has at least `n_records`, and at most `most_records`; `share` is the part of the records
    with a key that it has at least.  `id` is a hash of the key, which is equal in every analysis.
    `key` has its bytes only if they were asked for, and the record could be read again.
    """

    id: str
    n_bytes: int
    n_records: int
    most_records: int
    share: float
    partition: int
    offset: int
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """Keys of records.

    `distinct` is exact if `distinct_error` is 0; otherwise 95 of 100 such counts are nearer to the
    truth than this part of it.
    """

    n_null: int
    n_bytes: int
    largest: int
    distinct: int
    distinct_error: float
    sizes: tuple[SizeCount, ...]
    heaviest: tuple[HeavyKey, ...]


@dataclass(frozen=True, slots=True)
class ValueFigures:
    """Values of records.

    `n_tombstones` are the nulls that have a key.
    """

    n_null: int
    n_tombstones: int
    n_bytes: int
    largest: int
    sizes: tuple[SizeCount, ...]


@dataclass(frozen=True, slots=True)
class FormatUse:
    """How many of the sampled values, or keys, have a format; `share` is their part."""

    format: str
    n_records: int
    share: float


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """The id of a registry's schema, before how many of all values it stands.

    `type` and `subject` come from the topic ``_schemas``, and are empty if it does not say.
    """

    id: int
    n_records: int
    type: str = ""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class FormatFigures:
    """Formats that were recognised in `sampled_records`; schema ids are those of all values.

    `n_other_ids` values have ids beyond the 256 that are counted: then they are probably no ids.
    """

    sampled_records: int
    keys: tuple[FormatUse, ...]
    values: tuple[FormatUse, ...]
    schema_ids: tuple[SchemaUse, ...]
    n_other_ids: int


@dataclass(frozen=True, slots=True)
class HeaderUse:
    """The name of a header, and how many of the sampled records have it."""

    name: str
    n_records: int
    share: float


@dataclass(frozen=True, slots=True)
class HeaderFigures:
    """Headers of the sampled records; `n_others` have names beyond the first 256."""

    n_with_headers: int
    names: tuple[HeaderUse, ...]
    n_others: int
    n_headers: int = 0
    n_bytes: int = 0  # of their names and values
    share: float = 0.0  # of them in the bytes of keys, values and headers


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    """Producers with an id, and their transactions.

    `has_more`: whether there are more than the `n_producers` that were counted.
    """

    n_producers: int
    has_more: bool
    n_idempotent_batches: int
    n_transactional_batches: int
    n_committed: int
    n_aborted: int
    n_aborted_records: int
    n_open: int
    n_open_records: int


@dataclass(frozen=True, slots=True)
class ClockFigures:
    """Timestamps, in epoch milliseconds; None without one.

    `n_back` records are older than the record before them in their partition, and `most_back_ms`
    is the most that a record is older than any record before it.  `n_without` have none,
    `n_before_2000` and `n_in_future` cannot be right.  `n_append_time_batches` have the clock of
    the broker.
    """

    least_ms: int | None
    largest_ms: int | None
    n_back: int
    most_back_ms: int
    n_without: int
    n_before_2000: int
    n_in_future: int
    n_append_time_batches: int


@dataclass(frozen=True, slots=True)
class OffsetFigures:
    """What the offsets from 0 to the end became.

    `n_deleted` were before the log starts: by retention, or by a request to delete records.
    `n_markers` are records of brokers; `n_removed` were removed by compaction; `n_lost` were in
    segments that are gone; `n_unreadable` are in damaged places.  All of these and `n_records` add
    up to the offsets of the log.
    """

    n_records: int
    n_deleted: int
    n_markers: int
    n_removed: int
    n_lost: int
    n_unreadable: int


@dataclass(frozen=True, slots=True)
class RetentionForecast:
    """What retention removes, if nobody writes.

    `policy`, `retention_ms`, `retention_bytes`: the settings; `source` says where they come from.
    `due_bytes`: that the next check removes.  `next_ms`, `next_bytes`: when the next segment will
    be too old (epoch), and its bytes; None if no time removes it.
    """

    policy: str
    retention_ms: int
    retention_bytes: int
    source: str
    n_due_segments: int
    due_bytes: int
    next_ms: int | None
    next_bytes: int


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """What was found out about a partition, or about all partitions of a topic."""

    n_records: int
    n_bytes: int
    n_segments: int
    batches: BatchFigures
    zstd: ZstdSavings
    keys: KeyFigures
    values: ValueFigures
    formats: FormatFigures
    headers: HeaderFigures
    producers: ProducerFigures
    clocks: ClockFigures
    offsets: OffsetFigures
    retention: RetentionForecast


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition; `problems` says what could not be read.

    `n_not_read` offsets from `end_offset` on are beyond the high watermark, up to which the
    analysis has read.
    """

    partition: int
    start_offset: int
    end_offset: int
    n_not_read: int
    figures: TopicFigures
    problems: tuple[str, ...]


class FindingCode(StrEnum):
    """The subject of a finding; values never change."""

    PROBLEM = "problem"
    LOST_OFFSETS = "lost-offsets"
    NOT_READ = "not-read"
    SMALL_BATCHES = "small-batches"
    COMPRESSION = "compression"
    SKEW = "skew"
    HOT_KEY = "hot-key"
    FUTURE_TIMES = "future-times"
    OLD_TIMES = "old-times"
    OUT_OF_ORDER = "out-of-order"
    ABORTED = "aborted"
    OPEN_TRANSACTIONS = "open-transactions"
    NULL_KEYS = "null-keys"
    TOMBSTONES = "tombstones"
    COMPACTION = "compaction"
    LEGACY = "legacy"
    HEADERS = "headers"
    LARGE_KEYS = "large-keys"


class Urgency(StrEnum):
    """How soon somebody should look at a finding."""

    PROBLEM = "problem"  #: records are unreadable or gone
    ADVICE = "advice"  #: something costs space, or time, or will surprise
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class AnalysisFinding:
    """A recommended change; `saved_bytes` is an estimate, or 0."""

    urgency: Urgency
    code: FindingCode
    topic: str
    partition: int | None
    text: str
    saved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FieldFigures:
    """A field of decoded keys or values: neither a record nor a list.

    `name`: its path, ``value.items[].sku``; ``len(value.items)`` is the number of items of a list.
    `type`: of Arrow.  `n_null` of `n_values` are null, those of lists once for each item.
    `distinct`, `distinct_error`: as those of keys.  `least`, `largest`: numbers, or texts as
    ``cat --decode`` writes them; None without a value, and of texts that are not shown.
    `most_bytes`: of the longest text.
    """

    name: str
    type: str
    n_values: int
    n_null: int
    distinct: int
    distinct_error: float
    least: int | float | str | bool | None
    largest: int | float | str | bool | None
    most_bytes: int

    @property
    def is_text(self) -> bool:
        """Whether it is a text, or bytes."""
        return self.type == "string" or "binary" in self.type


@dataclass(frozen=True, slots=True)
class DecodedFigures:
    """The fields of the keys or the values of a topic.

    `reason`: why nothing is decoded, or empty.  Of `n_records`, `n_null` have no bytes, and
    `n_undecodable` have `causes`, the most frequent ones first.  `n_other_fields` are beyond those
    that are looked at.
    """

    column: str
    reason: str
    n_records: int
    n_null: int
    n_undecodable: int
    causes: tuple[str, ...]
    fields: tuple[FieldFigures, ...]
    n_other_fields: int


def no_subject(topic: str, column: str) -> str:
    """The reason for which the keys or the values of a topic without schemas are not decoded."""
    return f"no schema has the subject {topic}-{column}"


@dataclass(frozen=True, slots=True)
class TopicReport:
    """One topic; `decoded` has the columns that are decoded, if that was asked for."""

    topic: str
    figures: TopicFigures
    partitions: tuple[PartitionReport, ...]
    findings: tuple[AnalysisFinding, ...]
    decoded: tuple[DecodedFigures, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read."""
        return tuple(text for each in self.partitions for text in each.problems)


@class_of_one_dialect()
@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of `segmentlog.analyze`.

    Attributes
    ----------
    version : of the fields, which are those of `to_json`.
    paths : that were analyzed.
    analyzed_ms : when the analysis began (epoch).
    topics : the topics, in their order.
    problems : what no topic could be asked about: partitions whose directories are gone.
    """

    version: int
    paths: tuple[str, ...]
    analyzed_ms: int
    topics: tuple[TopicReport, ...]
    problems: tuple[str, ...]

    @property
    def findings(self) -> tuple[AnalysisFinding, ...]:
        """The findings of all topics, those first that are urgent or save the most."""
        order = [*Urgency]
        found = [each for topic in self.topics for each in topic.findings]
        return tuple(
            sorted(found, key=lambda each: (order.index(each.urgency), -each.saved_bytes))
        )

    @property
    def is_sound(self) -> bool:
        """Whether everything could be read."""
        return not self.problems and not any(each.problems for each in self.topics)

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON has them, in camel case; times are in epoch milliseconds."""
        found: dict[str, Any] = as_json(self)
        return found | {"findings": as_json(self.findings)}


def as_json(value: object) -> Any:  # noqa: ANN401 - what JSON takes
    """A value of this module as JSON has it; ``n_records`` is ``records``."""
    if is_dataclass(value):
        return {json_name(each.name): as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [as_json(each) for each in value]
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value) if isinstance(value, StrEnum) else value


_T = TypeVar("_T")


def from_json(kind: type[_T], found: Any) -> _T:  # noqa: ANN401 - what JSON has
    """The inverse of `as_json`, for a class of this module that has no keys.

    Raises `ValueError` if the value has not the fields of the class, or their types.
    """
    try:
        made: _T = _made(kind, found)
    except (AttributeError, KeyError, TypeError) as error:
        message = f"this is no {kind.__name__}: {str(found)[:100]}"
        raise ValueError(message) from error
    return made


def _made(kind: Any, found: Any) -> Any:  # noqa: ANN401 - any type of a field
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(
            **{  # type: ignore[operator]
                each.name: _made(hints[each.name], found[json_name(each.name)])
                for each in fields(kind)
            }
        )
    if get_origin(kind) is tuple:
        return tuple(_made(get_args(kind)[0], each) for each in found)
    accepted = get_args(kind) or ((int, float) if kind is float else (kind,))
    if not isinstance(found, tuple(each for each in accepted if each is not bytes)):
        raise TypeError(found)
    return found


def json_name(name: str) -> str:
    """The name of a field in JSON."""
    first, *others = name.removeprefix("n_").split("_")
    return first + "".join(map(str.capitalize, others))
