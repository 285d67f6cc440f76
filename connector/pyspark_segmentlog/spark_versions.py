"""What versions of Spark have: the only module that knows them.

What is missing in a version is seen by its absence, never by a number: platforms give their
versions numbers of their own, and take interfaces of later ones.

======  ==============================================  ======================================
before  Spark has no                                    instead
======  ==============================================  ======================================
4.2     limits of a stream: it asks for the end of a    the reader knows its place, and one
        micro-batch, and tells neither the start nor    micro-batch is all of a run with
        the trigger                                     ``availableNow`` or ``once``
4.1     writers of streams that take Arrow batches      writers of this class for batches,
                                                        which Spark asks for in streams, too
4.1     rows without columns: it counts none            a schema without columns is refused
======  ==============================================  ======================================
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)

from pyspark_segmentlog.plain_errors import PlainErrors
from segmentlog.errors import OptionError

logger = logging.getLogger(__name__)

Offset = dict[str, Any]

#: The options that limit a micro-batch: offsets, bytes, and offsets to wait for.
Limits = tuple[int | None, int | None, int | None]


class PolledStream(DataSourceStreamReader, ABC):
    """A reader of a stream, whatever Spark tells it.

    A subclass answers for its log.  The classes below make of it what Spark asks for.
    """

    @abstractmethod
    def first_start(self) -> Offset:
        """Where a new query starts; the answer stays the same."""

    @abstractmethod
    def next_end(self, start: Offset, *, takes_all: bool) -> Offset:
        """The end of the micro-batch after `start`, without limits if `takes_all`.

        It is `start` itself if there is nothing to read.
        """

    @abstractmethod
    def newest_ends(self) -> Offset:
        """The ends of what is there, by the last look."""

    @abstractmethod
    def end_with_what_is_there(self) -> None:
        """Have the stream end at the ends of its next look."""

    @abstractmethod
    def tasks(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One partition for each task of a micro-batch."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits of a micro-batch."""

    @PlainErrors(asked=False)
    def initialOffset(self) -> Offset:
        return self.first_start()

    @PlainErrors(asked=False)
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self.tasks(start, end)


class PlacedStream(PolledStream):
    """A stream that knows its place: Spark 4.0 and 4.1 do not tell it.

    A new query asks for the end of its first micro-batch before it asks for its start.  A query
    that continues first asks for the partitions between the last offset of its checkpoint and the
    same offset, for that of a micro-batch, too, which it has yet to repeat.
    """

    _place: Offset | None = None
    _has_polled = _has_begun = False

    @PlainErrors(asked=False)
    def initialOffset(self) -> Offset:
        self._has_begun = True
        return self.first_start()

    @PlainErrors(asked=False)
    def latestOffset(self) -> Offset:  # type: ignore[override]
        start = self.first_start() if self._place is None else self._place
        self._place = self.next_end(start, takes_all=False)
        if not self._has_polled and any(self.limits) and self._place != self.newest_ends():
            logger.warning("%s", _ENDS_HERE)
        self._has_polled = True
        return self._place

    @PlainErrors(asked=False)
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start != end or self._has_begun:
            return self.tasks(start, end)
        if self._has_polled and any(self.limits):
            raise OptionError(_WRAPPER, "true", _ASKED_TOO_EARLY)
        self._has_begun, self._place = True, end
        return []


_ENDS_HERE = (
    "the first micro-batch leaves records to the next ones, by its limit: with "
    "trigger(availableNow=True) or trigger(once=True), this version of Spark ends the run after "
    "it, and the next run goes on there; with PySpark 4.2, or without a limit, one run takes all"
)

#: Spark wraps a source with it, and asks for an end before it tells the source its place.
_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
_ASKED_TOO_EARLY = (
    "with it, this version of Spark asks for the end of a micro-batch before it tells the place "
    "of the query, and a limit would count from the wrong place: unset it; or leave out "
    "maxOffsetsPerTrigger, maxBytesPerTrigger and minOffsetsPerTrigger"
)


#: Whether Spark tells a stream its place, its limit and its trigger.
TELLS_STREAMS = find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING or TELLS_STREAMS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    class StreamReader(PolledStream, SupportsTriggerAvailableNow):
        """A stream that Spark tells its place and its limit."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """The limit from the options; ``Trigger.Once`` replaces it with no limit."""
            # Spark has no limit of two kinds, so the stream takes them from its options.
            offsets, n_bytes, least = self.limits
            if offsets:
                return ReadMaxRows(offsets)
            if n_bytes:
                return ReadMaxBytes(n_bytes)
            return ReadMinRows(least) if least else ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:
            self.end_with_what_is_there()

        @PlainErrors(asked=False)
        def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
            return self.next_end(start, takes_all=isinstance(limit, ReadAllAvailable))

        @PlainErrors(asked=False)
        def reportLatestOffset(self) -> Offset:
            return self.newest_ends()

else:
    StreamReader = PlacedStream


#: Whether this is Spark 4.1 or later, by the interface that it has brought.
IS_41 = hasattr(datasource, "DataSourceStreamArrowWriter")


def refuse_no_columns(columns: Sized) -> None:
    """Raise `OptionError` for a schema without columns if Spark would count no rows of it."""
    if not columns and not IS_41:
        accepted = (
            "this version of Spark loses rows that have no columns: name one in the schema, such "
            "as 'offset bigint', or leave the schema out"
        )
        raise OptionError("schema", "", accepted)


if TYPE_CHECKING or IS_41:
    StreamWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 passes Arrow batches to all writers of the second class."""
