"""A stream reader that only refuses: streams are not supported yet."""

from typing import NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from segmentlog.errors import OptionError

__all__ = ["NoStreamReader"]


class NoStreamReader(DataSourceStreamReader):
    """Raises an error at the first call of Spark: there are no streams.

    Spark closes a stream reader in a ``finally`` block, also if making the reader has failed.  An
    error of ``DataSource.streamReader`` itself is therefore followed by an ``UnboundLocalError``.

    Parameters
    ----------
    error : to raise.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        """Raise the error."""
        raise self._error

    def latestOffset(self, *_: object) -> NoReturn:
        """Raise the error."""
        raise self._error

    def partitions(self, start: object, end: object) -> NoReturn:
        """Raise the error."""
        raise self._error

    def read(self, partition: object) -> NoReturn:
        """Raise the error."""
        raise self._error
