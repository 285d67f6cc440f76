"""A source for versions of Spark that do not tell a stream its trigger (`spark_versions`).

With ``availableNow`` and ``once``, they run one micro-batch, and a limit would end the run before
the records do.  A job and its test expect of ``kafka`` that such a run takes all.  So where a
query begins with one of these triggers, a file beside the link of `initial_offsets` says so, and
the source leaves its limits out.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_segmentlog.source import SegmentLogDataSource
from pyspark_segmentlog.spark_versions import TELLS_STREAMS
from pyspark_segmentlog.testing.initial_offsets import OPTION

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

_LIMITS = ("maxoffsetspertrigger", "minoffsetspertrigger")
_FILE = "takes-all"


class RunToTheEnd(SegmentLogDataSource):
    """The source of a stream with limits."""

    @classmethod
    def name(cls) -> str:
        return "segmentlog_run_to_the_end"

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        if Path(self.options[OPTION]).with_name(_FILE).exists():
            for name in _LIMITS:
                self.options.pop(name, None)
        return super().streamReader(schema)


def is_needed(options: Mapping[str, str]) -> bool:
    """Whether a stream with these options needs this source."""
    return not TELLS_STREAMS and not options.keys().isdisjoint(_LIMITS)


def tell_trigger(links: Iterable[str | None], trigger: Mapping[str, Any]) -> None:
    """Let the sources of a query, by their links, know whether its run takes all."""
    for place in links:
        if place is not None:
            told = Path(place).with_name(_FILE)
            told.unlink(missing_ok=True)
            if trigger.get("availableNow") or trigger.get("once"):
                told.touch()
