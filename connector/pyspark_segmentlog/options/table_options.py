"""Options of a read of a table: strings in, one frozen, checked value out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark_segmentlog.options.names import check_read_names
from pyspark_segmentlog.options.option import GivenOptions, Query
from pyspark_segmentlog.options.read_options import NO_PATH
from pyspark_segmentlog.options.reference import READ_OPTIONS
from segmentlog.errors import OptionError
from segmentlog.model import OnCorruptBatch

#: Options that a table takes.
_TAKEN = ("path", "paths", "table", "history", "topic", "strict", "onCorruptBatch")


def reads_table(raw: Iterable[str]) -> bool:
    """Whether options, or their names, ask for a table, and not for records of topics."""
    return any(name.lower() == "table" for name in raw)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a read of a table, checked."""

    #: as the user wrote them
    paths: tuple[str, ...] = field(repr=False)  # credentials may stand in a URL
    table: str
    history: bool
    on_corrupt_batch: OnCorruptBatch
    topic: str | None = None
    strict: bool = False

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "TableOptions":
        """Check Spark's option strings; names in any case.

        Raises `OptionError` for the first option that is refused by its name, whose value is not
        accepted, or that selects records.
        """
        check_read_names(raw)
        given = GivenOptions(raw, READ_OPTIONS)
        for option in READ_OPTIONS:
            selects = Query.BATCH in option.used_by and option.name not in _TAKEN
            if selects and option.name in given:
                accepted = f"it is an option of records; a table takes {', '.join(_TAKEN)}"
                raise OptionError(option.name, given.texts[option.name.lower()], accepted)
        paths = (given["path"],) if "path" in given else ()
        paths += given["paths"] or ()
        if not paths:
            raise OptionError("path", "", NO_PATH)
        return cls(
            paths, given["table"], given["history"], given["onCorruptBatch"], given["topic"],
            given["strict"],
        )  # fmt: skip
