"""The commands of ``segmentlog`` by name: the module of a command is imported when it is called.

The help lists all commands, and a completion does, too.  Both show the table below, and import no
command: all of them together import most of the package.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from typer.core import TyperCommand

if TYPE_CHECKING:
    from segmentlog.tools.arguments import Command

#: Groups of commands in the help.
READS = "Commands that read"
WRITES = "Commands that write, and take the broker's lock"
OF_STORES = "Commands for logs in object stores, which take no lock"
OF_THE_MACHINE = "Commands that check or prepare this machine"

#: The commands of each group in the order of the help, with the first paragraph of their own help.
TABLE = {
    READS: {
        "topics": "List topics: partitions in the directory, records, bytes, first and last time.",
        "usage": "Account for every byte of log directories: its kind, and what removes it, and when.",
        "analyze": "Find out what is in topics: sizes, codecs, keys, formats, clocks, gaps; what to change.",
        "describe": "List topics and partitions: offsets, segments, bytes, formats, codecs, times.",
        "grep": "Find records whose keys or values match a pattern, in all partitions, on all cores.",
        "cat": "Write the records of a topic, with the options and the output of kcat.",
        "dump": "Show every batch of segment files, and with --records every record.",
        "offsets": "Show the position of a Spark streaming query: startingOffsets for its next batch.",
        "groups": "Show the groups of consumers, their committed offsets, and their lag.",
        "transactions": "Show transactional ids, and the transactions that hold back the last stable offset.",
        "cluster": "Show a cluster by its metadata: features, brokers, topics, settings, and ACLs.",
        "schemas": "Show the schemas of a registry (Confluent, Karapace).",
        "table": "Show any table of what Kafka knows about itself.",
        "replicas": "Show which copy of each partition is the log, and where the other copies differ.",
        "compare": "Compare the records of two log directories, such as a copy with its original.",
        "audit": "Prove that a table has each record of a topic once, and nothing else.",
        "verify": "Read everything and report what does not fit: checksums, indexes, gaps, transactions.",
        "preflight": "Show what a starting broker would do with its log directories. Nothing is changed.",
        "serve": "Serve logs to every Kafka client, only to read: no broker, no lock, no change.",
        "placement": "Propose brokers for the partitions of topics that another cluster lacks.",
    },
    WRITES: {
        "recover": "Bring a directory that was not cleanly stopped to the state after a clean stop.",
        "reindex": "Build .index, .timeindex and .txnindex files again, as a broker's recovery would.",
        "delete-topic": "Delete a topic: its partitions, checkpoint entries, settings and versions of writes.",
        "retain": "Remove the segments that a broker's retention would remove, and show the reasons.",
        "compact": "Keep the last record of each key, as a broker's log cleaner does.",
        "delete-records": "Delete the records of partitions below an offset, or before a time.",
        "erase": "Remove every record of the given keys, such as those of a person who asks for it.",
        "produce": "Append lines to a topic, with the options of kcat's producer.",
        "clone": "Clone a topic: under another name, with other partitions, another codec, or masked.",
        "configure": "Store settings of topics in a directory without a broker, and list them.",
        "mirror": "Copy partitions byte by byte, and continue an interrupted copy.",
        "restore": "Restore topics of a lost cluster on the stopped brokers of another cluster.",
        "undelete": "Restore a deleted or stray topic from the directories that a broker has renamed.",
    },
    OF_STORES: {
        "sweep": "Remove the objects of a log in an object store that have none of its records.",
        "upgrade": "Move a log in an object store to the newest layout.",
    },
    OF_THE_MACHINE: {
        "doctor": "Check this machine: versions, Java, compiled kernels, and whether Spark finds the format.",
    },
}


#: Modules of `segmentlog.tools` that declare several commands; others have the command's name.
_OF_SEVERAL = {
    "copies": "compare mirror replicas",
    "kafka_tables": "cluster groups schemas table transactions",
    "recover": "recover reindex",
    "restore": "placement restore undelete",
    "upkeep": "compact configure delete-records delete-topic retain sweep upgrade",
    "verify": "preflight verify",
}


class Commands(Mapping[str, Any]):
    """The commands of typer by their names, each made when it is first asked for."""

    def __init__(self) -> None:
        self._groups = {name: group for group, rows in TABLE.items() for name in rows}
        self._modules = {
            name: module for module, names in _OF_SEVERAL.items() for name in names.split()
        }
        self._known: dict[str, TyperCommand] = {}

    def __getitem__(self, name: str) -> TyperCommand:
        if name not in self._groups:
            raise KeyError(name)
        if name not in self._known:
            module = import_module(f"segmentlog.tools.{self._modules.get(name, name)}")
            command: Command = getattr(module, name.replace("-", "_"))
            self._known[name] = command.for_typer(self._groups[name])
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    @cached_property
    def listed(self) -> Mapping[str, TyperCommand]:
        """What a list of all commands shows of each: nothing that runs."""
        return {
            name: TyperCommand(name, help=sentence, rich_help_panel=group)
            for group, rows in TABLE.items()
            for name, sentence in rows.items()
        }


def convert_if_needed(parameter: Any, kind: Any = None) -> Any:  # noqa: ANN401 - typer's types
    """Let typer convert only the values of a parameter that lack the type `kind`; returns it.

    typer converts with pydantic, whose import takes as long as that of numpy.
    """
    convert = getattr(parameter, "process_value", None)
    if convert is None or "process_value" in vars(parameter):  # no parameter, or done before
        return parameter
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    is_list = parameter.multiple or parameter.nargs == -1
    of_value = get_args(kind)[0] if is_list and get_args(kind) else kind

    def process_value(ctx: Any, value: Any) -> Any:  # noqa: ANN401 - the same
        values = value if is_list and isinstance(value, list | tuple) else [value]
        if value is None and not parameter.required:
            value = () if is_list else None
        elif not (
            isinstance(of_value, type) and all(isinstance(each, of_value) for each in values)
        ):
            return convert(ctx, value)
        return parameter.callback(ctx, parameter, value) if parameter.callback else value

    parameter.process_value = process_value
    return parameter
