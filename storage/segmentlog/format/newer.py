"""What a directory holds that is newer than the Kafka we know: one rule for all records and files.

- Tagged fields that a schema lacks are kept as bytes, and counted.
- A newer version of a known record is read by the known fields, if it begins with them; else it
  stays bytes, and no row is made of it.
- A file of a newer version is read by the known lines.

Whatever was not understood is said in one warning for each table (`noting`), which names the
Kafka that we know; ``strict`` makes it an error.  Outside of tables, each such thing is said once.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

logger = logging.getLogger(__name__)

#: The newest Kafka whose records are known.
KNOWN_KAFKA = "4.4"

#: The greatest level of each feature in this Kafka.
NEWEST_LEVELS = {
    "metadata.version": 33,
    "kraft.version": 1,
    "transaction.version": 2,
    "group.version": 1,
    "eligible.leader.replicas.version": 1,
    "share.version": 2,
    "streams.version": 1,
}


#: Hostile bytes have any number of versions and tags.
_MOST_KEPT, _MOST_SAID = 1000, 20
_OTHERS = "other things"

#: The end of what is said of a record that is not read.
LEFT = "left as bytes"


class NewerFormatError(ValueError):
    """Bytes of a newer version that do not begin with the known fields."""


class _Noted:
    def __init__(self, *, is_strict: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.is_strict = is_strict


_noted: ContextVar[_Noted | None] = ContextVar("noted", default=None)


def note(thing: str, count: int = 1) -> None:
    """Say that something is newer than what we know, or raise `ValueError` without its place."""
    noted = _noted.get()
    if noted is None:
        _say_once(thing)
    elif noted.is_strict:
        raise ValueError(f"{thing} is newer than Kafka {KNOWN_KAFKA}, and strict was asked for")
    elif thing in noted.counts or len(noted.counts) < _MOST_KEPT:
        noted.counts[thing] += count
    else:
        noted.counts[_OTHERS] += count


@lru_cache(_MOST_KEPT)
def _say_once(thing: str) -> None:
    logger.warning("newer than Kafka %s, which this version knows: %s", KNOWN_KAFKA, thing)


def notes_of(read: Callable[[], object]) -> list[str]:
    """What is newer than what we know in the bytes that a call reads."""
    noted = _Noted(is_strict=False)
    token = _noted.set(noted)
    try:
        read()
    finally:
        _noted.reset(token)
    return sorted(noted.counts)


@contextmanager
def noting(reader: str, *, is_strict: bool = False) -> Iterator[None]:
    """Gather what a reader, such as ``table topics``, does not understand; say it once at its end.

    Generators must not contain this: it would also count for their callers.
    """
    noted = _Noted(is_strict=is_strict)
    token = _noted.set(noted)
    try:
        yield
    finally:
        _noted.reset(token)
        if noted.counts:
            said = sorted(noted.counts.items())[:_MOST_SAID]
            things = "; ".join(f"{each} ({n})" for each, n in said)
            if (more := len(noted.counts) - _MOST_SAID) > 0:
                things += f"; and {more} more"
            logger.warning(
                "%s: the directory is newer than Kafka %s, which this version knows; not "
                "understood: %s. The table unknown_records has these records",
                reader,
                KNOWN_KAFKA,
                things,
            )
