"""The settings of a compaction, beside those of the topics that are compacted."""

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from segmentlog.arguments import instance_of, whole_number
from segmentlog.errors import OptionError
from segmentlog.model import LOCK_TIMEOUT_SECONDS
from segmentlog.store.failures import OnFailure

#: Bytes of an entry in Kafka's map, and in ours: a hash of 16 bytes, and an offset.
ENTRY_BYTES = 24
_MOST_ENTRIES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class MapBounds:
    """The largest size of an offset map.

    Raises `OptionError` if the memory holds no key, or the load factor is not between 0 and 1.
    """

    #: see `segmentlog.compact`
    dedupe_buffer_bytes: int
    load_factor: float

    def __post_init__(self) -> None:
        whole_number("dedupe_buffer_bytes", self.dedupe_buffer_bytes)
        accepted = "give the part of the map that is filled, above 0 and below 1"
        instance_of("load_factor", self.load_factor, (float, int), accepted)
        if not 0 < self.load_factor < 1:
            raise OptionError("load_factor", str(self.load_factor), accepted)
        if self.most_keys < 1:
            accepted = f"give at least {int(ENTRY_BYTES * (1 / self.load_factor + 1))} bytes"
            raise OptionError("dedupe_buffer_bytes", str(self.dedupe_buffer_bytes), accepted)

    @property
    def most_keys(self) -> int:
        """Keys that a map takes."""
        return int(self.n_entries * self.load_factor)

    @property
    def n_entries(self) -> int:
        """Entries of its table."""
        return min(self.dedupe_buffer_bytes // ENTRY_BYTES, _MOST_ENTRIES)


class CleanerLimits(NamedTuple):
    """The limits of all partitions of a compaction; they can be pickled."""

    bounds: MapBounds  # of the offset map
    #: time after which a producer is no longer active (``producer.id.expiration.ms``)
    producer_expiration_ms: int
    now_ms: int  # the time by which ages are computed (epoch)


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """The arguments of `segmentlog.compact` after the path, which documents them.

    Raises `OptionError` if a number is not accepted.
    """

    topics: str | Collection[str] = ()
    _: KW_ONLY
    settings: Mapping[str, str] | None = None
    dry_run: bool = False
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    producer_expiration_ms: int = 24 * 3600 * 1000
    now_ms: int | None = None
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS
    metadata: str | os.PathLike[str] | None = None
    server_properties: str | os.PathLike[str] | None = None
    roll: bool = False
    purge: bool = False
    on_log: Callable[[str], object] = lambda _: None
    on_phase: Callable[[str], object] = lambda _: None
    on_failure: OnFailure | None = None

    def __post_init__(self) -> None:
        MapBounds(self.dedupe_buffer_bytes, self.load_factor)  # refuses what is out of bounds
        whole_number("producer_expiration_ms", self.producer_expiration_ms, what="milliseconds")
        if self.now_ms is not None:
            whole_number("now_ms", self.now_ms, what="epoch milliseconds")

    def limits(self) -> CleanerLimits:
        """The limits of each partition; ages are computed by the present, unless a time is set."""
        now_ms = int(time.time() * 1000) if self.now_ms is None else self.now_ms
        bounds = MapBounds(self.dedupe_buffer_bytes, self.load_factor)
        return CleanerLimits(bounds, self.producer_expiration_ms, now_ms)
