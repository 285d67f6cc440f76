"""Sail, a second engine: it asks for Arrow's schemas where Spark has types of its own.

Sail runs data sources in the process of its server.  It is known by the schemas that it passes,
never by what is loaded: a process that has Sail may also be a worker of Spark.
"""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_servers: list[Any] = []  # a server stops when it is collected, and its clients wait for ever


def new_session() -> "SparkSession":
    """A new session of the server in this process, which starts at the first call."""
    from pysail.spark import SparkConnectServer
    from pyspark.sql.connect.session import SparkSession as Session

    is_first = not _servers
    if is_first:
        os.environ.setdefault("RUST_LOG", "error")  # Sail notes each step on the console
        server = SparkConnectServer()
        server.start(background=True)
        _servers.append(server)
    _, port = _servers[0].listening_address
    session: Any = Session.builder.remote(f"sc://127.0.0.1:{port}").create()
    if is_first:
        session.conf.get("spark.sql.session.timeZone")  # once it answers, it waits for signals
        _keep_interrupts()
    return cast("SparkSession", session)


def _keep_interrupts() -> None:
    """Take SIGINT away from the server, which would end at it.

    PySpark's client then asks it to cancel the query, and tries this again for ten minutes.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None:  # by whom Python does not know
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, handler)


class ArrowStructType(StructType):
    """Columns for both engines: Sail takes the Arrow schema that they offer."""

    @classmethod
    def typeName(cls) -> str:
        return "struct"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructType) and self.fields == other.fields

    __hash__ = StructType.__hash__

    # Sail would otherwise convert Spark's types without a time zone, which PySpark 4.2 refuses.
    def __arrow_c_schema__(self) -> object:
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self, timezone="UTC").__arrow_c_schema__()


def spark_schema(schema: "StructType | pa.Schema") -> StructType:
    """The schema that an engine passes, in Spark's types."""
    if isinstance(schema, StructType):
        return schema
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def refuse_stream(given: Mapping[str, str], names: Iterable[str]) -> None:
    """Refuse options that only a stream has: Sail runs a stream's source and sink as a batch's."""
    from segmentlog.errors import OptionError

    asked = {name.lower(): text for name, text in given.items()}
    for name in names:
        if name.lower() in asked:
            accepted = (
                "Sail runs no stream of a Python data source: it would read or write everything "
                "as one batch, again at each start; use read and write, or Spark for streams"
            )
            raise OptionError(name, asked[name.lower()], accepted)


class ArrowReader(DataSourceReader):
    """A reader for Sail, whose batches have exactly the schema that was asked for.

    Times in a schema of the user's have the zone of the session.
    """

    def __init__(self, reader: DataSourceReader, schema: "pa.Schema") -> None:
        self._reader = reader
        self._schema = schema

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Let the reader read less; the engine applies all filters again."""
        return self._reader.pushFilters(filters)

    def pruneColumns(self, schema: "pa.Schema") -> "pa.Schema":
        """Let the reader read these columns only, if it can."""
        if hasattr(self._reader, "pruneColumns") and schema.names:
            self._reader.pruneColumns(schema)
            self._schema = schema
        return self._schema

    def pushLimit(self, limit: int) -> bool:
        """Let each task read so many rows, if the reader can."""
        return hasattr(self._reader, "pushLimit") and bool(self._reader.pushLimit(limit))

    def partitions(self) -> Sequence[InputPartition]:
        """Partitions of the reader."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Batches of the reader; a time zone, and metadata of a field, change no bytes."""
        import pyarrow as pa

        batches: Iterator[Any] = iter(self._reader.read(partition))
        for batch in batches:
            places = zip(batch.columns, self._schema.types, strict=True)
            columns = [each if each.type == kind else each.cast(kind) for each, kind in places]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
